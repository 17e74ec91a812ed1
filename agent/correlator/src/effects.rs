//! What rooms bring about besides their own state: outputs, changed traces, counters and timers.
//!
//! Apart from the open traces in the [`Context`](crate::context::Context), so that a room can borrow a trace and this at
//! once.

use crate::counters::Counters;
use crate::keys::TraceKey;
use crate::output::Output;
use crate::timers::Timers;

/// What rooms bring about.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) outputs: Vec<Output>,
    /// Open traces that changed since the last call of [`take_changed`](crate::Correlator::take_changed).
    pub(crate) changed: Vec<TraceKey>,
    pub(crate) counters: Counters,
    pub(crate) timers: Timers,
}
