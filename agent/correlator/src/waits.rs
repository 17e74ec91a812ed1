//! The room of waits: what the time of an operation or a process went to, by reason.
//!
//! `correlator.rs` passes it the events of threads, and forks, execs and the ends of processes, so that it knows which
//! process is below which. When a process with a span has ended, the router requests its time here and passes it to the
//! room of plugins. `waits/reasons.rs` says why a thread slept, `waits/path.rs` finds the critical path, `waits/known.rs`
//! holds for which times there are records. `waits/locks.rs` knows locks, and `waits/on_locks.rs` handles the events about them;
//! `waits/detection.rs` and `waits/on_detection.rs` do so for duplicate address detection. `waits/on_daemons.rs` follows the threads of
//! daemons while they have requests.
//!
//! Idle, and empty, until a source reports that it can record waits (`Body::WaitsRecorded`): other nodes and older
//! recordings pay nothing.
//! Bounded: [`PROCESSES_MAX`] processes, and threads and waits (`waits/threads.rs`), which go with the plugin that the
//! runtime executed. What comes above a bound makes the time from then on unknown.
//! Does not: see spans, or set a timer. What was not recorded is `unknown`, never inferred.

mod busy;
mod detection;
mod evidence;
mod known;
mod locks;
mod now;
mod on_daemons;
mod on_detection;
mod on_locks;
mod path;
mod peers;
mod reasons;
mod runtimes;
mod seen;
mod threads;

use std::collections::BTreeMap;

use sandglass_model::event::{Exec, Fork};
use sandglass_model::waits::{
    RuntimeTimes, ThreadRun, ThreadTimes, ThreadWake, TimeReason, TimeSpent, WaitDetail, WaitGroup, Waiting,
};
use sandglass_model::{ProcessKey, SmolStr, Timestamp};

use crate::daemon_path::ThreadAt;
use crate::invocation::RuntimeExec;
use crate::waits::busy::BusyDaemons;
use crate::waits::detection::Detections;
use crate::waits::evidence::Evidence;
use crate::waits::known::Known;
use crate::waits::locks::Locks;
use crate::waits::path::{CountedAs, CountedAt, Segment, State, Thread, ThreadId, Wait, path_of_process};
use crate::waits::runtimes::Runtimes;
use crate::waits::seen::Seen;
use crate::waits::threads::Threads;

/// The room's state.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// A source records waits on this node, at times.
    is_active: bool,
    /// Plugins and steps that a runtime executed, and processes below them, until the one that the runtime executed has ended.
    processes: BTreeMap<ProcessKey, Process>,
    /// Their threads that have a record, and the first thread of each process.
    threads: Threads,
    /// Daemons that have a request in flight, and their threads.
    daemons: BusyDaemons,
    /// Why threads slept; each kind once.
    evidence: Vec<Evidence>,
    /// What is known of locks.
    locks: Locks,
    /// Whose duplicate address detection has not ended, and when it had not.
    detections: Detections,
    /// For which times there are records.
    known: Known,
    /// What was measured of runtimes' daemons.
    runtimes: Runtimes,
    /// What threads do now, and what processes are connected with.
    seen: Seen,
}

/// A process below a plugin or a step of the runtime, or that itself.
#[derive(Debug)]
struct Process {
    /// What the runtime executed. Itself for what a step has forked and left behind, until another step waits for it.
    root: ProcessKey,
    /// Its parent, if that is or was one of them.
    parent: Option<ProcessKey>,
    /// File name of its executable.
    name: SmolStr,
    /// It is below a step of the runtime, or that itself.
    below_step: bool,
    /// It has ended, or executes a container's program: it is not followed any more.
    ended: bool,
}

impl Process {
    /// A step that has ended forked it. `key` is its own.
    fn is_left(&self, key: ProcessKey) -> bool {
        self.root == key && self.parent.is_some()
    }
}

/// What is reported of the time of a process.
#[derive(Debug)]
pub(crate) struct ProcessTime {
    /// The sums.
    pub(crate) spent: TimeSpent,
    /// Its own longest waits that are worth a span, in order: begin, end, what for.
    pub(crate) shown: Vec<(Timestamp, Timestamp, WaitDetail)>,
    /// The wait that it ended in, if one did not end by itself.
    pub(crate) last: Option<Waiting>,
}

/// How the processes that `runc create` forks call themselves: `runc:[2:INIT]` (libcontainer/nsenter/nsexec.c). They talk with their
/// parent over a socket or a pipe, and are followed only where their fork was seen.
const RUNC_CHILD: &str = "runc:[";
/// A wait has a span from this duration on, and from this part of its process' time on (1/50).
const SHOWN_NS: u64 = sandglass_model::time::MILLISECOND;
/// See [`SHOWN_NS`].
const SHOWN_PART: u64 = 50;
/// Waits of a process that have a span.
const SHOWN_MAX: usize = 8;
/// What a process does between two sleeps of a poll, at most.
const POLL_GAP_NS: u64 = 20 * sandglass_model::time::MILLISECOND;
/// A node runs a few plugins at once, each with some tens of processes below it.
const PROCESSES_MAX: usize = 4_096;
/// Different pieces of evidence.
const EVIDENCE_MAX: usize = 1_024;
/// Lost records are counted by the kernel side and reported once a second, later when the node is busy.
const LOSS_REACH_NS: u64 = 3 * sandglass_model::time::SECOND;
/// What a process that is killed takes until its end: the exit of all its threads.
const KILLED_REACH_NS: u64 = 100 * sandglass_model::time::MILLISECOND;

// === what goes in ===

impl Waits {
    /// The source records waits from now on, or not any more.
    pub(crate) fn on_recorded(&mut self, at: Timestamp, on: bool) {
        self.is_active = true;
        if on {
            self.known.begin(at);
            self.daemons.known.begin(at);
        } else {
            self.known.end(at);
            self.daemons.known.end(at);
        }
    }

    /// A process of a plugin forked, or one of a runtime's step.
    pub(crate) fn on_fork(&mut self, at: Timestamp, fork: &Fork) {
        if !self.is_active {
            return;
        }
        let Some(parent) = self.processes.get(&fork.parent) else {
            return;
        };
        let process = Process {
            root: parent.root,
            parent: Some(fork.parent),
            name: parent.name.clone(),
            below_step: parent.below_step,
            ended: false,
        };
        let forker = fork.thread.map_or(fork.parent.pid, |thread| {
            self.threads.thread(fork.parent, thread.id, thread.begin);
            thread.id
        });
        self.add_process(at, fork.process, process, Some(forker), CountedAt::creation(at));
    }

    /// A process executed an image. If its parent is not known, a runtime executed this one, as a plugin or as a step, or a daemon
    /// (`below_daemon`) for a request.
    pub(crate) fn on_exec(&mut self, at: Timestamp, exec: &Exec, below_daemon: bool) {
        if !self.is_active {
            return;
        }
        let name = SmolStr::new(exec.path.rsplit('/').next().unwrap_or_default());
        let by_runtime = || RuntimeExec::parse(&name, &exec.args);
        if let Some(known) = self.processes.get_mut(&exec.process) {
            // The name of runc's copy of itself is that of a descriptor.
            if !known.below_step {
                known.name = name;
            } else if by_runtime().is_none() {
                self.on_exit(exec.process, at);
            }
            return;
        }
        let parent = self.processes.get(&exec.parent);
        let is_step = parent.is_none() && matches!(by_runtime(), Some(RuntimeExec::Step(..)));
        // Of what else a runtime executes, such as the daemon of a shim, nothing is followed.
        if parent.is_none() && exec.env("CNI_COMMAND").is_none() && !below_daemon && !is_step {
            return;
        }
        let process = Process {
            root: parent.map_or(exec.process, |parent| parent.root),
            parent: parent.map(|_| exec.parent),
            below_step: parent.map_or(is_step, |parent| parent.below_step),
            name,
            ended: false,
        };
        let forker = process.parent.map(|parent| parent.pid);
        let counted = CountedAt::exec(at, exec.counted);
        self.add_process(at, exec.process, process, forker, counted);
    }

    /// A thread that slept was woken.
    pub(crate) fn on_wake(&mut self, at: Timestamp, wake: &ThreadWake) {
        let process = wake.times.process;
        if !self.has_room_for(process, at) {
            return;
        }
        let waker = &wake.waker;
        // In an interrupt, who ran there is not the cause.
        let is_interrupt = wake.waker.stack.is_empty() || reasons::is_interrupt(waker.stack.iter());
        self.not_asleep(wake.times.thread);
        let stack: Vec<&str> = wake.stack.iter().collect();
        let woke: Vec<&str> = waker.stack.iter().collect();
        let mut classified = reasons::classify(&stack, &woke);
        let root = |key: &ProcessKey| self.processes.get(key).map(|process| process.root);
        let follows = match (root(&wake.times.process), root(&waker.process)) {
            (Some(sleeper), Some(waker)) => !is_interrupt && locks::may_follow(classified.reason, sleeper, waker),
            // A daemon's thread has followed only those of its own.
            _ => !is_interrupt && waker.process == process && self.daemons.has(process),
        };
        if !is_interrupt
            && waker.process != process
            && let Some(daemon) = self.daemons.get_mut(waker.process)
        {
            daemon.wakes(
                process,
                ThreadAt {
                    at,
                    thread: waker.thread,
                    begin: waker.begin,
                },
            );
        }
        // Who sent a signal ended the sleep, and is not what it was for.
        let is_killed = !is_interrupt && !follows && reasons::is_signal(waker.stack.iter());
        if follows {
            self.adopt(waker.process, process);
        }
        if follows && let Some(threads) = self.threads_of(waker.process) {
            threads.thread(waker.process, waker.thread, waker.begin);
        }
        if waker.name.starts_with(RUNC_CHILD) && matches!(classified.reason, TimeReason::Daemon | TimeReason::Pipe) {
            classified.reason = TimeReason::Child;
        }
        let mut evidence = Evidence {
            reason: classified.reason,
            what: match (classified.what, classified.reason) {
                ("", TimeReason::Other) => classified.function,
                (what, _) => what.to_owned(),
            },
            by: if is_interrupt || follows || is_killed {
                SmolStr::default()
            } else {
                evidence::name_of(&waker.name)
            },
            confidence: None,
        };
        if evidence.reason == TimeReason::FileLock {
            self.locks.complete(at, wake, &mut evidence, is_interrupt);
        } else if evidence.reason == TimeReason::Network {
            let peers = &self.seen.peers;
            peers.name_remote(&mut evidence.what, process, wake.slept_from);
        }
        let passes_on = matches!(
            evidence.reason,
            TimeReason::Child | TimeReason::Pipe | TimeReason::Other
        );
        let cause = match follows {
            true => Some(waker.thread),
            false if is_killed && passes_on => self.newest_child(process),
            false => None,
        };
        let evidence = self.evidence_index(evidence);
        let wait = Wait {
            out: wake.slept_from,
            woken: at,
            ran: at,
            waker: cause,
            evidence,
            throttled_ns: 0,
            counted: Some(wake.times.counted()),
            goroutine: wake.goroutine,
        };
        if let Some(threads) = self.threads_of(process) {
            threads.add_wait(&wake.times, wait);
        }
    }

    /// A thread that was runnable runs: after a wake-up, or after the scheduler had taken the processor away.
    pub(crate) fn on_run(&mut self, at: Timestamp, run: &ThreadRun) {
        let process = run.times.process;
        if !self.has_room_for(process, at) {
            return;
        }
        self.not_asleep(run.times.thread);
        let Some(threads) = self.threads_of(process) else {
            return;
        };
        let thread = threads.thread(process, run.times.thread, run.times.begin);
        if let Some(last) = thread.and_then(|thread| thread.waits.last_mut())
            && !run.preempted
            && last.woken == run.runnable_from
        {
            last.ran = at;
            last.throttled_ns = run.throttled_ns;
            return;
        }
        let wait = Wait::for_processor(run.runnable_from, at, run.throttled_ns, &run.times);
        threads.add_wait(&run.times, wait);
    }

    /// A thread ended. It did not wait then, but its counts divide the time since its last wait, or since its begin.
    pub(crate) fn on_thread_end(&mut self, at: Timestamp, times: &ThreadTimes) {
        if !self.has_room_for(times.process, at) {
            return;
        }
        if let Some(threads) = self.threads_of(times.process) {
            threads.add_wait(times, Wait::for_processor(at, at, 0, times));
            if let Some(thread) = threads.get_mut(times.thread) {
                thread.ended = Some(at);
            }
        }
    }

    /// A runtime's daemon was measured.
    pub(crate) fn on_runtime_measured(&mut self, at: Timestamp, times: &RuntimeTimes) {
        self.runtimes.add(at, times);
    }

    /// Records were lost at or shortly before `at`: what was known of that time is not any more. Returns since when.
    pub(crate) fn on_loss(&mut self, at: Timestamp) -> Timestamp {
        let since = Timestamp(at.0.saturating_sub(LOSS_REACH_NS));
        self.known.lose(since, at);
        since
    }
}

// === what comes out ===

impl Waits {
    /// What the time from `from` to `to` of a process went to, at whose end it ended or was cut off. `None` when nothing of that
    /// time was recorded, or the process is not known.
    pub(crate) fn spent(&mut self, process: ProcessKey, from: Timestamp, to: Timestamp) -> Option<ProcessTime> {
        if !self.known.overlaps(from, to) || !self.processes.contains_key(&process) {
            return None;
        }
        let mut spent = TimeSpent {
            recorded_after_ns: self.known.begins_after(from, to),
            ..TimeSpent::default()
        };
        let mut shown = Vec::new();
        let shown_from = (to.since(from) / SHOWN_PART).max(SHOWN_NS);
        let until = self.until(process, to);
        let threads = until.as_ref().unwrap_or(self.threads.by_id());
        let mut path = path_of_process(threads, process, from, to);
        self.find_detections(process, &mut path);
        let last = self.last_wait(&path, to);
        for segment in path {
            let wait = self.add_segment(&mut spent, segment);
            // What another process did meanwhile is below that one's span. Where a time lies of which there is only a count, nobody knows.
            let is_own = |thread: &Thread| thread.process == process;
            if let Some(wait) = wait
                && !matches!(segment.state, State::Counted(_))
                && self.threads.by_id().get(&segment.thread).is_some_and(is_own)
            {
                let detail = WaitDetail {
                    reason: wait.reason,
                    what: wait.what,
                    by: wait.by,
                    confidence: wait.confidence,
                };
                show(&mut shown, segment, detail);
            }
        }
        shown.retain(|(from, to, _)| to.since(*from) >= shown_from);
        spent.keep_longest();
        if shown.len() > SHOWN_MAX {
            shown.sort_by_key(|(from, to, _)| std::cmp::Reverse(to.since(*from)));
            shown.truncate(SHOWN_MAX);
            shown.sort_by_key(|(from, ..)| *from);
        }
        Some(ProcessTime { spent, shown, last })
    }

    /// The sleep that a path ends with, if no more than the exit of a process that was killed lies behind it.
    fn last_wait(&self, path: &[Segment], to: Timestamp) -> Option<Waiting> {
        let is_sleep = |segment: &&Segment| matches!(segment.state, State::Asleep(_));
        let last = path.iter().rev().find(is_sleep)?;
        if to.since(last.to) > KILLED_REACH_NS {
            return None;
        }
        let mut spent = TimeSpent::default();
        let wait = self.add_segment(&mut spent, *last)?;
        Some(Waiting {
            reason: wait.reason,
            what: wait.what,
            who: wait.who,
            by: wait.by,
            confidence: wait.confidence,
            function: SmolStr::default(),
            since: last.from,
        })
    }

    /// When a process fell asleep that slept at this time, as far as its threads' wake-ups since then show it: the latest of them,
    /// since by then none of them ran any more.
    pub(crate) fn slept_from(&self, process: ProcessKey, at: Timestamp) -> Option<Timestamp> {
        let threads = self.threads.by_id().values();
        let threads = threads.filter(|thread| thread.process == process);
        let asleep = threads.filter_map(|thread| thread.waits.iter().find(|wait| wait.out < at && wait.woken > at));
        asleep.map(|wait| wait.out).max()
    }

    /// What the time from `from` to `to` of a runtime's daemon went to. The sum is the duration.
    pub(crate) fn of_runtime(&self, runtime: ProcessKey, from: Timestamp, to: Timestamp) -> TimeSpent {
        self.runtimes.spent(runtime, from, to)
    }

    /// A process has ended, and its time was requested. With one that the runtime executed all below it is forgotten, but for what a
    /// step has forked and left behind: the container's first process.
    pub(crate) fn on_exit(&mut self, ended: ProcessKey, at: Timestamp) {
        self.not_seen(ended);
        let Some(process) = self.processes.get_mut(&ended) else {
            return;
        };
        process.ended = true;
        if process.root != ended {
            return;
        }
        let mut forgotten = Vec::new();
        for (key, process) in self.processes.iter_mut().filter(|(_, process)| process.root == ended) {
            match process.below_step && !process.ended {
                true => process.root = *key,
                false => forgotten.push(*key),
            }
        }
        for process in forgotten {
            self.not_seen(process);
            self.processes.remove(&process);
        }
        let processes = &self.processes;
        self.detections.forget(ended);
        self.threads.retain(|process| processes.contains_key(process));
        self.forget_unused();
        self.known.has_room(at);
    }

    /// A step was woken by what another step has left behind, for which it waited: that one is the step's from now on.
    fn adopt(&mut self, left: ProcessKey, step: ProcessKey) {
        let step = self.processes.get(&step).filter(|process| process.below_step);
        let root = step.map(|process| process.root);
        let left = self.processes.get_mut(&left).filter(|process| process.is_left(left));
        if let (Some(left), Some(root)) = (left, root) {
            left.root = root;
        }
    }

    /// Forgets what was known of processes that are forgotten.
    fn forget_unused(&mut self) {
        let (processes, daemons) = (&self.processes, &self.daemons);
        self.locks
            .retain(|process| processes.contains_key(process) || daemons.has(*process));
        if processes.is_empty() && daemons.is_empty() {
            self.evidence.clear();
            self.locks.clear();
        }
    }

    /// Adds a part of the path, and returns it if it is a wait.
    fn add_segment(&self, spent: &mut TimeSpent, segment: Segment) -> Option<WaitGroup> {
        let ns = segment.to.since(segment.from);
        let (reason, evidence) = match segment.state {
            State::Unknown | State::Counted(CountedAs::Neither) => (TimeReason::Unknown, None),
            State::Asleep(evidence) => match self.evidence.get(evidence) {
                Some(evidence) => (evidence.reason, Some(evidence)),
                None => (TimeReason::Other, None),
            },
            State::Running | State::Counted(CountedAs::Processor) => (TimeReason::Processor, None),
            State::Runnable | State::Counted(CountedAs::RunQueue) => (TimeReason::RunQueue, None),
            State::Throttled => (TimeReason::Throttled, None),
        };
        let ns = match segment.state {
            // A thread without records did not wait only where there would have been records.
            State::Running | State::Runnable | State::Throttled => {
                let known = self.known.within(segment.from, segment.to);
                spent.add(TimeReason::Unknown, ns - known);
                known
            }
            State::Asleep(_) | State::Counted(_) | State::Unknown => ns,
        };
        spent.add(reason, ns);
        if ns == 0 || matches!(reason, TimeReason::Processor | TimeReason::Unknown) {
            return None;
        }
        let process = self.threads.by_id().get(&segment.thread).map(|thread| thread.process);
        let process = process.and_then(|process| self.processes.get(&process));
        let wait = WaitGroup {
            reason,
            ns,
            count: 1,
            what: evidence.map_or_else(String::new, |evidence| evidence.what.clone()),
            who: process.map_or_else(SmolStr::default, |process| process.name.clone()),
            by: evidence.map_or_else(SmolStr::default, |evidence| evidence.by.clone()),
            confidence: evidence.and_then(|evidence| evidence.confidence),
        };
        spent.add_wait(&wait);
        Some(wait)
    }
}

/// Adds a wait to those that may have a span. Sleeps between which a process only looked whether to go on sleeping have one together.
fn show(shown: &mut Vec<(Timestamp, Timestamp, WaitDetail)>, segment: Segment, detail: WaitDetail) {
    let is_same = |(_, to, before): &&mut (Timestamp, Timestamp, WaitDetail)| {
        *before == detail && segment.from.since(*to) < POLL_GAP_NS
    };
    let polled = detail.confidence.and_then(|_| shown.iter_mut().rev().find(is_same));
    match polled {
        Some((_, to, _)) => *to = segment.to,
        None => shown.push((segment.from, segment.to, detail)),
    }
}

// === tables ===

impl Waits {
    /// Enters a process and its first thread. Above the bound, times are unknown from now on.
    fn add_process(
        &mut self,
        at: Timestamp,
        key: ProcessKey,
        process: Process,
        parent: Option<ThreadId>,
        first_count: CountedAt,
    ) {
        if self.processes.contains_key(&key) {
            return;
        }
        if self.processes.len() >= PROCESSES_MAX || self.threads.is_crowded() {
            self.known.is_full(at);
            return;
        }
        self.processes.insert(key, process);
        let thread = Thread {
            process: key,
            begin: at,
            first_count,
            parent,
            waits: Vec::new(),
            ended: None,
        };
        self.threads.insert(key.pid, thread);
    }

    /// The table of a process's threads; `None` when its threads are not followed.
    fn threads_of(&mut self, process: ProcessKey) -> Option<&mut Threads> {
        if self.processes.contains_key(&process) {
            return Some(&mut self.threads);
        }
        self.daemons.get_mut(process).map(|daemon| &mut daemon.threads)
    }

    /// The threads of this process are followed, and there is room for a wait of one of them.
    fn has_room_for(&mut self, process: ProcessKey, at: Timestamp) -> bool {
        if !self.processes.contains_key(&process) {
            let daemon = self.daemons.get_mut(process);
            return daemon.is_some_and(|daemon| daemon.has_room(at));
        }
        let has_room = self.threads.has_room();
        if !has_room {
            self.known.is_full(at);
        }
        has_room
    }

    fn evidence_index(&mut self, evidence: Evidence) -> usize {
        match self.evidence.iter().position(|known| *known == evidence) {
            Some(index) => index,
            None if self.evidence.len() < EVIDENCE_MAX => {
                self.evidence.push(evidence);
                self.evidence.len() - 1
            }
            // Past the end: `Other`.
            None => usize::MAX,
        }
    }
}
