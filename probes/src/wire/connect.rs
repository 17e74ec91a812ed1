//! The record of the connection probe (`bpf/connect.bpf.c`): one step of the set-up of a TCP connection.
//!
//! Part of `wire.h` like `wire.rs`, and under the same rules. Does not: decode; see `sandglass::sources::linux::connect`.

use super::{COMM_LEN, RecordHeader};

/// The first SYN is about to be sent: [`ConnectRecord`] with the process.
pub const KIND_CONNECT_STARTED: u32 = 16;
/// The handshake is complete: [`ConnectRecord`].
pub const KIND_CONNECT_ESTABLISHED: u32 = 17;
/// The set-up failed: [`ConnectRecord`] with the error.
pub const KIND_CONNECT_FAILED: u32 = 18;

/// [`ConnectRecord::flags`]: the program closed the socket.
pub const CONNECT_CLOSED: u32 = 1;
/// [`ConnectRecord::flags`]: `socket` is the socket's address in the kernel, because the program cannot make a cookie.
pub const CONNECT_SOCKET_IS_ADDRESS: u32 = 2;

/// A step of a TCP connection's set-up, at the side that connects.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRecord {
    /// Head; process and start only where the process is known.
    pub header: RecordHeader,
    /// Cookie of the socket (net/core/sock_diag.c, __sock_gen_cookie).
    pub socket: u64,
    /// Inode number of the network namespace.
    pub netns: u32,
    /// `CONNECT_` constants.
    pub flags: u32,
    /// Error of the socket, an errno; 0 when it has none.
    pub error: i32,
    /// Segments sent again so far; during set-up these are SYNs.
    pub retransmits: u32,
    /// `AF_INET` (2) or `AF_INET6` (10).
    pub family: u32,
    /// Port of the connecting end; 0 when not chosen yet.
    pub local_port: u16,
    /// Port of the other end.
    pub remote_port: u16,
    /// Address of the connecting end in network order; the first four bytes are of IPv4.
    pub local: [u8; 16],
    /// Address of the other end, likewise.
    pub remote: [u8; 16],
    /// Name of the process.
    pub comm: [u8; COMM_LEN],
}
