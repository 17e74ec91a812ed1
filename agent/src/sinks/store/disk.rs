//! The store on disk: closed traces of the page that outlive the process, beside the spool's files.
//!
//! Used by the composition root where `otlp.spool_directory` is set, with a collector or without one. [`super::Store`] only signals that a closed trace came in. A thread then waits
//! for [`PAUSE`] and writes what the store has and the file has not, and what the store has no more: so a kill loses the last second, and while
//! the store does not change nothing is written. At its start the thread shows what it finds, as of an earlier run. The file is a log of
//! traces (`sinks/disk`), bounded by [`LIVE_BYTES`] beside the store's own bounds; it is begun anew from the store's traces, of which the thread holds no copy. Where the directory
//! cannot be used, it is tried again every 30 s, and the page goes on in memory.
//! Does not: keep open traces (the journal does, and closed ones until this has written them), the hour of traffic or what was evicted, or fsync.

mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;

use self::writer::Writer;
use super::Store;
use crate::registration::register;
use crate::sinks::disk::directory::STORE;
use crate::sinks::disk::log::TraceLog;
use crate::sinks::journal::Journal;

/// Names of the store's files in the directory.
pub const FILES: [&str; 4] = STORE.files;

/// The disk of one store; cheap to clone, all clones are one.
#[derive(Clone, Debug)]
pub(super) struct StoreDisk(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    journal: Option<Journal>,
    state: Mutex<State>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    metrics: DiskMetrics,
}

#[derive(Debug, Default)]
struct State {
    /// The store has another closed trace since the last write.
    changed: bool,
    stopping: bool,
    problem: Option<String>,
}

/// The store's files, for the health report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiskStatus {
    /// Where they are.
    pub directory: String,
    /// Traces in them.
    pub traces: i64,
    /// Bytes of the file in use.
    pub bytes: i64,
    /// Traces of an earlier run that were found at the start.
    pub restored: u64,
    /// Traces that could not be read, or have no room.
    pub lost: u64,
    /// Files of a newer format or not readable, which are left alone.
    pub left_alone: i64,
    /// Why nothing is written.
    pub problem: Option<String>,
}

#[derive(Clone, Debug, Default)]
struct DiskMetrics {
    restored: Counter,
    corrupt: Counter,
    unwritten: Counter,
    cut_bytes: Counter,
    traces: Gauge,
    bytes: Gauge,
    skipped: Gauge,
    failing: Gauge,
}

impl StoreDisk {
    /// Starts the thread for `store`. Without a thread, which is logged, nothing is kept.
    pub(super) fn start<R: Send + Sync + 'static>(
        store: Store<R>,
        directory: &Path,
        journal: Option<Journal>,
    ) -> StoreDisk {
        let disk = StoreDisk::new(directory, journal);
        let writer = Writer::new(store, disk.clone());
        match Builder::new().name("store".to_owned()).spawn(move || writer.run()) {
            Ok(thread) => *lock(&disk.0.thread) = Some(thread),
            Err(error) => disk.set_problem(Some(format!("cannot start the thread: {error}"))),
        }
        disk
    }

    fn new(directory: &Path, journal: Option<Journal>) -> StoreDisk {
        StoreDisk(Arc::new(Shared {
            directory: directory.to_owned(),
            journal,
            state: Mutex::default(),
            changed: Condvar::new(),
            thread: Mutex::default(),
            metrics: DiskMetrics::default(),
        }))
    }

    /// The store has another closed trace. Never blocks on a disk.
    pub(super) fn changed(&self) {
        let mut state = lock(&self.0.state);
        if !std::mem::replace(&mut state.changed, true) {
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
            tracing::error!("the store's thread panicked");
        }
    }

    pub(super) fn status(&self) -> DiskStatus {
        let metrics = &self.0.metrics;
        DiskStatus {
            directory: self.0.directory.display().to_string(),
            traces: metrics.traces.get(),
            bytes: metrics.bytes.get(),
            restored: metrics.restored.get(),
            lost: metrics.corrupt.get() + metrics.unwritten.get(),
            left_alone: metrics.skipped.get(),
            problem: lock(&self.0.state).problem.clone(),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let metrics = &self.0.metrics;
        register! { registry,
            "store_restored_traces": metrics.restored, "Traces of an earlier run of the agent that the page shows again";
            "store_corrupt_traces": metrics.corrupt, "Traces of the store's files that could not be read";
            "store_unwritten_traces": metrics.unwritten, "Traces for which the store's files had no room: a restart loses them";
            "store_cut_bytes": metrics.cut_bytes, "Bytes of unreadable records that were cut off the store's files";
            "store_disk_traces": metrics.traces, "Traces in the store's files";
            "store_disk_bytes": metrics.bytes, "Bytes of the store's file in use";
            "store_skipped_files": metrics.skipped, "Files of the store in a newer format or not readable, which are left alone";
            "store_disk_failing": metrics.failing, "1 while the store's files cannot be written";
        }
    }

    /// Waits until something is to be written, and a moment longer for more of it; or until `retry_at`. True if this is the last time.
    fn wait(&self, retry_at: Option<Instant>) -> bool {
        let mut state = lock(&self.0.state);
        while !state.stopping && !state.changed {
            state = match retry_at.map(|at| at.saturating_duration_since(Instant::now())) {
                None => self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return false,
                Some(left) => self.wait_for(state, left),
            };
        }
        let until = Instant::now() + PAUSE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if state.stopping || left.is_zero() {
                // Before the store is read: what comes in from now on is another change.
                state.changed = false;
                return state.stopping;
            }
            state = self.wait_for(state, left);
        }
    }

    fn wait_for<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        let waited = self.0.changed.wait_timeout(state, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Keeps the problem and logs a change of it.
    fn set_problem(&self, problem: Option<String>) {
        let mut state = lock(&self.0.state);
        if state.problem == problem {
            return;
        }
        self.0.metrics.failing.set(i64::from(problem.is_some()));
        match &problem {
            Some(problem) => tracing::warn!(%problem, "the page's traces are not kept on disk: a restart loses them"),
            None => tracing::info!("the page's traces are kept on disk again"),
        }
        state.problem = problem;
    }
}

/// Empties what an agent left in `directory` that kept its page there, where this one must not. Does nothing where nothing is left.
///
/// # Errors
/// The files cannot be written, or another agent uses them.
pub fn forget(directory: &Path) -> std::io::Result<()> {
    TraceLog::empty(directory, STORE)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time between a change and the write of it.
const PAUSE: Duration = if cfg!(test) {
    Duration::from_millis(50)
} else {
    Duration::from_secs(1)
};
/// Compressed bytes of the traces; a trace of a sandbox takes one to two KiB.
const LIVE_BYTES: usize = if cfg!(test) { 256 << 10 } else { 4 << 20 };
/// Bytes that the file may have beyond twice what is live, until it is begun anew.
const SPARE_BYTES: u64 = if cfg!(test) { 64 << 10 } else { 1 << 20 };

#[cfg(test)]
mod tests;
