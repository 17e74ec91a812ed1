//! Product metrics of Windows nodes: durations of HNS and HCS activities, and leaked endpoints.
//!
//! Registered on every operating system; the series exist only once such an event was observed. Does not: have a label for
//! pods.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sandglass_correlator::{ActivityEnded, Finding, Output};
use sandglass_model::Detail;
use sandglass_model::windows::Service;

use super::bounded::BoundedLabel;
use super::durations::{Buckets, DurationFamily, durations, observe};
use crate::registration::register;
use crate::sinks::sampling::{Policy, Sampling};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActivityLabels {
    operation: String,
    result: &'static str,
}

/// Labels of a family with a single series.
type NoLabels = Vec<(&'static str, &'static str)>;

/// The metrics.
#[derive(Debug)]
pub(super) struct WindowsMetrics {
    hns: DurationFamily<ActivityLabels>,
    hcs: DurationFamily<ActivityLabels>,
    hns_label: BoundedLabel,
    hcs_label: BoundedLabel,
    vnic_ready: DurationFamily<NoLabels>,
    /// Families of one series, which does not exist on other systems.
    endpoints: Family<NoLabels, Gauge>,
    sandboxes: Family<NoLabels, Gauge>,
    restarts: Family<NoLabels, Counter>,
    pub(super) sampling: Sampling,
}

impl WindowsMetrics {
    pub(super) fn new(max_label_values: usize, buckets: Buckets) -> WindowsMetrics {
        WindowsMetrics {
            hns: durations(buckets),
            hcs: durations(buckets),
            hns_label: BoundedLabel::new(max_label_values),
            hcs_label: BoundedLabel::new(max_label_values),
            vnic_ready: durations(buckets),
            endpoints: Family::default(),
            sandboxes: Family::default(),
            restarts: Family::default(),
            sampling: Sampling::new(Policy::All),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        register! { registry,
            "hns_operation_duration_seconds": self.hns, "Activities of the Host Network Service (Windows), by name";
            "hcs_operation_duration_seconds": self.hcs, "Activities of the Host Compute Service, of silos and of the shim (Windows), by name";
            "vnic_ready_duration_seconds": self.vnic_ready, "Time from the end of ADD until the sandbox had its interface (Windows)";
            "hns_endpoints": self.endpoints, "HNS endpoints that were created and not deleted since the agent started (Windows)";
            "sandboxes": self.sandboxes, "Sandboxes that were requested and not removed since the agent started (Windows); endpoints beyond them are leaked";
            "hns_restarts": self.restarts, "Restarts of the Host Network Service (Windows)";
        }
    }

    pub(super) fn record(&mut self, output: &Output) {
        match output {
            Output::Finding(Finding::Activity(ended)) => self.activity(ended),
            Output::Finding(Finding::Endpoints { endpoints, sandboxes }) => {
                let show = |gauge: &Family<NoLabels, Gauge>, count: u64| {
                    gauge
                        .get_or_create(&Vec::new())
                        .set(i64::try_from(count).unwrap_or(i64::MAX));
                };
                // The series starts at 0 with the first count of endpoints.
                drop(self.restarts.get_or_create(&Vec::new()));
                show(&self.endpoints, *endpoints);
                show(&self.sandboxes, *sandboxes);
            }
            Output::Finding(Finding::HnsRestarted) => {
                self.restarts.get_or_create(&Vec::new()).inc();
            }
            Output::Closed(trace) => {
                let waits = trace
                    .spans
                    .iter()
                    .filter(|span| matches!(span.detail, Detail::VnicWait(_)));
                for wait in waits.filter(|wait| !wait.status.is_error()) {
                    observe(
                        &self.vnic_ready,
                        &Vec::new(),
                        wait.duration_ns(wait.start),
                        self.sampling.exemplar(trace),
                    );
                }
            }
            _ => {}
        }
    }

    fn activity(&mut self, ended: &ActivityEnded) {
        // A single event has no duration. A failed one is counted nevertheless.
        if ended.end == ended.start && !ended.failed {
            return;
        }
        let (family, label) = match ended.service {
            Service::Hns => (&self.hns, &mut self.hns_label),
            Service::Hcs | Service::Silo => (&self.hcs, &mut self.hcs_label),
        };
        let labels = ActivityLabels {
            operation: label.admit(&ended.name),
            result: if ended.failed { "error" } else { "success" },
        };
        observe(family, &labels, ended.end.since(ended.start), None);
    }
}
