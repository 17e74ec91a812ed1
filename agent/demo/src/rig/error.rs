//! Why a rig does not start, with the fix.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

use sandglass::failure::{Advice, ExitReason};

/// Why there is no rig.
#[derive(Debug, thiserror::Error)]
pub enum RigError {
    /// Not root.
    #[error("a private runtime needs root")]
    NotRoot,
    /// A program is not installed.
    #[error("{program} is not installed")]
    Missing {
        /// Which.
        program: String,
        /// What to install.
        package: &'static str,
    },
    /// Something below the rig's directory could not be made.
    #[error("cannot set up {path}")]
    SetUp {
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No cgroup could be made.
    #[error("no cgroup hierarchy lets a group be made")]
    NoCgroup,
    /// A program could not be started.
    #[error("cannot start {program}")]
    Start {
        /// Which.
        program: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The runtime ended, or did not answer in time.
    #[error("the runtime did not come up: {last_words}")]
    NotUp {
        /// End of its log.
        last_words: String,
    },
    /// The pause image was refused.
    #[error("containerd does not take the pause image: {message}")]
    Import {
        /// Standard error of `ctr`.
        message: String,
    },
    /// The servers that the pods use did not start.
    #[error("cannot start the services that the demo's pods talk to")]
    Services(#[source] io::Error),
    /// The runtime's metrics cannot be read.
    #[error("cannot read the runtime's metrics")]
    Metrics(#[source] io::Error),
}

impl Advice for RigError {
    fn hint(&self) -> Cow<'_, str> {
        match self {
            RigError::NotRoot => "run it with sudo".into(),
            RigError::Missing { package, .. } => {
                format!("`make setup` installs what is missing; on Debian and Ubuntu it is the package {package}")
                    .into()
            }
            RigError::SetUp { .. } => {
                "the directory must be root's own, on a disk with space, not mounted noexec".into()
            }
            RigError::Services(_) => {
                "the kernel must let iptables translate addresses (nf_nat), in a network namespace of its own".into()
            }
            RigError::NoCgroup => "inside a container give it a writable /sys/fs/cgroup, or run it on the host".into(),
            RigError::Start { .. } | RigError::NotUp { .. } | RigError::Import { .. } | RigError::Metrics(_) => {
                "SANDGLASS_LOG=debug shows the runtime's whole log".into()
            }
        }
    }

    fn exit(&self) -> ExitReason {
        match self {
            RigError::NotRoot => ExitReason::NoPermission,
            RigError::Missing { .. } | RigError::NoCgroup => ExitReason::Unavailable,
            _ => ExitReason::Runtime,
        }
    }
}
