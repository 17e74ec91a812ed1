//! The node's two clocks, and the facts about the node that no configuration holds.
//!
//! Used by sources for timestamps and anchors, by the composition root for `NodeInfo`. Off Linux both clocks are the wall
//! clock, in nanoseconds since 1970, as ETW stamps its events.
//! Does not: keep or compare anchors (the feed of the process probe does, to notice a step).

#[cfg_attr(target_os = "linux", path = "clock/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "clock/other.rs")]
mod imp;

use std::time::{SystemTime, UNIX_EPOCH};

use sandglass_model::{ClockAnchor, Timestamp};

/// Now, on the boot clock: nanoseconds since boot, suspended time included.
#[must_use]
pub fn now() -> Timestamp {
    Timestamp(imp::boot_ns())
}

/// Both clocks at one instant: the wall clock read between two reads of the boot clock, the closest of three tries.
#[must_use]
pub fn anchor() -> ClockAnchor {
    let mut best = ClockAnchor::default();
    let mut best_width = u64::MAX;
    for _ in 0..3 {
        let before = imp::boot_ns();
        let unix_ns = unix_ns();
        let width = imp::boot_ns().saturating_sub(before);
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

/// What the system reports about itself.
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
#[must_use]
pub fn node_facts() -> NodeFacts {
    imp::node_facts()
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchor_lies_between_two_reads_of_both_clocks() {
        let (boot, unix) = (imp::boot_ns(), unix_ns());
        let anchor = anchor();
        assert!((boot..=imp::boot_ns()).contains(&anchor.boot_ns));
        assert!((unix..=unix_ns()).contains(&anchor.unix_ns));
    }
}
