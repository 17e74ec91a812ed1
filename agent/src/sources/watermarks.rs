//! The watermark of each feed: the time before which it has sent on everything that it reports.
//!
//! A feed's thread sets it, and the pipeline reads the lowest: its reorder stage does not pass a feed that is behind. A thread of the
//! agent may wait for a processor for longer than events are held: it has little weight where pods are many. The
//! thread of a feed that sleeps sets nothing; the pipeline looks for records that it was not woken for yet.
//! Does not: wait for anybody.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sandglass_model::Timestamp;

/// The pipeline's view of all feeds.
#[derive(Debug, Default)]
pub(super) struct Watermarks {
    feeds: Mutex<Vec<Weak<Shared>>>,
}

/// One feed's watermark, which its thread sets. Dropping it ends the feed: nobody waits for it any more.
#[derive(Debug)]
pub struct Watermark {
    shared: Arc<Shared>,
}

struct Shared {
    /// The time in nanoseconds, shifted by one bit; the lowest bit is set while the thread sleeps. One word, so that the pipeline
    /// cannot set a time for a thread that has just begun to work.
    state: AtomicU64,
    has_records: Box<dyn Fn() -> bool + Send + Sync>,
}

const ASLEEP: u64 = 1;

impl Watermarks {
    /// Adds a feed, which has sent nothing yet. `has_records` is called by the pipeline while the feed's thread sleeps: whether there is
    /// a record that the thread has not read.
    pub(super) fn add(&self, has_records: impl Fn() -> bool + Send + Sync + 'static) -> Watermark {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            has_records: Box::new(has_records),
        });
        let mut feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        feeds.push(Arc::downgrade(&shared));
        Watermark { shared }
    }

    /// The time before which every feed has sent on everything; `None` when there is no feed. `now` is the boot clock's time, read before
    /// the call.
    pub(super) fn lowest(&self, now: Timestamp) -> Option<Timestamp> {
        let mut feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lowest = None;
        feeds.retain(|feed| {
            let Some(feed) = feed.upgrade() else { return false };
            let at = feed.at(now);
            lowest = Some(lowest.map_or(at, |lowest: Timestamp| lowest.min(at)));
            true
        });
        lowest
    }
}

impl Watermark {
    /// All that happened before `at` is sent on. The thread is awake from here on.
    pub fn advance(&self, at: Timestamp) {
        self.shared.state.store(at.0 << 1, Ordering::Release);
    }

    /// The thread sleeps from now on, until the next call of another method; it has nothing that is not sent on.
    pub fn sleep(&self) {
        self.shared.state.fetch_or(ASLEEP, Ordering::AcqRel);
    }

    /// The thread is awake, and is about to read.
    pub fn wake(&self) {
        self.shared.state.fetch_and(!ASLEEP, Ordering::AcqRel);
    }
}

impl Shared {
    fn at(&self, now: Timestamp) -> Timestamp {
        let state = self.state.load(Ordering::Acquire);
        let at = Timestamp(state >> 1);
        if state & ASLEEP == 0 || now <= at || (self.has_records)() {
            return at;
        }
        // Fails when the thread woke in between: then it may hold what was to be read a moment ago.
        let asleep = now.0 << 1 | ASLEEP;
        match self
            .state
            .compare_exchange(state, asleep, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => now,
            Err(_) => at,
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.load(Ordering::Relaxed);
        formatter
            .debug_struct("Shared")
            .field("at", &(state >> 1))
            .field("asleep", &(state & ASLEEP != 0))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    const NOW: Timestamp = Timestamp(1_000);

    #[test]
    fn the_slowest_feed_counts_until_it_ends() {
        let watermarks = Watermarks::default();
        assert_eq!(watermarks.lowest(NOW), None);
        let [fast, slow] = [watermarks.add(|| true), watermarks.add(|| true)];
        assert_eq!(watermarks.lowest(NOW), Some(Timestamp(0)));
        fast.advance(Timestamp(900));
        slow.advance(Timestamp(700));
        assert_eq!(watermarks.lowest(NOW), Some(Timestamp(700)));
        drop(slow);
        assert_eq!(watermarks.lowest(NOW), Some(Timestamp(900)));
    }

    #[test]
    fn a_feed_that_sleeps_is_behind_only_with_something_to_read() {
        let watermarks = Watermarks::default();
        let has_records = Arc::new(AtomicBool::new(false));
        let to_read = Arc::clone(&has_records);
        let feed = watermarks.add(move || to_read.load(Ordering::Relaxed));
        feed.advance(Timestamp(500));
        assert_eq!(watermarks.lowest(NOW), Some(Timestamp(500)), "awake");
        feed.sleep();
        assert_eq!(watermarks.lowest(NOW), Some(NOW), "nothing to read");
        has_records.store(true, Ordering::Relaxed);
        let later = Timestamp(2_000);
        assert_eq!(watermarks.lowest(later), Some(NOW), "something came after that");
        feed.wake();
        has_records.store(false, Ordering::Relaxed);
        assert_eq!(watermarks.lowest(later), Some(NOW), "it is read, and not sent on");
        feed.advance(later);
        assert_eq!(watermarks.lowest(later), Some(later));
    }
}
