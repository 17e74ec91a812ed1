//! The room of plugins: processes into plugin invocations, commands and CNI operations.
//!
//! Gets the events of processes from `correlator.rs`; reports operations that open and close, and ends of runtime steps,
//! as facts. Here is its state; `exec.rs` handles an exec, `membership.rs` begins spans, `exits.rs` ends them,
//! `operations.rs` decides when a chain of plugins is over. Does not: open or close a trace.

pub(crate) mod exec;
pub(crate) mod exits;
pub(crate) mod membership;
pub(crate) mod operations;
mod process_index;
mod processes;
mod role;
pub(crate) mod state;

use crate::by_trace::ByTrace;
use crate::collections::by_text::ByText;
use crate::config::CorrelatorConfig;
use crate::counters::Sizes;
use crate::keys::SpanRef;
use crate::plugins::processes::TrackedProcesses;
use crate::plugins::state::TraceState;

/// The room's state.
#[derive(Debug)]
pub(crate) struct Plugins {
    processes: TrackedProcesses,
    /// Operations and invocations of each open trace.
    traces: ByTrace<TraceState>,
    /// Open operations that a runtime requested, by container id.
    open: ByText<Vec<SpanRef>>,
    /// States of traces that closed, kept for the next ones: a new one costs two allocations.
    spare: Vec<TraceState>,
}

impl Plugins {
    pub(crate) fn new(config: &CorrelatorConfig) -> Plugins {
        Plugins {
            processes: TrackedProcesses::new(config.max_processes),
            traces: ByTrace::default(),
            open: ByText::new(config.max_traces),
            spare: Vec::new(),
        }
    }

    pub(crate) fn fill_sizes(&self, sizes: &mut Sizes) {
        sizes.processes = self.processes.len();
    }
}
