//! The spool: requests for the collector on disk, so that they survive the end of the process.
//!
//! Used by `delivery.rs` if `otlp.spool_directory` is set. Every sealed request is written before its first attempt, and is
//! removed from it when the collector has answered. What cannot be written stays in memory (`queue.rs`), as without a spool. A
//! directory that cannot be opened (read-only, locked by the agent that this one replaces) is tried again every 30 s.
//!
//! Own code, since no crate fits (looked at in November 2026): `yaque` and `queue-file` lose their place or their file after
//! a torn write, `segment-buffer` acknowledges in ranges of a time-ordered list and brings zstd and CBOR, `disk_backed_queue`
//! and `sled` bring a database, `commitlog` keeps no state of what is consumed. None drops by worth or age, counts what it
//! drops in spans, or leaves a newer format alone. What remains is `format.rs` (bytes),
//! `segments.rs` (files) and `disk/directory.rs` (mode, lock, names).
//!
//! Does not: run on the runtime's threads ([`on_disk`]), delete what a newer version wrote, or encrypt: SECURITY.md says what
//! is at rest.

mod format;
pub(super) mod segments;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sandglass_model::SpanId;

use self::format::Moment;
use self::segments::{Clock, NewRecord, SegmentBounds, Segments};
pub(super) use self::segments::{SpoolDepth, SpoolDrops, TakenRecord};
use super::config::SpoolOptions;
use super::queue::QueuedRequest;
pub(super) use crate::sinks::disk::directory::Worth;

/// The spool of one sink.
pub(super) struct Spool {
    directory: PathBuf,
    bounds: SegmentBounds,
    boot: u64,
    clock: Clock,
    state: Mutex<SpoolState>,
    /// A copy that can be read while a disk operation has the state.
    seen: Mutex<SpoolStatus>,
}

/// Status of the spool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SpoolStatus {
    pub(super) depth: SpoolDepth,
    /// Why requests are not written to it now.
    pub(super) problem: Option<String>,
}

enum SpoolState {
    /// Not open; to be tried at this time, or at once.
    Closed(Option<Instant>),
    Open(Box<Segments>),
}

impl std::fmt::Debug for Spool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spool")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

impl Spool {
    /// The spool of `options`; opened by its first use. `boot_id` identifies this boot of the node.
    pub(super) fn new(options: &SpoolOptions, boot_id: &str) -> Spool {
        let read = options.clock;
        let read_clocks = move || {
            let anchor = read();
            Moment {
                boot_ns: anchor.boot_ns,
                unix_ns: anchor.unix_ns,
            }
        };
        Spool::with_clock(options, boot_id, Arc::new(read_clocks))
    }

    fn with_clock(options: &SpoolOptions, boot_id: &str, clock: Clock) -> Spool {
        Spool {
            directory: options.directory.clone(),
            bounds: SegmentBounds {
                bytes: options.bytes,
                requests: MAX_REQUESTS,
                segment_bytes: (options.bytes / 64).clamp(64 << 10, 1 << 20),
                age: options.age,
            },
            // 0 stands for an unknown boot.
            boot: SpanId::of(&[b"spool", boot_id.as_bytes()]).0.max(1),
            clock,
            state: Mutex::new(SpoolState::Closed(None)),
            seen: Mutex::default(),
        }
    }

    /// Status now; never waits for the disk.
    pub(super) fn status(&self) -> SpoolStatus {
        lock(&self.seen).clone()
    }

    /// Writes a request; false if it must be kept in memory. Blocks.
    pub(super) fn append(&self, request: &QueuedRequest, worth: Worth) -> (bool, SpoolDrops) {
        let (written, drops) = self.with_segments(|segments| {
            segments.append(&NewRecord {
                body: &request.body,
                gzip: request.gzip,
                spans: u32::try_from(request.spans).unwrap_or(u32::MAX),
                worth,
            })
        });
        // Only this proves that there is room again.
        if written.is_some() {
            self.set_problem(None);
        }
        (written.is_some(), drops)
    }

    /// Takes the oldest request. Blocks.
    pub(super) fn take(&self) -> (Option<TakenRecord>, SpoolDrops) {
        let (taken, drops) = self.with_segments(|segments| Ok(segments.take()));
        (taken.flatten(), drops)
    }

    /// The request needs no further attempt. Blocks.
    pub(super) fn done(&self, taken: &TakenRecord) -> SpoolDrops {
        self.with_segments(|segments| {
            segments.done(taken);
            Ok(())
        })
        .1
    }

    /// The request has to be sent again. Blocks.
    pub(super) fn give_back(&self, taken: &TakenRecord) -> SpoolDrops {
        self.with_segments(|segments| {
            segments.give_back(taken);
            Ok(())
        })
        .1
    }

    /// Runs `work` on the open segments. `None` without them, or if it fails; the reason is in the status then.
    fn with_segments<T>(&self, work: impl FnOnce(&mut Segments) -> std::io::Result<T>) -> (Option<T>, SpoolDrops) {
        let mut state = lock(&self.state);
        if let SpoolState::Closed(retry_at) = &*state
            && retry_at.is_none_or(|at| at <= Instant::now())
        {
            match Segments::open(&self.directory, self.bounds.clone(), self.boot, Arc::clone(&self.clock)) {
                Ok(segments) => {
                    *state = SpoolState::Open(Box::new(segments));
                    self.set_problem(None);
                }
                Err(error) => {
                    *state = SpoolState::Closed(Some(Instant::now() + OPEN_AGAIN));
                    self.set_problem(Some(format!("cannot open {}: {error}", self.directory.display())));
                }
            }
        }
        let SpoolState::Open(segments) = &mut *state else {
            return (None, SpoolDrops::default());
        };
        let result = work(segments);
        let (depth, drops) = (segments.depth(), segments.drops());
        // With the state still held: otherwise an older depth could overwrite a newer one.
        lock(&self.seen).depth = depth;
        drop(state);
        match result {
            Ok(value) => (Some(value), drops),
            Err(error) => {
                self.set_problem(Some(format!("cannot write to {}: {error}", self.directory.display())));
                (None, drops)
            }
        }
    }

    /// Keeps the problem and logs a change of it.
    fn set_problem(&self, problem: Option<String>) {
        let mut seen = lock(&self.seen);
        if seen.problem == problem {
            return;
        }
        match &problem {
            Some(problem) => tracing::warn!(%problem, "the spool is not usable: requests are kept in memory"),
            None => tracing::info!(directory = %self.directory.display(), "the spool is usable again"),
        }
        seen.problem = problem;
    }
}

/// Runs blocking work on the spool, on a thread for such work. `None` while the runtime shuts down.
pub(super) async fn on_disk<T: Send + 'static>(
    spool: &Arc<Spool>,
    work: impl FnOnce(&Spool) -> T + Send + 'static,
) -> Option<T> {
    let spool = Arc::clone(spool);
    tokio::task::spawn_blocking(move || work(&spool)).await.ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Requests that may wait: 4 MiB of index.
const MAX_REQUESTS: usize = 65_536;
/// How long a directory that could not be opened is left alone.
pub(super) const OPEN_AGAIN: Duration = if cfg!(test) {
    Duration::from_millis(100)
} else {
    Duration::from_secs(30)
};

#[cfg(test)]
mod tests;
