//! The reorder stage: orders events by kernel time. Holds each event until the watermark passes its time.
//!
//! Used by the pipeline and by replays, before the correlator. Every probe has a ring buffer and a thread of its own,
//! and conntrack events come through netlink: their records arrive in order within one feed only. The watermark is the
//! newest time seen minus the window; events of equal time keep their order of arrival. Memory is bounded by what
//! arrives within one window.
//! Does not: drop, merge or re-stamp events. Late ones are released at once, flagged, and counted by the pipeline.
//!
//! Example with a window of 100 ms: events of 10, 30 and 20 ms arrive in this order. None is released until an event,
//! or a tick, of 110 ms arrives; then that of 10 ms is. At 130 ms all three are released, as 10, 20, 30. An event of 25
//! ms that arrives now is late and is released at once.

use std::collections::VecDeque;

use sandglass_model::{Event, Timestamp};
use slab::Slab;

/// An event that the stage released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// The event.
    pub event: Event,
    /// The watermark had passed its time before it came: events that happened after it may have been released before
    /// it.
    pub late: bool,
}

/// The reorder stage.
#[derive(Debug)]
pub struct Reorder {
    /// How far the watermark stays behind the newest time, in nanoseconds.
    window_ns: u64,
    /// The newest time seen. Only grows.
    newest: Timestamp,
    /// Time and slot of each event held, in order of time. Events come nearly in order, so the place of a new one is at
    /// the back or a few entries before it: a heap would move entries on every insertion and removal.
    held: VecDeque<(Timestamp, usize)>,
    /// The events. Indirect, so that an insertion within `held` moves 16 bytes per entry and not a whole event of 64.
    slots: Slab<Event>,
    /// Late events that are not released yet.
    late: VecDeque<Event>,
}

impl Reorder {
    /// A stage whose window is `window_ns` nanoseconds. With 0 it only sorts late events out.
    #[must_use]
    pub fn new(window_ns: u64) -> Reorder {
        Reorder {
            window_ns,
            newest: Timestamp(0),
            held: VecDeque::new(),
            slots: Slab::new(),
            late: VecDeque::new(),
        }
    }

    /// Takes one event.
    pub fn push(&mut self, event: Event) {
        if event.at < self.watermark() {
            self.late.push_back(event);
            return;
        }
        self.newest = self.newest.max(event.at);
        let at = event.at;
        let slot = self.slots.insert(event);
        // Nearly always 0, and then inserting is appending.
        match self.held.iter().rev().take_while(|(held, _)| *held > at).count() {
            0 => self.held.push_back((at, slot)),
            younger => self.held.insert(self.held.len() - younger, (at, slot)),
        }
    }

    /// Releases the next event: a late one, or the oldest one held if the watermark has reached it. `None` when all
    /// that is held must wait.
    pub fn pop(&mut self) -> Option<Ordered> {
        if let Some(event) = self.late.pop_front() {
            return Some(Ordered { event, late: true });
        }
        let (at, _) = self.held.front()?;
        if *at > self.watermark() {
            return None;
        }
        let (_, slot) = self.held.pop_front()?;
        let event = self.slots.try_remove(slot)?;
        // A burst has passed: memory that it needed goes back, so that a node's quiet footprint does not depend on its
        // loudest second.
        if self.held.is_empty() && self.slots.capacity() > KEPT_SLOTS {
            self.held = VecDeque::new();
            self.slots = Slab::new();
        }
        Some(Ordered { event, late: false })
    }

    /// Releases the next event whatever the watermark; for the end of the input.
    /// Sets the window to 0 for good: no event can be waited for any more.
    pub fn flush(&mut self) -> Option<Ordered> {
        self.window_ns = 0;
        self.pop()
    }

    /// Events held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len() + self.late.len()
    }

    /// Nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// No event before this time is expected; one that comes is late.
    fn watermark(&self) -> Timestamp {
        self.newest.minus(self.window_ns)
    }
}

/// Slots whose memory is kept when nothing is held: about what a busy node has within one window.
const KEPT_SLOTS: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;
    use sandglass_model::Body;

    fn event(at: u64) -> Event {
        Event {
            at: Timestamp(at),
            body: Body::Tick,
        }
    }

    #[test]
    fn holds_until_the_watermark_passes() {
        let mut reorder = Reorder::new(10);
        reorder.push(event(105));
        reorder.push(event(100));
        assert!(reorder.pop().is_none());
        reorder.push(event(110));
        assert_eq!(
            reorder.pop().map(|next| (next.event.at.0, next.late)),
            Some((100, false))
        );
        assert!(reorder.pop().is_none());
        reorder.push(event(90));
        assert_eq!(reorder.pop().map(|next| (next.event.at.0, next.late)), Some((90, true)));
        assert_eq!(reorder.flush().map(|next| next.event.at.0), Some(105));
        assert_eq!(reorder.flush().map(|next| next.event.at.0), Some(110));
        assert!(reorder.is_empty());
    }

    #[test]
    fn equal_times_keep_their_order_of_arrival() {
        let mut reorder = Reorder::new(10);
        for unix_ns in 0..100 {
            reorder.push(Event {
                at: Timestamp(50 + (unix_ns % 2)),
                body: Body::ClockAnchored { unix_ns },
            });
        }
        let mut released = Vec::new();
        while let Some(next) = reorder.flush() {
            if let Body::ClockAnchored { unix_ns } = next.event.body {
                released.push(unix_ns);
            }
        }
        let expected: Vec<u64> = (0..100).step_by(2).chain((1..100).step_by(2)).collect();
        assert_eq!(released, expected);
    }

    #[test]
    fn room_is_used_again_and_given_back_after_a_burst() {
        let mut reorder = Reorder::new(0);
        for at in 0..10_000 {
            reorder.push(event(at));
            assert!(reorder.pop().is_some());
        }
        assert!(reorder.slots.capacity() <= 4, "{}", reorder.slots.capacity());
        let mut reorder = Reorder::new(1_000_000);
        for at in 0..10_000 {
            reorder.push(event(at));
        }
        while reorder.flush().is_some() {}
        assert!(reorder.slots.capacity() == 0 && reorder.is_empty());
    }
}
