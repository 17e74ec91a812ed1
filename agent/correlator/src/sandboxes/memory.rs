//! What is remembered after a trace has closed: sandboxes and pods, for links and attempt numbers.
//!
//! Bounded: the entry that was not used for the longest time goes first, counted by the caller.

use std::sync::Arc;

use sandglass_model::{CniCommand, PodIdentity, RootId};

use crate::collections::by_text::ByText;

/// A sandbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sandbox {
    pub(crate) identity: PodIdentity,
    /// Its creation, when seen.
    pub(crate) root: Option<RootId>,
    pub(crate) attempt: u32,
    /// It exists: an ADD now is another attachment, not its creation.
    pub(crate) created: bool,
    /// Its creation was seen to fail.
    pub(crate) failed: bool,
    /// Interfaces that were added and not removed since.
    /// One or two of them mostly, of thousands of sandboxes: a tree would take more room than all else here.
    pub(crate) attached: Vec<Box<str>>,
    /// Last operation of its own trace, and its attempt, by verb and interface.
    pub(crate) operations: Vec<Counted>,
}

/// What is remembered of operations that are traces of their own.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    command: CniCommand,
    ifname: Box<str>,
    attempt: u32,
    root: RootId,
}

/// Most interfaces remembered of one sandbox.
const MAX_INTERFACES: usize = 32;

impl Sandbox {
    pub(crate) fn attach(&mut self, ifname: &str) {
        if self.attached.len() < MAX_INTERFACES && !self.attached.iter().any(|attached| **attached == *ifname) {
            self.attached.push(ifname.into());
        }
    }

    /// An interface was removed. With the last one the sandbox is no longer attached to anything, and a later ADD
    /// makes it anew (cnitool uses one id per namespace path over and over).
    pub(crate) fn detach(&mut self, ifname: &str) {
        let before = self.attached.len();
        self.attached.retain(|attached| **attached != *ifname);
        if before > 0 && self.attached.is_empty() {
            self.created = false;
        }
    }

    /// Counts an operation that is a trace of its own; returns its attempt and the previous one.
    pub(crate) fn count(&mut self, command: CniCommand, ifname: &str, root: RootId) -> (u32, Option<RootId>) {
        let mut counted = self.operations.iter_mut();
        if let Some(counted) = counted.find(|counted| counted.command == command && *counted.ifname == *ifname) {
            counted.attempt = counted.attempt.saturating_add(1);
            return (counted.attempt, Some(std::mem::replace(&mut counted.root, root)));
        }
        if self.operations.len() < MAX_INTERFACES {
            self.operations.push(Counted {
                command,
                ifname: ifname.into(),
                attempt: 1,
                root,
            });
        }
        (1, None)
    }
}

/// The newest attempt to make a sandbox for a pod.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) sandbox: String,
    pub(crate) number: u32,
    pub(crate) root: RootId,
}

/// Everything remembered.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) sandboxes: Recent<Sandbox>,
    pub(crate) pods: Recent<Attempt>,
}

impl Memory {
    pub(crate) fn new(max: usize) -> Memory {
        Memory {
            sandboxes: Recent::new(max),
            pods: Recent::new(max),
        }
    }
}

/// What identifies a pod across its sandboxes; `None` when it has no name.
pub(crate) fn pod_key(identity: &PodIdentity) -> Option<String> {
    if !identity.uid.is_empty() {
        Some(identity.uid.clone())
    } else if !identity.name.is_empty() {
        Some(format!("{}/{}", identity.namespace, identity.name))
    } else {
        None
    }
}

/// A map that keeps the most recently used entries.
#[derive(Debug)]
pub(crate) struct Recent<V> {
    max: usize,
    places: ByText<usize>,
    /// A list by use, linked through the entries: using one again must not cost a search.
    entries: Vec<Entry<V>>,
    oldest: usize,
    newest: usize,
}

#[derive(Debug)]
struct Entry<V> {
    key: Arc<str>,
    value: V,
    older: usize,
    newer: usize,
}

/// No entry: the link at either end of the list.
const NONE: usize = usize::MAX;

impl<V> Recent<V> {
    pub(crate) fn new(max: usize) -> Recent<V> {
        let max = max.max(1);
        Recent {
            max,
            places: ByText::new(max),
            entries: Vec::new(),
            oldest: NONE,
            newest: NONE,
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&V> {
        self.places.get(key).map(|&place| &self.entries[place].value)
    }

    /// The entry, now the most recently used.
    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut V> {
        let place = *self.places.get(key)?;
        if place != self.newest {
            self.unlink(place);
            self.link(place);
        }
        Some(&mut self.entries[place].value)
    }

    /// Enters or replaces; returns how many others were forgotten for it.
    pub(crate) fn insert(&mut self, key: &str, value: V) -> u64 {
        if let Some(entry) = self.get_mut(key) {
            *entry = value;
            return 0;
        }
        let key: Arc<str> = key.into();
        let entry = Entry {
            key: Arc::clone(&key),
            value,
            older: NONE,
            newer: NONE,
        };
        let forgets = self.entries.len() == self.max;
        let place = if forgets {
            let place = self.oldest;
            self.unlink(place);
            let oldest = std::mem::replace(&mut self.entries[place], entry);
            self.places.remove(&oldest.key);
            place
        } else {
            self.entries.push(entry);
            self.entries.len() - 1
        };
        self.link(place);
        self.places.insert(key, place);
        u64::from(forgets)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes an entry out of the list.
    fn unlink(&mut self, place: usize) {
        let Entry { older, newer, .. } = self.entries[place];
        match self.entries.get_mut(older) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        match self.entries.get_mut(newer) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
    }

    /// Puts an entry at the newest end.
    fn link(&mut self, place: usize) {
        let before = std::mem::replace(&mut self.newest, place);
        match self.entries.get_mut(before) {
            Some(entry) => entry.newer = place,
            None => self.oldest = place,
        }
        let entry = &mut self.entries[place];
        (entry.older, entry.newer) = (before, NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_for_the_longest_time_goes_first() {
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
