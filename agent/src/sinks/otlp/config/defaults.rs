//! The default of each setting of OTLP export, and the bounds that cannot be configured.
//!
//! The one place of these numbers. Does not: compute anything.

use std::time::Duration;

/// Default of `otlp.timeout_ms`.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Default of `otlp.batch_spans`.
pub const BATCH_SPANS: usize = 512;
/// Default of `otlp.batch_delay_ms`.
pub const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Default of `otlp.queue_traces`.
pub const QUEUE_TRACES: usize = 2_048;
/// Default of `otlp.queue_bytes`.
pub const QUEUE_BYTES: usize = 16 << 20;
/// Default of `otlp.spool_bytes`.
pub const SPOOL_BYTES: u64 = 128 << 20;
/// Default of `otlp.spool_hours`.
pub const SPOOL_HOURS: u64 = 24;

/// Default of `otlp.good_per_thousand`.
pub const GOOD_PER_THOUSAND: u32 = 10;
/// Default of `otlp.slow_ms`.
pub const SLOW: Duration = Duration::from_nanos(crate::sinks::worth::SLOW_NS);

/// Default of `otlp.metrics_interval_ms`, as `OTEL_METRIC_EXPORT_INTERVAL` has it
/// (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/#periodic-exporting-metricreader>).
pub const METRICS_INTERVAL: Duration = Duration::from_secs(60);

/// Bytes in a request before compression, roughly. Receivers of gRPC reject messages above 4 MiB by default.
pub const BATCH_BYTES: usize = 1 << 20;
/// Requests that may wait for the collector.
pub const QUEUE_REQUESTS: usize = 4_096;
/// First wait after a failed attempt.
pub const BACKOFF_INITIAL: Duration = Duration::from_millis(500);
/// Longest wait after a failed attempt, unless the collector requests a longer one.
pub const BACKOFF_MAX: Duration = Duration::from_secs(30);
