//! Metrics of the OTLP sink, in spans: how each one ended, depth of the queue, duration of requests.
//!
//! Every span passed to [`super::OtlpSink::offer`] is sampled out, ends with exactly one [`ExportOutcome`] or is pending: the
//! numbers add up. What is sampled out is no outcome: dashboards and an alert take every outcome but `delivered` for a failure.
//! Does not: count traces; the agent-wide `shed{sink="otlp"}` counts those that were shed.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::registration::register;

/// How a span ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(
    non_camel_case_types,
    reason = "the variants are label values, written as they appear"
)]
pub(super) enum ExportOutcome {
    /// The collector accepted it.
    delivered,
    /// The collector rejected its request permanently, or it could not be encoded.
    rejected,
    /// Its request was the oldest in a full queue.
    evicted,
    /// The collector accepted the request and rejected this span.
    partial_rejected,
    /// The sink's input queue was full, or the sink had stopped.
    shed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ExportOutcomeLabel {
    outcome: ExportOutcome,
}

/// The sink's metrics.
#[derive(Debug)]
pub(super) struct ExportMetrics {
    accepted: AtomicU64,
    spans: Family<ExportOutcomeLabel, Counter>,
    /// Spans of traces that the sampling policy left out.
    pub(super) sampled_out: Counter,
    /// Attempts after the first one of a request.
    pub(super) retries: Counter,
    /// Spans in queued requests.
    pub(super) queue_spans: Gauge,
    /// Bytes of these requests.
    pub(super) queue_bytes: Gauge,
    /// When the oldest of them was sealed, in seconds since 1970; 0 if the queue is empty.
    pub(super) queue_oldest: Gauge,
    /// Seconds of an attempt, whatever its result.
    pub(super) duration: Histogram,
}

impl ExportMetrics {
    pub(super) fn new() -> ExportMetrics {
        let metrics = ExportMetrics {
            accepted: AtomicU64::new(0),
            spans: Family::default(),
            sampled_out: Counter::default(),
            retries: Counter::default(),
            queue_spans: Gauge::default(),
            queue_bytes: Gauge::default(),
            queue_oldest: Gauge::default(),
            duration: Histogram::new(DURATION_BUCKETS),
        };
        // All series start at 0.
        for outcome in [
            ExportOutcome::delivered,
            ExportOutcome::rejected,
            ExportOutcome::evicted,
            ExportOutcome::partial_rejected,
            ExportOutcome::shed,
        ] {
            metrics.count(outcome, 0);
        }
        metrics
    }

    /// `spans` spans entered the sink.
    pub(super) fn accept(&self, spans: u64) {
        self.accepted.fetch_add(spans, Ordering::Relaxed);
    }

    /// `spans` accepted spans were shed: the input queue was full.
    pub(super) fn shed(&self, spans: u64) {
        self.accepted.fetch_sub(spans, Ordering::Relaxed);
        self.count(ExportOutcome::shed, spans);
    }

    /// Counts `spans` spans that ended with `outcome`.
    pub(super) fn count(&self, outcome: ExportOutcome, spans: u64) {
        self.spans.get_or_create(&ExportOutcomeLabel { outcome }).inc_by(spans);
    }

    /// Spans that ended with `outcome`.
    pub(super) fn total(&self, outcome: ExportOutcome) -> u64 {
        self.spans.get_or_create(&ExportOutcomeLabel { outcome }).get()
    }

    /// Pending spans: in the input queue, a batch, a queued request or one under way.
    pub(super) fn waiting(&self) -> u64 {
        let ended: u64 = [
            ExportOutcome::delivered,
            ExportOutcome::rejected,
            ExportOutcome::evicted,
            ExportOutcome::partial_rejected,
        ]
        .into_iter()
        .map(|outcome| self.total(outcome))
        .sum();
        self.accepted.load(Ordering::Relaxed).saturating_sub(ended)
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        register! { registry,
            "export_spans": self.spans, "Spans that left the OTLP sink, by outcome: delivered, rejected, evicted, partial_rejected or shed";
            "export_sampled_out_spans": self.sampled_out, "Spans of good traces that the sampling policy (otlp.sampling) left out";
            "export_retries": self.retries, "Attempts to send a request to the OTLP collector after its first one";
            "export_queue_spans": self.queue_spans, "Spans in requests queued for the OTLP collector";
            "export_queue_bytes": self.queue_bytes, "Bytes of requests queued for the OTLP collector";
            "export_queue_oldest_timestamp_seconds": self.queue_oldest, "When the oldest request queued for the OTLP collector was sealed; 0 if none is queued";
            "export_request_duration_seconds": self.duration, "Duration of attempts to send a request to the OTLP collector, failed ones included";
        }
    }
}

/// Upper bounds in seconds, from a collector on the same node to a throttled one.
const DURATION_BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 10.0, 60.0];
