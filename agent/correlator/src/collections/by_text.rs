//! A map from ids as text to what is known of them.
//!
//! Used for everything that is found by a container's id. Ids are long, many and looked up several times per event: a
//! tree of strings would follow a pointer, mostly into cold memory, for every comparison on the way down. Here a short
//! hash leads to a bucket and only an equal hash to the text. The hash is always the same, and nothing iterates over
//! the map: no order can show. Does not: bound itself.

use std::sync::Arc;

use crate::collections::bucket::Bucket;
use crate::collections::mix::mix;

/// The map.
#[derive(Debug)]
pub(crate) struct ByText<V> {
    /// A power of two of them.
    buckets: Vec<Bucket<Entry<V>>>,
}

#[derive(Debug)]
struct Entry<V> {
    hash: u64,
    key: Arc<str>,
    value: V,
}

impl<V> ByText<V> {
    /// For about `expected` entries; more are slower.
    pub(crate) fn new(expected: usize) -> ByText<V> {
        let buckets = (expected / 4).clamp(1, 1 << 16).next_power_of_two();
        ByText {
            buckets: Bucket::many(buckets),
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&V> {
        let hash = hash(key);
        self.buckets[self.place(hash)]
            .find(|entry| entry.hash == hash && *entry.key == *key)
            .map(|entry| &entry.value)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut V> {
        let hash = hash(key);
        let place = self.place(hash);
        self.buckets[place]
            .find_mut(|entry| entry.hash == hash && *entry.key == *key)
            .map(|entry| &mut entry.value)
    }

    /// Enters or replaces.
    pub(crate) fn insert(&mut self, key: impl AsRef<str> + Into<Arc<str>>, value: V) {
        if let Some(old) = self.get_mut(key.as_ref()) {
            *old = value;
            return;
        }
        let hash = hash(key.as_ref());
        let place = self.place(hash);
        self.buckets[place].push(Entry {
            hash,
            key: key.into(),
            value,
        });
    }

    pub(crate) fn remove(&mut self, key: &str) {
        let hash = hash(key);
        let place = self.place(hash);
        self.buckets[place].take(|entry| entry.hash == hash && *entry.key == *key);
    }

    fn place(&self, hash: u64) -> usize {
        // The upper half of a product is the well mixed one.
        (hash >> 32) as usize & (self.buckets.len() - 1)
    }
}

fn hash(key: &str) -> u64 {
    mix(key.len() as u64, key.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_apart_also_in_one_bucket() {
        let mut map = ByText::new(1);
        for number in 0..100 {
            map.insert(number.to_string(), number);
        }
        map.insert("7", 70);
        map.remove("8");
        assert_eq!((map.get("7"), map.get("8"), map.get("9")), (Some(&70), None, Some(&9)));
    }
}
