//! Timers: what has to happen if nothing else does, and when.
//!
//! Used by the state machine, which fires them as the time in the events passes. One entry per timer: setting one
//! again moves it. Does not: read a clock.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::{ProcessKey, Timestamp};

use crate::open::TraceKey;

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A plugin asked by the runtime has run too long.
    Plugin(ProcessKey),
    /// No next plugin came to an operation's chain.
    Settle(TraceKey, usize),
    /// Nothing more came to a sandbox whose operations have all ended.
    Trace(TraceKey),
}

/// All timers that are set.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    queue: BTreeSet<(Timestamp, Timer)>,
    due: BTreeMap<Timer, Timestamp>,
}

impl Timers {
    pub(crate) fn set(&mut self, timer: Timer, at: Timestamp) {
        match self.due.insert(timer, at) {
            Some(before) if before == at => return,
            Some(before) => _ = self.queue.remove(&(before, timer)),
            None => {}
        }
        self.queue.insert((at, timer));
    }

    pub(crate) fn clear(&mut self, timer: Timer) {
        if let Some(at) = self.due.remove(&timer) {
            self.queue.remove(&(at, timer));
        }
    }

    /// When the first timer is due.
    pub(crate) fn first(&self) -> Option<Timestamp> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Takes the first timer that is due at `now` or before.
    pub(crate) fn pop(&mut self, now: Timestamp) -> Option<(Timestamp, Timer)> {
        if self.first()? > now {
            return None;
        }
        let (at, timer) = self.queue.pop_first()?;
        self.due.remove(&timer);
        Some((at, timer))
    }
}
