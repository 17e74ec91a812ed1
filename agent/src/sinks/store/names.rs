//! The names whose lookups took longest: a bounded table for each of the last two half hours.
//!
//! Used by [`super::hour`]. A full table evicts the name with the smallest maximum, so a slow name is kept whatever comes.
//! Does not: keep single lookups, or names in any order.

use std::collections::BTreeMap;

use sandglass_model::TraceId;

use super::histogram::Histogram;

/// Lookups by name, in the current half hour and in the one before.
#[derive(Debug, Default)]
pub struct SlowNames {
    current: NameTable,
    previous: NameTable,
    /// Number of the current half hour since 1970.
    half_hour: u64,
}

/// Lookups of one name.
#[derive(Clone, Debug, Default)]
pub struct NameStats {
    /// Lookups.
    pub count: u64,
    /// Failed ones among them.
    pub failed: u64,
    /// The longest, nanoseconds.
    pub max_ns: u64,
    /// How long they took.
    pub times: Histogram,
    /// The trace that shows the longest.
    pub trace: Option<TraceId>,
}

#[derive(Debug, Default)]
struct NameTable {
    by_name: BTreeMap<String, NameStats>,
    /// No name in a full table has a smaller maximum: a faster lookup is rejected without a search.
    floor_ns: u64,
}

impl SlowNames {
    /// Records a lookup that took `ns`. A new half hour begins a new table.
    pub(super) fn record(&mut self, unix_ns: u64, name: &str, ns: u64, failed: bool, trace: Option<TraceId>) {
        let half_hour = unix_ns / HALF_HOUR_NS;
        if half_hour > self.half_hour {
            let follows = half_hour == self.half_hour + 1;
            let ended = std::mem::take(&mut self.current);
            self.previous = if follows { ended } else { NameTable::default() };
            self.half_hour = half_hour;
        }
        self.current.record(name, ns, failed, trace);
    }

    /// The lookups of both half hours by name.
    #[must_use]
    pub fn merged(&self) -> BTreeMap<&str, NameStats> {
        let mut merged: BTreeMap<&str, NameStats> = BTreeMap::new();
        for (name, stats) in self.current.by_name.iter().chain(&self.previous.by_name) {
            merged.entry(name).or_default().merge(stats);
        }
        merged
    }
}

impl NameTable {
    fn record(&mut self, name: &str, ns: u64, failed: bool, trace: Option<TraceId>) {
        if let Some(stats) = self.by_name.get_mut(name) {
            stats.record(ns, failed, trace);
            return;
        }
        if self.by_name.len() >= MAX_NAMES {
            if ns <= self.floor_ns {
                return;
            }
            let fastest = self.by_name.iter().min_by_key(|(_, stats)| stats.max_ns);
            let Some((victim, floor_ns)) = fastest.map(|(name, stats)| (name.clone(), stats.max_ns)) else {
                return;
            };
            self.floor_ns = floor_ns;
            if ns <= floor_ns {
                return;
            }
            self.by_name.remove(&victim);
        }
        let mut stats = NameStats::default();
        stats.record(ns, failed, trace);
        self.by_name.insert(name.chars().take(MAX_NAME_CHARS).collect(), stats);
    }
}

impl NameStats {
    fn record(&mut self, ns: u64, failed: bool, trace: Option<TraceId>) {
        self.count += 1;
        self.failed += u64::from(failed);
        self.times.record(ns);
        if ns >= self.max_ns {
            self.max_ns = ns;
            self.trace = trace.or(self.trace);
        }
    }

    fn merge(&mut self, other: &NameStats) {
        self.count += other.count;
        self.failed += other.failed;
        self.times.merge(&other.times);
        if other.max_ns >= self.max_ns {
            self.max_ns = other.max_ns;
            self.trace = other.trace.or(self.trace);
        }
    }
}

const HALF_HOUR_NS: u64 = 1_800_000_000_000;
/// Names kept for each half hour.
const MAX_NAMES: usize = 512;
/// A DNS name has at most 255 bytes on the wire (RFC 1035, 2.3.4); its text is longer where bytes are escaped.
const MAX_NAME_CHARS: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_evicts_the_fastest_name() {
        let mut names = SlowNames::default();
        for number in 0..5_000u64 {
            names.record(0, &format!("{number}.example.org"), number * 1_000, false, None);
        }
        assert_eq!(names.current.by_name.len(), MAX_NAMES);
        assert!(names.current.by_name.contains_key("4999.example.org"));
        assert!(!names.current.by_name.contains_key("7.example.org"));
    }
}
