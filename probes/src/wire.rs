//! Records that the kernel side writes into the ring buffer: the one definition both sides share.
//!
//! `build.rs` turns this file into a C header (`wire.h`), so it holds nothing but constants and `#[repr(C)]` structures
//! of integers and byte arrays without padding; sizes are asserted below. Byte order is the node's own.
//! Does not: decode; that is `sandglass::sources::linux::exec::decode`.

pub mod asleep;
pub mod connect;
pub mod conntrack;
pub mod cri;
pub mod daemons;
pub mod dns;
pub mod extack;
pub mod locks;
pub mod trust;
pub mod waits;

/// A tracked process forked: [`ForkRecord`].
pub const KIND_FORK: u32 = 1;
/// A process executed an image: [`ExecRecord`].
pub const KIND_EXEC: u32 = 2;
/// A process ended: [`ExitRecord`].
pub const KIND_EXIT: u32 = 3;
/// A thread of a tracked process is being woken: [`waits::WakeRecord`].
pub const KIND_WAKE: u32 = 5;
/// A thread of a tracked process begins to run: [`waits::RunRecord`].
pub const KIND_RUN: u32 = 6;
/// A thread of a tracked process, as a look found it: [`asleep::AsleepRecord`].
pub const KIND_ASLEEP: u32 = 20;
/// A connected socket of such a process: [`asleep::SocketRecord`].
pub const KIND_SOCKET: u32 = 21;
/// A message between a tracked process and a daemon: [`daemons::MessageRecord`].
pub const KIND_MESSAGE: u32 = 7;

/// Role of a process: a CNI plugin or a descendant of one. Forks, execs and the exit are reported.
pub const ROLE_TRACKED: u32 = 1;
/// Role of a process: a known runtime's own process (shim, runc, ..). Its exec and exit are reported, and what it forks
/// unless it stays as long as its pod.
pub const ROLE_RUNTIME: u32 = 2;
/// Role of a process: a daemon that has a request of a tracked process. What it forks is tracked.
pub const ROLE_DAEMON: u32 = 3;
/// Role of a process: a runtime's process forked this one, as runc does for a container's first processes. It is the
/// runtime's until it executes something else: that exec is reported, and nothing after it.
pub const ROLE_RUNTIME_FORK: u32 = 4;

/// [`ExecRecord::flags`]: arguments were cut at [`ARGS_MAX`].
pub const FLAG_ARGS_CUT: u32 = 1;
/// [`ExecRecord::flags`]: the kept environment was cut.
pub const FLAG_ENV_CUT: u32 = 2;

/// Slot of the counter map: records that found the ring buffer full.
pub const LOST_RING: u32 = 0;
/// Slot of the counter map: daemons that found the table of daemons full.
pub const LOST_TABLE: u32 = 1;
/// Slot of the counter map: environments of which a part could not be read, of processes that could be plugins.
pub const LOST_ENVIRONMENT: u32 = 2;
/// Slots of the counter map.
pub const LOST_SLOTS: u32 = 3;

/// No process id is larger on 64 bits (include/linux/threads.h, `PID_MAX_LIMIT`).
pub const PIDS_MAX: u32 = 4 << 20;
/// Roles in one entry of the map of roles, which has one byte for each process id.
pub const ROLES_ENTRY: u32 = 4096;
/// Most bytes of the executed file's path.
pub const PATH_MAX: u32 = 1024;
/// Most bytes of arguments.
pub const ARGS_MAX: u32 = 4096;
/// Most bytes of one variable of the environment, its terminator included.
pub const VARIABLE_MAX: u32 = 2048;
/// Length of the kept environment above which no further variable is added.
pub const ENV_FULL: u32 = 8192;
/// Room behind an [`ExecRecord`]: path, arguments, kept environment.
pub const EXEC_ROOM: u32 = PATH_MAX + ARGS_MAX + ENV_FULL + VARIABLE_MAX;
/// Bytes of a process name, its terminator included.
pub const COMM_LEN: usize = 16;

/// Most bytes taken of standard input, and of standard output: one page.
pub const STDIO_MAX: u32 = 4096;
/// [`Calibration::outcome`]: the exit that runs this round has not come yet.
pub const CALIBRATION_PENDING: u32 = 0;
/// [`Calibration::outcome`]: the token was found.
pub const CALIBRATION_FOUND: u32 = 1;
/// [`Calibration::outcome`]: the token is at no candidate of this round.
pub const CALIBRATION_ELSEWHERE: u32 = 2;
/// Candidates tried in one round of the calibration.
pub const CALIBRATION_STEPS: u32 = 256;
/// Size of the kernel's `struct page` where pages of pipes are read: with another one they are not.
pub const STRUCT_PAGE_BYTES: u32 = 64;

/// Head of every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// One of the `KIND_` constants.
    pub kind: u32,
    /// Process id (thread group id) in the initial pid namespace.
    pub pid: u32,
    /// When, nanoseconds of the boot clock.
    pub at_ns: u64,
    /// Start of the process, nanoseconds of the boot clock.
    pub start_ns: u64,
    /// Bytes that waited in the ring buffer when this record was written.
    pub ring_bytes: u64,
}

/// A tracked process forked, or a runtime's; the header names the new process.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkRecord {
    /// Head.
    pub header: RecordHeader,
    /// Start of the parent.
    pub parent_start_ns: u64,
    /// Start of the parent's thread that forked.
    pub parent_thread_start_ns: u64,
    /// Process id of the parent.
    pub parent_pid: u32,
    /// Id of the parent's thread that forked.
    pub parent_tid: u32,
    /// The role of the new process: one of the `ROLE_` constants.
    pub role: u32,
    /// Fills up eight bytes.
    pub reserved: u32,
    /// The goroutine that forked, where the parent is a daemon.
    pub goroutine: GoroutineWords,
}

/// Words of a goroutine's `runtime.g`, by the bytes before them. Which of them are the ids of the goroutine and of the one that created it
/// depends on the program's version of Go. Zero where no goroutine runs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GoroutineWords {
    /// 152 bytes.
    pub at_152: u64,
    /// 160 bytes.
    pub at_160: u64,
    /// 272 bytes.
    pub at_272: u64,
    /// 280 bytes.
    pub at_280: u64,
}

/// A process executed an image. `path_len`, `args_len` and `env_len` bytes follow, in this order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecRecord {
    /// Head.
    pub header: RecordHeader,
    /// Start of the parent.
    pub parent_start_ns: u64,
    /// Id of the cgroup (v2): the inode number of its directory.
    pub cgroup_id: u64,
    /// Time on a processor that the scheduler had counted of the thread since its creation, nanoseconds, up to its last tick.
    pub processor_ns: u64,
    /// Time for which it was runnable and waited for a processor since then, nanoseconds; 0 where the kernel does not count it.
    pub run_delay_ns: u64,
    /// Process id of the parent.
    pub parent_pid: u32,
    /// Inode number of the network namespace.
    pub netns: u32,
    /// One of the `ROLE_` constants.
    pub role: u32,
    /// `FLAG_` constants.
    pub flags: u32,
    /// Bytes of the path as passed to `execve`, not terminated.
    pub path_len: u32,
    /// Bytes of the arguments, each terminated by a zero byte (the last one may be cut).
    pub args_len: u32,
    /// Bytes of the kept part of the environment, each variable terminated by a zero byte.
    pub env_len: u32,
    /// Zero.
    pub unused: u32,
    /// Name of the parent.
    pub parent_comm: [u8; COMM_LEN],
}

/// A process ended, with all its threads. What a plugin read and wrote follows, as far as its pipes still held it then: the bytes of
/// standard input, then those of standard output.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitRecord {
    /// Head.
    pub header: RecordHeader,
    /// As for wait(2): the signal in bits 0 to 6, 128 for a core dump, the code in bits 8 to 15.
    pub status: u32,
    /// One of the `ROLE_` constants.
    pub role: u32,
    /// Bytes of standard input.
    pub stdin_len: u32,
    /// Bytes of standard output.
    pub stdout_len: u32,
}

/// Where the kernel's linear mapping shows the page of a `struct page`: at `scale * page + bias`.
///
/// The agent writes a token into a pipe of its own; the kernel side looks for it at the addresses that are possible.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// The token.
    pub token: [u64; 2],
    /// The bias, modulo 2^64; valid when `outcome` is [`CALIBRATION_FOUND`].
    pub bias: u64,
    /// The first candidate of this round, in GiB relative to the first guess; the others lie below.
    pub from_gib: i64,
    /// Bytes of a page for each byte of its `struct page`.
    pub scale: u64,
    /// The agent's process id: the exit of one of its threads begins a round.
    pub pid: u32,
    /// Descriptor of the pipe in that process.
    pub fd: u32,
    /// Set by the kernel side.
    pub outcome: u32,
    /// Always 0.
    pub unused: u32,
}
