//! `plugins`: which processes count as plugins and runtimes, besides those that could set up the node's networks anyway.
//!
//! Used by [`super::Config`]. Every exception lets processes that it covers make traces, metrics and label values of their
//! choice; `SECURITY.md` has the risk of each.

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// `plugins`: which processes count as plugins and runtimes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PluginsConfig {
    /// Who is trusted besides processes of the root namespaces with CAP_NET_ADMIN or CAP_SYS_ADMIN.
    pub trust: TrustConfig,
}

/// `plugins.trust`: who is trusted besides processes of the root namespaces with CAP_NET_ADMIN or CAP_SYS_ADMIN.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrustConfig {
    /// Cgroups (v2 paths) whose processes are trusted, whatever they hold, and those of all cgroups below.
    pub cgroups: Vec<String>,
    /// User ids of rootless runtimes; their processes in the initial pid namespace are trusted.
    pub users: Vec<u32>,
}

impl PluginsConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let TrustConfig { cgroups, users } = &self.trust;
        let is_path = |path: &String| path.starts_with('/') && !path.split('/').any(|part| part == "..");
        if cgroups.len() > ENTRIES_MAX || !cgroups.iter().all(is_path) {
            return Err(ConfigError::value(
                "plugins.trust.cgroups",
                "must be at most 16 paths from the root of the cgroup v2 tree, as /system.slice/podman.service",
            ));
        }
        if users.len() > ENTRIES_MAX || users.iter().any(|uid| [0, u32::MAX].contains(uid)) {
            return Err(ConfigError::value(
                "plugins.trust.users",
                "must be at most 16 user ids between 1 and 4294967294; root is judged by its namespaces and capabilities",
            ));
        }
        Ok(())
    }
}

/// Places in the kernel side's table (`probes/src/wire/trust.rs`).
const ENTRIES_MAX: usize = 16;
