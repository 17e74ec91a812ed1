//! CNI terms: the verb of an operation, pod identity from `CNI_ARGS`, a plugin's error, the network configuration.
//!
//! Used by events, spans and the agent's decoders. Source: CNI specification 1.1.0
//! (<https://github.com/containernetworking/cni/blob/main/SPEC.md>). Input comes from processes of the node and is
//! hostile: every parser is total and bounded. Does not: keep the configuration beyond the few fields here.

use std::fmt;
use std::str::FromStr;

use crate::text_list::{split, split_once};
use serde::{Deserialize, Serialize};

/// `CNI_COMMAND`: the operation that the runtime requests (CNI spec 1.1.0, section 2, "CNI operations").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum CniCommand {
    /// Add a container to a network.
    Add,
    /// Remove a container from a network.
    Del,
    /// Check that a container's networking is as expected.
    Check,
    /// Clean up stale resources.
    Gc,
    /// Report whether the plugin is ready for ADD.
    Status,
    /// Report the supported versions of the specification.
    Version,
}

impl CniCommand {
    /// All verbs, in the order of the specification.
    pub const ALL: [CniCommand; 6] = [
        CniCommand::Add,
        CniCommand::Del,
        CniCommand::Check,
        CniCommand::Gc,
        CniCommand::Status,
        CniCommand::Version,
    ];

    /// The verb as in the environment.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            CniCommand::Add => "ADD",
            CniCommand::Del => "DEL",
            CniCommand::Check => "CHECK",
            CniCommand::Gc => "GC",
            CniCommand::Status => "STATUS",
            CniCommand::Version => "VERSION",
        }
    }
}

impl fmt::Display for CniCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for CniCommand {
    type Err = UnknownCommand;

    fn from_str(text: &str) -> Result<CniCommand, UnknownCommand> {
        CniCommand::ALL
            .into_iter()
            .find(|command| command.as_str() == text)
            .ok_or(UnknownCommand)
    }
}

/// The text is no `CNI_COMMAND` of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a CNI command")]
pub struct UnknownCommand;

/// The pod that a sandbox belongs to, as far as known. An empty string means "not known".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodIdentity {
    /// Kubernetes namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Pod name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Pod uid.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Pod labels, sorted by key. Only the CRI reports them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<(String, String)>,
}

impl PodIdentity {
    /// Reads `K8S_POD_NAMESPACE`, `K8S_POD_NAME` and `K8S_POD_UID` of `CNI_ARGS` (`K=V;K=V`), the convention of
    /// containerd and CRI-O. Other keys are passed over; a value longer than 253 bytes (the longest DNS subdomain,
    /// which bounds Kubernetes names) is not an identity and is passed over too.
    #[must_use]
    pub fn from_cni_args(args: &str) -> PodIdentity {
        let mut identity = PodIdentity::default();
        let pairs = split(args, b';').filter_map(|pair| split_once(pair, b'='));
        for (key, value) in pairs.filter(|(_, value)| value.len() <= 253) {
            match key {
                "K8S_POD_NAMESPACE" => identity.namespace = value.to_owned(),
                "K8S_POD_NAME" => identity.name = value.to_owned(),
                "K8S_POD_UID" => identity.uid = value.to_owned(),
                _ => {}
            }
        }
        identity
    }

    /// Nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.namespace.is_empty() && self.name.is_empty() && self.uid.is_empty()
    }

    /// Takes over from `other` what is not known here. Labels are replaced if `other` has some.
    pub fn merge(&mut self, other: &PodIdentity) {
        for (mine, theirs) in [
            (&mut self.namespace, &other.namespace),
            (&mut self.name, &other.name),
            (&mut self.uid, &other.uid),
        ] {
            if mine.is_empty() {
                mine.clone_from(theirs);
            }
        }
        if !other.labels.is_empty() {
            self.labels.clone_from(&other.labels);
        }
    }
}

/// A plugin's error result (CNI spec 1.1.0, section 5, "Error").
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CniError {
    /// Error code: 1-99 reserved by the specification, 100 and above the plugin's own.
    pub code: u32,
    /// Short message.
    pub msg: String,
    /// Longer description; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl CniError {
    /// The low-cardinality class of the code, fit for `error.type` and a metric label.
    /// Codes 1-7, 11, 50 and 51 are the specification's. Of a plugin's own codes, those of an IPAM plugin without a free
    /// address are known by their messages: no two plugins have the same code for it. The rest is `cni_plugin_specific`.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self.code {
            1 => "cni_incompatible_version",
            2 => "cni_unsupported_field",
            3 => "cni_unknown_container",
            4 => "cni_invalid_environment",
            5 => "cni_io_failure",
            6 => "cni_decoding_failure",
            7 => "cni_invalid_network_config",
            11 => "cni_try_again_later",
            50 => "cni_plugin_not_available",
            51 => "cni_limited_connectivity",
            _ if self.is_out_of_addresses() => "cni_ipam_exhausted",
            _ => "cni_plugin_specific",
        }
    }

    fn is_out_of_addresses(&self) -> bool {
        let is_named = |text: &str| {
            let text = text.to_ascii_lowercase();
            OUT_OF_ADDRESSES.iter().any(|phrase| text.contains(phrase))
        };
        is_named(&self.msg) || is_named(&self.details)
    }
}

/// What IPAM plugins report when no address is free, in lower case. Their codes do not distinguish it: 100, 999 and the like
/// stand for every failure.
const OUT_OF_ADDRESSES: [&str; 11] = [
    // host-local and what delegates to it (GKE's and Antrea's node IPAM, flannel, kubenet):
    // containernetworking/plugins `plugins/ipam/host-local/backend/allocator/allocator.go`.
    "no ip addresses available in range set",
    // Calico: projectcalico/calico `cni-plugin/pkg/ipamplugin/ipam_plugin.go`; before version 2 projectcalico/cni-plugin#25.
    "ipam allocated only",
    "addresses available in pool",
    // Cilium: `pkg/ipam/service/ipallocator/allocator.go` (cilium/cilium#18331), `pkg/ipam/pool.go` of multi-pool mode.
    "range is full",
    "all cidr ranges are exhausted",
    "no more free addresses",
    // AWS VPC CNI: aws/amazon-vpc-cni-k8s `cmd/routed-eni-cni-plugin/cni.go`.
    "failed to assign an ip address to container",
    // whereabouts: k8snetworkplumbingwg/whereabouts `pkg/allocate/allocate.go`.
    "could not allocate ip in range",
    // Azure: Azure/azure-container-networking `ipam/api.go`: addresses and pools.
    "no available address",
    // Antrea's flexible IPAM: antrea-io/antrea `pkg/ipam/poolallocator/allocator.go`, spelled so.
    "is exausted",
    // Kube-OVN: kubeovn/kube-ovn#4210.
    "noavailableaddress",
];

/// The network that a plugin works for, from its standard input. Everything else in it, above all secrets, is dropped
/// before this is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetConf {
    /// `name`: the network.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// `type`: the plugin.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub plugin: String,
    /// `cniVersion`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Whether a `prevResult` was passed, which makes it a later plugin of a chain.
    #[serde(default)]
    pub chained: bool,
}

/// One network configuration list as found in the configuration directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkList {
    /// `name` of the list.
    pub network: String,
    /// `cniVersion` of the list.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// `type` of each plugin, in chain order.
    pub plugins: Vec<String>,
}

/// What keeps sandboxes from getting a network, as the agent judges the node's CNI configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigProblem {
    /// Its kind, as the label of the metric `sandglass_cni_config_problems`.
    pub kind: String,
    /// What and where: directory, file, line, plugin.
    pub text: String,
    /// Runtime handlers whose sandboxes it concerns; empty when it concerns all others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub handlers: Vec<String>,
}

/// The runtime that names network namespaces of sandboxes in this form: containerd `cni-UUID` (`pkg/netns/netns_linux.go`,
/// `newNS`), CRI-O the UUID alone (`internal/config/nsmgr`, `NewPodNamespaces`). `None` for any other name: those of
/// `ip netns add`, of podman (`netns-UUID`) and of tests of CNI plugins (`cnitest-UUID`).
#[must_use]
pub fn runtime_of_netns(name: &str) -> Option<&'static str> {
    match name.strip_prefix("cni-") {
        Some(uuid) => is_uuid(uuid).then_some("containerd"),
        None => is_uuid(name).then_some("cri-o"),
    }
}

fn is_uuid(text: &str) -> bool {
    let is_in_place = |(index, byte): (usize, u8)| match index {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_in_place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_read_from_cni_args() {
        let identity = PodIdentity::from_cni_args(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=u-1",
        );
        assert_eq!(identity.namespace, "shop");
        assert_eq!(identity.name, "cart-0");
        assert_eq!(identity.uid, "u-1");
    }

    #[test]
    fn only_the_names_of_runtimes_for_sandboxes_count() {
        let uuid = "0a1b2c3d-1111-2222-3333-0123456789ab";
        assert_eq!(runtime_of_netns(&format!("cni-{uuid}")), Some("containerd"));
        assert_eq!(runtime_of_netns(uuid), Some("cri-o"));
        for name in [
            "",
            "cni-",
            "blue",
            "cni-1",
            &format!("netns-{uuid}"),
            &format!("cnitest-{uuid}-0"),
            &format!("cni-{uuid}0"),
            &format!("cni-{}", &uuid[1..]),
            &uuid.replace('-', "0"),
            &uuid.replace('a', "\u{e4}"),
        ] {
            assert_eq!(runtime_of_netns(name), None, "{name}");
        }
    }

    #[test]
    fn garbage_in_cni_args_is_no_identity() {
        for args in [
            "",
            ";;;",
            "=",
            "K8S_POD_NAME",
            &format!("K8S_POD_NAME={}", "x".repeat(5_000)),
        ] {
            assert!(PodIdentity::from_cni_args(args).is_empty(), "{args:.40}");
        }
    }

    #[test]
    fn an_ipam_plugin_without_addresses_is_known_by_its_words() {
        let class = |code: u32, msg: &str, details: &str| {
            let (msg, details) = (msg.to_owned(), details.to_owned());
            CniError { code, msg, details }.class()
        };
        let host_local =
            "failed to allocate for range 0: no IP addresses available in range set: 10.42.0.1-10.42.0.254";
        assert_eq!(class(999, host_local, ""), "cni_ipam_exhausted");
        assert_eq!(class(100, "", "postIpamFailure range is full"), "cni_ipam_exhausted");
        assert_eq!(
            class(300, "No IPv4 addresses available in pool", ""),
            "cni_ipam_exhausted"
        );
        for message in [
            "failed to request 1 IPv4 addresses. IPAM allocated only 0",
            "unable to allocate IP via local cilium agent: [POST /ipam][502] postIpamFailure \"all CIDR ranges are exhausted\"",
            "add cmd: failed to assign an IP address to container",
            "error at storage engine: Could not allocate IP in range: ip: 172.16.0.1 / - 172.16.0.6 / range: net.IPNet{}",
            "Failed to allocate pool: Failed to delegate: Failed to allocate pool: No available address pools",
            "Failed to allocate address: No available addresses",
            "failed to allocate IP: Pool pool1 is exausted",
            "failed to get static ip, subnet ovn-default, err NoAvailableAddress",
        ] {
            assert_eq!(class(999, message, ""), "cni_ipam_exhausted", "{message}");
        }
        assert_eq!(class(999, "no such range", ""), "cni_plugin_specific");
        // A code of the specification says more than words.
        assert_eq!(class(11, host_local, ""), "cni_try_again_later");
    }

    #[test]
    fn commands_are_exact() {
        assert_eq!("ADD".parse(), Ok(CniCommand::Add));
        assert_eq!("add".parse::<CniCommand>(), Err(UnknownCommand));
    }
}
