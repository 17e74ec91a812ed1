//! What is remembered after a trace has closed: sandboxes and pods, for links and attempt numbers.
//!
//! Bounded: the entry that was not used for the longest time goes first, counted by the caller.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::trace::{Link, Relation};
use sandglass_model::{CniCommand, PodIdentity, SpanId, TraceId};

/// Where a trace can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) trace: TraceId,
    pub(crate) span: SpanId,
}

impl Root {
    pub(crate) fn link(self, relation: Relation) -> Link {
        Link {
            trace: self.trace,
            span: self.span,
            relation,
        }
    }
}

/// A sandbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sandbox {
    pub(crate) identity: PodIdentity,
    /// Its creation, when seen.
    pub(crate) root: Option<Root>,
    pub(crate) attempt: u32,
    /// It exists: an ADD now is another attachment, not its creation.
    pub(crate) created: bool,
    /// Its creation was seen to fail.
    pub(crate) failed: bool,
    /// Interfaces that were added and not removed since.
    pub(crate) attached: BTreeSet<String>,
    /// Last operation of its own trace, and its attempt, by verb and interface.
    pub(crate) operations: BTreeMap<(CniCommand, String), (u32, Root)>,
}

/// Most interfaces remembered of one sandbox.
const MAX_INTERFACES: usize = 32;

impl Sandbox {
    pub(crate) fn attach(&mut self, ifname: &str) {
        if self.attached.len() < MAX_INTERFACES {
            self.attached.insert(ifname.to_owned());
        }
    }

    /// An interface was removed. With the last one the sandbox is no longer attached to anything, and a later ADD
    /// makes it anew (cnitool uses one id per namespace path over and over).
    pub(crate) fn detach(&mut self, ifname: &str) {
        if self.attached.remove(ifname) && self.attached.is_empty() {
            self.created = false;
        }
    }

    /// Counts an operation that is a trace of its own; returns its attempt and the previous one.
    pub(crate) fn count(&mut self, command: CniCommand, ifname: &str, root: Root) -> (u32, Option<Root>) {
        let key = (command, ifname.to_owned());
        let previous = self.operations.get(&key).copied();
        let attempt = previous.map_or(1, |(attempt, _)| attempt.saturating_add(1));
        if previous.is_some() || self.operations.len() < MAX_INTERFACES {
            self.operations.insert(key, (attempt, root));
        }
        (attempt, previous.map(|(_, root)| root))
    }
}

/// The newest attempt to make a sandbox for a pod.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) sandbox: String,
    pub(crate) number: u32,
    pub(crate) root: Root,
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
    used: u64,
    entries: BTreeMap<String, (u64, V)>,
    order: BTreeMap<u64, String>,
}

impl<V> Recent<V> {
    fn new(max: usize) -> Recent<V> {
        Recent {
            max: max.max(1),
            used: 0,
            entries: BTreeMap::new(),
            order: BTreeMap::new(),
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    /// The entry, now the most recently used.
    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut V> {
        let (used, value) = self.entries.get_mut(key)?;
        self.used += 1;
        if let Some(key) = self.order.remove(used) {
            self.order.insert(self.used, key);
        }
        *used = self.used;
        Some(value)
    }

    /// Enters or replaces; returns how many others were forgotten for it.
    pub(crate) fn insert(&mut self, key: &str, value: V) -> u64 {
        if let Some(entry) = self.get_mut(key) {
            *entry = value;
            return 0;
        }
        self.used += 1;
        self.entries.insert(key.to_owned(), (self.used, value));
        self.order.insert(self.used, key.to_owned());
        let mut forgotten = 0;
        while self.entries.len() > self.max
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.entries.remove(&oldest);
            forgotten += 1;
        }
        forgotten
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
