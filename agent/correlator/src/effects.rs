//! Effects: what handling an event brings about outside of a room's own state, namely outputs, changed traces, counters
//! and timers.
//!
//! Lies apart from the open traces in the [`Context`](crate::context::Context), so that a room can borrow a trace and
//! the effects at once. Imports no room.

use crate::counters::Counters;
use crate::keys::TraceKey;
use crate::output::Output;
use crate::timers::Timers;

/// What rooms bring about.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Outputs that the pipeline has not drained.
    pub(crate) outputs: Vec<Output>,
    /// Open traces that changed since the last call of [`take_changed`](crate::Correlator::take_changed). Each is in it
    /// once: the trace itself remembers that it is (`OpenTrace::touch`).
    pub(crate) changed: Vec<TraceKey>,
    pub(crate) counters: Counters,
    pub(crate) timers: Timers,
}
