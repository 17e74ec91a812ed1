//! The queue of requests that wait for the collector: bounded in bytes and number, oldest first out, oldest first evicted.
//!
//! Used by `delivery.rs`. Every request carries its number of spans, so that whatever leaves is counted exactly.
//! Order is kept: a request that is put back after a failed attempt is the next one again.
//! The one request that is under way is outside the bounds; it counts again when it is put back.
//! Does not: survive the process. A spool on disk has the same five methods.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use tokio::sync::Notify;

/// One request, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parcel {
    /// The encoded `ExportTraceServiceRequest`.
    pub(super) body: Bytes,
    /// `body` is compressed.
    pub(super) gzip: bool,
    /// Spans in it.
    pub(super) spans: u64,
    /// When it was made.
    pub(super) made: SystemTime,
    /// How often it was sent.
    pub(super) attempts: u32,
}

/// What waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) requests: usize,
    pub(super) bytes: usize,
    pub(super) spans: u64,
    /// When the oldest was made.
    pub(super) oldest: Option<SystemTime>,
}

/// The queue.
#[derive(Debug)]
pub(super) struct Outbox {
    most_requests: usize,
    most_bytes: usize,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Parcel>,
    bytes: usize,
    spans: u64,
    closed: bool,
}

impl Outbox {
    pub(super) fn new(most_requests: usize, most_bytes: usize) -> Outbox {
        Outbox {
            most_requests,
            most_bytes,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Adds at the end; answers how many spans were evicted for it.
    #[must_use]
    pub(super) fn push(&self, parcel: Parcel) -> u64 {
        // One that can never fit must not clear the queue first.
        if parcel.body.len() > self.most_bytes {
            return parcel.spans;
        }
        let mut state = self.lock();
        state.add(&parcel);
        state.queue.push_back(parcel);
        let evicted = self.evict(&mut state);
        drop(state);
        self.changed.notify_one();
        evicted
    }

    /// Puts the request that was taken last back to the front; answers how many spans were evicted.
    #[must_use]
    pub(super) fn put_back(&self, parcel: Parcel) -> u64 {
        let mut state = self.lock();
        state.add(&parcel);
        state.queue.push_front(parcel);
        self.evict(&mut state)
    }

    /// Takes the oldest; waits for one. `None` when the outbox is closed and empty.
    pub(super) async fn take(&self) -> Option<Parcel> {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.lock();
                if let Some(parcel) = state.remove_first() {
                    return Some(parcel);
                }
                if state.closed {
                    return None;
                }
            }
            changed.await;
        }
    }

    /// Nothing will be pushed any more.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// What waits now.
    pub(super) fn waiting(&self) -> Waiting {
        let state = self.lock();
        Waiting {
            requests: state.queue.len(),
            bytes: state.bytes,
            spans: state.spans,
            oldest: state.queue.front().map(|parcel| parcel.made),
        }
    }

    fn evict(&self, state: &mut State) -> u64 {
        let mut evicted = 0;
        while state.bytes > self.most_bytes || state.queue.len() > self.most_requests {
            match state.remove_first() {
                Some(parcel) => evicted += parcel.spans,
                None => break,
            }
        }
        evicted
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add(&mut self, parcel: &Parcel) {
        self.bytes += parcel.body.len();
        self.spans += parcel.spans;
    }

    fn remove_first(&mut self) -> Option<Parcel> {
        let parcel = self.queue.pop_front()?;
        self.bytes -= parcel.body.len();
        self.spans -= parcel.spans;
        Some(parcel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel(bytes: usize, spans: u64) -> Parcel {
        Parcel {
            body: Bytes::from(vec![0; bytes]),
            gzip: false,
            spans,
            made: SystemTime::UNIX_EPOCH,
            attempts: 0,
        }
    }

    #[tokio::test]
    async fn order_is_kept_and_a_closed_outbox_ends() {
        let outbox = Outbox::new(10, 100);
        for spans in 1..=3 {
            assert_eq!(outbox.push(parcel(1, spans)), 0);
        }
        let first = outbox.take().await.unwrap();
        assert_eq!((first.spans, outbox.waiting().spans), (1, 5));
        assert_eq!(outbox.put_back(first), 0);
        outbox.close();
        for spans in 1..=3 {
            assert_eq!(outbox.take().await.unwrap().spans, spans);
        }
        assert_eq!(outbox.take().await, None);
        assert_eq!(outbox.waiting(), Waiting::default());
    }

    #[tokio::test]
    async fn the_oldest_are_evicted_by_bytes_and_by_number() {
        let outbox = Outbox::new(3, 100);
        assert_eq!(outbox.push(parcel(60, 1)), 0);
        assert_eq!(outbox.push(parcel(30, 2)), 0);
        assert_eq!(outbox.push(parcel(30, 4)), 1, "60 + 30 + 30 bytes");
        assert_eq!(outbox.push(parcel(1, 8)), 0);
        assert_eq!(outbox.push(parcel(1, 16)), 2, "a fourth request");
        assert_eq!((outbox.waiting().spans, outbox.waiting().bytes), (28, 32));
        assert_eq!(outbox.push(parcel(101, 32)), 32, "never fits, and evicts nothing else");
        assert_eq!(outbox.waiting().spans, 28);
    }

    #[tokio::test]
    async fn a_request_put_back_to_a_full_outbox_is_the_oldest() {
        let outbox = Outbox::new(3, 100);
        assert_eq!(outbox.push(parcel(60, 1)), 0);
        let taken = outbox.take().await.unwrap();
        assert_eq!(outbox.push(parcel(60, 2)), 0, "the one under way does not count");
        assert_eq!(outbox.put_back(taken), 1);
        assert_eq!(outbox.waiting().spans, 2);
    }
}
