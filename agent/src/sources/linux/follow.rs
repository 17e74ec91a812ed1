//! A thread that follows one ring buffer of packet records: takes, decodes and sends them, and reports what was lost.
//!
//! Used by `dns` and `drops`. Like the ring thread it is woken once per burst, then looks by the clock (see `ring`), and
//! blocks when the pipeline is full. Does not: know what a record means; that is its [`Decoder`]'s.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use sandglass_model::{Body, Event};

use super::decode::DecodeError;
use super::loader::traffic::TrafficChannels;
use crate::health::{Health, ProbeLabel};
use crate::sources::{EventSender, Stopped, clock};

/// Turns the records of one probe into events.
pub trait Decoder: Send + 'static {
    /// Adds what `record` tells to `events`; gives the bytes that waited in the ring buffer when it was written.
    fn decode(&mut self, record: &[u8], events: &mut Vec<Event>) -> Result<u64, DecodeError>;
}

/// The running thread. Dropping it stops it, after what is in the ring buffer then.
#[derive(Debug)]
pub struct Follower {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Starts a thread named like the probe.
    pub fn start(
        probe: &'static str,
        channels: TrafficChannels,
        decoder: impl Decoder,
        sender: EventSender,
        health: Health,
    ) -> io::Result<Follower> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let stopped = Arc::clone(&stop);
        let reading = Reading {
            probe,
            channels,
            decoder,
            sender,
            health,
            events: Vec::new(),
        };
        let thread = Builder::new().name(probe.to_owned()).spawn(move || {
            // An error only says that the pipeline is gone, which is one of the two ways to end.
            let _ = reading.follow(&stopped);
        })?;
        Ok(Follower {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Reading<D> {
    probe: &'static str,
    channels: TrafficChannels,
    decoder: D,
    sender: EventSender,
    health: Health,
    events: Vec<Event>,
}

impl<D: Decoder> Reading<D> {
    fn follow(mut self, stop: &OwnedFd) -> Result<(), Stopped> {
        let mut checked = Instant::now();
        let mut newest = Instant::now();
        let mut rest = Rest::Look;
        loop {
            let stopping = self.wait(stop, rest);
            if self.drain()? {
                newest = Instant::now();
            }
            if stopping || checked.elapsed() >= CHECK_EVERY {
                checked = Instant::now();
                self.report_losses()?;
            }
            if stopping {
                return Ok(());
            }
            rest = self.next_rest(rest, newest.elapsed());
        }
    }

    /// As in `ring`: one more look between telling the kernel side of the sleep and the sleep.
    fn next_rest(&mut self, rest: Rest, silent: Duration) -> Rest {
        match rest {
            _ if silent < AWAKE_FOR => Rest::Look,
            Rest::Look if self.channels.reader.sleeps() => Rest::LastLook,
            Rest::Look => Rest::Look,
            Rest::LastLook | Rest::Sleep => Rest::Sleep,
        }
    }

    fn wait(&self, stop: &OwnedFd, rest: Rest) -> bool {
        let timeout = match rest {
            Rest::Look | Rest::LastLook => LOOK_EVERY,
            Rest::Sleep => CHECK_EVERY,
        };
        let timeout = Timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut fds = [
            PollFd::from_borrowed_fd(self.channels.ring.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) => !fds[1].revents().is_empty(),
            Err(_) => false,
        }
    }

    fn drain(&mut self) -> Result<bool, Stopped> {
        let mut any = false;
        while let Some(outcome) = self
            .channels
            .ring
            .next(|record| self.decoder.decode(record, &mut self.events))
        {
            any = true;
            if let Err(error) = outcome {
                tracing::debug!(probe = self.probe, %error, "undecodable record");
                self.health.undecodable.get_or_create(&self.label()).inc();
            }
            for event in self.events.drain(..) {
                self.sender.send(event)?;
            }
        }
        Ok(any)
    }

    fn report_losses(&mut self) -> Result<(), Stopped> {
        let counts = self.channels.counts.take();
        if counts.unreadable > 0 {
            let undecodable = self.health.undecodable.get_or_create(&self.label());
            undecodable.inc_by(counts.unreadable);
        }
        if counts.lost == 0 {
            return Ok(());
        }
        self.health.lost.get_or_create(&self.label()).inc_by(counts.lost);
        self.sender.send(Event {
            at: clock::now(),
            body: Body::Lost {
                probe: self.probe.to_owned(),
                count: counts.lost,
            },
        })
    }

    fn label(&self) -> ProbeLabel {
        ProbeLabel {
            probe: self.probe.to_owned(),
        }
    }
}

/// How the thread waits for records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// By the clock.
    Look,
    /// By the clock, once more, after the kernel side was told of the coming sleep.
    LastLook,
    /// Until woken, or for the next check.
    Sleep,
}

/// Delay of a record that wakes nobody; far below what the pipeline allows it to be late.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// A burst has ended when nothing came for so long.
const AWAKE_FOR: Duration = Duration::from_millis(500);
/// How often the kernel side's counters are looked at.
const CHECK_EVERY: Duration = Duration::from_secs(1);
