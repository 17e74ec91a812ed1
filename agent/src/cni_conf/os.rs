//! What differs between operating systems: where runtimes keep their files, and which files are programs.

#[cfg_attr(windows, path = "os/windows.rs")]
#[cfg_attr(not(windows), path = "os/unix.rs")]
mod imp;

pub(super) use imp::{CONTAINERD_CONFIGS, DEFAULT_BIN_DIR, DEFAULT_CONF_DIR, PROGRAM_EXTENSIONS, is_executable, under};
