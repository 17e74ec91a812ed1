//! Paths of cgroups by their id, which is the inode number of the cgroup's directory (cgroup v2; include/linux/cgroup.h,
//! cgroup_id).
//!
//! Used by the feed of the process probe, and by `dns` for the root. Plugins run in the runtime's own cgroup, so the cache
//! answers nearly every lookup; a miss reads one file of the process, and only when that does not help the tree is walked, at
//! most once a second. The path of an unknown cgroup is empty. Does not: know cgroup v1 (a hybrid node's v2 tree is used).

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The cache. Ids are unique for as long as the node runs (kernfs counts them up), so that an entry is never wrong, only old: a
/// renamed cgroup keeps its first path.
#[derive(Debug)]
pub struct Cgroups {
    /// Where the v2 tree is mounted; `None` on a node with cgroup v1 only, where every path is empty.
    mount: Option<PathBuf>,
    /// By id, at most [`CACHED_MAX`].
    paths: HashMap<u64, String>,
    /// When the tree was walked last.
    walked: Option<Instant>,
}

impl Cgroups {
    /// Finds the mount point of the v2 tree.
    #[must_use]
    pub fn new() -> Cgroups {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        Cgroups {
            mount: mount_point(&mounts),
            paths: HashMap::new(),
            walked: None,
        }
    }

    /// Path of cgroup `id` from the root of the tree, with a leading `/`; `pid` is a process that was just in it.
    pub fn path(&mut self, id: u64, pid: u32) -> String {
        if id == 0 {
            return String::new();
        }
        if let Some(path) = self.paths.get(&id) {
            return path.clone();
        }
        // Cleared rather than aged: a runtime's cgroups are back with the next exec.
        if self.paths.len() >= CACHED_MAX {
            self.paths.clear();
        }
        if let Some(path) = self.path_of_process(id, pid) {
            self.paths.insert(id, path.clone());
            return path;
        }
        if self.walked.is_none_or(|at| at.elapsed() >= WALK_EVERY) {
            self.walk();
            self.walked = Some(Instant::now());
        }
        self.paths.get(&id).cloned().unwrap_or_default()
    }

    /// The id of the cgroup at a path from the root of the tree; `None` when there is none.
    pub fn id(&self, path: &str) -> Option<u64> {
        let directory = self.mount.as_ref()?.join(path.trim_start_matches('/'));
        fs::metadata(directory).ok().map(|directory| directory.ino())
    }

    /// The path in `/proc/PID/cgroup`, if the directory there has this id: the process may have moved.
    fn path_of_process(&self, id: u64, pid: u32) -> Option<String> {
        let path = own_path(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)?;
        let mount = self.mount.as_ref()?;
        let directory = fs::metadata(mount.join(path.trim_start_matches('/'))).ok()?;
        (directory.ino() == id).then_some(path)
    }

    /// Notes every directory of the tree, at most [`CACHED_MAX`]. Needed only where a process was gone before its cgroup was
    /// looked up.
    fn walk(&mut self) {
        let Some(mount) = self.mount.clone() else { return };
        if let Ok(root) = fs::metadata(&mount) {
            self.paths.insert(root.ino(), "/".to_owned());
        }
        let mut pending = vec![mount.clone()];
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                if self.paths.len() >= CACHED_MAX {
                    return;
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    self.paths.insert(entry.ino(), path_below(&mount, &entry.path()));
                    pending.push(entry.path());
                }
            }
        }
    }
}

impl Default for Cgroups {
    fn default() -> Cgroups {
        Cgroups::new()
    }
}

/// The path of a directory from the root of the tree, with a leading `/`, as `/proc/PID/cgroup` has it.
fn path_below(mount: &Path, directory: &Path) -> String {
    let below = directory.strip_prefix(mount).unwrap_or(directory);
    format!("/{}", below.display())
}

/// The v2 line of `/proc/PID/cgroup`: `0::/path`.
#[must_use]
pub fn own_path(text: &str) -> Option<String> {
    text.lines()
        .find_map(|line| line.strip_prefix("0::"))
        .map(str::to_owned)
}

/// The first cgroup2 mount of `/proc/self/mounts` (proc_pid_mounts(5): device, mount point, type).
fn mount_point(mounts: &str) -> Option<PathBuf> {
    mount_points(mounts).next()
}

/// All of them, in the order of mounting. A path with a space in it, which is written as `\040`, is not found.
fn mount_points(mounts: &str) -> impl Iterator<Item = PathBuf> {
    mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (_, point, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(point))
    })
}

/// Ten times the cgroups of a node with its 110 pods (the kubelet's default limit). When it is full, the cache starts anew.
const CACHED_MAX: usize = 4096;
/// So that processes which end at once cannot make the agent walk without pause.
const WALK_EVERY: Duration = Duration::from_secs(1);

/// The directory of the v2 tree's root, and whether it is the node's own root. A container may see several mounts: the one of
/// its own cgroup namespace (cgroup_namespaces(7)) is a part of the tree, the node's directory mounted into it is the whole.
///
/// # Errors
/// When no v2 tree is mounted.
pub fn open_root() -> io::Result<(fs::File, bool)> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mut part = None;
    for point in mount_points(&mounts) {
        let Ok(root) = fs::File::open(point) else { continue };
        if root.metadata().is_ok_and(|root| root.ino() == ROOT_INODE) {
            return Ok((root, true));
        }
        part = part.or(Some(root));
    }
    let no_mount = || io::Error::new(io::ErrorKind::NotFound, "no cgroup2 file system is mounted");
    part.map(|root| (root, false)).ok_or_else(no_mount)
}

// The root of a kernfs tree has inode number 1 (fs/kernfs/dir.c, kernfs_create_root).
const ROOT_INODE: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// The node's own root is preferred to that of the agent's cgroup namespace, whichever is mounted first.
    #[test]
    fn the_root_is_found_where_a_v2_tree_is_mounted() {
        match open_root() {
            Ok((root, whole)) => assert_eq!(whole, root.metadata().unwrap().ino() == ROOT_INODE),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
        }
        let two = "cgroup2 /a cgroup2 rw 0 0\ntmpfs /b tmpfs rw 0 0\ncgroup2 /c cgroup2 ro 0 0\n";
        let found: Vec<PathBuf> = mount_points(two).collect();
        assert_eq!(found, [PathBuf::from("/a"), PathBuf::from("/c")]);
    }

    /// systemd mounts the v2 tree of a hybrid node beside the v1 hierarchies.
    #[test]
    fn the_v2_tree_is_found_on_unified_and_hybrid_nodes() {
        let unified = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        assert_eq!(mount_point(unified), Some(PathBuf::from("/sys/fs/cgroup")));
        let hybrid = "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mount_point(hybrid), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(mount_point("garbage\n\n"), None);
    }

    #[test]
    fn own_path_is_the_v2_line() {
        assert_eq!(
            own_path("4:cpu:/x\n0::/system.slice/containerd.service\n").as_deref(),
            Some("/system.slice/containerd.service")
        );
        assert_eq!(own_path("4:cpu:/x\n"), None);
    }

    /// By its pid, and by walking the tree when the process is gone.
    #[test]
    fn this_process_is_found_by_id_and_a_stranger_is_not() {
        let mut cgroups = Cgroups::new();
        let Some(mount) = cgroups.mount.clone() else {
            return;
        };
        let own = own_path(&fs::read_to_string("/proc/self/cgroup").unwrap()).unwrap();
        let Ok(directory) = fs::metadata(mount.join(own.trim_start_matches('/'))) else {
            return;
        };
        assert_eq!(cgroups.path(directory.ino(), std::process::id()), own);
        // A process that is gone: found by walking.
        let mut cold = Cgroups::new();
        assert_eq!(cold.path(directory.ino(), u32::MAX), own);
        assert_eq!(cold.path(u64::MAX, u32::MAX), "");
        assert_eq!(cold.path(0, std::process::id()), "");
    }
}
