//! Open activities by what a start or a stop names: (service, id, name) to find what a stop ends, (service, process, thread)
//! to find what encloses a start without an id.
//!
//! Used by `ongoing.rs`, which inserts an activity when it begins and removes it when it ends. Holds numbers only, in sets
//! because ids are used again and a thread nests activities; a higher number began later.
//! Invariant: a number is in both maps or in neither. Does not: bound itself; `ongoing.rs` evicts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sandglass_model::windows::Service;

/// Service, activity id (empty for none), name.
pub(super) type NameKey = (Service, String, Arc<str>);
/// Service, process, thread.
pub(super) type ThreadKey = (Service, u32, u32);

/// Numbers of open activities.
#[derive(Debug, Default)]
pub(super) struct OpenIndex {
    by_name: BTreeMap<NameKey, BTreeSet<u64>>,
    by_thread: BTreeMap<ThreadKey, BTreeSet<u64>>,
}

impl OpenIndex {
    pub(super) fn insert(&mut self, number: u64, name: NameKey, thread: ThreadKey) {
        self.by_name.entry(name).or_default().insert(number);
        self.by_thread.entry(thread).or_default().insert(number);
    }

    /// Removes an activity under the keys that it was inserted under.
    pub(super) fn remove(&mut self, number: u64, name: &NameKey, thread: &ThreadKey) {
        remove_from(&mut self.by_name, name, number);
        remove_from(&mut self.by_thread, thread, number);
    }

    /// Open activities that this thread began.
    pub(super) fn of_thread(&self, thread: &ThreadKey) -> Option<&BTreeSet<u64>> {
        self.by_thread.get(thread)
    }

    /// Open activities of this id and name.
    pub(super) fn of_name(&self, name: &NameKey) -> Option<&BTreeSet<u64>> {
        self.by_name.get(name)
    }

    /// Open activities that any thread of this process began: the keys are sorted by service, process and thread.
    pub(super) fn of_process(&self, service: Service, pid: u32) -> BTreeSet<u64> {
        let threads = self.by_thread.range((service, pid, 0)..=(service, pid, u32::MAX));
        threads.flat_map(|(_, numbers)| numbers).copied().collect()
    }

    /// The newest open activity with this id; `None` for an empty id. Excludes those with the name `but`.
    pub(super) fn newest_with(&self, service: Service, id: &str, but: Option<&str>) -> Option<u64> {
        if id.is_empty() {
            return None;
        }
        let first = (service, id.to_owned(), Arc::from(""));
        let same = self
            .by_name
            .range(first..)
            .take_while(|((of, with, _), _)| (*of, with.as_str()) == (service, id));
        let others = same.filter(|((.., name), _)| but.is_none_or(|but| **name != *but));
        others.filter_map(|(_, numbers)| numbers.last().copied()).max()
    }

    /// How many numbers are under names, and how many threads have one.
    #[cfg(test)]
    pub(super) fn len(&self) -> (usize, usize) {
        let named = self.by_name.values().map(BTreeSet::len).sum();
        (named, self.by_thread.len())
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty() && self.by_thread.is_empty()
    }
}

/// Removes a number from a map; a key without numbers goes.
fn remove_from<K: Ord>(index: &mut BTreeMap<K, BTreeSet<u64>>, key: &K, number: u64) {
    if let Some(numbers) = index.get_mut(key) {
        numbers.remove(&number);
        if numbers.is_empty() {
            index.remove(key);
        }
    }
}
