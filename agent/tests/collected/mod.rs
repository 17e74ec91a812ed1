//! The start of a Linux source in a test, and the events that it has sent so far.
//!
//! Used by the watches of `exec_probe`, `namespaces` and `lab`. Does not: choose events.
#![allow(dead_code, reason = "each test file uses its part")]

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
        Collected::start(receiver, Duration::from_secs(60), None)
    }

    /// The same, with a tick every `period`, as the pipeline adds them: other events do not take the place of one.
    pub fn with_ticks(receiver: EventReceiver, period: Duration, tick: fn() -> Event) -> Collected {
        Collected::start(receiver, period, Some(tick))
    }

    fn start(receiver: EventReceiver, period: Duration, tick: Option<fn() -> Event>) -> Collected {
        let events = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let into = Arc::clone(&events);
        std::thread::spawn(move || {
            let mut ticked = Instant::now();
            while let Ok(event) = receiver.receive(period) {
                let due = tick.filter(|_| ticked.elapsed() >= period);
                if due.is_some() {
                    ticked = Instant::now();
                }
                let mut events = into.0.lock().unwrap();
                events.extend(event);
                events.extend(due.map(|tick| tick()));
                into.1.notify_all();
            }
        });
        Collected(events)
    }

    /// Waits until `find` finds something among the events.
    pub fn wait<T>(&self, what: &str, find: impl Fn(&[Event]) -> Option<T>) -> T {
        self.wait_showing(what, find, |events| format!("{} events", events.len()))
    }

    /// The same, with what `show` makes of the events in the message of a failure.
    pub fn wait_showing<T>(
        &self,
        what: &str,
        find: impl Fn(&[Event]) -> Option<T>,
        show: impl Fn(&[Event]) -> String,
    ) -> T {
        let found = self.wait_for(Duration::from_secs(20), find);
        assert!(found.is_some(), "{what} did not come; {}", self.look(show));
        found.unwrap()
    }

    /// Waits until `find` finds something among the events, for so long at most.
    pub fn wait_for<T>(&self, longest: Duration, find: impl Fn(&[Event]) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + longest;
        let mut events = self.0.0.lock().unwrap();
        loop {
            if let Some(found) = find(&events) {
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            events = self.0.1.wait_timeout(events, left).unwrap().0;
        }
    }

    /// The events so far.
    pub fn all(&self) -> Vec<Event> {
        self.0.0.lock().unwrap().clone()
    }

    /// What `look` makes of the events so far.
    pub fn look<T>(&self, look: impl FnOnce(&[Event]) -> T) -> T {
        look(&self.0.0.lock().unwrap())
    }
}
