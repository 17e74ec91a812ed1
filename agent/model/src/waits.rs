//! Waits: events about threads of tracked processes that did not run, and what is made of them, the time of an operation
//! or a process by reason.
//!
//! The process probe emits the events while an operation lasts longer than `waits.after`; the correlator's room of waits
//! makes critical paths of them, whose sums ([`TimeSpent`]) are in the details of spans. Does not: interpret a stack.

mod seen;
mod tentative;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::daemons::Goroutine;
use crate::id::ProcessKey;
use crate::text_list::TextList;
use crate::time::Timestamp;
use crate::trace::Confidence;

pub use seen::{SocketSeen, ThreadSeen, ThreadState, ThreadsSeen, Waiting};
pub use tentative::{TentativeAddress, TentativeSeen};

/// A thread of a process that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadKey {
    /// Its id in the initial pid namespace.
    pub id: u32,
    /// When it was created.
    pub begin: Timestamp,
}

/// What the scheduler has counted of a thread since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerCount {
    /// Nanoseconds on a processor. Of a thread that runs, up to its last tick (kernel/sched/fair.c, `update_curr`).
    pub processor_ns: u64,
    /// Nanoseconds for which it was runnable and waited for a processor; 0 where the kernel does not count it
    /// (CONFIG_SCHED_INFO).
    pub run_delay_ns: u64,
}

/// A thread, and what the scheduler has counted of it since it was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadTimes {
    /// Its process.
    pub process: ProcessKey,
    /// Its id in the initial pid namespace; the process's own for its first thread.
    pub thread: u32,
    /// When it was created.
    pub begin: Timestamp,
    /// Nanoseconds on a processor, until it left the processor for this wait or ended.
    pub processor_ns: u64,
    /// Nanoseconds for which it was runnable and waited for a processor; 0 where the kernel does not count it
    /// (CONFIG_SCHED_INFO).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub run_delay_ns: u64,
}

impl ThreadTimes {
    /// What the scheduler has counted of the thread.
    #[must_use]
    pub fn counted(&self) -> SchedulerCount {
        SchedulerCount {
            processor_ns: self.processor_ns,
            run_delay_ns: self.run_delay_ns,
        }
    }
}

/// A thread that slept is woken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadWake {
    /// The thread.
    #[serde(flatten)]
    pub times: ThreadTimes,
    /// When it left the processor.
    pub slept_from: Timestamp,
    /// The sleep began before it was observed: `slept_from` is when the thread ran last as far as that is known, and at the latest when
    /// sleeps began to be observed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recovered: bool,
    /// Kernel functions that it slept in, the innermost first; empty where their names are not known.
    #[serde(default, skip_serializing_if = "TextList::is_empty")]
    pub stack: TextList,
    /// Who ran on the processor that woke it.
    pub waker: Waker,
    /// The goroutine in whose system call it slept, of a daemon in Go; `None` when not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goroutine: Option<Goroutine>,
}

/// A thread waits for a lock on a file, as `/proc/locks` showed it (proc_locks(5)).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockBlocked {
    /// Process id of the one that waits.
    pub pid: u32,
    /// Path of the file; empty when it could not be found.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Process id of the holder.
    pub holder: u32,
    /// Name of the holder's process (15 bytes at most, `TASK_COMM_LEN`); empty when it had ended.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub holder_name: SmolStr,
}

/// What the scheduler has counted of all threads of a runtime's daemon (containerd, CRI-O) since they were created, from
/// `/proc/PID/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst). Threads that ended are not in it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeTimes {
    /// The daemon.
    pub process: ProcessKey,
    /// Nanoseconds on processors, of all threads together.
    pub processor_ns: u64,
    /// Nanoseconds for which threads were runnable and waited for a processor, of all together.
    pub run_delay_ns: u64,
}

/// Who woke a thread: in an interrupt, whoever ran there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waker {
    /// Its process.
    pub process: ProcessKey,
    /// Its thread's id in the initial pid namespace.
    pub thread: u32,
    /// When that thread was created.
    pub begin: Timestamp,
    /// Its thread's name (15 bytes at most, `TASK_COMM_LEN`).
    pub name: SmolStr,
    /// Path of its cgroup (v2); empty when not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cgroup: String,
    /// Kernel functions from the wake-up outwards: those of an interrupt show that the process is not the cause.
    #[serde(default, skip_serializing_if = "TextList::is_empty")]
    pub stack: TextList,
}

/// A thread that was runnable begins to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadRun {
    /// The thread.
    #[serde(flatten)]
    pub times: ThreadTimes,
    /// Since when it was runnable.
    pub runnable_from: Timestamp,
    /// The scheduler had taken the processor away; otherwise the thread had been woken.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preempted: bool,
    /// Nanoseconds of the wait in which its control group had used up its quota (`cpu.max`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub throttled_ns: u64,
}

/// What the time of an operation or a process went to. A partition: every nanosecond belongs to one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeSpent {
    /// Nanoseconds by reason, in the order of [`TimeReason`]; none is zero. Their sum is the duration.
    pub parts: Vec<(TimeReason, u64)>,
    /// The waits with the most time, the longest first; at most [`TimeSpent::WAITS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<WaitGroup>,
    /// Nanoseconds after the begin from which on waits were recorded: of the time before, only sums are known. 0 where they were recorded
    /// all the time, and where it is not reported: of a creation, and of a daemon's request.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub recorded_after_ns: u64,
}

/// Waits of one kind: of all processes of one name, for the same thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitGroup {
    /// Why.
    pub reason: TimeReason,
    /// Nanoseconds on the critical path.
    pub ns: u64,
    /// How many waits; at least so many where the scheduler's count has some that were not recorded.
    pub count: u32,
    /// The file, the lock, the kernel's work, or the kernel function; empty where the reason says all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// Name of the processes that waited.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub who: SmolStr,
    /// The process that held the lock, or else the one whose wake-up ended the wait; empty when not known.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub by: SmolStr,
    /// How sure the reason is, where it is inferred: the kernel's functions show another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Confidence>,
}

/// A wait on the critical path of the process whose span is its parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitDetail {
    /// Why.
    pub reason: TimeReason,
    /// See [`WaitGroup::what`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// See [`WaitGroup::by`].
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub by: SmolStr,
    /// See [`WaitGroup::confidence`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Confidence>,
}

impl TimeSpent {
    /// Bound on `waits`.
    pub const WAITS_MAX: usize = 8;

    /// Nanoseconds of all reasons: the duration.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.parts.iter().map(|(_, ns)| ns).sum()
    }

    /// Adds time to a reason.
    pub fn add(&mut self, reason: TimeReason, ns: u64) {
        if ns == 0 {
            return;
        }
        match self.parts.binary_search_by_key(&reason, |(reason, _)| *reason) {
            Ok(at) => self.parts[at].1 += ns,
            Err(at) => self.parts.insert(at, (reason, ns)),
        }
    }

    /// Adds a wait: to those of its kind, or as one of its own. [`TimeSpent::keep_longest`] restores the bound.
    pub fn add_wait(&mut self, wait: &WaitGroup) {
        let same = self.waits.iter_mut().find(|group| {
            (group.reason, group.confidence) == (wait.reason, wait.confidence)
                && (&group.what, &group.who, &group.by) == (&wait.what, &wait.who, &wait.by)
        });
        match same {
            Some(group) => {
                group.ns += wait.ns;
                group.count = group.count.saturating_add(wait.count);
            }
            None => self.waits.push(wait.clone()),
        }
    }

    /// Keeps the longest waits, in order.
    pub fn keep_longest(&mut self) {
        self.waits.sort_by_key(|wait| std::cmp::Reverse(wait.ns));
        self.waits.truncate(TimeSpent::WAITS_MAX);
    }

    /// Adds the time of another process.
    pub fn merge(&mut self, other: &TimeSpent) {
        for (reason, ns) in &other.parts {
            self.add(*reason, *ns);
        }
        for wait in &other.waits {
            self.add_wait(wait);
        }
        self.keep_longest();
    }

    /// The time of a part of it, `ns` long: every reason in proportion, without the waits. The sum is `ns` exactly.
    #[must_use]
    pub fn in_proportion(&self, ns: u64) -> TimeSpent {
        let total = u128::from(self.total_ns().max(1));
        let mut part = TimeSpent::default();
        for (reason, of_it) in &self.parts {
            let share = u128::from(*of_it) * u128::from(ns) / total;
            part.add(*reason, u64::try_from(share).unwrap_or(u64::MAX));
        }
        let rest = ns.saturating_sub(part.total_ns());
        let most = self.parts.iter().max_by_key(|(_, ns)| *ns);
        part.add(most.map_or(TimeReason::Unknown, |(reason, _)| *reason), rest);
        part
    }

    /// Waits for a daemon become what the daemon's time went to: as much of it as there are such waits. The sum stays.
    pub fn go_through(&mut self, daemon: &str, time: &TimeSpent) {
        let mut left = time.total_ns();
        // A daemon behind a TCP connection is waited for as the network is.
        for reason in [TimeReason::Daemon, TimeReason::Network] {
            let Ok(at) = self.parts.binary_search_by_key(&reason, |(reason, _)| *reason) else {
                continue;
            };
            let ns = self.parts[at].1.min(left);
            if ns == 0 {
                continue;
            }
            left -= ns;
            self.parts[at].1 -= ns;
            if self.parts[at].1 == 0 {
                self.parts.remove(at);
            }
            self.shorten_waits(reason, ns);
            for (reason, ns) in time.in_proportion(ns).parts {
                self.add(reason, ns);
            }
            for wait in &time.waits {
                let share = u128::from(wait.ns) * u128::from(ns) / u128::from(time.total_ns().max(1));
                let ns = u64::try_from(share).unwrap_or(u64::MAX);
                // What is left to the daemon itself is named as it was. What it waited for itself says what.
                let by = if wait.reason == TimeReason::Daemon && wait.what.is_empty() {
                    SmolStr::new(daemon)
                } else {
                    wait.by.clone()
                };
                if ns > 0 {
                    self.add_wait(&WaitGroup { ns, by, ..wait.clone() });
                }
            }
        }
        self.keep_longest();
    }

    /// Takes so many nanoseconds from the waits of a reason, the longest first.
    fn shorten_waits(&mut self, reason: TimeReason, mut ns: u64) {
        for wait in self.waits.iter_mut().filter(|wait| wait.reason == reason) {
            let part = wait.ns.min(ns);
            wait.ns -= part;
            ns -= part;
        }
        self.waits.retain(|wait| wait.ns > 0);
    }

    /// Records were lost: what counts as time on a processor may have been a wait, and counts as `reason` now.
    pub fn lose_processor(&mut self, reason: TimeReason) {
        if let Some(at) = self
            .parts
            .iter()
            .position(|(reason, _)| *reason == TimeReason::Processor)
        {
            let (_, ns) = self.parts.remove(at);
            self.add(reason, ns);
        }
    }
}

macro_rules! time_reasons {
    ($($variant:ident = $name:literal, $text:literal: $doc:literal),+ $(,)?) => {
        /// What a nanosecond of an operation went to: the closed set of the `reason` label and of the attributes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum TimeReason {
            $(#[doc = $doc] $variant),+
        }

        impl TimeReason {
            /// All reasons.
            pub const ALL: &[TimeReason] = &[$(TimeReason::$variant),+];

            /// It is a wait: not work, and not what is unknown or the runtime's own.
            #[must_use]
            pub fn is_wait(self) -> bool {
                !matches!(self, TimeReason::Processor | TimeReason::Runtime | TimeReason::Unknown)
            }

            /// Name in metrics, attributes and text.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(TimeReason::$variant => $name),+
                }
            }

            /// In a sentence, after "waited 2 s".
            #[must_use]
            pub fn as_text(self) -> &'static str {
                match self {
                    $(TimeReason::$variant => $text),+
                }
            }
        }
    };
}

time_reasons! {
    Processor = "processor", "on a processor": "On a processor, or in waits too short for a record (0.2 ms).",
    RunQueue = "run_queue", "for a processor": "Runnable, and no processor was free.",
    Throttled = "throttled", "because its cgroup had used up its quota": "As `RunQueue`, because the control group had used up its quota.",
    Child = "child", "for a child": "Waited for the end of a process, or for its exec after vfork(2).",
    Thread = "thread", "for another thread": "Waited for another thread of the same program.",
    Pipe = "pipe", "for a pipe": "Waited for data or room in a pipe.",
    FileLock = "file_lock", "for a lock on a file": "Waited for a lock on a file.",
    KernelLock = "kernel_lock", "for a lock of the kernel": "Waited for a lock inside the kernel.",
    KernelWork = "kernel_work", "for the kernel's own work": "Waited for work that the kernel does later: RCU, clean-up of nftables or namespaces, detection of duplicate addresses.",
    Disk = "disk", "for a disk": "Waited for a disk.",
    Memory = "memory", "for free memory": "Waited for free memory.",
    Daemon = "daemon", "for another process": "Waited for another process of this node, through a local socket.",
    Network = "network", "for the network": "Waited for the network.",
    Timer = "timer", "for a timer": "Waited for a time that it chose itself.",
    Other = "other", "in the kernel": "Waited in a kernel function that no entry of the table explains.",
    Runtime = "runtime", "for the runtime": "The runtime between what it executes, and its threads slept: between two plugins of the chain, or two steps.",
    Unknown = "unknown", "for a reason that was not recorded": "Not recorded: before waits were recorded, or where records were lost.",
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}
