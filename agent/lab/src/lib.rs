//! What tests and the demo use besides the agent: the repository's files, programs of others, ports, network namespaces.
//!
//! A development dependency of the crates with such tests, and a dependency of the demo. Does not: depend on the agent or
//! its crates, so that unit tests of every crate may use it.

use std::path::PathBuf;

#[cfg(target_os = "linux")]
pub mod bpf;
pub mod built;
pub mod jaeger;
#[cfg(target_os = "linux")]
pub mod left;
#[cfg(target_os = "linux")]
pub mod netns;
pub mod output;
pub mod peers;
pub mod ports;
pub mod pressure;
pub mod skip;

/// A file or folder of the repository, by its path from the top.
#[must_use]
pub fn file(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path)
}
