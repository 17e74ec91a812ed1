//! Open exchanges of one kind (lookups, connects) by serial number, with an index over everything that identifies one.
//!
//! Used by the traffic room, several times per record. The index compares hashes only, so an entry that it leads to may be
//! another one: callers check. Serial numbers only grow: the lowest is the oldest. Entries and index lie in two arrays whose
//! places are linked and used again, so that an exchange that comes and goes allocates nothing here, and none of the
//! operations takes longer because many exchanges share a key (a resolver that asks for one name all the time).
//! Does not: bound itself; callers evict before they insert, the oldest entry of the owner with the most.

use std::net::SocketAddr;

use sandglass_model::Timestamp;
use sandglass_model::network::Transport;

use crate::collections::bounded::Hashed as _;
use crate::collections::shares::{Shares, Victim};
use crate::traffic::packet::protocol_of;
use crate::traffic::table_index::{Index, NONE};
use crate::traffic::table_key::TableKey;

/// Entries and their index.
#[derive(Debug)]
pub(crate) struct ExchangeTable<T> {
    entries: Vec<TableEntry<T>>,
    /// Entries by the low bits of their serial numbers.
    by_serial: Vec<u32>,
    oldest: u32,
    newest: u32,
    /// The first entry that is not used; they are linked by `next`.
    free: u32,
    count: usize,
    index: Index,
    /// Since the table was full, until it is half empty.
    shares: Option<Box<Shares>>,
    /// How many entries there were when the shares were counted.
    shared_at: usize,
}

/// What has an owner that shares the table with others.
pub(crate) trait Owned {
    /// The owner that it counts for while the table is full.
    fn share(&self) -> u64;
}

/// What is known of a lookup without a look at it: of a resolver's many lookups of one name most are over but for the wait
/// for a next name, and none of these has to do with a next query. Each of its questions was asked once, by one
/// message, and has a final answer; one of the answers names something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brief {
    /// Types of its questions, of one name: one or two.
    pub(crate) kinds: [u16; 2],
    pub(crate) way: Way,
    /// When the last question was asked.
    pub(crate) asked_until: Timestamp,
}

/// From where to where messages went, and over what: both ends as hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    client: u64,
    server: u64,
}

impl Way {
    pub(crate) fn new(client: SocketAddr, server: SocketAddr, transport: Transport) -> Way {
        let end = |end| TableKey::client(protocol_of(transport), end).hash();
        Way {
            client: end(client),
            server: end(server),
        }
    }
}

impl Brief {
    /// A query of this kind for its name, sent at `at`, is another lookup's: it neither is one of its messages a second time
    /// nor asks another server in parallel from the same socket.
    pub(crate) fn is_apart(&self, kind: u16, way: Way, at: Timestamp) -> bool {
        let apart = way.client != self.way.client || (way.server == self.way.server && at > self.asked_until);
        apart && self.kinds.contains(&kind)
    }
}

#[derive(Debug)]
struct TableEntry<T> {
    serial: u64,
    /// Forgotten whenever the value may change.
    brief: Option<Brief>,
    /// `None` while it is not used.
    value: Option<Box<T>>,
    /// The next one in its bucket of `by_serial`, or among those that are not used.
    next: u32,
    older: u32,
    newer: u32,
    /// Its keys in the index.
    first_key: u32,
    keys: u32,
}

/// Bound on the entries that a look-up under one key visits, the newest first: a process that resolves one name a thousand
/// times at once must not make every event slow.
pub(crate) const MAX_LOOK: usize = 16;
/// Bound on the keys of one entry.
const MAX_KEYS: u32 = 256;
/// A power of two; in a full table each has two entries.
const SERIAL_BUCKETS: usize = 1 << 12;
/// An empty table keeps the memory of so many entries.
const KEPT_ENTRIES: usize = 1_024;

impl<T> Default for ExchangeTable<T> {
    fn default() -> ExchangeTable<T> {
        ExchangeTable {
            entries: Vec::new(),
            by_serial: Vec::new(),
            oldest: NONE,
            newest: NONE,
            free: NONE,
            count: 0,
            index: Index::default(),
            shares: None,
            shared_at: 0,
        }
    }
}

impl<T: Owned> ExchangeTable<T> {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// `serial` must be higher than any before.
    pub(crate) fn insert(&mut self, serial: u64, value: Box<T>) {
        if self.by_serial.is_empty() {
            self.by_serial = vec![NONE; SERIAL_BUCKETS];
        }
        let owner = value.share();
        let bucket = &mut self.by_serial[serial_bucket(serial)];
        let entry = TableEntry {
            serial,
            brief: None,
            value: Some(value),
            next: *bucket,
            older: self.newest,
            newer: NONE,
            first_key: NONE,
            keys: 0,
        };
        let place = match self.free {
            NONE => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
            free => {
                let unused = std::mem::replace(&mut self.entries[free as usize], entry);
                self.free = unused.next;
                free
            }
        };
        *bucket = place;
        match std::mem::replace(&mut self.newest, place) {
            NONE => self.oldest = place,
            before => self.entries[before as usize].newer = place,
        }
        if let Some(shares) = &mut self.shares {
            shares.add(place, owner);
        }
        self.count += 1;
    }

    /// Adds the entry to the index under `key`.
    pub(crate) fn key(&mut self, serial: u64, key: TableKey) {
        self.keys(serial, &[key]);
    }

    /// Adds the entry to the index under each of `keys`.
    pub(crate) fn keys(&mut self, serial: u64, keys: &[TableKey]) {
        let Some(place) = self.place(serial) else { return };
        let entry = &mut self.entries[place as usize];
        // Of an entry without keys the search can be left out.
        let is_new = entry.keys == 0;
        for (number, key) in keys.iter().enumerate() {
            let is_known = match is_new {
                true => keys[..number].contains(key),
                false => self.index.has(entry.first_key, key.hash()),
            };
            if entry.keys < MAX_KEYS && !is_known {
                entry.first_key = self.index.insert(key.hash(), place, entry.first_key);
                entry.keys += 1;
            }
        }
    }

    /// Remembers what is known of an entry without a look at it, until it changes.
    pub(crate) fn set_brief(&mut self, serial: u64, brief: Option<Brief>) {
        if let Some(place) = self.place(serial) {
            self.entries[place as usize].brief = brief;
        }
    }

    /// As [`newest`](ExchangeTable::newest), without those of whose brief `skip` is true.
    pub(crate) fn newest_but(&self, key: TableKey, skip: impl Fn(&Brief) -> bool) -> impl Iterator<Item = (u64, &T)> {
        let newest = self.index.newest(key.hash()).take(MAX_LOOK);
        let entries = newest.map(|place| &self.entries[place as usize]);
        let left = entries.filter(move |entry| !entry.brief.as_ref().is_some_and(&skip));
        left.filter_map(TableEntry::used)
    }

    /// Entries under `key`, the latest added first; a hash collision may add others.
    pub(crate) fn newest(&self, key: TableKey) -> impl Iterator<Item = (u64, &T)> {
        let newest = self.index.newest(key.hash()).take(MAX_LOOK);
        newest.filter_map(|place| self.entries[place as usize].used())
    }

    /// As [`newest`](ExchangeTable::newest), without a bound: for what comes seldom and concerns each of them.
    pub(crate) fn all(&self, key: TableKey) -> impl Iterator<Item = (u64, &T)> {
        let all = self.index.newest(key.hash());
        all.filter_map(|place| self.entries[place as usize].used())
    }

    pub(crate) fn get(&self, serial: u64) -> Option<&T> {
        let place = self.place(serial)?;
        self.entries[place as usize].value.as_deref()
    }

    pub(crate) fn get_mut(&mut self, serial: u64) -> Option<&mut T> {
        let place = self.place(serial)?;
        let entry = &mut self.entries[place as usize];
        entry.brief = None;
        entry.value.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, serial: u64) -> Option<Box<T>> {
        let place = self.place(serial)?;
        let next = self.entries[place as usize].next;
        let bucket = serial_bucket(serial);
        if self.by_serial[bucket] == place {
            self.by_serial[bucket] = next;
        } else {
            let mut before = self.by_serial[bucket];
            while self.entries[before as usize].next != place {
                before = self.entries[before as usize].next;
            }
            self.entries[before as usize].next = next;
        }
        let TableEntry {
            older,
            newer,
            first_key,
            ..
        } = self.entries[place as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.entries[newer as usize].older = older,
        }
        self.index.remove(first_key);
        let entry = &mut self.entries[place as usize];
        let value = entry.value.take();
        entry.next = std::mem::replace(&mut self.free, place);
        self.count -= 1;
        if let Some(shares) = &mut self.shares {
            shares.remove(place);
        }
        if self.count <= self.shared_at / 2 {
            self.shares = None;
        }
        if self.count == 0 && self.entries.len() > KEPT_ENTRIES {
            // A burst has passed: its memory goes back.
            *self = ExchangeTable::default();
        }
        value
    }

    #[cfg(test)]
    pub(crate) fn oldest(&self) -> Option<u64> {
        let entry = self.entries.get(self.oldest as usize)?;
        Some(entry.serial)
    }

    /// The entry to evict from a full table: the oldest of the owner with the most. The second value says whether that owner
    /// is noisy.
    pub(crate) fn next_victim(&mut self) -> Option<(u64, bool)> {
        let shares = self.shares.take().unwrap_or_else(|| Box::new(self.count_shares()));
        let victim = shares.next_victim();
        self.shares = Some(shares);
        self.shared_at = self.shared_at.max(self.count);
        let Victim { place, is_noisy } = victim?;
        Some((self.entries[place as usize].serial, is_noisy))
    }

    fn count_shares(&self) -> Shares {
        let mut next = self.oldest;
        Shares::new(std::iter::from_fn(|| {
            let entry = self.entries.get(next as usize)?;
            let owner = entry.value.as_ref()?.share();
            Some((std::mem::replace(&mut next, entry.newer), owner))
        }))
    }

    pub(crate) fn serials(&self) -> impl Iterator<Item = u64> {
        self.iter().map(|(serial, _)| serial)
    }

    /// All, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let mut next = self.oldest;
        std::iter::from_fn(move || {
            let entry = self.entries.get(next as usize)?;
            next = entry.newer;
            entry.used()
        })
    }

    /// All, in no order that means anything.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|entry| {
            entry.brief = None;
            entry.value.as_deref_mut()
        })
    }

    fn place(&self, serial: u64) -> Option<u32> {
        let mut place = *self.by_serial.get(serial_bucket(serial))?;
        loop {
            let entry = self.entries.get(place as usize)?;
            if entry.serial == serial {
                return Some(place);
            }
            place = entry.next;
        }
    }
}

impl<T> TableEntry<T> {
    fn used(&self) -> Option<(u64, &T)> {
        Some((self.serial, self.value.as_deref()?))
    }
}

fn serial_bucket(serial: u64) -> usize {
    serial as usize & (SERIAL_BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use sandglass_model::network::Transport;

    use super::*;

    impl Owned for u64 {
        fn share(&self) -> u64 {
            self % 10
        }
    }

    #[test]
    fn a_noisy_owner_is_evicted_first() {
        let mut table = ExchangeTable::<u64>::default();
        for (serial, value) in [11, 12, 12, 13, 12].into_iter().enumerate() {
            table.insert(serial as u64, Box::new(value));
        }
        let mut victims = Vec::new();
        for serial in 10..14 {
            let (victim, _) = table.next_victim().unwrap();
            table.remove(victim);
            victims.push(victim);
            table.insert(serial, Box::new(12));
        }
        assert_eq!(victims, [1, 2, 4, 10], "owner 2 only");
        for serial in table.serials().collect::<Vec<_>>() {
            table.remove(serial);
        }
        assert!(table.shares.is_none() && table.next_victim().is_none());
    }

    #[test]
    fn an_entry_is_found_by_its_keys_until_it_is_removed() {
        let mut table = ExchangeTable::default();
        let client = SocketAddr::from(([10, 0, 0, 1], 4_000));
        let key = |id| TableKey::message(client, Transport::Udp, id);
        for serial in 1..=40 {
            table.insert(serial, Box::new(serial));
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
        assert!(table.index.is_empty());
    }
}
