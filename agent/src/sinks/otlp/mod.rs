//! The OTLP sink: closed traces to an OpenTelemetry collector, over HTTP/protobuf or gRPC.
//!
//! `offer` (never blocks) -> bounded queue -> `batch.rs` (groups by pod, encodes) -> `delivery.rs` (bounded queue of
//! requests, retry) -> `transport.rs`. Used by the composition root and by `sandglass replay --export`.
//! Accounting is exact, in spans: each one offered ends as delivered, rejected, partial_rejected, evicted or shed, or
//! still waits. The agent-wide counter `shed{sink="otlp"}` counts traces, as it does for every sink.
//! Does not: block the pipeline, survive a restart of the agent (the queue is in memory), or use a proxy.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::registry::Registry;
use sandglass_model::{SpanId, Trace};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use self::backoff::Backoff;
use self::batch::Batcher;
use self::config::{Protocol, Resolved};
use self::delivery::Delivery;
use self::metrics::{Metrics, Outcome};
use self::outbox::Outbox;
use self::transport::Transport;
use crate::failure::{Advice, Exit};
use crate::health::{Health, SinkLabel};
use crate::node::NodeInfo;

mod backoff;
mod batch;
pub mod config;
mod convert;
mod delivery;
mod metrics;
mod outbox;
pub mod tls;
mod transport;
mod verdict;

/// The sink. Dropping it without [`OtlpSink::stop`] leaves its tasks to end with the runtime, and what waits unsent.
#[derive(Debug)]
pub struct OtlpSink {
    queue: mpsc::Sender<Arc<Trace>>,
    delivery: Arc<Delivery>,
    metrics: Arc<Metrics>,
    health: Health,
    stopping: watch::Sender<bool>,
    tasks: Mutex<Option<[JoinHandle<()>; 2]>>,
    endpoint: String,
    protocol: Protocol,
}

/// Why the sink cannot start. That the collector is not there is no reason.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Certificate files cannot be used.
    #[error("cannot prepare TLS to {endpoint}")]
    Tls {
        /// Where to.
        endpoint: String,
        /// Which file, and what is wrong.
        #[source]
        source: tls::TlsError,
    },
    /// The encoder cannot be set up.
    #[error("cannot set up the OTLP encoder")]
    Encoder(#[source] opentelemetry_otlp::ExporterBuildError),
    /// It was not called from within a Tokio runtime.
    #[error("cannot start the OTLP sink outside of a Tokio runtime")]
    NoRuntime(#[source] tokio::runtime::TryCurrentError),
}

impl Advice for StartError {
    fn hint(&self) -> Cow<'_, str> {
        let hint = match self {
            StartError::Tls { source, .. } => return source.hint(),
            StartError::Encoder(_) => "unset the OTEL_EXPORTER_OTLP_* variables that hold no valid text",
            StartError::NoRuntime(_) => "this is a bug in sandglass",
        };
        hint.into()
    }

    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

/// What the sink says of itself; all numbers are spans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OtlpStatus {
    /// Where to, without query.
    pub endpoint: String,
    /// How.
    pub protocol: Protocol,
    /// The collector has them.
    pub delivered: u64,
    /// Not yet delivered, and not given up.
    pub waiting: u64,
    /// Refused by the collector, whole requests and parts of them.
    pub rejected: u64,
    /// Given up because the queue of requests was full.
    pub evicted: u64,
    /// Not taken because the input queue was full.
    pub shed: u64,
    /// The last attempt failed; the sink tries again.
    pub failing: bool,
    /// What went wrong last, even if it works again.
    pub last_error: Option<String>,
}

impl OtlpSink {
    /// Starts the sink's two tasks on the current Tokio runtime. Does not wait for the collector.
    pub fn start(config: Resolved, node: NodeInfo, health: Health) -> Result<OtlpSink, StartError> {
        let runtime = Handle::try_current().map_err(StartError::NoRuntime)?;
        let endpoint = config.target.to_string();
        let transport = Transport::new(&config, &node.version).map_err(|source| StartError::Tls {
            endpoint: endpoint.clone(),
            source,
        })?;
        let metrics = Arc::new(Metrics::new());
        let tuning = &config.tuning;
        let delivery = Arc::new(Delivery::new(
            config.gzip,
            Outbox::new(tuning.queue_requests, tuning.queue_bytes),
            Arc::clone(&metrics),
        ));
        let exporter = batch::exporter(Arc::clone(&delivery)).map_err(StartError::Encoder)?;
        let seed = tuning
            .seed
            .unwrap_or_else(|| SpanId::of(&[node.name.as_bytes(), node.boot_id.as_bytes()]).0);
        let backoff = Backoff::new(tuning.backoff_initial, tuning.backoff_max, seed);
        let (queue, received) = mpsc::channel(tuning.queue_traces.max(1));
        let (stopping, stop_seen) = watch::channel(false);
        let batcher = Batcher {
            exporter,
            delivery: Arc::clone(&delivery),
            scope: convert::scope(&node.version),
            service: config.service.clone().unwrap_or_else(|| node.service.clone()),
            node,
            extra: config.resource.clone(),
            most_spans: tuning.batch_spans.max(1),
            most_bytes: tuning.batch_bytes,
            delay: tuning.batch_delay,
        };
        let batching = runtime.spawn(batcher.run(received, stop_seen.clone()));
        let sending = {
            let delivery = Arc::clone(&delivery);
            runtime.spawn(async move { delivery.drain(transport, backoff, stop_seen).await })
        };
        // Known label sets start at 0.
        health.shed.get_or_create(&SinkLabel { sink: "otlp" }).inc_by(0);
        tracing::info!(endpoint, protocol = ?config.protocol, gzip = config.gzip, "exporting traces");
        Ok(OtlpSink {
            queue,
            delivery,
            metrics,
            health,
            stopping,
            tasks: Mutex::new(Some([batching, sending])),
            endpoint,
            protocol: config.protocol,
        })
    }

    /// Registers the sink's metrics.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    /// Takes a trace if it is closed and there is room; never blocks. What is not taken for want of room is counted.
    pub fn offer(&self, trace: &Arc<Trace>) {
        if !trace.closed {
            return;
        }
        let spans = trace.spans.len() as u64;
        self.metrics.accept(spans);
        if self.queue.try_send(Arc::clone(trace)).is_err() {
            self.metrics.turn_away(spans);
            self.health.shed.get_or_create(&SinkLabel { sink: "otlp" }).inc();
        }
    }

    /// How it goes.
    #[must_use]
    pub fn status(&self) -> OtlpStatus {
        let failure = self.delivery.failure();
        OtlpStatus {
            endpoint: self.endpoint.clone(),
            protocol: self.protocol,
            delivered: self.metrics.total(Outcome::delivered),
            waiting: self.metrics.waiting(),
            rejected: self.metrics.total(Outcome::rejected) + self.metrics.total(Outcome::partial_rejected),
            evicted: self.metrics.total(Outcome::evicted),
            shed: self.metrics.total(Outcome::shed),
            failing: failure.streak > 0,
            last_error: failure.last,
        }
    }

    /// Takes no more traces, sends what waits for at most `timeout`, and answers how many spans are left undelivered.
    /// A request that is still under way then counts as undelivered. A wait between attempts is cut short once, unless
    /// the collector asked for it. A second call only answers.
    pub async fn stop(&self, timeout: Duration) -> u64 {
        self.stopping.send_replace(true);
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some([mut batching, mut sending]) = tasks {
            let flushed = tokio::time::timeout(timeout, async {
                let _ = (&mut batching).await;
                let _ = (&mut sending).await;
            });
            if flushed.await.is_err() {
                batching.abort();
                sending.abort();
            }
        }
        let undelivered = self.metrics.waiting();
        if undelivered > 0 {
            tracing::warn!(endpoint = self.endpoint, undelivered, "spans are left undelivered");
        }
        undelivered
    }
}

#[cfg(test)]
mod tests;
