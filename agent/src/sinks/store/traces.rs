//! The traces that the store keeps, by root, within bounds: which one replaces which, and which one is evicted next.
//!
//! Used by [`super::Store`] under its lock. Kept is by worth, then by age:
//! - An operation or a journey never evicts a sandbox: sandboxes have all of the room but an eighth ([`RESERVED_PART`]).
//! - A bad trace ([`crate::sinks::worth`]) stays longer than a good one, as long as the bad ones take no more than three
//!   quarters of their side: the newest good ones show how it should be. While one pod has more than a quarter of the bad ones,
//!   a quarter of their side. An open trace stays longest, since its end will come in.
//! - Among equals owners share the room ([`super::owners`]), so that a pod that is made again and again does not push out
//!   the others.
//!
//! Does not: lock, notify readers, or render.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_model::{RootId, Trace, TraceId};
use serde::Serialize;

use super::group::{Group, Rank, Side};
use super::index::{TraceIndex, TraceKind, TraceOutcome};
use super::kept::{Content, Kept};
use super::owners::Owners;
use crate::sinks::worth::{Judge, SLOW_NS};

/// Room that traces take, or may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Room {
    traces: usize,
    bytes: usize,
}

impl Room {
    fn exceeds(self, bound: Room) -> bool {
        self.traces > bound.traces || self.bytes > bound.bytes
    }

    fn plus(self, other: Room) -> Room {
        Room {
            traces: self.traces + other.traces,
            bytes: self.bytes + other.bytes,
        }
    }

    /// Without the part that sandboxes leave to operations and journeys.
    fn for_sandboxes(self) -> Room {
        Room {
            traces: self.traces - self.traces / RESERVED_PART,
            bytes: self.bytes - self.bytes / RESERVED_PART,
        }
    }
}

/// Traces evicted since the start, by kind. Bad ones failed, were slow, stalled or retried, are incomplete, have a cause,
/// or were still open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EvictedTraces {
    /// Good sandboxes.
    pub good_sandboxes: u64,
    /// Bad sandboxes.
    pub bad_sandboxes: u64,
    /// Good operations.
    pub good_operations: u64,
    /// Bad operations.
    pub bad_operations: u64,
    /// Journeys.
    pub journeys: u64,
}

impl EvictedTraces {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.good_sandboxes + self.bad_sandboxes + self.good_operations + self.bad_operations + self.journeys
    }

    fn count(&mut self, kind: TraceKind, rank: Rank) {
        let counter = match (kind, rank) {
            (TraceKind::Sandbox, Rank::Good) => &mut self.good_sandboxes,
            (TraceKind::Sandbox, _) => &mut self.bad_sandboxes,
            (TraceKind::Operation, Rank::Good) => &mut self.good_operations,
            (TraceKind::Operation, _) => &mut self.bad_operations,
            (TraceKind::Journey, _) => &mut self.journeys,
        };
        *counter += 1;
    }
}

/// Bounded set of traces.
#[derive(Debug)]
pub(super) struct Traces<R> {
    by_root: BTreeMap<RootId, Arc<Kept<R>>>,
    /// The same traces by worth, owner and arrival: the order of eviction.
    order: BTreeMap<Group, Owners>,
    bytes: BTreeMap<Group, usize>,
    by_outcome: BTreeMap<TraceOutcome, usize>,
    judge: Judge,
    arrivals: u64,
    revisions: u64,
    earlier: usize,
    evicted: EvictedTraces,
}

impl<R> Default for Traces<R> {
    fn default() -> Traces<R> {
        Traces {
            by_root: BTreeMap::new(),
            order: BTreeMap::new(),
            bytes: BTreeMap::new(),
            by_outcome: BTreeMap::new(),
            judge: Judge::new(SLOW_NS),
            arrivals: 0,
            revisions: 0,
            earlier: 0,
            evicted: EvictedTraces::default(),
        }
    }
}

impl<R> Traces<R> {
    /// Inserts a trace or replaces the kept snapshot of it. `None` for an open snapshot of a trace that is closed already:
    /// it is stale. `content` is the trace as it is kept. `earlier`: an earlier run of the agent made it.
    pub(super) fn insert(&mut self, trace: &Trace, content: Content, mut earlier: bool) -> Option<&Kept<R>> {
        let root = trace.root_id();
        let mut arrival = self.arrivals;
        if let Some(old) = self.by_root.get(&root) {
            if old.is_closed() && !trace.closed {
                return None;
            }
            arrival = old.arrival;
            earlier |= old.earlier;
            self.remove(root);
        } else {
            self.arrivals += 1;
        }
        let bad = trace.closed && self.judge.judge(trace).is_some();
        self.revisions += 1;
        let index = TraceIndex::of(trace);
        let group = Group::of(&index, bad);
        let kept = Kept::new(index, content, group, arrival, self.revisions, earlier);
        self.earlier += usize::from(earlier);
        *self.bytes.entry(kept.group).or_default() += kept.bytes;
        *self.by_outcome.entry(kept.index.outcome).or_default() += 1;
        let order = self.order.entry(kept.group).or_default();
        order.insert(&kept.index, arrival);
        Some(self.by_root.entry(root).or_insert(Arc::new(kept)))
    }

    /// Evicts until both bounds hold. One trace always stays, however large: the newest is worth more than the bound.
    pub(super) fn shrink(&mut self, max_traces: usize, max_bytes: usize) {
        let bound = Room {
            traces: max_traces,
            bytes: max_bytes,
        };
        while let Some(victim) = self.victim(bound) {
            if let Some(kept) = self.remove(victim) {
                self.evicted.count(kept.index.kind, kept.group.rank);
            }
        }
    }

    /// The trace to evict next; `None` while all bounds hold, or for the last trace.
    fn victim(&self, bound: Room) -> Option<RootId> {
        let [others, sandboxes] = [Side::Others, Side::Sandboxes].map(|side| self.room(side, None));
        let all = others.plus(sandboxes);
        if all.traces <= 1 {
            return None;
        }
        if sandboxes.traces > 1 && sandboxes.exceeds(bound.for_sandboxes()) {
            let by_bytes = sandboxes.traces <= bound.for_sandboxes().traces;
            return self.victim_of(Side::Sandboxes, by_bytes);
        }
        if !all.exceeds(bound) {
            return None;
        }
        let by_bytes = all.traces <= bound.traces;
        self.victim_of(Side::Others, by_bytes)
            .or_else(|| self.victim_of(Side::Sandboxes, by_bytes))
    }

    /// A good trace; a bad one when they take too large a part of their side, or no good one is left. One pod that goes
    /// wrong again and again has a part of its own, which is smaller.
    fn victim_of(&self, side: Side, by_bytes: bool) -> Option<RootId> {
        let measure = |room: Room| if by_bytes { room.bytes } else { room.traces };
        let bad = measure(self.room(side, Some(Rank::Bad)));
        let all = measure(self.room(side, None));
        let of_rank = |rank| self.order.get(&Group { side, rank });
        let oldest = |rank| of_rank(rank)?.next_victim();
        let exceeds = |parts: usize| bad.saturating_mul(PARTS) > all.saturating_mul(parts);
        let too_many = if exceeds(BAD_PARTS) {
            oldest(Rank::Bad)
        } else if exceeds(NOISY_PARTS) {
            of_rank(Rank::Bad).and_then(Owners::noisy_victim)
        } else {
            None
        };
        let ranks = [Rank::Good, Rank::Bad, Rank::Waiting, Rank::Running];
        too_many.or_else(|| ranks.into_iter().find_map(oldest))
    }

    /// What the traces of a side take, or those of one rank of it.
    fn room(&self, side: Side, rank: Option<Rank>) -> Room {
        let fits = |group: &Group| group.side == side && rank.is_none_or(|rank| rank == group.rank);
        Room {
            traces: self
                .order
                .iter()
                .filter(|(group, _)| fits(group))
                .map(|(_, of)| of.len())
                .sum(),
            bytes: self
                .bytes
                .iter()
                .filter(|(group, _)| fits(group))
                .map(|(_, of)| of)
                .sum(),
        }
    }

    fn remove(&mut self, root: RootId) -> Option<Arc<Kept<R>>> {
        let kept = self.by_root.remove(&root)?;
        self.earlier -= usize::from(kept.earlier);
        if let Some(bytes) = self.bytes.get_mut(&kept.group) {
            *bytes -= kept.bytes;
        }
        if let Some(count) = self.by_outcome.get_mut(&kept.index.outcome) {
            *count -= 1;
        }
        if let Some(order) = self.order.get_mut(&kept.group) {
            order.remove(&kept.index, kept.arrival);
        }
        Some(kept)
    }

    pub(super) fn get(&self, root: RootId) -> Option<Arc<Kept<R>>> {
        self.by_root.get(&root).cloned()
    }

    /// All of them, by root.
    pub(super) fn all(&self) -> Vec<Arc<Kept<R>>> {
        self.by_root.values().cloned().collect()
    }

    /// Closed ones, in order of arrival.
    pub(super) fn closed(&self) -> Vec<Arc<Kept<R>>> {
        let closed = self.by_root.values().filter(|kept| kept.is_closed());
        let mut closed: Vec<_> = closed.cloned().collect();
        closed.sort_unstable_by_key(|kept| kept.arrival);
        closed
    }

    /// Those that run, in order of arrival.
    pub(super) fn running(&self) -> Vec<Arc<Kept<R>>> {
        let groups = self.order.iter().filter(|(group, _)| group.rank == Rank::Running);
        let roots = groups.flat_map(|(_, owners)| owners.roots());
        let mut running: Vec<_> = roots.filter_map(|root| self.get(root)).collect();
        running.sort_unstable_by_key(|kept| kept.arrival);
        running
    }

    /// Those with this id.
    pub(super) fn all_of(&self, id: TraceId) -> Vec<Arc<Kept<R>>> {
        let of_id = self.by_root.range(RootId::all_of(id));
        of_id.map(|(_, kept)| Arc::clone(kept)).collect()
    }

    /// Those that an earlier run of the agent made.
    pub(super) fn earlier(&self) -> usize {
        self.earlier
    }

    pub(super) fn len(&self) -> usize {
        self.by_root.len()
    }

    pub(super) fn count(&self, outcome: TraceOutcome) -> usize {
        self.by_outcome.get(&outcome).copied().unwrap_or_default()
    }

    /// Estimated bytes of all of them.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.values().sum()
    }

    /// Traces evicted since the start.
    pub(super) fn evicted(&self) -> EvictedTraces {
        self.evicted
    }

    /// Panics unless the counts, the byte counts and the order of eviction agree with the traces.
    #[cfg(test)]
    pub(super) fn assert_consistent(&self) {
        let bytes: usize = self.by_root.values().map(|kept| kept.bytes).sum();
        let ordered: usize = self.order.values().map(Owners::len).sum();
        let counted: usize = self.by_outcome.values().sum();
        let traces = self.by_root.len();
        assert_eq!((bytes, ordered, counted), (self.bytes(), traces, traces));
        let earlier = self.by_root.values().filter(|kept| kept.earlier).count();
        assert_eq!(earlier, self.earlier);
    }
}

/// Sandboxes leave this part of the room to operations and journeys.
const RESERVED_PART: usize = 8;
/// Parts of what the traces of a side take.
const PARTS: usize = 4;
/// Parts that bad traces may take.
const BAD_PARTS: usize = 3;
/// Parts that they may take while one pod has more than a quarter of them.
const NOISY_PARTS: usize = 1;
