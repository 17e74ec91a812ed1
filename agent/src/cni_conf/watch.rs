//! Notices that the CNI configuration or its plugins changed, cheaply: names, sizes and times of the files, no content.
//!
//! The app polls it every few seconds from a thread that may block. Polling, because a directory that does not exist
//! yet, or is a mount, cannot be watched reliably.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sandglass_model::cni::NetworkList;

use super::directory::list;
use super::{CniConf, CniOptions, Problem};

/// Remembers what the configuration looked like at the last poll.
#[derive(Debug)]
pub struct Watch {
    options: CniOptions,
    snapshot: Option<Snapshot>,
    reported: Option<Vec<NetworkList>>,
    problems: Vec<Problem>,
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
            problems: Vec::new(),
        }
    }

    /// The networks, when they differ from those of the last call; at the first call always.
    pub fn poll(&mut self) -> Option<Vec<NetworkList>> {
        if let Some(last) = &self.snapshot
            && *last == snapshot(last.directories.clone(), last.files.iter().map(|(path, _)| path))
        {
            return None;
        }
        let (conf, snapshot) = settled(|| {
            let conf = CniConf::read(&self.options);
            let snapshot = Snapshot::of(&conf);
            (conf, snapshot)
        });
        self.snapshot = snapshot;
        self.problems = conf.problems();
        let networks = conf.networks();
        if self.reported.as_ref() == Some(&networks) {
            return None;
        }
        self.reported = Some(networks.clone());
        Some(networks)
    }

    /// What the last poll found wrong.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The newest time of what the last poll looked at.
    #[must_use]
    pub fn changed(&self) -> Option<SystemTime> {
        let files = self.snapshot.iter().flat_map(|snapshot| &snapshot.files);
        files.filter_map(|(_, stamp)| stamp.map(|(_, modified)| modified)).max()
    }
}

/// Reads until the files look the same after two readings: one that changed between a reading and its snapshot would never be read
/// again. Without a snapshot where they change all the time, so that the next poll reads anew.
fn settled<T>(mut read: impl FnMut() -> (T, Snapshot)) -> (T, Option<Snapshot>) {
    let (mut value, mut before) = read();
    for _ in 1..READS_MAX {
        let (newer, after) = read();
        value = newer;
        if after == before {
            return (value, Some(after));
        }
        before = after;
    }
    (value, None)
}

impl Snapshot {
    /// How the files that were read look now.
    fn of(conf: &CniConf) -> Snapshot {
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
        let binaries = conf.binaries();
        snapshot(directories, conf.settings.watched.iter().chain(&binaries))
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

/// Readings of one poll.
const READS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_change_between_reading_and_snapshot_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("10-pods.conflist");
        fs::write(&file, "old").unwrap();
        let mut readings = 0;
        let mut read = |changes: usize| {
            readings = 0;
            settled(|| {
                let text = fs::read_to_string(&file).unwrap();
                readings += 1;
                if readings <= changes {
                    fs::write(&file, "n".repeat(10 + readings)).unwrap();
                }
                (text, snapshot(Vec::new(), std::iter::once(&file)))
            })
        };
        let (text, seen) = read(1);
        assert_eq!((text.as_str(), seen.is_some()), ("nnnnnnnnnnn", true));
        // Of a file that changes all the time nothing is settled: the next poll reads again.
        assert!(read(usize::MAX).1.is_none());
    }
}
