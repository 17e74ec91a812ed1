//! Metrics of the push, in requests and data points.
//!
//! Does not: count series; what is pushed is what is scraped.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::registration::register;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(
    non_camel_case_types,
    reason = "the variants are label values, written as they appear"
)]
pub(super) enum PushOutcome {
    /// The collector accepted it.
    delivered,
    /// There was no response, or one that says later: the next push has newer values of the same series.
    failed,
    /// The collector rejected it permanently.
    rejected,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PushOutcomeLabel {
    outcome: PushOutcome,
}

/// The push's metrics; cheap to clone, all clones are one.
#[derive(Clone, Debug)]
pub(super) struct PushMetrics {
    requests: Family<PushOutcomeLabel, Counter>,
    /// Data points that the collector did not take, in requests that it took or rejected.
    pub(super) refused_points: Counter,
}

impl PushMetrics {
    /// All series start at 0.
    pub(super) fn new() -> PushMetrics {
        let metrics = PushMetrics {
            requests: Family::default(),
            refused_points: Counter::default(),
        };
        for outcome in [PushOutcome::delivered, PushOutcome::failed, PushOutcome::rejected] {
            metrics.requests.get_or_create(&PushOutcomeLabel { outcome }).inc_by(0);
        }
        metrics
    }

    pub(super) fn count(&self, outcome: PushOutcome) {
        self.requests.get_or_create(&PushOutcomeLabel { outcome }).inc();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        register! { registry,
            "export_metric_requests": self.requests, "Requests with metrics to the OTLP collector, by outcome: delivered, failed (the next push has newer values) or rejected";
            "export_metric_refused_points": self.refused_points, "Data points of metrics that the OTLP collector did not take";
        }
    }
}
