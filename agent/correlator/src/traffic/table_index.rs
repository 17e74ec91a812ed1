//! The index of an [`ExchangeTable`](crate::traffic::table::ExchangeTable): from the hash of a key to the entries that have it.
//!
//! A node stands for one key of one entry. The nodes of a key are a list, newest first; the heads of these lists are in the
//! list of a bucket. So to find, add and remove a key takes the same time whatever number of entries have it: thousands do
//! when a resolver asks for one name all the time. Does not: know what an entry is.

/// Nodes by key.
#[derive(Debug)]
pub(crate) struct Index {
    nodes: Vec<Node>,
    /// Nothing before the first key.
    buckets: Vec<u32>,
    /// The first unused node; they are linked by `of_entry`.
    free: u32,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    key: u64,
    entry: u32,
    /// The next node of the same entry.
    of_entry: u32,
    /// Neighbours among the nodes of the same key.
    older: u32,
    newer: u32,
    /// The head of the next key in the bucket; only of a head.
    next_head: u32,
}

/// No node, no entry.
pub(crate) const NONE: u32 = u32::MAX;
/// A power of two. Two thousand open lookups have about so many keys.
const BUCKETS: usize = 1 << 14;

impl Default for Index {
    fn default() -> Index {
        Index {
            nodes: Vec::new(),
            buckets: Vec::new(),
            free: NONE,
        }
    }
}

impl Index {
    /// Whether an entry has this key; `first` is the entry's first node.
    pub(crate) fn has(&self, first: u32, key: u64) -> bool {
        let mut next = first;
        while let Some(node) = self.nodes.get(next as usize) {
            if node.key == key {
                return true;
            }
            next = node.of_entry;
        }
        false
    }

    /// Adds a key that the entry does not have; `first` is the entry's first node, or none. Returns its first node now.
    pub(crate) fn insert(&mut self, key: u64, entry: u32, first: u32) -> u32 {
        if self.buckets.is_empty() {
            self.buckets = vec![NONE; BUCKETS];
        }
        let (before, head) = self.find(key);
        let next_head = match self.nodes.get(head as usize) {
            Some(head) => head.next_head,
            None => self.buckets[bucket(key)],
        };
        let node = Node {
            key,
            entry,
            of_entry: first,
            older: head,
            newer: NONE,
            next_head,
        };
        let place = match self.nodes.get_mut(self.free as usize) {
            Some(unused) => std::mem::replace(&mut self.free, std::mem::replace(unused, node).of_entry),
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        match self.nodes.get_mut(head as usize) {
            Some(head) => {
                head.newer = place;
                self.set_head(key, before, place);
            }
            None => self.set_head(key, NONE, place),
        }
        place
    }

    /// The entries of a key, the latest added first.
    pub(crate) fn newest(&self, key: u64) -> impl Iterator<Item = u32> {
        let (_, mut next) = self.find(key);
        std::iter::from_fn(move || {
            let node = self.nodes.get(next as usize)?;
            next = node.older;
            Some(node.entry)
        })
    }

    /// Removes all keys of an entry; `first` is its first node.
    pub(crate) fn remove(&mut self, first: u32) {
        let mut next = first;
        while let Some(&node) = self.nodes.get(next as usize) {
            if let Some(older) = self.nodes.get_mut(node.older as usize) {
                older.newer = node.newer;
            }
            if let Some(newer) = self.nodes.get_mut(node.newer as usize) {
                newer.older = node.older;
            } else {
                // A head: the next node of its key takes its place in the bucket, or else the next key does.
                let (before, _) = self.find(node.key);
                let head = match self.nodes.get_mut(node.older as usize) {
                    Some(older) => {
                        older.next_head = node.next_head;
                        node.older
                    }
                    None => node.next_head,
                };
                self.set_head(node.key, before, head);
            }
            self.nodes[next as usize].of_entry = std::mem::replace(&mut self.free, next);
            next = node.of_entry;
        }
    }

    /// The head of a key, and the head before it in its bucket.
    fn find(&self, key: u64) -> (u32, u32) {
        let (mut before, mut next) = (NONE, self.buckets.get(bucket(key)).copied().unwrap_or(NONE));
        while let Some(head) = self.nodes.get(next as usize)
            && head.key != key
        {
            (before, next) = (next, head.next_head);
        }
        (before, next)
    }

    /// `head` comes behind `before` in the bucket of `key`.
    fn set_head(&mut self, key: u64, before: u32, head: u32) {
        match self.nodes.get_mut(before as usize) {
            Some(before) => before.next_head = head,
            None => self.buckets[bucket(key)] = head,
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.buckets.iter().all(|head| *head == NONE)
    }
}

fn bucket(key: u64) -> usize {
    key as usize & (BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Against a plain map, with keys of which several share a bucket.
    #[test]
    fn entries_are_found_by_their_keys_whatever_comes_and_goes() {
        let mut index = Index::default();
        let mut first: BTreeMap<u32, u32> = BTreeMap::new();
        let mut plain: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..20_000 {
            let entry = random(40) as u32;
            if random(4) == 0 {
                index.remove(first.remove(&entry).unwrap_or(NONE));
                for entries in plain.values_mut() {
                    entries.retain(|of| *of != entry);
                }
                continue;
            }
            let key = random(3) + (random(4) << 20);
            let node = first.get(&entry).copied().unwrap_or(NONE);
            let known = plain.entry(key).or_default();
            assert_eq!(index.has(node, key), known.contains(&entry));
            if !known.contains(&entry) {
                known.insert(0, entry);
                first.insert(entry, index.insert(key, entry, node));
            }
            for (key, entries) in &plain {
                assert_eq!(&index.newest(*key).collect::<Vec<_>>(), entries);
            }
        }
        for (_, node) in first {
            index.remove(node);
        }
        assert!(index.is_empty());
    }
}
