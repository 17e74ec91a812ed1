//! The node's CNI configuration, read as the container runtime reads it.
//!
//! The app sends its networks to the correlator (`Body::NetworksConfigured`), which thereby knows when a chain is
//! complete; `doctor` reports what is wrong with it, and the watch what of that stops sandboxes. Files are small, few and
//! bounded; anything may stand in them.
//! That the judgement is the runtime's own is held by `agent/tests/cni_loaders`, which runs the real loaders beside it.
//! Does not: change anything, run a plugin (unless `doctor` queries its versions), or keep secrets (only names, types,
//! versions and ranges of addresses are kept).

mod binary;
mod bounded;
mod directory;
mod error;
mod file;
mod host_local;
mod json;
mod libcni;
mod loader;
mod network;
mod os;
mod plugins;
mod problems;
mod settings;
#[cfg(test)]
mod tests;
mod versions;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sandglass_model::cni::NetworkList;

pub use binary::Binary;
pub use directory::{Choice, ConfDirectory, ConfFile};
pub use error::{ConfError, ReadError};
pub use file::judge;
pub use host_local::{AddressRange, HostLocal};
pub use json::Reason;
pub use loader::{Libcni, Loader, RuntimeKind};
pub use network::{Network, Remark};
pub use plugins::{Delegate, DelegateTo, Plugin};
pub use problems::{Problem, ProblemKind};
pub use settings::{CniOptions, CniSettings, HandlerDirectory, SettingsError};
pub use watch::Watch;

/// The runtime's settings and all configuration that it loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniConf {
    /// Where things are.
    pub settings: CniSettings,
    /// The directories, that of sandboxes without a runtime handler of their own first.
    pub directories: Vec<ConfDirectory>,
}

impl CniConf {
    /// Reads everything.
    #[must_use]
    pub fn read(options: &CniOptions) -> CniConf {
        let settings = CniSettings::find(options);
        let mut directories = vec![ConfDirectory::read(
            &settings,
            &settings.conf_dir,
            settings.max_networks,
        )];
        for handler in &settings.handlers {
            let known = directories
                .iter()
                .position(|known| known.path == handler.conf_dir && known.max_networks == handler.max_networks);
            let at = known.unwrap_or_else(|| {
                directories.push(ConfDirectory::read(&settings, &handler.conf_dir, handler.max_networks));
                directories.len() - 1
            });
            if at > 0 {
                directories[at].handlers.push(handler.handler.clone());
            }
        }
        CniConf { settings, directories }
    }

    /// Queries every plugin of a network for the versions it supports, as CRI-O does, and passes over networks likewise. Does
    /// nothing for other runtimes, which do not query them.
    pub fn ask_plugins(&mut self) {
        if self.settings.loader.runtime != RuntimeKind::Crio {
            return;
        }
        // Several networks use one plugin, mostly with one version.
        let mut answers: BTreeMap<(String, String), Option<String>> = BTreeMap::new();
        for directory in &mut self.directories {
            for file in &mut directory.files {
                let Ok(network) = &file.network else { continue };
                let objection = network.plugins.iter().take(MAX_PLUGINS).find_map(|plugin| {
                    let Binary::Found(binary) = Binary::find(&plugin.kind, &self.settings.bin_dirs) else {
                        return None;
                    };
                    let key = (plugin.kind.clone(), network.version.clone());
                    let objection = || versions::objection(&plugin.kind, &binary, &network.version);
                    answers.entry(key).or_insert_with(objection).clone()
                });
                file.supported = Some(objection.map_or(Ok(()), Err));
            }
            directory.choose(&self.settings);
        }
    }

    /// All networks a plugin may be run for: those of the files, those that Multus-like plugins delegate to, and the
    /// one that containerd has built in. The first of a name counts.
    #[must_use]
    pub fn networks(&self) -> Vec<NetworkList> {
        let mut lists: Vec<NetworkList> = Vec::new();
        let mut add = |network: &str, version: &str, plugins: Vec<String>| {
            // An unnamed network's ADD fails before a plugin is executed.
            if !network.is_empty() && lists.len() < MAX_LISTS && !lists.iter().any(|known| known.network == network) {
                lists.push(NetworkList {
                    network: network.to_owned(),
                    version: version.to_owned(),
                    plugins,
                });
            }
        };
        for network in self.loaded() {
            add(&network.name, &network.version, kinds(&network.plugins));
        }
        for delegate in self.delegates() {
            if let DelegateTo::Network { name, plugins } = &delegate.to {
                add(name, "", kinds(plugins));
            }
        }
        if self.settings.loopback_plugin {
            // `WithLoNetwork` of go-cni's opts.go.
            add("cni-loopback", "0.3.1", vec!["loopback".to_owned()]);
        }
        lists
    }

    /// The pools of addresses that host-local allocates from, for the networks that sandboxes are attached to. The first of a
    /// directory counts: two configurations of one network share its store.
    #[must_use]
    pub fn pools(&self) -> Vec<HostLocal> {
        let mut pools: Vec<HostLocal> = Vec::new();
        for directory in &self.directories {
            for pool in directory.chosen().flat_map(|(_, network)| &network.pools) {
                let is_known = pools.iter().any(|known| known.store() == pool.store());
                if !is_known && pools.len() < MAX_POOLS {
                    pools.push(pool.clone());
                }
            }
        }
        pools
    }

    /// Sets the number of files that the running containerd reports it loads, in place of its settings file's.
    pub fn use_max_networks(&mut self, number: Option<usize>) {
        self.settings.max_networks = number;
        if let Some(default) = self.directories.first_mut() {
            default.max_networks = number;
            default.choose(&self.settings);
        }
    }

    fn loaded(&self) -> impl Iterator<Item = &Network> {
        let files = self.directories.iter().flat_map(|directory| &directory.files);
        files.filter_map(|file| file.network.as_ref().ok())
    }

    fn delegates(&self) -> impl Iterator<Item = &Delegate> {
        let plugins = self
            .loaded()
            .flat_map(|network| network.plugins.iter().flat_map(Plugin::all));
        plugins.flat_map(|plugin| plugin.delegates.iter())
    }
}

fn kinds(plugins: &[Plugin]) -> Vec<String> {
    let kinds = plugins.iter().map(|plugin| plugin.kind.clone());
    kinds.take(MAX_PLUGINS).collect()
}

/// An absolute path of the node as seen where its file system is at `root`.
#[must_use]
pub fn under(root: &Path, path: &str) -> PathBuf {
    os::under(root, path)
}

/// Networks, and plugins of one, that the correlator receives.
const MAX_LISTS: usize = 256;
const MAX_PLUGINS: usize = 64;
/// Pools that are read, and so values of a metric's label.
const MAX_POOLS: usize = 32;
