//! Why the Linux source could not start, with the exit code and the hint for the operator.
//!
//! Used by the source and by `app`. Does not: cover optional probes; those report a status.

use std::borrow::Cow;
use std::io;

use super::loader::error::LoadError;
use crate::failure::{Advice, ExitReason};
use crate::node::kernel_version;

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
        let denied = matches!(error.os_error(), Some(libc::EPERM | libc::EACCES));
        if !denied {
            return LinuxStartError::NotSupported(error);
        }
        let held = effective_capabilities();
        let has = |capability: u32| held & (1 << capability) != 0;
        // The effective set says nothing of another user namespace, in which capabilities do not count for BPF.
        let may_load = has(CAP_SYS_ADMIN) || (has(CAP_BPF) && has(CAP_PERFMON));
        if !may_load {
            LinuxStartError::NoPrivilege(error)
        } else if !has(CAP_SYS_RESOURCE) && limits_locked_memory(&rustix::system::uname().release().to_string_lossy()) {
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
            LinuxStartError::NoPrivilege(_) | LinuxStartError::LockedMemory(_) => ExitReason::NoPermission,
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
    use super::limits_locked_memory;

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
