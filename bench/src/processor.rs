//! Where and before whom a measuring thread runs, and what it started has used.
//!
//! Used by the parts that time work of this program or of what it starts. Does not: fail where that is not allowed; the
//! figures are then only less sure.

use std::time::Duration;

use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Puts this thread, and what it starts, before the machine's other work where that is allowed.
pub fn go_before_other_work() {
    let _ = setpriority_process(None, PRIORITY);
}

/// Keeps this thread, and what it starts, on the last processor it may use: the one where the fewest interrupts are.
/// Where that is not allowed the figures are only less sure.
pub fn stay_on_one_processor() {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    if let Some(last) = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu)) {
        let mut one = CpuSet::new();
        one.set(last);
        let _ = sched_setaffinity(None, &one);
    }
}

/// What all processes have used so far that were started here and have been waited for, and theirs.
pub struct Children {
    /// Time they ran.
    pub processor: Duration,
    /// How often one of their threads left a processor, by itself or not.
    pub switches: i64,
}

impl Children {
    /// Now.
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

const PRIORITY: i32 = -10;
