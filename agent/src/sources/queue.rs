//! The bounded queue between sources and the pipeline.
//!
//! A source blocks while the queue is full. That pushes back to the kernel's ring buffer, the one place that buffers and
//! counts what it loses. Secrets are masked on the way in, so that nothing behind this queue holds one.
//! Does not: order or drop events.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use sandglass_model::Event;
use sandglass_model::masking::{self, Arguments};

/// The sources' end of the queue; cheap to clone.
#[derive(Clone, Debug)]
pub struct EventSender {
    channel: SyncSender<Event>,
    /// What of a process's arguments may pass.
    arguments: Arguments,
    /// Events in the queue, those that a blocked sender holds included.
    depth: Gauge,
}

/// The pipeline's end.
#[derive(Debug)]
pub struct EventReceiver {
    channel: Receiver<Event>,
    /// Events that fit into the queue.
    capacity: usize,
    /// That of the senders: both ends count.
    depth: Gauge,
}

/// The pipeline has stopped; a source that sees this stops too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pipeline has stopped")]
pub struct Stopped;

/// Makes a queue of `capacity` events, with arguments masked. `depth` shows how many wait in it.
#[must_use]
pub fn channel(capacity: usize, depth: Gauge) -> (EventSender, EventReceiver) {
    let (sender, receiver) = sync_channel(capacity);
    (
        EventSender {
            channel: sender,
            arguments: Arguments::default(),
            depth: depth.clone(),
        },
        EventReceiver {
            channel: receiver,
            capacity,
            depth,
        },
    )
}

impl EventSender {
    /// This end with another setting for arguments; ends that are cloned from it have it too.
    #[must_use]
    pub fn with_arguments(self, arguments: Arguments) -> EventSender {
        EventSender { arguments, ..self }
    }

    /// Masks and sends one event; blocks while the queue is full.
    ///
    /// # Errors
    /// When the receiver is gone.
    pub fn send(&self, mut event: Event) -> Result<(), Stopped> {
        masking::event(&mut event.body, self.arguments);
        self.depth.inc();
        self.channel.send(event).map_err(|_| Stopped)
    }
}

impl EventReceiver {
    /// Takes the next event; `Ok(None)` when none came within `wait`.
    ///
    /// # Errors
    /// When the queue is empty and every sender is gone.
    pub fn receive(&self, wait: Duration) -> Result<Option<Event>, Stopped> {
        match self.channel.recv_timeout(wait) {
            Ok(event) => {
                self.depth.dec();
                Ok(Some(event))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Stopped),
        }
    }

    /// Takes what is in the queue now, at most its capacity.
    pub fn waiting(&self) -> impl Iterator<Item = Event> {
        let next = || {
            // Not `receive`: it looks at the clock for every event.
            let event = self.channel.try_recv().ok()?;
            self.depth.dec();
            Some(event)
        };
        std::iter::from_fn(next).take(self.capacity)
    }

    /// How many events fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}
