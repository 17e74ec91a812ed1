//! The room of sandboxes: when the trace of one begins, what the runtime does for it, when it is complete.
//!
//! The creation of a sandbox is one trace, which stays open until the network is ready; every other operation is a trace of
//! its own, linked to it. Only this room opens and closes traces. Here is its state; `opening.rs` and `closing.rs` do that,
//! `evidence.rs` adds what runtime, kernel and CRI report, `readiness.rs` knows when a network is ready, `labels.rs` holds
//! traces back for their pod's labels. Does not: look into operations or exchanges.

pub(crate) mod closing;
pub(crate) mod creation;
pub(crate) mod evidence;
pub(crate) mod first_exchanges;
pub(crate) mod labels;
pub(crate) mod memory;
pub(crate) mod opening;
pub(crate) mod readiness;
pub(crate) mod reported;

use crate::by_trace::ByTrace;
use crate::config::CorrelatorConfig;
use crate::counters::Sizes;
use crate::sandboxes::creation::Creation;
use crate::sandboxes::labels::HeldBack;
use crate::sandboxes::memory::Memory;

/// The room's state.
#[derive(Debug)]
pub(crate) struct Sandboxes {
    /// State beside the trace of each creation.
    creations: ByTrace<Creation>,
    memory: Memory,
    held_back: HeldBack,
    /// The agent observes traffic: readiness can be told.
    watched: bool,
}

impl Sandboxes {
    pub(crate) fn new(config: &CorrelatorConfig) -> Sandboxes {
        Sandboxes {
            creations: ByTrace::default(),
            memory: Memory::new(config.max_remembered),
            held_back: HeldBack::default(),
            watched: false,
        }
    }

    pub(crate) fn fill_sizes(&self, sizes: &mut Sizes) {
        sizes.sandboxes = self.memory.sandboxes.len();
        sizes.pods = self.memory.pods.len();
        sizes.unlabelled = self.held_back.len();
    }
}
