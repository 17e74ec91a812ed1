//! Metrics of readiness: when a sandbox's network has proven usable, and how long that took.
//!
//! Used by [`super::ProductMetrics`] with every output of the correlator. Counts only sandboxes whose creation was observed and
//! whose first traffic was pending after it. Does not: decide when a network is usable; the trace's root carries the times.

use std::collections::BTreeSet;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use sandglass_correlator::Output;
use sandglass_model::trace::SandboxDetail;
use sandglass_model::{Detail, RootId, Trace};

use super::durations::{Buckets, DurationFamily, durations, observe};
use crate::registration::register;
use crate::sinks::creation;
use crate::sinks::sampling::{Policy, Sampling};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

/// The metrics.
#[derive(Debug)]
pub(super) struct ReadinessMetrics {
    ready: DurationFamily<ResultLabels>,
    wait: DurationFamily<ResultLabels>,
    silent: Counter,
    /// Created sandboxes whose traces are open: their first traffic is pending.
    pending: BTreeSet<RootId>,
    pub(super) sampling: Sampling,
}

impl ReadinessMetrics {
    /// Every series starts at 0.
    pub(super) fn new(buckets: Buckets) -> ReadinessMetrics {
        let metrics = ReadinessMetrics {
            ready: durations(buckets),
            wait: durations(buckets),
            silent: Counter::default(),
            pending: BTreeSet::new(),
            sampling: Sampling::new(Policy::All),
        };
        for result in ["ready", "failed"] {
            drop(metrics.ready.get_or_create(&ResultLabels { result }));
            drop(metrics.wait.get_or_create(&ResultLabels { result }));
        }
        metrics
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        register! { registry,
            "network_ready_duration_seconds": self.ready, "Time from the end of a sandbox's creation until its first lookup was answered and its first connect established, or until these failed";
            "network_wait_duration_seconds": self.wait, "Time from a sandbox's first query or SYN until its first lookup was answered and its first connect established, or until these failed";
            "network_silent": self.silent, "Sandboxes that sent nothing within the deadline";
        }
    }

    pub(super) fn record(&mut self, output: &Output) {
        match output {
            Output::Created(trace) if !trace.closed => {
                self.pending.insert(trace.root_id());
            }
            Output::Closed(trace) => {
                if let Detail::Sandbox(sandbox) = &trace.root().detail
                    && self.pending.remove(&trace.root_id())
                {
                    self.closed(trace, sandbox);
                }
            }
            _ => {}
        }
    }

    fn closed(&self, trace: &Trace, sandbox: &SandboxDetail) {
        let (Some(created), Some(ended)) = (creation::created(trace), trace.root().end) else {
            return;
        };
        let Some(first) = sandbox.first_attempt else {
            // A sandbox that was removed before the deadline was not silent, nor one of an agent that stopped before it.
            self.silent.inc_by(u64::from(sandbox.silent));
            return;
        };
        let (result, usable) = match sandbox.network_ready {
            Some(ready) => ("ready", ready),
            None => ("failed", ended),
        };
        let labels = ResultLabels { result };
        observe(
            &self.ready,
            &labels,
            usable.since(created),
            self.sampling.exemplar(trace),
        );
        observe(&self.wait, &labels, usable.since(first), self.sampling.exemplar(trace));
    }
}
