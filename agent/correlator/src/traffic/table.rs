//! What is open of one kind (lookups, connections), by serial number, with an index over whatever they can be found by.
//!
//! Used for traffic, several times per record. What an index entry leads to may be another's with the same hash: who
//! looks checks. Serial numbers only grow, so that the lowest is the oldest. Does not: bound itself; who inserts evicts
//! first.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use sandglass_model::network::Transport;

use crate::collections::bounded::Hashed;
use crate::collections::mix::mix;

/// Entries and their index.
#[derive(Debug)]
pub(crate) struct Table<T> {
    entries: BTreeMap<u64, Entry<T>>,
    index: Index,
}

/// Serial numbers by key, in buckets; in each in the order of their coming.
#[derive(Debug, Default)]
struct Index(Vec<Vec<(u64, u64)>>);

#[derive(Debug)]
struct Entry<T> {
    value: Box<T>,
    keys: Vec<u64>,
}

/// Most entries looked at under one key, the newest: a process that asks one name a thousand times at once must not make
/// every event slow.
const MAX_LOOK: usize = 16;
/// Most keys of one entry.
const MAX_KEYS: usize = 256;

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table {
            entries: BTreeMap::new(),
            index: Index::default(),
        }
    }
}

impl<T> Table<T> {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// `serial` was never used before.
    pub(crate) fn insert(&mut self, serial: u64, value: T) {
        let entry = Entry {
            value: Box::new(value),
            keys: Vec::new(),
        };
        self.entries.insert(serial, entry);
    }

    /// From now on the entry is found by `key` too.
    pub(crate) fn key(&mut self, serial: u64, key: Key) {
        if let Some(entry) = self.entries.get_mut(&serial)
            && entry.keys.len() < MAX_KEYS
            && !entry.keys.contains(&key.0)
        {
            entry.keys.push(key.0);
            self.index.insert(key.0, serial);
        }
    }

    /// What may be meant by `key`, what has had it for the shortest time first.
    pub(crate) fn newest(&self, key: Key) -> impl Iterator<Item = (u64, &T)> {
        let newest = self.index.newest(key.0).take(MAX_LOOK);
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

/// What an entry can be found by, hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl Key {
    /// A message sent from here, with this id.
    pub(crate) fn message(client: SocketAddr, transport: Transport, id: u16) -> Key {
        end(1, client, u64::from(id) << 1 | u64::from(transport == Transport::Tcp))
    }

    /// A message sent by this socket, with this id.
    pub(crate) fn message_by(cookie: u64, transport: Transport, id: u16) -> Key {
        let more = u64::from(id) << 1 | u64::from(transport == Transport::Tcp);
        Key(mix(mix(12, &cookie.to_le_bytes()), &more.to_le_bytes()))
    }

    /// A packet of this protocol from or to here.
    pub(crate) fn client(protocol: u8, client: SocketAddr) -> Key {
        end(2, client, u64::from(protocol))
    }

    /// A DNS message with this id, whatever its addresses were translated to.
    pub(crate) fn id(id: u16) -> Key {
        Key(mix(3, &id.to_le_bytes()))
    }

    /// A name asked from this socket.
    pub(crate) fn name_from(client: SocketAddr, name: &str) -> Key {
        end(4, client, mix(0, name.as_bytes()))
    }

    /// A name asked by this one.
    pub(crate) fn name_by(who: Who, name: &str) -> Key {
        Key(mix(who.0 ^ 5, name.as_bytes()))
    }

    /// A name with this first label asked by this one.
    pub(crate) fn label_by(who: Who, name: &str) -> Key {
        let label = name.split('.').next().unwrap_or_default();
        Key(mix(who.0 ^ 6, label.as_bytes()))
    }

    /// Anything asked by this one.
    pub(crate) fn by(who: Who) -> Key {
        Key(mix(who.0, &[7]))
    }

    /// A connection's socket.
    pub(crate) fn socket(cookie: u64) -> Key {
        Key(mix(8, &cookie.to_le_bytes()))
    }

    /// A connection to here, from whatever port of this address.
    pub(crate) fn remote(local: SocketAddr, remote: SocketAddr) -> Key {
        let mut address = local;
        address.set_port(0);
        end(9, remote, end(0, address, 0).0)
    }

    /// A connection to an address that this lookup gave.
    pub(crate) fn after(lookup: u64) -> Key {
        Key(mix(10, &lookup.to_le_bytes()))
    }
}

impl Hashed for Key {
    fn hash(&self) -> u64 {
        self.0
    }
}

/// Who asks: a process where it is known, else an address of a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Who(u64);

impl Who {
    pub(crate) fn of(netns: u64, process: Option<sandglass_model::ProcessKey>, client: SocketAddr) -> Who {
        match process {
            Some(process) => Who(mix(
                netns ^ u64::from(process.pid) << 32,
                &process.start_ticks.to_le_bytes(),
            )),
            None => {
                let mut address = client;
                address.set_port(0);
                Who(end(11, address, netns).0)
            }
        }
    }
}

fn end(tag: u64, end: SocketAddr, more: u64) -> Key {
    let mut bytes = [0; 26];
    match end.ip() {
        std::net::IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
        std::net::IpAddr::V6(address) => bytes[..16].copy_from_slice(&address.octets()),
    }
    bytes[16..18].copy_from_slice(&end.port().to_le_bytes());
    bytes[18..].copy_from_slice(&more.to_le_bytes());
    Key(mix(tag << 1 | u64::from(end.is_ipv6()), &bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_found_by_its_keys_until_it_is_removed() {
        let mut table = Table::default();
        let client = SocketAddr::from(([10, 0, 0, 1], 4_000));
        let key = |id| Key::message(client, Transport::Udp, id);
        for serial in 1..=40 {
            table.insert(serial, serial);
            table.key(serial, key(7));
            table.key(serial, key(7));
        }
        table.key(3, key(8));
        assert_eq!(table.newest(key(7)).map(|(serial, _)| serial).max(), Some(40));
        assert_eq!(table.newest(key(7)).count(), MAX_LOOK);
        assert_eq!(table.newest(key(8)).count(), 1);
        assert_eq!(table.newest(Key::message(client, Transport::Tcp, 8)).count(), 0);
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

    #[test]
    fn keys_of_one_thing_in_different_senses_differ() {
        let client = SocketAddr::from(([10, 0, 0, 1], 4_000));
        let other = SocketAddr::from(([10, 0, 0, 1], 4_001));
        let (who, whose) = (Who::of(1, None, client), Who::of(1, None, other));
        assert_eq!(who, whose);
        assert_ne!(who, Who::of(2, None, client));
        let keys = [
            Key::client(17, client),
            Key::client(6, client),
            Key::client(17, other),
            Key::name_from(client, "a.b"),
            Key::name_by(who, "a.b"),
            Key::label_by(who, "a.b"),
            Key::by(who),
            Key::remote(client, other),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "{index}");
        }
        assert_eq!(Key::remote(client, other), Key::remote(other, other));
        assert_eq!(Key::label_by(who, "a.b"), Key::label_by(who, "a.c"));
    }
}
