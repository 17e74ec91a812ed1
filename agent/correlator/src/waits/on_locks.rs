//! Events about locks in the room of waits: which sleeps were waits for a lock.
//!
//! Called by `correlator.rs`. A program that only tries again and again sleeps on a timer between two tries of the same file; those
//! sleeps are waits for the lock, also where their end was not seen. A thread that waits for a lock of the kernel sleeps, spins, and
//! waits for a processor in between.
//! Does not: follow a holder of another operation; what that one did meanwhile is in its own trace.

use sandglass_model::locks::{FileLockTry, KernelLockWait};
use sandglass_model::waits::{LockBlocked, TimeReason};
use sandglass_model::{ProcessKey, Timestamp};

use crate::waits::Waits;
use crate::waits::evidence::Evidence;
use crate::waits::path::{ThreadId, Wait};
use crate::waits::reasons;

/// A thread that waits for a lock of the kernel and spins for less counts as on a processor.
const SPIN_MIN_NS: u64 = 50_000;

impl Waits {
    /// A process was seen to wait for a lock on a file.
    pub(crate) fn on_lock_blocked(&mut self, at: Timestamp, blocked: &LockBlocked) {
        let of_pid = |start_ticks| ProcessKey {
            pid: blocked.pid,
            start_ticks,
        };
        if self.processes.range(of_pid(0)..=of_pid(u64::MAX)).next().is_some() {
            self.locks.block(at, blocked);
        }
    }

    /// A thread tried to lock a file. If its process found the same file locked before, it has slept until now for that.
    pub(crate) fn on_file_lock(&mut self, at: Timestamp, tried: &FileLockTry) {
        if self.threads_of(tried.process).is_none() {
            return;
        }
        if let Some((since, before)) = self.locks.add_try(at, tried) {
            self.polled(&before, since, at);
        }
    }

    /// What a process slept on timers from one try to the next was a wait for the lock, and so was a sleep or a poll that nothing explains: the
    /// kernel does not report a wake-up that interrupts the program for wake-ups (`probes/bpf/recursion.h`), nor every switch.
    fn polled(&mut self, tried: &FileLockTry, since: Timestamp, until: Timestamp) {
        let lock = Evidence {
            reason: TimeReason::FileLock,
            what: tried.path.clone(),
            by: tried.holder_name.clone(),
            confidence: None,
        };
        let is_pause = |evidence: &Evidence| {
            matches!(evidence.reason, TimeReason::Timer | TimeReason::Unknown)
                || (evidence.reason == TimeReason::Other && reasons::is_poll([evidence.what.as_str()]))
        };
        let pauses: Vec<bool> = self.evidence.iter().map(is_pause).collect();
        let is_pause = |wait: &Wait| {
            wait.woken > wait.out && wait.woken <= until && pauses.get(wait.evidence).copied().unwrap_or_default()
        };
        // Other threads of a daemon sleep for other requests.
        let is_daemon = self.daemons.has(tried.process);
        let Some(threads) = self.threads_of(tried.process) else {
            return;
        };
        let polls = threads
            .by_id()
            .iter()
            .filter(|(id, thread)| thread.process == tried.process && (!is_daemon || **id == tried.thread));
        let found: Vec<(ThreadId, usize)> = polls
            .flat_map(|(id, thread)| {
                let first = thread.waits.partition_point(|wait| wait.out < since);
                let pauses = (first..thread.waits.len()).filter(|at| is_pause(&thread.waits[*at]));
                pauses.map(|at| (*id, at)).collect::<Vec<_>>()
            })
            .collect();
        if found.is_empty() {
            return;
        }
        let evidence = self.evidence_index(lock);
        for (id, at) in found {
            let threads = self.threads_of(tried.process);
            if let Some(thread) = threads.and_then(|threads| threads.get_mut(id)) {
                thread.waits[at].evidence = evidence;
            }
        }
    }

    /// A thread has waited for a lock of the kernel. Its sleeps of that time were for the lock, whatever their stacks show, and what
    /// lies between them it spun.
    pub(crate) fn on_kernel_lock(&mut self, at: Timestamp, wait: &KernelLockWait) {
        if wait.from >= at || !self.has_room_for(wait.process, at) {
            return;
        }
        let lock = self.locks.of_kernel(wait);
        let threads = self.threads_of(wait.process);
        let Some(thread) = threads.and_then(|threads| threads.thread(wait.process, wait.thread, wait.begin)) else {
            return;
        };
        // Those that ended before are as they are, and so is one that began before: it was no wait for this lock.
        let first = thread
            .waits
            .partition_point(|known| known.out < wait.from || known.ran <= wait.from);
        let within = thread.waits[first..].to_vec();
        let before = first.checked_sub(1).and_then(|last| thread.waits.get(last));
        let mut since = before.map_or(wait.from, |last| last.ran.max(wait.from));
        let spun = self.evidence_index(lock.clone());
        let mut rebuilt = Vec::with_capacity(within.len() + 1);
        for mut known in within {
            spin(&mut rebuilt, since, known.out.min(at), spun);
            since = since.max(known.ran);
            if known.woken > known.out && known.woken <= at {
                known.evidence = self.slept_for(&lock, known.evidence);
            }
            rebuilt.push(known);
        }
        spin(&mut rebuilt, since, at, spun);
        if let Some(threads) = self.threads_of(wait.process) {
            threads.replace_from(wait.thread, first, rebuilt);
        }
    }

    /// The evidence of a sleep for this lock: who released it counts more than who had it before, and a lock without a name has the one
    /// that the release shows.
    fn slept_for(&mut self, lock: &Evidence, slept: usize) -> usize {
        let mut evidence = lock.clone();
        if let Some(slept) = self.evidence.get(slept) {
            if !slept.by.is_empty() {
                evidence.by = slept.by.clone();
            }
            if slept.reason == TimeReason::KernelLock && !slept.what.is_empty() && !reasons::is_name(&evidence.what) {
                evidence.what.clone_from(&slept.what);
            }
        }
        self.evidence_index(evidence)
    }
}

/// A thread that waits for a lock and does not sleep spins.
fn spin(waits: &mut Vec<Wait>, from: Timestamp, to: Timestamp, evidence: usize) {
    if to.since(from) >= SPIN_MIN_NS {
        waits.push(Wait {
            out: from,
            woken: to,
            ran: to,
            waker: None,
            evidence,
            throttled_ns: 0,
            counted: None,
            goroutine: None,
        });
    }
}
