//! A network that a file configures, and what is remarkable about it although the runtime loads it.
//!
//! Used by `doctor` and, as a list of names, by the correlator. Sources: CNI specification 1.1.0, sections 1 and 4;
//! `ValidateNetworkName` of libcni's `pkg/utils/utils.go`. Does not: keep anything of a file but names, types, versions and
//! ranges of addresses.

use super::bounded::bounded;
use super::host_local::{HostLocal, host_local};
use super::libcni::{NEWEST_VERSION, NetworkListFile, PluginConf, number};
use super::loader::RuntimeKind;
use super::plugins::{Plugin, delegates};

/// A network that a file configures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// `name`; CRI-O takes the file's name where it is empty. At most 256 bytes, as all texts here.
    pub name: String,
    /// `cniVersion`, or the highest usable of `cniVersions`; empty when absent.
    pub version: String,
    /// The chain.
    pub plugins: Vec<Plugin>,
    /// The pools of addresses that its host-local plugins allocate from.
    pub pools: Vec<HostLocal>,
    /// What does not keep the runtime from loading it.
    pub remarks: Vec<Remark>,
    /// `disableCheck`.
    pub check_disabled: bool,
    /// `disableGC`.
    pub gc_disabled: bool,
}

/// Something about a network that is loaded, but fails later or is not as meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// `name` is empty, and the runtime has no other name for it: every ADD fails.
    NoName,
    /// `name` is empty, and CRI-O takes the file's name.
    NamedAfterFile,
    /// `name` has characters that libcni refuses when it executes a plugin.
    BadName,
    /// `cniVersion` is missing.
    NoVersion,
    /// `cniVersion` is newer than any known.
    FutureVersion,
    /// `cniVersion` is no version of the specification.
    BadVersion,
    /// A plugin of a list has a `name` of its own, which is overwritten.
    NameOverwritten {
        /// The plugin's type.
        plugin: String,
        /// The name that is overwritten.
        name: String,
    },
    /// A plugin of a list has a `cniVersion` of its own, which is overwritten.
    VersionOverwritten {
        /// The plugin's type.
        plugin: String,
        /// The version that is overwritten.
        version: String,
    },
}

impl Network {
    /// Of a list that was loaded from a file of this name.
    pub(super) fn new(list: NetworkListFile, file_name: &str, runtime: RuntimeKind, is_list: bool) -> Network {
        let mut remarks = Vec::new();
        let mut name = list.name;
        if name.is_empty() && runtime == RuntimeKind::Crio {
            file_name.clone_into(&mut name);
            remarks.push(Remark::NamedAfterFile);
        }
        if name.is_empty() {
            remarks.push(Remark::NoName);
        } else if !name_is_allowed(&name) {
            remarks.push(Remark::BadName);
        }
        match number(&list.version) {
            _ if list.version.is_empty() => remarks.push(Remark::NoVersion),
            Some(version) if version > NEWEST_VERSION => remarks.push(Remark::FutureVersion),
            _ if is_released(&list.version) => {}
            _ => remarks.push(Remark::BadVersion),
        }
        if is_list {
            remarks.extend(
                list.plugins
                    .iter()
                    .flat_map(|conf| overwritten(conf, &name, &list.version)),
            );
        }
        Network {
            name: bounded(&name),
            version: bounded(&list.version),
            plugins: list.plugins.iter().map(plugin).collect(),
            pools: list
                .plugins
                .iter()
                .flat_map(|conf| host_local(&conf.members, &name))
                .collect(),
            remarks,
            check_disabled: list.check_disabled,
            gc_disabled: list.gc_disabled,
        }
    }

    /// Whether a runtime may request CHECK (from 0.4.0).
    #[must_use]
    pub fn has_check(&self) -> bool {
        !self.check_disabled && self.is_at_least((0, 4, 0))
    }

    /// Whether a runtime may request STATUS (from 1.1.0).
    #[must_use]
    pub fn has_status(&self) -> bool {
        self.is_at_least((1, 1, 0))
    }

    /// Whether a runtime may request GC (from 1.1.0).
    #[must_use]
    pub fn has_gc(&self) -> bool {
        !self.gc_disabled && self.is_at_least((1, 1, 0))
    }

    /// Whether plugins can support its version. CRI-O requires that each plugin of the chain lists exactly this text
    /// (`validatePlugin` of libcni's `api.go`); one that no specification has is listed by none.
    #[must_use]
    pub fn has_known_version(&self) -> bool {
        self.version.is_empty() || is_released(&self.version)
    }

    fn is_at_least(&self, least: (i64, i64, i64)) -> bool {
        number(&self.version).is_some_and(|version| version >= least)
    }
}

fn plugin(conf: &PluginConf) -> Plugin {
    Plugin {
        kind: bounded(&conf.kind),
        delegates: delegates(&conf.kind, &conf.members),
    }
}

fn overwritten(conf: &PluginConf, name: &str, version: &str) -> Vec<Remark> {
    let mut remarks = Vec::new();
    if !conf.name.is_empty() && conf.name != name {
        remarks.push(Remark::NameOverwritten {
            plugin: bounded(&conf.kind),
            name: bounded(&conf.name),
        });
    }
    if !conf.version.is_empty() && conf.version != version {
        remarks.push(Remark::VersionOverwritten {
            plugin: bounded(&conf.kind),
            version: bounded(&conf.version),
        });
    }
    remarks
}

fn name_is_allowed(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    name.bytes().all(inner) && name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
}

fn is_released(version: &str) -> bool {
    RELEASES.contains(&version)
}

/// Versions of the specification (`version.All` of libcni's `pkg/version/version.go`).
const RELEASES: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
