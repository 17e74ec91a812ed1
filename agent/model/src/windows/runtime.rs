//! What containerd and its shim report on a Windows node: log lines and spans in ETW.
//!
//! Part of [`super`], which re-exports it. These facts join a pod, its sandbox, its containers and its HCN namespace; no
//! other event names two of them. Does not: hold lines that concern no sandbox.

use serde::{Deserialize, Serialize};

use crate::cni::PodIdentity;
use crate::id::SandboxId;
use crate::time::Timestamp;

/// A report of the runtime: a line of the log that containerd and its shim write to ETW (providers ContainerD and
/// Microsoft.Virtualization.RunHCS).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeReport {
    /// The creation of a sandbox begins (`RunPodSandbox`).
    RunBegan {
        /// The pod.
        identity: PodIdentity,
        /// The kubelet's count of attempts, from 0.
        attempt: u32,
    },
    /// The sandbox was created.
    RunReturned {
        /// The pod.
        identity: PodIdentity,
        /// Its sandbox.
        sandbox: SandboxId,
    },
    /// The creation failed.
    RunFailed {
        /// The pod.
        identity: PodIdentity,
        /// Why, in the runtime's words.
        message: String,
    },
    /// The removal of a sandbox begins: its network is torn down.
    StopBegan {
        /// The sandbox.
        sandbox: SandboxId,
    },
    /// The removal ended, with success or not.
    StopReturned {
        /// The sandbox.
        sandbox: SandboxId,
        /// Why it failed; empty when it did not.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        message: String,
    },
    /// A container was created within a sandbox: a compute system with a silo of its own.
    ContainerOf {
        /// The sandbox.
        sandbox: SandboxId,
        /// The container's id.
        container: String,
    },
    /// A namespace was created for a sandbox, or found to be its own.
    NamespaceOf {
        /// The sandbox.
        sandbox: SandboxId,
        /// The HCN namespace.
        namespace: String,
    },
    /// An endpoint was added to a namespace.
    EndpointOf {
        /// The HCN namespace.
        namespace: String,
        /// The HNS endpoint.
        endpoint: String,
    },
    /// A shim was started for a sandbox.
    ShimLaunched {
        /// The sandbox.
        sandbox: SandboxId,
        /// The shim.
        pid: u32,
    },
    /// A span of the shim's own tracing that ended.
    Span(Box<RuntimeSpan>),
}

/// A span that the shim (RunHCS) made itself and wrote to ETW when it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeSpan {
    /// Its name, e.g. `HcsCreateComputeSystem`.
    pub name: String,
    /// Its trace id, 32 hexadecimal digits.
    pub trace: String,
    /// Its span id, 16 hexadecimal digits.
    pub span: String,
    /// The container or sandbox it is for; empty when not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub container: String,
    /// Begin.
    pub start: Timestamp,
    /// End.
    pub end: Timestamp,
    /// Why it failed; empty when it did not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}
