//! Requests to the runtime to make a sandbox (`RunPodSandbox` of the CRI), as the runtime received them and responded: the events.
//!
//! The process probe emits them; the correlator's room of sandboxes joins them to the trace of the sandbox, which then begins and
//! ends with them. Does not: hold anything of a request but the sandbox's metadata.

use serde::{Deserialize, Serialize};

use crate::cni::PodIdentity;
use crate::id::{ProcessKey, SandboxId};
use crate::time::Timestamp;

/// The runtime received a request to make a sandbox. The event's time is that of the request's first bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRequest {
    /// The process that received it.
    pub runtime: ProcessKey,
    /// Number of the stream in its connection. With the event's time it names the request.
    pub stream: u32,
    /// The pod: namespace, name and uid.
    pub pod: PodIdentity,
    /// Which attempt for this pod, from 0, as the caller counts.
    #[serde(default)]
    pub attempt: u32,
}

/// A request to make a sandbox has its response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxResponse {
    /// As in [`SandboxRequest`].
    pub runtime: ProcessKey,
    /// As in [`SandboxRequest`].
    pub stream: u32,
    /// When the request was received.
    pub requested: Timestamp,
    /// What came of it.
    pub outcome: SandboxOutcome,
    /// The sandbox that was made, where its id was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
}

/// What came of a request to make a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxOutcome {
    /// A sandbox.
    Made,
    /// An error.
    Failed,
    /// The caller withdrew the request; what the runtime did of it meanwhile is not known.
    Withdrawn,
}
