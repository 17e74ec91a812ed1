//! The embedded store: the most recent traces and the last hour of traffic, in memory; the traces also on disk, where that is configured (`disk.rs`).
//!
//! The pipeline writes, [`crate::view`] reads and renders; both through cheap clones of [`Store`]. A write takes one short
//! lock, computes what filters compare and never waits for a reader: a reader that lags receives an error and loads again.
//! Bounded by number and by estimated bytes ([`StoreOptions`]); what goes first is decided by worth (`traces.rs`).
//! Does not: wait for a disk, render, serve HTTP, or know a source.

#![forbid(unsafe_code)]

pub mod disk;
mod group;
pub mod hour;
pub mod index;
mod kept;
mod names;
mod owners;
mod size;
mod traces;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use prometheus_client::registry::Registry;
use sandglass_correlator::finding::Finding;
use sandglass_model::{CniCommand, PodIdentity, RootId, SandboxId, SpanId, Timestamp, Trace, TraceId};
use serde::Serialize;
use tokio::sync::broadcast;

use crate::node::NodeInfo;
use crate::sinks::journal::Journal;
use disk::{DiskStatus, StoreDisk};
use hour::TrafficHour;
use index::{TraceIndex, TraceKind, TraceOutcome};
use kept::{Content, Packer};
use traces::Traces;

pub use kept::Kept;
pub use traces::EvictedTraces;

/// Bounds of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Most traces kept, open ones included.
    pub max_traces: usize,
    /// Most bytes kept, by estimate.
    pub max_bytes: usize,
    /// Most sandboxes older than the agent that are kept.
    pub max_known: usize,
    /// Changes by which a reader may lag before it has to load again.
    pub max_lag: usize,
    /// The traces are from a recording: the hour of traffic ends with its newest finding, not now.
    pub replayed: bool,
}

impl StoreOptions {
    /// Bounds on a node. `max_traces` is the configured bound, the others are constants.
    #[must_use]
    pub fn live(max_traces: usize) -> StoreOptions {
        StoreOptions {
            max_traces,
            max_bytes: MAX_BYTES,
            max_known: MAX_KNOWN,
            max_lag: MAX_LAG,
            replayed: false,
        }
    }

    /// No bounds: a replay shows all that its recording holds.
    #[must_use]
    pub fn replay() -> StoreOptions {
        StoreOptions {
            max_traces: usize::MAX,
            max_bytes: usize::MAX,
            max_known: usize::MAX,
            max_lag: MAX_LAG,
            replayed: true,
        }
    }
}

/// The store; cheap to clone, all clones are one store. `R` is what readers derive from closed traces, see [`Kept`].
#[derive(Debug)]
pub struct Store<R>(Arc<Shared<R>>);

#[derive(Debug)]
struct Shared<R> {
    /// As at the start; `max_traces` beside it is the bound in force.
    options: StoreOptions,
    max_traces: AtomicUsize,
    node: NodeInfo,
    packer: Packer,
    state: Mutex<StoreState<R>>,
    hour: Mutex<TrafficHour>,
    changes: broadcast::Sender<RootId>,
    /// Empty where the traces are in memory only.
    disk: OnceLock<StoreDisk>,
}

#[derive(Debug)]
struct StoreState<R> {
    traces: Traces<R>,
    known: BTreeMap<SandboxId, OlderSandbox>,
    known_dropped: u64,
}

/// A sandbox older than the agent.
#[derive(Clone, Debug)]
pub struct OlderSandbox {
    /// Its pod.
    pub identity: PodIdentity,
    /// When the runtime says it was created.
    pub created: Timestamp,
}

/// How full the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StoreSize {
    /// Traces kept.
    pub traces: usize,
    /// Open ones among them.
    pub running: usize,
    /// Created sandboxes among them whose first traffic is pending.
    pub waiting: usize,
    /// Failed ones among them.
    pub failed: usize,
    /// Estimated bytes.
    pub bytes: usize,
    /// Bound on `traces`.
    pub max_traces: usize,
    /// Bound on `bytes`.
    pub max_bytes: usize,
    /// Traces evicted since the start.
    pub evicted: u64,
    /// The same, by kind.
    pub evicted_kinds: EvictedTraces,
    /// Traces kept that an earlier run of the agent made.
    pub earlier: usize,
    /// Sandboxes older than the agent.
    pub known: usize,
    /// Sandboxes older than the agent for which there was no room.
    pub known_dropped: u64,
}

impl<R> Clone for Store<R> {
    fn clone(&self) -> Store<R> {
        Store(Arc::clone(&self.0))
    }
}

impl<R> Store<R> {
    /// An empty store.
    #[must_use]
    pub fn new(options: StoreOptions, node: NodeInfo) -> Store<R> {
        let (changes, _) = broadcast::channel(options.max_lag.max(1));
        Store(Arc::new(Shared {
            max_traces: AtomicUsize::new(options.max_traces),
            // A replay has no bound, and its readers look at all of it.
            packer: Packer::new(!options.replayed),
            options,
            node,
            state: Mutex::new(StoreState {
                traces: Traces::default(),
                known: BTreeMap::new(),
                known_dropped: 0,
            }),
            hour: Mutex::default(),
            changes,
            disk: OnceLock::new(),
        }))
    }

    /// The node the traces are from.
    #[must_use]
    pub fn node(&self) -> &NodeInfo {
        &self.0.node
    }

    /// Inserts a snapshot of an open trace, or a closed trace; replaces what is kept of it. Ignores an open snapshot that
    /// comes after the closed trace, and a trace without a root.
    pub fn update(&self, trace: impl Into<Arc<Trace>>) {
        let trace = trace.into();
        let content = self.0.packer.content(&trace);
        self.insert(&trace, content, Origin::ThisRun);
    }

    /// Inserts a trace of an earlier run of the agent, as [`Store::update`] does. One that is kept already stays as it is.
    pub fn restore(&self, trace: impl Into<Arc<Trace>>) {
        let trace = trace.into();
        // Who restores may give way to others, and must not keep `update` waiting for the packer meanwhile.
        let content = Packer::new(!self.0.options.replayed).content(&trace);
        self.insert(&trace, content, Origin::EarlierRun);
    }

    /// The same of a closed trace, with its content as the store's file has it.
    fn restore_packed(&self, trace: &Trace, content: Vec<u8>) {
        self.insert(trace, Content::Packed(content.into()), Origin::EarlierRun);
    }

    fn insert(&self, trace: &Trace, content: Content, origin: Origin) {
        if trace.spans.is_empty() {
            return;
        }
        let (root, closed) = (trace.root_id(), trace.closed);
        {
            let StoreState { traces, known, .. } = &mut *self.state();
            let earlier = origin == Origin::EarlierRun;
            // Newer than what an earlier run wrote of it.
            if earlier && traces.get(root).is_some() {
                // The journal waits to hear that it is on disk.
                if closed && let Some(disk) = self.0.disk.get() {
                    disk.changed();
                }
                return;
            }
            let Some(kept) = traces.insert(trace, content, earlier) else {
                return;
            };
            if kept.index.command == Some(CniCommand::Del)
                && kept.index.outcome == TraceOutcome::Ok
                && let Some(sandbox) = &kept.index.sandbox
            {
                known.remove(sandbox);
            }
            traces.shrink(self.max_traces(), self.0.options.max_bytes);
        }
        // Fails only when nobody has subscribed.
        let _ = self.0.changes.send(root);
        if closed && let Some(disk) = self.0.disk.get() {
            disk.changed();
        }
    }

    /// Replaces the bound on traces, and evicts what is beyond it.
    pub fn set_max_traces(&self, max_traces: usize) {
        self.0.max_traces.store(max_traces, Ordering::Relaxed);
        self.state().traces.shrink(max_traces, self.0.options.max_bytes);
    }

    fn max_traces(&self) -> usize {
        self.0.max_traces.load(Ordering::Relaxed)
    }

    /// Keeps a sandbox that is older than the agent, and so has no trace, until its DEL succeeds.
    pub fn known(&self, sandbox: SandboxId, identity: PodIdentity, created: Timestamp) {
        let StoreState {
            known, known_dropped, ..
        } = &mut *self.state();
        if known.len() < self.0.options.max_known || known.contains_key(&sandbox) {
            known.insert(sandbox, OlderSandbox { identity, created });
        } else {
            *known_dropped += 1;
        }
    }

    /// Records one finding about traffic, at a wall-clock time.
    pub fn traffic(&self, traffic: &Finding, unix_ns: u64) {
        self.hour().record(traffic, unix_ns);
    }

    /// Reads the last hour of traffic, under its lock.
    pub fn read_hour<T>(&self, read: impl FnOnce(&TrafficHour) -> T) -> T {
        read(&self.hour())
    }

    /// Number of findings about traffic so far: it changes when [`Store::read_hour`] would read something else.
    #[must_use]
    pub fn network_revision(&self) -> u64 {
        self.hour().revision()
    }

    /// The traces are from a recording.
    #[must_use]
    pub fn is_replayed(&self) -> bool {
        self.0.options.replayed
    }

    /// Receives the root of each trace that changes. A receiver that lags gets an error with the number of missed changes,
    /// and has to load again.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<RootId> {
        self.0.changes.subscribe()
    }

    /// Closed traces, in order of arrival.
    fn closed(&self) -> Vec<Arc<Kept<R>>> {
        self.state().traces.closed()
    }

    /// All traces, by root.
    #[must_use]
    pub fn traces(&self) -> Vec<Arc<Kept<R>>> {
        self.state().traces.all()
    }

    /// Traces that run, in order of arrival.
    #[must_use]
    pub fn running(&self) -> Vec<Arc<Kept<R>>> {
        self.state().traces.running()
    }

    /// The trace with this root.
    #[must_use]
    pub fn get(&self, root: RootId) -> Option<Arc<Kept<R>>> {
        self.state().traces.get(root)
    }

    /// The trace with this id that has the span, as its root or below. Without a span, and if several traces have the id:
    /// the creation of a sandbox, else the newest.
    #[must_use]
    pub fn find(&self, id: TraceId, span: Option<SpanId>) -> Option<Arc<Kept<R>>> {
        // Traces are unpacked without the lock, which the pipeline takes.
        let of_id = self.state().traces.all_of(id);
        let Some(span) = span else {
            return of_id.into_iter().max_by_key(|kept| {
                let TraceIndex {
                    kind, start_unix_ns, ..
                } = kept.index;
                (kind == TraceKind::Sandbox, start_unix_ns, kept.arrival)
            });
        };
        let is_root = of_id.iter().position(|kept| kept.index.root.span == span);
        let has_span = |kept: &Arc<Kept<R>>| {
            let trace = kept.trace();
            trace.is_some_and(|trace| trace.spans.iter().any(|one| one.id == span))
        };
        let found = is_root.or_else(|| of_id.iter().position(has_span))?;
        Some(Arc::clone(&of_id[found]))
    }

    /// Sandboxes older than the agent.
    #[must_use]
    pub fn known_sandboxes(&self) -> BTreeMap<SandboxId, OlderSandbox> {
        self.state().known.clone()
    }

    /// How full the store is.
    #[must_use]
    pub fn size(&self) -> StoreSize {
        let StoreState {
            traces,
            known,
            known_dropped,
        } = &*self.state();
        StoreSize {
            traces: traces.len(),
            running: traces.count(TraceOutcome::Running),
            waiting: traces.count(TraceOutcome::Waiting),
            failed: traces.count(TraceOutcome::Failed),
            bytes: traces.bytes(),
            max_traces: self.max_traces(),
            max_bytes: self.0.options.max_bytes,
            evicted: traces.evicted().total(),
            evicted_kinds: traces.evicted(),
            earlier: traces.earlier(),
            known: known.len(),
            known_dropped: *known_dropped,
        }
    }

    /// The store's files; `None` where it is in memory only.
    #[must_use]
    pub fn disk(&self) -> Option<DiskStatus> {
        self.0.disk.get().map(StoreDisk::status)
    }

    /// Registers the metrics of the store's files, if there are any.
    pub fn register(&self, registry: &mut Registry) {
        if let Some(disk) = self.0.disk.get() {
            disk.register(registry);
        }
    }

    /// Writes what is left to write into the store's files, if there are any, and ends their thread. Blocks.
    pub fn stop(&self) {
        if let Some(disk) = self.0.disk.get() {
            disk.stop();
        }
    }

    fn hour(&self) -> MutexGuard<'_, TrafficHour> {
        self.0.hour.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, StoreState<R>> {
        // A panic cannot leave the state half changed: nothing between the parts of a change can fail.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Send + Sync + 'static> Store<R> {
    /// Keeps closed traces in `directory`, which is the spool's, and shows those that are there. What is written leaves `journal`, which lies
    /// beside it. Does not wait for the disk. The first call counts.
    pub fn keep_on_disk(&self, directory: &Path, journal: Option<Journal>) {
        self.0
            .disk
            .get_or_init(|| StoreDisk::start(self.clone(), directory, journal));
    }
}

/// Which run of the agent made a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    ThisRun,
    EarlierRun,
}

/// Most bytes kept on a node, by estimate: a part of the agent's memory budget (bench/BUDGETS.md). About a thousand traces.
const MAX_BYTES: usize = 4 << 20;
/// Most sandboxes older than the agent kept on a node; a kubelet runs 110 pods by default.
const MAX_KNOWN: usize = 1_000;
/// Changes by which a reader may lag.
const MAX_LAG: usize = 1_024;

#[cfg(test)]
mod tests;
