//! The network namespaces of sandboxes that are known: `netns` adds them, `conntrack` visits and removes them.
//!
//! Bounded by [`KNOWN_MAX`]. Does not: keep a namespace alive.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The table: the path as in `CNI_NETNS` by inode. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct KnownNamespaces(Arc<Mutex<BTreeMap<u64, String>>>);

impl KnownNamespaces {
    /// Adds one. Ignored when the table is full.
    pub fn add(&self, inode: u64, path: &str) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < KNOWN_MAX {
            known.insert(inode, path.to_owned());
        }
    }

    /// Removes one whose sandbox is gone.
    pub fn remove(&self, inode: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&inode);
    }

    /// The path of one.
    #[must_use]
    pub fn path(&self, inode: u64) -> Option<String> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&inode).cloned()
    }

    /// The inodes of all, in order.
    #[must_use]
    pub fn inodes(&self) -> Vec<u64> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.keys().copied().collect()
    }
}

/// Most namespaces: nine times the pods of the kubelet's default limit.
const KNOWN_MAX: usize = 1024;
