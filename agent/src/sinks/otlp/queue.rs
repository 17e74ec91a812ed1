//! The queue of requests for the collector: bounded in bytes and number, first in first out, the oldest evicted first.
//!
//! Used by `delivery.rs`. A channel does not do: a failed request goes back to the front, and the oldest is evicted when a
//! new one has no room. Every request carries its number of spans, so that evictions are counted in spans.
//! The request under way is outside of the bounds; it counts again when it is requeued.
//! Does not: survive the process; with a spool it holds only what could not be written there.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use tokio::sync::Notify;

/// One encoded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueuedRequest {
    /// The encoded `ExportTraceServiceRequest`.
    pub(super) body: Bytes,
    /// `body` is compressed.
    pub(super) gzip: bool,
    /// Spans in it.
    pub(super) spans: u64,
    /// When it was sealed.
    pub(super) made: SystemTime,
    /// Attempts so far.
    pub(super) attempts: u32,
}

/// Depth of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueDepth {
    pub(super) requests: usize,
    pub(super) bytes: usize,
    pub(super) spans: u64,
    /// When the oldest request was sealed.
    pub(super) oldest: Option<SystemTime>,
}

/// The queue.
#[derive(Debug)]
pub(super) struct RequestQueue {
    max_requests: usize,
    max_bytes: usize,
    state: Mutex<QueueState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    queue: VecDeque<QueuedRequest>,
    bytes: usize,
    spans: u64,
    closed: bool,
}

impl RequestQueue {
    pub(super) fn new(max_requests: usize, max_bytes: usize) -> RequestQueue {
        RequestQueue {
            max_requests,
            max_bytes,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Appends a request; returns the number of spans evicted for it.
    #[must_use]
    pub(super) fn push(&self, request: QueuedRequest) -> u64 {
        // A request that can never fit must not evict others first.
        if request.body.len() > self.max_bytes {
            return request.spans;
        }
        let mut state = self.lock();
        state.add(&request);
        state.queue.push_back(request);
        let evicted = self.evict(&mut state);
        drop(state);
        self.changed.notify_one();
        evicted
    }

    /// Inserts the request that was popped last at the front again; returns the number of spans evicted.
    #[must_use]
    pub(super) fn requeue(&self, request: QueuedRequest) -> u64 {
        let mut state = self.lock();
        state.add(&request);
        state.queue.push_front(request);
        self.evict(&mut state)
    }

    /// Removes the oldest request, if there is one.
    pub(super) fn pop(&self) -> Option<QueuedRequest> {
        self.lock().remove_first()
    }

    /// [`RequestQueue::close`] was called.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Waits for a request, here or in the spool, or for the close. One that came since the last wait ends it at once.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Ends the current or the next [`RequestQueue::changed`].
    pub(super) fn notify(&self) {
        self.changed.notify_one();
    }

    /// No request will be pushed any more.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// Depth now.
    pub(super) fn waiting(&self) -> QueueDepth {
        let state = self.lock();
        QueueDepth {
            requests: state.queue.len(),
            bytes: state.bytes,
            spans: state.spans,
            oldest: state.queue.front().map(|request| request.made),
        }
    }

    fn evict(&self, state: &mut QueueState) -> u64 {
        let mut evicted = 0;
        while state.bytes > self.max_bytes || state.queue.len() > self.max_requests {
            match state.remove_first() {
                Some(request) => evicted += request.spans,
                None => break,
            }
        }
        evicted
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    fn add(&mut self, request: &QueuedRequest) {
        self.bytes += request.body.len();
        self.spans += request.spans;
    }

    fn remove_first(&mut self) -> Option<QueuedRequest> {
        let request = self.queue.pop_front()?;
        self.bytes -= request.body.len();
        self.spans -= request.spans;
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(bytes: usize, spans: u64) -> QueuedRequest {
        QueuedRequest {
            body: Bytes::from(vec![0; bytes]),
            gzip: false,
            spans,
            made: SystemTime::UNIX_EPOCH,
            attempts: 0,
        }
    }

    #[test]
    fn order_is_kept_and_a_closed_queue_ends() {
        let queue = RequestQueue::new(10, 100);
        for spans in 1..=3 {
            assert_eq!(queue.push(request(1, spans)), 0);
        }
        let first = queue.pop().unwrap();
        assert_eq!((first.spans, queue.waiting().spans), (1, 5));
        assert_eq!(queue.requeue(first), 0);
        queue.close();
        for spans in 1..=3 {
            assert_eq!(queue.pop().unwrap().spans, spans);
        }
        assert_eq!(queue.pop(), None);
        assert_eq!(queue.waiting(), QueueDepth::default());
    }

    #[test]
    fn the_oldest_are_evicted_by_bytes_and_by_number() {
        let queue = RequestQueue::new(3, 100);
        assert_eq!(queue.push(request(60, 1)), 0);
        assert_eq!(queue.push(request(30, 2)), 0);
        assert_eq!(queue.push(request(30, 4)), 1, "60 + 30 + 30 bytes");
        assert_eq!(queue.push(request(1, 8)), 0);
        assert_eq!(queue.push(request(1, 16)), 2, "a fourth request");
        assert_eq!((queue.waiting().spans, queue.waiting().bytes), (28, 32));
        assert_eq!(queue.push(request(101, 32)), 32, "never fits, and evicts nothing else");
        assert_eq!(queue.waiting().spans, 28);
    }

    #[test]
    fn a_request_requeued_to_a_full_queue_is_the_oldest() {
        let queue = RequestQueue::new(3, 100);
        assert_eq!(queue.push(request(60, 1)), 0);
        let taken = queue.pop().unwrap();
        assert_eq!(queue.push(request(60, 2)), 0, "the one under way does not count");
        assert_eq!(queue.requeue(taken), 1);
        assert_eq!(queue.waiting().spans, 2);
    }
}
