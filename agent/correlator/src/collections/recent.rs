//! A map that keeps the entries that were used most recently.

use std::sync::Arc;

use crate::collections::by_text::ByText;

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
