//! Conntrack's own counters and the number of entries of its table, polled: how much grew since the last poll.
//!
//! Used by `tables` and `sandboxes`. The first poll sets the base and reports the entries. Growth is reported at once, with the
//! entries; a change of the entries alone every ten seconds only, since each request costs an idle node more than the rest of
//! a poll. Does not: wait, or keep a network namespace alive between two polls.

use std::io;

use sandglass_model::network::ConntrackCounts;
use sandglass_model::time::SECOND;
use sandglass_model::{Body, Event, Timestamp};

use super::netlink::{NFGENMSG, attributes, take};
use super::socket::Requests;

/// The counters of one network namespace.
pub struct CounterReader {
    /// A socket that is kept, since the node's own namespace outlives the agent.
    requests: Requests,
    meter: Meter,
}

impl CounterReader {
    /// The counters of the namespace that this thread is in.
    ///
    /// # Errors
    /// When no socket can be opened.
    pub fn open(netns: u64) -> io::Result<CounterReader> {
        Ok(CounterReader {
            requests: Requests::open()?,
            meter: Meter::new(netns),
        })
    }

    /// Reads the counters; `None` when nothing is to be reported.
    ///
    /// # Errors
    /// When the kernel has no conntrack counters.
    pub fn poll(&mut self, now: Timestamp) -> io::Result<Option<Event>> {
        let mut reading = read_counters(&mut self.requests)?;
        if self.meter.wants_entries(reading, now) {
            read_entries(&mut self.requests, &mut reading)?;
        } else {
            self.meter.keep_entries(&mut reading);
        }
        Ok(self.meter.take(reading, now).map(|counts| Event {
            at: now,
            body: Body::ConntrackCounted(Box::new(counts)),
        }))
    }
}

/// The values of the kernel's counters, summed over the processors. They are 32 bits wide and wrap, and so do the sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Entries in the table now.
    entries: u32,
    /// `nf_conntrack_max`.
    limit: u32,
    /// Entries that lost a race for their tuple at confirmation; their packet was dropped.
    insert_failed: u32,
    /// Packets dropped for want of an entry.
    drop: u32,
    /// Entries evicted to make room.
    early_drop: u32,
    /// Races that ended without a drop.
    clash_resolve: u32,
    /// Searches that began again, since the entry moved to another bucket meanwhile.
    search_restart: u32,
}

impl Reading {
    /// Whether this table has ever tracked anything.
    pub fn is_in_use(&self) -> bool {
        let unused = Reading {
            limit: self.limit,
            ..Reading::default()
        };
        *self != unused
    }
}

/// Reads the counters and the entries, with two requests. For a namespace that is visited once a minute: there is no last
/// reading that would spare the second request.
///
/// # Errors
/// When the kernel has no conntrack counters.
pub fn read(requests: &mut Requests) -> io::Result<Reading> {
    let mut reading = read_counters(requests)?;
    read_entries(requests, &mut reading)?;
    Ok(reading)
}

/// Entries and limit of the table (net/netfilter/nf_conntrack_netlink.c, ctnetlink_stat_ct).
fn read_entries(requests: &mut Requests, reading: &mut Reading) -> io::Result<()> {
    requests.send(GET_STATS, false, |message| {
        for (kind, value) in attributes(message.payload.get(NFGENMSG..).unwrap_or_default()) {
            let Some(value) = take(value, 0).map(u32::from_be_bytes) else {
                continue;
            };
            match kind {
                GLOBAL_ENTRIES => reading.entries = value,
                GLOBAL_MAX_ENTRIES => reading.limit = value,
                _ => {}
            }
        }
    })
}

/// The counters, one message for each possible processor (net/netfilter/nf_conntrack_netlink.c, ctnetlink_ct_stat_cpu_dump).
/// Their meaning is that of `struct ip_conntrack_stat` (include/linux/netfilter/nf_conntrack_common.h). One that the kernel
/// lacks, such as clash_resolve before Linux 5.10, is 0.
fn read_counters(requests: &mut Requests) -> io::Result<Reading> {
    let mut reading = Reading::default();
    requests.send(GET_STATS_CPU, true, |message| {
        for (kind, value) in attributes(message.payload.get(NFGENMSG..).unwrap_or_default()) {
            let Some(value) = take(value, 0).map(u32::from_be_bytes) else {
                continue;
            };
            let counter = match kind {
                INSERT_FAILED => &mut reading.insert_failed,
                DROP => &mut reading.drop,
                EARLY_DROP => &mut reading.early_drop,
                CLASH_RESOLVE => &mut reading.clash_resolve,
                SEARCH_RESTART => &mut reading.search_restart,
                _ => continue,
            };
            *counter = counter.wrapping_add(value);
        }
    })?;
    Ok(reading)
}

/// Decides which readings are reported.
pub struct Meter {
    /// Inode number of the namespace.
    netns: u64,
    /// The base of the next growth; `None` before the first reading.
    last: Option<Reading>,
    /// When the last report was made.
    reported: Timestamp,
    /// The entries of that report: they are reported again only when they differ.
    reported_entries: u32,
    /// When the entries were last read.
    entries_read: Timestamp,
}

impl Meter {
    /// The meter of a namespace.
    pub fn new(netns: u64) -> Meter {
        Meter {
            netns,
            last: None,
            reported: Timestamp(0),
            reported_entries: 0,
            entries_read: Timestamp(0),
        }
    }

    /// Whether the entries are to be read too: when that is due, or a counter has grown.
    fn wants_entries(&mut self, counters: Reading, now: Timestamp) -> bool {
        let wanted = self.last.is_none_or(|last| {
            let like_last = Reading {
                entries: last.entries,
                limit: last.limit,
                ..counters
            };
            like_last != last || now.0.saturating_sub(self.entries_read.0) >= ENTRIES_EVERY_NS
        });
        if wanted {
            self.entries_read = now;
        }
        wanted
    }

    /// Sets the entries to those of the last reading.
    fn keep_entries(&self, reading: &mut Reading) {
        if let Some(last) = self.last {
            (reading.entries, reading.limit) = (last.entries, last.limit);
        }
    }

    /// What is to be reported of a reading; `None` when neither a counter has grown nor the entries are due. The reading is the
    /// base of the next growth either way, so no growth is reported twice or left out.
    pub fn take(&mut self, reading: Reading, now: Timestamp) -> Option<ConntrackCounts> {
        let last = self.last.replace(reading);
        let base = last.unwrap_or(reading);
        let counts = ConntrackCounts {
            netns: self.netns,
            entries: u64::from(reading.entries),
            limit: u64::from(reading.limit),
            insert_failed: grown(reading.insert_failed, base.insert_failed),
            drop: grown(reading.drop, base.drop),
            early_drop: grown(reading.early_drop, base.early_drop),
            clash_resolve: grown(reading.clash_resolve, base.clash_resolve),
            search_restart: grown(reading.search_restart, base.search_restart),
        };
        let has_grown = [
            counts.insert_failed,
            counts.drop,
            counts.early_drop,
            counts.clash_resolve,
            counts.search_restart,
        ]
        .iter()
        .any(|count| *count > 0);
        let is_due = now.0.saturating_sub(self.reported.0) >= ENTRIES_EVERY_NS;
        let is_other = reading.entries != self.reported_entries || last.is_some_and(|last| last.limit != reading.limit);
        if last.is_some() && !has_grown && !(is_due && is_other) {
            return None;
        }
        self.reported = now;
        self.reported_entries = reading.entries;
        Some(counts)
    }
}

/// The growth of a counter that wraps; 0 for one that was reset. Half of the range separates the two: two billion drops a
/// second are beyond any node, and a reset looks like a step back.
fn grown(now: u32, before: u32) -> u64 {
    match now.wrapping_sub(before) {
        growth @ ..=0x7fff_ffff => growth.into(),
        _ => 0,
    }
}

/// Between two readings of the entries while no counter grows.
const ENTRIES_EVERY_NS: u64 = 10 * SECOND;
// include/uapi/linux/netfilter/nfnetlink_conntrack.h: NFNL_SUBSYS_CTNETLINK << 8, and the message.
const GET_STATS_CPU: u16 = 0x104;
const GET_STATS: u16 = 0x105;
// enum ctattr_stats_cpu
const INSERT_FAILED: u16 = 9;
const DROP: u16 = 10;
const EARLY_DROP: u16 = 11;
const SEARCH_RESTART: u16 = 13;
const CLASH_RESOLVE: u16 = 14;
// enum ctattr_stats_global
const GLOBAL_ENTRIES: u16 = 1;
const GLOBAL_MAX_ENTRIES: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(100 * SECOND + seconds * SECOND)
    }

    /// Counters run since boot: their values at the agent's start are no growth.
    #[test]
    fn the_first_reading_reports_the_entries_and_no_growth() {
        let mut meter = Meter::new(5);
        let reading = Reading {
            entries: 7,
            limit: 100,
            insert_failed: 3,
            ..Reading::default()
        };
        let counts = meter.take(reading, at(0)).unwrap();
        assert_eq!((counts.netns, counts.entries, counts.limit), (5, 7, 100));
        assert_eq!(counts.insert_failed, 0);
        assert_eq!(meter.take(reading, at(1)), None);
    }

    /// A node with a drop each microsecond wraps a 32-bit counter in 72 minutes.
    #[test]
    fn growth_is_reported_at_once_and_across_a_wrap() {
        let mut meter = Meter::new(5);
        let mut reading = Reading {
            insert_failed: u32::MAX - 1,
            ..Reading::default()
        };
        meter.take(reading, at(0));
        reading.insert_failed = 1;
        reading.clash_resolve = 4;
        let counts = meter.take(reading, at(1)).unwrap();
        assert_eq!((counts.insert_failed, counts.clash_resolve), (3, 4));
    }

    /// As when the module was unloaded and loaded again.
    #[test]
    fn counters_that_begin_again_have_not_grown() {
        let mut meter = Meter::new(5);
        let mut reading = Reading {
            drop: 700,
            ..Reading::default()
        };
        meter.take(reading, at(0));
        reading.drop = 2;
        assert_eq!(meter.take(reading, at(1)), None);
        reading.drop = 3;
        assert_eq!(meter.take(reading, at(2)).unwrap().drop, 1);
    }

    /// Every ten seconds, and at once with a counter that grew, whose cause may be a full table.
    #[test]
    fn the_entries_are_read_when_they_are_due_or_a_counter_grew() {
        let mut meter = Meter::new(5);
        let mut wanted = Vec::new();
        for second in 0..24 {
            let mut reading = Reading {
                drop: u32::from(second >= 15),
                ..Reading::default()
            };
            if meter.wants_entries(reading, at(second)) {
                wanted.push(second);
                (reading.entries, reading.limit) = (40 + u32::try_from(second).unwrap(), 100);
            } else {
                meter.keep_entries(&mut reading);
            }
            let reported = meter.take(reading, at(second));
            assert_eq!(
                reported.is_some(),
                [0, 10, 15].contains(&second),
                "{second}: {reported:?}"
            );
            assert!(
                reported.is_none_or(|counts| counts.entries == 40 + second),
                "{reported:?}"
            );
        }
        assert_eq!(wanted, [0, 10, 15]);
    }

    /// The entries of a busy node change with every second: without the wait each would be an event.
    #[test]
    fn a_change_of_the_entries_alone_waits_for_its_time() {
        let mut meter = Meter::new(5);
        let mut reading = Reading::default();
        meter.take(reading, at(0));
        reading.entries = 10;
        assert_eq!(meter.take(reading, at(1)), None);
        assert_eq!(meter.take(reading, at(10)).unwrap().entries, 10);
        assert_eq!(meter.take(reading, at(30)), None);
    }
}
