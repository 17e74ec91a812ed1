//! Why the Linux source could not start, with the exit code and the hint for the operator.
//!
//! Used by the source and by `app`. Does not: cover optional probes; those report a status.

use std::borrow::Cow;
use std::io;
use std::path::Path;

use super::loader::error::LoadError;
use crate::failure::{Advice, ExitReason};
use crate::node::kernel_version;
use crate::selinux::{self, Domain};

/// Why the source could not start.
#[derive(Debug, thiserror::Error)]
pub enum LinuxStartError {
    /// The kernel does not describe its types.
    #[error("cannot attach probe 'exec'")]
    NoBtf(#[source] LoadError),
    /// This process may not load BPF programs.
    #[error("cannot attach probe 'exec'")]
    NoPrivilege(#[source] LoadError),
    /// The maps do not fit the limit of locked memory, which counts them before Linux 5.11 (`bpf_charge_memlock` of
    /// kernel/bpf/syscall.c in 5.10), and which only CAP_SYS_RESOURCE lets a process raise (setrlimit(2)).
    #[error("cannot attach probe 'exec'")]
    LockedMemory(#[source] LoadError),
    /// The policy of SELinux does not allow the domain of this process what the capabilities do.
    #[error("cannot attach probe 'exec' in {domain}")]
    Domain {
        /// Of this process.
        domain: Domain,
        /// What was refused.
        #[source]
        source: LoadError,
    },
    /// This kernel, or its policy, does not accept the probe.
    #[error("cannot attach probe 'exec'")]
    NotSupported(#[source] LoadError),
    /// The agent's own side could not be set up.
    #[error("cannot start the thread that reads the ring buffer")]
    Thread(#[source] io::Error),
}

impl LinuxStartError {
    /// The class of an error that kept every rung from being attached. EPERM alone does not show a missing privilege:
    /// lockdown and security modules return it to root as well (kernel_lockdown(7)), and need another hint.
    pub fn from_load_error(error: LoadError) -> LinuxStartError {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        LinuxStartError::classified(
            error,
            effective_capabilities(),
            Domain::of_this_process(Path::new("/")),
            &release,
        )
    }

    /// That of a process with these capabilities and this domain, on a kernel of this release. SELinux is asked before
    /// the kernel counts locked memory (`__sys_bpf` of kernel/bpf/syscall.c), so its refusal comes first.
    fn classified(error: LoadError, held: u64, domain: Option<Domain>, release: &str) -> LinuxStartError {
        let denied = matches!(error.os_error(), Some(libc::EPERM | libc::EACCES));
        if !denied {
            return LinuxStartError::NotSupported(error);
        }
        let has = |capability: u32| held & (1 << capability) != 0;
        // The effective set says nothing of another user namespace, in which capabilities do not count for BPF.
        let may_load = has(CAP_SYS_ADMIN) || (has(CAP_BPF) && has(CAP_PERFMON));
        let domain = domain.filter(|domain| domain.may_refuse() && !error.is_the_verifiers());
        if !may_load {
            LinuxStartError::NoPrivilege(error)
        } else if let Some(domain) = domain {
            LinuxStartError::Domain { domain, source: error }
        } else if !has(CAP_SYS_RESOURCE) && limits_locked_memory(release) {
            LinuxStartError::LockedMemory(error)
        } else {
            LinuxStartError::NotSupported(error)
        }
    }
}

impl Advice for LinuxStartError {
    fn hint(&self) -> Cow<'_, str> {
        let hint = match self {
            LinuxStartError::NoBtf(_) => {
                "needs a kernel built with CONFIG_DEBUG_INFO_BTF=y, and /sys/kernel/btf visible to the agent"
            }
            LinuxStartError::NoPrivilege(_) => {
                "needs CAP_BPF and CAP_PERFMON: run it as root, or add both capabilities"
            }
            LinuxStartError::LockedMemory(_) => {
                "before Linux 5.11 the maps of probes count as locked memory: add CAP_SYS_RESOURCE, or raise the limit \
                 (LimitMEMLOCK=infinity for the container runtime's service)"
            }
            LinuxStartError::Domain { .. } => selinux::HINT,
            LinuxStartError::NotSupported(_) => {
                "needs Linux 5.10 or newer with BPF tracing, not shut off by lockdown or a security module; \
                 `sandglass doctor` says which part is missing"
            }
            LinuxStartError::Thread(_) => {
                "the node is out of threads or file descriptors: raise the limits of the agent"
            }
        };
        hint.into()
    }

    fn exit(&self) -> ExitReason {
        match self {
            LinuxStartError::NoBtf(_) | LinuxStartError::NotSupported(_) => ExitReason::Unavailable,
            LinuxStartError::NoPrivilege(_) | LinuxStartError::LockedMemory(_) | LinuxStartError::Domain { .. } => {
                ExitReason::NoPermission
            }
            LinuxStartError::Thread(_) => ExitReason::Runtime,
        }
    }
}

/// The capabilities that this process holds, as a bit mask (proc_pid_status(5)).
fn effective_capabilities() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

/// Whether a kernel of this release counts maps as locked memory.
fn limits_locked_memory(release: &str) -> bool {
    kernel_version(release).is_some_and(|version| version < (5, 11))
}

// include/uapi/linux/capability.h
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_RESOURCE: u32 = 24;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

#[cfg(test)]
mod tests {
    use std::{fs, io};

    use super::*;
    use crate::failure::Failure;

    /// What `release` of a kernel says to a process with these capabilities and this label.
    fn refused(code: i32, held: u64, label: &str, release: &str) -> Failure {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/self/attr")).unwrap();
        fs::write(root.path().join("proc/self/attr/current"), label).unwrap();
        let error = LoadError::Cgroup(io::Error::from_raw_os_error(code));
        LinuxStartError::classified(error, held, Domain::of_this_process(root.path()), release).into()
    }

    #[test]
    fn a_refusal_in_a_confined_domain_names_selinux_and_the_type_to_use() {
        let chart = 1 << CAP_BPF | 1 << CAP_PERFMON;
        let label = "system_u:system_r:container_t:s0:c1,c2";
        for code in [libc::EACCES, libc::EPERM] {
            let text = refused(code, chart, label, "5.10.0").to_string();
            let begin = "cannot attach probe 'exec' in SELinux domain system_u:system_r:container_t:s0:c1,c2 (";
            assert!(text.starts_with(begin), "{text}");
            let hint = text.split_once("\nhint: ").unwrap().1;
            assert!(
                hint.contains("type spc_t") && hint.contains("linux.seLinuxOptions"),
                "{hint}"
            );
            assert!(hint.contains("`ausearch -m avc -c sandglass`"), "{hint}");
        }
        let exit = |code, held, label, release| refused(code, held, label, release).exit();
        assert_eq!(exit(libc::EACCES, chart, label, "6.12"), ExitReason::NoPermission);
        // Another error, another label, or a capability that is missing anyway.
        for (failure, hint) in [
            (refused(libc::ENOSPC, chart, label, "6.12"), "needs Linux 5.10"),
            (
                refused(libc::EACCES, chart, "system_u:system_r:spc_t:s0", "6.12"),
                "needs Linux 5.10",
            ),
            (refused(libc::EPERM, chart, "unconfined", "6.12"), "needs Linux 5.10"),
            (refused(libc::EPERM, chart, "unconfined", "5.10.0"), "before Linux 5.11"),
            (refused(libc::EPERM, 0, label, "6.12"), "needs CAP_BPF"),
        ] {
            let text = failure.to_string();
            assert!(text.contains(&format!("\nhint: {hint}")), "{text}");
            assert!(!text.contains("SELinux"), "{text}");
        }
    }

    #[test]
    fn kernels_before_5_11_count_maps_as_locked_memory() {
        for release in ["5.10.0-32-cloud-amd64", "5.4", "4.18.0-553.el8.x86_64"] {
            assert!(limits_locked_memory(release), "{release}");
        }
        for release in ["5.11.0", "5.15.0-119-generic", "6.1.0-56-cloud-amd64", "7.2", ""] {
            assert!(!limits_locked_memory(release), "{release}");
        }
    }
}
