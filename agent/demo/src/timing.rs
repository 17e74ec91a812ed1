//! The boot clock, and what callers, plugins and pods' programs read on it: what traces are held against.
//!
//! Used by the rig, the clients and the scenarios. A leaf: it knows none of them.

use rustix::time::{ClockId, clock_gettime};
use sandglass_lab::pressure::Pressure;
use sandglass_model::time::{MILLISECOND, SECOND, Timestamp};

/// When a call began and ended, on the caller's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTimes {
    /// Just before it was sent.
    pub begin: Timestamp,
    /// Just after the answer.
    pub end: Timestamp,
    /// The longest that anyone who worked on it can have waited for a processor or a disk, nanoseconds ([`Pressure`]).
    pub pressure_ns: u64,
    /// The same for a disk alone, nanoseconds.
    pub disks_ns: u64,
}

/// A call that is being timed.
pub struct Stopwatch {
    begin: Timestamp,
    pressure: Pressure,
}

impl Stopwatch {
    /// Starts just before the call.
    #[must_use]
    pub fn start() -> Stopwatch {
        let pressure = Pressure::now();
        Stopwatch { begin: now(), pressure }
    }

    /// Stops just after the answer.
    #[must_use]
    pub fn stop(&self) -> CallTimes {
        CallTimes {
            begin: self.begin,
            end: now(),
            pressure_ns: self.pressure.ns_since(),
            disks_ns: self.pressure.disks_ns_since(),
        }
    }
}

impl CallTimes {
    /// How long it took, nanoseconds.
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        self.end.since(self.begin)
    }
}

/// When a script plugin's ADD began and was over, on its own clock, which ticks every [`PluginClock::TICK_NS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PluginClock {
    /// The first thing it did.
    pub begin: Timestamp,
    /// The last thing before it answered; a plugin that was killed did not come so far.
    pub end: Option<Timestamp>,
}

impl PluginClock {
    /// A stamp is the last tick before it.
    pub const TICK_NS: u64 = 10 * MILLISECOND;

    /// From a plugin's note: one or two readings of `/proc/uptime` (proc(5)), seconds with two decimals.
    #[must_use]
    pub fn parse(note: &str) -> Option<PluginClock> {
        let mut times = note.split_whitespace().map(hundredths_to_ns);
        Some(PluginClock {
            begin: Timestamp(times.next()??),
            end: times.next().flatten().map(Timestamp),
        })
    }
}

/// The boot clock now.
#[must_use]
pub fn now() -> Timestamp {
    let time = clock_gettime(ClockId::Boottime);
    let (seconds, ns) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    Timestamp(seconds.saturating_mul(SECOND).saturating_add(ns))
}

fn hundredths_to_ns(text: &str) -> Option<u64> {
    let (seconds, hundredths) = text.split_once('.')?;
    if hundredths.len() != 2 {
        return None;
    }
    let (seconds, hundredths) = (seconds.parse::<u64>().ok()?, hundredths.parse::<u64>().ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(hundredths * 10_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_is_read_to_the_hundredth() {
        assert_eq!(hundredths_to_ns("12.34"), Some(12_340_000_000));
        assert_eq!(hundredths_to_ns("12.3"), None);
        assert_eq!(hundredths_to_ns("-1.00"), None);
    }
}
