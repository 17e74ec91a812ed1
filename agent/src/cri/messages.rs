//! The messages of the Kubernetes Container Runtime Interface, version v1, that the agent uses.
//!
//! Written by hand as prost derives, so that building needs no protoc. Field numbers are those of
//! <https://github.com/kubernetes/cri-api/blob/master/pkg/apis/runtime/v1/api.proto> (package `runtime.v1`); field names
//! are kept. Used by [`super::Cri`], by `identity`, `doctor` and the demo.
//! Fields that the agent neither reads nor sets are left out: prost skips unknown fields, and an unset field is its default.

mod containers;
mod lifecycle;

use std::collections::BTreeMap;

use prost::{Enumeration, Message};

pub use containers::{Container, ContainerMetadata, ContainerState, ListContainersRequest, ListContainersResponse};
pub use lifecycle::{
    LinuxPodSandboxConfig, LinuxSandboxSecurityContext, PodDnsConfig, PodSandboxConfig, PortMapping, Protocol,
    RemovePodSandboxRequest, RemovePodSandboxResponse, RunPodSandboxRequest, RunPodSandboxResponse,
    StopPodSandboxRequest, StopPodSandboxResponse,
};

/// Labels or annotations; a map on the wire, ordered here.
pub type Labels = BTreeMap<String, String>;

// === runtime ===

/// Asks which runtime answers.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct VersionRequest {
    /// Version of the kubelet's runtime API.
    #[prost(string, tag = "1")]
    pub version: String,
}

/// Which runtime answers.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct VersionResponse {
    /// Version of the kubelet's runtime API.
    #[prost(string, tag = "1")]
    pub version: String,
    /// `containerd`, `cri-o`, `docker`.
    #[prost(string, tag = "2")]
    pub runtime_name: String,
    /// Version of the runtime.
    #[prost(string, tag = "3")]
    pub runtime_version: String,
    /// Version of its API.
    #[prost(string, tag = "4")]
    pub runtime_api_version: String,
}

/// Asks for the runtime's conditions.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct StatusRequest {
    /// Also return `info`.
    #[prost(bool, tag = "1")]
    pub verbose: bool,
}

/// The runtime's conditions.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct StatusResponse {
    /// The conditions.
    #[prost(message, optional, tag = "1")]
    pub status: Option<RuntimeStatus>,
    /// Runtime-specific JSON texts, only in a verbose answer.
    #[prost(btree_map = "string, string", tag = "2")]
    pub info: Labels,
}

/// List of conditions.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RuntimeStatus {
    /// `RuntimeReady`, `NetworkReady` and others.
    #[prost(message, repeated, tag = "1")]
    pub conditions: Vec<RuntimeCondition>,
}

/// One condition.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RuntimeCondition {
    /// `RuntimeReady`, `NetworkReady`, ...
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// Whether it holds.
    #[prost(bool, tag = "2")]
    pub status: bool,
    /// Why, in one CamelCase word.
    #[prost(string, tag = "3")]
    pub reason: String,
    /// Why, for people.
    #[prost(string, tag = "4")]
    pub message: String,
}

// === sandboxes ===

/// What names a sandbox.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodSandboxMetadata {
    /// Pod name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Pod uid.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// Pod namespace.
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// Which attempt of the same pod.
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
}

/// Whether a sandbox is usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum PodSandboxState {
    /// It is.
    SandboxReady = 0,
    /// It is not, or no longer.
    SandboxNotready = 1,
}

/// A sandbox, in short.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodSandbox {
    /// Sandbox id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// What names it.
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<PodSandboxMetadata>,
    /// See [`PodSandboxState`].
    #[prost(enumeration = "PodSandboxState", tag = "3")]
    pub state: i32,
    /// Creation, nanoseconds since 1970.
    #[prost(int64, tag = "4")]
    pub created_at: i64,
    /// Pod labels.
    #[prost(btree_map = "string, string", tag = "5")]
    pub labels: Labels,
    /// Pod annotations.
    #[prost(btree_map = "string, string", tag = "6")]
    pub annotations: Labels,
    /// Runtime class handler.
    #[prost(string, tag = "7")]
    pub runtime_handler: String,
}

/// Asks for all sandboxes; the filter (tag 1) is not used.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ListPodSandboxRequest {}

/// All sandboxes.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListPodSandboxResponse {
    /// The sandboxes.
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<PodSandbox>,
}

/// Asks for one sandbox.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodSandboxStatusRequest {
    /// Sandbox id.
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
    /// Also return `info`.
    #[prost(bool, tag = "2")]
    pub verbose: bool,
}

/// One sandbox.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodSandboxStatusResponse {
    /// The sandbox.
    #[prost(message, optional, tag = "1")]
    pub status: Option<PodSandboxStatus>,
    /// Runtime-specific JSON texts (pid, network namespace, CNI result), only in a verbose answer.
    #[prost(btree_map = "string, string", tag = "2")]
    pub info: Labels,
}

/// A sandbox, at length.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodSandboxStatus {
    /// Sandbox id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// What names it.
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<PodSandboxMetadata>,
    /// See [`PodSandboxState`].
    #[prost(enumeration = "PodSandboxState", tag = "3")]
    pub state: i32,
    /// Creation, nanoseconds since 1970.
    #[prost(int64, tag = "4")]
    pub created_at: i64,
    /// Its addresses.
    #[prost(message, optional, tag = "5")]
    pub network: Option<PodSandboxNetworkStatus>,
    /// Its namespaces.
    #[prost(message, optional, tag = "6")]
    pub linux: Option<LinuxPodSandboxStatus>,
    /// Pod labels.
    #[prost(btree_map = "string, string", tag = "7")]
    pub labels: Labels,
    /// Pod annotations.
    #[prost(btree_map = "string, string", tag = "8")]
    pub annotations: Labels,
    /// Runtime class handler.
    #[prost(string, tag = "9")]
    pub runtime_handler: String,
}

/// Namespaces of a sandbox.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LinuxPodSandboxStatus {
    /// The namespaces.
    #[prost(message, optional, tag = "1")]
    pub namespaces: Option<Namespace>,
}

/// Namespaces of a sandbox.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Namespace {
    /// Which are its own.
    #[prost(message, optional, tag = "2")]
    pub options: Option<NamespaceOption>,
}

impl PodSandboxStatus {
    /// Whether the sandbox shares the node's network.
    #[must_use]
    pub fn on_node_network(&self) -> bool {
        let options = self.linux.and_then(|linux| linux.namespaces?.options);
        options.is_some_and(|options| options.network() == NamespaceMode::Node)
    }
}

/// Addresses of a sandbox.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodSandboxNetworkStatus {
    /// The first address.
    #[prost(string, tag = "1")]
    pub ip: String,
    /// The others.
    #[prost(message, repeated, tag = "2")]
    pub additional_ips: Vec<PodIp>,
}

/// One address.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodIp {
    /// IPv4 or IPv6.
    #[prost(string, tag = "1")]
    pub ip: String,
}

/// Which namespaces are a sandbox's own.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct NamespaceOption {
    /// Network, see [`NamespaceMode`].
    #[prost(enumeration = "NamespaceMode", tag = "1")]
    pub network: i32,
    /// Process ids.
    #[prost(enumeration = "NamespaceMode", tag = "2")]
    pub pid: i32,
    /// IPC.
    #[prost(enumeration = "NamespaceMode", tag = "3")]
    pub ipc: i32,
}

/// Who shares a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum NamespaceMode {
    /// All containers of the pod.
    Pod = 0,
    /// One container alone.
    Container = 1,
    /// The node.
    Node = 2,
    /// Another container.
    Target = 3,
}
