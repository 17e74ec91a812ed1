//! The wall clock.
//!
//! Used where a time is shown or compared with one that is. Events and traces carry boot-clock times (`sources::clock`).

use std::time::{SystemTime, UNIX_EPOCH};

/// Now, in nanoseconds since 1970; 0 if the clock is before that.
#[must_use]
pub fn wall_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
