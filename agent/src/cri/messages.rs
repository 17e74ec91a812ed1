//! The messages of the Kubernetes Container Runtime Interface, version v1, that the agent uses.
//!
//! Written by hand in the notation of `api.proto` (`proto.rs`). Field numbers are those of
//! <https://github.com/kubernetes/cri-api/blob/master/pkg/apis/runtime/v1/api.proto> (package `runtime.v1`); field names
//! are kept. Used by [`super::Cri`], by `identity`, `doctor` and the demo.
//! Fields that the agent neither reads nor sets are left out: prost skips unknown fields, and an unset field is its default.

mod containers;
mod lifecycle;
pub(super) mod proto;

use std::collections::BTreeMap;

use prost::Enumeration;

pub use containers::{Container, ContainerMetadata, ContainerState, ListContainersRequest, ListContainersResponse};
pub use lifecycle::{
    LinuxPodSandboxConfig, LinuxSandboxSecurityContext, PodDnsConfig, PodSandboxConfig, PortMapping, Protocol,
    RemovePodSandboxRequest, RemovePodSandboxResponse, RunPodSandboxRequest, RunPodSandboxResponse,
    StopPodSandboxRequest, StopPodSandboxResponse,
};

use proto::messages;

/// Labels or annotations; a map on the wire, ordered here.
pub type Labels = BTreeMap<String, String>;

// === runtime ===

messages! {
    /// Requests the name and version of the runtime.
    message VersionRequest {
        /// Version of the kubelet's runtime API.
        string version = 1;
    }

    /// Which runtime answers.
    message VersionResponse {
        /// Version of the kubelet's runtime API.
        string version = 1;
        /// `containerd`, `cri-o`, `docker`.
        string runtime_name = 2;
        /// Version of the runtime.
        string runtime_version = 3;
        /// Version of its API.
        string runtime_api_version = 4;
    }

    /// Requests the runtime's conditions.
    message StatusRequest {
        /// Also return `info`.
        bool verbose = 1;
    }

    /// The runtime's conditions.
    message StatusResponse {
        /// The conditions.
        message RuntimeStatus status = 1;
        /// Runtime-specific JSON texts, only in a verbose answer.
        labels info = 2;
    }

    /// List of conditions.
    message RuntimeStatus {
        /// `RuntimeReady`, `NetworkReady` and others.
        repeated RuntimeCondition conditions = 1;
    }

    /// One condition.
    message RuntimeCondition {
        /// `RuntimeReady`, `NetworkReady`, ...
        string r#type = 1;
        /// Whether it holds.
        bool status = 2;
        /// Why, in one CamelCase word.
        string reason = 3;
        /// Why, for people.
        string message = 4;
    }
}

// === sandboxes ===

messages! {
    /// What names a sandbox.
    message PodSandboxMetadata {
        /// Pod name.
        string name = 1;
        /// Pod uid.
        string uid = 2;
        /// Pod namespace.
        string namespace = 3;
        /// Which attempt of the same pod.
        uint32 attempt = 4;
    }
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

messages! {
    /// A sandbox, in short.
    message PodSandbox {
        /// Sandbox id.
        string id = 1;
        /// What names it.
        message PodSandboxMetadata metadata = 2;
        /// See [`PodSandboxState`].
        enumeration PodSandboxState state = 3;
        /// Creation, nanoseconds since 1970.
        int64 created_at = 4;
        /// Pod labels.
        labels labels = 5;
        /// Pod annotations.
        labels annotations = 6;
        /// Runtime class handler.
        string runtime_handler = 7;
    }

    /// Requests all sandboxes; the filter (tag 1) is not used.
    #[derive(Copy)]
    message ListPodSandboxRequest {}

    /// All sandboxes.
    message ListPodSandboxResponse {
        /// The sandboxes.
        repeated PodSandbox items = 1;
    }

    /// Requests one sandbox.
    message PodSandboxStatusRequest {
        /// Sandbox id.
        string pod_sandbox_id = 1;
        /// Also return `info`.
        bool verbose = 2;
    }

    /// One sandbox.
    message PodSandboxStatusResponse {
        /// The sandbox.
        message PodSandboxStatus status = 1;
        /// Runtime-specific JSON texts (pid, network namespace, CNI result), only in a verbose answer.
        labels info = 2;
    }

    /// A sandbox, at length.
    message PodSandboxStatus {
        /// Sandbox id.
        string id = 1;
        /// What names it.
        message PodSandboxMetadata metadata = 2;
        /// See [`PodSandboxState`].
        enumeration PodSandboxState state = 3;
        /// Creation, nanoseconds since 1970.
        int64 created_at = 4;
        /// Its addresses.
        message PodSandboxNetworkStatus network = 5;
        /// Its namespaces.
        message LinuxPodSandboxStatus linux = 6;
        /// Pod labels.
        labels labels = 7;
        /// Pod annotations.
        labels annotations = 8;
        /// Runtime class handler.
        string runtime_handler = 9;
    }

    /// Namespaces of a sandbox.
    #[derive(Copy)]
    message LinuxPodSandboxStatus {
        /// The namespaces.
        message Namespace namespaces = 1;
    }

    /// Namespaces of a sandbox.
    #[derive(Copy)]
    message Namespace {
        /// Which are its own.
        message NamespaceOption options = 2;
    }
}

impl PodSandboxStatus {
    /// Whether the sandbox shares the node's network.
    #[must_use]
    pub fn on_node_network(&self) -> bool {
        let options = self.linux.and_then(|linux| linux.namespaces?.options);
        options.is_some_and(|options| options.network() == NamespaceMode::Node)
    }
}

messages! {
    /// Addresses of a sandbox.
    message PodSandboxNetworkStatus {
        /// The first address.
        string ip = 1;
        /// The others.
        repeated PodIp additional_ips = 2;
    }

    /// One address.
    message PodIp {
        /// IPv4 or IPv6.
        string ip = 1;
    }

    /// Which namespaces are a sandbox's own.
    #[derive(Copy)]
    message NamespaceOption {
        /// Network, see [`NamespaceMode`].
        enumeration NamespaceMode network = 1;
        /// Process ids.
        enumeration NamespaceMode pid = 2;
        /// IPC.
        enumeration NamespaceMode ipc = 3;
    }
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
