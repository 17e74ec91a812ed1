//! Paths of the runtimes on Windows (containerd: `internal/cri/config/config_windows.go`, `defaults/defaults_windows.go`),
//! and what is executable there.

use std::fs::Metadata;
use std::path::{Path, PathBuf};

/// Directory of network configuration unless a settings file names another.
pub(crate) const DEFAULT_CONF_DIR: &str = r"C:\Program Files\containerd\cni\conf";
/// Directory of plugins unless a settings file names another.
pub(crate) const DEFAULT_BIN_DIR: &str = r"C:\Program Files\containerd\cni\bin";
/// containerd's settings file; the others are those of AKS Engine and RKE2.
pub(crate) const CONTAINERD_CONFIGS: [&str; 3] = [
    r"C:\Program Files\containerd\config.toml",
    r"C:\ProgramData\containerd\config.toml",
    r"C:\var\lib\rancher\rke2\agent\etc\containerd\config.toml",
];
/// What libcni appends to a plugin's type, in this order (`pkg/invoke/os_windows.go`).
pub(crate) const PROGRAM_EXTENSIONS: &[&str] = &[".exe", ""];

pub(crate) fn is_executable(path: &Path, _metadata: &Metadata) -> bool {
    path.extension().is_some_and(|extension| extension == "exe")
}

/// An absolute path as seen where the node's file system is at `root`. The node's own root has drives, any other has none.
pub(crate) fn under(root: &Path, path: &str) -> PathBuf {
    let path = match path.split_once(':') {
        Some((_, rest)) if root != Path::new("/") => rest.trim_start_matches('\\'),
        _ => path,
    };
    root.join(path.trim_start_matches('/'))
}
