//! Time on a node: nanoseconds since boot, and the anchor that maps them to the wall clock.
//!
//! Used everywhere. Kernel events are stamped with the boot clock (`bpf_ktime_get_boot_ns`, CLOCK_BOOTTIME in
//! clock_gettime(2)), which is never stepped. Only sinks turn it into wall-clock time, through the anchor that a trace
//! carries: all spans of one trace use the same one, so a clock step cannot push a child out of its parent. Does not:
//! read a clock.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Nanoseconds since the node booted, suspend included (`CLOCK_BOOTTIME`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Nanoseconds from `earlier` to `self`; 0 when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Timestamp) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This instant plus `ns` nanoseconds.
    #[must_use]
    pub fn plus(self, ns: u64) -> Timestamp {
        Timestamp(self.0.saturating_add(ns))
    }

    /// This instant minus `ns` nanoseconds, not before boot.
    #[must_use]
    pub fn minus(self, ns: u64) -> Timestamp {
        Timestamp(self.0.saturating_sub(ns))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / SECOND, self.0 % SECOND)
    }
}

/// One instant read on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockAnchor {
    /// Boot clock, nanoseconds.
    pub boot_ns: u64,
    /// Wall clock at the same instant, nanoseconds since 1970-01-01T00:00:00Z.
    pub unix_ns: u64,
}

impl ClockAnchor {
    /// Wall-clock nanoseconds since 1970 of `at`. Saturates at both ends.
    #[must_use]
    pub fn unix_ns(self, at: Timestamp) -> u64 {
        if at.0 >= self.boot_ns {
            self.unix_ns.saturating_add(at.0 - self.boot_ns)
        } else {
            self.unix_ns.saturating_sub(self.boot_ns - at.0)
        }
    }

    /// The boot-clock instant of a wall-clock time in nanoseconds since 1970.
    #[must_use]
    pub fn boot(self, unix_ns: u64) -> Timestamp {
        if unix_ns >= self.unix_ns {
            Timestamp(self.boot_ns.saturating_add(unix_ns - self.unix_ns))
        } else {
            Timestamp(self.boot_ns.saturating_sub(self.unix_ns - unix_ns))
        }
    }
}

/// Nanoseconds in a millisecond.
pub const MILLISECOND: u64 = 1_000_000;
/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchor_maps_both_ways_and_saturates() {
        let anchor = ClockAnchor {
            boot_ns: 100,
            unix_ns: 1_000,
        };
        assert_eq!(anchor.unix_ns(Timestamp(150)), 1_050);
        assert_eq!(anchor.unix_ns(Timestamp(50)), 950);
        assert_eq!(anchor.boot(1_050), Timestamp(150));
        assert_eq!(anchor.boot(0), Timestamp(0));
        assert_eq!(anchor.unix_ns(Timestamp(u64::MAX)), u64::MAX);
    }
}
