//! The record of the conntrack filter (`bpf/conntrack.bpf.c`): one ctnetlink message.
//!
//! Part of `wire.h` like `wire.rs`, and under the same rules. Does not: decode; see `sandglass::sources::linux::conntrack`.

/// Most bytes taken of a message. All that is decoded stands at its begin: headers, both directions (76 bytes each for IPv6),
/// zone, id and status are 196 bytes (net/netfilter/nf_conntrack_netlink.c, ctnetlink_conntrack_event, Linux 6.12).
pub const FLOW_MESSAGE_MAX: u32 = 200;

/// A message of ctnetlink, as the kernel sent it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// When, nanoseconds of the boot clock.
    pub at_ns: u64,
    /// Bytes that waited in the ring buffer when this record was written.
    pub ring_bytes: u64,
    /// Bytes of `message` that are used.
    pub len: u32,
    /// Zero.
    pub unused: u32,
    /// The message, from its netlink header on.
    pub message: [u8; 200],
}
