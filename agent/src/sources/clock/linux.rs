//! The clock and the facts of Linux: clock_gettime(2) with `CLOCK_BOOTTIME`, uname(2), and the boot id of random(4).
//!
//! Used by `clock`. Does not: fail; what cannot be read is empty.

use super::NodeFacts;

/// Nanoseconds since boot. The kernel side stamps with the same clock (bpf_ktime_get_boot_ns), and it goes on while the node is
/// suspended, so that a span over a suspend is as long as it was.
pub fn boot_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// The facts. The boot id is a random UUID of this boot (random(4)): trace ids derive from it, since pids and times repeat.
pub fn node_facts() -> NodeFacts {
    let uname = rustix::system::uname();
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    NodeFacts {
        boot_id: boot_id.trim().to_owned(),
        host: uname.nodename().to_string_lossy().into_owned(),
        os: uname.sysname().to_string_lossy().into_owned(),
        kernel: uname.release().to_string_lossy().into_owned(),
        machine: uname.machine().to_string_lossy().into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_knows_its_boot_and_kernel() {
        let facts = node_facts();
        assert_eq!(facts.os, "Linux");
        assert_eq!(facts.boot_id.len(), 36, "{facts:?}");
        assert!(!facts.kernel.is_empty() && !facts.machine.is_empty());
    }
}
