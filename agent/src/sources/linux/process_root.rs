//! Paths as another process sees them: through `/proc/PID/root` (proc(5)).
//!
//! Used by `netns`, by `conntrack` and by `exec::running`: the agent runs in a container, whose file system is not the node's.
//! Does not: change the agent's own root.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};

/// Processes that see the node's file system: kthreadd, which no security module confines, and where there is none (another
/// pid namespace) the first process.
pub const NODE_PIDS: [u32; 2] = [2, 1];

/// Whether `/proc` shows the initial pid namespace, whose ids the kernel side reports.
pub fn sees_all_processes() -> bool {
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == INITIAL_PID_NAMESPACE)
}

/// `path` below the root of a process. Links in it are resolved in the agent's own root: only for a path without links, or
/// where openat2(2) does not serve.
pub fn path_in_root(pid: u32, path: &str) -> String {
    format!("/proc/{pid}/root/{}", path.trim_start_matches('/'))
}

/// The metadata of what a process sees at `path`.
pub fn metadata_in_root(pid: u32, path: &str) -> Option<Metadata> {
    let seen = open_in_root(pid, path).and_then(|file| file.metadata());
    // openat2() came with Linux 5.6, and it does not follow the magic links of /proc with RESOLVE_IN_ROOT.
    seen.or_else(|_| std::fs::metadata(path_in_root(pid, path))).ok()
}

/// Opens what a process sees at `path`, as a place only (`O_PATH`).
///
/// # Errors
/// When there is nothing, or the process may not be looked at (CAP_SYS_PTRACE).
pub fn open_in_root(pid: u32, path: &str) -> io::Result<File> {
    open_below(Path::new(&path_in_root(pid, "/")), path)
}

/// Opens `path` with `root` as the root of the links in it too: `/var/run` leads to `/run`, and that must be the node's.
fn open_below(root: &Path, path: &str) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, flags | OFlags::DIRECTORY, Mode::empty())?;
    let file = rustix::fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?;
    Ok(File::from(file))
}

// include/linux/proc_ns.h: PROC_PID_INIT_INO.
const INITIAL_PID_NAMESPACE: u64 = 0xeffffffc;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    /// The absolute link would lead to the agent's own `/run`, and `..` above the root.
    #[test]
    fn links_lead_to_where_the_process_sees_them() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("run/netns")).unwrap();
        fs::create_dir(root.path().join("var")).unwrap();
        symlink("/run", root.path().join("var/run")).unwrap();
        fs::write(root.path().join("run/netns/cni-1"), "").unwrap();
        let wanted = fs::metadata(root.path().join("run/netns/cni-1")).unwrap().ino();
        let inode = |path| open_below(root.path(), path).unwrap().metadata().unwrap().ino();
        assert_eq!(inode("/var/run/netns/cni-1"), wanted);
        assert_eq!(inode("/../../run/netns/cni-1"), wanted);
        assert!(open_below(root.path(), "/var/run/netns/none").is_err());
    }
}
