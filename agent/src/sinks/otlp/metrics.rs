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
use prometheus_client::registry::Registry;

use crate::registration::register;
use crate::sinks::prometheus::{Buckets, DurationSeries};

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
    /// There was no room: its request was the oldest in a full queue, or in a full spool the oldest of least worth.
    evicted,
    /// Its request was too old for the spool.
    expired,
    /// Its bytes in the spool were not those that were written.
    corrupt,
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
    /// Bytes of the bodies of all attempts, as they are sent.
    pub(super) sent_bytes: Counter,
    /// Spans in queued requests.
    pub(super) queue_spans: Gauge,
    /// Bytes of these requests.
    pub(super) queue_bytes: Gauge,
    /// When the oldest of them was sealed, in seconds since 1970; 0 if the queue is empty.
    pub(super) queue_oldest: Gauge,
    /// Spans in the spool: a part of `queue_spans`.
    pub(super) spool_spans: Gauge,
    /// Bytes of the spool's files: a part of `queue_bytes`.
    pub(super) spool_bytes: Gauge,
    /// Number of these files.
    pub(super) spool_segments: Gauge,
    /// Files of a newer format, which are left alone.
    pub(super) spool_newer: Gauge,
    /// 1 while a configured spool cannot be used.
    pub(super) spool_failing: Gauge,
    /// Spans that were found in the spool when it was opened.
    pub(super) spool_recovered: Counter,
    /// Spans that were kept in memory because the spool could not take them.
    pub(super) spool_fallback: Counter,
    /// Bytes of unreadable records that were cut off.
    pub(super) spool_cut_bytes: Counter,
    /// Seconds of an attempt, whatever its result.
    pub(super) duration: DurationSeries,
}

impl ExportMetrics {
    pub(super) fn new(buckets: Buckets) -> ExportMetrics {
        let metrics = ExportMetrics {
            accepted: AtomicU64::new(0),
            spans: Family::default(),
            sampled_out: Counter::default(),
            retries: Counter::default(),
            sent_bytes: Counter::default(),
            queue_spans: Gauge::default(),
            queue_bytes: Gauge::default(),
            queue_oldest: Gauge::default(),
            spool_spans: Gauge::default(),
            spool_bytes: Gauge::default(),
            spool_segments: Gauge::default(),
            spool_newer: Gauge::default(),
            spool_failing: Gauge::default(),
            spool_recovered: Counter::default(),
            spool_fallback: Counter::default(),
            spool_cut_bytes: Counter::default(),
            duration: DurationSeries::new(DURATION_BUCKETS, buckets),
        };
        // All series start at 0.
        for outcome in [
            ExportOutcome::delivered,
            ExportOutcome::rejected,
            ExportOutcome::evicted,
            ExportOutcome::expired,
            ExportOutcome::corrupt,
            ExportOutcome::partial_rejected,
            ExportOutcome::shed,
        ] {
            metrics.count(outcome, 0);
        }
        metrics
    }

    /// `spans` spans entered the sink, or were found in the spool.
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

    /// Pending spans: in the input queue, a batch, a queued request (in memory or in the spool) or one under way.
    pub(super) fn waiting(&self) -> u64 {
        let ended: u64 = [
            ExportOutcome::delivered,
            ExportOutcome::rejected,
            ExportOutcome::evicted,
            ExportOutcome::expired,
            ExportOutcome::corrupt,
            ExportOutcome::partial_rejected,
        ]
        .into_iter()
        .map(|outcome| self.total(outcome))
        .sum();
        self.accepted.load(Ordering::Relaxed).saturating_sub(ended)
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        register! { registry,
            "export_spans": self.spans, "Spans that left the OTLP sink, by outcome: delivered, rejected, evicted, expired, corrupt, partial_rejected or shed";
            "export_sampled_out_spans": self.sampled_out, "Spans of good traces that the sampling policy (otlp.sampling) left out";
            "export_retries": self.retries, "Attempts to send a request to the OTLP collector after its first one";
            "export_sent_bytes": self.sent_bytes, "Bytes of requests to the OTLP collector, of every attempt, compressed where they are";
            "export_queue_spans": self.queue_spans, "Spans in requests queued for the OTLP collector";
            "export_queue_bytes": self.queue_bytes, "Bytes of requests queued for the OTLP collector";
            "export_queue_oldest_timestamp_seconds": self.queue_oldest, "When the oldest request queued for the OTLP collector was sealed; 0 if none is queued";
            "export_spool_spans": self.spool_spans, "Spans in requests that wait in the spool on disk";
            "export_spool_bytes": self.spool_bytes, "Bytes of the spool's files";
            "export_spool_segments": self.spool_segments, "Files of the spool";
            "export_spool_newer_segments": self.spool_newer, "Files of the spool in a newer format, which are left alone";
            "export_spool_failing": self.spool_failing, "1 while a configured spool cannot be used and requests are kept in memory";
            "export_spool_recovered_spans": self.spool_recovered, "Spans of an earlier run that were found in the spool";
            "export_spool_fallback_spans": self.spool_fallback, "Spans that were kept in memory because the spool could not take them";
            "export_spool_cut_bytes": self.spool_cut_bytes, "Bytes of unreadable records that were cut off the spool";
            "export_request_duration_seconds": self.duration, "Duration of attempts to send a request to the OTLP collector, failed ones included";
        }
    }
}

/// Upper bounds in seconds, from a collector on the same node to a throttled one.
const DURATION_BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 10.0, 60.0];
