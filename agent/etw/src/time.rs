//! The three clocks of ETW, converted to nanoseconds since 1970 UTC.
//!
//! Used by the `.etl` reader, which learns clock and start from the file's header, and by the live source. A session's clock
//! counts ticks of the performance counter, 100 ns steps since 1601 (FILETIME) or processor cycles (WNODE_HEADER,
//! ClientContext).
//! Does not: read a clock.

/// 100 ns steps from 1601 to 1970.
const UNIX_EPOCH_FILETIME: i64 = 116_444_736_000_000_000;

/// Nanoseconds since 1970 of a FILETIME; 0 for anything before 1970.
pub const fn unix_ns_of_filetime(filetime: i64) -> u64 {
    let steps = filetime.saturating_sub(UNIX_EPOCH_FILETIME);
    if steps <= 0 {
        0
    } else {
        (steps as u64).saturating_mul(100)
    }
}

/// The FILETIME of an instant; what is finer than 100 ns is cut off.
pub const fn filetime_of_unix_ns(unix_ns: u64) -> i64 {
    (unix_ns / 100) as i64 + UNIX_EPOCH_FILETIME
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filetime_goes_both_ways_and_saturates() {
        // 2025-10-08 14:02:45 UTC
        assert_eq!(unix_ns_of_filetime(134_043_985_650_000_000), 1_759_924_965_000_000_000);
        assert_eq!(filetime_of_unix_ns(1_759_924_965_000_000_000), 134_043_985_650_000_000);
        assert_eq!(unix_ns_of_filetime(0), 0);
        assert_eq!(unix_ns_of_filetime(i64::MIN), 0);
        assert_eq!(unix_ns_of_filetime(i64::MAX), u64::MAX);
    }
}
