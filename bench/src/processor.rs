//! Affinity and priority of a measuring thread, and resource usage of its children and of other processes.
//!
//! Used by the parts that time work of this program or its children. Does not: fail without the privilege; the figures only
//! vary more then.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Raises the priority of this process and its children, if allowed.
pub fn go_before_other_work() {
    let _ = setpriority_process(None, PRIORITY);
}

/// Pins this thread and its children to the last allowed processor, which usually has the fewest interrupts. Without
/// the privilege, the figures only vary more.
pub fn stay_on_one_processor() {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    if let Some(last) = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu)) {
        let mut one = CpuSet::new();
        one.set(last);
        let _ = sched_setaffinity(None, &one);
    }
}

/// Resource usage of all descendants that were waited for (getrusage(2), RUSAGE_CHILDREN).
pub struct Children {
    /// Processor time.
    pub processor: Duration,
    /// Context switches, voluntary and involuntary.
    pub switches: i64,
}

impl Children {
    /// Usage so far.
    pub fn so_far() -> Children {
        // SAFETY: `usage` is a valid place to write to; all of it being zero is a valid value.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
            usage
        };
        let duration = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
        };
        Children {
            processor: duration(usage.ru_utime) + duration(usage.ru_stime),
            switches: usage.ru_nvcsw + usage.ru_nivcsw,
        }
    }
}

/// Processor time of all threads of a process so far, to the nanosecond.
pub fn time_of(pid: u32) -> Result<Duration> {
    let pid = libc::pid_t::try_from(pid)?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is a valid place to write to.
    let failed = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    ensure!(
        failed == 0,
        "process {pid} has no processor clock: {}",
        std::io::Error::from_raw_os_error(failed)
    );
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place to write to.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) };
    ensure!(
        failed == 0,
        "the processor clock of process {pid} cannot be read: {}",
        std::io::Error::last_os_error()
    );
    Ok(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?))
}

/// Resident memory of a process in bytes.
pub fn resident_bytes(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB"));
    let kibibytes: f64 = kibibytes.context("no VmRSS")?.trim().parse()?;
    Ok(kibibytes * 1024.0)
}

const PRIORITY: i32 = -10;
