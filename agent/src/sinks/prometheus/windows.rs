//! Product metrics of Windows nodes: what HNS and HCS took for whom, and whether endpoints are left behind.
//!
//! Registered on every system and empty elsewhere. Does not: tell pods apart.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sandglass_correlator::{ActivityEnded, Output, Traffic};
use sandglass_model::Detail;
use sandglass_model::windows::Service;

use super::bounded::BoundedLabel;
use super::durations::{DurationFamily, durations, observe};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActivityLabels {
    operation: String,
    result: &'static str,
}

/// Of a family of one.
type NoLabels = Vec<(&'static str, &'static str)>;

/// The metrics.
#[derive(Debug)]
pub(super) struct WindowsMetrics {
    hns: DurationFamily<ActivityLabels>,
    hcs: DurationFamily<ActivityLabels>,
    hns_label: BoundedLabel,
    hcs_label: BoundedLabel,
    vnic_ready: DurationFamily<NoLabels>,
    /// Families of one, so that nothing is shown of them elsewhere.
    endpoints: Family<NoLabels, Gauge>,
    sandboxes: Family<NoLabels, Gauge>,
    restarts: Family<NoLabels, Counter>,
}

impl WindowsMetrics {
    pub(super) fn new(max_label_values: usize) -> WindowsMetrics {
        WindowsMetrics {
            hns: durations(),
            hcs: durations(),
            hns_label: BoundedLabel::new(max_label_values),
            hcs_label: BoundedLabel::new(max_label_values),
            vnic_ready: durations(),
            endpoints: Family::default(),
            sandboxes: Family::default(),
            restarts: Family::default(),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "hns_operation_duration_seconds",
            "Activity of the Host Network Service (Windows), by its name, whosever it was",
            self.hns.clone(),
        );
        registry.register(
            "hcs_operation_duration_seconds",
            "Activity of the Host Compute Service, of silos and of the shim (Windows), by its name, whosever it was",
            self.hcs.clone(),
        );
        registry.register(
            "vnic_ready_duration_seconds",
            "From the end of ADD to the sandbox's interface being there (Windows)",
            self.vnic_ready.clone(),
        );
        registry.register(
            "hns_endpoints",
            "HNS endpoints that were seen made and not deleted since (Windows)",
            self.endpoints.clone(),
        );
        registry.register(
            "sandboxes",
            "Sandboxes that were seen asked for and not removed since (Windows): endpoints beyond them are left behind",
            self.sandboxes.clone(),
        );
        registry.register(
            "hns_restarts",
            "Times that another process took the place of the Host Network Service (Windows)",
            self.restarts.clone(),
        );
    }

    pub(super) fn record(&mut self, output: &Output) {
        match output {
            Output::Traffic(Traffic::Activity(ended)) => self.activity(ended),
            Output::Traffic(Traffic::Endpoints { endpoints, sandboxes }) => {
                let show = |gauge: &Family<NoLabels, Gauge>, count: u64| {
                    gauge
                        .get_or_create(&Vec::new())
                        .set(i64::try_from(count).unwrap_or(i64::MAX));
                };
                // From here on there are restarts to count.
                drop(self.restarts.get_or_create(&Vec::new()));
                show(&self.endpoints, *endpoints);
                show(&self.sandboxes, *sandboxes);
            }
            Output::Traffic(Traffic::HnsRestarted) => {
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
                        Some(trace.id),
                    );
                }
            }
            _ => {}
        }
    }

    fn activity(&mut self, ended: &ActivityEnded) {
        // Of a single event only its end is known: that is no duration. Failures are counted all the same.
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
