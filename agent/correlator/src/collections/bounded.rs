//! A map that keeps the entries that were inserted last: of addresses, of conntrack entries.
//!
//! Used for traffic, on every record of it: a short hash leads to a bucket, and nothing iterates over the map. Takes no
//! memory before its first entry. Ours because `lru` allocates each entry: 200,000 conntrack entries, 16,384 at most, with four
//! look-ups each took 1.44 to 1.58 times as long with it (medians of three runs of 15 alternated rounds, on a busy machine).
//! When it is full, the owner with the most entries loses its oldest.
//! Does not: take account of when an entry was used; what is inserted again is new.

use std::net::{IpAddr, SocketAddr};

use sandglass_model::Timestamp;

use crate::collections::mix::mix;
use crate::collections::shares::{Shares, Victim};

/// What can be a key. Equal keys have equal hashes.
pub(crate) trait Hashed: Eq {
    fn hash(&self) -> u64;
}

/// The map. Its entries lie in one array and are linked by age and by bucket: insertion and removal allocate nothing.
#[derive(Debug)]
pub(crate) struct Bounded<K, V> {
    max: usize,
    entries: Vec<Entry<K, V>>,
    /// None, or a power of two of them.
    buckets: Vec<u32>,
    oldest: u32,
    newest: u32,
    /// The first unused entry; they are linked by `next`.
    free: u32,
    count: usize,
    /// The owner of an entry.
    owner: fn(&K, &V) -> u64,
    /// Since the map was full, until it is half empty.
    shares: Option<Box<Shares>>,
}

#[derive(Debug)]
struct Entry<K, V> {
    /// `None` while it is not used.
    item: Option<(K, V)>,
    at: Timestamp,
    /// The next one in its bucket, or among the unused.
    next: u32,
    older: u32,
    newer: u32,
}

/// No entry.
const NONE: u32 = u32::MAX;
/// An empty map keeps the memory of so many entries.
const KEPT_ENTRIES: usize = 1_024;

impl<K: Hashed, V> Bounded<K, V> {
    /// A map whose entries all have one owner: the oldest is evicted.
    pub(crate) fn new(max: usize) -> Bounded<K, V> {
        Bounded::shared(max, |_, _| 0)
    }

    /// A map that several owners share.
    pub(crate) fn shared(max: usize, owner: fn(&K, &V) -> u64) -> Bounded<K, V> {
        Bounded {
            max: max.max(1),
            entries: Vec::new(),
            buckets: Vec::new(),
            oldest: NONE,
            newest: NONE,
            free: NONE,
            count: 0,
            owner,
            shares: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let place = self.find(key)?;
        let (_, value) = self.entries[place as usize].item.as_ref()?;
        Some(value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let place = self.find(key)?;
        let (_, value) = self.entries[place as usize].item.as_mut()?;
        Some(value)
    }

    /// Inserts or replaces; returns how many others were evicted.
    pub(crate) fn insert(&mut self, key: K, value: V, at: Timestamp) -> u64 {
        let mut evicted = 0;
        self.insert_reporting(key, value, at, |_, _| evicted += 1);
        evicted
    }

    /// As `insert`; passes the value of each evicted entry to `on_evicted`, and whether its owner was noisy.
    pub(crate) fn insert_reporting(&mut self, key: K, value: V, at: Timestamp, mut on_evicted: impl FnMut(&V, bool)) {
        if self.buckets.is_empty() {
            let buckets = (self.max / 2).clamp(1, 1 << 14).next_power_of_two();
            self.buckets = vec![NONE; buckets];
        }
        let bucket = self.bucket(&key);
        if let Some(place) = self.find_in(bucket, &key) {
            self.entries[place as usize].item = Some((key, value));
            self.entries[place as usize].at = at;
            if self.newest != place {
                self.unlink(place);
                self.link(place);
                self.share(place);
            }
            return;
        }
        while self.count >= self.max
            && let Some((evicted, is_noisy)) = self.evict()
        {
            on_evicted(&evicted, is_noisy);
        }
        let entry = Entry {
            item: Some((key, value)),
            at,
            next: self.buckets[bucket],
            older: NONE,
            newer: NONE,
        };
        let place = match self.entries.get_mut(self.free as usize) {
            Some(unused) => std::mem::replace(&mut self.free, std::mem::replace(unused, entry).next),
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.buckets[bucket] = place;
        self.link(place);
        self.share(place);
        self.count += 1;
    }

    /// Removes the oldest entry of the owner with the most, and says whether that one was noisy.
    fn evict(&mut self) -> Option<(V, bool)> {
        let shares = self.shares.take().unwrap_or_else(|| Box::new(self.count_shares()));
        let victim = shares.next_victim();
        self.shares = Some(shares);
        let Victim { place, is_noisy } = victim?;
        Some((self.take(place)?, is_noisy))
    }

    fn count_shares(&self) -> Shares {
        let mut next = self.oldest;
        Shares::new(std::iter::from_fn(|| {
            let entry = self.entries.get(next as usize)?;
            let (key, value) = entry.item.as_ref()?;
            Some((std::mem::replace(&mut next, entry.newer), (self.owner)(key, value)))
        }))
    }

    /// Makes an entry the newest of its owner, once shares are counted.
    fn share(&mut self, place: u32) {
        if let Some(shares) = &mut self.shares
            && let Some((key, value)) = &self.entries[place as usize].item
        {
            shares.remove(place);
            shares.add(place, (self.owner)(key, value));
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.take(self.find(key)?)
    }

    /// Removes what was inserted before `from`, up to the oldest that was not.
    pub(crate) fn expire(&mut self, from: Timestamp) {
        while let Some(oldest) = self.entries.get(self.oldest as usize)
            && oldest.at < from
        {
            self.take(self.oldest);
        }
    }

    fn find(&self, key: &K) -> Option<u32> {
        self.find_in(self.bucket(key), key)
    }

    fn find_in(&self, bucket: usize, key: &K) -> Option<u32> {
        let mut place = *self.buckets.get(bucket)?;
        loop {
            let entry = self.entries.get(place as usize)?;
            if entry.item.as_ref().is_some_and(|(of, _)| of == key) {
                return Some(place);
            }
            place = entry.next;
        }
    }

    fn take(&mut self, place: u32) -> Option<V> {
        let (key, value) = self.entries.get_mut(place as usize)?.item.take()?;
        let next = self.entries[place as usize].next;
        let bucket = self.bucket(&key);
        if self.buckets[bucket] == place {
            self.buckets[bucket] = next;
        } else {
            let mut before = self.buckets[bucket];
            while self.entries[before as usize].next != place {
                before = self.entries[before as usize].next;
            }
            self.entries[before as usize].next = next;
        }
        self.unlink(place);
        self.entries[place as usize].next = std::mem::replace(&mut self.free, place);
        self.count -= 1;
        if let Some(shares) = &mut self.shares {
            shares.remove(place);
        }
        if self.count <= self.max / 2 {
            self.shares = None;
        }
        if self.count == 0 && self.entries.len() > KEPT_ENTRIES {
            // A burst has passed: its memory goes back.
            (self.entries, self.free) = (Vec::new(), NONE);
        }
        Some(value)
    }

    /// Takes an entry out of the order of age.
    fn unlink(&mut self, place: u32) {
        let Entry { older, newer, .. } = self.entries[place as usize];
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
    }

    /// Makes an entry the newest.
    fn link(&mut self, place: u32) {
        let before = std::mem::replace(&mut self.newest, place);
        match self.entries.get_mut(before as usize) {
            Some(entry) => entry.newer = place,
            None => self.oldest = place,
        }
        let entry = &mut self.entries[place as usize];
        (entry.older, entry.newer) = (before, NONE);
    }

    fn bucket(&self, key: &K) -> usize {
        key.hash() as usize & self.buckets.len().saturating_sub(1)
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
    fn the_owner_with_the_most_makes_room_for_others() {
        let mut map = Bounded::<(u64, IpAddr), _>::shared(8, |(owner, _), ()| *owner);
        let key = |owner, host| (owner, IpAddr::from([10, 0, 0, host]));
        for host in 0..2 {
            map.insert(key(1, host), (), Timestamp(u64::from(host)));
        }
        let mut gone = 0;
        for host in 0..100 {
            gone += map.insert(key(2, host), (), Timestamp(10 + u64::from(host)));
        }
        gone += map.insert(key(3, 0), (), Timestamp(200));
        assert_eq!((gone, map.len()), (95, 8));
        for kept in [key(1, 0), key(1, 1), key(3, 0), key(2, 99), key(2, 95)] {
            assert!(map.get(&kept).is_some(), "{kept:?}");
        }
        assert!(map.get(&key(2, 94)).is_none());
        map.expire(Timestamp(150));
        assert!(map.len() == 1 && map.shares.is_none());
    }

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
            assert!(map.entries.len() <= 9);
        }
        assert_eq!((map.len(), map.get(&7)), (8, Some(&9_999)));
        assert_eq!(map.insert(8, 0, Timestamp(10_000)), 1);
        assert_eq!(map.get(&0), None);
    }

    #[test]
    fn an_empty_map_gives_the_memory_of_a_burst_back() {
        let mut map = Bounded::<u64, _>::new(4_096);
        for number in 0..8_192_u64 {
            map.insert(number, number, Timestamp(number));
        }
        assert_eq!(
            (map.len(), map.get(&4_095), map.get(&4_096)),
            (4_096, None, Some(&4_096))
        );
        map.expire(Timestamp(8_000));
        assert_eq!((map.len(), map.get(&7_999), map.get(&8_000)), (192, None, Some(&8_000)));
        map.expire(Timestamp(9_000));
        assert_eq!((map.len(), map.entries.capacity()), (0, 0));
        map.insert(1, 1, Timestamp(1));
        assert_eq!((map.len(), map.remove(&1)), (1, Some(1)));
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
