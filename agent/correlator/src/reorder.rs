//! The reorder stage: orders events by kernel time. Holds each event until the watermark passes its time.
//!
//! Used by the pipeline and by replays, before the correlator. Every probe has a ring buffer and a thread of its own,
//! and conntrack events come through netlink: their records arrive in order within one feed only. The watermark is the
//! newest time seen minus the window; events of equal time keep their order of arrival. Where the caller knows how far the
//! feeds are ([`Reorder::wait_for`]), the watermark does not pass the slowest of them, for a second at most: on a
//! busy node, the thread of a feed waits for a processor for longer than the window. Memory is bounded by what arrives within one window, or
//! by [`WAITING_MAX`] events while a feed is waited for.
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
    /// The time before which every feed has sent everything, where that is known.
    feeds: Option<Timestamp>,
    /// No event before this time is expected; one that comes is late. Only grows.
    watermark: Timestamp,
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
            feeds: None,
            watermark: Timestamp(0),
            held: VecDeque::new(),
            slots: Slab::new(),
            late: VecDeque::new(),
        }
    }

    /// The time before which every feed has sent everything; `None` where nobody knows. Holds for all that is pushed until the
    /// next call.
    pub fn wait_for(&mut self, feeds: Option<Timestamp>) {
        self.feeds = feeds;
    }

    /// Takes one event.
    pub fn push(&mut self, event: Event) {
        if event.at < self.watermark {
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
        self.advance();
    }

    /// Releases the next event: a late one, or the oldest one held if the watermark has reached it. `None` when all
    /// that is held must wait.
    pub fn pop(&mut self) -> Option<Ordered> {
        if let Some(event) = self.late.pop_front() {
            return Some(Ordered { event, late: true });
        }
        let (at, _) = self.held.front()?;
        if *at > self.watermark {
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
    /// No event can be waited for any more: one that is pushed after that is late.
    pub fn flush(&mut self) -> Option<Ordered> {
        self.watermark = Timestamp(u64::MAX);
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

    /// Moves the watermark on.
    fn advance(&mut self) {
        let newest = self.newest.minus(self.window_ns);
        let reached = match self.feeds {
            Some(feeds) if self.held.len() < WAITING_MAX => newest.min(feeds).max(newest.minus(FEED_WAIT_NS)),
            _ => newest,
        };
        self.watermark = self.watermark.max(reached);
    }
}

/// How long a feed that is behind is waited for, beyond the window. On a node of two processors whose tasks waited 92 % of the time, a
/// thread of an agent with the chart's request of a processor waited for up to 120 ms.
pub const FEED_WAIT_NS: u64 = 1_000_000_000;
/// Events held from which on no feed is waited for: 3 MB of them.
const WAITING_MAX: usize = 32_768;
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
    fn a_feed_that_is_behind_is_waited_for_but_not_for_ever() {
        let late = |reorder: &mut Reorder| reorder.pop().map(|next| (next.event.at.0, next.late));
        let mut reorder = Reorder::new(10);
        reorder.wait_for(Some(Timestamp(100)));
        reorder.push(event(105));
        reorder.push(event(500));
        assert_eq!(
            late(&mut reorder),
            None,
            "within the window of 500, and behind the feed"
        );
        reorder.push(event(101));
        reorder.wait_for(Some(Timestamp(510)));
        reorder.push(event(511));
        assert_eq!(late(&mut reorder), Some((101, false)));
        assert_eq!(late(&mut reorder), Some((105, false)));
        assert_eq!(late(&mut reorder), Some((500, false)));
        assert_eq!(late(&mut reorder), None);
        // A feed that began later does not move the watermark back.
        reorder.wait_for(Some(Timestamp(0)));
        reorder.push(event(499));
        assert_eq!(late(&mut reorder), Some((499, true)));
        reorder.push(event(511 + FEED_WAIT_NS + 10));
        assert_eq!(late(&mut reorder), Some((511, false)));
        for _ in 0..WAITING_MAX {
            reorder.push(event(511 + FEED_WAIT_NS + 21));
        }
        assert_eq!(
            late(&mut reorder),
            Some((511 + FEED_WAIT_NS + 10, false)),
            "too many are held"
        );
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
