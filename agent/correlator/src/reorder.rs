//! Orders events by kernel time: holds each event until the watermark passes it.
//!
//! The watermark is the newest time seen minus the window. Equal times keep their order of arrival.
//! Does not: drop, merge or re-stamp events; late ones come out at once, flagged.

use std::collections::{BTreeMap, VecDeque};

use sandglass_model::{Event, Timestamp};

/// An event in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// The event.
    pub event: Event,
    /// It came after the watermark had passed its time: events that happened after it may have been released before.
    pub late: bool,
}

/// The reorder stage.
#[derive(Debug)]
pub struct Reorder {
    window_ns: u64,
    newest: Timestamp,
    arrivals: u64,
    held: BTreeMap<(Timestamp, u64), Event>,
    late: VecDeque<Event>,
}

impl Reorder {
    /// A stage that waits `window_ns` for stragglers.
    #[must_use]
    pub fn new(window_ns: u64) -> Reorder {
        Reorder {
            window_ns,
            newest: Timestamp(0),
            arrivals: 0,
            held: BTreeMap::new(),
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
        self.held.insert((event.at, self.arrivals), event);
        self.arrivals += 1;
    }

    /// Releases the next event whose time has come, oldest first.
    pub fn pop(&mut self) -> Option<Ordered> {
        if let Some(event) = self.late.pop_front() {
            return Some(Ordered { event, late: true });
        }
        let entry = self.held.first_entry()?;
        if entry.key().0 > self.newest.minus(self.window_ns) {
            return None;
        }
        Some(Ordered {
            event: entry.remove(),
            late: false,
        })
    }

    /// Releases the next event whatever the watermark; for the end of the input.
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

    fn watermark(&self) -> Timestamp {
        self.newest.minus(self.window_ns)
    }
}

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
}
