//! For which times there are records of waits. Outside of these, a thread that shows no wait may have waited.
//!
//! Used by the room of waits. Times end where the source stops to record, where records were lost, and where the room's
//! tables are full. Bounded: the oldest interval is forgotten, and is then unknown.
//! Does not: know threads.

use std::collections::VecDeque;

use sandglass_model::Timestamp;

/// Intervals, in order, apart from one another.
#[derive(Debug, Default)]
pub(crate) struct Known {
    intervals: VecDeque<(Timestamp, Timestamp)>,
    /// The source records.
    is_recorded: bool,
    /// The room has no place for what it records.
    is_full: bool,
}

/// Bound on intervals: operations are shorter than the time in which waits are recorded so often.
const INTERVALS_MAX: usize = 64;
/// An interval without an end yet.
const OPEN: Timestamp = Timestamp(u64::MAX);

impl Known {
    /// The source records from now on.
    pub(crate) fn begin(&mut self, at: Timestamp) {
        if !self.is_recorded {
            self.is_recorded = true;
            self.open(at);
        }
    }

    /// The source does not record any more.
    pub(crate) fn end(&mut self, at: Timestamp) {
        if self.is_recorded {
            self.is_recorded = false;
            self.close(at);
        }
    }

    /// The room cannot keep what comes from now on.
    pub(crate) fn is_full(&mut self, at: Timestamp) {
        if !self.is_full {
            self.is_full = true;
            self.close(at);
        }
    }

    /// The room can keep records again.
    pub(crate) fn has_room(&mut self, at: Timestamp) {
        if self.is_full {
            self.is_full = false;
            self.open(at);
        }
    }

    /// Records from `since` to `at` were lost.
    pub(crate) fn lose(&mut self, since: Timestamp, at: Timestamp) {
        for interval in &mut self.intervals {
            if interval.1 > since && interval.1 != OPEN {
                interval.1 = since.max(interval.0);
            }
        }
        self.close(since);
        self.intervals.retain(|interval| interval.0 < interval.1);
        self.open(at);
    }

    /// How many nanoseconds of this time are known.
    pub(crate) fn within(&self, from: Timestamp, to: Timestamp) -> u64 {
        let part = |interval: &(Timestamp, Timestamp)| interval.1.min(to).since(interval.0.max(from));
        self.intervals.iter().map(part).sum()
    }

    /// How long after `from` this time begins to be known; 0 if none of it is.
    pub(crate) fn begins_after(&self, from: Timestamp, to: Timestamp) -> u64 {
        let first = self.parts(from, to).into_iter().find(|(_, _, is_known)| *is_known);
        first.map_or(0, |(begin, ..)| begin.since(from))
    }

    /// The time in parts that are known and parts that are not, in order.
    pub(crate) fn parts(&self, from: Timestamp, to: Timestamp) -> Vec<(Timestamp, Timestamp, bool)> {
        let mut parts = Vec::new();
        let mut at = from;
        for (begin, end) in &self.intervals {
            let (begin, end) = ((*begin).max(at).min(to), (*end).min(to));
            if end <= begin {
                continue;
            }
            if at < begin {
                parts.push((at, begin, false));
            }
            parts.push((begin, end, true));
            at = end;
        }
        if at < to {
            parts.push((at, to, false));
        }
        parts
    }

    /// Something of this time is known.
    pub(crate) fn overlaps(&self, from: Timestamp, to: Timestamp) -> bool {
        self.within(from, to) > 0
    }

    fn open(&mut self, at: Timestamp) {
        if !self.is_recorded || self.is_full {
            return;
        }
        // A late event must not make intervals that overlap.
        let at = self.intervals.back().map_or(at, |last| at.max(last.1));
        if at == OPEN {
            return;
        }
        if self.intervals.len() >= INTERVALS_MAX {
            self.intervals.pop_front();
        }
        self.intervals.push_back((at, OPEN));
    }

    fn close(&mut self, at: Timestamp) {
        if let Some(last) = self.intervals.back_mut()
            && last.1 == OPEN
        {
            last.1 = at.max(last.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(known: &Known, from: u64, to: u64) -> u64 {
        known.within(Timestamp(from), Timestamp(to))
    }

    #[test]
    fn known_is_what_was_recorded_and_not_lost() {
        let mut known = Known::default();
        assert_eq!(within(&known, 0, 100), 0);
        known.begin(Timestamp(10));
        known.begin(Timestamp(12));
        assert_eq!(within(&known, 0, 100), 90);
        known.end(Timestamp(50));
        known.begin(Timestamp(60));
        assert_eq!(within(&known, 0, 100), 80);
        known.lose(Timestamp(40), Timestamp(70));
        assert_eq!(within(&known, 0, 100), 30 + 30);
        known.is_full(Timestamp(80));
        known.lose(Timestamp(75), Timestamp(90));
        assert_eq!(within(&known, 0, 100), 30 + 5);
        known.has_room(Timestamp(95));
        assert_eq!(within(&known, 0, 100), 30 + 5 + 5);
        assert!(!known.overlaps(Timestamp(80), Timestamp(95)));
        for ((from, to), after) in [
            ((5, 20), 5),
            ((20, 100), 0),
            ((45, 100), 25),
            ((0, 8), 0),
            ((76, 90), 0),
        ] {
            let begins = known.begins_after(Timestamp(from), Timestamp(to));
            assert_eq!(begins, after, "{from} to {to}");
        }
        let parts = known.parts(Timestamp(20), Timestamp(97)).into_iter();
        let parts: Vec<_> = parts.map(|(from, to, is_known)| (from.0, to.0, is_known)).collect();
        assert_eq!(
            parts,
            [
                (20, 40, true),
                (40, 70, false),
                (70, 75, true),
                (75, 95, false),
                (95, 97, true)
            ]
        );
        assert_eq!(known.parts(Timestamp(5), Timestamp(5)), []);
    }

    #[test]
    fn intervals_are_bounded() {
        let mut known = Known::default();
        for at in 0..10_000 {
            known.begin(Timestamp(at * 10));
            known.end(Timestamp(at * 10 + 5));
        }
        assert_eq!(known.intervals.len(), INTERVALS_MAX);
    }
}
