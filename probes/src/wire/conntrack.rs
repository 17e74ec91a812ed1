//! The record of a ctnetlink message. Rules: see the parent module.

/// Most bytes taken of a message. What is wanted of it stands at its beginning: headers, both directions (76 bytes each for
/// IPv6), zone, id and status are 196 bytes.
pub const FLOW_MESSAGE_MAX: u32 = 200;

/// A message of ctnetlink, as the kernel sent it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// When, nanoseconds of the boot clock.
    pub at_ns: u64,
    /// Bytes that waited in the ring buffer when this record was written.
    pub ring_bytes: u64,
    /// Bytes of the message that are here.
    pub len: u32,
    /// Zero.
    pub unused: u32,
    /// The message, from its netlink header on.
    pub message: [u8; 200],
}
