//! The history of conntrack's counters, by network namespace.
//!
//! Used by `causes.rs`: a packet that conntrack drops is visible only as a counter that grew, so a cause needs the
//! growth at the time of the query. Counters: `struct ip_conntrack_stat`,
//! include/linux/netfilter/nf_conntrack_common.h. `insert_failed` counts entries that lost against another for the same
//! tuple, whose packet is dropped, and `clash_resolve` those whose packet went through (`nf_ct_resolve_clash`,
//! net/netfilter/nf_conntrack_core.c, as in Linux 6.12).
//! Bounded in namespaces, readings of each, and age.
//!
//! A reading covers the time since the one before. Growth counts for an instant if that time and the instant overlap
//! within a millisecond, the distance between the time stamps of a poll and of a probe.

use std::collections::VecDeque;

use sandglass_model::Timestamp;
use sandglass_model::network::ConntrackCounts;
use sandglass_model::time::{MILLISECOND, SECOND};

use crate::collections::bounded::Bounded;

/// Readings of each network namespace, oldest first.
#[derive(Debug)]
pub(crate) struct CounterHistory(Bounded<u64, VecDeque<CounterReading>>);

/// How much the counters grew from `from` to `at`.
#[derive(Debug)]
struct CounterReading {
    /// The reading before; `None` for the first one, whose growth has no begin.
    from: Option<Timestamp>,
    /// When they were read.
    at: Timestamp,
    /// Growth since `from`, and the fill of the table at `at`.
    counts: ConntrackCounts,
}

/// How much counters grew around an instant, summed over the tables that a packet goes through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rise {
    /// The counters of at least one of the tables are read. Without that, a rise of 0 says nothing.
    pub(crate) counted: bool,
    /// Entries that lost against another for the same tuple.
    pub(crate) insert_failed: u64,
    /// Packets dropped because no entry could be made.
    pub(crate) drop: u64,
    /// Races for one tuple that were resolved.
    pub(crate) clash_resolve: u64,
    /// Entries and limit of a table that was at least 95 % full.
    pub(crate) full: Option<(u64, u64)>,
}

/// Counters that grow are read at least this often, so growth after a packet shows within it.
const COUNT_REACH_NS: u64 = 2_500 * MILLISECOND;
/// Bound on readings of one namespace.
const COUNTS_KEPT: usize = 64;
/// Older readings are removed. Above the longest wait that is explained: a SYN is given up after about 127 s
/// (`tcp_syn_retries` 6, Documentation/networking/ip-sysctl.rst).
const COUNTS_AGE_NS: u64 = 150 * SECOND;

impl CounterHistory {
    pub(crate) fn new(max: usize) -> CounterHistory {
        CounterHistory(Bounded::new(max))
    }

    /// Adds a reading. A second one of the same time is a record that came twice.
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

    /// How much the counters of both tables grew while a packet was on its way that was sent at `at`. `tables` are the
    /// sandbox's and the node's, which may be the same.
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
