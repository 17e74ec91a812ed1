//! The correlator's configuration: its deadlines, thresholds and bounds, with their defaults.
//!
//! Made by the agent from its own configuration (`agent/src/app/settings.rs`) and read by every room. The defaults here
//! are the agent's defaults too. All times are nanoseconds of the boot clock. Does not: change while the correlator
//! runs.

use sandglass_model::ClockAnchor;
use sandglass_model::time::{MILLISECOND, SECOND};

/// Deadlines and bounds. All times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorrelatorConfig {
    /// Boot id of the node: part of every trace id.
    pub boot_id: String,
    /// Boot time and wall-clock time at the start, for traces that begin before the first `ClockAnchored` event.
    pub anchor: ClockAnchor,
    /// Settle time of an operation: how long it stays open for the next plugin of its chain after all its plugins have
    /// ended, where the configuration does not say whether there is one. Longer than libcni takes between two plugins.
    pub settle_ns: u64,
    /// How long a sandbox whose operations all succeeded stays open for the runtime's next step, when the caller is a
    /// runtime whose steps are known (containerd, CRI-O), and an operation for the next plugin that its network's list names.
    pub runtime_wait_ns: u64,
    /// Timeout of a plugin: its span then ends with the error class `deadline`.
    pub deadline_ns: u64,
    /// How long a complete trace is held back for the labels of its pod; 0 where no runtime can report them.
    pub labels_wait_ns: u64,
    /// Bound on open traces, clamped to what keys can address.
    pub max_traces: usize,
    /// Bound on tracked processes.
    pub max_processes: usize,
    /// Bound on the spans of one trace.
    pub max_spans: usize,
    /// Bound on sandboxes and on pods remembered after their traces closed, for links and attempt numbers. The default is some
    /// eighteen times the pods that a kubelet allows by default (110); of each ended sandbox about 1.5 KiB is kept.
    pub max_remembered: usize,
    /// Deadlines, thresholds and bounds for traffic.
    pub traffic: TrafficBounds,
    /// The node runs Windows: environments are not visible, so the parameters of plugins are inferred.
    pub windows: bool,
}

impl Default for CorrelatorConfig {
    fn default() -> CorrelatorConfig {
        CorrelatorConfig {
            boot_id: String::new(),
            anchor: ClockAnchor::default(),
            settle_ns: 500 * MILLISECOND,
            runtime_wait_ns: 10 * SECOND,
            deadline_ns: 300 * SECOND,
            labels_wait_ns: 2 * SECOND,
            max_traces: 4_096,
            max_processes: 16_384,
            max_spans: 512,
            max_remembered: 2_048,
            traffic: TrafficBounds::default(),
            windows: false,
        }
    }
}

/// Deadlines, thresholds and bounds for traffic. All times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficBounds {
    /// A sandbox that sent nothing for this long after its creation counts as silent: its trace ends with the creation.
    pub ready_deadline_ns: u64,
    /// After the first answered lookup, how long readiness waits for a first connect to begin, and the reverse.
    pub ready_grace_ns: u64,
    /// Timeout of a question without an answer, from its first query. The same question later is another lookup.
    pub lookup_deadline_ns: u64,
    /// After an answer without addresses, how long a lookup stays open for the next name of the search path.
    pub search_gap_ns: u64,
    /// A lookup that takes longer is slow.
    pub slow_lookup_ns: u64,
    /// A connect that takes longer is slow.
    pub slow_connect_ns: u64,
    /// Rate limit of journeys, in traces a minute, with bursts of as many; the node's own traffic takes at most half of
    /// what is available. 0 makes none.
    pub journeys_per_minute: u32,
    /// Bound on open lookups.
    pub max_lookups: usize,
    /// Bound on open connects.
    pub max_connects: usize,
    /// Bound on remembered conntrack entries.
    pub max_flows: usize,
}

impl Default for TrafficBounds {
    fn default() -> TrafficBounds {
        TrafficBounds {
            ready_deadline_ns: 30 * SECOND,
            ready_grace_ns: SECOND,
            lookup_deadline_ns: 10 * SECOND,
            search_gap_ns: 100 * MILLISECOND,
            slow_lookup_ns: SECOND,
            slow_connect_ns: SECOND,
            journeys_per_minute: 60,
            max_lookups: 8_192,
            max_connects: 8_192,
            max_flows: 16_384,
        }
    }
}
