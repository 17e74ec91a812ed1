//! The critical path of a request through the threads of its daemon, as the room of waits finds it for the room of daemons.
//!
//! Does not: find it (`waits/on_daemons.rs`), or decide how sure it is that it belongs to the request (`daemons.rs`). Imports no room.

use sandglass_model::waits::{TimeReason, WaitGroup};
use sandglass_model::{ProcessKey, Timestamp};

use crate::keys::SpanRef;

/// A thread of a daemon that received a request, or sent its answer, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadAt {
    pub(crate) at: Timestamp,
    pub(crate) thread: u32,
    /// When the thread was created; 0 where that is not known.
    pub(crate) begin: Timestamp,
}

/// A request that has its answer, of a daemon whose threads were followed meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    /// Its span.
    pub(crate) span: SpanRef,
    /// Number of its connection.
    pub(crate) connection: u64,
    /// The daemon.
    pub(crate) daemon: ProcessKey,
    /// Who sent it.
    pub(crate) client: ProcessKey,
    pub(crate) received: ThreadAt,
    /// `None` where the client's receipt was reported first: what sends reports it after it has woken who receives.
    pub(crate) replied: Option<ThreadAt>,
    /// When the client received the answer.
    pub(crate) end: Timestamp,
    /// No other request was in flight at this daemon meanwhile.
    pub(crate) alone: bool,
    /// If one was, the ids of the daemon's goroutines that had to do with this request, and with no other meanwhile.
    pub(crate) goroutines: Vec<u64>,
}

/// The path from the receipt of a request to its answer.
#[derive(Debug)]
pub(crate) struct DaemonPath {
    /// In order of time, without gaps.
    pub(crate) pieces: Vec<Piece>,
    pub(crate) link: PathLink,
}

/// What joins a path with its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathLink {
    /// Wake-ups lead from the thread that received the request to the path's end.
    WakeUps,
    /// Its known pieces are waits of the request's goroutines; no wake-ups lead from one to the next.
    Goroutines,
    /// Nothing: the path begins elsewhere, or has a gap.
    Nothing,
}

/// What one thread did for a time.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
    pub(crate) thread: u32,
    /// `None` where it is not known.
    pub(crate) what: Option<(TimeReason, Option<WaitGroup>)>,
}

impl DaemonPath {
    /// The path was with this thread then.
    pub(crate) fn has(&self, thread: u32, at: Timestamp) -> bool {
        let is_then = |piece: &&Piece| piece.from <= at && at < piece.to;
        self.pieces
            .iter()
            .find(is_then)
            .is_some_and(|piece| piece.thread == thread)
    }
}
