//! The programs that the rig runs: where they are looked for, and which package brings a missing one.

use std::path::{Path, PathBuf};

use super::{RigError, RigOptions};
use crate::networks;

/// Programs that the rig runs, found before anything is changed.
pub(super) struct Programs {
    /// Value of `PATH` for them.
    pub(super) search: String,
    /// The runtime.
    pub(super) daemon: PathBuf,
    /// The OCI runtime, and what CRI-O starts it with; empty where they are not needed.
    pub(super) oci_runtime: PathBuf,
    pub(super) conmon: PathBuf,
    /// Directory of the distribution's CNI plugins.
    pub(super) plugins: PathBuf,
    /// flock(1), which plays a program that changes rules.
    pub(super) flock: PathBuf,
}

impl Programs {
    pub(super) fn find(options: &RigOptions) -> Result<Programs, RigError> {
        if !rustix::process::geteuid().is_root() {
            return Err(RigError::NotRoot);
        }
        let search = match &options.containerd {
            Some(first) => format!("{}:{SEARCH}", first.display()),
            None => SEARCH.to_owned(),
        };
        let find = |program: &str, package| {
            search
                .split(':')
                .map(|dir| Path::new(dir).join(program))
                .find(|path| path.is_file())
                .ok_or(RigError::Missing {
                    program: program.to_owned(),
                    package,
                })
        };
        let oci_runtime = match &options.oci_runtime {
            Some(path) => find(&path.to_string_lossy(), "crun")?,
            None => find("runc", "runc")?,
        };
        let (daemon, conmon) = match &options.crio {
            Some(folder) => {
                find("podman", "podman")?;
                (folder.join("crio"), find("conmon", "conmon")?)
            }
            None => {
                for program in ["ctr", "containerd-shim-runc-v2"] {
                    find(program, "containerd")?;
                }
                (find("containerd", "containerd")?, PathBuf::new())
            }
        };
        find("ip", "iproute2")?;
        find("iptables", "iptables")?;
        find("unshare", "util-linux")?;
        find("taskset", "util-linux")?;
        Ok(Programs {
            daemon,
            oci_runtime,
            conmon,
            plugins: Programs::plugins()?,
            flock: find("flock", "util-linux")?,
            search,
        })
    }

    /// The first directory that has all the plugins.
    fn plugins() -> Result<PathBuf, RigError> {
        PLUGIN_DIRS
            .into_iter()
            .map(PathBuf::from)
            .find(|dir| {
                networks::DISTRIBUTION_PLUGINS
                    .iter()
                    .all(|plugin| dir.join(plugin).is_file())
            })
            .ok_or_else(|| RigError::Missing {
                program: "the CNI plugin bridge, host-local, loopback or portmap".to_owned(),
                package: "containernetworking-plugins",
            })
    }
}

/// Debian, upstream's tarball, Fedora.
const PLUGIN_DIRS: [&str; 4] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni", "/usr/local/lib/cni"];
/// Where the demo's programs are looked for, independent of the caller's `PATH`.
pub(super) const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
