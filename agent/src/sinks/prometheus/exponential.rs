//! A histogram with exponential buckets: powers of 2^(2^-scale), as OpenTelemetry's data model defines them
//! (<https://opentelemetry.io/docs/specs/otel/metrics/data-model/#exponentialhistogram>).
//!
//! [`super::durations`] records in it where metrics are pushed, `sinks::otlp::push` sends it. At most [`MAX_BUCKETS`] buckets
//! without a gap: values further apart halve the resolution, which moves whole buckets into one and so stays exact. Does not:
//! record negative values, or keep a minimum and a maximum, which cannot be subtracted for delta temporality.

use std::iter::repeat_n;

/// Most buckets, as the SDKs of OpenTelemetry have it ("Base2 Exponential Bucket Histogram Aggregation", `MaxSize`): with
/// it a series takes 1,336 bytes at most.
const MAX_BUCKETS: usize = 160;
/// The scale at the start. Prometheus' native histograms have no finer one (schema 8: 0.27 % from bound to bound).
const MAX_SCALE: i32 = 8;

/// The histogram.
#[derive(Clone, Debug, PartialEq)]
pub struct ExponentialHistogram {
    /// Bucket `i` holds values above `base^i` and up to `base^(i+1)`, where the base is `2^(2^-scale)`.
    pub scale: i32,
    /// Index of the first bucket in `counts`.
    pub first: i32,
    /// Counts of the buckets, without a gap.
    pub counts: Vec<u64>,
    /// Number of values that are 0.
    pub zero: u64,
    /// Number of all values.
    pub count: u64,
    /// Sum of all values.
    pub sum: f64,
}

impl Default for ExponentialHistogram {
    fn default() -> ExponentialHistogram {
        ExponentialHistogram {
            scale: MAX_SCALE,
            first: 0,
            counts: Vec::new(),
            zero: 0,
            count: 0,
            sum: 0.0,
        }
    }
}

impl ExponentialHistogram {
    /// Counts a value. One that is not above 0 counts as 0.
    pub fn observe(&mut self, value: f64) {
        self.count += 1;
        if !(value.is_normal() && value > 0.0) {
            self.zero += 1;
            return;
        }
        self.sum += value;
        let mut index = index(value, self.scale);
        if self.counts.is_empty() {
            self.first = index;
        }
        let mut low = self.first.min(index);
        let mut high = self.last().max(index);
        let mut by = 0;
        while high - low >= MAX_BUCKETS as i32 {
            (low, high, by) = (low >> 1, high >> 1, by + 1);
        }
        self.downscale(by);
        index >>= by;
        let missing = |from: i32, to: i32| usize::try_from(to - from).unwrap_or(0);
        self.reserve(missing(low, high) + 1);
        self.counts.splice(0..0, repeat_n(0, missing(low, self.first)));
        self.first = low;
        self.counts.resize(missing(low, high) + 1, 0);
        self.counts[missing(low, index)] += 1;
    }

    /// Index of the last bucket.
    fn last(&self) -> i32 {
        self.first + i32::try_from(self.counts.len()).unwrap_or(i32::MAX) - 1
    }

    /// Grows in steps of an eighth of the maximum: a vector that doubles could take nearly twice as much.
    fn reserve(&mut self, buckets: usize) {
        let step = MAX_BUCKETS / 8;
        let wanted = buckets.div_ceil(step) * step;
        self.counts.reserve_exact(wanted.saturating_sub(self.counts.len()));
    }

    /// Halves the resolution `by` times: two neighbours become one bucket each time.
    fn downscale(&mut self, by: i32) {
        if by == 0 {
            return;
        }
        self.scale -= by;
        let first = self.first >> by;
        let mut merged = 0;
        for position in 0..self.counts.len() {
            let index = self.first + i32::try_from(position).unwrap_or(i32::MAX);
            let to = usize::try_from((index >> by) - first).unwrap_or(0);
            let count = std::mem::take(&mut self.counts[position]);
            self.counts[to] += count;
            merged = to + 1;
        }
        self.counts.truncate(merged);
        self.first = first;
    }

    /// What was counted since `earlier`, a former state of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &ExponentialHistogram) -> ExponentialHistogram {
        let mut before = earlier.clone();
        before.downscale((before.scale - self.scale).max(0));
        let mut grown = self.clone();
        for (index, count) in (before.first..).zip(&before.counts) {
            let place = usize::try_from(index - grown.first).ok();
            if let Some(now) = place.and_then(|place| grown.counts.get_mut(place)) {
                *now = now.saturating_sub(*count);
            }
        }
        let front = grown.counts.iter().take_while(|count| **count == 0).count();
        grown.counts.drain(..front);
        grown.first += i32::try_from(front).unwrap_or(0);
        let back = grown.counts.iter().rev().take_while(|count| **count == 0).count();
        grown.counts.truncate(grown.counts.len() - back);
        grown.zero -= before.zero.min(grown.zero);
        grown.count -= before.count.min(grown.count);
        grown.sum -= before.sum;
        grown
    }
}

/// Index of the bucket of a normal positive value.
fn index(value: f64, scale: i32) -> i32 {
    let bits = value.to_bits();
    let exponent = ((bits >> FRACTION_BITS) & 0x7ff) as i32 - EXPONENT_BIAS;
    let fraction = bits & ((1 << FRACTION_BITS) - 1);
    // A power of two is the upper bound of its bucket.
    if fraction == 0 || scale <= 0 {
        let below = exponent - i32::from(fraction == 0);
        return match scale {
            ..=0 => below >> -scale,
            _ => (exponent << scale) - 1,
        };
    }
    // The mantissa alone, in (1, 2): its logarithm has no error from a large exponent.
    let mantissa = f64::from_bits(fraction | (EXPONENT_BIAS as u64) << FRACTION_BITS);
    let buckets = 1 << scale;
    let within = (mantissa.log2() * f64::from(buckets)).ceil() as i32 - 1;
    (exponent << scale) + within.clamp(0, buckets - 1)
}

/// Bits of the fraction of an `f64` (IEEE 754 binary64).
const FRACTION_BITS: u32 = 52;
/// What is added to its exponent.
const EXPONENT_BIAS: i32 = 1023;

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    use super::*;

    /// Largest number of bytes of one histogram: its buckets and what is around them.
    const MAX_BYTES: usize = size_of::<u64>() * MAX_BUCKETS + size_of::<ExponentialHistogram>();

    fn histogram(values: &[f64]) -> ExponentialHistogram {
        let mut histogram = ExponentialHistogram::default();
        values.iter().for_each(|value| histogram.observe(*value));
        histogram
    }

    /// Bounds of a bucket: above the first, up to the second.
    fn bounds(scale: i32, index: i32) -> (f64, f64) {
        let bound = |index: i32| (f64::from(index) * f64::from(-scale).exp2()).exp2();
        (bound(index), bound(index + 1))
    }

    #[test]
    fn powers_of_two_are_upper_bounds() {
        for scale in -4..=MAX_SCALE {
            for exponent in -20..20 {
                let value = f64::from(exponent).exp2();
                let (_, upper) = bounds(scale, index(value, scale));
                assert!(upper >= value, "2^{exponent} at {scale}");
                let next = f64::from_bits(value.to_bits() + 1);
                let (lower, _) = bounds(scale, index(next, scale));
                assert!(lower <= next, "after 2^{exponent} at {scale}");
                if scale >= 0 {
                    assert_eq!(upper, value, "2^{exponent} at {scale}");
                    assert_eq!(lower, value, "after 2^{exponent} at {scale}");
                }
            }
        }
    }

    #[test]
    fn zero_and_nothing() {
        let empty = histogram(&[]);
        assert_eq!((empty.count, empty.zero, empty.counts.len()), (0, 0, 0));
        let zeros = histogram(&[0.0, -1.0, f64::NAN, f64::INFINITY]);
        assert_eq!((zeros.count, zeros.zero, zeros.sum), (4, 4, 0.0));
    }

    #[test]
    fn a_series_stays_within_its_bytes() {
        let mut histogram = ExponentialHistogram::default();
        for step in 0..4_000 {
            histogram.observe(1e-9 * 1.01_f64.powi(step));
            let bytes = histogram.counts.capacity() * size_of::<u64>() + size_of::<ExponentialHistogram>();
            assert!(bytes <= MAX_BYTES, "{bytes} bytes after {step}");
        }
        assert_eq!(MAX_BYTES, 1_336);
    }

    proptest! {
        /// Each bucket has exactly the values between its bounds, whatever their order; sum and number are those of the values.
        #[test]
        fn counts_are_exact(
            values in prop::collection::vec(0_u64..300_000_000_000, 1..400),
            shift in 0_u32..38,
        ) {
            let seconds: Vec<f64> = values.iter().map(|ns| (ns >> shift) as f64 / 1e9).collect();
            let histogram = histogram(&seconds);
            prop_assert!(histogram.counts.len() <= MAX_BUCKETS);
            prop_assert_eq!(histogram.count as usize, seconds.len());
            let exact: f64 = seconds.iter().sum();
            prop_assert!((histogram.sum - exact).abs() <= exact * 1e-9);
            prop_assert_eq!(histogram.zero as usize, seconds.iter().filter(|value| **value == 0.0).count());
            let mut expected = std::collections::BTreeMap::new();
            for value in seconds.iter().filter(|value| **value > 0.0) {
                let index = index(*value, histogram.scale);
                let (lower, upper) = bounds(histogram.scale, index);
                // The bounds here are rounded themselves.
                prop_assert!(lower * (1.0 - 1e-12) < *value && *value <= upper * (1.0 + 1e-12), "{} in {}", value, index);
                *expected.entry(index).or_insert(0_u64) += 1;
            }
            let found: std::collections::BTreeMap<i32, u64> = (histogram.first..)
                .zip(histogram.counts.iter().copied())
                .filter(|(_, count)| *count > 0)
                .collect();
            prop_assert_eq!(found, expected);
        }

        /// What came between two states is what a histogram of these values alone has, at the resolution of the later state.
        #[test]
        fn the_growth_is_that_of_the_values_between(
            before in prop::collection::vec(any::<u32>(), 0..100),
            after in prop::collection::vec(any::<u64>(), 0..100),
        ) {
            let before: Vec<f64> = before.into_iter().map(|value| f64::from(value) / 1e6).collect();
            let after: Vec<f64> = after.into_iter().map(|value| (value >> 20) as f64 / 1e9).collect();
            let earlier = histogram(&before);
            let later = histogram(&[before, after.clone()].concat());
            let grown = later.since(&earlier);
            let mut alone = histogram(&after);
            alone.downscale(alone.scale - later.scale);
            prop_assert_eq!((grown.count, grown.zero), (alone.count, alone.zero));
            prop_assert_eq!(&grown.counts, &alone.counts);
            if !alone.counts.is_empty() {
                prop_assert_eq!(grown.first, alone.first);
            }
            prop_assert!((grown.sum - alone.sum).abs() <= later.sum * 1e-9);
        }
    }
}
