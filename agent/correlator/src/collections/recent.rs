//! A map by text that keeps the entries that were used most recently.
//!
//! Used for what is remembered of sandboxes and pods, and for owners of traffic. An [`lru::LruCache`] that reports what it
//! evicts. Where several owners share the map, the one with the most entries loses the one that it used least recently.
//! Does not: expire.

use std::sync::Arc;

use foldhash::fast::FixedState;
use lru::LruCache;

use crate::collections::shares::Shares;

/// The map.
#[derive(Debug)]
pub(crate) struct Recent<V> {
    max: usize,
    /// The owner of an entry; `None` where all have the same.
    owner: Option<fn(&V) -> u64>,
    /// Without a bound of its own: a bounded one reserves its whole capacity at once.
    entries: LruCache<Arc<str>, RecentEntry<V>, FixedState>,
    /// Since the map was full.
    places: Option<Box<Places>>,
}

#[derive(Debug)]
struct RecentEntry<V> {
    /// Its place, once places are counted.
    place: u32,
    value: V,
}

/// Numbers of the entries, which shares are counted by.
#[derive(Debug, Default)]
struct Places {
    shares: Shares,
    keys: Vec<Option<Arc<str>>>,
    free: Vec<u32>,
}

/// An entry that was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evicted {
    /// Its owner had more than a quarter of the map.
    pub(crate) is_noisy: bool,
}

impl<V> Recent<V> {
    /// A map whose entries all have one owner.
    pub(crate) fn new(max: usize) -> Recent<V> {
        Recent {
            max: max.max(1),
            owner: None,
            entries: LruCache::unbounded_with_hasher(FixedState::default()),
            places: None,
        }
    }

    /// A map that several owners share.
    pub(crate) fn shared(max: usize, owner: fn(&V) -> u64) -> Recent<V> {
        Recent {
            owner: Some(owner),
            ..Recent::new(max)
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&V> {
        self.entries.peek(key).map(|entry| &entry.value)
    }

    /// The entry, now the most recently used.
    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut V> {
        let entry = self.entries.get_mut(key)?;
        if let (Some(places), Some(owner)) = (&mut self.places, self.owner) {
            places.shares.remove(entry.place);
            places.shares.add(entry.place, owner(&entry.value));
        }
        Some(&mut entry.value)
    }

    /// Inserts or replaces; returns the key as the map shares it, and what was evicted.
    pub(crate) fn insert(&mut self, key: &str, value: V) -> (Arc<str>, Option<Evicted>) {
        if let Some(entry) = self.get_mut(key) {
            *entry = value;
            let shared = self.entries.get_key_value(key).map(|(key, _)| Arc::clone(key));
            return (shared.unwrap_or_else(|| key.into()), None);
        }
        let evicted = (self.entries.len() >= self.max).then(|| self.evict());
        let key: Arc<str> = key.into();
        let mut place = 0;
        if let (Some(places), Some(owner)) = (&mut self.places, self.owner) {
            place = places.add(&key, owner(&value));
        }
        self.entries.put(Arc::clone(&key), RecentEntry { place, value });
        (key, evicted)
    }

    pub(crate) fn remove(&mut self, key: &str) -> Option<V> {
        let entry = self.entries.pop(key)?;
        if let Some(places) = &mut self.places {
            places.remove(entry.place);
        }
        Some(entry.value)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    fn evict(&mut self) -> Evicted {
        let Some(owner) = self.owner else {
            self.entries.pop_lru();
            return Evicted { is_noisy: false };
        };
        let places = self.places.get_or_insert_with(|| {
            let mut places = Box::<Places>::default();
            // The order of use, most recent first.
            for (key, entry) in self.entries.iter_mut().rev() {
                entry.place = places.add(key, owner(&entry.value));
            }
            places
        });
        let victim = places.shares.next_victim();
        if let Some(victim) = victim
            && let Some(key) = places.remove(victim.place)
        {
            self.entries.pop(&key);
        }
        Evicted {
            is_noisy: victim.is_some_and(|victim| victim.is_noisy),
        }
    }
}

impl Places {
    fn add(&mut self, key: &Arc<str>, owner: u64) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.keys.push(None);
            (self.keys.len() - 1) as u32
        });
        self.keys[place as usize] = Some(Arc::clone(key));
        self.shares.add(place, owner);
        place
    }

    fn remove(&mut self, place: u32) -> Option<Arc<str>> {
        let key = self.keys.get_mut(place as usize)?.take()?;
        self.shares.remove(place);
        self.free.push(place);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_entry_is_evicted_first() {
        let some = Some(Evicted { is_noisy: false });
        let mut recent = Recent::new(3);
        for key in ["a", "b", "c"] {
            assert_eq!(recent.insert(key, key).1, None);
        }
        assert_eq!(recent.get_mut("a"), Some(&mut "a"));
        assert_eq!(recent.insert("b", "B").1, None);
        assert_eq!(recent.insert("d", "d").1, some);
        let kept = |recent: &Recent<&'static str>| ["a", "b", "c", "d", "e"].map(|key| recent.get(key).copied());
        assert_eq!(kept(&recent), [Some("a"), Some("B"), None, Some("d"), None]);
        assert_eq!(recent.insert("e", "e").1, some);
        assert_eq!(kept(&recent), [None, Some("B"), None, Some("d"), Some("e")]);
        assert_eq!(
            (recent.remove("d"), recent.remove("d"), recent.len()),
            (Some("d"), None, 2)
        );
        let mut one = Recent::new(0);
        assert_eq!((one.insert("x", 1).1, one.insert("y", 2).1, one.len()), (None, some, 1));
        assert_eq!((one.get("x"), one.get("y")), (None, Some(&2)));
    }

    #[test]
    fn an_owner_with_many_entries_makes_room_for_the_others() {
        let mut recent = Recent::<u64>::shared(8, |owner| *owner);
        recent.insert("quiet", 1);
        recent.insert("other", 2);
        for n in 0..100 {
            let (_, evicted) = recent.insert(&format!("noisy-{n}"), 3);
            assert_eq!(evicted, (n >= 6).then_some(Evicted { is_noisy: true }));
        }
        // What it uses it keeps.
        for n in 100..200 {
            assert!(recent.get_mut("noisy-99").is_some());
            recent.insert(&format!("noisy-{n}"), 3);
        }
        assert_eq!(
            (recent.len(), recent.get("quiet"), recent.get("other")),
            (8, Some(&1), Some(&2))
        );
        assert!(recent.get("noisy-99").is_some() && recent.get("noisy-199").is_some());
        assert!(recent.get("noisy-194").is_none());
        // An entry that goes leaves its place to the next.
        assert_eq!(recent.remove("quiet"), Some(1));
        assert_eq!(recent.insert("new", 4).1, None);
        assert!(recent.insert("more", 4).1.is_some() && recent.get("other").is_some());
    }
}
