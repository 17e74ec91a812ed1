//! The traces that the store keeps, by root, within bounds: which one replaces which, and which one is evicted next.
//!
//! Used by [`super::Store`] under its lock. Failed traces have a quarter of the room to themselves, so that a busy hour of
//! successes does not push them out; owners share the room ([`super::owners`]), so that a pod that is made again and again does
//! not push out the others. Does not: lock, notify readers, or render.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use sandglass_model::{RootId, SpanId, Trace, TraceId};

use super::index::{TraceIndex, TraceKind, TraceOutcome};
use super::owners::Owners;
use super::size;

/// One trace that is kept. `R` is what readers derive from a closed trace; it lives as long as the trace is kept.
#[derive(Debug)]
pub struct Kept<R> {
    /// The trace.
    pub trace: Arc<Trace>,
    /// What filters compare.
    pub index: TraceIndex,
    /// Position in the order in which traces first came in.
    pub arrival: u64,
    bytes: usize,
    derived: OnceLock<R>,
}

impl<R> Kept<R> {
    fn new(trace: Arc<Trace>, arrival: u64) -> Kept<R> {
        Kept {
            index: TraceIndex::of(&trace),
            bytes: size::estimate(&trace),
            arrival,
            derived: OnceLock::new(),
            trace,
        }
    }

    /// Reads what `make` derives from the trace: once for a closed trace, anew on each call for an open one, which changes
    /// and whose times depend on the clock.
    pub fn derived<T>(&self, make: impl FnOnce() -> R, read: impl FnOnce(&R) -> T) -> T {
        if self.trace.closed {
            read(self.derived.get_or_init(make))
        } else {
            read(&make())
        }
    }
}

/// Bounded set of traces.
#[derive(Debug)]
pub(super) struct Traces<R> {
    by_root: BTreeMap<RootId, Arc<Kept<R>>>,
    /// The same traces by outcome, owner and arrival: the order of eviction.
    order: BTreeMap<TraceOutcome, Owners>,
    arrivals: u64,
    bytes: usize,
    evicted: u64,
}

impl<R> Default for Traces<R> {
    fn default() -> Traces<R> {
        Traces {
            by_root: BTreeMap::new(),
            order: BTreeMap::new(),
            arrivals: 0,
            bytes: 0,
            evicted: 0,
        }
    }
}

impl<R> Traces<R> {
    /// Inserts a trace or replaces the kept snapshot of it. `None` for an open snapshot of a trace that is closed already:
    /// it is stale.
    pub(super) fn insert(&mut self, trace: Arc<Trace>) -> Option<&Kept<R>> {
        let root = trace.root_id();
        let mut arrival = self.arrivals;
        if let Some(old) = self.by_root.get(&root) {
            if old.trace.closed && !trace.closed {
                return None;
            }
            arrival = old.arrival;
            self.remove(root);
        } else {
            self.arrivals += 1;
        }
        let kept = Kept::new(trace, arrival);
        self.bytes += kept.bytes;
        let order = self.order.entry(kept.index.outcome).or_default();
        order.insert(&kept.trace, arrival);
        Some(self.by_root.entry(root).or_insert(Arc::new(kept)))
    }

    /// Evicts until both bounds hold. One trace always stays, however large: the newest is worth more than the bound.
    pub(super) fn shrink(&mut self, max_traces: usize, max_bytes: usize) {
        while self.by_root.len() > 1 && (self.by_root.len() > max_traces || self.bytes > max_bytes) {
            let Some(victim) = self.victim(max_traces / 4) else {
                return;
            };
            self.remove(victim);
            self.evicted += 1;
        }
    }

    /// A success; a failure when there are more than `failed_share` failures or no success is left; an open trace last, since
    /// its end will come in.
    fn victim(&self, failed_share: usize) -> Option<RootId> {
        let oldest = |outcome| self.order.get(&outcome)?.next_victim();
        let first = if self.count(TraceOutcome::Failed) > failed_share {
            [TraceOutcome::Failed, TraceOutcome::Ok]
        } else {
            [TraceOutcome::Ok, TraceOutcome::Failed]
        };
        oldest(first[0])
            .or_else(|| oldest(first[1]))
            .or_else(|| oldest(TraceOutcome::Waiting))
            .or_else(|| oldest(TraceOutcome::Running))
    }

    fn remove(&mut self, root: RootId) {
        if let Some(kept) = self.by_root.remove(&root) {
            self.bytes -= kept.bytes;
            if let Some(order) = self.order.get_mut(&kept.index.outcome) {
                order.remove(&kept.trace, kept.arrival);
            }
        }
    }

    pub(super) fn get(&self, root: RootId) -> Option<Arc<Kept<R>>> {
        self.by_root.get(&root).cloned()
    }

    /// All of them, by root.
    pub(super) fn all(&self) -> Vec<Arc<Kept<R>>> {
        self.by_root.values().cloned().collect()
    }

    /// Those that run, in order of arrival.
    pub(super) fn running(&self) -> Vec<Arc<Kept<R>>> {
        let roots = self.order.get(&TraceOutcome::Running).map(Owners::oldest_first);
        roots.into_iter().flatten().filter_map(|root| self.get(root)).collect()
    }

    /// The trace with this id that has the span. Without a span, and if several have the id: the creation of a sandbox,
    /// else the newest.
    pub(super) fn find(&self, id: TraceId, span: Option<SpanId>) -> Option<Arc<Kept<R>>> {
        let mut of_id = self.by_root.range(RootId::all_of(id)).map(|(_, kept)| kept);
        let found = match span {
            Some(span) => of_id.find(|kept| kept.trace.spans.iter().any(|one| one.id == span)),
            None => of_id.max_by_key(|kept| {
                let TraceIndex {
                    kind, start_unix_ns, ..
                } = kept.index;
                (kind == TraceKind::Sandbox, start_unix_ns, kept.arrival)
            }),
        };
        found.cloned()
    }

    pub(super) fn len(&self) -> usize {
        self.by_root.len()
    }

    pub(super) fn count(&self, outcome: TraceOutcome) -> usize {
        self.order.get(&outcome).map_or(0, Owners::len)
    }

    /// Estimated bytes of all of them.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Traces evicted since the start.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Panics unless the byte count and the order of eviction agree with the traces.
    #[cfg(test)]
    pub(super) fn assert_consistent(&self) {
        let bytes: usize = self.by_root.values().map(|kept| kept.bytes).sum();
        let ordered: usize = self.order.values().map(Owners::len).sum();
        assert_eq!((bytes, ordered), (self.bytes, self.by_root.len()));
    }
}
