//! Records of the programs that follow requests to daemons (`bpf/daemons.h`): a message between a tracked process and a process
//! that is not tracked, over a unix socket or a TCP connection within the node.
//!
//! Part of `wire.h` like `wire.rs`, and under the same rules. Does not: decode; see `sandglass::sources::linux::exec`.

/// Messages of one connection that follow one another in the same direction at the same end, and in a daemon in Go by the same goroutine,
/// within so many nanoseconds have one record.
pub const MESSAGE_GAP_NS: u64 = 200_000;
/// Most connections of which the last message is remembered; the one that was used longest ago is forgotten.
pub const CONNECTIONS_MAX: u32 = 1024;
/// Words of the table of clients' ports: a bit for each port.
pub const PORT_WORDS: u32 = 2048;
/// Most daemons that are followed at one time.
pub const DAEMONS_MAX: u32 = 256;
/// Most threads of one daemon whose waits are followed at one time.
pub const DAEMON_THREADS_MAX: u32 = 512;
/// Most plugins that are known to be shims, by name.
pub const SHIMS_MAX: u32 = 128;

/// The message was sent; otherwise it was received.
pub const MESSAGE_SENT: u32 = 1;
/// The daemon's end of the connection; otherwise the tracked process' end.
pub const MESSAGE_AT_DAEMON: u32 = 2;
/// A TCP connection; otherwise a unix socket.
pub const MESSAGE_TCP: u32 = 4;
/// It has at most [`CONTROL_MAX`] bytes.
pub const MESSAGE_CONTROL: u32 = 8;
/// The waits of the daemon's threads are recorded.
pub const MESSAGE_FOLLOWED: u32 = 16;
/// Nothing was there to receive: the goroutine waits for the next message. It has no bytes.
pub const MESSAGE_AWAITED: u32 = 32;
/// A message up to this length is neither a request nor an answer by itself: HTTP/2's acknowledgements (RFC 9113: SETTINGS 9 bytes,
/// PING 17, WINDOW_UPDATE 13, together 39).
pub const CONTROL_MAX: u32 = 39;

/// Bytes were sent or received, or are awaited.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRecord {
    /// Head: the process that sent or received, and when that was done.
    pub header: super::RecordHeader,
    /// The connection: the address of the tracked process' socket, or inode of the network namespace and both ports.
    pub connection: u64,
    /// Id of the process' cgroup (v2).
    pub cgroup_id: u64,
    /// Creation of the thread that sent or received, nanoseconds of the boot clock.
    pub thread_begin_ns: u64,
    /// The process that connected, in the initial pid namespace.
    pub client_pid: u32,
    /// At the tracked process' end of a unix socket, the process that listens (SO_PEERCRED); else 0.
    pub listener_pid: u32,
    /// The thread that sent or received.
    pub tid: u32,
    /// Bytes.
    pub bytes: u32,
    /// `MESSAGE_` flags.
    pub flags: u32,
    /// Zero.
    pub unused: u32,
    /// Name of the process: that of its first thread.
    pub comm: [u8; 16],
    /// The goroutine that sent or received, at the end of a daemon whose threads are followed.
    pub goroutine: super::GoroutineWords,
}
