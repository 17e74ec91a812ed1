//! The process table's index: entries by pid and start time, as a hash table of linked entries.
//!
//! Used by `processes.rs`, several times per event. A general map would hash pid and start
//! time, and spread processes that begin together over the whole table.
//! Does not: bound itself; `processes.rs` evicts.

use sandglass_model::ProcessKey;

use crate::plugins::role::Role;

/// A process in the table, linked to the next one of the same place.
#[derive(Debug)]
pub(super) struct ProcessEntry {
    pub(super) process: ProcessKey,
    pub(super) role: Role,
    /// Serial number of its insertion.
    pub(super) order: u64,
    /// Index of the next entry of the same place, or of the next free entry.
    next: u32,
}

/// Entries by the low bits of the pid. The kernel allocates pids in sequence, so processes that begin together lie side by
/// side here, and a freed entry is the next to be used: a node's processes stay in the processor's cache.
/// Invariants: every index in `places`, `next` and `free` is `NONE` or below `entries.len()`; an entry is in exactly
/// one list, that of its place or the free one; `count` is the number of entries in the lists of the places.
#[derive(Debug)]
pub(super) struct Entries {
    /// Index of the first entry of each place; a power of two of them.
    places: Vec<u32>,
    /// All entries, free ones included. Never shrinks: it is as long as the table at its fullest.
    entries: Vec<ProcessEntry>,
    /// Index of the first free entry.
    free: u32,
    /// Entries that are not free.
    pub(super) count: usize,
}

/// No entry.
const NONE: u32 = u32::MAX;

impl Entries {
    pub(super) fn new(max: usize) -> Entries {
        Entries {
            places: vec![NONE; max.clamp(1, 1 << 16).next_power_of_two()],
            entries: Vec::new(),
            free: NONE,
            count: 0,
        }
    }

    /// The number of places is a power of two, so the low bits are the place.
    fn place(&self, pid: u32) -> usize {
        pid as usize & (self.places.len() - 1)
    }

    /// Entries of a pid's place, with their indices.
    pub(super) fn at(&self, pid: u32) -> impl Iterator<Item = (u32, &ProcessEntry)> {
        let entry = |index: u32| Some((index, self.entries.get(index as usize)?));
        std::iter::successors(entry(self.places[self.place(pid)]), move |(_, before)| {
            entry(before.next)
        })
    }

    /// The entry of this very process.
    pub(super) fn get(&self, process: ProcessKey) -> Option<&ProcessEntry> {
        let (_, entry) = self.at(process.pid).find(|(_, entry)| entry.process == process)?;
        Some(entry)
    }

    pub(super) fn get_mut(&mut self, process: ProcessKey) -> Option<&mut ProcessEntry> {
        let (index, _) = self.at(process.pid).find(|(_, entry)| entry.process == process)?;
        self.entries.get_mut(index as usize)
    }

    /// The index of the entry of this very process.
    pub(super) fn index(&self, process: ProcessKey) -> Option<u32> {
        let (index, _) = self.at(process.pid).find(|(_, entry)| entry.process == process)?;
        Some(index)
    }

    /// The entry at an index that is in use.
    pub(super) fn by_index(&self, index: u32) -> Option<&ProcessEntry> {
        self.entries.get(index as usize)
    }

    /// Inserts a process that is not in the table. Returns its index.
    pub(super) fn insert(&mut self, process: ProcessKey, role: Role, order: u64) -> u32 {
        let place = self.place(process.pid);
        let entry = ProcessEntry {
            process,
            role,
            order,
            next: self.places[place],
        };
        let index = match self.entries.get_mut(self.free as usize) {
            Some(free) => {
                let index = self.free;
                self.free = std::mem::replace(free, entry).next;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.places[place] = index;
        self.count += 1;
        index
    }

    /// Removes a process and returns its index and role. The entry goes to the front of the free ones.
    pub(super) fn remove(&mut self, process: ProcessKey) -> Option<(u32, Role)> {
        let (index, entry) = self.at(process.pid).find(|(_, entry)| entry.process == process)?;
        let (role, next) = (entry.role, entry.next);
        let before = self.at(process.pid).find(|(_, entry)| entry.next == index);
        match before.map(|(before, _)| before) {
            Some(before) => self.entries[before as usize].next = next,
            None => {
                let place = self.place(process.pid);
                self.places[place] = next;
            }
        }
        self.entries[index as usize].next = std::mem::replace(&mut self.free, index);
        self.count -= 1;
        Some((index, role))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_place_come_and_go_in_any_order() {
        for gone in 0..3 {
            let mut entries = Entries::new(4);
            let process = |number: u32| ProcessKey::new(3 + 4 * number, 0);
            for number in 0..3 {
                entries.insert(process(number), Role::Detached, u64::from(number));
            }
            assert_eq!(entries.remove(process(gone)), Some((gone, Role::Detached)));
            assert_eq!(entries.remove(process(gone)), None);
            for number in 0..3 {
                let order = entries.get(process(number)).map(|entry| entry.order);
                assert_eq!(order, (number != gone).then_some(u64::from(number)));
            }
            // What became free is used again.
            entries.insert(process(gone), Role::Detached, 7);
            assert_eq!((entries.entries.len(), entries.count), (3, 3));
            assert_eq!(entries.get_mut(process(gone)).map(|entry| entry.order), Some(7));
            assert_eq!(entries.at(3).count(), 3);
        }
    }
}
