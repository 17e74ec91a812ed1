//! Records of a look at the threads of tracked processes (`bpf/asleep.h`): what each one does now, and what its process is
//! connected with.
//!
//! Part of `wire.h` like `wire.rs`, and under the same rules. They are read from the iterator's file, not from the ring buffer.
//! Does not: decode; see `sandglass::sources::linux::exec::looks`.

use super::waits::ThreadTimes;

/// The thread has a processor.
pub const LOOK_RUNS: u32 = 1;
/// The thread is runnable and has no processor.
pub const LOOK_RUNNABLE: u32 = 2;

/// Descriptors of one process that a look reads: those below this number, without the standard ones.
pub const LOOK_DESCRIPTORS_MAX: u32 = 64;
/// Bytes of the path of a unix socket (include/uapi/linux/un.h, UNIX_PATH_MAX).
pub const SOCKET_PATH_MAX: u32 = 108;

/// A thread that sleeps, runs or waits for a processor. The header's time is that of the look.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsleepRecord {
    /// Head.
    pub header: super::RecordHeader,
    /// The thread.
    pub times: ThreadTimes,
    /// Since when it sleeps, or is runnable, nanoseconds of the boot clock; 0 where that is not known.
    pub since_ns: u64,
    /// `LOOK_` flags; none of it sleeps.
    pub flags: u32,
    /// Addresses in `stack`.
    pub stack_len: u32,
    /// Where it sleeps.
    pub stack: [u64; 24],
}

/// A connected socket of a process. The header's time is that of the look.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketRecord {
    /// Head.
    pub header: super::RecordHeader,
    /// The process that listens behind a unix socket, in the initial pid namespace; 0 for other families.
    pub peer_pid: u32,
    /// Address family (`AF_UNIX`, `AF_INET`, `AF_INET6`).
    pub family: u16,
    /// Port of the other end, in the node's byte order.
    pub port: u16,
    /// Address of the other end: four or sixteen bytes.
    pub remote: [u8; 16],
    /// IP protocol (`IPPROTO_TCP`, `IPPROTO_UDP`); 0 for unix sockets.
    pub protocol: u16,
    /// Bytes of `path`.
    pub path_len: u16,
    /// Path of the unix socket that it is connected with, not terminated; an abstract name begins with a zero byte.
    pub path: [u8; 108],
}
