//! One trace as the store keeps it: compressed once it is closed, beside what lists and eviction compare.
//!
//! Most closed traces are evicted without having been looked at. One of a sandbox takes about 10 KiB as structures and 1 to 2
//! KiB compressed, in the form in which the store's file has it, so it is compressed once for both. It is unpacked when
//! somebody looks at it, and once for its row in a list.
//! Does not: decide what is kept, or touch files.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sandglass_model::{Timestamp, Trace};

use super::group::Group;
use super::index::{TraceIndex, TraceOutcome};
use super::size;
use crate::sinks::disk::content::{Encoder, decode};

/// One trace that is kept. `R` is what readers derive from a closed trace; it lives as long as the trace is kept.
#[derive(Debug)]
pub struct Kept<R> {
    content: Content,
    /// What filters compare.
    pub index: TraceIndex,
    /// Position in the order in which traces first came in.
    pub arrival: u64,
    /// An earlier run of the agent made it.
    pub earlier: bool,
    /// Changes with the trace; no two that the store ever kept have the same.
    pub(super) revision: u64,
    pub(super) group: Group,
    /// Estimated bytes of all of it.
    pub(super) bytes: usize,
    derived: OnceLock<R>,
}

/// The trace itself.
#[derive(Debug)]
pub(super) enum Content {
    /// It is open, too large to be read again, or of a store that packs nothing.
    Plain(Arc<Trace>),
    /// As [`Encoder::encode`] made it.
    Packed(Box<[u8]>),
}

impl<R> Kept<R> {
    pub(super) fn new(
        index: TraceIndex,
        content: Content,
        group: Group,
        arrival: u64,
        revision: u64,
        earlier: bool,
    ) -> Kept<R> {
        Kept {
            group,
            bytes: match &content {
                Content::Plain(trace) => size::of_plain(trace),
                Content::Packed(packed) => size::of_packed(packed, &index),
            },
            content,
            index,
            arrival,
            earlier,
            revision,
            derived: OnceLock::new(),
        }
    }

    /// The trace. `None` for a packed one that cannot be unpacked, which no trace of the agent's own is.
    #[must_use]
    pub fn trace(&self) -> Option<Arc<Trace>> {
        match &self.content {
            Content::Plain(trace) => Some(Arc::clone(trace)),
            Content::Packed(packed) => decode(packed).map(|(_, trace)| Arc::new(trace)),
        }
    }

    /// Its content in the form of the store's file; `None` where it is not packed.
    pub(super) fn packed(&self) -> Option<&[u8]> {
        match &self.content {
            Content::Plain(_) => None,
            Content::Packed(packed) => Some(packed),
        }
    }

    /// It changes no more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.index.outcome, TraceOutcome::Ok | TraceOutcome::Failed)
    }

    /// Reads what `make` derives from the trace: once for a closed trace, anew on each call for an open one, which changes
    /// and whose times depend on the clock. `None` as [`Kept::trace`].
    pub fn derived<T>(&self, make: impl FnOnce(&Trace) -> R, read: impl FnOnce(&R) -> T) -> Option<T> {
        if !self.is_closed() {
            return self.trace().map(|trace| read(&make(&trace)));
        }
        if let Some(derived) = self.derived.get() {
            return Some(read(derived));
        }
        let made = make(&*self.trace()?);
        Some(read(self.derived.get_or_init(|| made)))
    }
}

/// Packs closed traces. A thread that gives way to others must not hold its lock while one that does not waits for it.
#[derive(Debug)]
pub(super) struct Packer {
    /// Made when the first trace has closed.
    encoder: OnceLock<Mutex<Encoder>>,
    packs: bool,
}

impl Packer {
    /// Where `packs` is false, traces stay as they are.
    pub(super) fn new(packs: bool) -> Packer {
        Packer {
            encoder: OnceLock::new(),
            packs,
        }
    }

    pub(super) fn content(&self, trace: &Arc<Trace>) -> Content {
        let plain = || Content::Plain(Arc::clone(trace));
        if !trace.closed || !self.packs {
            return plain();
        }
        let encoder = self.encoder.get_or_init(|| Mutex::new(Encoder::new()));
        // A panic cannot leave anything behind in it: each use begins anew.
        let mut encoder = encoder.lock().unwrap_or_else(PoisonError::into_inner);
        match encoder.encode(trace, Timestamp(0)) {
            Some(packed) => Content::Packed(Box::from(packed)),
            None => plain(),
        }
    }
}
