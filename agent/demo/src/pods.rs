//! Pods to make, and the record of the runtime's calls for each.
//!
//! Used by the scenarios, which fill the records, and by [`crate::verify`], which holds traces against them.
//! Does not: call a runtime.

use std::time::Duration;

use sandglass::cri::messages::{
    LinuxPodSandboxConfig, LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption, PodSandboxConfig,
    PodSandboxMetadata, PortMapping, Protocol,
};
use sandglass_model::cni::PodIdentity;
use sandglass_model::id::SandboxId;

use crate::client::{Talk, Talked};
use crate::networks::Network;
use crate::timing::{CallTimes, PluginClock};

/// What makes sandboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Runtime {
    /// containerd.
    #[default]
    Containerd,
    /// CRI-O. It attaches no `lo` by a plugin, maps ports of the node itself, and knows one network.
    Crio,
}

impl Runtime {
    /// Its name, as traces have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Runtime::Containerd => "containerd",
            Runtime::Crio => "cri-o",
        }
    }
}

/// A pod to make.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Who it is.
    pub identity: PodIdentity,
    /// Which attempt, from 0, as the kubelet counts.
    pub attempt: u32,
    /// The chain its sandbox gets.
    pub network: Network,
    /// A port of the node that leads into it: makes `portmap` call `iptables`.
    pub host_port: Option<u16>,
    /// What the program in it does with its network.
    pub talk: Option<Talk>,
    /// Each of its containers has process ids of its own, as the kubelet requests unless `shareProcessNamespace` is set: CRI-O
    /// starts no process for its sandbox then.
    pub apart: bool,
    /// After this the caller gives up, and the runtime kills what it waits for.
    pub deadline: Duration,
}

impl Pod {
    /// A pod in namespace `shop`. `number` makes its uid unique within a rig.
    #[must_use]
    pub fn new(name: &str, number: u32, network: Network) -> Pod {
        Pod {
            identity: PodIdentity {
                namespace: "shop".to_owned(),
                name: name.to_owned(),
                uid: format!("{number:08x}-5a6d-4c1e-8d00-{:012x}", std::process::id()),
                labels: vec![(
                    "app".to_owned(),
                    name.trim_end_matches(|c: char| c == '-' || c.is_ascii_digit())
                        .to_owned(),
                )],
            },
            attempt: 0,
            network,
            host_port: None,
            talk: None,
            apart: false,
            deadline: Duration::from_secs(60),
        }
    }

    /// The sandbox's configuration as the kubelet would send it.
    #[must_use]
    pub fn config(&self, cgroup_parent: &str) -> PodSandboxConfig {
        PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: self.identity.name.clone(),
                uid: self.identity.uid.clone(),
                namespace: self.identity.namespace.clone(),
                attempt: self.attempt,
            }),
            hostname: self.identity.name.clone(),
            labels: self.identity.labels.iter().cloned().collect(),
            port_mappings: self
                .host_port
                .map(|port| PortMapping {
                    protocol: Protocol::Tcp.into(),
                    container_port: 80,
                    host_port: i32::from(port),
                    host_ip: String::new(),
                })
                .into_iter()
                .collect(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: cgroup_parent.to_owned(),
                security_context: self.apart.then(|| LinuxSandboxSecurityContext {
                    namespace_options: Some(NamespaceOption {
                        pid: NamespaceMode::Container.into(),
                        ..NamespaceOption::default()
                    }),
                    ..LinuxSandboxSecurityContext::default()
                }),
                ..LinuxPodSandboxConfig::default()
            }),
            ..PodSandboxConfig::default()
        }
    }
}

/// The calls to the runtime for one sandbox, and their outcome.
#[derive(Clone, Debug)]
pub struct CallRecord {
    /// The pod.
    pub pod: Pod,
    /// What was called.
    pub runtime: Runtime,
    /// `RunPodSandbox`.
    pub run: CallTimes,
    /// Its answer: the sandbox's id or the runtime's error, cause chain included.
    pub outcome: Result<SandboxId, String>,
    /// `StopPodSandbox`, where it was called.
    pub stop: Option<CallTimes>,
    /// What the network's script plugin read on its own clock.
    pub plugin_clock: Option<PluginClock>,
    /// What the pod's program found, on its own clock; `None` when it has none.
    pub talked: Option<Result<Talked, String>>,
}
