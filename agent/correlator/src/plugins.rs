//! The room of plugins: turns execs, forks and exits into spans of plugin invocations and commands, grouped into CNI
//! operations.
//!
//! `correlator.rs` passes it the events of processes. It reports `OperationOpened`, `OperationRetried`,
//! `OperationClosed`, `AddressesReported` and `StepEnded` as facts (`facts.rs`). This file holds its state. `exec.rs`
//! decides what an exec is, `membership.rs` begins spans and puts each plugin into an operation, `exits.rs` ends spans,
//! `operations.rs` decides when a chain of plugins is over.
//!
//! It may touch its own tables, spans of plugins, commands and operations in open traces, and timers of kind `Plugin`
//! and `Settle`. `time_spent.rs` puts into spans what the room of waits found, since only this room maps a process to its span.
//! Does not: open or close a trace (the room of sandboxes chooses it and passes a `Placement`), or know lookups and
//! connects.

pub(crate) mod exec;
pub(crate) mod exits;
pub(crate) mod membership;
pub(crate) mod operations;
mod process_index;
mod processes;
mod role;
pub(crate) mod state;
mod time_spent;

use std::sync::Arc;

use crate::by_trace::ByTrace;
use crate::collections::HashMap;
use crate::config::CorrelatorConfig;
use crate::counters::Sizes;
use crate::keys::SpanRef;
use crate::plugins::processes::TrackedProcesses;
use crate::plugins::state::TraceState;

/// The room's state. Bounded by the processes table (`max_processes`) and by the bound on open traces: an entry of
/// `traces` goes with its trace.
#[derive(Debug)]
pub(crate) struct Plugins {
    /// Every process that was executed by a runtime or lies below a plugin.
    processes: TrackedProcesses,
    /// Operations and invocations of each open trace.
    traces: ByTrace<TraceState>,
    /// Open operations that a runtime requested, by container id: the only key that a runtime's next exec carries.
    /// Nested operations are found through their caller's trace instead.
    open: HashMap<Arc<str>, Vec<SpanRef>>,
    /// States of traces that closed, kept for reuse: a new one costs two allocations for each sandbox. Never longer
    /// than the most traces that were open at once.
    spare: Vec<TraceState>,
}

impl Plugins {
    pub(crate) fn new(config: &CorrelatorConfig) -> Plugins {
        Plugins {
            processes: TrackedProcesses::new(config.max_processes),
            traces: ByTrace::default(),
            open: HashMap::default(),
            spare: Vec::new(),
        }
    }

    pub(crate) fn fill_sizes(&self, sizes: &mut Sizes) {
        sizes.processes = self.processes.len();
    }
}
