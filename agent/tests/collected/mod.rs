//! The start of a Linux source in a test, and the events that it has sent so far.
//!
//! Used by the watches of `exec_probe` and of `namespaces`. Does not: choose events.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use sandglass::failure::{Advice, ExitReason, causes_in_short};
use sandglass::sources::EventReceiver;
use sandglass_model::Event;

/// The source that was started; `None` with a `SKIPPED` line where this machine does not allow one. Any other error, a
/// program that the verifier rejects above all, fails the test.
pub fn started<S, E: Advice + 'static>(test: &str, outcome: Result<S, E>) -> Option<S> {
    match outcome {
        Ok(source) => Some(source),
        Err(error) => {
            let cause = causes_in_short(&error);
            let not_here =
                error.exit() == ExitReason::NoPermission || cause.contains("os error 1)") || cause.contains("vmlinux");
            assert!(not_here, "{cause}");
            sandglass_lab::skip::skipped(test, &cause);
            None
        }
    }
}

/// Every event that a source has sent, collected by a thread of its own.
pub struct Collected(Arc<(Mutex<Vec<Event>>, Condvar)>);

impl Collected {
    /// Collects until the source's end.
    pub fn from(receiver: EventReceiver) -> Collected {
        let events = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let into = Arc::clone(&events);
        std::thread::spawn(move || {
            while let Ok(event) = receiver.receive(Duration::from_secs(60)) {
                into.0.lock().unwrap().extend(event);
                into.1.notify_all();
            }
        });
        Collected(events)
    }

    /// Waits until `find` finds something among the events.
    pub fn wait<T>(&self, what: &str, find: impl Fn(&[Event]) -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut events = self.0.0.lock().unwrap();
        loop {
            if let Some(found) = find(&events) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} did not come; {} events", events.len());
            events = self.0.1.wait_timeout(events, left).unwrap().0;
        }
    }

    /// What came so far.
    pub fn all(&self) -> Vec<Event> {
        self.0.0.lock().unwrap().clone()
    }
}
