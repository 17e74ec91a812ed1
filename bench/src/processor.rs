//! Where and before whom a measuring thread runs.
//!
//! Used by the parts that time work of this program or of what it starts. Does not: fail where that is not allowed; the
//! figures are then only less sure.

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

const PRIORITY: i32 = -10;
