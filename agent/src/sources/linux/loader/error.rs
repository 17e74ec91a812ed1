//! Why a probe could not be loaded or attached.
//!
//! Used by the loader and by every probe for its status. Does not: decide whether that is fatal (the source does).

use std::error::Error;
use std::io;

use aya::programs::ProgramError;

/// Why a rung could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The kernel does not describe its types.
    #[error("cannot read the kernel's type information from /sys/kernel/btf/vmlinux")]
    Btf(#[source] aya::BtfError),
    /// The object was rejected.
    #[error("cannot load the object of probe '{probe}' ({hook})")]
    Object {
        /// Which probe.
        probe: &'static str,
        /// Which rung.
        hook: &'static str,
        /// The loader's error.
        #[source]
        source: Box<aya::EbpfError>,
    },
    /// One program was rejected.
    #[error("cannot attach probe '{probe}' to {hook} {place}")]
    Program {
        /// Which probe.
        probe: &'static str,
        /// Which rung.
        hook: &'static str,
        /// Which tracepoint, direction of packets or socket.
        place: &'static str,
        /// The kernel's error.
        #[source]
        source: Box<ProgramError>,
    },
    /// There is no cgroup tree to attach to.
    #[error("cannot open the root of the cgroup v2 tree")]
    Cgroup(#[source] io::Error),
    /// The thread that reads its records could not be started.
    #[error("cannot start the thread that reads its ring buffer")]
    Thread(#[source] io::Error),
    /// The configuration does without it.
    #[error("switched off by probes.stdio")]
    NotWanted,
    /// A map or program is missing or not of its kind, or the loader panicked.
    #[error("the object of probe '{probe}' ({hook}) is not as expected: {what}")]
    Unexpected {
        /// Which probe.
        probe: &'static str,
        /// Which rung.
        hook: &'static str,
        /// What is wrong.
        what: String,
    },
}

impl LoadError {
    /// The operating system's error at the end of the chain.
    #[must_use]
    pub fn os_error(&self) -> Option<i32> {
        let mut error: Option<&(dyn Error + 'static)> = Some(self);
        while let Some(current) = error {
            if let Some(code) = current.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
                return Some(code);
            }
            error = current.source();
        }
        None
    }

    /// Whether the verifier examined the program and said why not. EACCES is its answer to many a program.
    #[must_use]
    pub fn is_the_verifiers(&self) -> bool {
        let LoadError::Program { source, .. } = self else {
            return false;
        };
        matches!(&**source, ProgramError::LoadError { verifier_log, .. } if !verifier_log.to_string().is_empty())
    }
}
