//! The wait before the next attempt: exponential with jitter, never shorter than the collector requests.
//!
//! Used by the delivery task. Deterministic for a seed, which tests rely on; nodes have different seeds, so that they do not
//! retry in step. Does not: sleep.

use std::time::Duration;

/// State between attempts.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    initial: Duration,
    max: Duration,
    next: Duration,
    random: u64,
}

impl Backoff {
    pub(super) fn new(initial: Duration, max: Duration, seed: u64) -> Backoff {
        Backoff {
            initial,
            max,
            next: initial.min(max),
            random: seed,
        }
    }

    /// The next wait: between half and all of the current step; or, if longer, the time that the server requests plus up to
    /// half a step. The step doubles up to the maximum.
    pub(super) fn pause(&mut self, requested: Option<Duration>) -> Duration {
        let step = self.next;
        self.next = step.saturating_mul(2).min(self.max);
        let half = step / 2;
        let jitter = half.mul_f64(self.fraction());
        let at_least = requested.unwrap_or_default().min(MAX_REQUESTED);
        at_least.max(half).saturating_add(jitter)
    }

    /// An attempt succeeded: the next failure waits the first step again.
    pub(super) fn reset(&mut self) {
        self.next = self.initial.min(self.max);
    }

    /// A number in [0, 1): splitmix64 (<https://prng.di.unimi.it/splitmix64.c>).
    fn fraction(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Bound on the wait that a collector can request: a longer one is a mistake of its configuration.
const MAX_REQUESTED: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn steps_double_up_to_the_maximum_within_half_a_step_of_jitter() {
        let mut backoff = Backoff::new(100 * MS, 1_000 * MS, 7);
        for step in [100, 200, 400, 800, 1_000, 1_000] {
            let pause = backoff.pause(None);
            assert!(pause >= step / 2 * MS && pause < step * MS, "step {step}: {pause:?}");
        }
        backoff.reset();
        assert!(backoff.pause(None) < 100 * MS);
    }

    #[test]
    fn the_wait_is_what_the_server_requests_up_to_a_bound() {
        let mut backoff = Backoff::new(100 * MS, 1_000 * MS, 7);
        let pause = backoff.pause(Some(5_000 * MS));
        assert!(pause >= 5_000 * MS && pause < 5_100 * MS, "{pause:?}");
        assert!(backoff.pause(Some(Duration::MAX)) < MAX_REQUESTED + 1_000 * MS);
    }

    #[test]
    fn seeds_differ_and_one_seed_repeats() {
        let pauses = |seed| {
            let mut backoff = Backoff::new(100 * MS, 10_000 * MS, seed);
            (0..8).map(|_| backoff.pause(None)).collect::<Vec<_>>()
        };
        assert_eq!(pauses(1), pauses(1));
        assert_ne!(pauses(1), pauses(2));
    }
}
