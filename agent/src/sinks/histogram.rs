//! A histogram of durations whose buckets grow by a quarter each: percentiles within 12 %.
//!
//! Used by the store's hour of traffic, which keeps hundreds of them, and by [`super::worth`]: it takes a few hundred bytes
//! at most, less while durations are short. Does not: keep single values.

/// Counts by bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// As long as the largest recorded value needs.
    counts: Vec<u32>,
    total: u64,
}

impl Histogram {
    /// Counts one duration.
    pub(super) fn record(&mut self, ns: u64) {
        let bucket = bucket(ns);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] = self.counts[bucket].saturating_add(1);
        self.total += 1;
    }

    /// Adds the counts of another histogram.
    pub(super) fn merge(&mut self, other: &Histogram) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
        self.total += other.total;
    }

    /// The percentile by nearest rank, as the middle of its bucket in nanoseconds; `None` without values.
    #[must_use]
    pub fn quantile(&self, percent: u64) -> Option<u64> {
        let bucket = self.bucket_of(percent)?;
        Some(edge(bucket) / 2 + edge(bucket + 1) / 2)
    }

    /// The upper edge of the percentile's bucket in nanoseconds: at most `100 - percent` of 100 values are not below it.
    pub(super) fn bound(&self, percent: u64) -> Option<u64> {
        Some(edge(self.bucket_of(percent)? + 1))
    }

    /// Number of values.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    fn bucket_of(&self, percent: u64) -> Option<usize> {
        let rank = (self.total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let holds = |&(_, count): &(usize, &u32)| {
            seen += u64::from(*count);
            seen >= rank
        };
        let (bucket, _) = self.counts.iter().enumerate().find(holds)?;
        Some(bucket)
    }
}

/// Four buckets for each power of two from 1,024 ns on; the first bucket holds all shorter durations.
fn bucket(ns: u64) -> usize {
    if ns >> FIRST_POWER == 0 {
        return 0;
    }
    let power = ns.ilog2();
    let quarter = (ns >> (power - 2)) & 3;
    1 + ((power - FIRST_POWER) * 4) as usize + quarter as usize
}

/// Lower edge of a bucket, nanoseconds.
fn edge(bucket: usize) -> u64 {
    let Some(above) = bucket.checked_sub(1) else {
        return 0;
    };
    let edge = (4 + above as u128 % 4) << (above / 4 + FIRST_POWER as usize - 2);
    u64::try_from(edge).unwrap_or(u64::MAX)
}

/// 2^10: 1,024 ns.
const FIRST_POWER: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_near_the_truth() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(50), None);
        for ms in 1..=1_000u64 {
            histogram.record(ms * 1_000_000);
        }
        for (percent, truth) in [(50, 500_000_000u64), (95, 950_000_000), (100, 1_000_000_000)] {
            let estimate = histogram.quantile(percent).unwrap();
            assert!(estimate.abs_diff(truth) * 100 <= truth * 13, "{percent} %: {estimate}");
        }
        let mut twice = histogram.clone();
        twice.merge(&histogram);
        assert_eq!(twice.quantile(95), histogram.quantile(95));
    }

    #[test]
    fn every_value_has_a_bucket_whose_edges_hold_it() {
        for ns in [0, 999, 1_024, 1_999, 2_500, 3_000, 5_012_345_678, u64::MAX / 4] {
            let bucket = bucket(ns);
            assert!(edge(bucket) <= ns && ns < edge(bucket + 1), "{ns}: {bucket}");
        }
        Histogram::default().record(u64::MAX);
    }
}
