//! What tests stand on besides the agent: the repository's files, and programs of others that the scripts have built.
//!
//! A development dependency of the crates with such tests. Does not: depend on the agent or its crates, so that unit tests
//! of every crate may use it.

use std::path::PathBuf;

pub mod built;

/// A file or folder of the repository, by its path from the top.
#[must_use]
pub fn file(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path)
}
