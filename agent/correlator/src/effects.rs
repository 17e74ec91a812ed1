//! Effects: what handling an event brings about outside of a room's own state, namely outputs, changed traces, counters
//! and timers.
//!
//! Lies apart from the open traces in the [`Context`](crate::context::Context), so that a room can borrow a trace and
//! the effects at once. Imports no room.

use sandglass_model::network::DnsMessage;

use crate::counters::Counters;
use crate::finding::LookupEnded;
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
    /// DNS messages that were handled, at most [`SPENT_MAX`].
    #[allow(clippy::vec_box, reason = "the box is what is used again")]
    pub(crate) spent: Vec<Box<DnsMessage>>,
    /// Findings of lookups that were handled, at most [`ENDED_MAX`].
    #[allow(clippy::vec_box, reason = "the box is what is used again")]
    ended: Vec<Box<LookupEnded>>,
}

impl Effects {
    /// Keeps a message that was handled, for its memory.
    pub(crate) fn keep_spent(&mut self, message: Box<DnsMessage>) {
        if self.spent.len() < SPENT_MAX {
            self.spent.push(message);
        }
    }

    /// Keeps a finding that was handled, for its memory.
    pub(crate) fn keep_ended(&mut self, ended: Box<LookupEnded>) {
        if self.ended.len() < ENDED_MAX {
            self.ended.push(ended);
        }
    }

    /// A finding whose memory can be used again.
    pub(crate) fn spare_ended(&mut self) -> Option<Box<LookupEnded>> {
        self.ended.pop()
    }
}

/// About as many as come within one pass of the pipeline at 40,000 lookups a second.
const SPENT_MAX: usize = 4_096;
/// As many as one event usually ends.
const ENDED_MAX: usize = 16;
