//! Whether a closed trace is good or bad, and why: what the store keeps longest, and what OTLP export always sends.
//!
//! Used by the store and by [`super::sampling`]. Depends on nothing but the traces, in their order: a replay judges as the live run did.
//! Does not: keep traces, or judge open ones.

use std::collections::BTreeMap;

use sandglass_model::{CniCommand, Detail, Trace};

use super::creation;
use super::histogram::Histogram;

/// Why a closed trace is bad; the first that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Badness {
    /// It failed, or an operation in it did.
    Failed,
    /// Records were lost while it was open, or its begin was not seen.
    Incomplete,
    /// It is a lookup or connection that went badly ([`sandglass_model::trace::JourneyReason`]).
    Journey,
    /// A lookup, connection or creation in it has a cause.
    Cause,
    /// The sandbox used its network, and it did not prove usable within the threshold.
    Stalled,
    /// An earlier sandbox of the same pod, or an earlier ADD for the same attachment, was tried before.
    Retried,
    /// It took longer than the threshold, or than 99 of 100 of its kind on this node.
    Slow,
}

/// Judges closed traces, and learns how long those of this node take.
#[derive(Clone, Debug)]
pub struct Judge {
    slow_ns: u64,
    /// Creations of sandboxes, and operations by verb.
    durations: BTreeMap<Option<CniCommand>, Recent>,
}

impl Judge {
    /// A judge for whom a creation, a network or an operation that takes longer than `slow_ns` is slow.
    #[must_use]
    pub fn new(slow_ns: u64) -> Judge {
        Judge {
            slow_ns,
            durations: BTreeMap::new(),
        }
    }

    /// From now on what takes longer than `slow_ns` is slow. What was learned stays.
    pub fn set_slow_ns(&mut self, slow_ns: u64) {
        self.slow_ns = slow_ns;
    }

    /// Why `trace`, which is closed, is bad; `None` if it is good.
    pub fn judge(&mut self, trace: &Trace) -> Option<Badness> {
        let unusual = self.is_unusual(trace);
        lasting(trace, self.slow_ns)
            .or_else(|| self.stalled(trace).then_some(Badness::Stalled))
            .or_else(|| unusual.then_some(Badness::Slow))
    }

    /// It took longer than 99 of 100 of its kind. Records the duration of every trace that did not fail.
    fn is_unusual(&mut self, trace: &Trace) -> bool {
        let root = trace.root();
        let command = root.detail.as_operation().map(|operation| operation.command);
        match duration(trace) {
            Some(ns) if !root.status.is_error() && root.detail.as_journey().is_none() => {
                self.durations.entry(command).or_default().record(ns)
            }
            _ => false,
        }
    }

    fn stalled(&self, trace: &Trace) -> bool {
        let Some(sandbox) = trace.root().detail.as_sandbox() else {
            return false;
        };
        match (sandbox.first_attempt, sandbox.network_ready) {
            (Some(first), Some(ready)) => ready.since(first) > self.slow_ns,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }
}

/// Why a trace is bad and will be when it is closed, as far as that is known while it is open.
#[must_use]
pub fn lasting(trace: &Trace, slow_ns: u64) -> Option<Badness> {
    Some(match () {
        () if failed(trace) => Badness::Failed,
        () if trace.incomplete => Badness::Incomplete,
        () if trace.root().detail.as_journey().is_some() => Badness::Journey,
        () if trace.spans.iter().any(|span| span.detail.cause().is_some()) => Badness::Cause,
        () if retried(trace) => Badness::Retried,
        () if duration(trace).is_some_and(|ns| ns > slow_ns) => Badness::Slow,
        () => return None,
    })
}

/// How long the creation took, or the trace where it is none; `None` while that goes on.
fn duration(trace: &Trace) -> Option<u64> {
    let root = trace.root();
    let end = creation::created(trace).or(root.end)?;
    Some(end.since(root.start))
}

/// An operation that failed makes a sandbox bad that recovered from it. Other failed spans do not: `iptables -C` fails by design.
fn failed(trace: &Trace) -> bool {
    let mut operations = trace.spans.iter().filter(|span| span.detail.as_operation().is_some());
    trace.root().status.is_error() || operations.any(|operation| operation.status.is_error())
}

/// A repeated DEL is no sign of trouble: runtimes request several for each sandbox.
fn retried(trace: &Trace) -> bool {
    trace.spans.iter().any(|span| match &span.detail {
        Detail::Sandbox(sandbox) => sandbox.attempt > 1,
        Detail::Operation(operation) => operation.command == CniCommand::Add && operation.attempt > 1,
        _ => false,
    })
}

/// The newest durations of one kind of trace: between [`WINDOW`] and twice as many.
#[derive(Clone, Debug, Default)]
struct Recent {
    newest: Histogram,
    before: Histogram,
}

impl Recent {
    /// Records a duration; true if it lies above the bucket of the 99th percentile of those before it.
    fn record(&mut self, ns: u64) -> bool {
        let mut known = self.before.clone();
        known.merge(&self.newest);
        let unusual = known.total() >= LEAST && known.bound(99).is_some_and(|bound| ns >= bound);
        self.newest.record(ns);
        if self.newest.total() >= WINDOW {
            self.before = std::mem::take(&mut self.newest);
        }
        unusual
    }
}

/// Threshold of slow creations, networks and operations: two fifths of the 5 s within which 99 of 100 pods are to start
/// (Kubernetes sig-scalability, slos/pod_startup_latency.md).
pub const SLOW_NS: u64 = 2_000_000_000;
/// Durations from which a 99th percentile means something.
const LEAST: u64 = 200;
/// Durations after which older ones are forgotten.
const WINDOW: u64 = 2_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn what_went_badly_has_a_reason() {
        let mut judge = Judge::new(SLOW_NS);
        let failed = samples::failed("n", "p", 1, 0, None);
        let again = {
            let mut trace = samples::usual("n", "p", 2, 0);
            if let Detail::Sandbox(sandbox) = &mut trace.spans[0].detail {
                sandbox.attempt = 2;
            }
            trace
        };
        let torn = Trace {
            incomplete: true,
            ..samples::usual("n", "p", 3, 0)
        };
        for (trace, badness) in [
            (samples::usual("n", "p", 4, 0), None),
            (samples::network_ready("n", "p", 5, 0), None),
            (samples::third_del(&failed, 0), None),
            (failed, Some(Badness::Failed)),
            (samples::killed("n", "p", 6, 0), Some(Badness::Failed)),
            (again, Some(Badness::Retried)),
            (torn, Some(Badness::Incomplete)),
            (samples::stalled("n", "p", 7, 0), Some(Badness::Cause)),
            (samples::slow("n", "p", 8, 0), Some(Badness::Slow)),
        ] {
            assert_eq!(judge.judge(&trace), badness, "{:?}", trace.root());
        }
    }

    #[test]
    fn a_sandbox_whose_network_never_worked_is_stalled() {
        let mut judge = Judge::new(SLOW_NS);
        let mut trace = samples::usual("n", "p", 1, 0);
        let start = trace.start();
        let mut set = |ready| {
            if let Detail::Sandbox(sandbox) = &mut trace.spans[0].detail {
                (sandbox.first_attempt, sandbox.network_ready) = (Some(start), ready);
            }
            judge.judge(&trace)
        };
        assert_eq!(set(Some(start.plus(SLOW_NS))), None);
        assert_eq!(set(Some(start.plus(SLOW_NS + 1))), Some(Badness::Stalled));
        assert_eq!(set(None), Some(Badness::Stalled));
    }

    #[test]
    fn the_slowest_of_a_hundred_are_slow_on_a_fast_node() {
        let mut recent = Recent::default();
        let slow = (0..10_000u64).filter(|number| recent.record(100_000_000 + number % 1_000 * 100_000));
        assert!(slow.count() <= 100);
        assert!(recent.record(400_000_000));
        // What is usual from now on is not slow for long.
        let slow = (0..10_000).filter(|_| recent.record(400_000_000)).count();
        assert!(slow < 100, "{slow}");
        // A node on which all takes as long has no slow ones.
        let mut even = Recent::default();
        assert!(!(0..10_000).any(|_| even.record(5_000_000)));
    }
}
