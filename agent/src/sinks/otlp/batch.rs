//! Gathers closed traces into batches, by number of spans and by time, and encodes them.
//!
//! The sink's first task. A resource describes one pod, so the spans of a batch are grouped by pod, and `opentelemetry-otlp`
//! encodes each group with its own resource; `delivery.rs` joins the groups to one request. A trace with more spans than a
//! request holds is split; its spans keep their order. Does not: send.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry_otlp::{ExporterBuildError, Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use sandglass_model::RootId;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::convert;
use super::delivery::Delivery;
use super::spool::Worth;
use crate::node::NodeInfo;
use crate::sinks::journal::Journal;
use crate::sinks::sampling::Chosen;

/// State of the batching task.
pub(super) struct Batcher {
    pub(super) exporter: SpanExporter,
    pub(super) delivery: Arc<Delivery>,
    /// Empty without a journal of open traces.
    pub(super) journal: Arc<OnceLock<Journal>>,
    pub(super) node: NodeInfo,
    pub(super) service: String,
    pub(super) extra: Vec<(String, String)>,
    pub(super) scope: InstrumentationScope,
    pub(super) max_spans: usize,
    pub(super) max_bytes: usize,
    pub(super) delay: Duration,
}

/// The exporter, used as an encoder only. Every option that it would read from the process environment is set, or unused.
pub(super) fn exporter(delivery: Arc<Delivery>) -> Result<SpanExporter, ExporterBuildError> {
    SpanExporter::builder()
        .with_http()
        .with_shared_http_client(delivery)
        .with_protocol(Protocol::HttpBinary)
        // Never contacted: requests go through `delivery.rs`.
        .with_endpoint("http://localhost/v1/traces")
        .with_timeout(Duration::from_secs(10))
        .with_retry_policy(RetryPolicy::disabled())
        .build()
}

impl Batcher {
    /// Runs until all senders are dropped or `stopping` is true, and every queued trace is in a sealed request.
    pub(super) async fn run(mut self, mut queue: mpsc::Receiver<Chosen>, mut stopping: watch::Receiver<bool>) {
        let mut pending: Vec<Chosen> = Vec::new();
        let mut spans = 0;
        let mut due = Instant::now();
        let mut open = true;
        loop {
            let next = tokio::select! {
                received = queue.recv() => Next::Received(received),
                () = sleep_until(due), if !pending.is_empty() => Next::Due,
                _ = stopping.wait_for(|stopping| *stopping), if open => Next::Stopping,
            };
            let trace = match next {
                Next::Received(Some(trace)) => trace,
                Next::Received(None) => break,
                Next::Due => {
                    self.flush(std::mem::take(&mut pending)).await;
                    spans = 0;
                    continue;
                }
                Next::Stopping => {
                    // Traces queued before this are still received.
                    queue.close();
                    open = false;
                    continue;
                }
            };
            // A split trace would leave a small request with its last spans.
            if spans + trace.trace.spans.len() > self.max_spans {
                self.flush(std::mem::take(&mut pending)).await;
                spans = 0;
            }
            if pending.is_empty() {
                due = Instant::now() + self.delay;
            }
            spans += trace.trace.spans.len();
            pending.push(trace);
            if spans >= self.max_spans {
                self.flush(std::mem::take(&mut pending)).await;
                spans = 0;
            }
        }
        self.flush(pending).await;
        self.delivery.close();
    }

    /// Encodes the traces and seals the requests. With a spool, which drops by worth, no request holds bad and good traces.
    async fn flush(&mut self, traces: Vec<Chosen>) {
        let journal = self.journal.get().cloned();
        let roots: Vec<RootId> = match &journal {
            Some(_) => traces.iter().map(|chosen| chosen.trace.root_id()).collect(),
            None => Vec::new(),
        };
        self.flush_all(traces).await;
        if let Some(journal) = journal {
            // From now on the spool keeps them.
            roots.into_iter().for_each(|root| journal.gone(root));
        }
    }

    async fn flush_all(&mut self, traces: Vec<Chosen>) {
        if self.delivery.spool().is_none() {
            return self.flush_group(traces, Worth::Bad).await;
        }
        let (bad, good) = traces.into_iter().partition(|chosen| chosen.bad);
        self.flush_group(bad, Worth::Bad).await;
        self.flush_group(good, Worth::Good).await;
    }

    async fn flush_group(&mut self, traces: Vec<Chosen>, worth: Worth) {
        let mut open_spans = 0;
        for group in by_pod(traces) {
            let Some(first) = group.first() else { continue };
            self.exporter
                .set_resource(&convert::resource(&first.trace, &self.node, &self.service, &self.extra));
            let mut spans: Vec<SpanData> = Vec::new();
            let mut bytes = 0;
            for span in group.iter().flat_map(|trace| convert::spans(trace, &self.scope)) {
                let size = convert::encoded_size(&span);
                let request_spans = open_spans as usize + spans.len();
                if request_spans >= self.max_spans
                    || (request_spans > 0 && self.delivery.open_bytes() + bytes + size > self.max_bytes)
                {
                    open_spans += self.export(std::mem::take(&mut spans)).await;
                    self.delivery.seal(open_spans, worth).await;
                    open_spans = 0;
                    bytes = 0;
                }
                bytes += size;
                spans.push(span);
            }
            open_spans += self.export(spans).await;
        }
        self.delivery.seal(open_spans, worth).await;
    }

    /// Encodes one group into the open request; returns the number of its spans.
    async fn export(&self, spans: Vec<SpanData>) -> u64 {
        let number = spans.len() as u64;
        if number == 0 {
            return 0;
        }
        match self.exporter.export(spans).await {
            Ok(()) => number,
            // `Delivery` accepts every body: an error is the encoder's, for a body above its size limit.
            Err(error) => {
                self.delivery.reject(number, format!("cannot encode spans: {error}"));
                0
            }
        }
    }
}

/// Why the batching task woke up.
enum Next {
    Received(Option<Chosen>),
    Due,
    Stopping,
}

/// Traces of the same pod together, in the order in which the pods first appear.
fn by_pod(traces: Vec<Chosen>) -> Vec<Vec<Chosen>> {
    let mut groups: Vec<Vec<Chosen>> = Vec::new();
    let mut indices: HashMap<[String; 3], usize> = HashMap::new();
    for trace in traces {
        let pod = &trace.trace.identity;
        let key = [pod.namespace.clone(), pod.name.clone(), pod.uid.clone()];
        let index = *indices.entry(key).or_insert(groups.len());
        match groups.get_mut(index) {
            Some(group) => group.push(trace),
            None => groups.push(vec![trace]),
        }
    }
    groups
}
