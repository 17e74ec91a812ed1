//! Messages that make, stop and remove sandboxes; for the demo and the tests.
//!
//! Same source and rules as [`super`].

use prost::Enumeration;

use super::proto::messages;
use super::{NamespaceOption, PodSandboxMetadata};

messages! {
    /// Makes a sandbox.
    message RunPodSandboxRequest {
        /// What to make.
        message PodSandboxConfig config = 1;
        /// Runtime class handler; empty for the default.
        string runtime_handler = 2;
    }

    /// A sandbox was made.
    message RunPodSandboxResponse {
        /// Its id.
        string pod_sandbox_id = 1;
    }

    /// What sandbox to make.
    message PodSandboxConfig {
        /// What names it.
        message PodSandboxMetadata metadata = 1;
        /// Host name inside.
        string hostname = 2;
        /// Where logs of its containers go.
        string log_directory = 3;
        /// Name resolution inside.
        message PodDnsConfig dns_config = 4;
        /// Ports of the node that lead inside.
        repeated PortMapping port_mappings = 5;
        /// Pod labels.
        labels labels = 6;
        /// Pod annotations.
        labels annotations = 7;
        /// Linux part.
        message LinuxPodSandboxConfig linux = 8;
    }

    /// Name resolution inside a sandbox.
    message PodDnsConfig {
        /// Servers.
        strings servers = 1;
        /// Search domains.
        strings searches = 2;
        /// Options of resolv.conf.
        strings options = 3;
    }

    /// One port mapping.
    message PortMapping {
        /// See [`Protocol`].
        enumeration Protocol protocol = 1;
        /// Port inside.
        int32 container_port = 2;
        /// Port of the node.
        int32 host_port = 3;
        /// Address of the node; empty for all.
        string host_ip = 4;
    }
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

messages! {
    /// Linux part of a sandbox.
    message LinuxPodSandboxConfig {
        /// cgroup below which the sandbox goes.
        string cgroup_parent = 1;
        /// Namespaces and more.
        message LinuxSandboxSecurityContext security_context = 2;
        /// Kernel settings inside.
        labels sysctls = 3;
    }

    /// Namespaces and privileges of a sandbox.
    #[derive(Copy)]
    message LinuxSandboxSecurityContext {
        /// Which namespaces are its own.
        message NamespaceOption namespace_options = 1;
        /// Root file system read-only.
        bool readonly_rootfs = 4;
        /// A privileged container will run in it.
        bool privileged = 6;
    }

    /// Stops a sandbox.
    message StopPodSandboxRequest {
        /// Sandbox id.
        string pod_sandbox_id = 1;
    }

    /// A sandbox was stopped.
    #[derive(Copy)]
    message StopPodSandboxResponse {}

    /// Removes a sandbox.
    message RemovePodSandboxRequest {
        /// Sandbox id.
        string pod_sandbox_id = 1;
    }

    /// A sandbox was removed.
    #[derive(Copy)]
    message RemovePodSandboxResponse {}
}
