//! Records of the wait programs (`bpf/waits.h`): a thread of a tracked process slept and was woken, or waited for a processor.
//!
//! Part of `wire.h` like `wire.rs`, and under the same rules. Does not: decode; see `sandglass::sources::linux::exec`.

/// Shortest wait that has a record, nanoseconds.
pub const WAIT_MIN_NS: u64 = 200_000;
/// Most threads whose waits are followed at one time.
pub const SLEEPS_MAX: u32 = 4096;
/// Most functions of a kernel stack that a record has, the innermost first.
pub const STACK_MAX: u32 = 24;

/// Most addresses that are named at a time (`bpf/symbols.bpf.c`): those of a stack, and some more. The kernel's buffer for what an
/// iterator writes has 32 KiB (kernel/bpf/bpf_iter.c, bpf_seq_read), and a name 512 bytes at most (include/linux/kallsyms.h,
/// KSYM_NAME_LEN).
pub const SYMBOLS_MAX: u32 = 32;

/// The thread was runnable when it left the processor.
pub const WAIT_PREEMPTED: u32 = 1;
/// The scheduler took the processor away because the thread's group had used up its quota.
pub const WAIT_THROTTLED: u32 = 2;
/// The sleep could not be interrupted by a signal (`TASK_UNINTERRUPTIBLE`).
pub const WAIT_UNINTERRUPTIBLE: u32 = 4;
/// The sleep began before the programs were attached: its begin is the time when the thread ran last, as far as that is known, and at
/// the latest their attachment.
pub const WAIT_RECOVERED: u32 = 8;
/// The record of a run is of a thread's end instead, of length 0: of a process's first thread, or of its last one.
pub const WAIT_ENDED: u32 = 16;

/// What the scheduler has counted of a thread since it was created.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadTimes {
    /// Time on a processor, nanoseconds.
    pub processor_ns: u64,
    /// Time for which it was runnable and waited for one, nanoseconds; 0 where the kernel does not count it.
    pub run_delay_ns: u64,
    /// When the thread was created, nanoseconds of the boot clock.
    pub begin_ns: u64,
    /// The thread's id in the initial pid namespace.
    pub tid: u32,
    /// Zero.
    pub unused: u32,
}

/// A thread that slept is being woken.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeRecord {
    /// Head; its time is that of the wake-up.
    pub header: super::RecordHeader,
    /// The thread.
    pub times: ThreadTimes,
    /// When it left the processor, nanoseconds of the boot clock.
    pub out_ns: u64,
    /// Start of the waker's process, nanoseconds of the boot clock.
    pub waker_start_ns: u64,
    /// Creation of the waker's thread, nanoseconds of the boot clock.
    pub waker_begin_ns: u64,
    /// Id of the waker's cgroup (v2).
    pub waker_cgroup_id: u64,
    /// Process that ran on the processor that woke it: in an interrupt, any process.
    pub waker_pid: u32,
    /// Its thread.
    pub waker_tid: u32,
    /// `WAIT_` flags.
    pub flags: u32,
    /// Addresses in `stack`.
    pub stack_len: u32,
    /// Addresses in `waker_stack`.
    pub waker_stack_len: u32,
    /// Zero.
    pub unused: u32,
    /// Name of the waker's thread.
    pub waker_comm: [u8; 16],
    /// The goroutine in whose system call the thread slept, where the process is a daemon.
    pub goroutine: super::GoroutineWords,
    /// Where the thread sleeps.
    pub stack: [u64; 24],
    /// What woke it; tells whether that was an interrupt.
    pub waker_stack: [u64; 24],
}

/// A thread that was runnable begins to run.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunRecord {
    /// Head; its time is that of the begin.
    pub header: super::RecordHeader,
    /// The thread.
    pub times: ThreadTimes,
    /// Since when it was runnable, nanoseconds of the boot clock.
    pub runnable_ns: u64,
    /// For how long of that its group was throttled, nanoseconds; counted before Linux 6.18.
    pub throttled_ns: u64,
    /// `WAIT_` flags.
    pub flags: u32,
    /// Zero.
    pub unused: u32,
}
