//! The statistics messages of CRI v1, the source of the kubelet's summary when it does not read cgroups itself.
//!
//! Same source and rules as [`super::messages`]. Used by `doctor`. A figure that the runtime left out is `None`,
//! which is not the same as 0: the wire has wrapper messages for that reason.

use super::messages::proto::messages;
use super::messages::{ContainerMetadata, PodSandboxMetadata};

messages! {
    /// Requests the statistics of all sandboxes; the filter (tag 1) is not used.
    #[derive(Copy)]
    message ListPodSandboxStatsRequest {}

    /// Statistics of all sandboxes.
    message ListPodSandboxStatsResponse {
        /// One for each sandbox.
        repeated PodSandboxStats stats = 1;
    }

    /// Statistics of one sandbox.
    message PodSandboxStats {
        /// The sandbox.
        message PodSandboxAttributes attributes = 1;
        /// The figures on Linux.
        message LinuxPodSandboxStats linux = 2;
    }

    /// The sandbox that statistics are of.
    message PodSandboxAttributes {
        /// Sandbox id.
        string id = 1;
        /// What names it.
        message PodSandboxMetadata metadata = 2;
        /// Pod labels.
        labels labels = 3;
    }

    /// Figures of a sandbox on Linux.
    message LinuxPodSandboxStats {
        /// Processor.
        message CpuUsage cpu = 1;
        /// Memory.
        message MemoryUsage memory = 2;
        /// Network.
        message NetworkUsage network = 3;
        /// Processes.
        message ProcessUsage process = 4;
        /// Its containers.
        repeated ContainerStats containers = 5;
    }

    /// A figure that may be absent.
    #[derive(Copy)]
    message UInt64Value {
        /// The figure.
        uint64 value = 1;
    }

    /// Processor use.
    #[derive(Copy)]
    message CpuUsage {
        /// When measured, nanoseconds since 1970.
        int64 timestamp = 1;
        /// Since the start, nanoseconds of one core.
        message UInt64Value usage_core_nano_seconds = 2;
        /// Rate over the runtime's last window, billionths of a core.
        message UInt64Value usage_nano_cores = 3;
    }

    /// Memory use.
    #[derive(Copy)]
    message MemoryUsage {
        /// When measured, nanoseconds since 1970.
        int64 timestamp = 1;
        /// What the kernel could not reclaim at once; eviction looks at this.
        message UInt64Value working_set_bytes = 2;
        /// Everything.
        message UInt64Value usage_bytes = 4;
        /// Anonymous memory.
        message UInt64Value rss_bytes = 5;
    }

    /// Network use.
    message NetworkUsage {
        /// When measured, nanoseconds since 1970.
        int64 timestamp = 1;
        /// The interface of the default network.
        message NetworkInterfaceUsage default_interface = 2;
        /// The others.
        repeated NetworkInterfaceUsage interfaces = 3;
    }

    /// Use of one interface.
    message NetworkInterfaceUsage {
        /// Its name.
        string name = 1;
        /// Bytes received.
        message UInt64Value rx_bytes = 2;
        /// Bytes sent.
        message UInt64Value tx_bytes = 4;
    }

    /// Processes.
    #[derive(Copy)]
    message ProcessUsage {
        /// When counted, nanoseconds since 1970.
        int64 timestamp = 1;
        /// How many.
        message UInt64Value process_count = 2;
    }

    /// Requests the statistics of all containers; the filter (tag 1) is not used.
    #[derive(Copy)]
    message ListContainerStatsRequest {}

    /// Statistics of all containers.
    message ListContainerStatsResponse {
        /// One for each container.
        repeated ContainerStats stats = 1;
    }

    /// Statistics of one container.
    message ContainerStats {
        /// The container.
        message ContainerAttributes attributes = 1;
        /// Processor.
        message CpuUsage cpu = 2;
        /// Memory.
        message MemoryUsage memory = 3;
    }

    /// The container that statistics are of.
    message ContainerAttributes {
        /// Container id.
        string id = 1;
        /// What names it.
        message ContainerMetadata metadata = 2;
        /// Labels of the container.
        labels labels = 3;
    }
}
