//! Reads what a family of probes tells, with the ring thread's habits: woken once per burst, then by the clock.
//!
//! A feed is looked at every [`LOOK_EVERY`] until nothing came for [`AWAKE_FOR`]; only then does its thread sleep, and
//! only a sleeping one is woken (`probes/bpf/stream.h`). Blocks when the pipeline is full: the kernel's buffer then
//! fills, and counts what it loses. Does not: decode.

pub mod decoded;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use sandglass_model::{Body, Event};

use super::loader::LostCounter;
use crate::health::{Health, ProbeLabel};
use crate::sources::{EventSender, Stopped, clock};

/// Something a thread follows.
pub trait Feed: Send + 'static {
    /// What becomes readable when the thread is to wake, before the next look or, when it is asleep, at all.
    fn wakes(&self, asleep: bool) -> Option<BorrowedFd<'_>>;

    /// From now on the next record is to wake the thread. False when that cannot be had.
    fn sleeps(&mut self) -> bool;

    /// Forwards what is there, [`AT_ONCE`] records at most.
    fn drain(&mut self) -> Result<Found, Stopped>;

    /// Once a second: losses, and what else has to be looked at.
    fn check(&mut self) -> Result<(), Stopped>;
}

/// What was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// All of it was forwarded.
    All,
    /// There may be more: the next look is due at once.
    More,
}

impl Found {
    /// After so many records, and the end of them unless `AT_ONCE` was reached.
    #[must_use]
    pub fn of(records: usize) -> Found {
        match records {
            0 => Found::Nothing,
            AT_ONCE.. => Found::More,
            _ => Found::All,
        }
    }
}

/// The thread that follows a feed. Dropping it ends the thread, after a last look.
#[derive(Debug)]
pub struct Follower {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Starts the thread.
    pub fn start(name: &str, feed: impl Feed) -> io::Result<Follower> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let stopped = Arc::clone(&stop);
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            // An error only says that the pipeline is gone, which is one of the two ways to end.
            let _ = follow(feed, &stopped);
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

fn follow(mut feed: impl Feed, stop: &OwnedFd) -> Result<(), Stopped> {
    let mut checked = Instant::now();
    let mut newest = Instant::now();
    let mut rest = Rest::Look;
    feed.check()?;
    loop {
        let until_check = CHECK_EVERY.saturating_sub(checked.elapsed());
        let stopping = wait(&feed, stop, rest, until_check);
        let found = feed.drain()?;
        if found != Found::Nothing {
            newest = Instant::now();
        }
        if stopping || checked.elapsed() >= CHECK_EVERY {
            checked = Instant::now();
            feed.check()?;
        }
        if stopping {
            return Ok(());
        }
        // A record that was written while the kernel side was told of the coming sleep may have woken nobody: one more
        // look comes between the telling and the sleep (as in `ring`).
        rest = match rest {
            _ if found == Found::More => Rest::Busy,
            _ if newest.elapsed() < AWAKE_FOR => Rest::Look,
            Rest::Busy | Rest::Look if feed.sleeps() => Rest::LastLook,
            Rest::Busy | Rest::Look => Rest::Look,
            Rest::LastLook | Rest::Sleep => Rest::Sleep,
        };
    }
}

/// Waits for the time to look, for what wakes if the feed sleeps, or for the end (true).
fn wait(feed: &impl Feed, stop: &OwnedFd, rest: Rest, until_check: Duration) -> bool {
    let timeout = match rest {
        Rest::Busy => Duration::ZERO,
        Rest::Look | Rest::LastLook => LOOK_EVERY,
        Rest::Sleep => until_check,
    };
    let timeout = Timespec {
        tv_sec: timeout.as_secs().cast_signed(),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let stop = PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN);
    let mut fds = match feed.wakes(rest == Rest::Sleep) {
        Some(fd) => vec![stop, PollFd::from_borrowed_fd(fd, PollFlags::IN)],
        None => vec![stop],
    };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) => !fds[0].revents().is_empty(),
        Err(_) => false,
    }
}

/// How the thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// Not at all.
    Busy,
    /// By the clock.
    Look,
    /// By the clock, once more, after the kernel side was told of the coming sleep.
    LastLook,
    /// Until woken, or for the next check.
    Sleep,
}

/// A feed's way to the pipeline, and its account of what was lost on the way from the kernel.
#[derive(Clone, Debug)]
pub struct Outlet {
    probe: &'static str,
    sender: EventSender,
    health: Health,
}

impl Outlet {
    /// Of a probe.
    #[must_use]
    pub fn new(probe: &'static str, sender: EventSender, health: Health) -> Outlet {
        Outlet { probe, sender, health }
    }

    /// Sends an event; blocks while the pipeline is full.
    pub fn send(&self, event: Event) -> Result<(), Stopped> {
        self.sender.send(event)
    }

    /// Counts records that the kernel's buffer had no room for, and tells of them.
    pub fn report_lost(&self, count: u64) -> Result<(), Stopped> {
        if count == 0 {
            return Ok(());
        }
        self.health.lost.get_or_create(&self.label()).inc_by(count);
        self.sender.send(Event {
            at: clock::now(),
            body: Body::Lost {
                probe: self.probe.to_owned(),
                count,
            },
        })
    }

    /// As [`Outlet::report_lost`], of what the kernel side has counted since the last call.
    pub fn report_losses(&self, lost: &mut LostCounter) -> Result<(), Stopped> {
        self.report_lost(lost.take())
    }

    /// Counts a record that could not be decoded.
    pub fn undecodable(&self, error: &dyn std::error::Error) {
        tracing::debug!(probe = self.probe, %error, "undecodable record");
        self.health.undecodable.get_or_create(&self.label()).inc();
    }

    fn label(&self) -> ProbeLabel {
        ProbeLabel {
            probe: self.probe.to_owned(),
        }
    }
}

/// So many records are forwarded before losses are looked at, and whether the thread is to end: it never stays in a flood.
pub const AT_ONCE: usize = 4096;
/// Delay of a record that wakes nobody.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// A burst has ended when nothing came for so long. Short: most connections of a quiet node (health probes) come alone, and
/// each keeps the thread awake.
const AWAKE_FOR: Duration = Duration::from_millis(150);
/// How often [`Feed::check`] is called.
const CHECK_EVERY: Duration = Duration::from_secs(1);
