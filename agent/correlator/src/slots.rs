//! The open traces, by key and in the order they were opened.
//!
//! Used by the state machine, which comes here several times per event: a key says where its trace lies, so that there
//! is no search. Only opening and closing a trace touch the order. Does not: bound itself below what a key can hold.

use std::collections::BTreeSet;

use crate::open::{OpenTrace, TraceKey};

/// The traces.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// Each in a box: open traces are large.
    slots: Vec<Option<Box<OpenTrace>>>,
    free: Vec<u32>,
    /// Keys of the traces that are in, oldest first.
    order: BTreeSet<TraceKey>,
}

impl Slots {
    /// A place for the trace with this serial number, kept free until the trace comes or for good.
    pub(crate) fn reserve(&mut self, serial: u64) -> TraceKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        TraceKey::new(serial, slot)
    }

    /// Puts a trace into the place that was reserved for it.
    pub(crate) fn insert(&mut self, open: OpenTrace) {
        let key = open.key;
        if let Some(slot) = self.slots.get_mut(key.slot()) {
            *slot = Some(Box::new(open));
            self.order.insert(key);
        }
    }

    pub(crate) fn get(&self, key: TraceKey) -> Option<&OpenTrace> {
        let open = self.slots.get(key.slot())?.as_deref()?;
        (open.key == key).then_some(open)
    }

    pub(crate) fn get_mut(&mut self, key: TraceKey) -> Option<&mut OpenTrace> {
        let open = self.slots.get_mut(key.slot())?.as_deref_mut()?;
        (open.key == key).then_some(open)
    }

    pub(crate) fn remove(&mut self, key: TraceKey) -> Option<Box<OpenTrace>> {
        if !self.order.remove(&key) {
            return None;
        }
        self.free.push(key.slot() as u32);
        self.slots.get_mut(key.slot())?.take()
    }

    /// Takes a trace out of its place, which is kept: [`give_back`](Slots::give_back) follows, or `remove`.
    pub(crate) fn lend(&mut self, key: TraceKey) -> Option<Box<OpenTrace>> {
        self.get(key)?;
        self.slots.get_mut(key.slot())?.take()
    }

    /// Puts a trace back that was lent.
    pub(crate) fn give_back(&mut self, open: Box<OpenTrace>) {
        if let Some(slot) = self.slots.get_mut(open.key.slot()) {
            *slot = Some(open);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// The key of the trace that was opened first.
    pub(crate) fn oldest(&self) -> Option<TraceKey> {
        self.order.first().copied()
    }

    /// The traces, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &OpenTrace> {
        self.order.iter().filter_map(|key| self.get(*key))
    }

    /// The keys of the traces, oldest first.
    pub(crate) fn keys(&self) -> impl Iterator<Item = TraceKey> {
        self.order.iter().copied()
    }
}
