//! A map by text that keeps the entries that were used most recently.
//!
//! Used for what is remembered of sandboxes and pods, and for owners of traffic. An [`lru::LruCache`] that counts what it evicts. Does not: expire.

use std::sync::Arc;

use foldhash::fast::FixedState;
use lru::LruCache;

/// The map.
#[derive(Debug)]
pub(crate) struct Recent<V> {
    max: usize,
    /// Without a bound of its own: a bounded one reserves its whole capacity at once.
    entries: LruCache<Arc<str>, V, FixedState>,
}

impl<V> Recent<V> {
    pub(crate) fn new(max: usize) -> Recent<V> {
        Recent {
            max: max.max(1),
            entries: LruCache::unbounded_with_hasher(FixedState::default()),
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&V> {
        self.entries.peek(key)
    }

    /// The entry, now the most recently used.
    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut V> {
        self.entries.get_mut(key)
    }

    /// Inserts or replaces; returns how many others were evicted.
    pub(crate) fn insert(&mut self, key: &str, value: V) -> u64 {
        if let Some(entry) = self.entries.get_mut(key) {
            *entry = value;
            return 0;
        }
        let evicts = self.entries.len() == self.max;
        if evicts {
            self.entries.pop_lru();
        }
        self.entries.put(key.into(), value);
        u64::from(evicts)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_entry_is_evicted_first() {
        let mut recent = Recent::new(3);
        for key in ["a", "b", "c"] {
            assert_eq!(recent.insert(key, key), 0);
        }
        assert_eq!(recent.get_mut("a"), Some(&mut "a"));
        assert_eq!(recent.insert("b", "B"), 0);
        assert_eq!(recent.insert("d", "d"), 1);
        let kept = |recent: &Recent<&'static str>| ["a", "b", "c", "d", "e"].map(|key| recent.get(key).copied());
        assert_eq!(kept(&recent), [Some("a"), Some("B"), None, Some("d"), None]);
        assert_eq!(recent.insert("e", "e"), 1);
        assert_eq!(kept(&recent), [None, Some("B"), None, Some("d"), Some("e")]);
        let mut one = Recent::new(0);
        assert_eq!((one.insert("x", 1), one.insert("y", 2), one.len()), (0, 1, 1));
        assert_eq!((one.get("x"), one.get("y")), (None, Some(&2)));
    }
}
