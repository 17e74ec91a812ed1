//! The bounded queue between sources and the pipeline.
//!
//! A source blocks while the queue is full. That pushes back to the kernel's ring buffer, the one place that buffers and
//! counts what it loses. Secrets are masked on the way in, so that nothing behind this queue holds one.
//! Events go in and out in batches under one lock: a channel with a step for every event cost both threads several times
//! what a lock for every few hundred does. DNS messages that the pipeline has handled go back the same way ([`Spent`]).
//! The queue knows the feeds that fill it, and how far each of them is (`watermarks.rs`).
//! Does not: order or drop events.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::metrics::gauge::Gauge;
use sandglass_model::masking::{self, Arguments};
use sandglass_model::network::DnsMessage;
use sandglass_model::{Event, Timestamp};

use super::watermarks::{Watermark, Watermarks};

/// The sources' end of the queue; cheap to clone.
#[derive(Debug)]
pub struct EventSender {
    queue: Arc<Queue>,
    /// What of a process's arguments may pass.
    arguments: Arguments,
}

/// The pipeline's end.
#[derive(Debug)]
pub struct EventReceiver {
    queue: Arc<Queue>,
}

/// DNS messages that were handled, for the source to fill again. One thread allocates them and another would free them,
/// which is what an allocator is slowest at: it took a third of what a lookup cost.
#[allow(clippy::vec_box, reason = "the box is what is used again")]
pub type Spent = Vec<Box<DnsMessage>>;

#[derive(Debug)]
struct Queue {
    state: Mutex<QueueState>,
    /// As many events came as the receiver waits for, or the last sender is gone.
    filled: Condvar,
    /// Events were taken, or the receiver is gone.
    emptied: Condvar,
    /// Events that fit into it.
    capacity: usize,
    /// Events in it.
    depth: Gauge,
    spent: Mutex<Spent>,
    watermarks: Watermarks,
}

#[derive(Debug)]
struct QueueState {
    events: VecDeque<Event>,
    senders: usize,
    has_receiver: bool,
    /// The receiver waits until so many events are there; 0 when it does not wait.
    awaited: usize,
    /// Senders that wait for room.
    blocked: usize,
}

/// The pipeline has stopped; a source that sees this stops too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pipeline has stopped")]
pub struct Stopped;

/// Makes a queue of `capacity` events, with arguments masked. `depth` shows how many wait in it.
#[must_use]
pub fn channel(capacity: usize, depth: Gauge) -> (EventSender, EventReceiver) {
    let queue = Arc::new(Queue {
        state: Mutex::new(QueueState {
            events: VecDeque::new(),
            senders: 1,
            has_receiver: true,
            awaited: 0,
            blocked: 0,
        }),
        filled: Condvar::new(),
        emptied: Condvar::new(),
        capacity: capacity.max(1),
        depth,
        spent: Mutex::default(),
        watermarks: Watermarks::default(),
    });
    let sender = EventSender {
        queue: Arc::clone(&queue),
        arguments: Arguments::default(),
    };
    (sender, EventReceiver { queue })
}

impl EventSender {
    /// This end with another setting for arguments; ends that are cloned from it have it too.
    #[must_use]
    pub fn with_arguments(mut self, arguments: Arguments) -> EventSender {
        self.arguments = arguments;
        self
    }

    /// Masks and sends one event; blocks while the queue is full.
    ///
    /// # Errors
    /// When the receiver is gone.
    pub fn send(&self, event: Event) -> Result<(), Stopped> {
        self.send_all(std::iter::once(event))
    }

    /// Masks and sends events; blocks while the queue is full.
    ///
    /// # Errors
    /// When the receiver is gone; the rest of the events is dropped.
    pub fn send_all(&self, events: impl Iterator<Item = Event>) -> Result<(), Stopped> {
        // Masked as they are taken, under the lock: only events that are rare have anything to mask.
        let mut masked = events.map(|mut event| {
            masking::event(&mut event.body, self.arguments);
            event
        });
        let Some(mut next) = masked.next() else {
            return Ok(());
        };
        let mut state = self.queue.state();
        loop {
            state = self.queue.wait_for_room(state);
            if !state.has_receiver {
                return Err(Stopped);
            }
            state.events.push_back(next);
            let more = masked.next();
            if more.is_none() || state.events.len() >= self.queue.capacity {
                self.queue.show_depth(&state);
                if state.awaited > 0 && state.events.len() >= state.awaited {
                    state.awaited = 0;
                    self.queue.filled.notify_one();
                }
            }
            next = match more {
                Some(more) => more,
                None => return Ok(()),
            };
        }
    }

    /// Adds a feed that sends through this queue. While its thread sleeps, `has_records` is whether there is a record that it has not
    /// read; the pipeline calls it.
    pub fn add_feed(&self, has_records: impl Fn() -> bool + Send + Sync + 'static) -> Watermark {
        self.queue.watermarks.add(has_records)
    }

    /// Takes the messages that the pipeline has handled into `messages`, which is empty.
    pub fn take_spent(&self, messages: &mut Spent) {
        let mut spent = self.queue.spent.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *spent, messages);
    }
}

impl Clone for EventSender {
    fn clone(&self) -> EventSender {
        self.queue.state().senders += 1;
        EventSender {
            queue: Arc::clone(&self.queue),
            arguments: self.arguments,
        }
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.senders -= 1;
        if state.senders == 0 {
            self.queue.filled.notify_one();
        }
    }
}

impl EventReceiver {
    /// Takes the next event; `Ok(None)` when none came within `wait`.
    ///
    /// # Errors
    /// When the queue is empty and every sender is gone.
    pub fn receive(&self, wait: Duration) -> Result<Option<Event>, Stopped> {
        let mut state = self.queue.wait_for(1, wait)?;
        let event = state.events.pop_front();
        self.queue.on_taken(&state);
        Ok(event)
    }

    /// Takes all that is in the queue, at most its capacity, into `events`, which is empty; none when none came within `wait`.
    ///
    /// # Errors
    /// When the queue is empty and every sender is gone.
    pub fn receive_all(&self, wait: Duration, events: &mut VecDeque<Event>) -> Result<(), Stopped> {
        // A burst has passed: its memory goes back.
        if events.capacity() > KEPT_EVENTS {
            events.shrink_to(KEPT_EVENTS);
        }
        let mut state = self.queue.wait_for(1, wait)?;
        std::mem::swap(&mut state.events, events);
        self.queue.on_taken(&state);
        Ok(())
    }

    /// Waits until an eighth of the queue is full, every sender is gone, or `wait` has passed: so that events are taken in large batches.
    pub fn wait_for_batch(&self, wait: Duration) {
        // When the senders are gone, the next receive returns that.
        drop(self.queue.wait_for((self.queue.capacity / 8).max(1), wait));
    }

    /// The time before which all feeds have put everything into this queue; `None` when no feed fills it. `now` is the boot clock's
    /// time, read before the call.
    #[must_use]
    pub fn watermark(&self, now: Timestamp) -> Option<Timestamp> {
        self.queue.watermarks.lowest(now)
    }

    /// Returns messages whose events were handled. Those that no source takes are dropped, so that they stay bounded.
    pub fn give_back(&self, messages: &mut Spent) {
        if messages.is_empty() {
            return;
        }
        let mut spent = self.queue.spent.lock().unwrap_or_else(PoisonError::into_inner);
        if spent.is_empty() {
            std::mem::swap(&mut *spent, messages);
        } else {
            let room = self.queue.capacity.saturating_sub(spent.len());
            spent.extend(messages.drain(..).take(room));
        }
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.has_receiver = false;
        state.events = VecDeque::new();
        self.queue.emptied.notify_all();
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, QueueState> {
        // No code that holds the lock leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when there is room, or nobody is left to make room.
    fn wait_for_room<'s>(&'s self, mut state: MutexGuard<'s, QueueState>) -> MutexGuard<'s, QueueState> {
        while state.events.len() >= self.capacity && state.has_receiver {
            state.blocked += 1;
            state = self.emptied.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.blocked -= 1;
        }
        state
    }

    /// Returns when there are `count` events, or after `wait`.
    fn wait_for(&self, count: usize, wait: Duration) -> Result<MutexGuard<'_, QueueState>, Stopped> {
        let mut state = self.state();
        if state.events.len() >= count {
            return Ok(state);
        }
        let until = Instant::now() + wait;
        while state.events.len() < count {
            if state.senders == 0 {
                return if state.events.is_empty() {
                    Err(Stopped)
                } else {
                    Ok(state)
                };
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state.awaited = count;
            let (woken, _) = self
                .filled
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.awaited = 0;
        }
        Ok(state)
    }

    /// Events were taken, if there were any.
    fn on_taken(&self, state: &QueueState) {
        self.show_depth(state);
        if state.blocked > 0 {
            self.emptied.notify_all();
        }
    }

    fn show_depth(&self, state: &QueueState) {
        self.depth.set(i64::try_from(state.events.len()).unwrap_or(i64::MAX));
    }
}

/// An empty queue keeps the memory of so many events.
const KEPT_EVENTS: usize = 2_048;

#[cfg(test)]
mod tests {
    use std::thread;

    use sandglass_model::Body;
    use sandglass_model::network::Transport;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn event(at: u64) -> Event {
        Event {
            at: Timestamp(at),
            body: Body::Tick,
        }
    }

    #[test]
    fn several_sources_wait_for_room_and_no_event_is_lost_or_overtaken() {
        let (sender, receiver) = channel(4, Gauge::default());
        let sources: Vec<_> = (0..3)
            .map(|source| {
                let sender = sender.clone();
                thread::spawn(move || {
                    for first in (0..1_000).step_by(10) {
                        let events = (first..first + 10).map(|number| event(source * 1_000 + number));
                        sender.send_all(events).unwrap();
                    }
                })
            })
            .collect();
        drop(sender);
        let (mut batch, mut came) = (VecDeque::new(), vec![Vec::new(); 3]);
        while receiver.receive_all(LONG, &mut batch).is_ok() {
            assert!((1..=4).contains(&batch.len()));
            for event in batch.drain(..) {
                came[event.at.0 as usize / 1_000].push(event.at.0 % 1_000);
            }
        }
        let all: Vec<u64> = (0..1_000).collect();
        assert_eq!(came, vec![all; 3]);
        sources.into_iter().for_each(|source| source.join().unwrap());
    }

    #[test]
    fn both_ends_see_that_the_other_is_gone() {
        let (sender, receiver) = channel(1, Gauge::default());
        assert_eq!(receiver.receive(Duration::ZERO), Ok(None));
        sender.send(event(1)).unwrap();
        let blocked = {
            let sender = sender.clone();
            thread::spawn(move || sender.send(event(2)))
        };
        drop(receiver);
        assert_eq!(blocked.join().unwrap(), Err(Stopped));
        assert_eq!(sender.send(event(3)), Err(Stopped));
        let (sender, receiver) = channel(1, Gauge::default());
        sender.send(event(1)).unwrap();
        drop(sender);
        assert_eq!(receiver.receive(LONG), Ok(Some(event(1))));
        assert_eq!(receiver.receive(LONG), Err(Stopped));
    }

    #[test]
    fn a_batch_is_waited_for_until_an_eighth_of_the_queue_is_full() {
        let (sender, receiver) = channel(16, Gauge::default());
        let source = thread::spawn(move || {
            sender.send(event(1)).unwrap();
            thread::sleep(Duration::from_millis(50));
            sender.send(event(2)).unwrap();
            sender
        });
        let mut events = VecDeque::new();
        receiver.wait_for_batch(LONG);
        receiver.receive_all(Duration::ZERO, &mut events).unwrap();
        assert_eq!(events.drain(..).map(|event| event.at.0).collect::<Vec<_>>(), [1, 2]);
        let sender = source.join().unwrap();
        sender.send(event(3)).unwrap();
        receiver.wait_for_batch(Duration::ZERO);
        drop(sender);
        receiver.wait_for_batch(LONG);
        assert_eq!(receiver.receive(LONG), Ok(Some(event(3))));
    }

    #[test]
    fn the_depth_is_what_waits() {
        let depth = Gauge::default();
        let (sender, receiver) = channel(8, depth.clone());
        sender.send_all((0..5).map(event)).unwrap();
        assert_eq!(depth.get(), 5);
        receiver.receive(LONG).unwrap();
        assert_eq!(depth.get(), 4);
        receiver.receive_all(LONG, &mut VecDeque::new()).unwrap();
        assert_eq!(depth.get(), 0);
    }

    #[test]
    fn messages_come_back_and_those_that_nobody_takes_stay_few() {
        let (sender, receiver) = channel(4, Gauge::default());
        let message = |id| {
            Box::new(DnsMessage {
                netns: 0,
                socket: 0,
                transport: Transport::Udp,
                client: ([10, 0, 0, 1], 4_000).into(),
                server: ([10, 0, 0, 2], 53).into(),
                initiator: None,
                id,
                nth: 0,
                questions: Vec::new(),
                answer: None,
            })
        };
        for id in 0..100 {
            let mut messages = vec![message(id)];
            receiver.give_back(&mut messages);
            assert!(messages.is_empty());
        }
        let mut taken = Vec::new();
        sender.clone().take_spent(&mut taken);
        let ids: Vec<u16> = taken.iter().map(|message| message.id).collect();
        assert_eq!(ids, [0, 1, 2, 3]);
        taken.clear();
        sender.take_spent(&mut taken);
        assert!(taken.is_empty());
    }
}
