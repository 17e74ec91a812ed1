//! Plays events through a correlator and checks what must hold at any time, whatever they are.
//!
//! Used by all properties. Does not: know what the events mean.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_correlator::{Correlator, CorrelatorConfig, Finding, Output, Reorder, TrafficBounds};
use sandglass_model::waits::TimeSpent;
use sandglass_model::{Detail, Event, RootId, Span, SpanId, Timestamp, Trace, TraceId};

/// What came out, in a form that does not depend on the order of traces that end at the same time.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    pub closed: Vec<Trace>,
    pub orphan: u64,
}

pub fn config() -> CorrelatorConfig {
    CorrelatorConfig {
        boot_id: "boot".to_owned(),
        max_traces: 16,
        max_processes: 64,
        max_spans: 24,
        max_remembered: 16,
        traffic: TrafficBounds {
            max_lookups: 64,
            max_connects: 64,
            max_flows: 32,
            ..TrafficBounds::default()
        },
        ..CorrelatorConfig::default()
    }
}

/// What a span's time went to adds up to its duration.
fn check_time(span: &Span) {
    if let Some(time) = span.detail.time() {
        assert_eq!(time.total_ns(), span.duration_ns(span.start), "{span:?}");
        assert!(time.parts.iter().all(|(_, ns)| *ns > 0), "{time:?}");
        assert!(time.waits.len() <= TimeSpent::WAITS_MAX);
    }
}

/// Plays events in this order and checks everything that must hold at any time.
pub fn play(config: &CorrelatorConfig, events: &[Event]) -> Outcome {
    let mut correlator = Correlator::new(config.clone());
    let mut ended: BTreeMap<SpanId, Option<Timestamp>> = BTreeMap::new();
    let mut closed: Vec<Trace> = Vec::new();
    let mut created: BTreeSet<TraceId> = BTreeSet::new();
    let mut announced: BTreeSet<TraceId> = BTreeSet::new();
    let mut opened: BTreeSet<RootId> = BTreeSet::new();
    let (mut creations, mut sandboxes) = (0, 0);
    let mut take = |correlator: &mut Correlator| {
        for id in correlator.take_changed() {
            assert!(correlator.open_trace(id).is_some());
        }
        for output in correlator.drain() {
            match output {
                Output::Ended(span) => {
                    let twice = ended.insert(span.id, Some(span.end));
                    assert!(twice.is_none(), "a span ended twice");
                }
                Output::Closed(trace) => {
                    assert_eq!(trace.check(), Ok(()));
                    assert!(trace.closed);
                    assert!(trace.spans.len() <= config.max_spans);
                    sandboxes += usize::from(matches!(trace.root().detail, Detail::Sandbox(_)));
                    assert!(trace.spans.iter().all(|span| span.events.len() <= 64));
                    for span in &trace.spans {
                        assert_eq!(ended.remove(&span.id).expect("a span did not end"), span.end);
                        assert!(span.end.is_some());
                        check_time(span);
                    }
                    closed.push(Trace::clone(&trace));
                }
                Output::Created(trace) => {
                    assert_eq!(trace.check(), Ok(()));
                    assert!(trace.spans.iter().skip(1).take(1).all(|create| create.end.is_some()));
                    creations += 1;
                    created.insert(trace.id);
                }
                Output::Finding(Finding::Lookup(ended)) => {
                    assert!(ended.start <= ended.end && ended.detail.result.is_some());
                    announced.extend(ended.trace);
                }
                Output::Finding(Finding::Connect(ended)) => {
                    assert!(ended.start <= ended.end);
                    announced.extend(ended.trace);
                }
                Output::LabelsNeeded(sandbox) => assert!(!sandbox.0.starts_with("unnamed:"), "nobody knows {sandbox}"),
                Output::Preexisting { .. } | Output::Finding(_) => {}
            }
        }
        let sizes = correlator.sizes();
        assert!(sizes.traces <= config.max_traces, "{sizes:?}");
        assert!(sizes.processes <= config.max_processes, "{sizes:?}");
        assert!(sizes.sandboxes <= config.max_remembered, "{sizes:?}");
        assert!(sizes.pods <= config.max_remembered, "{sizes:?}");
        assert!(sizes.lookups <= config.traffic.max_lookups, "{sizes:?}");
        assert!(sizes.connects <= config.traffic.max_connects, "{sizes:?}");
        assert!(sizes.flows <= config.traffic.max_flows, "{sizes:?}");
        assert!(sizes.owners <= 3 * config.max_remembered, "{sizes:?}");
        assert!(sizes.journeys <= 256, "{sizes:?}");
        assert!(sizes.windows <= 5 * config.max_remembered + 6_144, "{sizes:?}");
        assert!(sizes.unlabelled <= 1_024, "{sizes:?}");
        assert!(sizes.unserved <= 1_024, "{sizes:?}");
        let waiting = sizes.unlabelled + sizes.unserved;
        let open = sizes.traces + sizes.lookups + sizes.connects + sizes.journeys + waiting;
        // Lookups of Windows have timers, and no trace of their own.
        let traffic = config.windows && open == 0;
        assert!(
            traffic || (open == 0) == correlator.next_deadline().is_none(),
            "a timer for everything that is open"
        );
    };
    for event in events {
        correlator.handle(event.clone());
        take(&mut correlator);
        opened.extend(correlator.open().map(Trace::root_id));
        for trace in correlator.with_running() {
            assert_eq!(trace.check(), Ok(()));
            assert!(trace.spans.len() <= config.max_spans);
            let ids: BTreeSet<_> = trace.spans.iter().map(|span| span.id).collect();
            assert_eq!(ids.len(), trace.spans.len(), "span ids are unique");
        }
    }
    for trace in correlator.open() {
        assert_eq!(trace.check(), Ok(()));
    }
    let orphan = correlator.counters().orphan;
    correlator.finish();
    take(&mut correlator);
    assert_eq!(correlator.open().count(), 0);
    assert!(ended.is_empty(), "spans of no trace: {ended:?}");
    assert_eq!(creations, sandboxes, "every creation is emitted once");
    let ids: BTreeSet<TraceId> = closed.iter().map(|trace| trace.id).collect();
    assert!(
        created.is_subset(&ids) && announced.is_subset(&ids),
        "reported as seen in a trace that never came"
    );
    let roots: BTreeSet<RootId> = closed.iter().map(Trace::root_id).collect();
    assert!(
        opened.is_subset(&roots),
        "a trace was closed under other ids than it was shown"
    );
    closed.sort_by_key(|trace| (trace.start(), trace.id));
    Outcome { closed, orphan }
}

/// Plays events through the reorder stage.
pub fn play_arrivals(events: &[Event], window_ns: u64) -> Outcome {
    let mut reorder = Reorder::new(window_ns);
    let mut ordered = Vec::with_capacity(events.len());
    for event in events {
        reorder.push(event.clone());
        while let Some(next) = reorder.pop() {
            assert!(!next.late, "nothing is shuffled beyond the window");
            ordered.push(next.event);
        }
    }
    while let Some(next) = reorder.flush() {
        ordered.push(next.event);
    }
    play(&config(), &ordered)
}
