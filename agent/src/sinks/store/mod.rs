//! The embedded store: the most recent traces in memory, for the page, the terminal view and the JSON API.
//!
//! The pipeline writes, `crate::http` reads; both through cheap clones of [`Store`]. A write takes one short lock, computes
//! what the filters need and never waits for a reader: readers that fall behind are told to load again.
//! Bounded by number and by estimated bytes; failed traces have a quarter of the room to themselves, so that a busy
//! hour of successes does not push them out. Does not: keep anything on disk, serve HTTP, or know a source.

#![forbid(unsafe_code)]

pub mod network;
pub mod query;
pub mod row;
mod spread;
pub mod traffic;
pub mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use sandglass_correlator::traffic::Traffic;
use sandglass_model::{CniCommand, PodIdentity, RootId, SandboxId, SpanId, Timestamp, Trace, TraceId};
use serde::Serialize;
use tokio::sync::broadcast;

use crate::node::NodeInfo;
use network::{NetworkBook, NetworkView};
use query::{Page, Query};
use row::{Outcome, Row, Subject, TraceKind};
use view::{KnownSandbox, RunningOperation, TraceView};

/// Bounds of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Most traces kept, open ones included.
    pub max_traces: usize,
    /// Most bytes kept, by estimate.
    pub max_bytes: usize,
    /// Most sandboxes older than the agent that are remembered.
    pub max_known: usize,
    /// Changes a reader may lag behind before it is told to load again.
    pub max_lag: usize,
    /// What it is given happened in the past: the hour of traffic ends with the newest, not now.
    pub replayed: bool,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            max_traces: 1_000,
            max_bytes: 10 << 20,
            max_known: 1_000,
            max_lag: 1_024,
            replayed: false,
        }
    }
}

/// The store; cheap to clone, all clones are one store.
#[derive(Clone, Debug)]
pub struct Store(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: StoreOptions,
    node: NodeInfo,
    state: Mutex<State>,
    network: Mutex<NetworkBook>,
    changes: broadcast::Sender<RootId>,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<RootId, Arc<Entry>>,
    /// The same traces in the order they came, by outcome: what to evict next.
    order: BTreeMap<Outcome, BTreeSet<(u64, RootId)>>,
    arrivals: u64,
    bytes: usize,
    evicted: u64,
    known: BTreeMap<SandboxId, Known>,
    known_dropped: u64,
}

#[derive(Clone, Debug)]
struct Known {
    identity: PodIdentity,
    created: Timestamp,
}

/// One trace and what is known of it without looking at every span again.
#[derive(Debug)]
struct Entry {
    trace: Arc<Trace>,
    subject: Subject,
    arrival: u64,
    bytes: usize,
    /// The list row of a closed trace, made when first asked for.
    row: OnceLock<Row>,
}

/// How full the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StoreSize {
    /// Traces kept.
    pub traces: usize,
    /// Of them, open ones.
    pub running: usize,
    /// Of them, created sandboxes whose first traffic is waited for.
    pub waiting: usize,
    /// Of them, failed ones.
    pub failed: usize,
    /// Estimated bytes.
    pub bytes: usize,
    /// Bound on `traces`.
    pub max_traces: usize,
    /// Bound on `bytes`.
    pub max_bytes: usize,
    /// Traces that had to go since the start.
    pub evicted: u64,
    /// Sandboxes older than the agent.
    pub known: usize,
    /// Of them, those there was no room for.
    pub known_dropped: u64,
}

impl Store {
    /// An empty store.
    #[must_use]
    pub fn new(options: StoreOptions, node: NodeInfo) -> Store {
        let (changes, _) = broadcast::channel(options.max_lag.max(1));
        Store(Arc::new(Shared {
            options,
            node,
            state: Mutex::default(),
            network: Mutex::default(),
            changes,
        }))
    }

    /// The node the traces are from.
    #[must_use]
    pub fn node(&self) -> &NodeInfo {
        &self.0.node
    }

    /// Takes a snapshot of an open trace, or a closed trace; replaces what is kept of it. A snapshot that
    /// comes after the trace was closed is stale and passed over, a trace without a root is none.
    pub fn update(&self, trace: impl Into<Arc<Trace>>) {
        let trace: Arc<Trace> = trace.into();
        if trace.spans.is_empty() {
            return;
        }
        let root = trace.root_id();
        {
            let mut state = self.state();
            if !state.put(trace) {
                return;
            }
            state.shrink(&self.0.options);
        }
        // No reader is no error.
        let _ = self.0.changes.send(root);
    }

    /// Remembers a sandbox that is older than the agent, which has no trace, until its DEL succeeds.
    pub fn known(&self, sandbox: SandboxId, identity: PodIdentity, created: Timestamp) {
        let mut state = self.state();
        let room = state.known.len() < self.0.options.max_known;
        if room || state.known.contains_key(&sandbox) {
            state.known.insert(sandbox, Known { identity, created });
        } else {
            state.known_dropped += 1;
        }
    }

    /// Takes one finding about traffic, at a wall-clock time.
    pub fn traffic(&self, traffic: &Traffic, unix_ns: u64) {
        self.network().take(traffic, unix_ns);
    }

    /// The node's traffic, with the journeys that are kept.
    #[must_use]
    pub fn network_view(&self) -> NetworkView {
        let now = wall_ns();
        let until = (!self.0.options.replayed).then_some(now);
        let mut view = self.network().view(now, until);
        let entries: Vec<Arc<Entry>> = self.state().entries.values().cloned().collect();
        view.readiness = network::readiness(&entries, now);
        let mut journeys: Vec<&Arc<Entry>> = entries.iter().filter(|entry| entry.subject.reason.is_some()).collect();
        journeys.sort_by_key(|entry| std::cmp::Reverse((entry.subject.start_unix_ns, entry.arrival)));
        journeys.truncate(MAX_JOURNEYS);
        view.journeys = journeys.into_iter().map(|entry| entry.row_at(now)).collect();
        view
    }

    /// Counts what is known of the traffic: another number, another answer of [`Store::network_view`].
    #[must_use]
    pub fn network_revision(&self) -> u64 {
        self.network().revision()
    }

    /// Traces as they change. A reader that lags gets an error that says by how many, and loads again.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<RootId> {
        self.0.changes.subscribe()
    }

    /// The rows that match, best first, and the counts around them.
    #[must_use]
    pub fn list(&self, query: &Query) -> Page {
        let (entries, known) = {
            let state = self.state();
            (state.entries.values().cloned().collect(), state.known.len())
        };
        query::run(query, entries, known, wall_ns())
    }

    /// The row of one trace.
    #[must_use]
    pub fn row(&self, root: RootId) -> Option<Row> {
        let entry = self.state().entries.get(&root).cloned()?;
        Some(entry.row_at(wall_ns()))
    }

    /// One trace, with every span: the one of this id that has the span, the root or another. Without a span, and where
    /// several have the id: the creation of a sandbox if one is, else the newest.
    #[must_use]
    pub fn trace(&self, id: TraceId, span: Option<SpanId>) -> Option<TraceView> {
        let (entry, family) = {
            let state = self.state();
            let entry = state.find(id, span)?;
            let family = state
                .entries
                .values()
                .filter(|other| view::related(&other.trace, &entry.trace))
                .cloned()
                .collect::<Vec<_>>();
            (entry, family)
        };
        Some(TraceView::new(&entry, &family, wall_ns()))
    }

    /// What runs now, oldest first; an operation older than `stuck_after_ns` is called stuck.
    #[must_use]
    pub fn operations(&self, stuck_after_ns: u64) -> Vec<RunningOperation> {
        let open: Vec<Arc<Entry>> = {
            let state = self.state();
            let running = state.order.get(&Outcome::Running);
            running
                .into_iter()
                .flatten()
                .filter_map(|(_, root)| state.entries.get(root).cloned())
                .collect()
        };
        view::running(&open, wall_ns(), stuck_after_ns)
    }

    /// Sandboxes older than the agent, by id.
    #[must_use]
    pub fn known_sandboxes(&self) -> Vec<KnownSandbox> {
        let state = self.state();
        state
            .known
            .iter()
            .map(|(sandbox, known)| KnownSandbox {
                sandbox: sandbox.clone(),
                identity: known.identity.clone(),
                created_boot_ns: known.created.0,
            })
            .collect()
    }

    /// How full it is.
    #[must_use]
    pub fn size(&self) -> StoreSize {
        let state = self.state();
        let count = |outcome| state.order.get(&outcome).map_or(0, BTreeSet::len);
        StoreSize {
            traces: state.entries.len(),
            running: count(Outcome::Running),
            waiting: count(Outcome::Waiting),
            failed: count(Outcome::Failed),
            bytes: state.bytes,
            max_traces: self.0.options.max_traces,
            max_bytes: self.0.options.max_bytes,
            evicted: state.evicted,
            known: state.known.len(),
            known_dropped: state.known_dropped,
        }
    }

    fn network(&self) -> MutexGuard<'_, NetworkBook> {
        self.0.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete before anything in it can fail.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn put(&mut self, trace: Arc<Trace>) -> bool {
        let root = trace.root_id();
        let mut arrival = self.arrivals;
        if let Some(old) = self.entries.get(&root) {
            if old.trace.closed && !trace.closed {
                return false;
            }
            arrival = old.arrival;
            self.remove(root);
        } else {
            self.arrivals += 1;
        }
        let entry = Entry::new(trace, arrival);
        if entry.subject.command == Some(CniCommand::Del)
            && entry.subject.outcome == Outcome::Ok
            && let Some(sandbox) = &entry.trace.sandbox
        {
            self.known.remove(sandbox);
        }
        self.bytes += entry.bytes;
        self.order
            .entry(entry.subject.outcome)
            .or_default()
            .insert((arrival, root));
        self.entries.insert(root, Arc::new(entry));
        true
    }

    fn find(&self, id: TraceId, span: Option<SpanId>) -> Option<Arc<Entry>> {
        let mut of_id = self.entries.range(RootId::all_of(id)).map(|(_, entry)| entry);
        let found = match span {
            Some(span) => of_id.find(|entry| entry.trace.spans.iter().any(|one| one.id == span)),
            None => of_id.max_by_key(|entry| {
                let Subject {
                    kind, start_unix_ns, ..
                } = entry.subject;
                (kind == TraceKind::Sandbox, start_unix_ns, entry.arrival)
            }),
        };
        found.cloned()
    }

    fn remove(&mut self, root: RootId) {
        if let Some(entry) = self.entries.remove(&root) {
            self.bytes -= entry.bytes;
            if let Some(order) = self.order.get_mut(&entry.subject.outcome) {
                order.remove(&(entry.arrival, root));
            }
        }
    }

    fn shrink(&mut self, options: &StoreOptions) {
        // One trace always stays, however large: the newest is worth more than the bound.
        while self.entries.len() > 1 && (self.entries.len() > options.max_traces || self.bytes > options.max_bytes) {
            let Some(victim) = self.victim(options.max_traces / 4) else {
                return;
            };
            self.remove(victim);
            self.evicted += 1;
        }
    }

    /// The oldest success; the oldest failure when there are more than `failed_share` of them or nothing else is
    /// left; an open trace last, since it will come again with its end.
    fn victim(&self, failed_share: usize) -> Option<RootId> {
        let oldest = |outcome| Some(self.order.get(&outcome)?.first()?.1);
        let failed = self.order.get(&Outcome::Failed).map_or(0, BTreeSet::len);
        let first = if failed > failed_share {
            [Outcome::Failed, Outcome::Ok]
        } else {
            [Outcome::Ok, Outcome::Failed]
        };
        oldest(first[0])
            .or_else(|| oldest(first[1]))
            .or_else(|| oldest(Outcome::Waiting))
            .or_else(|| oldest(Outcome::Running))
    }
}

impl Entry {
    fn new(trace: Arc<Trace>, arrival: u64) -> Entry {
        Entry {
            subject: Subject::of(&trace),
            bytes: row::estimate_bytes(&trace),
            arrival,
            row: OnceLock::new(),
            trace,
        }
    }

    /// The list row at a wall-clock time; that of a closed trace does not depend on it.
    fn row_at(&self, unix_ns: u64) -> Row {
        self.with_row(unix_ns, Row::clone)
    }

    fn with_row<T>(&self, unix_ns: u64, look: impl FnOnce(&Row) -> T) -> T {
        let make = || Row::of(&self.trace, &self.subject, unix_ns);
        if self.trace.closed {
            look(self.row.get_or_init(make))
        } else {
            look(&make())
        }
    }
}

/// Now, in nanoseconds since 1970.
#[must_use]
pub fn wall_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Journeys in the view of the network.
const MAX_JOURNEYS: usize = 30;

#[cfg(test)]
mod tests;
