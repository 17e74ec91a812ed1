//! Owns the fate of every request: delivered, sent again later, or rejected; and counts it.
//!
//! As the exporter's `HttpClient` it is given the body of each group of spans. The bodies of one batch are joined to one
//! request: protobuf lets messages with only repeated fields be concatenated
//! (<https://protobuf.dev/programming-guides/encoding/#last-one-wins>). [`Delivery::seal`] compresses and queues it, and
//! [`Delivery::drain`] sends what is queued, one by one and in order: newer requests wait behind an older one.
//! Does not: send from within `send_bytes`; the exporter never waits for the network and never sees a failure of it.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use hyper::header::CONTENT_ENCODING;
use hyper::{Request, Response};
use opentelemetry_http::{HttpClient, HttpError};
use tokio::sync::watch;

use super::backoff::Backoff;
use super::metrics::{Metrics, Outcome};
use super::outbox::{Outbox, Parcel};
use super::transport::Transport;
use super::verdict::Verdict;

/// Bodies that make up the next request, and the requests that wait.
#[derive(Debug)]
pub(super) struct Delivery {
    gzip: bool,
    open: Mutex<Vec<u8>>,
    outbox: Outbox,
    metrics: Arc<Metrics>,
    failure: Mutex<Failure>,
}

/// The last failure, for the health page and to keep the log short.
#[derive(Clone, Debug, Default)]
pub(super) struct Failure {
    /// What went wrong last; stays after a recovery.
    pub(super) last: Option<String>,
    /// Attempts that failed in a row.
    pub(super) streak: u64,
    /// Requests rejected so far.
    rejected: u64,
    /// How often requests were evicted.
    evictions: u64,
}

impl Delivery {
    pub(super) fn new(gzip: bool, outbox: Outbox, metrics: Arc<Metrics>) -> Delivery {
        Delivery {
            gzip,
            open: Mutex::default(),
            outbox,
            metrics,
            failure: Mutex::default(),
        }
    }

    /// Bytes of the bodies given since the last [`Delivery::seal`].
    pub(super) fn open_bytes(&self) -> usize {
        lock(&self.open).len()
    }

    /// Makes one request of the bodies given since the last time, with `spans` spans in them, and queues it.
    pub(super) fn seal(&self, spans: u64) {
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
        let evicted = self.outbox.push(Parcel {
            body: Bytes::from(body),
            gzip: self.gzip,
            spans,
            made: SystemTime::now(),
            attempts: 0,
        });
        self.evicted(evicted);
    }

    /// No more requests will be sealed: [`Delivery::drain`] ends when none waits.
    pub(super) fn close(&self) {
        self.outbox.close();
    }

    /// Counts spans that will never reach the collector.
    pub(super) fn reject(&self, spans: u64, why: String) {
        self.metrics.count(Outcome::rejected, spans);
        let mut failure = lock(&self.failure);
        failure.rejected += 1;
        if failure.rejected.is_power_of_two() {
            tracing::warn!(spans, rejected_requests = failure.rejected, error = %why, "spans were rejected");
        }
        failure.last = Some(why);
    }

    /// What waits to be sent, the request under way left out.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> super::outbox::Waiting {
        self.outbox.waiting()
    }

    /// The last failure.
    pub(super) fn failure(&self) -> Failure {
        lock(&self.failure).clone()
    }

    /// Sends what is queued until the outbox is closed and empty. When `stopping` turns true, the wait that is under way
    /// is cut short, unless the collector asked for it.
    pub(super) async fn drain(
        &self,
        mut transport: Transport,
        mut backoff: Backoff,
        mut stopping: watch::Receiver<bool>,
    ) {
        while let Some(mut parcel) = self.outbox.take().await {
            self.observe_queue();
            if parcel.attempts > 0 {
                self.metrics.retries.inc();
            }
            parcel.attempts += 1;
            let begin = Instant::now();
            let verdict = transport.send(&parcel.body, parcel.gzip).await;
            self.metrics.duration.observe(begin.elapsed().as_secs_f64());
            let pause = match verdict {
                Verdict::Later { after, why } => {
                    let pause = backoff.pause(after);
                    self.failed(why, pause);
                    self.evicted(self.outbox.put_back(parcel));
                    Some((pause, after.is_some()))
                }
                Verdict::Delivered { refused, note } => {
                    self.delivered(parcel.spans, refused, &note);
                    None
                }
                Verdict::Rejected { why } => {
                    self.reject(parcel.spans, why);
                    None
                }
            };
            self.observe_queue();
            match pause {
                None => {
                    backoff.reset();
                    lock(&self.failure).streak = 0;
                }
                Some((pause, asked)) => wait(pause, asked, &mut backoff, &mut stopping).await,
            }
        }
    }

    fn delivered(&self, spans: u64, refused: u64, note: &str) {
        let refused = refused.min(spans);
        self.metrics.count(Outcome::delivered, spans - refused);
        self.metrics.count(Outcome::partial_rejected, refused);
        let streak = lock(&self.failure).streak;
        if streak > 0 {
            let waiting = self.outbox.waiting();
            tracing::info!(
                attempts_failed = streak,
                spans_waiting = waiting.spans,
                "the collector takes spans again"
            );
        }
        if refused > 0 || !note.is_empty() {
            tracing::warn!(
                spans_refused = refused,
                note,
                "the collector took a request with a remark"
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
            self.metrics.count(Outcome::evicted, spans);
            let mut failure = lock(&self.failure);
            failure.evictions += 1;
            if failure.evictions.is_power_of_two() {
                let spans_evicted = self.metrics.total(Outcome::evicted);
                tracing::warn!(spans_evicted, "the queue of requests is full: the oldest are evicted");
            }
        }
        self.observe_queue();
    }

    fn observe_queue(&self) {
        let waiting = self.outbox.waiting();
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.metrics.queue_spans.set(signed(waiting.spans));
        self.metrics.queue_bytes.set(signed(waiting.bytes as u64));
        let oldest = waiting
            .oldest
            .and_then(|made| made.duration_since(SystemTime::UNIX_EPOCH).ok())
            .unwrap_or_default();
        self.metrics.queue_oldest.set(signed(oldest.as_secs()));
    }
}

#[async_trait::async_trait]
impl HttpClient for Delivery {
    /// Takes the body of one group of spans. The exporter's own headers are not used: the transport has its own.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // The exporter compresses when the process environment says so, whatever it is told; bodies are joined plain.
        if request.headers().contains_key(CONTENT_ENCODING) {
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(request.body().as_ref())
                .take(MAX_REQUEST as u64 + 1)
                .read_to_end(&mut plain)?;
            lock(&self.open).extend_from_slice(&plain);
        } else {
            lock(&self.open).extend_from_slice(request.body());
        }
        // An empty body is an answer without partial success.
        Ok(Response::new(Bytes::new()))
    }
}

async fn wait(pause: Duration, asked: bool, backoff: &mut Backoff, stopping: &mut watch::Receiver<bool>) {
    let sleep = tokio::time::sleep(pause);
    // Once the sink was dropped, nobody can stop it any more.
    if asked || *stopping.borrow() || stopping.has_changed().is_err() {
        return sleep.await;
    }
    tokio::select! {
        () = sleep => {}
        _ = stopping.wait_for(|stopping| *stopping) => backoff.reset(),
    }
}

fn compress(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(body)?;
    encoder.finish()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Largest request that may be sent, before compression (OTLP specification).
const MAX_REQUEST: usize = 64 << 20;
