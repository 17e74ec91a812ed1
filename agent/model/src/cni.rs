//! CNI terms: the verb of an operation, pod identity from `CNI_ARGS`, a plugin's error, the network configuration.
//!
//! Source: CNI specification 1.1.0 (<https://github.com/containernetworking/cni/blob/main/SPEC.md>).
//! Input here comes from processes of the node and is hostile: every parser is total and bounded.

use std::fmt;
use std::str::FromStr;

use crate::text_list::{split, split_once};
use serde::{Deserialize, Serialize};

/// `CNI_COMMAND`: what the runtime asks (CNI spec 1.1.0, section 2, "CNI operations").
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
    /// Is the plugin ready for ADD?
    Status,
    /// Which specification versions does the plugin support?
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

/// A `CNI_COMMAND` that the specification does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a CNI command")]
pub struct UnknownCommand;

/// Who a sandbox belongs to, as far as known. Empty strings mean "not known".
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
    /// Pod labels, only when the CRI socket gave them, sorted by key.
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

    /// True when nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.namespace.is_empty() && self.name.is_empty() && self.uid.is_empty()
    }

    /// Takes from `other` what is not known here; labels are replaced when `other` has some.
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
    /// Codes 1-7, 11, 50 and 51 are the specification's; everything else is `cni_plugin_specific`.
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
            _ => "cni_plugin_specific",
        }
    }
}

/// What a plugin's standard input says of the network it works for. Everything else in it, secrets above all, is
/// dropped before this is made.
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
    /// Whether a `prevResult` was given, which makes it a later plugin of a chain.
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
    fn commands_are_exact() {
        assert_eq!("ADD".parse(), Ok(CniCommand::Add));
        assert_eq!("add".parse::<CniCommand>(), Err(UnknownCommand));
    }
}
