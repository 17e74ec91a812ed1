//! Timers: what has to happen if nothing else does, and when.
//!
//! Used by the state machine, which fires them as the time in the events passes. One entry per timer: setting one
//! again moves it. Does not: read a clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sandglass_model::{ProcessKey, Timestamp};

use crate::collections::bucket::Bucket;
use crate::keys::{SpanRef, TraceKey};

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Timeout of a plugin that the runtime executed.
    Plugin(ProcessKey),
    /// The settle time of an operation is over: no next plugin of its chain came.
    Settle(SpanRef),
    /// A sandbox whose operations are all closed got nothing more from its runtime.
    Trace(TraceKey),
    /// The deadline of a sandbox's readiness.
    Ready(TraceKey),
    /// The oldest trace that is held back for its labels was held back long enough.
    Labels,
    /// A lookup is over, by its serial number.
    Lookup(u64),
    /// A lookup that a DNS client service reports is over, by its serial number (Windows).
    ServiceLookup(u64),
    /// A connect is over, by its serial number.
    Connect(u64),
    /// The journey that begins with this lookup may be over.
    Journey(u64),
}

/// All timers that are set.
#[derive(Debug)]
pub(crate) struct Timers {
    /// Each time a timer was set to, those among them that do not hold any more: most timers are cleared or moved before
    /// they fire, and to pass over what is stale costs less than to find it. The first one always holds.
    queue: BinaryHeap<Reverse<(Timestamp, Timer)>>,
    /// When each timer is due, in buckets by what it is for.
    due: Vec<Bucket<(Timer, Timestamp)>>,
    /// How many are set.
    count: usize,
}

/// A power of two. A node that creates all its sandboxes at once has about as many timers.
const BUCKETS: usize = 512;
/// So many stale entries are no reason to tidy up.
const STALE: usize = 64;

impl Default for Timers {
    fn default() -> Timers {
        Timers {
            queue: BinaryHeap::new(),
            due: Bucket::many(BUCKETS),
            count: 0,
        }
    }
}

impl Timers {
    pub(crate) fn set(&mut self, timer: Timer, at: Timestamp) {
        let bucket = &mut self.due[place(timer)];
        match bucket.find_mut(|(set, _)| *set == timer) {
            Some((_, due)) if *due == at => return,
            Some((_, due)) => *due = at,
            None => {
                bucket.push((timer, at));
                self.count += 1;
            }
        }
        self.queue.push(Reverse((at, timer)));
        self.pass_over(timer);
        if self.queue.len() > STALE + 2 * self.count {
            let due = &self.due;
            self.queue.retain(|Reverse(entry)| holds(due, entry));
        }
    }

    pub(crate) fn clear(&mut self, timer: Timer) {
        if self.forget(timer) {
            self.pass_over(timer);
        }
    }

    fn forget(&mut self, timer: Timer) -> bool {
        let known = self.due[place(timer)].take(|(set, _)| *set == timer).is_some();
        self.count -= usize::from(known);
        known
    }

    /// `timer` has changed: the first entry may hold no more.
    fn pass_over(&mut self, timer: Timer) {
        if self.queue.peek().is_none_or(|Reverse((_, first))| *first != timer) {
            return;
        }
        while let Some(Reverse(first)) = self.queue.peek()
            && !holds(&self.due, first)
        {
            self.queue.pop();
        }
    }

    /// When the first timer is due.
    pub(crate) fn first(&self) -> Option<Timestamp> {
        self.queue.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes the first timer that is due at `now` or before.
    pub(crate) fn pop(&mut self, now: Timestamp) -> Option<(Timestamp, Timer)> {
        let Reverse((at, timer)) = *self.queue.peek()?;
        if at > now {
            return None;
        }
        self.clear(timer);
        Some((at, timer))
    }
}

fn holds(due: &[Bucket<(Timer, Timestamp)>], (at, timer): &(Timestamp, Timer)) -> bool {
    let entry = due[place(*timer)].find(|(set, _)| set == timer);
    entry.is_some_and(|(_, due)| due == at)
}

/// Pids and serial numbers are given out one after the other and fill the buckets evenly.
fn place(timer: Timer) -> usize {
    let number = match timer {
        Timer::Plugin(process) => process.pid as usize,
        Timer::Settle(SpanRef { trace, span }) => trace.serial() as usize + span,
        Timer::Trace(trace) => trace.serial() as usize + BUCKETS / 2,
        Timer::Ready(trace) => trace.serial() as usize + BUCKETS / 4,
        Timer::Labels => 0,
        Timer::Lookup(serial) | Timer::ServiceLookup(serial) | Timer::Connect(serial) => serial as usize,
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
    #[test]
    fn what_is_set_again_and_again_takes_no_room_and_fires_once() {
        let mut timers = Timers::default();
        for at in 0..10_000 {
            timers.set(Timer::Lookup(1), Timestamp(20_000 - at));
            timers.set(Timer::Lookup(2), Timestamp(30_000 + at));
            timers.set(Timer::Connect(at), Timestamp(15_000));
            timers.clear(Timer::Connect(at));
            assert_eq!(timers.first(), Some(Timestamp(20_000 - at)));
        }
        assert!(timers.queue.len() <= STALE + 4, "{}", timers.queue.len());
        // Back to where it was before: the queue has that time twice.
        timers.set(Timer::Lookup(2), Timestamp(1));
        timers.set(Timer::Lookup(2), Timestamp(2));
        timers.set(Timer::Lookup(2), Timestamp(1));
        let fired: Vec<_> = std::iter::from_fn(|| timers.pop(Timestamp(50_000))).collect();
        assert_eq!(
            fired,
            [(Timestamp(1), Timer::Lookup(2)), (Timestamp(10_001), Timer::Lookup(1))]
        );
        assert_eq!((timers.count, timers.queue.len()), (0, 0));
    }
}
