//! The pipeline's thread: runs the pipeline to its end, reports its progress, gives memory back.
//!
//! Used by the composition root.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};

use prometheus_client::metrics::counter::Counter;
use sandglass_model::Timestamp;

use super::FanOut;
use super::serving::Pulse;
use crate::failure::{Failure, NO_THREADS};
use crate::pipeline::Pipeline;
use crate::sources::{EventReceiver, clock};
use crate::{resident, scheduling};

/// Runs `pipeline` on a thread of its own until every source is gone; the thread returns the sinks.
///
/// # Errors
/// The thread cannot be started.
pub fn start(
    pipeline: Pipeline,
    receiver: EventReceiver,
    mut fan_out: FanOut,
    events: Counter,
    pulse: Arc<Pulse>,
) -> Result<JoinHandle<FanOut>, Failure> {
    Builder::new()
        .name("pipeline".into())
        .spawn(move || {
            scheduling::give_way();
            let mut trimming = Trimming::new(events);
            let beat = || {
                let now = clock::now();
                pulse.moved.store(now.0, Ordering::Relaxed);
                trimming.at(now);
            };
            pipeline.run(&receiver, clock::now, &mut fan_out, beat);
            fan_out
        })
        .map_err(|error| Failure::runtime(format!("cannot start the pipeline's thread: {error}"), NO_THREADS))
}

/// Gives memory back that is no longer in use: once after the start, and then only after [`TRIM_AFTER`] events, so that
/// an idle node does not pay for it.
struct Trimming {
    events: Counter,
    last: Timestamp,
    seen: u64,
    fresh: bool,
}

impl Trimming {
    fn new(events: Counter) -> Trimming {
        Trimming {
            last: clock::now(),
            seen: events.get(),
            events,
            fresh: true,
        }
    }

    fn at(&mut self, now: Timestamp) {
        let seen = self.events.get();
        if now.since(self.last) >= TRIM_EVERY_NS && (self.fresh || seen - self.seen >= TRIM_AFTER) {
            (self.last, self.seen, self.fresh) = (now, seen, false);
            resident::trim();
        }
    }
}

/// Least time between two trims.
const TRIM_EVERY_NS: u64 = 5_000_000_000;
/// Least number of events between two trims.
const TRIM_AFTER: u64 = 1_000;
