//! Estimates of paired measurements, with confidence intervals.
//!
//! Used by the parts that compare the same work with and without the agent. Does not: measure.

use crate::report::{Figure, Unit, median, quantile};

/// Wall-clock and processor time of a piece of work, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Took {
    pub wall: f64,
    pub processor: f64,
}

impl Took {
    /// The quantile `at` of several, each number by itself.
    pub fn quantile(of: &[Took], at: f64) -> Took {
        let number = |number: fn(&Took) -> f64| quantile(&of.iter().map(number).collect::<Vec<f64>>(), at);
        Took {
            wall: number(|took| took.wall),
            processor: number(|took| took.processor),
        }
    }

    /// The geometric mean of two.
    pub fn mean(self, other: Took) -> Took {
        Took {
            wall: (self.wall * other.wall).sqrt(),
            processor: (self.processor * other.processor).sqrt(),
        }
    }

    /// How much more this is than `before`, percent.
    pub fn more_than(self, before: Took) -> Took {
        Took {
            wall: (self.wall / before.wall - 1.0) * 100.0,
            processor: (self.processor / before.processor - 1.0) * 100.0,
        }
    }
}

/// The p99 with the agent, beside that without and both medians: of times without and with it, nanoseconds.
pub fn tail(name: &str, times: &[Vec<f64>; 2]) -> Figure {
    let [without, with] = times.each_ref().map(|times| quantile(times, 0.99) / 1e6);
    let medians = times.each_ref().map(|times| median(times) / 1e6);
    Figure::new(name, with, Unit::Milliseconds).remark(format!(
        "{without:.1} ms without; medians {:.2} and {:.2} ms without",
        medians[1], medians[0]
    ))
}

/// The estimate of how much more something takes, by the ratios of four blocks of `block` each, percent, with its interval.
pub fn more_percent(name: &str, ratios: &[f64], block: u32) -> Figure {
    let (low, high) = bootstrap_interval(ratios);
    Figure::new(name, hodges_lehmann(ratios), Unit::Percent)
        .between((low, high))
        .remark(format!(
            "{low:+.2} to {high:+.2} % at 95 % confidence; {} times four blocks of {block}; middle half {:+.1} to {:+.1} %",
            ratios.len(),
            quantile(ratios, 0.25),
            quantile(ratios, 0.75),
        ))
}

/// The median of the means of all pairs of `values`, each with itself too: as robust as a median, nearly as efficient as a
/// mean (Hodges and Lehmann 1963).
pub fn hodges_lehmann(values: &[f64]) -> f64 {
    let pairs = values
        .iter()
        .enumerate()
        .flat_map(|(index, one)| values[index..].iter().map(move |other| f64::midpoint(*one, *other)));
    median(&pairs.collect::<Vec<f64>>())
}

/// The interval of the estimate for 95 % of samples drawn from `values` with replacement; deterministic.
pub fn bootstrap_interval(values: &[f64]) -> (f64, f64) {
    // xorshift64 (Marsaglia 2003): a uniform distribution suffices.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        values[(state % values.len().max(1) as u64) as usize]
    };
    if values.is_empty() {
        return (f64::NAN, f64::NAN);
    }
    let estimates: Vec<f64> = (0..RESAMPLES)
        .map(|_| hodges_lehmann(&values.iter().map(|_| draw()).collect::<Vec<f64>>()))
        .collect();
    (quantile(&estimates, 0.025), quantile(&estimates, 0.975))
}

const RESAMPLES: usize = 2_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_block_does_not_count() {
        let took = |wall, processor| Took { wall, processor };
        let blocks = [
            took(10.0, 8.0),
            took(90.0, 8.2),
            took(11.0, 70.0),
            took(95.0, 71.0),
            took(12.0, 8.1),
        ];
        let least = Took::quantile(&blocks, 0.25);
        assert_eq!((least.wall, least.processor), (11.0, 8.1));
        let mean = took(4.0, 1.0).mean(took(9.0, 1.0));
        assert_eq!((mean.wall, mean.processor), (6.0, 1.0));
        let more = took(6.0, 1.5).more_than(took(4.0, 2.0));
        assert_eq!((more.wall, more.processor), (50.0, -25.0));
    }

    #[test]
    fn the_estimate_is_not_misled_by_some() {
        assert_eq!(hodges_lehmann(&[1.0, 2.0, 3.0]), 2.0);
        let mut values: Vec<f64> = (0..41).map(f64::from).collect();
        assert_eq!(hodges_lehmann(&values), 20.0);
        for value in &mut values[38..] {
            *value = 1e6;
        }
        assert!((hodges_lehmann(&values) - 20.0).abs() < 2.0);
        assert!(hodges_lehmann(&[]).is_nan());
    }

    #[test]
    fn the_interval_holds_the_estimate_and_narrows_with_the_sample() {
        // An even spread of 10 around 0: the estimate of n has a standard error of about 5.8 by the root of n.
        let of = |count: u32| -> Vec<f64> {
            (0..count)
                .map(|n| f64::from(n * 7919 % count) / f64::from(count) * 20.0 - 10.0)
                .collect()
        };
        let (low, high) = bootstrap_interval(&of(100));
        assert!(
            (-1.6..-0.8).contains(&low) && (0.8..1.6).contains(&high),
            "{low} {high}"
        );
        let (few_low, few_high) = bootstrap_interval(&of(16));
        assert!(few_low < low && few_high > high);
        assert_eq!(bootstrap_interval(&[1.5]), (1.5, 1.5));
        assert!(bootstrap_interval(&[]).0.is_nan());
    }
}
