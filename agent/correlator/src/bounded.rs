//! A map that keeps the entries that were entered last: of addresses, of conntrack entries.
//!
//! Used for traffic. Does not: care for when an entry was used; what is entered again is new.

use std::collections::BTreeMap;

use sandglass_model::Timestamp;

/// The map.
#[derive(Debug)]
pub(crate) struct Bounded<K, V> {
    max: usize,
    entries: BTreeMap<K, Entry<V>>,
    order: BTreeMap<u64, K>,
    serial: u64,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    at: Timestamp,
    serial: u64,
}

impl<K: Ord + Clone, V> Bounded<K, V> {
    pub(crate) fn new(max: usize) -> Bounded<K, V> {
        Bounded {
            max: max.max(1),
            entries: BTreeMap::new(),
            order: BTreeMap::new(),
            serial: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|entry| &mut entry.value)
    }

    /// Enters or replaces; returns how many others went for it.
    pub(crate) fn insert(&mut self, key: K, value: V, at: Timestamp) -> u64 {
        self.serial += 1;
        let entry = Entry {
            value,
            at,
            serial: self.serial,
        };
        if let Some(old) = self.entries.insert(key.clone(), entry) {
            self.order.remove(&old.serial);
        }
        self.order.insert(self.serial, key);
        if self.entries.len() <= self.max {
            return 0;
        }
        if let Some((_, oldest)) = self.order.pop_first() {
            self.entries.remove(&oldest);
        }
        1
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.remove(key)?;
        self.order.remove(&entry.serial);
        Some(entry.value)
    }

    /// Forgets what is of no use any more.
    pub(crate) fn forget(&mut self, mut is_over: impl FnMut(&V) -> bool) {
        let order = &mut self.order;
        self.entries.retain(|_, entry| {
            let over = is_over(&entry.value);
            if over {
                order.remove(&entry.serial);
            }
            !over
        });
    }

    /// Forgets what was entered before `from`.
    pub(crate) fn expire(&mut self, from: Timestamp) {
        while let Some(oldest) = self.order.first_entry()
            && self.entries.get(oldest.get()).is_none_or(|entry| entry.at < from)
        {
            self.entries.remove(oldest.get());
            oldest.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_entered_first_goes_first() {
        let mut map = Bounded::new(2);
        assert_eq!(map.insert("a", 1, Timestamp(1)), 0);
        assert_eq!(map.insert("b", 2, Timestamp(2)), 0);
        assert_eq!(map.insert("a", 3, Timestamp(3)), 0);
        assert_eq!(map.insert("c", 4, Timestamp(4)), 1);
        assert_eq!(
            (map.get(&"a"), map.get(&"b"), map.get(&"c")),
            (Some(&3), None, Some(&4))
        );
        map.expire(Timestamp(4));
        assert_eq!((map.get(&"a"), map.get(&"c"), map.len()), (None, Some(&4), 1));
        map.insert("d", 5, Timestamp(5));
        map.forget(|value| *value == 5);
        assert_eq!((map.remove(&"c"), map.remove(&"c")), (Some(4), None));
        assert_eq!((map.get(&"d"), map.len()), (None, 0));
        assert!(map.order.is_empty());
    }
}
