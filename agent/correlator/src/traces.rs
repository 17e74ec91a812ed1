//! The open traces: by key, by trace id, and by sandbox for the one of its creation; in the order of opening.
//!
//! Used by every room through the [`Context`](crate::context::Context), several times per event; only the room of
//! sandboxes inserts and removes. A key says where its trace lies, so that a look-up is an index and no search; the
//! ordered sets change only when a trace opens or closes. Knows no room: what a room keeps beside a trace is in a table
//! of its own ([`ByTrace`](crate::by_trace::ByTrace)).
//! Does not: bound itself below what a key can address; `Correlator::bound_traces` does.

use std::collections::BTreeSet;
use std::sync::Arc;

use sandglass_model::{SandboxId, Timestamp, TraceId};
use slab::Slab;

use crate::collections::HashMap;
use crate::collections::shares::{Shares, Victim};
use crate::keys::{SpanRef, TraceKey};
use crate::open_trace::OpenTrace;
use crate::owner::namespace_key;

/// The open traces.
#[derive(Debug, Default)]
pub(crate) struct OpenTraces {
    /// The traces by slot, in boxes because they are large and the slab grows; `None` in a slot that is reserved. The slot
    /// that was freed last is used again first.
    slots: Slab<Option<Box<OpenTrace>>>,
    /// Keys of the open traces, oldest first, since keys sort by serial number.
    order: BTreeSet<TraceKey>,
    /// A set and no map: several open traces may share an id that came from outside.
    by_id: BTreeSet<(TraceId, TraceKey)>,
    /// By sandbox id, the trace of its creation.
    creations: HashMap<Arc<str>, TraceKey>,
    /// The serial number of the last key.
    serial: u64,
    /// By slot; since there were too many traces, until half of them are left.
    shares: Option<Box<Shares>>,
    /// How many traces there were when the shares were counted.
    shared_at: usize,
}

impl OpenTraces {
    /// The key of the trace that is opened next. Its slot stays reserved until the trace is inserted, which must
    /// follow.
    pub(crate) fn reserve(&mut self) -> TraceKey {
        self.serial += 1;
        let slot = self.slots.insert(None);
        TraceKey::new(self.serial, u32::try_from(slot).unwrap_or(u32::MAX))
    }

    /// Puts a trace into the slot that was reserved for it.
    pub(crate) fn insert(&mut self, open: OpenTrace) {
        let key = open.key;
        if let Some(slot) = self.slots.get_mut(key.slot()) {
            self.by_id.insert((open.trace.id, key));
            if let Some(SandboxId(sandbox)) = open.trace.sandbox.as_ref().filter(|_| open.is_creation()) {
                self.creations.insert(sandbox.as_str().into(), key);
            }
            if let Some(shares) = &mut self.shares {
                shares.add(key.slot() as u32, namespace_key(&open.trace.identity.namespace));
            }
            *slot = Some(Box::new(open));
            self.order.insert(key);
        }
    }

    /// The open trace with this key; `None` once it has closed.
    pub(crate) fn get(&self, key: TraceKey) -> Option<&OpenTrace> {
        let open = self.slots.get(key.slot())?.as_deref()?;
        (open.key == key).then_some(open)
    }

    pub(crate) fn get_mut(&mut self, key: TraceKey) -> Option<&mut OpenTrace> {
        let open = self.slots.get_mut(key.slot())?.as_deref_mut()?;
        (open.key == key).then_some(open)
    }

    /// The span is open, and so is its trace.
    pub(crate) fn is_open(&self, span: SpanRef) -> bool {
        self.get(span.trace).is_some_and(|open| open.is_open(span.span))
    }

    /// Begin and end of a span that has ended.
    pub(crate) fn interval(&self, span: SpanRef) -> Option<(Timestamp, Timestamp)> {
        let span = self.get(span.trace)?.trace.spans.get(span.span)?;
        Some((span.start, span.end?))
    }

    /// Takes a trace out; every key of it finds nothing from now on.
    pub(crate) fn remove(&mut self, key: TraceKey) -> Option<Box<OpenTrace>> {
        if !self.order.remove(&key) {
            return None;
        }
        if let Some(shares) = &mut self.shares {
            shares.remove(key.slot() as u32);
        }
        if self.order.len() <= self.shared_at / 2 {
            self.shares = None;
        }
        let open = self.slots.try_remove(key.slot()).flatten()?;
        self.by_id.remove(&(open.trace.id, key));
        if open.is_creation() && self.creation_of(open.sandbox()) == Some(key) {
            self.creations.remove(open.sandbox());
        }
        Some(open)
    }

    /// The open trace of this sandbox's creation.
    pub(crate) fn creation_of(&self, sandbox: &str) -> Option<TraceKey> {
        self.creations.get(sandbox).copied()
    }

    /// Id of an open trace's sandbox; empty when it has none.
    pub(crate) fn sandbox_of(&self, key: TraceKey) -> &str {
        self.get(key).map_or("", OpenTrace::sandbox)
    }

    /// The sandbox of an open trace has another id now.
    pub(crate) fn rename_sandbox(&mut self, key: TraceKey, sandbox: &str) {
        let Some(open) = self.get_mut(key) else {
            return;
        };
        let before = open.trace.sandbox.replace(SandboxId(sandbox.to_owned()));
        if let Some(SandboxId(before)) = before.filter(|SandboxId(before)| self.creation_of(before) == Some(key)) {
            self.creations.remove(before.as_str());
            self.creations.insert(sandbox.into(), key);
        }
    }

    /// The open trace with this id: the oldest, when several share it.
    pub(crate) fn find(&self, id: TraceId) -> Option<&OpenTrace> {
        let (_, key) = self
            .by_id
            .range((id, TraceKey::FIRST)..)
            .next()
            .filter(|(found, _)| *found == id)?;
        self.get(*key)
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// The key of the trace that was opened first.
    pub(crate) fn oldest(&self) -> Option<TraceKey> {
        self.order.first().copied()
    }

    /// The trace to evict: the oldest of the Kubernetes namespace with the most. The second value says whether that namespace is
    /// noisy.
    pub(crate) fn next_victim(&mut self) -> Option<(TraceKey, bool)> {
        let shares = self.shares.take().unwrap_or_else(|| {
            let owned = self.iter();
            let owned = owned.map(|open| (open.key.slot() as u32, namespace_key(&open.trace.identity.namespace)));
            Box::new(Shares::new(owned))
        });
        let victim = shares.next_victim();
        self.shares = Some(shares);
        self.shared_at = self.shared_at.max(self.len());
        let Victim { place, is_noisy } = victim?;
        let open = self.slots.get(place as usize)?.as_deref()?;
        Some((open.key, is_noisy))
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
