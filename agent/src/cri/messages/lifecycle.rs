//! Messages that make, stop and remove sandboxes; for the demo and the tests.
//!
//! Same source and rules as [`super`].

use prost::{Enumeration, Message};

use super::{Labels, NamespaceOption, PodSandboxMetadata};

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
    pub dns_config: Option<PodDnsConfig>,
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
pub struct PodDnsConfig {
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
