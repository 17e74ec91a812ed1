//! What the time of runtimes' daemons went to, from what the scheduler counts of all their threads.
//!
//! Used by the room of waits for the time in which a runtime executes nothing for a sandbox. A daemon works for several
//! sandboxes at once, and its work moves between its threads (containerd and CRI-O are Go programs), so there is no
//! path of one sandbox through them. What is known is how long its threads ran and how long they waited for a processor: as
//! much of the time as at least one of them could run on average is divided in the proportion of these two, the rest is
//! sleep ([`TimeReason::Runtime`]).
//! Bounded: [`RUNTIMES_MAX`] daemons, [`MEASURED_MAX`] measurements of each; older times are unknown.
//! Does not: see sandboxes.

use std::collections::{BTreeMap, VecDeque};

use sandglass_model::waits::{RuntimeTimes, TimeReason, TimeSpent};
use sandglass_model::{ProcessKey, Timestamp};

/// Measurements of each daemon, in order of time.
#[derive(Debug, Default)]
pub(crate) struct Runtimes(BTreeMap<ProcessKey, VecDeque<Measured>>);

/// One measurement: sums since the daemon's threads began.
#[derive(Clone, Copy, Debug)]
struct Measured {
    at: Timestamp,
    processor_ns: u64,
    run_delay_ns: u64,
}

/// A node runs one, at most a few.
const RUNTIMES_MAX: usize = 4;
/// Measurements are made at most every 50 ms: those of at least three minutes.
const MEASURED_MAX: usize = 4_096;

impl Runtimes {
    /// A daemon was measured. One that is older than the newest, or that has counted less (threads ended), divides nothing.
    pub(crate) fn add(&mut self, at: Timestamp, times: &RuntimeTimes) {
        if !self.0.contains_key(&times.process) && self.0.len() >= RUNTIMES_MAX {
            let newest = |measured: &VecDeque<Measured>| measured.back().map(|last| last.at);
            let idle = self.0.iter().min_by_key(|(_, measured)| newest(measured));
            if let Some(idle) = idle.map(|(process, _)| *process) {
                self.0.remove(&idle);
            }
        }
        let measured = self.0.entry(times.process).or_default();
        if measured.back().is_some_and(|last| last.at >= at) {
            return;
        }
        if measured.len() >= MEASURED_MAX {
            measured.pop_front();
        }
        measured.push_back(Measured {
            at,
            processor_ns: times.processor_ns,
            run_delay_ns: times.run_delay_ns,
        });
    }

    /// What the time from `from` to `to` went to. The sum is the duration; what lies outside of the measurements is unknown.
    pub(crate) fn spent(&self, runtime: ProcessKey, from: Timestamp, to: Timestamp) -> TimeSpent {
        let mut spent = TimeSpent::default();
        let mut known = 0;
        if let Some(measured) = self.0.get(&runtime) {
            let first = measured.partition_point(|one| one.at <= from).saturating_sub(1);
            let pairs = measured.range(first..).zip(measured.range(first..).skip(1));
            for (before, after) in pairs.take_while(|(before, _)| before.at < to) {
                let ns = after.at.min(to).since(before.at.max(from));
                divide(before, after, ns, &mut spent);
                known += ns;
            }
        }
        spent.add(TimeReason::Unknown, to.since(from) - known);
        spent
    }
}

/// Divides `ns` of the time between two measurements.
fn divide(before: &Measured, after: &Measured, ns: u64, spent: &mut TimeSpent) {
    let all = u128::from(after.at.since(before.at).max(1));
    let ran = u128::from(after.processor_ns.saturating_sub(before.processor_ns));
    let queued = u128::from(after.run_delay_ns.saturating_sub(before.run_delay_ns));
    let could_run = ran + queued;
    let narrow = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
    let runnable = narrow((could_run * u128::from(ns) / all).min(u128::from(ns)));
    let waited = narrow(u128::from(runnable) * queued / could_run.max(1));
    spent.add(TimeReason::Processor, runnable - waited);
    spent.add(TimeReason::RunQueue, waited);
    spent.add(TimeReason::Runtime, ns - runnable);
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAEMON: ProcessKey = ProcessKey { pid: 1, start_ticks: 1 };

    fn measured(of: &[(u64, u64, u64)]) -> Runtimes {
        let mut runtimes = Runtimes::default();
        for (at, processor_ns, run_delay_ns) in of {
            let times = RuntimeTimes {
                process: DAEMON,
                processor_ns: *processor_ns,
                run_delay_ns: *run_delay_ns,
            };
            runtimes.add(Timestamp(*at), &times);
        }
        runtimes
    }

    fn spent(runtimes: &Runtimes, from: u64, to: u64) -> Vec<(TimeReason, u64)> {
        let spent = runtimes.spent(DAEMON, Timestamp(from), Timestamp(to));
        assert_eq!(spent.total_ns(), to - from);
        spent.parts
    }

    #[test]
    fn time_is_divided_as_the_scheduler_counted() {
        // Sleeping for 80 of 100, then three threads for two processors.
        let runtimes = measured(&[(100, 0, 0), (200, 15, 5), (300, 115, 305)]);
        use TimeReason::{Processor, RunQueue, Runtime, Unknown};
        assert_eq!(
            spent(&runtimes, 100, 200),
            [(Processor, 15), (RunQueue, 5), (Runtime, 80)]
        );
        assert_eq!(spent(&runtimes, 200, 300), [(Processor, 25), (RunQueue, 75)]);
        assert_eq!(
            spent(&runtimes, 150, 240),
            [(Processor, 18), (RunQueue, 32), (Runtime, 40)]
        );
        assert_eq!(spent(&runtimes, 0, 100), [(Unknown, 100)]);
        assert_eq!(
            spent(&runtimes, 280, 320),
            [(Processor, 5), (RunQueue, 15), (Unknown, 20)]
        );
        assert_eq!(spent(&runtimes, 400, 400), []);
    }

    #[test]
    fn measurements_are_bounded_and_in_order() {
        let mut runtimes = measured(&[(100, 5, 5), (90, 1, 1), (100, 9, 9)]);
        assert_eq!(runtimes.0[&DAEMON].len(), 1);
        for pid in 0..10 {
            for at in 0..5_000 {
                let times = RuntimeTimes {
                    process: ProcessKey { pid, start_ticks: 1 },
                    processor_ns: 0,
                    run_delay_ns: 0,
                };
                runtimes.add(Timestamp(1_000 * u64::from(pid) + at), &times);
            }
        }
        assert_eq!(runtimes.0.len(), RUNTIMES_MAX);
        assert!(runtimes.0.values().all(|measured| measured.len() <= MEASURED_MAX));
    }
}
