//! The current speed of the machine: a fixed piece of arithmetic, and a fixed walk through memory.
//!
//! Measured before and after each part. Other users of the machine's caches and memory can increase a figure in nanoseconds by
//! half, for minutes, without a trace in the processor time; the pace separates that from a change of the agent. Does not:
//! correct any figure.

use std::fmt;
use std::hint::black_box;
use std::time::Instant;

/// Nanoseconds of one step now: the minimum of several runs, which interruptions do not affect.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Of arithmetic in which each step depends on the last.
    arithmetic: f64,
    /// Of a walk in which each step loads the address of the next.
    walk: f64,
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} and {:.1}", self.arithmetic, self.walk)
    }
}

/// A cycle through memory: each element holds the index of the next.
#[derive(Debug)]
pub struct Course(Vec<u32>);

impl Course {
    /// Deterministic (Sattolo's algorithm: one cycle through all elements).
    pub fn new() -> Course {
        let mut next: Vec<u32> = (0..PLACES).collect();
        let mut random = 1_u64;
        for last in (1..next.len()).rev() {
            random = step(random);
            next.swap(last, (random >> 33) as usize % last);
        }
        Course(next)
    }

    /// The speed now; takes some hundredths of a second.
    pub fn pace(&self) -> Pace {
        Pace {
            arithmetic: fastest(|| (0..STEPS).fold(1, |number, _| step(number))),
            walk: fastest(|| (0..STEPS).fold(0, |place, _| self.0[place as usize].into())),
        }
    }
}

/// Nanoseconds a step.
fn fastest(work: impl Fn() -> u64) -> f64 {
    let time = |_| {
        let begin = Instant::now();
        black_box(work());
        begin.elapsed().as_nanos() as f64 / STEPS as f64
    };
    (0..TRIES).map(time).fold(f64::INFINITY, f64::min)
}

/// Knuth's linear congruential generator (MMIX).
fn step(number: u64) -> u64 {
    black_box(number)
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407)
}

/// 4 MB: more than a core's own caches, less than what cores share.
const PLACES: u32 = 1 << 20;
const STEPS: u64 = 200_000;
const TRIES: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_course_goes_through_every_place() {
        let course = Course::new();
        let (mut place, mut steps) = (0, 0);
        loop {
            place = course.0[place as usize];
            steps += 1;
            if place == 0 {
                break;
            }
        }
        assert_eq!(steps, PLACES);
        let pace = course.pace();
        assert!(pace.arithmetic > 0.0 && pace.walk > 0.0);
    }
}
