//! The statistics messages of CRI v1, the source of the kubelet's summary when it does not read cgroups itself.
//!
//! Same source and rules as [`super::messages`]. Used by `doctor`. A figure that the runtime left out is `None`,
//! which is not the same as 0: the wire has wrapper messages for that reason.

use prost::Message;

use super::messages::{ContainerMetadata, Labels, PodSandboxMetadata};

/// Asks for the statistics of all sandboxes; the filter (tag 1) is not used.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ListPodSandboxStatsRequest {}

/// Statistics of all sandboxes.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListPodSandboxStatsResponse {
    /// One for each sandbox.
    #[prost(message, repeated, tag = "1")]
    pub stats: Vec<PodSandboxStats>,
}

/// Statistics of one sandbox.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodSandboxStats {
    /// Whose.
    #[prost(message, optional, tag = "1")]
    pub attributes: Option<PodSandboxAttributes>,
    /// The figures on Linux.
    #[prost(message, optional, tag = "2")]
    pub linux: Option<LinuxPodSandboxStats>,
}

/// Whose statistics.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodSandboxAttributes {
    /// Sandbox id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// What names it.
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<PodSandboxMetadata>,
    /// Pod labels.
    #[prost(btree_map = "string, string", tag = "3")]
    pub labels: Labels,
}

/// Figures of a sandbox on Linux.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LinuxPodSandboxStats {
    /// Processor.
    #[prost(message, optional, tag = "1")]
    pub cpu: Option<CpuUsage>,
    /// Memory.
    #[prost(message, optional, tag = "2")]
    pub memory: Option<MemoryUsage>,
    /// Network.
    #[prost(message, optional, tag = "3")]
    pub network: Option<NetworkUsage>,
    /// Processes.
    #[prost(message, optional, tag = "4")]
    pub process: Option<ProcessUsage>,
    /// Its containers.
    #[prost(message, repeated, tag = "5")]
    pub containers: Vec<ContainerStats>,
}

/// A figure that may be absent.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct UInt64Value {
    /// The figure.
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

/// Processor use.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CpuUsage {
    /// When measured, nanoseconds since 1970.
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    /// Since the start, nanoseconds of one core.
    #[prost(message, optional, tag = "2")]
    pub usage_core_nano_seconds: Option<UInt64Value>,
    /// Rate over the runtime's last window, billionths of a core.
    #[prost(message, optional, tag = "3")]
    pub usage_nano_cores: Option<UInt64Value>,
}

/// Memory use.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct MemoryUsage {
    /// When measured, nanoseconds since 1970.
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    /// What the kernel could not reclaim at once; eviction looks at this.
    #[prost(message, optional, tag = "2")]
    pub working_set_bytes: Option<UInt64Value>,
    /// Everything.
    #[prost(message, optional, tag = "4")]
    pub usage_bytes: Option<UInt64Value>,
    /// Anonymous memory.
    #[prost(message, optional, tag = "5")]
    pub rss_bytes: Option<UInt64Value>,
}

/// Network use.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NetworkUsage {
    /// When measured, nanoseconds since 1970.
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    /// The interface of the default network.
    #[prost(message, optional, tag = "2")]
    pub default_interface: Option<NetworkInterfaceUsage>,
    /// The others.
    #[prost(message, repeated, tag = "3")]
    pub interfaces: Vec<NetworkInterfaceUsage>,
}

/// Use of one interface.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NetworkInterfaceUsage {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Bytes received.
    #[prost(message, optional, tag = "2")]
    pub rx_bytes: Option<UInt64Value>,
    /// Bytes sent.
    #[prost(message, optional, tag = "4")]
    pub tx_bytes: Option<UInt64Value>,
}

/// Processes.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ProcessUsage {
    /// When counted, nanoseconds since 1970.
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    /// How many.
    #[prost(message, optional, tag = "2")]
    pub process_count: Option<UInt64Value>,
}

/// Asks for the statistics of all containers; the filter (tag 1) is not used.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ListContainerStatsRequest {}

/// Statistics of all containers.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListContainerStatsResponse {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub stats: Vec<ContainerStats>,
}

/// Statistics of one container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerStats {
    /// Whose.
    #[prost(message, optional, tag = "1")]
    pub attributes: Option<ContainerAttributes>,
    /// Processor.
    #[prost(message, optional, tag = "2")]
    pub cpu: Option<CpuUsage>,
    /// Memory.
    #[prost(message, optional, tag = "3")]
    pub memory: Option<MemoryUsage>,
}

/// Whose statistics.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerAttributes {
    /// Container id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// What names it.
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<ContainerMetadata>,
    /// Labels of the container.
    #[prost(btree_map = "string, string", tag = "3")]
    pub labels: Labels,
}
