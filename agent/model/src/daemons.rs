//! Requests of plugins to daemons: the events about their messages.
//!
//! The process probe emits them while a plugin runs that is slow or known to be a shim; the correlator's room of daemons
//! makes a span of each request ([`crate::trace::DaemonDetail`]). Does not: know what a message says; nothing of its content
//! is read.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::id::ProcessKey;
use crate::time::Timestamp;

/// A message passed one end of a connection between a process below a plugin and a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestStep {
    /// Number of the connection, unique while the agent runs.
    pub connection: u64,
    /// The process that connected.
    pub client: ProcessKey,
    /// What happened to the message.
    pub point: RequestPoint,
    /// Its bytes, or those of its first part.
    pub bytes: u32,
    /// How both are connected.
    pub transport: RequestTransport,
    /// The daemon; of what the client sends and receives the process that listens, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon: Option<DaemonProcess>,
}

/// What happened to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestPoint {
    /// The client has sent it.
    Sent,
    /// The daemon has received it.
    Arrived,
    /// The daemon has sent it.
    Replied,
    /// The client has received it.
    Returned,
    /// It has not come yet: a goroutine of the daemon that has not received or sent by this connection waits for it.
    Awaited,
}

/// How a client and a daemon of one node are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestTransport {
    /// A unix socket.
    Unix,
    /// A TCP connection within the node.
    Tcp,
}

impl RequestTransport {
    /// Value of `network.transport`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            RequestTransport::Unix => "unix",
            RequestTransport::Tcp => "tcp",
        }
    }
}

/// A process that serves requests of plugins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonProcess {
    /// The process.
    pub process: ProcessKey,
    /// Its thread that received or sent; 0 where only the listening process is known.
    #[serde(default, skip_serializing_if = "is_default")]
    pub thread: u32,
    /// When that thread was created; 0 where that is not known.
    #[serde(default, skip_serializing_if = "is_default")]
    pub thread_begin: Timestamp,
    /// The waits of its threads are recorded, since its receipt of a request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub followed: bool,
    /// Its program is written in Go, whose scheduler moves work between threads whenever it waits (`runtime/proc.go` of Go 1.26): which
    /// thread does something says little about the request that it is for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub goroutines: bool,
    /// The one that received or sent, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goroutine: Option<Goroutine>,
    /// Its name (15 bytes at most, `TASK_COMM_LEN`); empty when it had ended.
    pub name: SmolStr,
    /// Path of its cgroup (v2); empty when not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cgroup: String,
}

/// A goroutine of a program in Go. No id is used twice by one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Goroutine {
    /// Its id: `goid` in Go's `runtime.g`.
    pub id: u64,
    /// That of the goroutine which created it: `parentGoid`; 0 for what the runtime created itself.
    #[serde(default, skip_serializing_if = "is_default")]
    pub creator: u64,
}

/// Such a field is left out of a recording.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
