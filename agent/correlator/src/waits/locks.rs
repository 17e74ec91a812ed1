//! What is known of locks: tries of files, what `/proc/locks` showed, and names of locks of the kernel.
//!
//! Used by the room of waits. Three kinds of evidence, the best that there is counts: what the kernel reported of the lock itself
//! (`Body::FileLockTried`, `Body::KernelLockWaited`), what `/proc/locks` showed (`Body::LockBlocked`), and who woke the thread.
//! The holder that is named is the last one: who released the lock, where that is seen, or else who had it when the wait began.
//! Bounded: [`BLOCKED_MAX`] processes, [`TRIES_MAX`] threads, [`NAMES_MAX`] locks of the kernel.
//! Does not: change waits (`on_locks.rs` does).

use std::collections::BTreeMap;

use sandglass_model::locks::{FileLockTry, KernelLockWait, LockOutcome};
use sandglass_model::waits::{LockBlocked, ThreadWake, TimeReason};
use sandglass_model::{ProcessKey, SmolStr, Timestamp};

use crate::waits::evidence::{self, Evidence};
use crate::waits::path::ThreadId;
use crate::waits::reasons;

/// What is known of locks.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// The newest lock on a file that each process waited for according to `/proc/locks`, by process id.
    blocked: BTreeMap<u32, (Timestamp, LockBlocked)>,
    /// The newest try of each thread that did not get its lock.
    tries: BTreeMap<(ProcessKey, ThreadId), (Timestamp, FileLockTry)>,
    /// Locks of the kernel that a stack has named, by number.
    names: BTreeMap<u32, (TimeReason, &'static str)>,
}

/// Path of a file, process id of who holds its lock, and that process' name.
type HeldFile<'a> = (&'a str, u32, &'a SmolStr);

/// How much earlier than the begin of its sleep a lock may have been seen: a look has a time from before it reads, and the begin of
/// a sleep that was recovered is inexact.
const EARLY_NS: u64 = 50 * sandglass_model::time::MILLISECOND;
/// Processes of [`Locks::blocked`].
const BLOCKED_MAX: usize = 256;
/// Threads of [`Locks::tries`].
const TRIES_MAX: usize = 1_024;
/// Locks of [`Locks::names`]: as many as the source numbers.
const NAMES_MAX: usize = 512;

impl Locks {
    /// No process is left to which any of it could belong. Names stay: they belong to the node.
    pub(crate) fn clear(&mut self) {
        self.blocked.clear();
        self.tries.clear();
    }

    /// Processes have ended, and what was known of them goes.
    pub(crate) fn retain(&mut self, is_known: impl Fn(&ProcessKey) -> bool) {
        self.tries.retain(|(process, _), _| is_known(process));
    }

    /// `/proc/locks` showed that a process waits.
    pub(crate) fn block(&mut self, at: Timestamp, blocked: &LockBlocked) {
        if self.blocked.len() < BLOCKED_MAX || self.blocked.contains_key(&blocked.pid) {
            self.blocked.insert(blocked.pid, (at, blocked.clone()));
        }
    }

    /// A thread tried to lock a file. Returns the newest try before at which its process found the same file locked and did not wait.
    pub(crate) fn add_try(&mut self, at: Timestamp, tried: &FileLockTry) -> Option<(Timestamp, FileLockTry)> {
        let is_same = |before: &FileLockTry| {
            before.outcome == LockOutcome::Busy && (before.device, before.inode) == (tried.device, tried.inode)
        };
        let of_process = (tried.process, 0)..=(tried.process, ThreadId::MAX);
        let before = self.tries.range(of_process).map(|(_, before)| before);
        let before = before.filter(|(_, before)| is_same(before)).max_by_key(|(at, _)| *at);
        let before = before.cloned();
        let key = (tried.process, tried.thread);
        if tried.outcome == LockOutcome::Taken {
            self.tries
                .retain(|(process, _), (_, before)| *process != tried.process || !is_same(before));
        } else if self.tries.len() < TRIES_MAX || self.tries.contains_key(&key) {
            self.tries.insert(key, (at, tried.clone()));
        }
        before
    }

    /// Path of the file, and process id and name of the holder, that a thread's sleep from `from` to `to` was for; `None` when neither
    /// is known.
    fn of_sleep(
        &self,
        (process, thread): (ProcessKey, ThreadId),
        from: Timestamp,
        to: Timestamp,
    ) -> Option<HeldFile<'_>> {
        if let Some((tried, lock)) = self.tries.get(&(process, thread))
            && lock.outcome == LockOutcome::Blocked
            && *tried <= to
        {
            return Some((&lock.path, lock.holder, &lock.holder_name));
        }
        let (seen, lock) = self.blocked.get(&process.pid)?;
        (seen.plus(EARLY_NS) >= from && *seen <= to).then_some((lock.path.as_str(), lock.holder, &lock.holder_name))
    }

    /// Adds to a sleep that lasts what is known of the file's lock.
    pub(crate) fn complete_now(&self, thread: (ProcessKey, ThreadId), since: Timestamp, evidence: &mut Evidence) {
        if let Some((path, _, name)) = self.of_sleep(thread, since, Timestamp(u64::MAX)) {
            path.clone_into(&mut evidence.what);
            evidence.by = name.clone();
        }
    }

    /// Adds to a sleep on a file's lock what is known of file and holder. `waker` is the process that woke it, if one did.
    pub(crate) fn complete(&self, at: Timestamp, wake: &ThreadWake, evidence: &mut Evidence, is_interrupt: bool) {
        let waker = &wake.waker;
        let released = !is_interrupt && reasons::releases_file(waker.stack.iter());
        if let Some((path, holder, name)) = self.of_sleep((wake.times.process, wake.times.thread), wake.slept_from, at)
        {
            path.clone_into(&mut evidence.what);
            // Another one may have had the lock meanwhile. Of the process itself its name is better than that of a thread.
            if !name.is_empty() && (!released || holder == waker.process.pid) {
                evidence.by = name.clone();
                return;
            }
        }
        if released {
            evidence.by = waker.name.clone();
        }
    }

    /// What is known of a lock of the kernel. A lock that one caller has named has that name for all of them; else it has its symbol, or is
    /// called by the function that wanted it.
    pub(crate) fn of_kernel(&mut self, wait: &KernelLockWait) -> Evidence {
        let stack: Vec<&str> = wait.stack.iter().collect();
        let named = reasons::lock_of(&wait.symbol, &stack);
        if let Some(name) = named
            && wait.lock != 0
            && self.names.len() < NAMES_MAX
        {
            self.names.insert(wait.lock, name);
        }
        let named = named.or_else(|| self.names.get(&wait.lock).copied());
        let (reason, what) = named.unwrap_or_else(|| {
            let wanted = if wait.symbol.is_empty() {
                reasons::wanted_by(&stack).unwrap_or_default()
            } else {
                &wait.symbol
            };
            (TimeReason::KernelLock, wanted)
        });
        Evidence {
            reason,
            what: what.to_owned(),
            by: wait
                .holder
                .as_ref()
                .map(|holder| evidence::name_of(&holder.name))
                .unwrap_or_default(),
            confidence: None,
        }
    }
}

/// Whether a thread may go on along its waker: not where it waited for a lock of another operation.
pub(crate) fn may_follow(reason: TimeReason, sleeper: ProcessKey, waker: ProcessKey) -> bool {
    sleeper == waker || !matches!(reason, TimeReason::FileLock | TimeReason::KernelLock)
}
