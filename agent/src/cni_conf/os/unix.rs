//! Paths of the runtimes on Linux (containerd: `internal/cri/config/config_unix.go`), and what is executable there.

use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Directory of network configuration unless a settings file names another.
pub(crate) const DEFAULT_CONF_DIR: &str = "/etc/cni/net.d";
/// Directory of plugins unless a settings file names another.
pub(crate) const DEFAULT_BIN_DIR: &str = "/opt/cni/bin";
/// containerd's settings file, also in k3s and RKE2.
pub(crate) const CONTAINERD_CONFIGS: [&str; 3] = [
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
];
/// What libcni appends to a plugin's type (`pkg/invoke/os_unix.go`).
pub(crate) const PROGRAM_EXTENSIONS: &[&str] = &[""];

pub(crate) fn is_executable(_path: &Path, metadata: &Metadata) -> bool {
    metadata.permissions().mode() & 0o111 != 0
}

/// An absolute path as seen where the node's file system is at `root`.
pub(crate) fn under(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}
