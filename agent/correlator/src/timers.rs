//! Timers: what has to happen if nothing else does, and when.
//!
//! Used by the state machine, which fires them as the time in the events passes. One entry per timer: setting one
//! again moves it. Does not: read a clock.

use std::collections::BTreeSet;

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
    /// A sandbox's network was waited for long enough.
    Ready(TraceKey),
    /// A lookup is over, by its serial number.
    Lookup(u64),
    /// A connection is over, by its serial number.
    Connect(u64),
    /// Nothing more belongs to the journey of a lookup.
    Journey(u64),
}

/// All timers that are set.
#[derive(Debug)]
pub(crate) struct Timers {
    queue: BTreeSet<(Timestamp, Timer)>,
    /// When each timer is due, in buckets by what it is for: most timers are cleared before they fire, many that were
    /// never set are cleared too, and neither should have to walk down a tree first.
    due: Vec<Vec<(Timer, Timestamp)>>,
}

/// A power of two. A node that creates all its sandboxes at once has about as many timers.
const BUCKETS: usize = 512;

impl Default for Timers {
    fn default() -> Timers {
        Timers {
            queue: BTreeSet::new(),
            due: std::iter::repeat_with(Vec::new).take(BUCKETS).collect(),
        }
    }
}

impl Timers {
    pub(crate) fn set(&mut self, timer: Timer, at: Timestamp) {
        let bucket = &mut self.due[place(timer)];
        match bucket.iter_mut().find(|(set, _)| *set == timer) {
            Some((_, before)) if *before == at => return,
            Some((_, before)) => _ = self.queue.remove(&(std::mem::replace(before, at), timer)),
            None => bucket.push((timer, at)),
        }
        self.queue.insert((at, timer));
    }

    pub(crate) fn clear(&mut self, timer: Timer) {
        if let Some(at) = self.forget(timer) {
            self.queue.remove(&(at, timer));
        }
    }

    fn forget(&mut self, timer: Timer) -> Option<Timestamp> {
        let bucket = &mut self.due[place(timer)];
        let index = bucket.iter().position(|(set, _)| *set == timer)?;
        Some(bucket.swap_remove(index).1)
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
        self.forget(timer);
        Some((at, timer))
    }
}

/// Pids and serial numbers are given out one after the other and fill the buckets evenly.
fn place(timer: Timer) -> usize {
    let number = match timer {
        Timer::Plugin(process) => process.pid as usize,
        Timer::Settle(trace, operation) => trace.serial() as usize + operation,
        Timer::Trace(trace) => trace.serial() as usize + BUCKETS / 2,
        Timer::Ready(trace) => trace.serial() as usize + BUCKETS / 4,
        Timer::Lookup(serial) | Timer::Connect(serial) => serial as usize,
        Timer::Journey(serial) => serial as usize + BUCKETS / 2,
    };
    number & (BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_fires_once_at_the_time_that_was_set_last() {
        let mut timers = Timers::default();
        let timer = |pid| Timer::Plugin(ProcessKey::new(pid, 0));
        // The first two share a bucket.
        for (pid, at) in [(1, 30), (1 + BUCKETS as u32, 20), (2, 10), (1, 5), (3, 7)] {
            timers.set(timer(pid), Timestamp(at));
        }
        timers.clear(timer(3));
        timers.clear(timer(4));
        assert_eq!(timers.first(), Some(Timestamp(5)));
        let fired: Vec<_> = std::iter::from_fn(|| timers.pop(Timestamp(15))).collect();
        assert_eq!(fired, [(Timestamp(5), timer(1)), (Timestamp(10), timer(2))]);
        timers.set(timer(1), Timestamp(5));
        assert_eq!(timers.pop(Timestamp(15)), Some((Timestamp(5), timer(1))));
        assert_eq!(timers.first(), Some(Timestamp(20)));
    }
}
