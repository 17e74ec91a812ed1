//! What the fuzz target of the whole replay runs: a file through reader, normalizer, correlator and sinks. A test of the agent
//! (`tests/windows_stories.rs`) runs the same on damaged stories, on stable Rust.

use std::collections::{BTreeMap, BTreeSet};

use sandglass::health::Health;
use sandglass::node::NodeInfo;
use sandglass::pipeline::{Outputs, Pipeline};
use sandglass::sinks::prometheus::{Metrics, ProductMetrics};
use sandglass::sinks::store::StoreOptions;
use sandglass::sources::windows::file::EtlFile;
use sandglass::sources::windows::normalize::ActivityNames;
use sandglass::view::{self, Query, Store};
use sandglass_correlator::{CorrelatorConfig, Output};
use sandglass_model::{Event, Timestamp, Trace, TraceId, recording, text};

/// What a file came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Events made of it.
    pub events: u64,
    /// Its traces, as text.
    pub traces: Vec<String>,
}

/// The sinks, and what has to hold of what they get.
struct Sinks {
    product: ProductMetrics,
    store: Store,
    replayed: Replayed,
    /// Spans that were reported as ended and stand in no closed trace yet.
    ended: BTreeMap<sandglass_model::SpanId, Timestamp>,
}

impl Outputs for Sinks {
    fn arrived(&mut self, event: &Event) {
        self.replayed.events += 1;
        let line = recording::encode(event).expect("an event can be written");
        if line.len() <= recording::MAX_LINE {
            let read = recording::decode_event(&line).expect("what was written can be read");
            assert_eq!(read, *event);
        }
    }

    fn output(&mut self, output: &Output) {
        self.product.record(output);
        match output {
            Output::Closed(trace) => {
                assert_eq!(trace.check(), Ok(()));
                assert!(trace.closed && trace.spans.len() <= MAX_SPANS);
                for span in &trace.spans {
                    assert_eq!(self.ended.remove(&span.id), span.end);
                }
                let end = trace.root().end.unwrap_or_default();
                self.replayed.traces.push(text::tree(trace, end));
                self.store.update(std::sync::Arc::clone(trace));
                assert!(view::row(&self.store, trace.root_id()).is_some());
            }
            Output::Ended(span) => {
                assert!(self.ended.insert(span.id, span.end).is_none(), "a span ended twice");
            }
            Output::Finding(traffic) => self.store.traffic(traffic, 1),
            Output::Preexisting {
                sandbox,
                identity,
                created,
            } => self.store.known(sandbox.clone(), identity.clone(), *created),
            Output::Created(_) | Output::LabelsNeeded(_) => {}
        }
    }

    fn changed(&mut self, open: &mut dyn Iterator<Item = &Trace>, _: &BTreeSet<TraceId>) {
        for trace in open {
            assert_eq!(trace.check(), Ok(()));
            self.store.update(trace.clone());
        }
    }
}

const MAX_SPANS: usize = 64;

/// Replays a file to its end. `None` when it is none.
pub fn replay(file: &[u8]) -> Option<Replayed> {
    let mut file = EtlFile::from_bytes("fuzz", file.to_vec(), ActivityNames::default()).ok()?;
    let config = CorrelatorConfig {
        boot_id: file.header.boot_id.clone(),
        anchor: file.header.clock,
        windows: true,
        ..CorrelatorConfig::default()
    };
    Some(through(config, || file.next_event().expect("memory can be read")))
}

/// Sends events through the pipeline and its sinks, with small bounds.
pub fn through(config: CorrelatorConfig, mut next: impl FnMut() -> Option<Event>) -> Replayed {
    let node = NodeInfo::default();
    let config = CorrelatorConfig {
        max_traces: 64,
        max_processes: 256,
        max_spans: MAX_SPANS,
        max_remembered: 64,
        ..config
    };
    let health = Health::default();
    let metrics = Metrics::new(&node, &health);
    let product = ProductMetrics::new(8);
    metrics.register(|registry| product.register(registry));
    let mut sinks = Sinks {
        product,
        store: Store::new(StoreOptions::live(1_000), node),
        replayed: Replayed::default(),
        ended: BTreeMap::new(),
    };
    let mut pipeline = Pipeline::new(config, 100_000_000, health);
    while let Some(event) = next() {
        pipeline.feed(event, &mut sinks);
    }
    pipeline.finish(&mut sinks);
    assert!(sinks.ended.is_empty(), "spans of no trace");
    assert!(metrics.encode().expect("metrics can be written").ends_with("# EOF\n"));
    assert!(view::operations(&sinks.store, 0).is_empty(), "nothing runs any more");
    assert!(view::list(&sinks.store, &Query::default()).rows.len() <= sinks.replayed.traces.len());
    let _ = view::network(&sinks.store);
    sinks.replayed
}
