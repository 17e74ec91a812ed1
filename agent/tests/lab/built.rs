//! Where the scripts have put what tests use: peers built from Go modules, kernels to boot.
//!
//! Used by the tests that meet real peers. Asks the scripts, so that the places stand in `scripts/places.sh` alone.
//! Does not: build or fetch anything.
#![allow(dead_code, reason = "not every test binary uses all of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The peer that `variable` names, or that `scripts/peer.sh` has built; `None` where there is neither.
pub fn peer(variable: &str, name: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    named
        .or_else(|| printed("scripts/peer.sh", &["--built", name]))
        .filter(|path| path.exists())
}

/// One of the places of `scripts/places.sh`; empty where that script does not run.
pub fn place(name: &str) -> PathBuf {
    printed("scripts/places.sh", &[name]).unwrap_or_default()
}

fn printed(script: &str, arguments: &[&str]) -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(script);
    let output = Command::new(script).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(text.trim()))
}
