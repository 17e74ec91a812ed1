//! The names whose lookups took longest: a bounded table for each of the last two half hours.
//!
//! Used by [`super::hour`]. A full table evicts a name of the owner that has most names, the one with the smallest maximum: a slow
//! name is kept whatever comes, and a pod that looks random names up evicts its own.
//! Does not: keep single lookups, or names in any order.

use std::collections::BTreeMap;

use sandglass_model::TraceId;

use crate::sinks::histogram::Histogram;

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
    by_name: BTreeMap<String, Name>,
    by_owner: BTreeMap<u64, OwnedNames>,
}

#[derive(Debug, Default)]
struct Name {
    /// Whose lookup was the first of this name.
    owner: u64,
    stats: NameStats,
}

#[derive(Debug, Default)]
struct OwnedNames {
    count: usize,
    /// No name of this owner in a full table has a smaller maximum: a faster lookup is rejected without a search.
    floor_ns: u64,
}

/// A lookup that has ended, as far as this table goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedLookup<'l> {
    pub(super) name: &'l str,
    /// Equal for all lookups of one owner.
    pub(super) owner: u64,
    pub(super) ns: u64,
    pub(super) failed: bool,
    pub(super) trace: Option<TraceId>,
}

impl SlowNames {
    /// Records a lookup. A new half hour begins a new table.
    pub(super) fn record(&mut self, unix_ns: u64, lookup: EndedLookup<'_>) {
        let half_hour = unix_ns / HALF_HOUR_NS;
        if half_hour > self.half_hour {
            let follows = half_hour == self.half_hour + 1;
            let ended = std::mem::take(&mut self.current);
            self.previous = if follows { ended } else { NameTable::default() };
            self.half_hour = half_hour;
        }
        self.current.record(lookup);
    }

    /// The lookups of both half hours by name.
    #[must_use]
    pub fn merged(&self) -> BTreeMap<&str, NameStats> {
        let mut merged: BTreeMap<&str, NameStats> = BTreeMap::new();
        for (name, Name { stats, .. }) in self.current.by_name.iter().chain(&self.previous.by_name) {
            merged.entry(name).or_default().merge(stats);
        }
        merged
    }
}

impl NameTable {
    fn record(&mut self, lookup: EndedLookup<'_>) {
        if let Some(name) = self.by_name.get_mut(lookup.name) {
            name.stats.record(lookup);
            return;
        }
        if self.by_name.len() >= MAX_NAMES && !self.make_room(lookup) {
            return;
        }
        let mut stats = NameStats::default();
        stats.record(lookup);
        self.by_owner.entry(lookup.owner).or_default().count += 1;
        let owner = lookup.owner;
        let name = lookup.name.chars().take(MAX_NAME_CHARS).collect();
        self.by_name.insert(name, Name { owner, stats });
    }

    /// Removes the fastest name of the owner with the most. If that is the owner of this lookup, only for a slower one.
    fn make_room(&mut self, lookup: EndedLookup<'_>) -> bool {
        let own = self.by_owner.get(&lookup.owner);
        let (own_count, own_floor_ns) = own.map_or((0, 0), |own| (own.count, own.floor_ns));
        let most = self.by_owner.iter().max_by_key(|(_, names)| names.count);
        let Some((fullest, most)) = most.map(|(owner, names)| (*owner, names.count)) else {
            return false;
        };
        let is_own = own_count == most;
        if is_own && lookup.ns <= own_floor_ns {
            return false;
        }
        let loser = if is_own { lookup.owner } else { fullest };
        let names = self.by_name.iter().filter(|(_, name)| name.owner == loser);
        let fastest = names.min_by_key(|(_, name)| name.stats.max_ns);
        let Some((victim, floor_ns)) = fastest.map(|(name, of)| (name.clone(), of.stats.max_ns)) else {
            return false;
        };
        let is_slower = !is_own || lookup.ns > floor_ns;
        if let Some(names) = self.by_owner.get_mut(&loser) {
            names.floor_ns = floor_ns;
            names.count -= usize::from(is_slower);
            if names.count == 0 {
                self.by_owner.remove(&loser);
            }
        }
        if is_slower {
            self.by_name.remove(&victim);
        }
        is_slower
    }
}

impl NameStats {
    fn record(&mut self, lookup: EndedLookup<'_>) {
        self.count += 1;
        self.failed += u64::from(lookup.failed);
        self.times.record(lookup.ns);
        if lookup.ns >= self.max_ns {
            self.max_ns = lookup.ns;
            self.trace = lookup.trace.or(self.trace);
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

    fn look_up(names: &mut SlowNames, owner: u64, name: &str, ns: u64) {
        let lookup = EndedLookup {
            name,
            owner,
            ns,
            failed: false,
            trace: None,
        };
        names.record(0, lookup);
    }

    #[test]
    fn a_full_table_evicts_the_fastest_name() {
        let mut names = SlowNames::default();
        for number in 0..5_000u64 {
            look_up(&mut names, 1, &format!("{number}.example.org"), number * 1_000);
        }
        assert_eq!(names.current.by_name.len(), MAX_NAMES);
        assert!(names.current.by_name.contains_key("4999.example.org"));
        assert!(!names.current.by_name.contains_key("7.example.org"));
        // Nothing faster than all that are there is let in.
        look_up(&mut names, 1, "fast", 1);
        assert!(!names.current.by_name.contains_key("fast"));
    }

    /// A pod that looks ten thousand random names up, all slower than the others'.
    #[test]
    fn random_names_of_one_owner_push_out_its_own() {
        let mut names = SlowNames::default();
        for number in 0..100u64 {
            look_up(
                &mut names,
                2 + number % 5,
                &format!("{number}.quiet.example.org"),
                1_000 + number,
            );
        }
        for number in 0..10_000u64 {
            look_up(
                &mut names,
                1,
                &format!("{number}.noisy.example.org"),
                1_000_000 + number,
            );
        }
        look_up(&mut names, 9, "late.quiet.example.org", 1);
        let kept = |of: &str| names.current.by_name.keys().filter(|name| name.contains(of)).count();
        assert_eq!((kept("quiet"), kept("noisy")), (101, MAX_NAMES - 101));
        let counted: usize = names.current.by_owner.values().map(|owner| owner.count).sum();
        assert_eq!((counted, names.current.by_owner.len()), (MAX_NAMES, 7));
    }
}
