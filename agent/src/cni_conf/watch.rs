//! Notices that the CNI configuration changed, cheaply: names, sizes and times of the files, no content.
//!
//! The app polls it every few seconds from a thread that may block. Polling, because a directory that does not exist
//! yet, or is a mount, cannot be watched reliably.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sandglass_model::cni::NetworkList;

use super::directory::list;
use super::{CniConf, CniOptions};

/// Remembers what the configuration looked like at the last poll.
#[derive(Debug)]
pub struct Watch {
    options: CniOptions,
    snapshot: Option<Snapshot>,
    reported: Option<Vec<NetworkList>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Snapshot {
    directories: Vec<PathBuf>,
    files: Vec<(PathBuf, Option<(u64, SystemTime)>)>,
}

impl Watch {
    /// Starts with nothing seen.
    #[must_use]
    pub fn new(options: CniOptions) -> Watch {
        Watch {
            options,
            snapshot: None,
            reported: None,
        }
    }

    /// The networks, when they differ from those of the last call; at the first call always.
    pub fn poll(&mut self) -> Option<Vec<NetworkList>> {
        if let Some(last) = &self.snapshot
            && *last == snapshot(last.directories.clone(), last.files.iter().map(|(path, _)| path))
        {
            return None;
        }
        let conf = CniConf::read(&self.options);
        let mut directories: Vec<PathBuf> = conf
            .directories
            .iter()
            .map(|directory| directory.path.clone())
            .collect();
        // libcni from 1.3 adds plugins from a directory of the network's name.
        for directory in &conf.directories {
            let networks = directory.files.iter().filter_map(|file| file.network.as_ref().ok());
            directories.extend(networks.map(|network| directory.path.join(&network.name)));
        }
        self.snapshot = Some(snapshot(directories, conf.settings.watched.iter()));
        let networks = conf.networks();
        if self.reported.as_ref() == Some(&networks) {
            return None;
        }
        self.reported = Some(networks.clone());
        Some(networks)
    }
}

fn snapshot<'a>(directories: Vec<PathBuf>, extra: impl Iterator<Item = &'a PathBuf>) -> Snapshot {
    let mut paths: Vec<PathBuf> = directories.iter().flat_map(|directory| list(directory).files).collect();
    paths.extend(extra.cloned());
    paths.sort();
    paths.dedup();
    let stamp = |path: &Path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.len(), metadata.modified().ok()?))
    };
    Snapshot {
        directories,
        files: paths.into_iter().map(|path| (path.clone(), stamp(&path))).collect(),
    }
}
