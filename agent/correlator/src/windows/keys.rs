//! Keys of objects: which sandbox an endpoint, port, namespace, silo, job, compartment or container belongs to.
//!
//! Used by `objects.rs` and what attributes activities. A key gets an owner when an event names it together with a key
//! that has one; pairs of keys without an owner wait. Networks and HCS operations join nothing: networks are shared by
//! sandboxes, and operation numbers are reused.
//! Bounded: four times `max_remembered` keys, 256 of each sandbox, 1,024 pairs.

use std::collections::BTreeMap;

use sandglass_model::Timestamp;
use sandglass_model::windows::ObjectKey;

use crate::collections::bounded::{Bounded, Hashed};
use crate::collections::mix::mix;

/// Owners of keys, as numbers of `SandboxTable`.
#[derive(Debug)]
pub(crate) struct Keys {
    /// The sandbox's number by key.
    owners: Bounded<ObjectKey, u64>,
    /// Keys by sandbox, so that removing a sandbox needs no walk through all keys.
    owned: BTreeMap<u64, Vec<ObjectKey>>,
    /// Pairs of keys that were named together while neither had an owner.
    pub(super) pairs: Bounded<(ObjectKey, ObjectKey), ()>,
    /// The same pairs in order of insertion.
    pub(super) waiting: Vec<(ObjectKey, ObjectKey)>,
    /// Processes by pid, known from lookups in their silo.
    pub(super) processes: Bounded<u32, u64>,
}

/// Bound on keys of one sandbox.
const MAX_OWNED: usize = 256;
/// Bound on pairs that wait.
const MAX_PAIRS: usize = 1_024;
/// The default compartment, which is the node's own.
const NODE_COMPARTMENT: u32 = 1;

/// The key belongs to one sandbox. Zero ids are placeholders that WIL and HNS log for "none".
pub(crate) fn identifies_sandbox(key: &ObjectKey) -> bool {
    match key {
        ObjectKey::Network(_) | ObjectKey::Operation(_) => false,
        ObjectKey::Compartment(number) => *number > NODE_COMPARTMENT,
        ObjectKey::Job(number) => *number != 0,
        ObjectKey::Namespace(id)
        | ObjectKey::Endpoint(id)
        | ObjectKey::Port(id)
        | ObjectKey::Container(id)
        | ObjectKey::Silo(id) => !id.is_empty() && id.bytes().any(|byte| byte != b'0' && byte != b'-'),
    }
}

impl Hashed for ObjectKey {
    fn hash(&self) -> u64 {
        match self {
            ObjectKey::Namespace(id) => mix(1, id.as_bytes()),
            ObjectKey::Endpoint(id) => mix(2, id.as_bytes()),
            ObjectKey::Port(id) => mix(3, id.as_bytes()),
            ObjectKey::Network(id) => mix(4, id.as_bytes()),
            ObjectKey::Container(id) => mix(5, id.as_bytes()),
            ObjectKey::Silo(id) => mix(6, id.as_bytes()),
            ObjectKey::Job(number) => mix(7, &number.to_le_bytes()),
            ObjectKey::Operation(number) => mix(8, &number.to_le_bytes()),
            ObjectKey::Compartment(number) => mix(9, &number.to_le_bytes()),
        }
    }
}

impl Hashed for (ObjectKey, ObjectKey) {
    fn hash(&self) -> u64 {
        mix(self.0.hash(), &self.1.hash().to_le_bytes())
    }
}

/// `kind=id`, as spans show the key.
pub(crate) fn text(key: &ObjectKey) -> String {
    match key {
        ObjectKey::Namespace(id) => format!("namespace={id}"),
        ObjectKey::Endpoint(id) => format!("endpoint={id}"),
        ObjectKey::Port(id) => format!("port={id}"),
        ObjectKey::Network(id) => format!("network={id}"),
        ObjectKey::Container(id) => format!("container={id}"),
        ObjectKey::Silo(id) => format!("silo={id}"),
        ObjectKey::Job(number) => format!("job={number}"),
        ObjectKey::Operation(number) => format!("operation={number}"),
        ObjectKey::Compartment(number) => format!("compartment={number}"),
    }
}

impl Keys {
    pub(crate) fn new(max: usize) -> Keys {
        Keys {
            owners: Bounded::new(max.saturating_mul(4)),
            owned: BTreeMap::new(),
            pairs: Bounded::new(MAX_PAIRS),
            waiting: Vec::new(),
            processes: Bounded::new(max),
        }
    }

    /// The sandbox that the key belongs to.
    pub(crate) fn owner(&self, key: &ObjectKey) -> Option<u64> {
        self.owners.get(key).copied()
    }

    /// The sandbox that the first known one of these keys belongs to.
    pub(crate) fn owner_of(&self, keys: &[ObjectKey]) -> Option<u64> {
        keys.iter().find_map(|key| self.owner(key))
    }

    /// The sandbox is gone: its compartment and its job may be another's next.
    pub(crate) fn forget(&mut self, number: u64) {
        for key in self.owned.remove(&number).unwrap_or_default() {
            // Another sandbox may own it by now.
            if self.owners.get(&key) == Some(&number) {
                self.owners.remove(&key);
            }
        }
    }

    /// The key was attributed by mistake.
    pub(crate) fn unlearn(&mut self, key: &ObjectKey) {
        self.owners.remove(key);
    }

    /// Attributes a key. Returns how many others were evicted for it, or `None` if the sandbox has too many.
    pub(super) fn enter(&mut self, key: &ObjectKey, number: u64, at: Timestamp) -> Option<u64> {
        let owned = self.owned.entry(number).or_default();
        if owned.len() >= MAX_OWNED {
            return None;
        }
        owned.push(key.clone());
        Some(self.owners.insert(key.clone(), number, at))
    }

    pub(crate) fn len(&self) -> usize {
        self.owners.len()
    }
}
