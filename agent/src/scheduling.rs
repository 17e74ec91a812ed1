//! The order in which threads get a processor.
//!
//! [`give_way`] is for the threads that work because a plugin runs, often on the plugin's own processor: to preempt it there
//! would lengthen the very span that they measure. Threads that read traffic must not give way: at full speed their rings fill
//! within a tenth of a second.
//! Does not: lower the share of anyone on a busy machine. Where the system refuses, all stays as it was.

#[cfg_attr(target_os = "linux", path = "scheduling/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "scheduling/other.rs")]
mod imp;

pub use self::imp::*;
