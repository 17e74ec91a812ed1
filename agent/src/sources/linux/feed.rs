//! Threads that follow what the kernel side reports: one for each feed, with one wake policy.
//!
//! Used by every probe of the Linux source. A thread polls its feed every [`POLL_INTERVAL`] until nothing came for the
//! feed's `IDLE_AFTER`; only then it sleeps, and only a sleeping thread is woken by a record (`probes/bpf/ring.h`). To wake a
//! thread costs both sides several times what the record does. The delay of a poll is far below what the pipeline allows
//! a record to be late: its ticks lag by 250 ms.
//! After each drain it sets the feed's watermark, for which the pipeline waits.
//! A thread blocks while the pipeline is full: the kernel's buffer then fills, and the kernel side counts what it loses.
//! Does not: decode.

pub mod decoded;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use sandglass_model::{Body, Event};

use super::loader::maps::LostCounter;
use crate::health::{Health, ProbeLabel};
use crate::sources::clock;
use crate::sources::queue::{EventSender, Spent, Stopped};
use crate::sources::watermarks::Watermark;

/// What a thread follows.
pub trait Feed: Send + 'static {
    /// A burst has ended when nothing came for so long. Short by default: most connections of a quiet node (health probes)
    /// come alone, and each keeps the thread awake.
    const IDLE_AFTER: Duration = Duration::from_millis(150);

    /// Where it sends to.
    fn outlet(&self) -> &Outlet;

    /// Called once, in the thread, before anything else.
    fn begin(&mut self) -> Result<(), Stopped> {
        self.check()
    }

    /// The descriptor that becomes readable when the thread is to wake before its timeout.
    fn wake_fd(&self, asleep: bool) -> Option<BorrowedFd<'_>>;

    /// Makes the next record wake the thread. False when that is not possible now: the thread then goes on polling.
    fn request_wake(&mut self) -> bool;

    /// Sends on what is there, [`RECORDS_MAX`] records at most.
    fn drain(&mut self) -> Result<Drained, Stopped>;

    /// Called every [`CHECK_INTERVAL`]: reports losses, and polls what has no records.
    fn check(&mut self) -> Result<(), Stopped>;
}

/// What [`Feed::drain`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// No record.
    Nothing,
    /// Records, and all of them are sent on.
    All,
    /// There may be more records: the next drain is due at once.
    Part,
}

impl Drained {
    /// The result of a drain that stops at the end of the records or at [`RECORDS_MAX`].
    #[must_use]
    pub fn from_count(records: usize) -> Drained {
        match records {
            0 => Drained::Nothing,
            RECORDS_MAX.. => Drained::Part,
            _ => Drained::All,
        }
    }
}

/// The thread that follows a feed. Dropping it ends the thread, after one more drain.
#[derive(Debug)]
pub struct Follower {
    /// An eventfd(2) that the thread polls beside its feed: it becomes readable when the thread is to end.
    stop: Arc<OwnedFd>,
    /// `None` once it was joined.
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the node is out of descriptors or threads.
    pub fn start(name: &str, feed: impl Feed) -> io::Result<Follower> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let stopped = Arc::clone(&stop);
        let records = feed.wake_fd(true).map(|fd| fd.try_clone_to_owned()).transpose()?;
        let has_records = move || records.as_ref().is_some_and(is_readable);
        let watermark = feed.outlet().sender.add_feed(has_records);
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            // An error means that the pipeline is gone, which is one of the two ways to end.
            let _ = follow(feed, &watermark, &stopped);
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

/// The thread: wait, drain, check when that is due. Stops after one more drain, so that records from before the stop are not
/// lost.
fn follow<F: Feed>(mut feed: F, watermark: &Watermark, stop: &OwnedFd) -> Result<(), Stopped> {
    let mut checked = Instant::now();
    let mut newest = Instant::now();
    let mut wait = Wait::Poll;
    feed.begin()?;
    loop {
        let until_check = CHECK_INTERVAL.saturating_sub(checked.elapsed());
        if wait == Wait::Sleep {
            watermark.sleep();
        }
        let stopping = pause(&feed, stop, wait, until_check);
        watermark.wake();
        let began = clock::now();
        let drained = feed.drain()?;
        if drained != Drained::Part {
            watermark.advance(began);
        }
        if drained != Drained::Nothing {
            newest = Instant::now();
        }
        if stopping || checked.elapsed() >= CHECK_INTERVAL {
            checked = Instant::now();
            feed.check()?;
        }
        if stopping {
            return Ok(());
        }
        // A record written while the wake is being requested may have seen the word before it was set, and wakes nobody.
        // So one more poll comes between the request and the sleep: by then every such program has long ended.
        wait = match wait {
            _ if drained == Drained::Part => Wait::None,
            _ if newest.elapsed() < F::IDLE_AFTER => Wait::Poll,
            Wait::None | Wait::Poll if feed.request_wake() => Wait::LastPoll,
            Wait::None | Wait::Poll => Wait::Poll,
            Wait::LastPoll | Wait::Sleep => Wait::Sleep,
        };
    }
}

/// Returns when the feed is to be drained; true when the thread is to end.
fn pause(feed: &impl Feed, stop: &OwnedFd, wait: Wait, until_check: Duration) -> bool {
    let timeout = match wait {
        Wait::None => Duration::ZERO,
        Wait::Poll | Wait::LastPoll => POLL_INTERVAL,
        Wait::Sleep => until_check,
    };
    let timeout = Timespec {
        tv_sec: timeout.as_secs().cast_signed(),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let wake = feed.wake_fd(wait == Wait::Sleep);
    let mut fds = [stop.as_fd(), wake.unwrap_or(stop.as_fd())].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) => !fds[0].revents().is_empty(),
        Err(_) => false,
    }
}

/// There is something to read (of a ring buffer: ringbuf_map_poll_kern() in kernel/bpf/ringbuf.c). An error reads as nothing: what
/// comes then may be late.
fn is_readable(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::IN)
}

/// How the thread waits for the next drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Not at all.
    None,
    /// For [`POLL_INTERVAL`].
    Poll,
    /// For [`POLL_INTERVAL`], after the wake was requested.
    LastPoll,
    /// Until woken, or until the next check.
    Sleep,
}

/// The end of a feed towards the pipeline, and its counters of what did not get there.
#[derive(Clone, Debug)]
pub struct Outlet {
    probe: &'static str,
    sender: EventSender,
    health: Health,
}

impl Outlet {
    /// The outlet of a probe.
    #[must_use]
    pub fn new(probe: &'static str, sender: EventSender, health: Health) -> Outlet {
        Outlet { probe, sender, health }
    }

    /// Sends an event; blocks while the pipeline is full.
    ///
    /// # Errors
    /// When the pipeline has stopped.
    pub fn send(&self, event: Event) -> Result<(), Stopped> {
        self.sender.send(event)
    }

    /// Sends events; blocks while the pipeline is full.
    ///
    /// # Errors
    /// When the pipeline has stopped.
    pub fn send_all(&self, events: impl Iterator<Item = Event>) -> Result<(), Stopped> {
        self.sender.send_all(events)
    }

    /// Takes the DNS messages that the pipeline has handled into `messages`, which is empty.
    pub fn take_spent(&self, messages: &mut Spent) {
        self.sender.take_spent(messages);
    }

    /// Counts records that found the kernel's buffer full, and reports them as an event.
    ///
    /// # Errors
    /// When the pipeline has stopped.
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

    /// As [`Outlet::report_lost`], with what the kernel side has counted since the last call.
    ///
    /// # Errors
    /// When the pipeline has stopped.
    pub fn report_losses(&self, lost: &mut LostCounter) -> Result<(), Stopped> {
        self.report_lost(lost.take())
    }

    /// Counts a record that could not be decoded.
    pub fn count_undecodable(&self, error: &dyn std::error::Error) {
        tracing::debug!(probe = self.probe, %error, "undecodable record");
        self.health.undecodable.get_or_create(&self.label()).inc();
    }

    /// The label of the probe's counters.
    fn label(&self) -> ProbeLabel {
        ProbeLabel {
            probe: self.probe.to_owned(),
        }
    }
}

/// Records of one drain at most: even in a flood, losses are reported and the thread can end.
pub const RECORDS_MAX: usize = 4096;
/// Delay of a record that wakes nobody.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// Between two checks. Losses and counters are as late as this.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
