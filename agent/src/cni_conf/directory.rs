//! One directory of network configuration: its files, and what the runtime attaches sandboxes to.
//!
//! Used by `CniConf`. Sources: `ConfFiles` of libcni's `conf.go`, `loadFromConfDir` of go-cni's `opts.go` (v1.1.14),
//! `loadNetworks` of ocicni's `ocicni.go` (v0.5.0). Does not: execute plugins for their versions (`versions.rs`).

use std::io;
use std::path::{Path, PathBuf};

use super::binary::Binary;
use super::error::ConfError;
use super::file;
use super::loader::{Libcni, Loader, RuntimeKind};
use super::network::Network;
use super::plugins::Plugin;
use super::settings::CniSettings;

/// What stands in a configuration directory, and what the runtime makes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfDirectory {
    /// Where.
    pub path: PathBuf,
    /// Runtime handlers that use it; empty for the directory of all others.
    pub handlers: Vec<String>,
    /// How many files containerd takes; `None` for all.
    pub max_networks: Option<usize>,
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
    /// Whether its plugins support its version, and why CRI-O passes over it otherwise; `None` until they were queried
    /// ([`CniConf::ask_plugins`](super::CniConf::ask_plugins)).
    pub supported: Option<Result<(), String>>,
}

/// What the runtime attaches sandboxes to. Numbers are places in [`ConfDirectory::files`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// These, one interface each.
    Networks(Vec<usize>),
    /// Nothing: there is no configuration.
    Nothing,
    /// Nothing: containerd stops at the first bad file.
    StoppedAt(usize),
    /// Nothing: CRI-O is configured to take a network that no file configures.
    NotFound(String),
    /// It depends on this file, which only the agent cannot read.
    Unknown(usize),
}

impl ConfFile {
    /// The generations of libcni that disagree with the newest about this file, with their verdicts. Empty unless the
    /// runtime's version is unknown.
    #[must_use]
    pub fn judged_otherwise(&self, loader: Loader) -> Vec<(Libcni, Result<Network, ConfError>)> {
        if loader.libcni.is_some() {
            return Vec::new();
        }
        file::judged_otherwise(&self.path, loader)
    }
}

impl ConfDirectory {
    pub(super) fn read(settings: &CniSettings, path: &Path, max_networks: Option<usize>) -> ConfDirectory {
        let listing = list(path);
        let load = |path: PathBuf| ConfFile {
            network: file::load(&path, settings.loader),
            path,
            supported: None,
        };
        let mut directory = ConfDirectory {
            path: path.to_owned(),
            handlers: Vec::new(),
            max_networks,
            files: listing.files.into_iter().map(load).collect(),
            ignored: listing.ignored,
            truncated: listing.truncated,
            unreadable: listing.unreadable,
            choice: Choice::Nothing,
        };
        directory.choose(settings);
        directory
    }

    /// The networks that the runtime attaches sandboxes to, with their files.
    pub(super) fn chosen(&self) -> impl Iterator<Item = (&Path, &Network)> {
        let places: &[usize] = match &self.choice {
            Choice::Networks(places) => places,
            _ => &[],
        };
        places.iter().filter_map(|place| {
            let file = self.files.get(*place)?;
            Some((file.path.as_path(), file.network.as_ref().ok()?))
        })
    }

    /// Whether the runtime attaches sandboxes to the network of this file.
    #[must_use]
    pub fn is_chosen(&self, place: usize) -> bool {
        matches!(&self.choice, Choice::Networks(places) if places.contains(&place))
    }

    /// containerd takes the first files and gives up on a bad one among them; CRI-O passes over bad ones, and over those
    /// whose plugins it cannot run. An unknown runtime is judged as the milder of both.
    pub(super) fn choose(&mut self, settings: &CniSettings) {
        self.choice = match settings.loader.runtime {
            RuntimeKind::Containerd => self.choose_as_containerd(),
            RuntimeKind::Crio => self.choose_as_crio(settings),
            RuntimeKind::Unknown => self.first(|_, _| true),
        };
    }

    fn choose_as_containerd(&self) -> Choice {
        let mut places = Vec::new();
        for (place, file) in self.files.iter().enumerate() {
            match &file.network {
                Err(error) if error.is_own_limit() => return Choice::Unknown(place),
                Err(_) => return Choice::StoppedAt(place),
                Ok(_) => places.push(place),
            }
            if Some(places.len()) == self.max_networks {
                break;
            }
        }
        if places.is_empty() {
            Choice::Nothing
        } else {
            Choice::Networks(places)
        }
    }

    fn choose_as_crio(&self, settings: &CniSettings) -> Choice {
        let wanted = settings.default_network.as_str();
        let choice = self.first(|file, network| {
            let supported = match &file.supported {
                Some(answers) => answers.is_ok(),
                None => network.has_known_version(),
            };
            supported
                && (wanted.is_empty() || wanted == network.name)
                && network.plugins.iter().all(|plugin| is_found(plugin, settings))
        });
        match choice {
            Choice::Nothing if !wanted.is_empty() && !self.files.is_empty() => Choice::NotFound(wanted.to_owned()),
            choice => choice,
        }
    }

    fn first(&self, is_usable: impl Fn(&ConfFile, &Network) -> bool) -> Choice {
        for (place, file) in self.files.iter().enumerate() {
            match &file.network {
                Err(error) if error.is_own_limit() => return Choice::Unknown(place),
                Ok(network) if is_usable(file, network) => return Choice::Networks(vec![place]),
                Ok(_) | Err(_) => {}
            }
        }
        Choice::Nothing
    }
}

fn is_found(plugin: &Plugin, settings: &CniSettings) -> bool {
    matches!(Binary::find(&plugin.kind, &settings.bin_dirs), Binary::Found(_))
}

#[derive(Default)]
pub(super) struct Listing {
    pub(super) files: Vec<PathBuf>,
    ignored: Vec<PathBuf>,
    truncated: bool,
    unreadable: Option<String>,
}

/// Files of a configuration directory, in the order of the bytes of their names.
pub(super) fn list(directory: &Path) -> Listing {
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
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if file::extension(&path).is_some_and(|have| EXTENSIONS.contains(&have)) {
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

const EXTENSIONS: [&[u8]; 3] = [b"conf", b"conflist", b"json"];
const MAX_ENTRIES: usize = 4096;
const MAX_FILES: usize = 256;
