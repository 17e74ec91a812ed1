//! Records of the kernel's messages about netlink requests (`bpf/extack.h`).
//!
//! Part of `wire.h` like `wire.rs`, and under the same rules. Does not: decode; see `sandglass::sources::linux::exec`.

/// The kernel's message about a netlink request: [`ExtackRecord`].
pub const KIND_EXTACK: u32 = 22;

/// Most bytes of the kernel's message, its terminator included. A message that the kernel formats has 80 at most
/// (include/linux/netlink.h, NETLINK_MAX_FMTMSG_LEN).
pub const EXTACK_MAX: u32 = 128;

/// The kernel's message about a netlink request.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtackRecord {
    /// Head; names the process that sent the request.
    pub header: super::RecordHeader,
    /// The message, terminated by a zero byte.
    pub message: [u8; 128],
}
