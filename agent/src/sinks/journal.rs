//! The journal of open traces: what a restarted agent knows of the sandboxes that were open when its predecessor was killed.
//!
//! Used by the composition root where `otlp.spool_directory` is set, with a collector or without one; its files lie beside the spool's. A trace is
//! in it from the first snapshot on until others keep it ([`Keeper`]): with a collector until the request that holds it is sealed, which the spool keeps from
//! then on, so that the batch that waits for others (`otlp.batch_delay_ms`) survives too; without one until the store has written it.
//! The pipeline, the batching task and the store's thread leave changes here and never wait; a thread
//! writes them, at once for a new or closed trace, and at most every [`PAUSE`] for one that goes on, a large one less often. When nothing changes, nothing
//! is written. At its start the thread delivers what it finds: a trace that was closed as it is, one that was open as interrupted
//! (`interrupted.rs`), with its own ids either way, and keeps it until it is in a request.
//! Bounded by bytes of compressed content ([`LIVE_BYTES`]); what has no room is counted. Where the directory cannot be used, the journal is
//! tried again every 30 s. Does not: count traces in product metrics, fsync, or survive the directory.

mod interrupted;
mod metrics;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;
use sandglass_model::{ClockAnchor, RootId, SandboxId, Span, Timestamp, Trace};
use serde::Serialize;

use self::metrics::JournalMetrics;
use crate::scheduling;
use crate::sinks::disk::content::{Encoder, SEEN, decode};
use crate::sinks::disk::directory::JOURNAL;
use crate::sinks::disk::format::{FILE_HEADER, Record};
use crate::sinks::disk::log::{Live, OPEN_AGAIN, TraceLog};

/// Receives what an earlier process left, from the journal's thread.
pub type Deliver = Box<dyn Fn(Arc<Trace>) + Send>;

/// Where a journal lies, and its clocks.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// The spool's directory.
    pub directory: PathBuf,
    /// Reads both clocks of the node.
    pub clock: fn() -> ClockAnchor,
}

/// Who keeps a closed trace in the end, so that the journal need not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// The OTLP sink: it reports each trace by [`Journal::gone`].
    Export,
    /// The store on disk: it reports what it has seen by [`Journal::kept`].
    Store,
}

/// The journal's state, for the health report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JournalStatus {
    /// Traces in it.
    pub traces: i64,
    /// Bytes of the file in use.
    pub bytes: i64,
    /// Traces that were open when an earlier run was killed, since the start.
    pub interrupted: u64,
    /// Traces that could not be used, and writes without room.
    pub lost: u64,
    /// Files of a newer format or not readable, which are left alone.
    pub left_alone: i64,
    /// Why nothing is written.
    pub problem: Option<String>,
}

/// The journal; cheap to clone, all clones are one.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    keeper: Keeper,
    state: Mutex<Changes>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    metrics: JournalMetrics,
}

/// What the thread has not seen yet.
#[derive(Debug, Default)]
struct Changes {
    of: BTreeMap<RootId, Change>,
    /// Sandboxes that the runtime has, or for which a plugin runs, although they are older than this process.
    existing: BTreeSet<SandboxId>,
    /// Closed traces that the store has and may not have written. At most [`MAX_CHANGES`]: beyond that a kill can lose those of its last second.
    closed: BTreeSet<RootId>,
    /// What an earlier run left was delivered: nobody waits for those any more.
    settled: bool,
    /// Why nothing is written.
    problem: Option<String>,
    stopping: bool,
}

/// The newest change of a trace.
#[derive(Clone, Debug)]
enum Change {
    /// It is like this now.
    Put(Arc<Trace>),
    /// Others keep it, or nobody will.
    Gone,
}

impl Journal {
    /// A journal that is not written yet.
    #[must_use]
    pub fn new(keeper: Keeper) -> Journal {
        Journal(Arc::new(Shared {
            keeper,
            state: Mutex::default(),
            changed: Condvar::new(),
            thread: Mutex::default(),
            metrics: JournalMetrics::default(),
        }))
    }

    /// Registers the journal's metrics.
    pub fn register(&self, registry: &mut Registry) {
        self.0.metrics.register(registry);
    }

    /// Starts the thread. What it finds goes to `deliver`; a sandbox whose fate is not known waits `patience` for the runtime to list
    /// it. Without a thread, which is logged, nothing is kept.
    pub fn start(&self, options: &JournalOptions, patience: Duration, deliver: Deliver) {
        let writer = self.writer(options, patience, deliver);
        match Builder::new().name("journal".to_owned()).spawn(move || writer.run()) {
            Ok(thread) => *lock(&self.0.thread) = Some(thread),
            Err(error) => self.set_problem(Some(format!("cannot start the thread: {error}"))),
        }
    }

    fn writer(&self, options: &JournalOptions, patience: Duration, deliver: Deliver) -> Writer {
        Writer {
            journal: self.clone(),
            options: options.clone(),
            patience,
            deliver,
            files: None,
            whole: false,
            retry_at: None,
            live: Live::new(),
            live_bytes: 0,
            rests: BTreeMap::new(),
            pending: BTreeMap::new(),
            found: Vec::new(),
        }
    }

    /// A trace is like this now. Never blocks on a disk.
    pub fn put(&self, trace: &Arc<Trace>) {
        if trace.spans.is_empty() {
            return;
        }
        // What an earlier run left of this sandbox goes on here.
        let found_running = |span: &Span| span.process().is_some_and(|process| process.found_running);
        if !trace.closed
            && let Some(sandbox) = &trace.sandbox
            && trace.spans.iter().any(found_running)
        {
            self.exists(sandbox);
        }
        self.change(trace.root_id(), Change::Put(Arc::clone(trace)));
    }

    /// The store has this closed trace now, and writes it later. Ignored where the OTLP sink is the keeper, which knows the trace itself.
    pub fn close(&self, trace: &Arc<Trace>) {
        if self.0.keeper != Keeper::Store {
            return;
        }
        // Before what it says is marked: a mark without a record would remove nothing.
        self.put(trace);
        let mut state = lock(&self.0.state);
        match state.closed.len() < MAX_CHANGES {
            true => drop(state.closed.insert(trace.root_id())),
            false => {
                drop(state);
                self.gone(trace.root_id());
            }
        }
    }

    /// The closed traces that the store has at this moment: to be read before the store is, and passed to [`Journal::kept`].
    pub(in crate::sinks) fn closed(&self) -> Vec<RootId> {
        lock(&self.0.state).closed.iter().copied().collect()
    }

    /// The store has written these, or cannot: it is tried again by the store, not kept here, where open traces need the room.
    pub(in crate::sinks) fn kept(&self, closed: Vec<RootId>) {
        for root in closed {
            lock(&self.0.state).closed.remove(&root);
            self.gone(root);
        }
    }

    /// A trace is in a sealed request, or will not be sent.
    pub fn gone(&self, root: RootId) {
        self.change(root, Change::Gone);
    }

    /// The runtime has this sandbox, which is older than this process, or a plugin for it runs.
    pub fn exists(&self, sandbox: &SandboxId) {
        let mut state = lock(&self.0.state);
        if !state.settled && state.existing.len() < MAX_CHANGES {
            state.existing.insert(sandbox.clone());
            self.0.changed.notify_one();
        }
    }

    /// Writes what is left to write, and ends the thread. Blocks.
    pub fn stop(&self) {
        lock(&self.0.state).stopping = true;
        self.0.changed.notify_one();
        if let Some(thread) = lock(&self.0.thread).take()
            && thread.join().is_err()
        {
            tracing::error!("the journal's thread panicked");
        }
    }

    /// Status now.
    #[must_use]
    pub fn status(&self) -> JournalStatus {
        let metrics = &self.0.metrics;
        JournalStatus {
            traces: metrics.traces.get(),
            bytes: metrics.bytes.get(),
            interrupted: metrics.interrupted.get(),
            lost: metrics.corrupt.get() + metrics.unwritten.get(),
            left_alone: metrics.skipped.get(),
            problem: lock(&self.0.state).problem.clone(),
        }
    }

    fn change(&self, root: RootId, change: Change) {
        let mut state = lock(&self.0.state);
        // Only while the disk hangs. What is left out is delivered again after a restart, or not at all.
        if state.of.len() >= MAX_CHANGES && !state.of.contains_key(&root) {
            self.0.metrics.unwritten.inc();
            return;
        }
        state.of.insert(root, change);
        drop(state);
        self.0.changed.notify_one();
    }

    /// Keeps the problem and logs a change of it.
    fn set_problem(&self, problem: Option<String>) {
        let mut state = lock(&self.0.state);
        if state.problem == problem {
            return;
        }
        self.0.metrics.failing.set(i64::from(problem.is_some()));
        match &problem {
            Some(problem) => tracing::warn!(%problem, "the journal of open traces is not usable: a kill loses them"),
            None => tracing::info!("the journal of open traces is usable again"),
        }
        state.problem = problem;
    }
}

/// A trace that an earlier process left open.
struct Found {
    trace: Trace,
    seen: Timestamp,
    due: Instant,
}

/// State of the thread.
struct Writer {
    journal: Journal,
    options: JournalOptions,
    patience: Duration,
    deliver: Deliver,
    files: Option<TraceLog>,
    /// The file in use holds what is live, and its last record is whole.
    whole: bool,
    /// Not before this are files opened or begun anew.
    retry_at: Option<Instant>,
    live: Live,
    live_bytes: usize,
    /// Before this an open trace is not written again.
    rests: BTreeMap<RootId, Instant>,
    pending: BTreeMap<RootId, Change>,
    found: Vec<Found>,
}

impl Writer {
    fn run(mut self) {
        // It works because a plugin runs, and has time.
        scheduling::give_way();
        self.open_files();
        loop {
            let stopping = self.wait();
            let now = Instant::now();
            if self.retry_at.is_some_and(|at| at <= now || stopping) {
                self.open_files();
            }
            self.write(now, stopping);
            if stopping {
                return;
            }
            self.deliver_found(now);
        }
    }

    /// Waits for a change, or until something is due; takes the changes. True if this is the last time.
    fn wait(&mut self) -> bool {
        let due = self.next_due();
        let shared = Arc::clone(&self.journal.0);
        let mut state = lock(&shared.state);
        loop {
            let exists = self.found.iter().any(|found| is_among(&found.trace, &state.existing));
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            if state.stopping || exists || !state.of.is_empty() || left.is_some_and(|left| left.is_zero()) {
                self.pending.append(&mut state.of);
                return state.stopping;
            }
            state = match left {
                None => shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let waited = shared.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let pending = self.pending.keys().filter_map(|root| self.rests.get(root)).copied();
        let found = self.found.iter().map(|found| found.due);
        pending.chain(found).chain(self.retry_at).min()
    }

    /// Writes the changes that are due, all of them if it is the last time.
    fn write(&mut self, now: Instant, last: bool) {
        let mut records = Vec::new();
        let mut encoder = None;
        let pending = std::mem::take(&mut self.pending);
        for (root, change) in pending {
            match change {
                Change::Gone => {
                    self.rests.remove(&root);
                    if let Some(content) = self.live.remove(&root) {
                        self.live_bytes -= content.len();
                        Record::Gone(root).encode(&mut records);
                    }
                }
                Change::Put(trace) => {
                    let soon = self.rests.get(&root).is_some_and(|until| now < *until);
                    if soon && !trace.closed && !last {
                        self.pending.insert(root, Change::Put(trace));
                        continue;
                    }
                    let encoder = encoder.get_or_insert_with(Encoder::new);
                    let seen = Timestamp((self.options.clock)().boot_ns);
                    let mut length = 0;
                    match encoder.encode(&trace, seen) {
                        Some(content) => {
                            length = content.len();
                            self.put(root, content, &mut records);
                        }
                        None => drop(self.journal.0.metrics.unwritten.inc()),
                    }
                    let pauses = u32::try_from(1 + length / LARGE).unwrap_or(u32::MAX);
                    self.rests.insert(root, now + PAUSE * pauses.min(MAX_PAUSES));
                }
            }
        }
        if !records.is_empty() && self.whole {
            let appended = self.files.as_mut().map(|files| files.append(&records));
            if let Some(Err(error)) = appended {
                self.failed(&error);
            }
        }
        let bytes = self.files.as_ref().map_or(0, TraceLog::bytes);
        let limit = match (self.live.is_empty(), last) {
            // Nothing is at rest of an agent that has stopped.
            (true, true) => FILE_HEADER as u64,
            (true, false) => SPARE_BYTES / 16,
            (false, _) => SPARE_BYTES + 2 * self.live_bytes as u64,
        };
        if self.whole && bytes > limit {
            self.begin();
        }
        self.observe();
    }

    fn put(&mut self, root: RootId, content: &[u8], records: &mut Vec<u8>) {
        let before = self.live.get(&root);
        // The first bytes are the time.
        if before.is_some_and(|before| before.get(SEEN..) == content.get(SEEN..)) {
            return;
        }
        let bytes = self.live_bytes - before.map_or(0, Vec::len) + content.len();
        if bytes > LIVE_BYTES {
            self.journal.0.metrics.unwritten.inc();
            return;
        }
        Record::Trace(root, content).encode(records);
        self.live_bytes = bytes;
        self.live.insert(root, content.to_vec());
    }

    /// Opens the directory and takes what is in it, or begins the file anew.
    fn open_files(&mut self) {
        self.retry_at = None;
        if self.files.is_none() {
            match TraceLog::open(&self.options.directory, JOURNAL) {
                Ok((files, left)) => {
                    self.files = Some(files);
                    let metrics = &self.journal.0.metrics;
                    metrics.cut_bytes.inc_by(left.cut_bytes);
                    metrics.skipped.set(i64::try_from(left.skipped).unwrap_or(i64::MAX));
                    for (root, content) in left.live {
                        self.found(root, content);
                    }
                }
                Err(error) => return self.failed(&error),
            }
        }
        self.begin();
        // What was found may be all for a while: an open sandbox waits for the runtime to list it.
        self.observe();
    }

    fn begin(&mut self) {
        match self
            .files
            .as_mut()
            .map(|files| files.begin(self.live.iter().map(|(root, content)| (*root, content))))
        {
            Some(Ok(())) => {
                self.whole = true;
                self.journal.set_problem(None);
            }
            Some(Err(error)) => self.failed(&error),
            None => {}
        }
    }

    fn failed(&mut self, error: &std::io::Error) {
        self.whole = false;
        self.retry_at = Some(Instant::now() + OPEN_AGAIN);
        let directory = self.options.directory.display();
        self.journal
            .set_problem(Some(format!("cannot write to {directory}: {error}")));
    }

    /// A trace of an earlier process. It stays in the journal until it is in a request of this one.
    fn found(&mut self, root: RootId, content: Vec<u8>) {
        let Some((seen, trace)) = decode(&content) else {
            self.journal.0.metrics.corrupt.inc();
            return;
        };
        if !self.live.contains_key(&root) {
            self.live_bytes += content.len();
            self.live.insert(root, content);
        }
        let now = Instant::now();
        let is_sandbox = trace.root().detail.as_sandbox().is_some();
        let due = if is_sandbox && !trace.closed {
            now + self.patience
        } else {
            now
        };
        self.found.push(Found { trace, seen, due });
    }

    /// Delivers what is due, and what the runtime has.
    fn deliver_found(&mut self, now: Instant) {
        if self.found.is_empty() {
            if self.files.is_some() {
                let mut state = lock(&self.journal.0.state);
                state.settled = true;
                state.existing.clear();
            }
            return;
        }
        let existing = lock(&self.journal.0.state).existing.clone();
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.found)
            .into_iter()
            .partition(|found| found.due <= now || is_among(&found.trace, &existing));
        self.found = later;
        let metrics = &self.journal.0.metrics;
        for Found { trace, seen, .. } in due {
            if trace.closed {
                metrics.unsent.inc();
                (self.deliver)(Arc::new(trace));
                continue;
            }
            let exists = is_among(&trace, &existing);
            let root = trace.root_id();
            match interrupted::close(trace, seen, exists) {
                Ok(trace) => {
                    metrics.interrupted.inc();
                    (self.deliver)(Arc::new(trace));
                }
                Err(reason) => {
                    tracing::warn!(reason, "a trace of the journal cannot be used");
                    metrics.corrupt.inc();
                    self.journal.gone(root);
                }
            }
        }
        if metrics.interrupted.get() + metrics.unsent.get() > 0 && self.found.is_empty() {
            tracing::info!(
                interrupted = metrics.interrupted.get(),
                unsent = metrics.unsent.get(),
                "an earlier run of the agent left traces in its journal"
            );
        }
        self.observe();
    }

    fn observe(&self) {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let metrics = &self.journal.0.metrics;
        metrics.traces.set(signed(self.live.len() as u64));
        metrics
            .bytes
            .set(signed(self.files.as_ref().map_or(0, TraceLog::bytes)));
    }
}

/// Empties what an agent left in `directory` that kept a journal there, where this one has nobody to show or send it.
///
/// # Errors
/// The files cannot be written, or another agent uses them.
pub fn forget(directory: &Path) -> std::io::Result<()> {
    TraceLog::empty(directory, JOURNAL)
}

fn is_among(trace: &Trace, existing: &BTreeSet<SandboxId>) -> bool {
    !trace.closed && trace.sandbox.as_ref().is_some_and(|sandbox| existing.contains(sandbox))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Least time between two writes of a trace that goes on.
const PAUSE: Duration = Duration::from_secs(1);
/// A trace that goes on is written whole each time: for each of so many compressed bytes there is a further pause, so that one with thousands of
/// spans takes no larger part of a processor, and of what is written, than others.
const LARGE: usize = 16 << 10;
/// Most of these pauses.
const MAX_PAUSES: u32 = 10;
/// Compressed bytes of the traces in the journal; a trace of a sandbox takes one to two KiB.
const LIVE_BYTES: usize = 4 << 20;
/// Bytes that the file may have beyond twice what is live, until it is begun anew.
const SPARE_BYTES: u64 = if cfg!(test) { 16 << 10 } else { 1 << 20 };
/// Changes that may wait for the disk.
const MAX_CHANGES: usize = 16_384;

#[cfg(test)]
mod tests;
