//! The kernel's statistics of how long BPF programs run.
//!
//! Used by the benchmarks and by tests. Does not: subtract what the measurement itself costs, two clock reads a run.

use std::io;
use std::os::fd::OwnedFd;

/// Kernel time of one program, counted while the statistics are on ([`enable_run_time`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramTime {
    /// Name of the program.
    pub program: String,
    /// Nanoseconds in all its runs.
    pub run_time_ns: u64,
    /// Runs.
    pub run_count: u64,
    /// Instructions that the verifier visited when the program was loaded.
    pub verified_instructions: u32,
}

/// Switches the statistics on for every BPF program of the node, until the descriptor is closed (`BPF_ENABLE_STATS`,
/// include/uapi/linux/bpf.h, since Linux 5.8).
///
/// # Errors
/// Without CAP_SYS_ADMIN.
pub fn enable_run_time() -> io::Result<OwnedFd> {
    aya::sys::enable_stats(aya::sys::Stats::RunTime).map_err(|error| error.io_error)
}
