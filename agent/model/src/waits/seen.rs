//! What threads do now: the event of a look at them, and what is made of it, [`Waiting`].
//!
//! A sleep that lasts has no wake-up yet, so that no record of the scheduler shows it: the process probe looks while an operation
//! is slow, and the correlator's room of waits finds what each process waits for. Does not: interpret a stack.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::TimeReason;
use crate::id::ProcessKey;
use crate::text_list::TextList;
use crate::time::Timestamp;
use crate::trace::Confidence;

/// All threads of followed processes as one look found them. It replaces the look before. A source emits none that would say
/// the same as the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadsSeen {
    /// Threads that do something else than the event before had them do, or that are new.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<ThreadSeen>,
    /// Ids of those for which the event before still holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unchanged: Vec<u32>,
    /// Connected sockets of these processes, all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<SocketSeen>,
}

/// A thread at the moment of a look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadSeen {
    /// Its process.
    pub process: ProcessKey,
    /// Its id in the initial pid namespace; the process's own for its first thread.
    pub thread: u32,
    /// When it was created.
    pub begin: Timestamp,
    /// What it does.
    pub state: ThreadState,
    /// Since when, where that is known: else the time of the first look that found it so.
    pub since: Timestamp,
    /// Kernel functions that it sleeps in, the innermost first; empty where their names are not known.
    #[serde(default, skip_serializing_if = "TextList::is_empty")]
    pub stack: TextList,
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadState {
    /// It sleeps.
    Asleep,
    /// It has a processor.
    Running,
    /// It could run, and has no processor.
    Runnable,
}

/// A socket that a process has open and that is connected, or connects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketSeen {
    /// The process.
    pub process: ProcessKey,
    /// The other end, of TCP and UDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<SocketAddr>,
    /// UDP, not TCP.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub udp: bool,
    /// Path of the unix socket that it is connected with; an abstract name begins with `@`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Process id of the one that listens there; 0 when not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub listener: u32,
    /// Its name (15 bytes at most, `TASK_COMM_LEN`).
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub listener_name: SmolStr,
}

/// What a process that runs waits for now, or waited for when it was cut off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Why.
    pub reason: TimeReason,
    /// See [`WaitGroup::what`](super::WaitGroup::what).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// Name of the process that waits: itself, or one below it.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub who: SmolStr,
    /// The process that holds the lock, or that listens behind the socket; empty when not known.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub by: SmolStr,
    /// See [`WaitGroup::confidence`](super::WaitGroup::confidence).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Confidence>,
    /// The kernel function that it sleeps in, and by which the reason was chosen; empty when it does not sleep.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub function: SmolStr,
    /// Since when.
    pub since: Timestamp,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}
