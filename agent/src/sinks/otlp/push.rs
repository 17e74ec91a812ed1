//! Pushes the registry of `/metrics` to an OpenTelemetry collector, beside the scrape and with the same names and units.
//!
//! Used by the composition root. Every interval all series are converted (`push/convert.rs`), encoded and sent over the
//! transport of traces. Nothing is queued: a push that fails is followed by one with newer values, which counts everything since
//! the start, or since what the collector accepted. Does not: push what a scrape does not have, or use a spool.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{Metric, ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use sandglass_model::{SpanId, registry};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::convert::{Baseline, Point, PushState, SeriesKey, attributes};
use self::metrics::{PushMetrics, PushOutcome};
use super::OtlpError;
use super::backoff::Backoff;
use super::config::{PushOptions, defaults};
use super::convert::SCHEMA_URL;
use super::delivery::compress;
use super::response::AttemptResult;
use super::transport::OtlpTransport;
use crate::node::NodeInfo;
use crate::sinks::prometheus::Metrics;

mod convert;
mod metrics;
mod names;

/// The push. Dropping it without [`MetricsPush::stop`] loses the last interval; its task ends with the runtime.
#[derive(Debug)]
pub struct MetricsPush {
    stopping: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl MetricsPush {
    /// Starts the push on the current Tokio runtime, and registers its own metrics. Nodes push at different times of the
    /// interval, the first one within it.
    ///
    /// # Errors
    /// TLS cannot be set up, or there is no runtime.
    pub fn start(options: PushOptions, node: &NodeInfo, registry: Metrics) -> Result<MetricsPush, OtlpError> {
        let runtime = Handle::try_current().map_err(OtlpError::NoRuntime)?;
        let endpoint = options.connection.target.to_string();
        let transport = OtlpTransport::new(&options.connection, &node.version).map_err(|source| OtlpError::Tls {
            endpoint: endpoint.clone(),
            source,
        })?;
        let metrics = PushMetrics::new();
        registry.register(|registry| metrics.register(registry));
        let seed = SpanId::of(&[node.name.as_bytes(), node.boot_id.as_bytes(), b"metrics"]).0;
        let push = Push {
            registry,
            resource: resource(&options, node),
            scope: InstrumentationScope {
                name: "sandglass".to_owned(),
                version: node.version.clone(),
                ..InstrumentationScope::default()
            },
            gzip: options.connection.gzip,
            transport,
            state: PushState::new(options.temporality, SystemTime::now()),
            backoff: Backoff::new(defaults::BACKOFF_INITIAL, defaults::BACKOFF_MAX, seed),
            interval: options.interval,
            metrics,
            failing: false,
            warnings: 0,
        };
        let interval = options.interval;
        let offset = Duration::from_millis(seed % u64::try_from(interval.as_millis()).unwrap_or(u64::MAX).max(1));
        let (stopping, stop_seen) = watch::channel(false);
        tracing::info!(endpoint, ?interval, temporality = ?options.temporality, "pushing metrics");
        Ok(MetricsPush {
            stopping,
            task: Mutex::new(Some(runtime.spawn(push.run(offset, stop_seen)))),
        })
    }

    /// Pushes once more, for at most `timeout`, and ends.
    pub async fn stop(&self, timeout: Duration) {
        self.stopping.send_replace(true);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut task) = task
            && tokio::time::timeout(timeout, &mut task).await.is_err()
        {
            task.abort();
            tracing::warn!("the last metrics were not delivered");
        }
    }
}

/// State of the task.
struct Push {
    registry: Metrics,
    resource: Resource,
    scope: InstrumentationScope,
    gzip: bool,
    transport: OtlpTransport,
    state: PushState,
    backoff: Backoff,
    interval: Duration,
    metrics: PushMetrics,
    /// The last request got no response, or one that says later.
    failing: bool,
    /// Since the start; limits the log.
    warnings: u64,
}

/// A request before it is encoded.
#[derive(Default)]
struct PushRequest {
    metrics: Vec<Metric>,
    points: u64,
    bytes: usize,
    baselines: Vec<(SeriesKey, Baseline)>,
}

impl Push {
    async fn run(mut self, offset: Duration, mut stopping: watch::Receiver<bool>) {
        let mut wait = offset;
        loop {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = stopping.wait_for(|stopping| *stopping) => {}
            }
            let is_last = *stopping.borrow();
            wait = self.push().await;
            if is_last {
                return;
            }
        }
    }

    /// One push; returns the wait until the next one.
    async fn push(&mut self) -> Duration {
        let now = SystemTime::now();
        let Ok(families) = self.registry.families() else {
            // A collector of the registry cannot be encoded: a scrape reports it.
            return self.interval;
        };
        let mut complete = true;
        for request in requests(self.state.points(families, now)) {
            let (points, baselines) = (request.points, request.baselines);
            match self.send(request.metrics).await {
                AttemptResult::Delivered { refused, note } => {
                    self.metrics.count(PushOutcome::delivered);
                    self.metrics.refused_points.inc_by(refused);
                    self.state.accepted(baselines);
                    if refused > 0 || !note.is_empty() {
                        self.warn(&format!("{refused} data points refused: {note}"));
                    }
                }
                AttemptResult::Rejected { why } => {
                    complete = false;
                    self.metrics.count(PushOutcome::rejected);
                    self.metrics.refused_points.inc_by(points);
                    self.warn(&why);
                }
                AttemptResult::Later { after, why } => {
                    self.metrics.count(PushOutcome::failed);
                    self.failing = true;
                    self.warn(&why);
                    // Sooner than the interval, unless the collector wants it later.
                    return self
                        .backoff
                        .pause(after)
                        .min(self.interval.max(after.unwrap_or_default()));
                }
            }
        }
        if std::mem::take(&mut self.failing) {
            tracing::info!("the collector accepts metrics again");
        }
        self.backoff.reset();
        if complete {
            self.state.completed(now);
        }
        self.interval
    }

    async fn send(&mut self, metrics: Vec<Metric>) -> AttemptResult {
        let message = ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(self.scope.clone()),
                    metrics,
                    schema_url: SCHEMA_URL.to_owned(),
                }],
                schema_url: SCHEMA_URL.to_owned(),
            }],
        };
        let body = message.encode_to_vec();
        let body = match self.gzip {
            true => match compress(&body) {
                Ok(compressed) => compressed,
                Err(error) => {
                    return AttemptResult::Rejected {
                        why: format!("cannot compress a request: {error}"),
                    };
                }
            },
            false => body,
        };
        self.transport.send(&Bytes::from(body), self.gzip).await
    }

    fn warn(&mut self, why: &str) {
        self.warnings += 1;
        if self.warnings.is_power_of_two() {
            tracing::warn!(
                times = self.warnings,
                error = why,
                "the collector did not accept all metrics"
            );
        }
    }
}

/// Joins the points of one metric, and begins a request where the one before is full.
fn requests(points: Vec<Point>) -> Vec<PushRequest> {
    let mut requests = vec![PushRequest::default()];
    for point in points {
        // With name and help of the metric, so it is an upper bound.
        let bytes = point.metric.encoded_len();
        if requests
            .last()
            .is_some_and(|open| open.bytes + bytes > defaults::BATCH_BYTES)
        {
            requests.push(PushRequest::default());
        }
        let Some(open) = requests.last_mut() else { continue };
        open.bytes += bytes;
        open.points += 1;
        open.baselines.extend(point.baseline);
        let unjoined = match open.metrics.last_mut() {
            Some(metric) if metric.name == point.metric.name => join(metric, point.metric),
            _ => Some(point.metric),
        };
        open.metrics.extend(unjoined);
    }
    requests.retain(|request| request.points > 0);
    requests
}

/// Moves the points of `other` to `metric`, which is the same metric; returns `other` if it is of another kind.
fn join(metric: &mut Metric, other: Metric) -> Option<Metric> {
    match (&mut metric.data, other.data) {
        (Some(Data::Gauge(points)), Some(Data::Gauge(more))) => points.data_points.extend(more.data_points),
        (Some(Data::Sum(points)), Some(Data::Sum(more))) => points.data_points.extend(more.data_points),
        (Some(Data::ExponentialHistogram(points)), Some(Data::ExponentialHistogram(more))) => {
            points.data_points.extend(more.data_points);
        }
        (_, data) => return Some(Metric { data, ..other }),
    }
    None
}

/// The agent on its node. `service.instance.id` is the label `instance` of Prometheus: the node's name, which stays the same
/// across restarts of the agent.
fn resource(options: &PushOptions, node: &NodeInfo) -> Resource {
    let service = options.service.clone().unwrap_or_else(|| node.service.clone());
    let mut pairs = vec![
        (registry::SERVICE_NAME.to_owned(), service),
        (registry::SERVICE_VERSION.to_owned(), node.version.clone()),
        (registry::NODE_NAME.to_owned(), node.name.clone()),
    ];
    if !options.resource.iter().any(|(key, _)| key == INSTANCE) {
        pairs.push((INSTANCE.to_owned(), node.name.clone()));
    }
    let own = pairs.len();
    for (key, value) in &options.resource {
        // Configured attributes never overwrite the agent's.
        if !pairs[..own].iter().any(|(known, _)| known == key) {
            pairs.push((key.clone(), value.clone()));
        }
    }
    Resource {
        attributes: attributes(&pairs),
        ..Resource::default()
    }
}

/// Semantic conventions, "Service".
const INSTANCE: &str = "service.instance.id";

#[cfg(test)]
mod tests;
