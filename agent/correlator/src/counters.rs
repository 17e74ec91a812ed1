//! What the correlator counts about itself: losses, and how full its tables are.
//!
//! Read by the pipeline for metrics and health. Of the six loss words (ARCHITECTURE.md) the correlator counts two:
//! orphan and evicted. Imports no room.

use crate::finding::Scope;

/// Entries that were evicted from a table, by the owner that lost them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evictions {
    /// Of an owner that had more than a quarter of the full table: its own doing, and nobody else's entries went.
    pub noisy: u64,
    /// Of a sandbox: the table is too small for all.
    pub sandbox: u64,
    /// Of the node, or of a network namespace or address without a known sandbox: the table is too small for all.
    pub node: u64,
}

impl Evictions {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.noisy + self.sandbox + self.node
    }

    /// Counts one.
    pub(crate) fn count(&mut self, scope: Scope, is_noisy: bool) {
        match (is_noisy, scope) {
            (true, _) => self.noisy += 1,
            (false, Scope::Sandbox) => self.sandbox += 1,
            (false, Scope::Node) => self.node += 1,
        }
    }
}

/// Losses since the start; these numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events without an owner: of a process that is not tracked, an answer that no query fits, a stop without a start.
    /// Some are normal after a start of the agent.
    pub orphan: u64,
    /// Traces that were closed early and marked incomplete because too many were open.
    pub evicted_traces: Evictions,
    /// Processes removed because too many were tracked.
    pub evicted_processes: Evictions,
    /// Spans that were not made because a trace was full.
    pub evicted_spans: u64,
    /// Sandboxes and pods that are no longer remembered: later operations on them have no link.
    pub evicted_remembered: Evictions,
    /// Lookups removed because too many were open.
    pub evicted_lookups: Evictions,
    /// Connects removed because too many were open.
    pub evicted_connects: Evictions,
    /// Conntrack entries no longer remembered because there were too many.
    pub evicted_flows: Evictions,
    /// Network namespaces and addresses whose owner is no longer known: their traffic counts as the node's.
    pub evicted_owners: Evictions,
    /// Activities, objects and sandboxes of Windows no longer remembered because there were too many.
    pub evicted_windows: u64,
}

/// Entries in the correlator's tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Open traces; at most [`CorrelatorConfig::max_traces`](crate::CorrelatorConfig::max_traces).
    pub traces: usize,
    /// Tracked processes; at most [`CorrelatorConfig::max_processes`](crate::CorrelatorConfig::max_processes).
    pub processes: usize,
    /// Remembered sandboxes; at most [`CorrelatorConfig::max_remembered`](crate::CorrelatorConfig::max_remembered).
    pub sandboxes: usize,
    /// Remembered pods; at most [`CorrelatorConfig::max_remembered`](crate::CorrelatorConfig::max_remembered).
    pub pods: usize,
    /// Open lookups; at most [`TrafficBounds::max_lookups`](crate::TrafficBounds::max_lookups).
    pub lookups: usize,
    /// Open connects; at most [`TrafficBounds::max_connects`](crate::TrafficBounds::max_connects).
    pub connects: usize,
    /// Remembered conntrack entries; at most [`TrafficBounds::max_flows`](crate::TrafficBounds::max_flows).
    pub flows: usize,
    /// Remembered network namespaces and addresses; at most three times
    /// [`CorrelatorConfig::max_remembered`](crate::CorrelatorConfig::max_remembered).
    pub owners: usize,
    /// Open journeys; at most 256.
    pub journeys: usize,
    /// Complete traces that are held back for their pods' labels; at most 1,024.
    pub unlabelled: usize,
    /// Named network namespaces that no plugin used yet; at most 1,024.
    pub unserved: usize,
    /// Sandboxes, activities, objects and lookups of Windows; at most five times
    /// [`CorrelatorConfig::max_remembered`](crate::CorrelatorConfig::max_remembered) and 6,144.
    pub windows: usize,
}
