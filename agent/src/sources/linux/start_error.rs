//! Why the Linux source could not start, with the exit code and the hint for the operator.
//!
//! Used by the source and by `app`. Does not: cover optional probes; those report a status.

use std::borrow::Cow;
use std::io;

use super::loader::error::LoadError;
use crate::failure::{Advice, ExitReason};

/// Why the source could not start.
#[derive(Debug, thiserror::Error)]
pub enum LinuxStartError {
    /// The kernel does not describe its types.
    #[error("cannot attach probe 'exec'")]
    NoBtf(#[source] LoadError),
    /// This process may not load BPF programs.
    #[error("cannot attach probe 'exec'")]
    NoPrivilege(#[source] LoadError),
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
        match denied && !may_load() {
            true => LinuxStartError::NoPrivilege(error),
            false => LinuxStartError::NotSupported(error),
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
            LinuxStartError::NoPrivilege(_) => ExitReason::NoPermission,
            LinuxStartError::Thread(_) => ExitReason::Runtime,
        }
    }
}

/// Whether this process holds CAP_SYS_ADMIN, or CAP_BPF and CAP_PERFMON (capabilities(7), since Linux 5.8). Capabilities in
/// another user namespace do not count for BPF, which the status file does not show.
fn may_load() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    let has = |capability: u32| bits & (1 << capability) != 0;
    has(CAP_SYS_ADMIN) || (has(CAP_BPF) && has(CAP_PERFMON))
}

// include/uapi/linux/capability.h
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;
