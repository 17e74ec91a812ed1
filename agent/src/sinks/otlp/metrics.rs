//! What the OTLP sink counts, in spans: where each one ended, how full the queue is, how long requests take.
//!
//! Every span that [`super::OtlpSink::offer`] is given ends in exactly one [`Outcome`] or still waits; the numbers add up.
//! Does not: count traces. The agent-wide `shed{sink="otlp"}` counter does that, for what never entered the sink.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Where a span ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(
    non_camel_case_types,
    reason = "the variants are label values, written as they appear"
)]
pub(super) enum Outcome {
    /// The collector has it.
    delivered,
    /// The collector refused its request for good, or it could not be encoded.
    rejected,
    /// The queue of requests was full, and its request was the oldest.
    evicted,
    /// The collector took the request and refused some of its spans.
    partial_rejected,
    /// The sink's input queue was full, or the sink had stopped.
    shed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: Outcome,
}

/// The sink's counters.
#[derive(Debug)]
pub(super) struct Metrics {
    accepted: AtomicU64,
    spans: Family<OutcomeLabel, Counter>,
    /// Attempts after the first of a request.
    pub(super) retries: Counter,
    /// Spans in requests that wait to be sent.
    pub(super) queue_spans: Gauge,
    /// Bytes of these requests.
    pub(super) queue_bytes: Gauge,
    /// When the oldest of them was made, in seconds since 1970; 0 when none waits.
    pub(super) queue_oldest: Gauge,
    /// Seconds from the begin of an attempt to its end, whatever the end.
    pub(super) duration: Histogram,
}

impl Metrics {
    pub(super) fn new() -> Metrics {
        let metrics = Metrics {
            accepted: AtomicU64::new(0),
            spans: Family::default(),
            retries: Counter::default(),
            queue_spans: Gauge::default(),
            queue_bytes: Gauge::default(),
            queue_oldest: Gauge::default(),
            duration: Histogram::new(DURATION_BUCKETS),
        };
        // Known label sets start at 0.
        for outcome in [
            Outcome::delivered,
            Outcome::rejected,
            Outcome::evicted,
            Outcome::partial_rejected,
            Outcome::shed,
        ] {
            metrics.count(outcome, 0);
        }
        metrics
    }

    /// `spans` spans entered the sink.
    pub(super) fn accept(&self, spans: u64) {
        self.accepted.fetch_add(spans, Ordering::Relaxed);
    }

    /// `spans` spans that were accepted did not enter after all.
    pub(super) fn turn_away(&self, spans: u64) {
        self.accepted.fetch_sub(spans, Ordering::Relaxed);
        self.count(Outcome::shed, spans);
    }

    /// `spans` spans ended so.
    pub(super) fn count(&self, outcome: Outcome, spans: u64) {
        self.spans.get_or_create(&OutcomeLabel { outcome }).inc_by(spans);
    }

    /// How many spans ended so.
    pub(super) fn total(&self, outcome: Outcome) -> u64 {
        self.spans.get_or_create(&OutcomeLabel { outcome }).get()
    }

    /// Spans that entered and have not ended: in the input queue, in a batch, in a request that waits or is under way.
    pub(super) fn waiting(&self) -> u64 {
        let ended: u64 = [
            Outcome::delivered,
            Outcome::rejected,
            Outcome::evicted,
            Outcome::partial_rejected,
        ]
        .into_iter()
        .map(|outcome| self.total(outcome))
        .sum();
        self.accepted.load(Ordering::Relaxed).saturating_sub(ended)
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "export_spans",
            "Spans that left the OTLP sink, by how: delivered, rejected, evicted, partial_rejected or shed",
            self.spans.clone(),
        );
        registry.register(
            "export_retries",
            "Attempts to send a request to the OTLP collector after the first one",
            self.retries.clone(),
        );
        registry.register(
            "export_queue_spans",
            "Spans in requests that wait for the OTLP collector",
            self.queue_spans.clone(),
        );
        registry.register(
            "export_queue_bytes",
            "Bytes of requests that wait for the OTLP collector",
            self.queue_bytes.clone(),
        );
        registry.register(
            "export_queue_oldest_timestamp_seconds",
            "When the oldest request that waits for the OTLP collector was made; 0 when none waits",
            self.queue_oldest.clone(),
        );
        registry.register(
            "export_request_duration_seconds",
            "Seconds an attempt to send a request to the OTLP collector took, failed ones included",
            self.duration.clone(),
        );
    }
}

/// From a collector on the node to one that is throttled.
const DURATION_BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 10.0, 60.0];
