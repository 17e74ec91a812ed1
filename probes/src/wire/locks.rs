//! Records of locks that a tracked process met: on files (`bpf/file_locks.h`) and inside the kernel (`bpf/locks.h`).
//!
//! Part of `wire.h` like `wire.rs`, and under the same rules. Does not: decode; see `sandglass::sources::linux::exec`.

/// A tracked process tried to lock a file: [`FileLockRecord`].
pub const KIND_FILE_LOCK: u32 = 23;
/// A thread of a tracked process has waited for a lock of the kernel: [`ContentionRecord`].
pub const KIND_CONTENTION: u32 = 24;

/// [`FileLockRecord::outcome`]: the thread waits until the lock is free.
pub const FILE_LOCK_BLOCKED: u32 = 1;
/// [`FileLockRecord::outcome`]: another one has the lock, and the thread did not want to wait.
pub const FILE_LOCK_BUSY: u32 = 2;
/// [`FileLockRecord::outcome`]: it has the lock, after it had found it busy.
pub const FILE_LOCK_TAKEN: u32 = 3;

/// Files of which is remembered who locked them last.
pub const LOCK_FILES_MAX: u32 = 1024;
/// Most threads that are followed through waits for a lock of the kernel at one time.
pub const CONTENTIONS_MAX: u32 = 1024;

/// A tracked process tried to lock a file.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLockRecord {
    /// Head; names the process.
    pub header: super::RecordHeader,
    /// Inode number of the file.
    pub inode: u64,
    /// The thread.
    pub tid: u32,
    /// `FILE_LOCK_` constants.
    pub outcome: u32,
    /// Process that has the lock, by its id in the initial pid namespace; 0 when not known.
    pub holder_pid: u32,
    /// Number of the file's device, as the kernel has it (include/linux/kdev_t.h).
    pub device: u32,
    /// Name of the holder's thread that took it; empty when that was not seen.
    pub holder_comm: [u8; 16],
    /// Names of the file and of the folders above it within its file system, the file's first, each in `LOCK_NAME_MAX` bytes with a
    /// zero byte behind it. The file system's root is empty; a name that fills its place is cut.
    pub names: [u8; 320],
}

/// Names of a path that a record has at most.
pub const LOCK_NAMES: u32 = 8;
/// Bytes of each, its terminator included.
pub const LOCK_NAME_MAX: u32 = 40;

/// [`ContentionRecord::flags`]: as of the tracepoint (include/trace/events/lock.h). A spinning lock, or a mutex while the owner runs.
pub const LCB_F_SPIN: u32 = 1;
/// A reader's wait.
pub const LCB_F_READ: u32 = 2;
/// A writer's wait.
pub const LCB_F_WRITE: u32 = 4;
/// A mutex of PREEMPT_RT.
pub const LCB_F_RT: u32 = 8;
/// A per-CPU semaphore.
pub const LCB_F_PERCPU: u32 = 16;
/// A mutex.
pub const LCB_F_MUTEX: u32 = 32;

/// A thread of a tracked process has waited for a lock of the kernel. The time of the head is the end of the wait.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentionRecord {
    /// Head; names the process.
    pub header: super::RecordHeader,
    /// Since when, nanoseconds of the boot clock.
    pub begin_ns: u64,
    /// Creation of the thread, nanoseconds of the boot clock.
    pub thread_begin_ns: u64,
    /// Address of the lock. Never leaves the agent.
    pub lock: u64,
    /// Start of the holder's process, nanoseconds of the boot clock.
    pub holder_start_ns: u64,
    /// Creation of the holder's thread, nanoseconds of the boot clock.
    pub holder_begin_ns: u64,
    /// The thread.
    pub tid: u32,
    /// `LCB_F_` flags.
    pub flags: u32,
    /// Process that was seen to hold the lock last; 0 when not known.
    pub holder_pid: u32,
    /// Its thread.
    pub holder_tid: u32,
    /// Addresses in `stack`.
    pub stack_len: u32,
    /// Zero.
    pub unused: u32,
    /// Name of the holder's thread.
    pub holder_comm: [u8; 16],
    /// Where the thread wanted the lock.
    pub stack: [u64; 24],
}
