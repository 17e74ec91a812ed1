//! The OTLP sink: closed traces to an OpenTelemetry collector, over HTTP/protobuf or gRPC.
//!
//! `offer` (never blocks) -> bounded queue -> `batch.rs` (groups by pod, encodes) -> `delivery.rs` (bounded queue of
//! requests, on disk with a spool; retry) -> `transport.rs`. A journal (`sinks/journal.rs`) keeps what is in no request yet. Used by the composition root and by `sandglass replay --export`.
//! Every span passed to `offer`, or found in the spool, ends as delivered, rejected, partial_rejected, evicted, expired, corrupt
//! or shed, is sampled out, or is pending: the numbers add up. The agent-wide counter `shed{sink="otlp"}` counts traces, as it does for every sink.
//! Does not: block the pipeline, survive a restart of the agent without a spool, or use a proxy.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use prometheus_client::registry::Registry;
use sandglass_model::{SpanId, Trace};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use self::backoff::Backoff;
use self::batch::Batcher;
use self::config::{OtlpProtocol, Resolved};
use self::delivery::Delivery;
use self::metrics::{ExportMetrics, ExportOutcome};
use self::queue::RequestQueue;
use self::spool::Spool;
use self::transport::OtlpTransport;
use crate::failure::{Advice, ExitReason};
use crate::health::{Health, SinkLabel};
use crate::node::NodeInfo;
use crate::sinks::journal::Journal;
use crate::sinks::sampling::{Chosen, Sampling};
use crate::tls::TlsError;

mod backoff;
mod batch;
pub mod config;
mod convert;
mod delivery;
mod metrics;
pub mod push;
mod queue;
pub mod response;
mod spool;
mod transport;

/// The sink. Dropping it without [`OtlpSink::stop`] loses pending spans; its tasks end with the runtime.
#[derive(Debug)]
pub struct OtlpSink {
    queue: mpsc::Sender<Chosen>,
    sampling: Sampling,
    delivery: Arc<Delivery>,
    journal: Arc<OnceLock<Journal>>,
    metrics: Arc<ExportMetrics>,
    health: Health,
    stopping: watch::Sender<bool>,
    tasks: Mutex<Option<[JoinHandle<()>; 2]>>,
    endpoint: String,
    protocol: OtlpProtocol,
}

/// Why the sink cannot start. An unreachable collector is no error: the sink retries.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// TLS cannot be set up from the certificate files.
    #[error("cannot prepare TLS to {endpoint}")]
    Tls {
        /// The collector.
        endpoint: String,
        /// The file, and what is wrong with it.
        #[source]
        source: TlsError,
    },
    /// The encoder cannot be set up.
    #[error("cannot set up the OTLP encoder")]
    Encoder(#[source] opentelemetry_otlp::ExporterBuildError),
    /// It was not called from within a Tokio runtime.
    #[error("cannot start the OTLP sink outside of a Tokio runtime")]
    NoRuntime(#[source] tokio::runtime::TryCurrentError),
}

impl Advice for OtlpError {
    fn hint(&self) -> Cow<'_, str> {
        let hint = match self {
            OtlpError::Tls { source, .. } => return source.hint(),
            OtlpError::Encoder(_) => "unset the OTEL_EXPORTER_OTLP_* variables that hold no valid text",
            OtlpError::NoRuntime(_) => "this is a bug in sandglass",
        };
        hint.into()
    }

    fn exit(&self) -> ExitReason {
        ExitReason::Usage
    }
}

/// Status of the sink; all numbers are spans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OtlpStatus {
    /// The collector, without the query of its URL.
    pub endpoint: String,
    /// The protocol.
    pub protocol: OtlpProtocol,
    /// Accepted by the collector.
    pub delivered: u64,
    /// Pending: in a queue, a batch or a request under way.
    pub waiting: u64,
    /// Rejected by the collector, as whole requests or parts of them.
    pub rejected: u64,
    /// Evicted from the full queue of requests, or from the full spool.
    pub evicted: u64,
    /// Dropped from the spool because they were too old.
    pub expired: u64,
    /// Lost in the spool: their bytes were not those that were written.
    pub corrupt: u64,
    /// Shed because the input queue was full.
    pub shed: u64,
    /// Not sent, by the sampling policy.
    pub sampled_out: u64,
    /// The sampling policy.
    pub sampling: String,
    /// The last attempt failed; the sink retries.
    pub failing: bool,
    /// The last error; kept after a recovery.
    pub last_error: Option<String>,
    /// Spans in the spool, a part of `waiting`; `None` without a spool.
    pub spool_spans: Option<u64>,
    /// Bytes of the spool's files.
    pub spool_bytes: Option<u64>,
    /// Why requests are kept in memory in spite of the spool.
    pub spool_problem: Option<String>,
    /// Files of the spool that are left alone: in a newer format, or not readable.
    pub spool_left_alone: Option<usize>,
}

impl OtlpSink {
    /// Starts the sink's two tasks on the current Tokio runtime. Does not wait for the collector.
    pub fn start(config: Resolved, node: NodeInfo, health: Health) -> Result<OtlpSink, OtlpError> {
        let runtime = Handle::try_current().map_err(OtlpError::NoRuntime)?;
        let endpoint = config.connection.target.to_string();
        let transport = OtlpTransport::new(&config.connection, &node.version).map_err(|source| OtlpError::Tls {
            endpoint: endpoint.clone(),
            source,
        })?;
        let metrics = Arc::new(ExportMetrics::new(config.buckets));
        let tuning = &config.tuning;
        let delivery = Arc::new(Delivery::new(
            config.connection.gzip,
            RequestQueue::new(tuning.queue_requests, tuning.queue_bytes),
            config
                .spool
                .as_ref()
                .map(|spool| Arc::new(Spool::new(spool, &node.boot_id))),
            Arc::clone(&metrics),
        ));
        let exporter = batch::exporter(Arc::clone(&delivery)).map_err(OtlpError::Encoder)?;
        let seed = tuning
            .seed
            .unwrap_or_else(|| SpanId::of(&[node.name.as_bytes(), node.boot_id.as_bytes()]).0);
        let backoff = Backoff::new(tuning.backoff_initial, tuning.backoff_max, seed);
        let (queue, received) = mpsc::channel(tuning.queue_traces.max(1));
        let (stopping, stop_seen) = watch::channel(false);
        let journal = Arc::new(OnceLock::new());
        let batcher = Batcher {
            journal: Arc::clone(&journal),
            exporter,
            delivery: Arc::clone(&delivery),
            scope: convert::scope(&node.version),
            service: config.service.clone().unwrap_or_else(|| node.service.clone()),
            node,
            extra: config.resource.clone(),
            max_spans: tuning.batch_spans.max(1),
            max_bytes: tuning.batch_bytes,
            delay: tuning.batch_delay,
        };
        let batching = runtime.spawn(batcher.run(received, stop_seen.clone()));
        let sending = {
            let delivery = Arc::clone(&delivery);
            runtime.spawn(async move { delivery.drain(transport, backoff, stop_seen).await })
        };
        // The series starts at 0.
        health.shed.get_or_create(&SinkLabel { sink: "otlp" }).inc_by(0);
        tracing::info!(endpoint, protocol = ?config.connection.protocol, gzip = config.connection.gzip, sampling = %config.sampling, "exporting traces");
        Ok(OtlpSink {
            queue,
            sampling: Sampling::new(config.sampling),
            delivery,
            journal,
            metrics,
            health,
            stopping,
            tasks: Mutex::new(Some([batching, sending])),
            endpoint,
            protocol: config.connection.protocol,
        })
    }

    /// Registers the sink's metrics.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    /// Keeps closed traces in `journal` until they are in a request. To be called before the journal is started. The first call counts. Not for
    /// a replay, whose traces belong to nobody's next run.
    pub fn keep_in(&self, journal: Journal) {
        let _ = self.journal.set(journal);
    }

    /// Queues a closed trace that the sampling policy sends; ignores an open one. Never blocks: a trace for which there is no
    /// room is shed and counted.
    pub fn offer(&self, trace: &Arc<Trace>) {
        if !trace.closed {
            return;
        }
        let spans = trace.spans.len() as u64;
        let Some(chosen) = self.sampling.choose(trace) else {
            self.metrics.sampled_out.inc_by(spans);
            if let Some(journal) = self.journal.get() {
                journal.gone(trace.root_id());
            }
            return;
        };
        self.metrics.accept(spans);
        if let Some(journal) = self.journal.get() {
            // Before it is queued: it is gone once its request is sealed.
            journal.put(trace);
        }
        if let Err(refused) = self.queue.try_send(chosen) {
            // A sink that has stopped leaves it to the next run.
            if let (Some(journal), mpsc::error::TrySendError::Full(_)) = (self.journal.get(), &refused) {
                journal.gone(trace.root_id());
            }
            self.metrics.shed(spans);
            self.health.shed.get_or_create(&SinkLabel { sink: "otlp" }).inc();
        }
    }

    /// Which traces are sent.
    #[must_use]
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Status now.
    #[must_use]
    pub fn status(&self) -> OtlpStatus {
        let failure = self.delivery.failure();
        let spool = self.delivery.spool();
        let depth = spool.as_ref().map(|spool| spool.depth);
        OtlpStatus {
            endpoint: self.endpoint.clone(),
            protocol: self.protocol,
            delivered: self.metrics.total(ExportOutcome::delivered),
            waiting: self.metrics.waiting(),
            rejected: self.metrics.total(ExportOutcome::rejected) + self.metrics.total(ExportOutcome::partial_rejected),
            evicted: self.metrics.total(ExportOutcome::evicted),
            expired: self.metrics.total(ExportOutcome::expired),
            corrupt: self.metrics.total(ExportOutcome::corrupt),
            shed: self.metrics.total(ExportOutcome::shed),
            sampled_out: self.metrics.sampled_out.get(),
            sampling: self.sampling.policy().to_string(),
            failing: failure.streak > 0,
            last_error: failure.last,
            spool_spans: depth.map(|depth| depth.spans),
            spool_bytes: depth.map(|depth| depth.bytes),
            spool_problem: spool.and_then(|spool| spool.problem),
            spool_left_alone: depth.map(|depth| depth.newer + depth.unreadable),
        }
    }

    /// Accepts no more traces, sends pending ones for at most `timeout`, and returns the number of undelivered spans, those
    /// of a request under way included. A wait between attempts is cut short once, unless the collector requested it.
    /// A second call only returns the number.
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
        if let Some(journal) = self.journal.get().cloned() {
            // It waits for the disk.
            let _ = tokio::task::spawn_blocking(move || journal.stop()).await;
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
