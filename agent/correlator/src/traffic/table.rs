//! Open exchanges of one kind (lookups, connects) by serial number, with an index over everything that identifies one.
//!
//! Used by the traffic room, several times per record. The index compares hashes only, so an entry that it leads to may be
//! another one: callers check. Serial numbers only grow: the lowest is the oldest. Does not: bound itself; callers evict
//! before they insert.

use std::collections::BTreeMap;

use crate::collections::bounded::Hashed;

use crate::traffic::table_key::TableKey;

/// Entries and their index.
#[derive(Debug)]
pub(crate) struct ExchangeTable<T> {
    entries: BTreeMap<u64, Entry<T>>,
    index: Index,
}

/// Hash of a key and serial number, in buckets, each in order of insertion.
#[derive(Debug, Default)]
struct Index(Vec<Vec<(u64, u64)>>);

#[derive(Debug)]
struct Entry<T> {
    value: Box<T>,
    keys: Vec<u64>,
}

/// Bound on the entries that a look-up under one key visits, the newest first: a process that resolves one name a thousand
/// times at once must not make every event slow.
const MAX_LOOK: usize = 16;
/// Bound on the keys of one entry.
const MAX_KEYS: usize = 256;

impl<T> Default for ExchangeTable<T> {
    fn default() -> ExchangeTable<T> {
        ExchangeTable {
            entries: BTreeMap::new(),
            index: Index::default(),
        }
    }
}

impl<T> ExchangeTable<T> {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// `serial` must be new.
    pub(crate) fn insert(&mut self, serial: u64, value: T) {
        let entry = Entry {
            value: Box::new(value),
            keys: Vec::new(),
        };
        self.entries.insert(serial, entry);
    }

    /// Adds the entry to the index under `key`.
    pub(crate) fn key(&mut self, serial: u64, key: TableKey) {
        if let Some(entry) = self.entries.get_mut(&serial)
            && entry.keys.len() < MAX_KEYS
            && !entry.keys.contains(&key.hash())
        {
            entry.keys.push(key.hash());
            self.index.insert(key.hash(), serial);
        }
    }

    /// Entries under `key`, the latest added first; a hash collision may add others.
    pub(crate) fn newest(&self, key: TableKey) -> impl Iterator<Item = (u64, &T)> {
        let newest = self.index.newest(key.hash()).take(MAX_LOOK);
        newest.filter_map(|serial| Some((serial, self.get(serial)?)))
    }

    pub(crate) fn get(&self, serial: u64) -> Option<&T> {
        self.entries.get(&serial).map(|entry| &*entry.value)
    }

    pub(crate) fn get_mut(&mut self, serial: u64) -> Option<&mut T> {
        self.entries.get_mut(&serial).map(|entry| &mut *entry.value)
    }

    pub(crate) fn remove(&mut self, serial: u64) -> Option<Box<T>> {
        let entry = self.entries.remove(&serial)?;
        for key in entry.keys {
            self.index.remove(key, serial);
        }
        Some(entry.value)
    }

    pub(crate) fn oldest(&self) -> Option<u64> {
        self.entries.first_key_value().map(|(serial, _)| *serial)
    }

    pub(crate) fn serials(&self) -> impl Iterator<Item = u64> {
        self.entries.keys().copied()
    }

    /// All, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.entries.iter().map(|(serial, entry)| (*serial, &*entry.value))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.values_mut().map(|entry| &mut *entry.value)
    }
}

impl Index {
    fn insert(&mut self, key: u64, serial: u64) {
        if self.0.is_empty() {
            self.0.resize_with(BUCKETS, Vec::new);
        }
        self.0[place(key)].push((key, serial));
    }

    fn newest(&self, key: u64) -> impl Iterator<Item = u64> {
        let bucket = self.0.get(place(key)).map_or(&[][..], Vec::as_slice);
        let newest = bucket.iter().rev().filter(move |(of, _)| *of == key);
        newest.map(|(_, serial)| *serial)
    }

    fn remove(&mut self, key: u64, serial: u64) {
        if let Some(bucket) = self.0.get_mut(place(key))
            && let Some(index) = bucket.iter().position(|entry| *entry == (key, serial))
        {
            bucket.remove(index);
            if bucket.capacity() > 64 && bucket.len() < 8 {
                bucket.shrink_to(8);
            }
        }
    }
}

/// A power of two; a full table has a few keys in each.
const BUCKETS: usize = 1 << 13;

fn place(key: u64) -> usize {
    key as usize & (BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use sandglass_model::network::Transport;

    use super::*;

    #[test]
    fn an_entry_is_found_by_its_keys_until_it_is_removed() {
        let mut table = ExchangeTable::default();
        let client = SocketAddr::from(([10, 0, 0, 1], 4_000));
        let key = |id| TableKey::message(client, Transport::Udp, id);
        for serial in 1..=40 {
            table.insert(serial, serial);
            table.key(serial, key(7));
            table.key(serial, key(7));
        }
        table.key(3, key(8));
        assert_eq!(table.newest(key(7)).map(|(serial, _)| serial).max(), Some(40));
        assert_eq!(table.newest(key(7)).count(), MAX_LOOK);
        assert_eq!(table.newest(key(8)).count(), 1);
        assert_eq!(table.newest(TableKey::message(client, Transport::Tcp, 8)).count(), 0);
        assert_eq!(table.remove(3).as_deref(), Some(&3));
        assert_eq!(
            (table.newest(key(8)).count(), table.len(), table.oldest()),
            (0, 39, Some(1))
        );
        for serial in 0..=40 {
            table.remove(serial);
        }
        assert!(table.index.0.iter().all(Vec::is_empty));
    }
}
