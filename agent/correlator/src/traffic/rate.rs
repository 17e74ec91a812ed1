//! A rate limit: a token bucket that fills in the time of the events, so that a recording replays to the same traces.
//!
//! Used for journeys. It holds at most one minute's tokens, so a burst after a quiet minute is as large as a minute's
//! rate. Does not: sleep or read a clock.

use sandglass_model::Timestamp;
use sandglass_model::time::SECOND;

/// The bucket. It starts full.
#[derive(Debug)]
pub(crate) struct RateLimit {
    /// Nanoseconds of filling that are in the bucket.
    left: u64,
    /// Nanoseconds of filling that one token costs.
    each: u64,
    /// A full bucket, in nanoseconds of filling.
    most: u64,
    /// The time up to which `left` is counted. Never goes back.
    filled: Timestamp,
}

impl RateLimit {
    /// A full bucket for this many tokens a minute; one for 0 never has any.
    pub(crate) fn new(per_minute: u32) -> RateLimit {
        let most = 60 * SECOND;
        RateLimit {
            left: if per_minute == 0 { 0 } else { most },
            each: most / u64::from(per_minute.max(1)),
            most: if per_minute == 0 { 0 } else { most },
            filled: Timestamp(0),
        }
    }

    /// Takes a token. Returns `false` if none is left above `keep` nanoseconds of filling, which stay reserved for
    /// others.
    pub(crate) fn take(&mut self, now: Timestamp, keep: u64) -> bool {
        let has_one = self.has(now, keep);
        if has_one {
            self.left -= self.each;
        }
        has_one
    }

    /// Whether a token is left besides `keep` nanoseconds of filling.
    pub(crate) fn has(&mut self, now: Timestamp, keep: u64) -> bool {
        self.left = self.left.saturating_add(now.since(self.filled)).min(self.most);
        self.filled = self.filled.max(now);
        self.left >= keep.saturating_add(self.each)
    }

    /// Half of a full bucket.
    pub(crate) fn half(&self) -> u64 {
        self.most / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_fills_in_the_events_time() {
        let mut bucket = RateLimit::new(2);
        let at = |s: u64| Timestamp(s * SECOND);
        assert!(bucket.take(at(100), 0) && bucket.take(at(100), 0));
        assert!(!bucket.take(at(100), 0) && !bucket.take(at(129), 0));
        assert!(bucket.take(at(130), 0) && !bucket.take(at(130), 0));
        // Half is kept: a token fits only beside it.
        assert!(!bucket.take(at(189), 30 * SECOND) && bucket.take(at(190), 30 * SECOND));
        assert!(!bucket.take(at(190), 30 * SECOND) && bucket.take(at(190), 0));
        assert!(!RateLimit::new(0).take(at(1_000), 0));
    }
}
