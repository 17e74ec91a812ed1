//! The node's two clocks, and the facts about the node that no configuration holds.
//!
//! Used by sources for stamps and anchors, by the composition root for `NodeInfo`. Works on every system; off Linux both
//! clocks are one: nanoseconds since 1970, as ETW stamps its events.
//! Does not: keep or compare anchors (the Linux source does, to notice a step).

use std::time::{SystemTime, UNIX_EPOCH};

use sandglass_model::{ClockAnchor, Timestamp};

/// Now, on the boot clock.
#[must_use]
pub fn now() -> Timestamp {
    Timestamp(boot_ns())
}

/// Both clocks at one instant: the wall clock read between two reads of the boot clock, the closest of three tries.
#[must_use]
pub fn anchor() -> ClockAnchor {
    let mut best = ClockAnchor::default();
    let mut best_width = u64::MAX;
    for _ in 0..3 {
        let before = boot_ns();
        let unix_ns = unix_ns();
        let width = boot_ns().saturating_sub(before);
        if width < best_width {
            best_width = width;
            best = ClockAnchor {
                boot_ns: before + width / 2,
                unix_ns,
            };
        }
    }
    best
}

/// What the system says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Boot id; empty when the system has none.
    pub boot_id: String,
    /// Host name.
    pub host: String,
    /// `Linux`, `Windows`, ..
    pub os: String,
    /// Kernel release.
    pub kernel: String,
    /// Machine architecture.
    pub machine: String,
}

/// Reads the facts.
#[cfg(target_os = "linux")]
#[must_use]
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

/// Reads the facts.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn node_facts() -> NodeFacts {
    let os = match std::env::consts::OS {
        "windows" => "Windows",
        other => other,
    };
    NodeFacts {
        host: std::env::var("COMPUTERNAME").unwrap_or_default(),
        os: os.to_owned(),
        machine: std::env::consts::ARCH.to_owned(),
        ..NodeFacts::default()
    }
}

#[cfg(target_os = "linux")]
fn boot_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(not(target_os = "linux"))]
fn boot_ns() -> u64 {
    unix_ns()
}

fn unix_ns() -> u64 {
    saturating_u64(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos(),
    )
}

fn saturating_u64(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchor_lies_between_two_reads_of_both_clocks() {
        let (boot, unix) = (boot_ns(), unix_ns());
        let anchor = anchor();
        assert!((boot..=boot_ns()).contains(&anchor.boot_ns));
        assert!((unix..=unix_ns()).contains(&anchor.unix_ns));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn linux_knows_its_boot_and_kernel() {
        let facts = node_facts();
        assert_eq!(facts.os, "Linux");
        assert_eq!(facts.boot_id.len(), 36, "{facts:?}");
        assert!(!facts.kernel.is_empty() && !facts.machine.is_empty());
    }
}
