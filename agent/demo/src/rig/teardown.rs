//! Takes a rig down, whatever state it is in: at its end, or at the next start when its owner was killed.
//!
//! Used by [`super::Rig`]. What belongs to a rig is known from the kernel's own books, never from names that others
//! might share: processes by the rig's cgroup, which they inherit; mounts by lying below the rig's directory; links,
//! addresses and iptables rules by lying in the rig's network namespace, which the kernel removes with its last process.
//! Does not: touch anything of a rig whose owner lives (it holds the lock on its directory).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sandglass_lab::pressure;

use super::mounts;
use super::programs::SEARCH;

/// What could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum TeardownError {
    /// Some process of the rig is still there.
    #[error("processes in cgroup {cgroup} do not end")]
    Processes {
        /// The cgroup.
        cgroup: PathBuf,
    },
    /// Something is still mounted, so nothing below the directory was removed.
    #[error("{point} cannot be unmounted")]
    Mount {
        /// Where.
        point: PathBuf,
    },
    /// A file or directory stays.
    #[error("cannot remove {path}")]
    Remove {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Where a rig's things are: all of it follows from its directory.
#[derive(Clone, Debug)]
pub(super) struct Site {
    /// The rig's directory.
    pub(super) dir: PathBuf,
}

impl Site {
    /// Name of the rig's cgroup in every hierarchy.
    pub(super) fn cgroup(&self) -> String {
        let id = self.dir.file_name().map(|name| name.to_string_lossy().into_owned());
        format!("{}{}", pressure::NODES, id.unwrap_or_default())
    }

    /// Where the rig's cgroups are or would be, version 2 first.
    pub(super) fn cgroup_paths(&self) -> impl Iterator<Item = PathBuf> {
        let name = self.cgroup();
        let roots = mounts::cgroup_roots().into_iter();
        roots.map(move |mount| mount.point.join(&name))
    }

    /// The rig's cgroups that exist, version 2 first.
    fn cgroups(&self) -> Vec<PathBuf> {
        self.cgroup_paths().filter(|path| path.is_dir()).collect()
    }

    /// Ends every process, unmounts, and removes every file of the rig, in this order. Goes as far as it can; the
    /// first thing that stays is the error.
    pub(super) fn clear(&self) -> Result<(), TeardownError> {
        let mut first = None;
        let mut note = |result: Result<(), TeardownError>| {
            if let Err(error) = result {
                first.get_or_insert(error);
            }
        };
        let cgroups = self.cgroups();
        for cgroup in &cgroups {
            note(end_processes(cgroup));
        }
        // Read before the directory's own file system goes.
        let (outside, made) = (self.outside(), made_directories(&self.dir));
        note(self.unmount());
        for cgroup in &cgroups {
            note(remove_cgroup(cgroup));
        }
        for path in outside {
            // Gone already when the shim or the plugin cleaned up behind itself.
            let _ = fs::remove_file(path);
        }
        if let Some(error) = first {
            return Err(error);
        }
        fs::remove_dir_all(&self.dir).map_err(|source| TeardownError::Remove {
            path: self.dir.clone(),
            source,
        })?;
        for path in made {
            // Not empty: another process uses it now.
            let _ = fs::remove_dir(path);
        }
        Ok(())
    }

    /// Files outside the directory: the shims' sockets, whose place is fixed in containerd, and libcni's result cache,
    /// which runtimes do not let one choose. Both carry a sandbox id or a hash of one in their names.
    fn outside(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for namespace in entries(&self.dir.join("state/io.containerd.runtime.v2.task")) {
            for bundle in entries(&namespace) {
                files.extend(shim_socket(&bundle));
            }
        }
        let cached = entries(Path::new(CNI_CACHE));
        let containerds = entries(&self.dir.join("root/io.containerd.grpc.v1.cri/sandboxes"));
        let crios = entries(&self.dir.join("root/vfs-containers"));
        for sandbox in containerds.into_iter().chain(crios) {
            let Some(id) = sandbox.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            if id.len() >= 32 {
                files.extend(
                    cached
                        .iter()
                        .filter(|path| path.to_string_lossy().contains(id))
                        .cloned(),
                );
            }
        }
        files
    }

    fn unmount(&self) -> Result<(), TeardownError> {
        let points = mounts::below(&self.dir);
        for point in &points {
            // Lazily: a mount point that is busy for another millisecond is detached now and freed then.
            let _ = Command::new("umount")
                .arg("--lazy")
                .arg("--no-canonicalize")
                .arg(point)
                .env("PATH", SEARCH)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
        }
        match mounts::below(&self.dir).pop() {
            Some(point) => Err(TeardownError::Mount { point }),
            None => Ok(()),
        }
    }
}

/// The socket of the shim that a bundle belongs to: containerd 1.x writes its address, 2.x what the shim answered at
/// its start, as JSON.
fn shim_socket(bundle: &Path) -> Option<PathBuf> {
    let read = |name: &str| fs::read_to_string(bundle.join(name)).ok();
    let address = read("address").or_else(|| {
        let answer: serde_json::Value = serde_json::from_str(&read("bootstrap.json")?).ok()?;
        Some(answer["address"].as_str()?.to_owned())
    })?;
    let socket = address.trim().strip_prefix("unix://")?;
    socket.starts_with(SHIM_SOCKETS).then(|| PathBuf::from(socket))
}

/// Notes which directories outside the rig's do not exist yet, so that the end can remove those it made.
pub(super) fn note_missing_directories(dir: &Path) -> io::Result<()> {
    let missing: Vec<&str> = MAY_BE_MADE
        .into_iter()
        .filter(|path| !Path::new(path).exists())
        .collect();
    fs::write(dir.join("made"), missing.join("\n"))
}

fn made_directories(dir: &Path) -> Vec<PathBuf> {
    let made = fs::read_to_string(dir.join("made")).unwrap_or_default();
    MAY_BE_MADE
        .into_iter()
        .filter(|path| made.lines().any(|line| line == *path))
        .map(PathBuf::from)
        .collect()
}

/// `cgroup.kill` ends all at once (Linux 5.14); before that, and in version 1, one by one until none is left.
fn end_processes(cgroup: &Path) -> Result<(), TeardownError> {
    let deadline = Instant::now() + PATIENCE;
    let _ = fs::write(cgroup.join("cgroup.kill"), "1");
    loop {
        let pids = processes(cgroup);
        if pids.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(TeardownError::Processes {
                cgroup: cgroup.to_owned(),
            });
        }
        for pid in pids {
            end_member(cgroup, pid);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Kills `pid` if it is still a member: the pidfd pins the process, the second look makes sure it is the right one.
fn end_member(cgroup: &Path, pid: i32) {
    let Some(pid) = rustix::process::Pid::from_raw(pid) else {
        return;
    };
    let Ok(process) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else {
        return;
    };
    if processes(cgroup).contains(&pid.as_raw_nonzero().get()) {
        let _ = rustix::process::pidfd_send_signal(process, rustix::process::Signal::KILL);
    }
}

/// Pids in `cgroup` and everything below it.
fn processes(cgroup: &Path) -> Vec<i32> {
    let mut pids: Vec<i32> = fs::read_to_string(cgroup.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    for below in entries(cgroup).iter().filter(|path| path.is_dir()) {
        pids.extend(processes(below));
    }
    pids
}

fn remove_cgroup(cgroup: &Path) -> Result<(), TeardownError> {
    for below in entries(cgroup).iter().filter(|path| path.is_dir()) {
        remove_cgroup(below)?;
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        match fs::remove_dir(cgroup) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // Busy until the kernel has buried the last process.
            Err(source) if Instant::now() > deadline => {
                return Err(TeardownError::Remove {
                    path: cgroup.to_owned(),
                    source,
                });
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

pub(super) fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).map_or_else(
        |_| Vec::new(),
        |entries| entries.flatten().map(|entry| entry.path()).collect(),
    )
}

const PATIENCE: Duration = Duration::from_secs(10);
const SHIM_SOCKETS: &str = "/run/containerd/s/";
const CNI_CACHE: &str = "/var/lib/cni/results";
/// Innermost first: the order in which they can be removed.
const MAY_BE_MADE: [&str; 4] = [
    "/run/containerd/s",
    "/run/containerd",
    "/var/lib/cni/results",
    "/var/lib/cni",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shims_socket_is_found_as_either_containerd_notes_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(shim_socket(dir.path()), None);
        let note = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        note(
            "bootstrap.json",
            r#"{"version":3,"address":"unix:///run/containerd/s/ab","protocol":"ttrpc"}"#,
        );
        assert_eq!(shim_socket(dir.path()), Some(PathBuf::from("/run/containerd/s/ab")));
        note("address", "unix:///run/containerd/s/cd\n");
        assert_eq!(shim_socket(dir.path()), Some(PathBuf::from("/run/containerd/s/cd")));
        note("address", "unix:///etc/passwd");
        assert_eq!(shim_socket(dir.path()), None);
    }
}
