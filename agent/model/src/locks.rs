//! Locks: events about locks that tracked processes wait for, on files and inside the kernel.
//!
//! The process probe emits them while waits are recorded; the correlator's room of waits joins them with the sleeps of threads.
//! Does not: name a lock of the kernel; the correlator does, by the functions that wanted it.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::id::ProcessKey;
use crate::text_list::TextList;
use crate::time::Timestamp;

/// A thread tried to lock a file that another process has locked (fs/locks.c, `flock_lock_inode` and `posix_lock_inode`), or got
/// the lock after that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLockTry {
    /// The process.
    pub process: ProcessKey,
    /// The thread's id in the initial pid namespace.
    pub thread: u32,
    /// What came of it.
    pub outcome: LockOutcome,
    /// The file's device, as the kernel numbers it.
    pub device: u32,
    /// The file's inode.
    pub inode: u64,
    /// Its path; empty when it could not be found.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Process id of the one that has the lock; 0 when not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub holder: u32,
    /// Its name (15 bytes at most, `TASK_COMM_LEN`); empty when not known.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub holder_name: SmolStr,
}

/// What came of a try to lock a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockOutcome {
    /// The thread waits until the lock is free. Each time it is woken and has to wait again is another try.
    Blocked,
    /// The thread did not want to wait (`LOCK_NB`, `F_SETLK`), and got an error.
    Busy,
    /// It has the lock, after a try of its process that was `Busy`.
    Taken,
}

/// A thread has waited for a lock inside the kernel, asleep or spinning (include/trace/events/lock.h). Emitted at the end of
/// the wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelLockWait {
    /// The process.
    pub process: ProcessKey,
    /// The thread's id in the initial pid namespace.
    pub thread: u32,
    /// When the thread was created.
    pub begin: Timestamp,
    /// Since when it waited.
    pub from: Timestamp,
    /// What kind of lock it is.
    pub kind: KernelLockKind,
    /// Number of the lock among those that this agent has seen, from 1; 0 above a bound.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lock: u32,
    /// The lock's symbol where the kernel names variables (CONFIG_KALLSYMS_ALL) and it is one; mostly empty.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub symbol: SmolStr,
    /// Kernel functions that wanted it, the innermost first; empty where their names are not known.
    #[serde(default, skip_serializing_if = "TextList::is_empty")]
    pub stack: TextList,
    /// Who was seen to hold it last; `None` when nobody was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<LockHolder>,
}

/// Who holds a lock of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHolder {
    /// Its process.
    pub process: ProcessKey,
    /// Its thread's id in the initial pid namespace.
    pub thread: u32,
    /// Its thread's name (15 bytes at most, `TASK_COMM_LEN`).
    pub name: SmolStr,
}

/// A kind of lock that threads sleep on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelLockKind {
    /// `struct mutex`, of PREEMPT_RT too.
    Mutex,
    /// `struct rw_semaphore`, wanted for reading.
    Read,
    /// `struct rw_semaphore`, wanted for writing.
    Write,
    /// `struct percpu_rw_semaphore`.
    PerCpu,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}
