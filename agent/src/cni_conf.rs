//! The node's CNI configuration, read as the container runtime reads it.
//!
//! The app sends its networks to the correlator (`Body::NetworksConfigured`), which thereby knows when a chain is
//! complete; `doctor` reports what is wrong with it. Files are small, few and bounded; anything may stand in them.
//! Does not: change anything, run a plugin, or keep secrets (only names, types and versions are kept).

mod file;
mod plugins;
mod settings;
#[cfg(test)]
mod tests;
mod watch;

use std::io;
use std::path::{Path, PathBuf};

use sandglass_model::cni::NetworkList;

pub use file::{ConfError, Network, ReadError, Remark};
pub use plugins::{Binary, Delegate, DelegateTo, Plugin};
pub use settings::{CniOptions, CniSettings, RuntimeKind, SettingsError};
pub use watch::Watch;

/// What stands in the configuration directory, and what the runtime makes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniConf {
    /// Where things are.
    pub settings: CniSettings,
    /// The configuration files, in the order the runtime reads them.
    pub files: Vec<ConfFile>,
    /// Other files in the directory, which no runtime reads.
    pub ignored: Vec<PathBuf>,
    /// There are more files than the agent reads.
    pub truncated: bool,
    /// Why the directory cannot be listed; `None` also when it is not there.
    pub unreadable: Option<String>,
    /// What the runtime attaches sandboxes to.
    pub choice: Choice,
}

/// One configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfFile {
    /// Where.
    pub path: PathBuf,
    /// What it configures.
    pub network: Result<Network, ConfError>,
}

/// What the runtime attaches sandboxes to. Numbers are places in [`CniConf::files`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// These, one interface each.
    Networks(Vec<usize>),
    /// Nothing: there is no configuration.
    Nothing,
    /// Nothing: containerd stops at the first bad file.
    StoppedAt(usize),
    /// Nothing: CRI-O was told to take a network that no file configures.
    NotFound(String),
}

impl CniConf {
    /// Reads everything.
    #[must_use]
    pub fn read(options: &CniOptions) -> CniConf {
        let settings = CniSettings::find(options);
        let listing = list(&settings.conf_dir);
        let load = |path: PathBuf| ConfFile {
            network: file::load(&path),
            path,
        };
        let files: Vec<ConfFile> = listing.files.into_iter().map(load).collect();
        let choice = choose(&settings, &files);
        CniConf {
            settings,
            files,
            ignored: listing.ignored,
            truncated: listing.truncated,
            unreadable: listing.unreadable,
            choice,
        }
    }

    /// All networks a plugin may be run for: those of the files, those that Multus-like plugins delegate to, and the
    /// one that containerd has built in. The first of a name counts.
    #[must_use]
    pub fn networks(&self) -> Vec<NetworkList> {
        let mut lists: Vec<NetworkList> = Vec::new();
        let mut add = |list: NetworkList| {
            if lists.len() < MAX_FILES && !lists.iter().any(|known| known.network == list.network) {
                lists.push(list);
            }
        };
        for network in self.files.iter().filter_map(|file| file.network.as_ref().ok()) {
            add(NetworkList {
                network: network.name.clone(),
                version: network.version.clone(),
                plugins: kinds(&network.plugins),
            });
        }
        for delegate in self.delegates() {
            if let DelegateTo::Network { name, plugins } = &delegate.to
                && !name.is_empty()
            {
                add(NetworkList {
                    network: name.clone(),
                    version: String::new(),
                    plugins: kinds(plugins),
                });
            }
        }
        if self.settings.loopback_plugin {
            add(NetworkList {
                network: "cni-loopback".to_owned(),
                version: "0.3.1".to_owned(),
                plugins: vec!["loopback".to_owned()],
            });
        }
        lists
    }

    /// Takes the number of files the running containerd says it loads, instead of what its settings file says.
    pub fn use_max_networks(&mut self, number: Option<usize>) {
        self.settings.max_networks = number;
        self.choice = choose(&self.settings, &self.files);
    }

    fn delegates(&self) -> impl Iterator<Item = &Delegate> {
        let networks = self.files.iter().filter_map(|file| file.network.as_ref().ok());
        let plugins = networks.flat_map(|network| network.plugins.iter().flat_map(Plugin::all));
        plugins.flat_map(|plugin| plugin.delegates.iter())
    }
}

fn kinds(plugins: &[Plugin]) -> Vec<String> {
    plugins.iter().map(|plugin| plugin.kind.clone()).collect()
}

/// containerd (go-cni's `loadFromConfDir`) takes the first files and gives up on a bad one among them; CRI-O (ocicni's
/// `loadNetworks`) passes over bad ones, and over those whose plugins it cannot run. Of an unknown runtime the milder is
/// assumed.
fn choose(settings: &CniSettings, files: &[ConfFile]) -> Choice {
    if files.is_empty() {
        return Choice::Nothing;
    }
    let mut good = Vec::new();
    for (place, file) in files.iter().enumerate() {
        match &file.network {
            Err(_) if settings.runtime == RuntimeKind::Containerd => return Choice::StoppedAt(place),
            Err(_) => continue,
            Ok(network) if settings.runtime == RuntimeKind::Crio && !runnable(settings, network) => continue,
            Ok(network) if settings.default_network.is_empty() || settings.default_network == network.name => {
                good.push(place);
            }
            Ok(_) => {}
        }
        let enough = match settings.runtime {
            RuntimeKind::Containerd => settings.max_networks,
            RuntimeKind::Crio | RuntimeKind::Unknown => Some(1),
        };
        if Some(good.len()) == enough {
            break;
        }
    }
    if good.is_empty() && !settings.default_network.is_empty() {
        return Choice::NotFound(settings.default_network.clone());
    }
    if good.is_empty() {
        Choice::Nothing
    } else {
        Choice::Networks(good)
    }
}

fn runnable(settings: &CniSettings, network: &Network) -> bool {
    let found = |plugin: &Plugin| matches!(Binary::find(&plugin.kind, &settings.bin_dirs), Binary::Found(_));
    network.plugins.iter().all(found)
}

#[derive(Default)]
struct Listing {
    files: Vec<PathBuf>,
    ignored: Vec<PathBuf>,
    truncated: bool,
    unreadable: Option<String>,
}

/// Files of the configuration directory, in the order of the bytes of their names.
fn list(directory: &Path) -> Listing {
    let mut listing = Listing::default();
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return listing,
        Err(error) => {
            listing.unreadable = Some(error.to_string());
            return listing;
        }
    };
    for entry in entries.flatten().take(MAX_ENTRIES) {
        let path = entry.path();
        let known = path
            .extension()
            .is_some_and(|have| EXTENSIONS.iter().any(|extension| have == *extension));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if known {
            listing.files.push(path)
        } else {
            listing.ignored.push(path)
        }
    }
    listing.files.sort();
    listing.ignored.sort();
    listing.truncated = listing.files.len() > MAX_FILES;
    listing.files.truncate(MAX_FILES);
    listing
}

const EXTENSIONS: [&str; 3] = ["conf", "conflist", "json"];
const MAX_ENTRIES: usize = 4096;
const MAX_FILES: usize = 256;
