//! The thread of the store's disk: reads what an earlier run left, then writes the difference between the store and the file.
//!
//! Used by `disk.rs`. What is in the file is known by root and revision, so that any change of the store, an eviction too, is found by comparing; a
//! write that fails needs no memory of its own. Does not: decide what is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use sandglass_model::{RootId, Trace};

use super::{LIVE_BYTES, SPARE_BYTES, StoreDisk};
use crate::scheduling;
use crate::sinks::disk::content::decode;
use crate::sinks::disk::directory::STORE;
use crate::sinks::disk::format::Record;
use crate::sinks::disk::log::{Left, OPEN_AGAIN, TraceLog};
use crate::sinks::journal::Journal;
use crate::sinks::store::{Kept, Store};

/// State of the thread.
pub(super) struct Writer<R> {
    store: Store<R>,
    disk: StoreDisk,
    log: Option<TraceLog>,
    /// The file in use holds what `written` says, and its last record is whole.
    whole: bool,
    /// Not before this are files opened or begun anew.
    retry_at: Option<Instant>,
    written: BTreeMap<RootId, Written>,
    live_bytes: usize,
}

/// A trace that was written.
#[derive(Clone, Copy, Debug)]
struct Written {
    /// Its state.
    revision: u64,
    /// Its bytes in the file; 0 if it had no room.
    bytes: usize,
}

impl<R: Send + Sync + 'static> Writer<R> {
    pub(super) fn new(store: Store<R>, disk: StoreDisk) -> Writer<R> {
        Writer {
            store,
            disk,
            log: None,
            whole: false,
            retry_at: None,
            written: BTreeMap::new(),
            live_bytes: 0,
        }
    }

    pub(super) fn run(mut self) {
        // It works because a sandbox was made, and has time.
        scheduling::give_way();
        self.open();
        loop {
            let stopping = self.disk.wait(self.retry_at);
            // Before the store is read: what comes in from now on is kept by the journal until the next write.
            let journal = self.disk.0.journal.clone();
            let closed = journal.as_ref().map(Journal::closed).unwrap_or_default();
            if self.retry_at.is_some_and(|at| at <= Instant::now() || stopping) {
                self.open();
            } else {
                self.write();
            }
            if let Some(journal) = journal {
                journal.kept(closed);
            }
            if stopping {
                return;
            }
        }
    }

    /// Opens the directory and shows what is in it; writes the file anew.
    pub(super) fn open(&mut self) {
        self.retry_at = None;
        if self.log.is_none() {
            match TraceLog::open(&self.disk.0.directory, STORE) {
                Ok((log, left)) => {
                    self.log = Some(log);
                    self.restore(left);
                }
                Err(error) => return self.failed(&error),
            }
        }
        self.begin();
    }

    fn restore(&self, left: Left) {
        let metrics = &self.disk.0.metrics;
        metrics.cut_bytes.inc_by(left.cut_bytes);
        metrics.skipped.set(i64::try_from(left.skipped).unwrap_or(i64::MAX));
        let mut found: Vec<(Trace, Vec<u8>)> = Vec::with_capacity(left.live.len());
        for content in left.live.into_values() {
            match decode(&content).filter(|(_, trace)| trace.closed && trace.check().is_ok()) {
                Some((_, trace)) => found.push((trace, content)),
                None => drop(metrics.corrupt.inc()),
            }
        }
        // As they came in: what is worth more, or is slow, depends on what came before.
        found.sort_by_key(|(trace, _)| trace.root().end.map(|end| trace.anchor.unix_ns(end)));
        if !found.is_empty() || left.cut_bytes > 0 {
            let corrupt = metrics.corrupt.get();
            tracing::info!(
                traces = found.len(),
                corrupt,
                bytes_cut = left.cut_bytes,
                "the page shows traces of an earlier run"
            );
        }
        for (trace, content) in found {
            metrics.restored.inc();
            self.store.restore_packed(&trace, content);
        }
    }

    /// Appends what the store has and the file has not.
    pub(super) fn write(&mut self) {
        if !self.whole {
            return;
        }
        let kept = self.store.closed();
        let roots: BTreeSet<RootId> = kept.iter().map(|kept| kept.index.root).collect();
        let mut records = Vec::new();
        let gone: Vec<RootId> = self
            .written
            .keys()
            .filter(|root| !roots.contains(root))
            .copied()
            .collect();
        for root in gone {
            if self.forget(root) {
                Record::Gone(root).encode(&mut records);
            }
        }
        for kept in kept {
            let root = kept.index.root;
            if self
                .written
                .get(&root)
                .is_some_and(|written| written.revision == kept.revision)
            {
                continue;
            }
            let was_written = self.forget(root);
            match self.content(&kept) {
                Some(content) => Record::Trace(root, content).encode(&mut records),
                None if was_written => Record::Gone(root).encode(&mut records),
                None => {}
            }
        }
        if records.is_empty() {
            return;
        }
        if let Some(Err(error)) = self.log.as_mut().map(|log| log.append(&records)) {
            self.failed(&error);
        }
        let bytes = self.log.as_ref().map_or(0, TraceLog::bytes);
        if self.whole && bytes > SPARE_BYTES + 2 * self.live_bytes as u64 {
            self.begin();
        }
        self.observe();
    }

    /// Writes all that the store has into another file.
    fn begin(&mut self) {
        let Some(mut log) = self.log.take() else {
            return;
        };
        (self.written, self.live_bytes) = (BTreeMap::new(), 0);
        let kept = self.store.closed();
        let contents = kept
            .iter()
            .filter_map(|kept| Some((kept.index.root, self.content(kept)?)));
        let begun = log.begin(contents);
        self.log = Some(log);
        match begun {
            Ok(()) => {
                self.whole = true;
                self.disk.set_problem(None);
            }
            Err(error) => self.failed(&error),
        }
        self.observe();
    }

    /// The bytes of a trace that is about to be written; `None` where it has no room, which is counted once for each state of it.
    fn content<'a>(&mut self, kept: &'a Kept<R>) -> Option<&'a [u8]> {
        let content = kept
            .packed()
            .filter(|content| self.live_bytes + content.len() <= LIVE_BYTES);
        let written = Written {
            revision: kept.revision,
            bytes: content.map_or(0, <[u8]>::len),
        };
        self.live_bytes += written.bytes;
        self.written.insert(kept.index.root, written);
        if content.is_none() {
            self.disk.0.metrics.unwritten.inc();
        }
        content
    }

    /// Removes a trace from what is written; true if the file has it.
    fn forget(&mut self, root: RootId) -> bool {
        let bytes = self.written.remove(&root).map_or(0, |written| written.bytes);
        self.live_bytes -= bytes;
        bytes > 0
    }

    fn failed(&mut self, error: &std::io::Error) {
        self.whole = false;
        self.retry_at = Some(Instant::now() + OPEN_AGAIN);
        let directory = self.disk.0.directory.display();
        let problem = format!("cannot write to {directory}: {error}");
        self.disk.set_problem(Some(problem));
    }

    fn observe(&self) {
        let metrics = &self.disk.0.metrics;
        let traces = self.written.values().filter(|written| written.bytes > 0).count();
        metrics.traces.set(i64::try_from(traces).unwrap_or(i64::MAX));
        let bytes = self.log.as_ref().map_or(0, TraceLog::bytes);
        metrics.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}
