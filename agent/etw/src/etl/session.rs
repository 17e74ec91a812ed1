//! The header that a session wrote into its file (TRACE_LOGFILE_HEADER, learn.microsoft.com), and the session's clock.
//!
//! Used by `index` and the reader. Does not: trust the header; absurd values give a clock that saturates.

use crate::bytes::{array_at, u32_at};
use crate::payload::utf16_at;
use crate::time::unix_ns_of_filetime;

/// The clock a session stamps its records with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClockKind {
    /// The performance counter.
    #[default]
    PerformanceCounter,
    /// System time: FILETIME.
    SystemTime,
    /// Processor cycles.
    CpuCycles,
}

/// The header of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionHeader {
    /// Size of its buffers.
    pub buffer_bytes: u32,
    /// Windows version: major and minor.
    pub os_version: (u8, u8),
    /// Windows build.
    pub os_build: u32,
    /// Processors of the machine.
    pub processors: u32,
    /// Bytes of a pointer on the machine.
    pub pointer_size: u8,
    /// Start, in nanoseconds since 1970.
    pub started_ns: u64,
    /// End, in nanoseconds since 1970; 0 when the session was not stopped.
    pub ended_ns: u64,
    /// Boot of the machine, in nanoseconds since 1970.
    pub booted_ns: u64,
    /// Events lost.
    pub events_lost: u32,
    /// Buffers lost.
    pub buffers_lost: u32,
    /// Buffers that the session has counted as written.
    pub buffers_written: u32,
    /// The clock of the records.
    pub clock: ClockKind,
    /// Ticks a second of that clock.
    pub frequency: u64,
    /// Name of the session.
    pub name: Box<str>,
}

impl SessionHeader {
    /// Reads the payload of a file's first record, which was logged at `ticks`; returns its clock too.
    pub(super) fn read(payload: &[u8], ticks: i64) -> Option<(Self, Clock)> {
        // `PointerSize` lies before the fields whose place depends on it.
        let pointer_size = if u32_at(payload, 44)? == 4 { 4 } else { 8 };
        // `LoggerName` and `LogFileName` (pointers, without a meaning in a file), then `TIME_ZONE_INFORMATION` (172 bytes),
        // aligned to 8; then `BootTime`, `PerfFreq`, `StartTime`, `ReservedFlags` (the clock) and `BuffersLost`.
        let times = if pointer_size == 4 { 240 } else { 248 };
        let filetime = |at: usize| array_at(payload, at).map(i64::from_le_bytes);
        let (boot, performance, start) = (filetime(times)?, filetime(times + 8)?, filetime(times + 16)?);
        let [major, minor, _, _] = array_at(payload, 4)?;
        let megahertz = u32_at(payload, 52)?;
        let clock = clock_kind(u32_at(payload, times + 24)?, ticks, start);
        let frequency = match clock {
            ClockKind::SystemTime => FILETIME_FREQUENCY,
            ClockKind::PerformanceCounter => u64::try_from(performance).unwrap_or_default(),
            // `CpuSpeedInMHz`: no header states the frequency of the cycle counter more exactly.
            ClockKind::CpuCycles => u64::from(megahertz) * 1_000_000,
        };
        let header = Self {
            buffer_bytes: u32_at(payload, 0)?,
            os_version: (major, minor),
            os_build: u32_at(payload, 8)?,
            processors: u32_at(payload, 12)?,
            pointer_size,
            started_ns: unix_ns_of_filetime(start),
            ended_ns: unix_ns_of_filetime(filetime(16)?),
            booted_ns: unix_ns_of_filetime(boot),
            events_lost: u32_at(payload, 48)?,
            buffers_lost: u32_at(payload, times + 28)?,
            buffers_written: u32_at(payload, 36)?,
            clock,
            frequency,
            name: utf16_at(payload.get(times + 32..)?),
        };
        let clock = match clock {
            ClockKind::SystemTime => Clock::FileTime,
            _ => Clock::counter(ticks, header.started_ns, frequency),
        };
        Some((header, clock))
    }
}

/// Sessions that state no clock use one of the first two: a time near the start as FILETIME is system time (seen in samples).
fn clock_kind(stated: u32, ticks: i64, start: i64) -> ClockKind {
    // `WNODE_HEADER.ClientContext` (learn.microsoft.com): 1, 2 or 3.
    match stated {
        1 => ClockKind::PerformanceCounter,
        2 => ClockKind::SystemTime,
        3 => ClockKind::CpuCycles,
        _ if start != 0 && ticks.abs_diff(start) < DAY_OF_FILETIME => ClockKind::SystemTime,
        _ => ClockKind::PerformanceCounter,
    }
}

/// Turns the ticks of a session into nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The ticks are FILETIME.
    FileTime,
    /// A counter.
    Counter {
        /// The counter at the start of the session.
        origin: i64,
        /// The start, in nanoseconds since 1970.
        origin_ns: i64,
        /// Ticks a second.
        frequency: i64,
    },
}

impl Clock {
    /// A counter whose value was `origin` at `origin_ns`. An impossible frequency is read as 10 MHz, that of Windows' counter.
    pub const fn counter(origin: i64, origin_ns: u64, frequency: u64) -> Self {
        let possible = frequency > 0 && frequency <= HIGHEST_FREQUENCY;
        Self::Counter {
            origin,
            origin_ns: if origin_ns > i64::MAX as u64 {
                i64::MAX
            } else {
                origin_ns as i64
            },
            frequency: if possible {
                frequency as i64
            } else {
                FILETIME_FREQUENCY as i64
            },
        }
    }

    /// Nanoseconds since 1970; saturates at both ends.
    pub const fn unix_ns(self, ticks: i64) -> u64 {
        match self {
            Self::FileTime => unix_ns_of_filetime(ticks),
            Self::Counter {
                origin,
                origin_ns,
                frequency,
            } => {
                // Seconds and rest apart: a product of all ticks and 10^9 would overflow after minutes.
                let passed = ticks.saturating_sub(origin);
                let seconds = (passed / frequency).saturating_mul(1_000_000_000);
                // Below the frequency, which is below 2^33, times 2^30: fits.
                let rest = (passed % frequency) * 1_000_000_000 / frequency;
                let ns = origin_ns.saturating_add(seconds).saturating_add(rest);
                if ns < 0 { 0 } else { ns as u64 }
            }
        }
    }
}

/// FILETIME counts 100 ns.
const FILETIME_FREQUENCY: u64 = 10_000_000;
/// Above any real clock, and low enough for the arithmetic.
const HIGHEST_FREQUENCY: u64 = 8_000_000_000;
const DAY_OF_FILETIME: u64 = 24 * 3600 * FILETIME_FREQUENCY;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_clock_ends_on_one_line() {
        let start = 1_759_924_965_000_000_000;
        for frequency in [3_579_545, 10_000_000, 1_000_000_000, 2_592_000_000] {
            let clock = Clock::counter(5_000, start, frequency);
            assert_eq!(clock.unix_ns(5_000), start);
            let day = 86_400 * frequency as i64;
            assert_eq!(clock.unix_ns(5_000 + day), start + 86_400_000_000_000);
            assert_eq!(clock.unix_ns(5_000 - day), start - 86_400_000_000_000);
        }
        let third = Clock::counter(0, start, 3);
        assert_eq!(third.unix_ns(1), start + 333_333_333);
        assert_eq!(Clock::FileTime.unix_ns(134_043_985_650_000_000), start);
    }

    #[test]
    fn absurd_values_saturate() {
        for frequency in [0, 1, HIGHEST_FREQUENCY, u64::MAX] {
            let clock = Clock::counter(i64::MIN, u64::MAX, frequency);
            let _ = (clock.unix_ns(i64::MAX), clock.unix_ns(0));
            assert_eq!(Clock::counter(i64::MAX, 0, frequency).unix_ns(i64::MIN), 0);
        }
    }
}
