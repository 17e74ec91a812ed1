//! What the newest look found: threads that sleep or run, and what their processes are connected with.
//!
//! Used by `now.rs`, which finds what a process waits for. Bounded by what the source reports of one look, and by the room's
//! processes. Does not: know which process is below which.

use std::collections::BTreeMap;

use sandglass_model::waits::{ThreadSeen, ThreadState, TimeReason, Waiting};
use sandglass_model::{ProcessKey, SmolStr, Timestamp};

use crate::waits::path::ThreadId;
use crate::waits::peers::Peers;
use crate::waits::reasons;

/// What the newest look found.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) threads: BTreeMap<ThreadId, Sleeper>,
    /// What was found last for each process that runs, so that a change is noticed.
    pub(crate) found: BTreeMap<ProcessKey, Waiting>,
    pub(crate) peers: Peers,
}

/// A thread, and why it does not run.
#[derive(Clone, Debug)]
pub(crate) struct Sleeper {
    pub(crate) process: ProcessKey,
    pub(crate) thread: ThreadId,
    pub(crate) begin: Timestamp,
    pub(crate) since: Timestamp,
    /// `Processor` and `RunQueue` of one that does not sleep.
    pub(crate) reason: TimeReason,
    pub(crate) what: &'static str,
    pub(crate) function: SmolStr,
    /// It sleeps for one of several things, and what will wake it is not known.
    pub(crate) polls: bool,
}

impl Sleeper {
    pub(crate) fn of(thread: &ThreadSeen) -> Sleeper {
        let stack: Vec<&str> = thread.stack.iter().collect();
        let classified = reasons::classify(&stack, &[]);
        let reason = match thread.state {
            ThreadState::Asleep => classified.reason,
            ThreadState::Running => TimeReason::Processor,
            ThreadState::Runnable => TimeReason::RunQueue,
        };
        Sleeper {
            process: thread.process,
            thread: thread.thread,
            begin: thread.begin,
            since: thread.since,
            reason,
            what: classified.what,
            function: SmolStr::new(classified.function),
            polls: reason == TimeReason::Other && reasons::is_poll(stack),
        }
    }

    /// What it does says less than what the threads and processes do that it waits for.
    pub(crate) fn passes_on(&self) -> bool {
        self.polls || matches!(self.reason, TimeReason::Child | TimeReason::Pipe | TimeReason::Thread)
    }
}

/// How telling a reason is, the most first.
pub(crate) fn rank(reason: TimeReason) -> u32 {
    match reason {
        TimeReason::Processor | TimeReason::RunQueue | TimeReason::Throttled => 0,
        TimeReason::FileLock
        | TimeReason::KernelLock
        | TimeReason::KernelWork
        | TimeReason::Disk
        | TimeReason::Memory => 1,
        TimeReason::Daemon | TimeReason::Network => 2,
        TimeReason::Timer => 3,
        TimeReason::Other | TimeReason::Runtime | TimeReason::Unknown => 4,
        TimeReason::Pipe => 5,
        TimeReason::Child => 6,
        TimeReason::Thread => 7,
    }
}
