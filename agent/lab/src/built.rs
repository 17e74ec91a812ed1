//! Where the scripts have put what tests use: peers built from Go modules, kernels to boot.
//!
//! Used by the tests that meet real peers. Runs the scripts, so that the places are defined in `scripts/places.sh` alone.
//! Does not: build or fetch anything.

use std::path::PathBuf;
use std::process::Command;

/// The peer that `variable` names, or that `scripts/peer.sh` has built; `None` where there is neither.
#[must_use]
pub fn peer(variable: &str, name: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    named
        .or_else(|| printed("scripts/peer.sh", &["--built", name]))
        .filter(|path| path.exists())
}

/// One of the places of `scripts/places.sh`; empty where that script does not run.
#[must_use]
pub fn place(name: &str) -> PathBuf {
    printed("scripts/places.sh", &[name]).unwrap_or_default()
}

fn printed(script: &str, arguments: &[&str]) -> Option<PathBuf> {
    let output = Command::new(crate::file(script)).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(text.trim()))
}
