//! Charts of before, from the history of the repository: no release precedes the first.
//!
//! Does not: install them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::server::root;

/// A chart of before.
pub struct Older {
    pub commit: &'static str,
    /// What Helm prints where its whole file of values is handed to the chart of now; nothing where it is taken.
    pub refused: &'static str,
}

/// Where the chart changed what a user of it has.
pub const OLDER: [Older; 3] = [
    // The chart's first commit.
    Older {
        commit: "d5b5ba3db4264e33dcf33bdd42af8fa764fb64e7",
        refused: "at '/linux/appArmorProfile': got string, want object",
    },
    // Before the page had a port apart from the metrics'.
    Older {
        commit: "02aeba51b19aaaaa0b201301aaf3951d0ee93959",
        refused: "at '/linux/appArmorProfile': got string, want object",
    },
    // Before the spool's volume, and the keys that are read while an agent runs.
    Older {
        commit: "31134f211a6b9e66bed3c602e9a7f79940ef26b2",
        refused: "",
    },
];

impl Older {
    /// Writes the chart, with what its links lead to, into a folder; `None` where the history is not here.
    pub fn chart(&self) -> Option<(TempDir, PathBuf)> {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("archive.tar");
        let made = Command::new("git")
            .args(["-c", "safe.directory=*", "archive", "--output"])
            .arg(&archive)
            .args([self.commit, "deploy/helm", "dashboards"])
            .current_dir(root("."))
            .stderr(Stdio::null())
            .status();
        if !made.is_ok_and(|status| status.success()) {
            return None;
        }
        let unpacked = Command::new("tar")
            .arg("xf")
            .arg(&archive)
            .current_dir(folder.path())
            .status();
        assert!(unpacked.unwrap().success(), "tar xf {}", archive.display());
        let chart = folder.path().join(Path::new("deploy/helm/sandglass"));
        Some((folder, chart))
    }
}
