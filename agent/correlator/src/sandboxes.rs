//! The room of sandboxes: decides when the trace of a sandbox begins, what belongs to it, and when it is complete.
//!
//! The creation of a sandbox is one trace, which stays open until the network is ready; every other operation is a
//! trace of its own, linked to it. `correlator.rs` passes the room the begin and end of operations, runtime steps,
//! network namespaces, labels, losses and exchanges. This file holds its state. `opening.rs` and `closing.rs` open and
//! close traces, `creation.rs` decides when a creation is over, `evidence.rs` adds what runtime, kernel and CRI report,
//! `first_exchanges.rs` and `readiness.rs` decide when the network is ready, `labels.rs` holds traces back for their
//! pod's labels, `time_spent.rs` sums up what the time of a creation went to, `unserved.rs` finds sandboxes for which no plugin ran (its state is in
//! `netns_names.rs`), `requests.rs` joins what the runtime was requested to do, and `config_cause.rs` why, `memory.rs` remembers sandboxes and
//! pods for links and attempt numbers (`packed_pod.rs`: a pod in two allocations).
//!
//! It may touch the open traces themselves (only this room opens and closes them), the spans `sandbox`,
//! `sandbox.create`, runtime steps and exchanges shown in a creation, and timers of kind `Trace`, `Ready`, `Labels` and
//! `Unserved`.
//! Does not: look into operations, which the room of plugins decides, or judge how an exchange ended.

pub(crate) mod closing;
pub(crate) mod config_cause;
pub(crate) mod creation;
pub(crate) mod evidence;
pub(crate) mod first_exchanges;
pub(crate) mod labels;
pub(crate) mod memory;
pub(crate) mod netns_names;
pub(crate) mod open_requests;
pub(crate) mod opening;
pub(crate) mod packed_pod;
pub(crate) mod readiness;
pub(crate) mod reported;
pub(crate) mod requests;
pub(crate) mod time_spent;
pub(crate) mod unserved;

use crate::by_trace::ByTrace;
use crate::config::CorrelatorConfig;
use crate::counters::Sizes;
use crate::sandboxes::creation::Creation;
use crate::sandboxes::labels::HeldBack;
use crate::sandboxes::memory::Memory;
use crate::sandboxes::netns_names::Unserved;
use crate::sandboxes::open_requests::Requests;

/// The room's state. Bounded by the open traces (`max_traces`), by `max_remembered`, and by the bound on traces held
/// back.
#[derive(Debug)]
pub(crate) struct Sandboxes {
    /// State beside the trace of each creation, until that trace closes.
    creations: ByTrace<Creation>,
    /// What is remembered of sandboxes and pods after their traces closed.
    memory: Memory,
    /// Complete traces that wait for their pod's labels.
    held_back: HeldBack,
    /// Network namespaces that a runtime named.
    unserved: Unserved,
    /// Requests to make a sandbox that have no response yet.
    requests: Requests,
    /// The agent observes traffic, so silence means that the sandbox sent nothing. Otherwise readiness cannot be
    /// decided and traces close with the creation.
    watched: bool,
}

impl Sandboxes {
    pub(crate) fn new(config: &CorrelatorConfig) -> Sandboxes {
        Sandboxes {
            creations: ByTrace::default(),
            memory: Memory::new(config.max_remembered),
            held_back: HeldBack::default(),
            unserved: Unserved::default(),
            requests: Requests::default(),
            watched: false,
        }
    }

    pub(crate) fn fill_sizes(&self, sizes: &mut Sizes) {
        sizes.sandboxes = self.memory.sandboxes.len();
        sizes.pods = self.memory.pods.len();
        sizes.unlabelled = self.held_back.len();
        sizes.unserved = self.unserved.len();
    }
}
