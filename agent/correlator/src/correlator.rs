//! The state machine: which process is a plugin, which operation it belongs to, which sandbox that is for.

use std::sync::Arc;

use sandglass_model::time::{MILLISECOND, SECOND};
use sandglass_model::{Event, PodIdentity, SandboxId, Span, Timestamp, Trace, TraceId};

/// Deadlines and bounds. All times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Boot id of the node: part of every trace id.
    pub boot_id: String,
    /// An operation whose plugins have all ended waits this long for the next plugin of its chain.
    pub settle_ns: u64,
    /// A sandbox whose operations have all succeeded waits this long for the runtime's next step when the caller is
    /// a runtime whose steps are known (containerd, CRI-O).
    pub runtime_wait_ns: u64,
    /// A plugin that runs this long is given up: its span ends with `deadline`.
    pub deadline_ns: u64,
    /// Most traces open at once.
    pub max_traces: usize,
    /// Most processes tracked at once.
    pub max_processes: usize,
    /// Most spans in one trace.
    pub max_spans: usize,
    /// Most ended sandboxes and pods remembered, for links and attempt numbers.
    pub max_remembered: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            boot_id: String::new(),
            settle_ns: 500 * MILLISECOND,
            runtime_wait_ns: 10 * SECOND,
            deadline_ns: 300 * SECOND,
            max_traces: 4_096,
            max_processes: 16_384,
            max_spans: 512,
            max_remembered: 8_192,
        }
    }
}

/// What the correlator found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// An open trace changed: take a fresh copy with [`Correlator::open`] when convenient.
    Changed(TraceId),
    /// A span ended, once and for all. Metrics count these.
    Ended(Box<EndedSpan>),
    /// A trace is complete. Exported and stored.
    Closed(Arc<Trace>),
    /// A sandbox was seen whose labels only the runtime can tell.
    Asked(SandboxId),
    /// A sandbox that is older than the agent.
    Known {
        /// The sandbox.
        sandbox: SandboxId,
        /// Its pod.
        identity: PodIdentity,
        /// When the runtime says it was created.
        created: Timestamp,
    },
}

/// A span that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedSpan {
    /// Its trace.
    pub trace: TraceId,
    /// The trace is incomplete.
    pub incomplete: bool,
    /// The span.
    pub span: Span,
}

/// What was counted; only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events whose owner was not found.
    pub orphan: u64,
    /// Traces given up because too many were open.
    pub evicted_traces: u64,
    /// Processes given up because too many were tracked.
    pub evicted_processes: u64,
    /// Spans not made because a trace was full.
    pub evicted_spans: u64,
    /// Remembered sandboxes and pods forgotten.
    pub evicted_remembered: u64,
}

/// The correlator.
#[derive(Debug)]
pub struct Correlator {
    config: Config,
}

impl Correlator {
    /// A correlator that has seen nothing.
    #[must_use]
    pub fn new(config: Config) -> Correlator {
        Correlator { config }
    }

    /// Takes one event. Events come in time order but for late ones, whose time may lie before the newest seen.
    pub fn handle(&mut self, _event: &Event) {
        let _ = &self.config;
    }

    /// Outputs since the last call, in order.
    pub fn drain(&mut self) -> Vec<Output> {
        Vec::new()
    }

    /// Ends what is open, at the newest time seen: for the end of a recording and a clean stop.
    pub fn finish(&mut self) {}

    /// Open traces, oldest first.
    pub fn open(&self) -> impl Iterator<Item = &Trace> {
        std::iter::empty()
    }

    /// When the next deadline fires, if nothing else happens: a tick is needed then. `None` when nothing is open.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        None
    }

    /// What was counted so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters::default()
    }
}
