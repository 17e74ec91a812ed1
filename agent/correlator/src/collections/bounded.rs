//! A map that keeps the entries that were entered last: of addresses, of conntrack entries.
//!
//! Used for traffic, on every record of it: a short hash leads to a bucket, and nothing iterates over the map. Takes no
//! room before its first entry. Does not: care for when an entry was used; what is entered again is new.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use sandglass_model::Timestamp;

use crate::collections::mix::mix;

/// What can be a key. Equal keys have equal hashes.
pub(crate) trait Hashed: Eq {
    fn hash(&self) -> u64;
}

/// The map.
#[derive(Debug)]
pub(crate) struct Bounded<K, V> {
    max: usize,
    /// None, or a power of two of them.
    buckets: Vec<Vec<Entry<K, V>>>,
    count: usize,
    /// Hash and serial number of what was entered, oldest first; of what was removed or entered anew too.
    order: VecDeque<(u64, u64)>,
    serial: u64,
}

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    at: Timestamp,
    serial: u64,
}

impl<K: Hashed, V> Bounded<K, V> {
    pub(crate) fn new(max: usize) -> Bounded<K, V> {
        Bounded {
            max: max.max(1),
            buckets: Vec::new(),
            count: 0,
            order: VecDeque::new(),
            serial: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let bucket = self.buckets.get(self.place(key.hash()))?;
        bucket.iter().find(|entry| entry.key == *key).map(|entry| &entry.value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let place = self.place(key.hash());
        let mut bucket = self.buckets.get_mut(place)?.iter_mut();
        bucket.find(|entry| entry.key == *key).map(|entry| &mut entry.value)
    }

    /// Enters or replaces; returns how many others went for it.
    pub(crate) fn insert(&mut self, key: K, value: V, at: Timestamp) -> u64 {
        if self.buckets.is_empty() {
            let buckets = (self.max / 4).clamp(1, 1 << 14).next_power_of_two();
            self.buckets.resize_with(buckets, Vec::new);
        }
        self.remove(&key);
        self.serial += 1;
        let (hash, serial) = (key.hash(), self.serial);
        let place = self.place(hash);
        self.buckets[place].push(Entry { key, value, at, serial });
        self.count += 1;
        self.order.push_back((hash, serial));
        if self.order.len() > 2 * self.max + 64 {
            let (buckets, mask) = (&self.buckets, self.buckets.len() - 1);
            let mut in_it = |(hash, serial): &(u64, u64)| {
                let mut bucket = buckets[*hash as usize & mask].iter();
                bucket.any(|entry| entry.serial == *serial)
            };
            self.order.retain(&mut in_it);
        }
        let mut gone = 0;
        while self.count > self.max && self.drop_oldest(None) {
            gone += 1;
        }
        gone
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let place = self.place(key.hash());
        let bucket = self.buckets.get_mut(place)?;
        let index = bucket.iter().position(|entry| entry.key == *key)?;
        self.count -= 1;
        Some(bucket.swap_remove(index).value)
    }

    /// Forgets what was entered before `from`.
    pub(crate) fn expire(&mut self, from: Timestamp) {
        while self.drop_oldest(Some(from)) {}
    }

    /// Takes the oldest out, if it was entered before `from`, should one be given. `false` when nothing was.
    fn drop_oldest(&mut self, from: Option<Timestamp>) -> bool {
        while let Some(&(hash, serial)) = self.order.front() {
            let place = self.place(hash);
            let bucket = &mut self.buckets[place];
            let Some(index) = bucket.iter().position(|entry| entry.serial == serial) else {
                self.order.pop_front();
                continue;
            };
            if from.is_some_and(|from| bucket[index].at >= from) {
                return false;
            }
            bucket.swap_remove(index);
            self.order.pop_front();
            self.count -= 1;
            return true;
        }
        false
    }

    fn place(&self, hash: u64) -> usize {
        hash as usize & self.buckets.len().saturating_sub(1)
    }
}

impl Hashed for u32 {
    fn hash(&self) -> u64 {
        mix(0, &self.to_le_bytes())
    }
}

impl Hashed for u64 {
    fn hash(&self) -> u64 {
        mix(0, &self.to_le_bytes())
    }
}

impl Hashed for IpAddr {
    fn hash(&self) -> u64 {
        match self {
            IpAddr::V4(address) => mix(4, &address.octets()),
            IpAddr::V6(address) => mix(6, &address.octets()),
        }
    }
}

impl Hashed for (u64, IpAddr) {
    fn hash(&self) -> u64 {
        mix(self.1.hash(), &self.0.to_le_bytes())
    }
}

impl Hashed for (u8, SocketAddr, SocketAddr) {
    fn hash(&self) -> u64 {
        let (protocol, one, other) = self;
        let ports = [
            *protocol,
            0,
            one.port() as u8,
            (one.port() >> 8) as u8,
            other.port() as u8,
            (other.port() >> 8) as u8,
        ];
        mix(one.ip().hash() ^ other.ip().hash().rotate_left(17), &ports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_entered_first_goes_first() {
        let mut map = Bounded::<u64, _>::new(2);
        assert_eq!((map.remove(&1), map.get(&1), map.len()), (None, None, 0));
        assert_eq!(map.insert(1_u64, 'a', Timestamp(1)), 0);
        assert_eq!(map.insert(2, 'b', Timestamp(2)), 0);
        assert_eq!(map.insert(1_u64, 'c', Timestamp(3)), 0);
        assert_eq!(map.insert(3, 'd', Timestamp(4)), 1);
        assert_eq!((map.get(&1), map.get(&2), map.get(&3)), (Some(&'c'), None, Some(&'d')));
        map.expire(Timestamp(4));
        assert_eq!((map.get(&1), map.get(&3), map.len()), (None, Some(&'d'), 1));
        assert_eq!((map.remove(&3), map.remove(&3)), (Some('d'), None));
        assert_eq!(map.len(), 0);
    }

    #[test]
    fn entering_one_key_over_and_over_takes_no_more_room() {
        let mut map = Bounded::<u64, _>::new(8);
        for number in 0..10_000_u64 {
            map.insert(number % 8, number, Timestamp(number));
            assert!(map.order.len() <= 2 * 8 + 64);
        }
        assert_eq!((map.len(), map.get(&7)), (8, Some(&9_999)));
        assert_eq!(map.insert(8, 0, Timestamp(10_000)), 1);
        assert_eq!(map.get(&0), None);
    }

    #[test]
    fn keys_are_told_apart() {
        let end = |last, port| SocketAddr::from(([10, 0, 0, last], port));
        let keys = [
            (6, end(1, 2), end(3, 4)),
            (17, end(1, 2), end(3, 4)),
            (6, end(3, 2), end(1, 4)),
            (6, end(1, 4), end(3, 2)),
        ];
        let mut hashes: Vec<u64> = keys.iter().map(Hashed::hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), keys.len());
        assert_ne!((1, end(1, 0).ip()).hash(), (2, end(1, 0).ip()).hash());
    }
}
