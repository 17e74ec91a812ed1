//! The journal of open traces: what a restarted agent knows of the sandboxes that were open when its predecessor was killed.
//!
//! Part of the sink where `otlp.spool_directory` is set; its files lie beside the spool's. A trace is in it from the first snapshot
//! on until the request that holds it is sealed, which the spool keeps from then on: so the batch that waits for
//! others (`otlp.batch_delay_ms`) survives too. The pipeline and the batching task leave changes here and never wait; a thread
//! writes them, at once for a new or closed trace, and at most every [`PAUSE`] for one that goes on. When nothing changes, nothing
//! is written. At its start the thread delivers what it finds: a trace that was closed as it is, one that was open as interrupted
//! (`interrupted.rs`), with its own ids either way, and keeps it until it is in a request.
//! Bounded by bytes of compressed content ([`LIVE_BYTES`]); what has no room is counted. Where the directory cannot be used, the journal is
//! tried again every 30 s. Does not: count traces in product metrics, fsync, or survive the directory.

mod files;
mod format;
mod interrupted;
mod metrics;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use flate2::{Compress, Compression, FlushCompress, Status};
use sandglass_model::{RootId, SandboxId, Timestamp, Trace};

use self::files::{JournalFiles, Live};
use self::format::Record;
pub(super) use self::metrics::JournalMetrics;
use super::config::SpoolOptions;
use super::spool::OPEN_AGAIN;
use crate::scheduling;

/// Receives what an earlier process left, from the journal's thread.
pub(super) type Deliver = Box<dyn Fn(Arc<Trace>) + Send>;

/// The journal of one sink; cheap to clone, all clones are one.
#[derive(Clone, Debug)]
pub(super) struct Journal(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<Changes>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    metrics: JournalMetrics,
}

/// What the thread has not seen yet.
#[derive(Debug, Default)]
struct Changes {
    of: BTreeMap<RootId, Change>,
    /// Sandboxes that the runtime has, although they are older than this process.
    existing: BTreeSet<SandboxId>,
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
    /// It is in a sealed request, or will not be sent.
    Gone,
}

impl Journal {
    /// A journal that is not written yet.
    pub(super) fn new(metrics: JournalMetrics) -> Journal {
        Journal(Arc::new(Shared {
            metrics,
            ..Shared::default()
        }))
    }

    /// Starts the thread. What it finds goes to `deliver`; a sandbox whose fate is not known waits `patience` for the runtime to list
    /// it. Without a thread, which is logged, nothing is kept.
    pub(super) fn start(&self, options: &SpoolOptions, patience: Duration, deliver: Deliver) {
        let writer = self.writer(options, patience, deliver);
        match Builder::new().name("journal".to_owned()).spawn(move || writer.run()) {
            Ok(thread) => *lock(&self.0.thread) = Some(thread),
            Err(error) => self.set_problem(Some(format!("cannot start the thread: {error}"))),
        }
    }

    fn writer(&self, options: &SpoolOptions, patience: Duration, deliver: Deliver) -> Writer {
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
            written: BTreeMap::new(),
            pending: BTreeMap::new(),
            found: Vec::new(),
        }
    }

    /// A trace is like this now. Never blocks on a disk.
    pub(super) fn put(&self, trace: &Arc<Trace>) {
        if !trace.spans.is_empty() {
            self.change(trace.root_id(), Change::Put(Arc::clone(trace)));
        }
    }

    /// A trace is in a sealed request, or will not be sent.
    pub(super) fn gone(&self, root: RootId) {
        self.change(root, Change::Gone);
    }

    /// The runtime has this sandbox, which is older than this process.
    pub(super) fn exists(&self, sandbox: &SandboxId) {
        let mut state = lock(&self.0.state);
        if !state.settled && state.existing.len() < MAX_CHANGES {
            state.existing.insert(sandbox.clone());
            self.0.changed.notify_one();
        }
    }

    /// Writes what is left to write, and ends the thread. Blocks.
    pub(super) fn stop(&self) {
        lock(&self.0.state).stopping = true;
        self.0.changed.notify_one();
        if let Some(thread) = lock(&self.0.thread).take()
            && thread.join().is_err()
        {
            tracing::error!("the journal's thread panicked");
        }
    }

    /// Why nothing is written.
    pub(super) fn problem(&self) -> Option<String> {
        lock(&self.0.state).problem.clone()
    }

    /// Traces that were delivered as interrupted since the start.
    pub(super) fn interrupted(&self) -> u64 {
        self.0.metrics.interrupted.get()
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
    options: SpoolOptions,
    patience: Duration,
    deliver: Deliver,
    files: Option<JournalFiles>,
    /// The file in use holds what is live, and its last record is whole.
    whole: bool,
    /// Not before this are files opened or begun anew.
    retry_at: Option<Instant>,
    live: Live,
    live_bytes: usize,
    /// When open traces were written last.
    written: BTreeMap<RootId, Instant>,
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
        let pending = self.pending.keys().filter_map(|root| self.written.get(root));
        let pending = pending.map(|written| *written + PAUSE);
        let found = self.found.iter().map(|found| found.due);
        pending.chain(found).chain(self.retry_at).min()
    }

    /// Writes the changes that are due, all of them if it is the last time.
    fn write(&mut self, now: Instant, last: bool) {
        let mut records = Vec::new();
        let mut compress = None;
        let pending = std::mem::take(&mut self.pending);
        for (root, change) in pending {
            match change {
                Change::Gone => {
                    self.written.remove(&root);
                    if let Some(content) = self.live.remove(&root) {
                        self.live_bytes -= content.len();
                        Record::Gone(root).encode(&mut records);
                    }
                }
                Change::Put(trace) => {
                    let soon = self.written.get(&root).is_some_and(|written| now < *written + PAUSE);
                    if soon && !trace.closed && !last {
                        self.pending.insert(root, Change::Put(trace));
                        continue;
                    }
                    let compress = compress.get_or_insert_with(|| Compress::new(Compression::fast(), true));
                    let seen = Timestamp((self.options.clock)().boot_ns);
                    match encode(&trace, seen, compress) {
                        Some(content) => self.put(root, content, &mut records),
                        None => drop(self.journal.0.metrics.unwritten.inc()),
                    }
                    self.written.insert(root, now);
                }
            }
        }
        if !records.is_empty() && self.whole {
            let appended = self.files.as_mut().map(|files| files.append(&records));
            if let Some(Err(error)) = appended {
                self.failed(&error);
            }
        }
        let bytes = self.files.as_ref().map_or(0, JournalFiles::bytes);
        let limit = match (self.live.is_empty(), last) {
            // Nothing is at rest of an agent that has stopped.
            (true, true) => format::FILE_HEADER as u64,
            (true, false) => SPARE_BYTES / 16,
            (false, _) => SPARE_BYTES + 2 * self.live_bytes as u64,
        };
        if self.whole && bytes > limit {
            self.begin();
        }
        self.observe();
    }

    fn put(&mut self, root: RootId, content: Vec<u8>, records: &mut Vec<u8>) {
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
        Record::Trace(root, &content).encode(records);
        self.live_bytes = bytes;
        self.live.insert(root, content);
    }

    /// Opens the directory and takes what is in it, or begins the file anew.
    fn open_files(&mut self) {
        self.retry_at = None;
        if self.files.is_none() {
            match JournalFiles::open(&self.options.directory) {
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
    }

    fn begin(&mut self) {
        match self.files.as_mut().map(|files| files.begin(&self.live)) {
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
        let Some((seen, trace)) = decode(&content).filter(|(_, trace)| !trace.spans.is_empty()) else {
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
            .set(signed(self.files.as_ref().map_or(0, JournalFiles::bytes)));
    }
}

fn is_among(trace: &Trace, existing: &BTreeSet<SandboxId>) -> bool {
    !trace.closed && trace.sandbox.as_ref().is_some_and(|sandbox| existing.contains(sandbox))
}

/// When the trace was like this, and the trace as compressed JSON. `None` for one that is too large to be read again.
fn encode(trace: &Trace, seen: Timestamp, compress: &mut Compress) -> Option<Vec<u8>> {
    let json = serde_json::to_vec(trace).ok()?;
    if json.len() as u64 > MAX_TRACE {
        return None;
    }
    let mut content = Vec::with_capacity(SEEN + json.len() / 4 + 64);
    content.extend_from_slice(&seen.0.to_le_bytes());
    compress.reset();
    loop {
        let done = usize::try_from(compress.total_in()).ok()?;
        let status = compress.compress_vec(json.get(done..)?, &mut content, FlushCompress::Finish);
        match status.ok()? {
            Status::StreamEnd => return Some(content),
            Status::Ok | Status::BufError => content.reserve(json.len() / 4 + 64),
        }
    }
}

fn decode(content: &[u8]) -> Option<(Timestamp, Trace)> {
    let seen = u64::from_le_bytes(content.get(..SEEN)?.try_into().ok()?);
    let mut json = Vec::new();
    let compressed = content.get(SEEN..)?;
    let mut plain = flate2::read::ZlibDecoder::new(compressed).take(MAX_TRACE);
    plain.read_to_end(&mut json).ok()?;
    Some((Timestamp(seen), serde_json::from_slice(&json).ok()?))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time between two writes of a trace that goes on.
const PAUSE: Duration = Duration::from_secs(1);
/// Compressed bytes of the traces in the journal; a trace of a sandbox takes one to two KiB.
const LIVE_BYTES: usize = 4 << 20;
/// Bytes that the file may have beyond twice what is live, until it is begun anew.
const SPARE_BYTES: u64 = if cfg!(test) { 16 << 10 } else { 1 << 20 };
/// Changes that may wait for the disk.
const MAX_CHANGES: usize = 16_384;
/// Largest trace, as JSON.
const MAX_TRACE: u64 = 8 << 20;
/// Bytes of the time in front of a trace.
const SEEN: usize = 8;

#[cfg(test)]
mod tests;
