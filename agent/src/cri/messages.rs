//! The messages of the Kubernetes Container Runtime Interface, version v1, as far as the agent speaks it.
//!
//! Written by hand as prost derives, so that building needs no protoc. Field numbers are those of
//! <https://github.com/kubernetes/cri-api/blob/master/pkg/apis/runtime/v1/api.proto> (package `runtime.v1`); field names
//! are kept. Used by [`super::Cri`], by `identity`, `doctor` and the demo.
//! Fields the agent never reads or sets are left out: prost passes over unknown fields, and unset ones mean default.

use std::collections::BTreeMap;

use prost::{Enumeration, Message};

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
    /// Also give `info`.
    #[prost(bool, tag = "1")]
    pub verbose: bool,
}

/// The runtime's conditions.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct StatusResponse {
    /// The conditions.
    #[prost(message, optional, tag = "1")]
    pub status: Option<RuntimeStatus>,
    /// Runtime-specific JSON texts, only when asked verbosely.
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
    /// Also give `info`.
    #[prost(bool, tag = "2")]
    pub verbose: bool,
}

/// One sandbox.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodSandboxStatusResponse {
    /// The sandbox.
    #[prost(message, optional, tag = "1")]
    pub status: Option<PodSandboxStatus>,
    /// Runtime-specific JSON texts (pid, network namespace, CNI result), only when asked verbosely.
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

// === making and removing sandboxes (the demo and the tests) ===

/// Makes a sandbox.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RunPodSandboxRequest {
    /// What to make.
    #[prost(message, optional, tag = "1")]
    pub config: Option<PodSandboxConfig>,
    /// Runtime class handler; empty for the default.
    #[prost(string, tag = "2")]
    pub runtime_handler: String,
}

/// A sandbox was made.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RunPodSandboxResponse {
    /// Its id.
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
}

/// What sandbox to make.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodSandboxConfig {
    /// What names it.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<PodSandboxMetadata>,
    /// Host name inside.
    #[prost(string, tag = "2")]
    pub hostname: String,
    /// Where logs of its containers go.
    #[prost(string, tag = "3")]
    pub log_directory: String,
    /// Name resolution inside.
    #[prost(message, optional, tag = "4")]
    pub dns_config: Option<DnsConfig>,
    /// Ports of the node that lead inside.
    #[prost(message, repeated, tag = "5")]
    pub port_mappings: Vec<PortMapping>,
    /// Pod labels.
    #[prost(btree_map = "string, string", tag = "6")]
    pub labels: Labels,
    /// Pod annotations.
    #[prost(btree_map = "string, string", tag = "7")]
    pub annotations: Labels,
    /// Linux part.
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxPodSandboxConfig>,
}

/// Name resolution inside a sandbox.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DnsConfig {
    /// Servers.
    #[prost(string, repeated, tag = "1")]
    pub servers: Vec<String>,
    /// Search domains.
    #[prost(string, repeated, tag = "2")]
    pub searches: Vec<String>,
    /// Options of resolv.conf.
    #[prost(string, repeated, tag = "3")]
    pub options: Vec<String>,
}

/// One port mapping.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PortMapping {
    /// See [`Protocol`].
    #[prost(enumeration = "Protocol", tag = "1")]
    pub protocol: i32,
    /// Port inside.
    #[prost(int32, tag = "2")]
    pub container_port: i32,
    /// Port of the node.
    #[prost(int32, tag = "3")]
    pub host_port: i32,
    /// Address of the node; empty for all.
    #[prost(string, tag = "4")]
    pub host_ip: String,
}

/// Transport of a port mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum Protocol {
    /// TCP.
    Tcp = 0,
    /// UDP.
    Udp = 1,
    /// SCTP.
    Sctp = 2,
}

/// Linux part of a sandbox.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LinuxPodSandboxConfig {
    /// cgroup below which the sandbox goes.
    #[prost(string, tag = "1")]
    pub cgroup_parent: String,
    /// Namespaces and more.
    #[prost(message, optional, tag = "2")]
    pub security_context: Option<LinuxSandboxSecurityContext>,
    /// Kernel settings inside.
    #[prost(btree_map = "string, string", tag = "3")]
    pub sysctls: Labels,
}

/// Namespaces and privileges of a sandbox.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LinuxSandboxSecurityContext {
    /// Which namespaces are its own.
    #[prost(message, optional, tag = "1")]
    pub namespace_options: Option<NamespaceOption>,
    /// Root file system read-only.
    #[prost(bool, tag = "4")]
    pub readonly_rootfs: bool,
    /// A privileged container will run in it.
    #[prost(bool, tag = "6")]
    pub privileged: bool,
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

/// Stops a sandbox.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct StopPodSandboxRequest {
    /// Sandbox id.
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
}

/// A sandbox was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct StopPodSandboxResponse {}

/// Removes a sandbox.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RemovePodSandboxRequest {
    /// Sandbox id.
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
}

/// A sandbox was removed.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RemovePodSandboxResponse {}

// === containers ===

/// Asks for all containers; the filter (tag 1) is not used.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ListContainersRequest {}

/// All containers.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListContainersResponse {
    /// The containers.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Container>,
}

/// A container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Container {
    /// Container id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its sandbox.
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: String,
    /// What names it.
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<ContainerMetadata>,
    /// See [`ContainerState`].
    #[prost(enumeration = "ContainerState", tag = "6")]
    pub state: i32,
    /// Creation, nanoseconds since 1970.
    #[prost(int64, tag = "7")]
    pub created_at: i64,
}

/// What names a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerMetadata {
    /// Name in the pod's specification.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Which attempt.
    #[prost(uint32, tag = "2")]
    pub attempt: u32,
}

/// How far a container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum ContainerState {
    /// Made, not started.
    ContainerCreated = 0,
    /// Running.
    ContainerRunning = 1,
    /// Over.
    ContainerExited = 2,
    /// The runtime does not know.
    ContainerUnknown = 3,
}
