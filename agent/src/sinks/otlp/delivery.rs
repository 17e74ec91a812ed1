//! Owns every request until it is delivered, rejected or evicted, and counts the result.
//!
//! As the exporter's `HttpClient` it receives the body of each group of spans. The bodies of one batch are joined to one
//! request: protobuf messages that have only repeated fields may be concatenated
//! (<https://protobuf.dev/programming-guides/encoding/#last-one-wins>). [`Delivery::seal`] compresses and queues it, and
//! [`Delivery::drain`] sends queued requests one by one and in order: newer ones wait behind an older one. With a spool,
//! requests are queued on disk; those that could not be written are in memory and are sent first, since a crash loses them.
//! Does not: send within `send_bytes`; the exporter neither waits for the network nor receives its errors.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use hyper::header::CONTENT_ENCODING;
use hyper::{Request, Response};
use opentelemetry_http::{HttpClient, HttpError};
use tokio::sync::watch;

use super::backoff::Backoff;
use super::metrics::{ExportMetrics, ExportOutcome};
use super::queue::{QueuedRequest, RequestQueue};
use super::response::AttemptResult;
use super::spool::{OPEN_AGAIN, Spool, SpoolDrops, SpoolStatus, TakenRecord, Worth, on_disk};
use super::transport::OtlpTransport;

/// The bodies of the open request, and the queue of sealed ones.
#[derive(Debug)]
pub(super) struct Delivery {
    gzip: bool,
    open: Mutex<Vec<u8>>,
    queue: RequestQueue,
    spool: Option<Arc<Spool>>,
    metrics: Arc<ExportMetrics>,
    failure: Mutex<DeliveryFailure>,
}

/// A request under way, and where it goes back to.
enum NextRequest {
    Memory(QueuedRequest),
    Spool(TakenRecord),
}

/// The last failure, for the health page; its counts limit the log.
#[derive(Clone, Debug, Default)]
pub(super) struct DeliveryFailure {
    /// The last error; kept after a recovery.
    pub(super) last: Option<String>,
    /// Consecutive failed attempts.
    pub(super) streak: u64,
    /// Requests rejected since the start.
    rejected: u64,
    /// Evictions since the start.
    evictions: u64,
}

impl Delivery {
    pub(super) fn new(
        gzip: bool,
        queue: RequestQueue,
        spool: Option<Arc<Spool>>,
        metrics: Arc<ExportMetrics>,
    ) -> Delivery {
        Delivery {
            gzip,
            open: Mutex::default(),
            queue,
            spool,
            metrics,
            failure: Mutex::default(),
        }
    }

    /// Bytes in the open request.
    pub(super) fn open_bytes(&self) -> usize {
        lock(&self.open).len()
    }

    /// Status of the spool, if there is one.
    pub(super) fn spool(&self) -> Option<SpoolStatus> {
        self.spool.as_ref().map(|spool| spool.status())
    }

    /// Compresses and queues the open request, which holds `spans` spans; begins a new one.
    pub(super) async fn seal(&self, spans: u64, worth: Worth) {
        let body = std::mem::take(&mut *lock(&self.open));
        if body.is_empty() {
            return;
        }
        if body.len() > MAX_REQUEST {
            self.reject(
                spans,
                format!(
                    "a request of {} bytes is over the limit of 64 MiB and was not sent",
                    body.len()
                ),
            );
            return;
        }
        let body = match self.gzip {
            true => match compress(&body) {
                Ok(compressed) => compressed,
                Err(error) => return self.reject(spans, format!("cannot compress a request: {error}")),
            },
            false => body,
        };
        let request = QueuedRequest {
            body: Bytes::from(body),
            gzip: self.gzip,
            spans,
            made: SystemTime::now(),
            attempts: 0,
        };
        if let Some(spool) = &self.spool {
            // A clone shares the body.
            let copy = request.clone();
            let (written, drops) = on_disk(spool, move |spool| spool.append(&copy, worth))
                .await
                .unwrap_or_default();
            self.dropped(drops);
            if written {
                self.queue.notify();
                self.observe_queue();
                return;
            }
            self.metrics.spool_fallback.inc_by(spans);
        }
        self.evicted(self.queue.push(request));
    }

    /// The next request: what is in memory, or else the oldest of the spool. `None` once the queue is closed and all is empty.
    async fn next(&self) -> Option<NextRequest> {
        loop {
            // Read first: nothing is queued after the close.
            let closed = self.queue.is_closed();
            if let Some(request) = self.queue.pop() {
                return Some(NextRequest::Memory(request));
            }
            if let Some(spool) = &self.spool {
                let (taken, drops) = on_disk(spool, Spool::take).await.unwrap_or_default();
                self.dropped(drops);
                if let Some(taken) = taken {
                    return Some(NextRequest::Spool(taken));
                }
            }
            if closed {
                return None;
            }
            self.observe_queue();
            if self.spool().is_some_and(|spool| spool.problem.is_some()) {
                // What waits in a directory that cannot be opened must not depend on the next trace.
                let _ = tokio::time::timeout(OPEN_AGAIN, self.queue.changed()).await;
            } else {
                self.queue.changed().await;
            }
        }
    }

    /// The request needs no further attempt.
    async fn finish(&self, request: NextRequest) {
        if let (NextRequest::Spool(taken), Some(spool)) = (request, &self.spool) {
            let drops = on_disk(spool, move |spool| spool.done(&taken))
                .await
                .unwrap_or_default();
            self.dropped(drops);
        }
    }

    /// The request has to be sent again.
    async fn give_back(&self, request: NextRequest) {
        match (request, &self.spool) {
            (NextRequest::Memory(request), _) => self.evicted(self.queue.requeue(request)),
            (NextRequest::Spool(taken), Some(spool)) => {
                let drops = on_disk(spool, move |spool| spool.give_back(&taken))
                    .await
                    .unwrap_or_default();
                self.dropped(drops);
            }
            (NextRequest::Spool(_), None) => {}
        }
    }

    /// No more requests will be sealed: [`Delivery::drain`] ends once the queue is empty.
    pub(super) fn close(&self) {
        self.queue.close();
    }

    /// Counts spans that will never reach the collector.
    pub(super) fn reject(&self, spans: u64, why: String) {
        self.metrics.count(ExportOutcome::rejected, spans);
        let mut failure = lock(&self.failure);
        failure.rejected += 1;
        if failure.rejected.is_power_of_two() {
            tracing::warn!(spans, rejected_requests = failure.rejected, error = %why, "spans were rejected");
        }
        failure.last = Some(why);
    }

    /// Depth of the queue, without the request under way.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> super::queue::QueueDepth {
        self.queue.waiting()
    }

    /// The last failure.
    pub(super) fn failure(&self) -> DeliveryFailure {
        lock(&self.failure).clone()
    }

    /// Sends queued requests until the queue is closed and empty. When `stopping` turns true, the current wait is cut short,
    /// unless the collector requested it.
    pub(super) async fn drain(
        &self,
        mut transport: OtlpTransport,
        mut backoff: Backoff,
        mut stopping: watch::Receiver<bool>,
    ) {
        while let Some(mut request) = self.next().await {
            self.observe_queue();
            if request.begin_attempt() > 0 {
                self.metrics.retries.inc();
            }
            let (body, gzip, spans) = request.parts();
            self.metrics.sent_bytes.inc_by(body.len() as u64);
            let begin = Instant::now();
            let result = transport.send(&body, gzip).await;
            self.metrics.duration.observe(begin.elapsed().as_secs_f64(), None);
            let pause = match result {
                AttemptResult::Later { after, why } => {
                    let pause = backoff.pause(after);
                    self.failed(why, pause);
                    self.give_back(request).await;
                    Some((pause, after.is_some()))
                }
                AttemptResult::Delivered { refused, note } => {
                    self.delivered(spans, refused, &note);
                    self.finish(request).await;
                    None
                }
                AttemptResult::Rejected { why } => {
                    self.reject(spans, why);
                    self.finish(request).await;
                    None
                }
            };
            self.observe_queue();
            match pause {
                None => {
                    backoff.reset();
                    lock(&self.failure).streak = 0;
                }
                Some((pause, is_requested)) => wait(pause, is_requested, &mut backoff, &mut stopping).await,
            }
        }
    }

    fn delivered(&self, spans: u64, refused: u64, note: &str) {
        let refused = refused.min(spans);
        self.metrics.count(ExportOutcome::delivered, spans - refused);
        self.metrics.count(ExportOutcome::partial_rejected, refused);
        let streak = lock(&self.failure).streak;
        if streak > 0 {
            tracing::info!(
                attempts_failed = streak,
                spans_waiting = self.metrics.waiting(),
                "the collector accepts spans again"
            );
        }
        if refused > 0 || !note.is_empty() {
            tracing::warn!(
                spans_refused = refused,
                note,
                "the collector accepted a request with a remark"
            );
            lock(&self.failure).last = Some(format!("{refused} spans refused: {note}"));
        }
    }

    fn failed(&self, why: String, pause: Duration) {
        let mut failure = lock(&self.failure);
        failure.streak += 1;
        if failure.streak.is_power_of_two() {
            let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
            tracing::warn!(attempts_failed = failure.streak, pause_ms, error = %why, "cannot export spans yet");
        }
        failure.last = Some(why);
    }

    fn evicted(&self, spans: u64) {
        if spans > 0 {
            self.metrics.count(ExportOutcome::evicted, spans);
            let mut failure = lock(&self.failure);
            failure.evictions += 1;
            if failure.evictions.is_power_of_two() {
                let spans_evicted = self.metrics.total(ExportOutcome::evicted);
                tracing::warn!(spans_evicted, "there is no room for requests: the oldest are evicted");
            }
        }
        self.observe_queue();
    }

    /// Counts what the spool dropped and what it found when it was opened.
    fn dropped(&self, drops: SpoolDrops) {
        if drops == SpoolDrops::default() {
            return;
        }
        self.metrics.accept(drops.recovered);
        self.metrics.spool_recovered.inc_by(drops.recovered);
        self.metrics.spool_cut_bytes.inc_by(drops.cut_bytes);
        self.metrics.count(ExportOutcome::expired, drops.expired);
        self.metrics.count(ExportOutcome::corrupt, drops.corrupt);
        if drops.recovered > 0 {
            tracing::info!(spans = drops.recovered, "the spool has spans of an earlier run");
        }
        if drops.expired > 0 || drops.corrupt > 0 || drops.cut_bytes > 0 {
            tracing::warn!(
                spans_expired = drops.expired,
                spans_corrupt = drops.corrupt,
                bytes_cut = drops.cut_bytes,
                "the spool dropped spans"
            );
        }
        self.evicted(drops.evicted);
    }

    fn observe_queue(&self) {
        let waiting = self.queue.waiting();
        let spool = self.spool().unwrap_or_default();
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.metrics.queue_spans.set(signed(waiting.spans + spool.depth.spans));
        self.metrics
            .queue_bytes
            .set(signed(waiting.bytes as u64 + spool.depth.bytes));
        let in_memory = waiting
            .oldest
            .and_then(|made| made.duration_since(SystemTime::UNIX_EPOCH).ok());
        let on_disk = spool.depth.oldest_unix_ns.map(Duration::from_nanos);
        let oldest = in_memory.into_iter().chain(on_disk).min().unwrap_or_default();
        self.metrics.queue_oldest.set(signed(oldest.as_secs()));
        self.metrics.spool_spans.set(signed(spool.depth.spans));
        self.metrics.spool_bytes.set(signed(spool.depth.bytes));
        self.metrics.spool_segments.set(signed(spool.depth.segments as u64));
        self.metrics.spool_newer.set(signed(spool.depth.newer as u64));
        self.metrics.spool_failing.set(i64::from(spool.problem.is_some()));
    }
}

impl NextRequest {
    /// Counts an attempt; returns the number of earlier ones.
    fn begin_attempt(&mut self) -> u32 {
        match self {
            NextRequest::Memory(request) => {
                request.attempts += 1;
                request.attempts - 1
            }
            NextRequest::Spool(taken) => taken.begin_attempt(),
        }
    }

    /// Body, whether it is compressed, number of spans.
    fn parts(&self) -> (Bytes, bool, u64) {
        match self {
            NextRequest::Memory(request) => (request.body.clone(), request.gzip, request.spans),
            NextRequest::Spool(taken) => (taken.body.clone(), taken.gzip(), taken.spans()),
        }
    }
}

#[async_trait::async_trait]
impl HttpClient for Delivery {
    /// Appends the body of one group of spans to the open request. The exporter's headers are ignored.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // The exporter compresses if OTEL_EXPORTER_OTLP_COMPRESSION is set, whatever its builder sets; bodies are joined
        // uncompressed.
        if request.headers().contains_key(CONTENT_ENCODING) {
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(request.body().as_ref())
                .take(MAX_REQUEST as u64 + 1)
                .read_to_end(&mut plain)?;
            lock(&self.open).extend_from_slice(&plain);
        } else {
            lock(&self.open).extend_from_slice(request.body());
        }
        // An empty body is a response without partial success.
        Ok(Response::new(Bytes::new()))
    }
}

async fn wait(pause: Duration, is_requested: bool, backoff: &mut Backoff, stopping: &mut watch::Receiver<bool>) {
    let sleep = tokio::time::sleep(pause);
    // A dropped sink has no sender any more: `wait_for` would return at once.
    if is_requested || *stopping.borrow() || stopping.has_changed().is_err() {
        return sleep.await;
    }
    tokio::select! {
        () = sleep => {}
        _ = stopping.wait_for(|stopping| *stopping) => backoff.reset(),
    }
}

/// By gzip.
pub(super) fn compress(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(body)?;
    encoder.finish()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Largest request before compression (OTLP specification 1.11, "OTLP/HTTP Request").
const MAX_REQUEST: usize = 64 << 20;
