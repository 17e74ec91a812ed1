//! Notices that the CNI configuration changed, cheaply: names, sizes and times of the files, no content.
//!
//! The app polls it every few seconds from a thread that may block. Polling, because a directory that does not exist
//! yet, or is a mount, cannot be watched reliably.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sandglass_model::cni::NetworkList;

use super::{CniConf, CniOptions, list};

/// Remembers what the configuration looked like.
#[derive(Debug)]
pub struct Watch {
    options: CniOptions,
    looked: Option<Look>,
    sent: Option<Vec<NetworkList>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Look {
    directory: PathBuf,
    files: Vec<(PathBuf, Option<(u64, SystemTime)>)>,
}

impl Watch {
    /// Starts with nothing seen.
    #[must_use]
    pub fn new(options: CniOptions) -> Watch {
        Watch {
            options,
            looked: None,
            sent: None,
        }
    }

    /// The networks, when they are others than at the last call; at the first call always.
    pub fn poll(&mut self) -> Option<Vec<NetworkList>> {
        if let Some(looked) = &self.looked
            && *looked == look(&looked.directory, looked.files.iter().map(|(path, _)| path))
        {
            return None;
        }
        let conf = CniConf::read(&self.options);
        let settings = &conf.settings;
        self.looked = Some(look(&settings.conf_dir, settings.watched.iter()));
        let networks = conf.networks();
        if self.sent.as_ref() == Some(&networks) {
            return None;
        }
        self.sent = Some(networks.clone());
        Some(networks)
    }
}

fn look<'a>(directory: &Path, extra: impl Iterator<Item = &'a PathBuf>) -> Look {
    let mut paths = list(directory).files;
    paths.extend(extra.cloned());
    paths.sort();
    paths.dedup();
    let stamp = |path: &Path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.len(), metadata.modified().ok()?))
    };
    Look {
        directory: directory.to_owned(),
        files: paths.into_iter().map(|path| (path.clone(), stamp(&path))).collect(),
    }
}
