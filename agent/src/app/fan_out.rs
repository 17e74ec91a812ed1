//! The fan-out: each output of the correlator to every sink that wants it, none of which may block.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use sandglass_correlator::Output;
use sandglass_model::{CniCommand, Detail, Event, Span, Timestamp, Trace, TraceId};

use crate::cni_state::CniState;
use crate::identity::Identity;
use crate::pipeline::Outputs;
use crate::sinks::journal::Journal;
use crate::sinks::otlp::OtlpSink;
use crate::sinks::prometheus::{InFlight, ProductMetrics};
use crate::sinks::recording::Recorder;
use crate::view::Store;
use crate::wall_clock::wall_ns;

/// The sinks of one pipeline.
#[derive(Debug)]
pub struct FanOut {
    /// Product metrics.
    pub product: ProductMetrics,
    /// Running operations.
    pub in_flight: InFlight,
    /// Receives the time of good ADDs.
    pub cni: CniState,
    /// The store behind the page.
    pub store: Option<Store>,
    /// OTLP export.
    pub otlp: Option<Arc<OtlpSink>>,
    /// The journal of open traces.
    pub journal: Option<Journal>,
    /// Resolves sandboxes to pods. Taken away at stop, since its answers keep the pipeline's channel open.
    pub identity: Arc<Mutex<Option<Identity>>>,
    /// The recording being made.
    pub recorder: Option<Recorder>,
    /// Receives every closed trace.
    pub closed: Option<mpsc::Sender<Arc<Trace>>>,
}

impl Outputs for FanOut {
    fn arrived(&mut self, event: &Event) {
        if let Some(recorder) = &mut self.recorder {
            recorder.record(event);
        }
    }

    fn output(&mut self, output: &Output) {
        self.product.record(output);
        match output {
            Output::Closed(trace) => {
                if let Some(store) = &self.store {
                    store.update(Arc::clone(trace));
                }
                if let Some(otlp) = &self.otlp {
                    otlp.offer(trace);
                }
                if let Some(journal) = &self.journal {
                    journal.close(trace);
                }
                if let Some(closed) = &self.closed {
                    // A demo that has ended no longer receives.
                    let _ = closed.send(Arc::clone(trace));
                }
            }
            Output::LabelsNeeded(sandbox) => {
                if let Some(identity) = &*self.identity.lock().unwrap_or_else(PoisonError::into_inner) {
                    identity.resolve(sandbox.clone());
                }
            }
            Output::Preexisting {
                sandbox,
                identity,
                created,
            } => {
                if let Some(journal) = &self.journal {
                    journal.exists(sandbox);
                }
                if let Some(store) = &self.store {
                    store.known(sandbox.clone(), identity.clone(), *created);
                }
            }
            Output::Finding(traffic) => {
                if let Some(store) = &self.store {
                    store.traffic(traffic, wall_ns());
                }
            }
            Output::Created(trace) => {
                if let Some(end) = first_good_add(trace) {
                    self.cni.added(end);
                }
            }
            Output::Ended(_) => {}
        }
    }

    fn changed(&mut self, open: &mut dyn Iterator<Item = &Trace>, changed: &BTreeSet<TraceId>) {
        let mut all = Vec::new();
        for trace in open {
            if changed.contains(&trace.id) && (self.store.is_some() || self.journal.is_some()) {
                let snapshot = Arc::new(trace.clone());
                if let Some(journal) = &self.journal {
                    journal.put(&snapshot);
                }
                if let Some(store) = &self.store {
                    store.update(snapshot);
                }
            }
            all.push(trace);
        }
        self.in_flight.set(all.into_iter());
    }
}

/// End of the first ADD of a trace that succeeded; that of the loopback needs no configuration.
fn first_good_add(trace: &Trace) -> Option<Timestamp> {
    let good = |span: &&Span| match &span.detail {
        Detail::Operation(operation) => {
            operation.command == CniCommand::Add && operation.ifname != "lo" && !span.status.is_error()
        }
        _ => false,
    };
    trace.spans.iter().filter(good).filter_map(|span| span.end).min()
}
