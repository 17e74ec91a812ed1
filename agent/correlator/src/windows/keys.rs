//! Which sandbox an object is of: endpoints, ports, namespaces, silos, jobs, compartments, containers.
//!
//! A key is learnt when it is named together with one that is known. Pairs of which neither is known wait.
//! Networks and operations join nothing: the first are shared, numbers of the second come again. Bounded.

use std::collections::BTreeMap;

use sandglass_model::Timestamp;
use sandglass_model::windows::ObjectKey;

use crate::collections::bounded::{Bounded, Hashed};
use crate::collections::mix::mix;

/// Everything known.
#[derive(Debug)]
pub(crate) struct Keys {
    owners: Bounded<ObjectKey, u64>,
    /// The other way round: a sandbox that goes must not cost a walk through all that is known.
    owned: BTreeMap<u64, Vec<ObjectKey>>,
    /// Named together, by each of both.
    pub(super) pairs: Bounded<(ObjectKey, ObjectKey), ()>,
    pub(super) waiting: Vec<(ObjectKey, ObjectKey)>,
    /// Processes of sandboxes, seen by their lookups.
    pub(super) processes: Bounded<u32, u64>,
}

/// Most objects known of one sandbox.
const MAX_OWNED: usize = 256;
/// Most pairs that wait.
const MAX_PAIRS: usize = 1_024;
/// The node's own compartment.
const NODE_COMPARTMENT: u32 = 1;

/// The key says whose something is.
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

/// `kind=id`, as spans show it.
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

    pub(crate) fn owner(&self, key: &ObjectKey) -> Option<u64> {
        self.owners.get(key).copied()
    }

    /// The sandbox that one of the keys is of.
    pub(crate) fn owner_of(&self, keys: &[ObjectKey]) -> Option<u64> {
        keys.iter().find_map(|key| self.owner(key))
    }

    /// The sandbox is gone: others may get its compartment and its job.
    pub(crate) fn forget(&mut self, number: u64) {
        for key in self.owned.remove(&number).unwrap_or_default() {
            // Some may be another's by now.
            if self.owners.get(&key) == Some(&number) {
                self.owners.remove(&key);
            }
        }
    }

    /// The key was learnt by mistake.
    pub(crate) fn unlearn(&mut self, key: &ObjectKey) {
        self.owners.remove(key);
    }

    /// Enters a key; returns how many others were forgotten for it. `None` when the sandbox has too many.
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
