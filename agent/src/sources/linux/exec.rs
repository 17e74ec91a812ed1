//! The ring thread: takes records from the kernel's ring buffer, decodes them, sends them as events.
//!
//! Nearly every record of a sandbox would wake this thread, which costs more than all else that is done with it, so it is
//! woken once per burst: by the first record. It then looks by the clock, every [`LOOK_EVERY`], until nothing came for
//! [`AWAKE_FOR`]. That delay lies far below what the pipeline allows a record to be late (its ticks lag by 250 ms).
//!
//! Blocks when the pipeline is full: the kernel's buffer then fills, and counts what it loses. Once a second it reads
//! those counters and looks whether the wall clock was stepped.
//! Does not: load or attach anything, or decide what an event means.

pub mod calibration;
pub mod decode;
mod redact;
mod running;
mod stdio;

use std::collections::HashSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sandglass_model::event::Exec;
use sandglass_model::{Body, ClockAnchor, Event, ProcessKey, Timestamp};

use self::decode::{Decoded, decode};
use super::cgroups::Cgroups;
use super::loader::{Channels, PROBE};
use super::netns::NetnsWatch;
use crate::health::{Health, ProbeLabel};
use crate::scheduling;
use crate::sources::{EventSender, Stopped, clock};

/// Everything the thread owns.
pub struct RingThread {
    /// Gives what is to be said once everything is attached, and then nothing more.
    all_attached: Option<Receiver<Event>>,
    channels: Channels,
    sender: EventSender,
    health: Health,
    netns: NetnsWatch,
    cgroups: Cgroups,
    anchor: ClockAnchor,
    /// Runtime processes whose exec was passed over: their exit is too.
    passed_over: HashSet<ProcessKey>,
    /// What was read and is not sent yet: empty but for while the ring is drained; keeps its room.
    read: Vec<Event>,
}

impl RingThread {
    /// Puts the thread's parts together.
    pub fn new(
        channels: Channels,
        sender: EventSender,
        health: Health,
        netns: NetnsWatch,
        all_attached: Receiver<Event>,
    ) -> RingThread {
        RingThread {
            all_attached: Some(all_attached),
            channels,
            sender,
            health,
            netns,
            cgroups: Cgroups::new(),
            anchor: clock::anchor(),
            passed_over: HashSet::new(),
            read: Vec::new(),
        }
    }

    /// Runs until `stop` becomes readable or the pipeline is gone.
    pub fn run(mut self, stop: &OwnedFd) {
        scheduling::give_way();
        // An error only says that the pipeline is gone, which is one of the two ways to end.
        let _ = self.begin().and_then(|()| self.follow(stop));
    }

    /// What runs already, before anything that happens from now on, and before that the anchor of its times.
    fn begin(&mut self) -> Result<(), Stopped> {
        let running = running::find(&mut self.channels.processes);
        let first = running.iter().map(|event| event.at).min().unwrap_or_else(clock::now);
        self.send_anchor(first)?;
        for event in running {
            if let Body::ProcessExecuted(exec) = &event.body {
                self.netns.ask(exec, clock::now());
            }
            self.sender.send(event)?;
        }
        Ok(())
    }

    /// Passes on what is said when everything is attached: before what is in the ring by then.
    fn announce(&mut self) -> Result<(), Stopped> {
        let Some(all_attached) = &self.all_attached else {
            return Ok(());
        };
        match all_attached.try_recv() {
            Ok(event) => self.sender.send(event),
            Err(TryRecvError::Empty) => Ok(()),
            Err(TryRecvError::Disconnected) => {
                self.all_attached = None;
                Ok(())
            }
        }
    }

    fn follow(&mut self, stop: &OwnedFd) -> Result<(), Stopped> {
        let mut checked = Instant::now();
        let mut newest = Instant::now();
        let mut rest = Rest::Look;
        loop {
            let stopping = self.wait(stop, rest);
            self.announce()?;
            if self.drain()? {
                newest = Instant::now();
            }
            if stopping || checked.elapsed() >= CHECK_EVERY {
                checked = Instant::now();
                self.report_losses()?;
                self.check_clock()?;
            }
            if stopping {
                return Ok(());
            }
            rest = self.next_rest(rest, newest.elapsed());
        }
    }

    /// A record that was written while the kernel side was told of the coming sleep may have woken nobody. So one more
    /// look comes between the telling and the sleep; by then every program that had not been told has long ended.
    fn next_rest(&mut self, rest: Rest, silent: Duration) -> Rest {
        match rest {
            _ if silent < AWAKE_FOR || self.all_attached.is_some() => Rest::Look,
            Rest::Look if self.channels.reader.sleeps() => Rest::LastLook,
            // Without the word nothing would wake this thread.
            Rest::Look => Rest::Look,
            Rest::LastLook | Rest::Sleep => Rest::Sleep,
        }
    }

    /// Waits for a record that wakes, for the time to look, or for the end (true).
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

    /// Forwards what is in the ring; says whether there was anything. One after the other, not while it reads: the pipeline's
    /// thread would wake for each, and the two would take both processors of a small node from the plugins.
    fn drain(&mut self) -> Result<bool, Stopped> {
        let mut any = false;
        while let Some(decoded) = self.channels.ring.next(decode) {
            any = true;
            match decoded {
                Ok(decoded) => self.take(decoded),
                Err(error) => {
                    tracing::debug!(%error, "undecodable record");
                    self.health.undecodable.get_or_create(&label()).inc();
                }
            }
            if self.read.len() >= READ_MAX {
                self.send()?;
            }
        }
        self.send()?;
        self.health.ring_bytes.set(0);
        Ok(any)
    }

    fn send(&mut self) -> Result<(), Stopped> {
        self.read.drain(..).try_for_each(|event| self.sender.send(event))
    }

    fn take(&mut self, decoded: Decoded) {
        self.health
            .ring_bytes
            .set(i64::try_from(decoded.ring_bytes).unwrap_or(i64::MAX));
        let mut event = decoded.event;
        match &mut event.body {
            Body::ProcessExecuted(exec) => {
                if decoded.runtime && !is_of_interest(exec) {
                    self.pass_over(exec.process);
                    return;
                }
                exec.cgroup = self.cgroups.path(decoded.cgroup_id, exec.process.pid);
                self.netns.ask(exec, event.at);
            }
            Body::Tick => return,
            Body::ProcessExited(exit) if self.passed_over.remove(&exit.process) => return,
            _ => {}
        }
        self.read.push(event);
    }

    fn pass_over(&mut self, process: ProcessKey) {
        // Entries stay only while the process runs; if exits were lost, forgetting all merely lets a few exits pass.
        if self.passed_over.len() >= PASSED_OVER_MAX {
            self.passed_over.clear();
        }
        self.passed_over.insert(process);
    }

    fn report_losses(&mut self) -> Result<(), Stopped> {
        let count = self.channels.lost.take();
        if count == 0 {
            return Ok(());
        }
        self.health.lost.get_or_create(&label()).inc_by(count);
        self.sender.send(Event {
            at: clock::now(),
            body: Body::Lost {
                probe: PROBE.to_owned(),
                count,
            },
        })
    }

    /// Sends a new anchor when the wall clock was stepped.
    fn check_clock(&mut self) -> Result<(), Stopped> {
        let now = clock::anchor();
        let expected = self.anchor.unix_ns(Timestamp(now.boot_ns));
        if now.unix_ns.abs_diff(expected) <= STEP_NS {
            return Ok(());
        }
        self.anchor = now;
        self.send_anchor(Timestamp(now.boot_ns))
    }

    fn send_anchor(&self, at: Timestamp) -> Result<(), Stopped> {
        self.sender.send(Event {
            at,
            body: Body::ClockAnchored {
                unix_ns: self.anchor.unix_ns(at),
            },
        })
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

/// Whether an exec of a runtime's own tells about a sandbox's life. The shims and conmon do; of the OCI command lines
/// only those verbs do (kubelet's exec probes run `runc exec` all the time).
fn is_of_interest(exec: &Exec) -> bool {
    if !matches!(exec.file_name(), "runc" | "crun" | "runsc" | "youki") {
        return true;
    }
    let verb = exec.args.iter().skip(1).find(|argument| OCI_VERBS.contains(argument));
    verb.is_some_and(|verb| OCI_LIFE_VERBS.contains(&verb))
}

fn label() -> ProbeLabel {
    ProbeLabel {
        probe: PROBE.to_owned(),
    }
}

/// Delay of a record that wakes nobody.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// A burst has ended when nothing came for so long.
const AWAKE_FOR: Duration = Duration::from_millis(500);
/// How often the kernel side's counters and the wall clock are looked at.
const CHECK_EVERY: Duration = Duration::from_secs(1);
const STEP_NS: u64 = 50_000_000;
const PASSED_OVER_MAX: usize = 4096;
/// Some sandboxes' worth; more are sent in parts.
const READ_MAX: usize = 256;
const OCI_LIFE_VERBS: [&str; 5] = ["create", "start", "run", "delete", "kill"];
const OCI_VERBS: [&str; 19] = [
    "create",
    "start",
    "run",
    "delete",
    "kill",
    "exec",
    "state",
    "ps",
    "events",
    "pause",
    "resume",
    "update",
    "list",
    "spec",
    "checkpoint",
    "restore",
    "features",
    "init",
    "--version",
];

#[cfg(test)]
mod tests {
    use sandglass_model::TextPairs;

    use super::*;

    fn runtime(path: &str, args: &[&str]) -> Exec {
        let nobody = ProcessKey { pid: 1, start_ticks: 0 };
        Exec {
            process: nobody,
            parent: nobody,
            parent_comm: Default::default(),
            path: path.into(),
            args: args.iter().collect(),
            args_truncated: false,
            env: TextPairs::default(),
            cgroup: String::new(),
            netns: 0,
            running: false,
        }
    }

    #[test]
    fn only_the_life_of_a_container_is_of_interest() {
        for (path, args, wanted) in [
            (
                "/usr/sbin/runc",
                &[
                    "runc", "--root", "/run/x", "--log", "/y", "create", "--bundle", "b", "id",
                ][..],
                true,
            ),
            ("/usr/sbin/runc", &["runc", "--root", "/run/x", "start", "id"], true),
            ("/usr/bin/crun", &["crun", "delete", "--force", "id"], true),
            (
                "/usr/sbin/runc",
                &["runc", "--root", "/r", "exec", "--process", "p", "id", "start"],
                false,
            ),
            ("/usr/sbin/runc", &["runc", "init"], false),
            ("/usr/sbin/runc", &["runc", "--version"], false),
            ("/usr/sbin/runc", &["runc"], false),
            (
                "/usr/bin/containerd-shim-runc-v2",
                &["containerd-shim-runc-v2", "-id", "x", "start"],
                true,
            ),
            ("/usr/bin/conmon", &["conmon"], true),
        ] {
            assert_eq!(is_of_interest(&runtime(path, args)), wanted, "{args:?}");
        }
    }
}
