//! Daemons in the room of waits: their threads are followed while a request is in flight, and the path from its receipt to its answer.
//!
//! Called by `correlator.rs`. The path goes backwards from the thread that sent the answer, along wake-ups by threads of the same
//! daemon. It does not leave the daemon: what a daemon executed has spans of its own, and who sends it something is no cause.
//! Go's scheduler moves work between threads. With several requests in flight, the path at such a daemon is the waits of the request's
//! goroutines instead: a goroutine that sleeps in a system call keeps its thread.
//! Does not: know requests, or judge whether a path belongs to one.

use std::collections::BTreeSet;

use sandglass_model::daemons::{DaemonProcess, Goroutine};
use sandglass_model::waits::{TimeReason, WaitGroup};
use sandglass_model::{ProcessKey, SmolStr, Timestamp};

use crate::daemon_path::{Answered, DaemonPath, PathLink, Piece, ThreadAt};
use crate::waits::busy::BusyDaemon;
use crate::waits::path::{CountedAs, Segment, State, ThreadId, Wait, critical_path};
use crate::waits::{LOSS_REACH_NS, Waits};

impl Waits {
    /// A daemon whose threads are followed has a request in flight.
    pub(crate) fn on_daemon_busy(&mut self, daemon: &DaemonProcess) {
        // One that is below a plugin has its waits there.
        if self.is_active && !self.processes.contains_key(&daemon.process) {
            self.daemons.add(daemon.process, &daemon.name);
        }
    }

    /// It has none any more.
    pub(crate) fn on_daemon_idle(&mut self, daemon: ProcessKey) {
        self.daemons.remove(daemon);
        self.forget_unused();
    }

    /// Waits of daemons' threads were left out or lost at or shortly before `at`. Returns since when nothing is known of them.
    pub(crate) fn on_daemons_limited(&mut self, at: Timestamp) -> Timestamp {
        let since = Timestamp(at.0.saturating_sub(LOSS_REACH_NS));
        self.daemons.known.lose(since, at);
        since
    }

    /// What the threads of a daemon did from the receipt of a request to its answer. `None` when nothing of that was recorded.
    pub(crate) fn daemon_path(&mut self, request: &Answered) -> Option<DaemonPath> {
        let received = request.received;
        if !self.daemons.known.overlaps(received.at, request.end) {
            return None;
        }
        if let Some(path) = self.path_of_goroutines(request) {
            return Some(path);
        }
        let daemon = self.daemons.get_mut(request.daemon)?;
        let woke = || daemon.woke(request.client, received.at, request.end);
        let replied = request.replied.or_else(woke)?;
        for end in [received, replied] {
            enter(daemon, request.daemon, end);
        }
        self.path_between(request.daemon, received, replied)
    }

    /// What the goroutines of a request waited for in system calls, and those that they created. Where two of them waited at the same
    /// time, the wait that began first counts. `None` when there is none.
    fn path_of_goroutines(&self, request: &Answered) -> Option<DaemonPath> {
        let daemon = self
            .daemons
            .get(request.daemon)
            .filter(|_| !request.goroutines.is_empty())?;
        let (from, to) = (request.received.at, request.end);
        let of_thread = |(id, wait): (ThreadId, &Wait)| Some((id, *wait, wait.goroutine?));
        let threads = daemon.threads.by_id().iter();
        let waits = threads.flat_map(|(id, thread)| thread.waits.iter().map(|wait| (*id, wait)));
        let mut waits: Vec<(ThreadId, Wait, Goroutine)> = waits.filter_map(of_thread).collect();
        waits.sort_by_key(|(_, wait, _)| wait.out);
        let mut working: BTreeSet<u64> = request.goroutines.iter().copied().collect();
        let mut pieces = Vec::new();
        let mut at = from;
        let mut add = |from: Timestamp, to: Timestamp, thread, state| {
            if from < to {
                pieces.extend(self.pieces(
                    daemon,
                    Segment {
                        from,
                        to,
                        thread,
                        state,
                    },
                ));
            }
        };
        for (thread, wait, goroutine) in waits {
            if !working.contains(&goroutine.id) && !working.contains(&goroutine.creator) {
                continue;
            }
            working.insert(goroutine.id);
            let (out, ran) = (wait.out.max(at), wait.ran.min(to));
            if out >= ran {
                continue;
            }
            let woken = wait.woken.max(out).min(ran);
            add(at, out, thread, State::Unknown);
            add(out, woken, thread, State::Asleep(wait.evidence));
            add(woken, ran, thread, State::Runnable);
            at = ran;
        }
        if at == from {
            return None;
        }
        add(at, to, 0, State::Unknown);
        Some(DaemonPath {
            pieces,
            link: PathLink::Goroutines,
        })
    }

    /// What the threads of a daemon did from the receipt of a request until one of them did something else.
    pub(crate) fn path_between(&self, daemon: ProcessKey, received: ThreadAt, last: ThreadAt) -> Option<DaemonPath> {
        let daemon = self.daemons.get(daemon)?;
        let path = critical_path(daemon.threads.by_id(), last.thread, received.at, last.at);
        let is_chained = path.first().is_some_and(|first| first.thread == received.thread)
            && path.iter().all(|segment| segment.state != State::Unknown);
        let pieces = path.into_iter().flat_map(|segment| self.pieces(daemon, segment));
        Some(DaemonPath {
            pieces: pieces.collect(),
            link: if is_chained {
                PathLink::WakeUps
            } else {
                PathLink::Nothing
            },
        })
    }

    /// A segment, in parts where it is known and where it is not. A sleep was seen; that a thread ran is known only where its sleeps
    /// would have been.
    fn pieces(&self, daemon: &BusyDaemon, segment: Segment) -> Vec<Piece> {
        let piece = |from, to, what| Piece {
            from,
            to,
            thread: segment.thread,
            what,
        };
        let known = |reason: TimeReason, what: String, by: SmolStr, confidence| {
            let wait = WaitGroup {
                reason,
                ns: 0,
                count: 1,
                what,
                who: daemon.name.clone(),
                by,
                confidence,
            };
            Some((reason, reason.is_wait().then_some(wait)))
        };
        let reason = match segment.state {
            State::Unknown | State::Counted(CountedAs::Neither) => return vec![piece(segment.from, segment.to, None)],
            State::Asleep(evidence) => {
                let what = match self.evidence.get(evidence) {
                    Some(why) => known(why.reason, why.what.clone(), why.by.clone(), why.confidence),
                    None => known(TimeReason::Other, String::new(), SmolStr::default(), None),
                };
                return vec![piece(segment.from, segment.to, what)];
            }
            State::Running | State::Counted(CountedAs::Processor) => TimeReason::Processor,
            State::Runnable | State::Counted(CountedAs::RunQueue) => TimeReason::RunQueue,
            State::Throttled => TimeReason::Throttled,
        };
        if let State::Counted(_) = segment.state {
            let what = known(reason, String::new(), SmolStr::default(), None);
            return vec![piece(segment.from, segment.to, what)];
        }
        let full_from = daemon.full_from.unwrap_or(segment.to).max(segment.from).min(segment.to);
        let parts = self.daemons.known.parts(segment.from, full_from).into_iter();
        let parts = parts.chain([(full_from, segment.to, false)]);
        parts
            .filter(|(from, to, _)| from < to)
            .map(|(from, to, is_known)| {
                let what = is_known.then(|| known(reason, String::new(), SmolStr::default(), None));
                piece(from, to, what.flatten())
            })
            .collect()
    }
}

/// Enters a thread that received or sent, and may have no wait.
fn enter(daemon: &mut BusyDaemon, process: ProcessKey, end: ThreadAt) {
    let is_known = daemon.threads.by_id().contains_key(&end.thread);
    if !is_known || end.begin.0 > 0 {
        daemon.threads.thread(process, end.thread, end.begin);
    }
}
