//! Timers: what has to happen if nothing else does, and when.
//!
//! Used by every room through the [`Context`](crate::context::Context); `correlator.rs` fires them as the time in the
//! events passes. One entry per timer: setting it again moves it. Timers due at the same instant fire in the order of
//! `Timer`, which keeps replays deterministic.
//! Most timers are set to a fixed time after now, so that each of them comes behind all that were set with the same
//! delay: these are in a few lists in order of time, which a timer joins and leaves at no cost. Timers that fit at the
//! end of no list are in a heap.
//! Ours by measurement, for 10,000 lookups a second with 10 timers set or moved for each, and for bursts of 110 sandboxes
//! (ratios to this table, medians of alternated rounds of processor time, two runs on a busy machine): the crate
//! `priority-queue` took 1.04 to 1.16 and 1.21 to 1.74 of the time and 2.5 and 1.0 of the memory; a `BinaryHeap` of times with
//! a `hashbrown` map of what is current 1.11 to 1.26 and 1.01 to 1.03 of the time and 4.1 and 1.6 of the memory. Timer
//! wheels fire in ticks of a fixed length and in no order within one; here the time is exact, and part of a trace.
//! Bounded by what they are for: at most one for each plugin that runs, each open operation, two for each open trace,
//! one for each lookup, connect, journey and request to a daemon. Does not: read a clock.
//!
//! Example: an operation's last plugin ends at 10 ms, so `Settle` is set to 510 ms. The next plugin begins at 20 ms and
//! cancels it: `due` forgets it, and the entry of 510 ms in the queue is stale. When that plugin ends at 40 ms,
//! `Settle` is set to 540 ms. The stale entry is skipped when it comes to the top.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sandglass_model::{ProcessKey, Timestamp};

use crate::keys::{SpanRef, TraceKey};

/// The purpose of a timer, and the key of what it is for. The type's order is part of the behaviour: see the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Timeout of a plugin that the runtime executed.
    Plugin(ProcessKey),
    /// The settle time of an operation is over: no next plugin of its chain came.
    Settle(SpanRef),
    /// The runtime wait of a sandbox is over: all its operations are closed and no further step of the runtime came.
    Trace(TraceKey),
    /// The deadline of a sandbox's readiness.
    Ready(TraceKey),
    /// The wait for labels of the oldest trace that is held back is over. One timer for all of them, since they all
    /// wait equally long.
    Labels,
    /// The wait for the first plugin of the network namespace that was named longest ago is over. One timer for all.
    Unserved,
    /// A lookup ends unless a message comes, by its serial number.
    Lookup(u64),
    /// A lookup that the DNS client service reports ends unless a step comes, by its serial number (Windows).
    ServiceLookup(u64),
    /// A connect ends unless a step comes, by its serial number.
    Connect(u64),
    /// The journey that begins with this lookup may be over.
    Journey(u64),
    /// The request of this connection lasts long enough for a span.
    Request(u64),
}

/// All timers that are set.
#[derive(Debug)]
pub(crate) struct Timers {
    slots: Vec<Slot>,
    /// The first unused slot; they are linked by `next_in_bucket`.
    free: u32,
    /// Slots by what they are for.
    buckets: Vec<u32>,
    /// In order of time, each for about one delay: the longest delay comes into the first list.
    runs: [Run; RUNS],
    /// When the first timer of each list is due; the end of time for an empty one. Read with every event.
    firsts: [Timestamp; RUNS],
    /// Each time that a timer of no list was set to, stale entries included: skipping a stale entry when it comes to
    /// the top costs less than finding it. Invariant: the first entry is never stale.
    queue: BinaryHeap<Reverse<(Timestamp, Timer)>>,
    /// How many timers are set, in lists or not.
    count: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    timer: Timer,
    at: Timestamp,
    next_in_bucket: u32,
    /// The list that it is in, or [`QUEUED`], and its neighbours there.
    run: u8,
    before: u32,
    after: u32,
}

/// A list of slots, in order.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: u32,
    last: u32,
    /// Time and timer of the first slot and of the last: most of what is decided is decided by these.
    ends: Option<[(Timestamp, Timer); 2]>,
}

/// As many as there are usual delays: of connects and plugins, of readiness, of lookups, of labels, of journeys, of
/// operations, and of what is over but for late records.
const RUNS: usize = 8;
/// [`Slot::run`] of a timer in the heap, and of one that is neither there nor in a list.
const QUEUED: u8 = RUNS as u8;
const NOWHERE: u8 = QUEUED + 1;
/// Without timers, the memory of so many is kept.
const KEPT_SLOTS: usize = 1_024;
/// A power of two. A node that creates all its sandboxes at once has about as many timers.
const BUCKETS: usize = 2_048;
/// Up to this many stale entries the queue is not tidied up.
const STALE: usize = 64;
const END_OF_TIME: Timestamp = Timestamp(u64::MAX);
/// No slot.
const NONE: u32 = u32::MAX;

impl Default for Timers {
    fn default() -> Timers {
        Timers {
            slots: Vec::new(),
            free: NONE,
            buckets: vec![NONE; BUCKETS],
            runs: [Run {
                first: NONE,
                last: NONE,
                ends: None,
            }; RUNS],
            firsts: [END_OF_TIME; RUNS],
            queue: BinaryHeap::new(),
            count: 0,
        }
    }
}

impl Timers {
    /// Sets a timer, or moves it where it is set. A time that has passed fires with the next event.
    pub(crate) fn set(&mut self, timer: Timer, at: Timestamp) {
        let slot = match self.find(timer) {
            Some(slot) if self.slots[slot as usize].at == at => return,
            Some(slot) => {
                self.leave(slot);
                slot
            }
            None => self.add(timer),
        };
        self.slots[slot as usize].at = at;
        self.join(slot);
    }

    /// Cancels a timer, if it is set.
    pub(crate) fn clear(&mut self, timer: Timer) {
        if let Some(slot) = self.find(timer) {
            self.remove(slot);
        }
    }

    /// When the first timer is due.
    pub(crate) fn first(&self) -> Option<Timestamp> {
        self.earliest().map(|(at, _)| at)
    }

    /// Takes the first timer that is due at `now` or before.
    pub(crate) fn pop(&mut self, now: Timestamp) -> Option<(Timestamp, Timer)> {
        if self.first_at() > now {
            return None;
        }
        let (at, timer) = self.earliest().filter(|(at, _)| *at <= now)?;
        self.clear(timer);
        Some((at, timer))
    }

    /// When the first timer is due, or the end of time.
    fn first_at(&self) -> Timestamp {
        let queued = self.queue.peek().map_or(END_OF_TIME, |Reverse((at, _))| *at);
        self.firsts.iter().fold(queued, |first, at| first.min(*at))
    }

    /// The first timer of all lists and of the heap; of several at one time the first by the order of `Timer`.
    fn earliest(&self) -> Option<(Timestamp, Timer)> {
        let queued = self.queue.peek().map(|Reverse(first)| *first);
        let in_runs = self.runs.iter().filter_map(|run| run.ends.map(|[first, _]| first));
        in_runs.chain(queued).min()
    }

    /// The slot of a timer that is set.
    fn find(&self, timer: Timer) -> Option<u32> {
        let mut next = self.buckets[bucket(timer)];
        loop {
            let slot = self.slots.get(next as usize)?;
            if slot.timer == timer {
                return Some(next);
            }
            next = slot.next_in_bucket;
        }
    }

    /// A slot for a timer that has none; it is in no list yet.
    fn add(&mut self, timer: Timer) -> u32 {
        let bucket = &mut self.buckets[bucket(timer)];
        let slot = Slot {
            timer,
            at: Timestamp(0),
            next_in_bucket: *bucket,
            run: NOWHERE,
            before: NONE,
            after: NONE,
        };
        let place = match self.slots.get_mut(self.free as usize) {
            Some(unused) => std::mem::replace(&mut self.free, std::mem::replace(unused, slot).next_in_bucket),
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        *bucket = place;
        self.count += 1;
        place
    }

    /// Frees a slot: out of its bucket, its list or the heap, and into the list of free ones.
    fn remove(&mut self, slot: u32) {
        let Slot {
            timer, next_in_bucket, ..
        } = self.slots[slot as usize];
        let first = bucket(timer);
        if self.buckets[first] == slot {
            self.buckets[first] = next_in_bucket;
        } else {
            let mut before = self.buckets[first];
            while self.slots[before as usize].next_in_bucket != slot {
                before = self.slots[before as usize].next_in_bucket;
            }
            self.slots[before as usize].next_in_bucket = next_in_bucket;
        }
        self.count -= 1;
        self.leave(slot);
        self.slots[slot as usize].next_in_bucket = std::mem::replace(&mut self.free, slot);
        if self.count == 0 && self.slots.len() > KEPT_SLOTS {
            // A burst has passed: its memory goes back.
            (self.slots, self.free) = (Vec::new(), NONE);
        }
    }

    /// Puts a slot at the end of a list where it is in order, or into the heap.
    fn join(&mut self, slot: u32) {
        let Slot { timer, at, .. } = self.slots[slot as usize];
        let key = (at, timer);
        let fits = |run: &Run| run.ends.is_none_or(|[_, last]| last <= key);
        let Some(number) = self.runs.iter().position(fits) else {
            self.slots[slot as usize].run = QUEUED;
            self.queue.push(Reverse(key));
            if self.queue.len() > STALE + 2 * self.count {
                let queue = std::mem::take(&mut self.queue);
                self.queue = queue.into_iter().filter(|Reverse(entry)| self.holds(*entry)).collect();
            }
            return;
        };
        let run = &mut self.runs[number];
        let before = std::mem::replace(&mut run.last, slot);
        match &mut run.ends {
            Some([_, last]) => *last = key,
            none => {
                *none = Some([key; 2]);
                run.first = slot;
                self.firsts[number] = at;
            }
        }
        if let Some(before) = self.slots.get_mut(before as usize) {
            before.after = slot;
        }
        let slot = &mut self.slots[slot as usize];
        (slot.run, slot.before, slot.after) = (number as u8, before, NONE);
    }

    /// Takes a slot out of its list, or out of the heap; its timer is moved or is no more.
    fn leave(&mut self, slot: u32) {
        let Slot {
            run: number,
            before,
            after,
            ..
        } = self.slots[slot as usize];
        let Some(run) = self.runs.get_mut(usize::from(number)) else {
            self.slots[slot as usize].run = NOWHERE;
            while let Some(Reverse(first)) = self.queue.peek()
                && !self.holds(*first)
            {
                self.queue.pop();
            }
            return;
        };
        let key = |slot: &Slot| (slot.at, slot.timer);
        match self.slots.get_mut(before as usize) {
            Some(before) => before.after = after,
            None => run.first = after,
        }
        match self.slots.get_mut(after as usize) {
            Some(after) => after.before = before,
            None => run.last = before,
        }
        let ends = [run.first, run.last].map(|end| self.slots.get(end as usize).map(key));
        run.ends = ends[0].zip(ends[1]).map(|(first, last)| [first, last]);
        self.firsts[usize::from(number)] = run.ends.map_or(END_OF_TIME, |[(at, _), _]| at);
    }

    /// An entry of the heap is a timer's present time.
    fn holds(&self, (at, timer): (Timestamp, Timer)) -> bool {
        let slot = self.find(timer).map(|slot| self.slots[slot as usize]);
        slot.is_some_and(|slot| slot.at == at && slot.run == QUEUED)
    }
}

/// Pids and serial numbers are given out one after the other and fill the buckets evenly.
fn bucket(timer: Timer) -> usize {
    let number = match timer {
        Timer::Plugin(process) => process.pid as usize,
        Timer::Settle(SpanRef { trace, span }) => trace.serial() as usize + span,
        Timer::Trace(trace) => trace.serial() as usize + BUCKETS / 2,
        Timer::Ready(trace) => trace.serial() as usize + BUCKETS / 4,
        Timer::Labels | Timer::Unserved => 0,
        Timer::Lookup(serial) | Timer::ServiceLookup(serial) | Timer::Connect(serial) => serial as usize,
        Timer::Journey(serial) => serial as usize + BUCKETS / 2,
        Timer::Request(connection) => connection as usize + BUCKETS / 4,
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
