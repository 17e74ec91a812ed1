//! The room of waits: what the time of an operation or a process went to, by reason.
//!
//! `correlator.rs` passes it the events of threads, and forks, execs and the ends of processes, so that it knows which
//! process is below which. When a process with a span has ended, the router requests its time here and passes it to the
//! room of plugins. `waits/reasons.rs` says why a thread slept, `waits/path.rs` finds the critical path, `waits/known.rs`
//! holds for which times there are records.
//!
//! Idle, and empty, until a source reports that it can record waits (`Body::WaitsRecorded`): other nodes and older
//! recordings pay nothing.
//! Bounded: [`PROCESSES_MAX`] processes, [`THREADS_MAX`] threads and [`WAITS_MAX`] waits, which go with the plugin that the
//! runtime executed. What comes above a bound makes the time from then on unknown.
//! Does not: see spans, or set a timer. What was not recorded is `unknown`, never inferred.

mod known;
mod path;
mod reasons;

use std::collections::BTreeMap;

use sandglass_model::event::{Exec, Fork};
use sandglass_model::waits::{
    LockBlocked, ThreadRun, ThreadTimes, ThreadWake, TimeReason, TimeSpent, WaitDetail, WaitGroup,
};
use sandglass_model::{ProcessKey, SmolStr, Timestamp};

use crate::waits::known::Known;
use crate::waits::path::{Segment, State, Thread, ThreadId, Wait, critical_path};

/// The room's state.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// A source records waits on this node, at times.
    is_active: bool,
    /// Processes below plugins, until the plugin that the runtime executed has ended.
    processes: BTreeMap<ProcessKey, Process>,
    /// Their threads that have a record, and the first thread of each process.
    threads: BTreeMap<ThreadId, Thread>,
    /// Why threads slept; each kind once.
    evidence: Vec<Evidence>,
    /// The newest lock that each process waited for, by process id.
    blocked: BTreeMap<u32, (Timestamp, LockBlocked)>,
    /// How many waits the threads have.
    waits: usize,
    /// For which times there are records.
    known: Known,
}

/// A process below a plugin, or the plugin itself.
#[derive(Debug)]
struct Process {
    /// The plugin that the runtime executed.
    root: ProcessKey,
    /// File name of its executable.
    name: SmolStr,
}

/// Why a thread slept.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Evidence {
    reason: TimeReason,
    /// See [`WaitGroup::what`].
    what: String,
    /// See [`WaitGroup::by`].
    by: SmolStr,
}

/// What is reported of the time of a process.
#[derive(Debug)]
pub(crate) struct ProcessTime {
    /// The sums.
    pub(crate) spent: TimeSpent,
    /// Its own longest waits that are worth a span, in order: begin, end, what for.
    pub(crate) shown: Vec<(Timestamp, Timestamp, WaitDetail)>,
}

/// A wait has a span from this duration on, and from this part of its process' time on (1/50).
const SHOWN_NS: u64 = sandglass_model::time::MILLISECOND;
/// See [`SHOWN_NS`].
const SHOWN_PART: u64 = 50;
/// Waits of a process that have a span.
const SHOWN_MAX: usize = 8;
/// A node runs a few plugins at once, each with some tens of processes below it.
const PROCESSES_MAX: usize = 4_096;
/// Threads: a Go program has about ten.
const THREADS_MAX: usize = 8_192;
/// Waits: 64 bytes each. An operation of a second has some hundreds that last longer than 0.2 ms.
const WAITS_MAX: usize = 32_768;
/// Different pieces of evidence.
const EVIDENCE_MAX: usize = 1_024;
/// Lost records are counted by the kernel side and reported once a second, later when the node is busy.
const LOSS_REACH_NS: u64 = 3 * sandglass_model::time::SECOND;
/// What is remembered of locks: `/proc/locks` is read while the wait lasts.
const BLOCKED_MAX: usize = 256;

// === what goes in ===

impl Waits {
    /// The source records waits from now on, or not any more.
    pub(crate) fn on_recorded(&mut self, at: Timestamp, on: bool) {
        self.is_active = true;
        if on {
            self.known.begin(at);
        } else {
            self.known.end(at);
        }
    }

    /// A process of a plugin forked.
    pub(crate) fn on_fork(&mut self, at: Timestamp, fork: &Fork) {
        if !self.is_active {
            return;
        }
        let Some(parent) = self.processes.get(&fork.parent) else {
            return;
        };
        let process = Process {
            root: parent.root,
            name: parent.name.clone(),
        };
        let forker = fork.thread.map_or(fork.parent.pid, |thread| {
            self.thread(fork.parent, thread.id, thread.begin);
            thread.id
        });
        self.add_process(at, fork.process, process, Some(forker));
    }

    /// A process executed an image. If its parent belongs to no plugin, a runtime executed this one as a plugin.
    pub(crate) fn on_exec(&mut self, at: Timestamp, exec: &Exec) {
        if !self.is_active {
            return;
        }
        let name = SmolStr::new(exec.path.rsplit('/').next().unwrap_or_default());
        if let Some(known) = self.processes.get_mut(&exec.process) {
            known.name = name;
            return;
        }
        // Steps of the runtime have no CNI parameters; the time of what runs below them is not followed.
        let parent = self.processes.get(&exec.parent).map(|parent| parent.root);
        if parent.is_none() && exec.env("CNI_COMMAND").is_none() {
            return;
        }
        let process = Process {
            root: parent.unwrap_or(exec.process),
            name,
        };
        self.add_process(at, exec.process, process, parent.map(|_| exec.parent.pid));
    }

    /// A thread that slept was woken.
    pub(crate) fn on_wake(&mut self, at: Timestamp, wake: &ThreadWake) {
        if !self.processes.contains_key(&wake.times.process) || !self.has_room(at) {
            return;
        }
        let waker = &wake.waker;
        // In an interrupt, who ran there is not the cause.
        let is_interrupt = wake.waker.stack.is_empty() || reasons::is_interrupt(waker.stack.iter());
        let follows = !is_interrupt && self.processes.contains_key(&waker.process);
        if follows {
            self.thread(waker.process, waker.thread, waker.begin);
        }
        let stack: Vec<&str> = wake.stack.iter().collect();
        let woke: Vec<&str> = waker.stack.iter().collect();
        let classified = reasons::classify(&stack, &woke);
        let mut evidence = Evidence {
            reason: classified.reason,
            what: match (classified.what, classified.reason) {
                ("", TimeReason::Other) => classified.function,
                (what, _) => what.to_owned(),
            },
            by: if is_interrupt || follows {
                SmolStr::default()
            } else {
                waker.name.clone()
            },
        };
        if evidence.reason == TimeReason::FileLock
            && let Some((seen, lock)) = self.blocked.get(&wake.times.process.pid)
            && *seen >= wake.slept_from
            && *seen <= at
        {
            evidence.what.clone_from(&lock.path);
            if !lock.holder_name.is_empty() {
                evidence.by = lock.holder_name.clone();
            }
        }
        let evidence = self.evidence_index(evidence);
        let wait = Wait {
            out: wake.slept_from,
            woken: at,
            ran: at,
            waker: follows.then_some(waker.thread),
            evidence,
            throttled_ns: 0,
        };
        self.add_wait(&wake.times, wait);
    }

    /// A thread that was runnable runs: after a wake-up, or after the scheduler had taken the processor away.
    pub(crate) fn on_run(&mut self, at: Timestamp, run: &ThreadRun) {
        if !self.processes.contains_key(&run.times.process) || !self.has_room(at) {
            return;
        }
        let thread = self.thread(run.times.process, run.times.thread, run.times.begin);
        if let Some(last) = thread.and_then(|thread| thread.waits.last_mut())
            && !run.preempted
            && last.woken == run.runnable_from
        {
            last.ran = at;
            last.throttled_ns = run.throttled_ns;
            return;
        }
        let wait = Wait {
            out: run.runnable_from,
            woken: run.runnable_from,
            ran: at,
            waker: None,
            evidence: 0,
            throttled_ns: run.throttled_ns,
        };
        self.add_wait(&run.times, wait);
    }

    /// A process was seen to wait for a lock on a file.
    pub(crate) fn on_lock_blocked(&mut self, at: Timestamp, blocked: &LockBlocked) {
        let of_pid = |start_ticks| ProcessKey {
            pid: blocked.pid,
            start_ticks,
        };
        let is_known = self.processes.range(of_pid(0)..=of_pid(u64::MAX)).next().is_some();
        if is_known && (self.blocked.len() < BLOCKED_MAX || self.blocked.contains_key(&blocked.pid)) {
            self.blocked.insert(blocked.pid, (at, blocked.clone()));
        }
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
    /// What the time from `from` to `to` of a process went to, at whose end it ended. `None` when nothing of that time
    /// was recorded, or the process is not known.
    pub(crate) fn spent(&self, process: ProcessKey, from: Timestamp, to: Timestamp) -> Option<ProcessTime> {
        if !self.known.overlaps(from, to) || !self.processes.contains_key(&process) {
            return None;
        }
        let mut spent = TimeSpent::default();
        let mut shown = Vec::new();
        let shown_from = (to.since(from) / SHOWN_PART).max(SHOWN_NS);
        for segment in critical_path(&self.threads, process.pid, from, to) {
            let wait = self.add_segment(&mut spent, segment);
            // What another process did meanwhile is below that one's span.
            let is_own = |thread: &Thread| thread.process == process;
            if let Some(wait) = wait
                && wait.ns >= shown_from
                && self.threads.get(&segment.thread).is_some_and(is_own)
            {
                let detail = WaitDetail {
                    reason: wait.reason,
                    what: wait.what,
                    by: wait.by,
                };
                shown.push((segment.from, segment.to, detail));
            }
        }
        spent.keep_longest();
        if shown.len() > SHOWN_MAX {
            shown.sort_by_key(|(from, to, _)| std::cmp::Reverse(to.since(*from)));
            shown.truncate(SHOWN_MAX);
            shown.sort_by_key(|(from, ..)| *from);
        }
        Some(ProcessTime { spent, shown })
    }

    /// A process that the runtime executed has ended, and its time was requested: forgets it and all below it.
    pub(crate) fn forget(&mut self, root: ProcessKey, at: Timestamp) {
        if self.processes.get(&root).is_none_or(|process| process.root != root) {
            return;
        }
        self.processes.retain(|_, process| process.root != root);
        let processes = &self.processes;
        self.threads.retain(|_, thread| processes.contains_key(&thread.process));
        self.waits = self.threads.values().map(|thread| thread.waits.len()).sum();
        if self.processes.is_empty() {
            self.evidence.clear();
            self.blocked.clear();
        }
        self.known.has_room(at);
    }

    /// Adds a part of the path, and returns it if it is a wait.
    fn add_segment(&self, spent: &mut TimeSpent, segment: Segment) -> Option<WaitGroup> {
        let ns = segment.to.since(segment.from);
        let (reason, evidence) = match segment.state {
            State::Unknown => (TimeReason::Unknown, None),
            State::Asleep(evidence) => match self.evidence.get(evidence) {
                Some(evidence) => (evidence.reason, Some(evidence)),
                None => (TimeReason::Other, None),
            },
            State::Running | State::Runnable | State::Throttled => {
                let reason = match segment.state {
                    State::Runnable => TimeReason::RunQueue,
                    State::Throttled => TimeReason::Throttled,
                    State::Running | State::Asleep(_) | State::Unknown => TimeReason::Processor,
                };
                // A thread without records did not wait only where there would have been records.
                let known = self.known.within(segment.from, segment.to);
                spent.add(TimeReason::Unknown, ns - known);
                (reason, None)
            }
        };
        let ns = match segment.state {
            State::Unknown | State::Asleep(_) => ns,
            State::Running | State::Runnable | State::Throttled => self.known.within(segment.from, segment.to),
        };
        spent.add(reason, ns);
        if ns == 0 || matches!(reason, TimeReason::Processor | TimeReason::Unknown) {
            return None;
        }
        let process = self.threads.get(&segment.thread).map(|thread| thread.process);
        let process = process.and_then(|process| self.processes.get(&process));
        let wait = WaitGroup {
            reason,
            ns,
            count: 1,
            what: evidence.map_or_else(String::new, |evidence| evidence.what.clone()),
            who: process.map_or_else(SmolStr::default, |process| process.name.clone()),
            by: evidence.map_or_else(SmolStr::default, |evidence| evidence.by.clone()),
        };
        spent.add_wait(&wait);
        Some(wait)
    }
}

// === tables ===

impl Waits {
    /// Enters a process and its first thread. Above the bound, times are unknown from now on.
    fn add_process(&mut self, at: Timestamp, key: ProcessKey, process: Process, parent: Option<ThreadId>) {
        if self.processes.contains_key(&key) {
            return;
        }
        if self.processes.len() >= PROCESSES_MAX || self.threads.len() >= THREADS_MAX {
            self.known.is_full(at);
            return;
        }
        self.processes.insert(key, process);
        let thread = Thread {
            process: key,
            begin: at,
            parent,
            waits: Vec::new(),
        };
        if let Some(before) = self.threads.insert(key.pid, thread) {
            self.waits -= before.waits.len();
        }
    }

    /// The thread, entered if it is new. `None` when the table is full.
    fn thread(&mut self, process: ProcessKey, id: ThreadId, begin: Timestamp) -> Option<&mut Thread> {
        let known = self.threads.get(&id);
        let is_same =
            known.is_some_and(|thread| thread.process == process && (id == process.pid || thread.begin == begin));
        if !is_same {
            if known.is_none() && self.threads.len() >= THREADS_MAX {
                return None;
            }
            let thread = Thread {
                process,
                begin,
                // The kernel does not report which thread created it: the first one stands for it.
                parent: Some(process.pid).filter(|first| *first != id),
                waits: Vec::new(),
            };
            if let Some(before) = self.threads.insert(id, thread) {
                self.waits -= before.waits.len();
            }
        }
        self.threads.get_mut(&id)
    }

    /// Appends a wait to its thread, behind the ones before.
    fn add_wait(&mut self, times: &ThreadTimes, mut wait: Wait) {
        let Some(thread) = self.thread(times.process, times.thread, times.begin) else {
            return;
        };
        let after = thread.waits.last().map_or(Timestamp(0), |last| last.ran);
        wait.out = wait.out.max(after);
        wait.woken = wait.woken.max(wait.out);
        wait.ran = wait.ran.max(wait.woken);
        thread.waits.push(wait);
        self.waits += 1;
    }

    fn has_room(&mut self, at: Timestamp) -> bool {
        let has_room = self.waits < WAITS_MAX && self.threads.len() < THREADS_MAX;
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
