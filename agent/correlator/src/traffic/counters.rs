//! What conntrack's counters said lately, for each network namespace.
//!
//! Used to name the cause of a lookup or connect that went badly: a packet that conntrack dropped is only visible as a
//! counter that grew. Bounded in namespaces, readings and age.

use std::collections::VecDeque;

use sandglass_model::Timestamp;
use sandglass_model::network::ConntrackCounts;
use sandglass_model::time::{MILLISECOND, SECOND};

use crate::collections::bounded::Bounded;

/// What the counters of each network namespace said of late.
#[derive(Debug)]
pub(crate) struct CounterHistory(Bounded<u64, VecDeque<CounterReading>>);

#[derive(Debug)]
struct CounterReading {
    /// When they were read before.
    from: Option<Timestamp>,
    at: Timestamp,
    counts: ConntrackCounts,
}

/// How much counters grew around an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rise {
    /// The counters are read at all.
    pub(crate) counted: bool,
    pub(crate) insert_failed: u64,
    pub(crate) drop: u64,
    pub(crate) clash_resolve: u64,
    /// The fill of a table that was about full: entries and limit.
    pub(crate) full: Option<(u64, u64)>,
}

/// Counters are read at least so often while they grow.
const COUNT_REACH_NS: u64 = 2_500 * MILLISECOND;
const COUNTS_KEPT: usize = 64;
/// Nothing asks for older ones: lookups and SYNs do not wait longer for an answer, mostly.
const COUNTS_AGE_NS: u64 = 150 * SECOND;

impl CounterHistory {
    pub(crate) fn new(max: usize) -> CounterHistory {
        CounterHistory(Bounded::new(max))
    }

    pub(crate) fn add(&mut self, at: Timestamp, counts: ConntrackCounts) {
        let mut history = self.0.remove(&counts.netns).unwrap_or_default();
        let from = history.back().map(|counted| counted.at);
        if from == Some(at) {
            self.0.insert(counts.netns, history, at);
            return;
        }
        while history.front().is_some_and(|first| first.at.plus(COUNTS_AGE_NS) < at) || history.len() >= COUNTS_KEPT {
            history.pop_front();
        }
        history.push_back(CounterReading { from, at, counts });
        self.0.insert(counts.netns, history, at);
    }

    /// What grew while a packet was on its way that was sent at `at`.
    pub(crate) fn around(&self, tables: [u64; 2], at: Timestamp) -> Rise {
        let mut rise = Rise::default();
        let twice = tables[0] == tables[1];
        for netns in tables.iter().skip(usize::from(twice)) {
            let Some(history) = self.0.get(netns) else { continue };
            rise.counted = true;
            for counted in history {
                let after = counted.at.plus(MILLISECOND) >= at && counted.at.since(at) <= COUNT_REACH_NS;
                if !after || counted.from.is_some_and(|from| from > at.plus(MILLISECOND)) {
                    continue;
                }
                let counts = &counted.counts;
                rise.insert_failed += counts.insert_failed;
                rise.drop += counts.drop;
                rise.clash_resolve += counts.clash_resolve;
                if counts.limit > 0 && u128::from(counts.entries) * 20 >= u128::from(counts.limit) * 19 {
                    rise.full = Some((counts.entries, counts.limit));
                }
            }
        }
        rise
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_speak_for_what_was_sent_just_before_they_were_read() {
        let mut counts = CounterHistory::new(4);
        let at = |ms: u64| Timestamp(ms * MILLISECOND);
        let grown = |insert_failed| ConntrackCounts {
            netns: 1,
            insert_failed,
            ..ConntrackCounts::default()
        };
        assert!(!counts.around([1, 1], at(5_000)).counted);
        counts.add(at(1_000), grown(0));
        counts.add(at(6_000), grown(2));
        counts.add(at(7_000), grown(3));
        let failed = |tables, ms| counts.around(tables, at(ms)).insert_failed;
        assert_eq!(failed([9, 1], 5_900), 2);
        assert_eq!(failed([1, 1], 6_500), 3);
        assert_eq!(failed([1, 1], 3_000), 0);
        assert_eq!(failed([1, 1], 7_500), 0);
        assert_eq!(failed([9, 9], 6_500), 0);
        for ms in 0..200 {
            counts.add(at(8_000 + ms), grown(1));
        }
        assert!(counts.0.get(&1).is_some_and(|history| history.len() <= COUNTS_KEPT));
    }
}
