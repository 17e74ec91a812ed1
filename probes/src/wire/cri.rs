//! Records of the programs that read the runtime's CRI socket (`bpf/cri.h`): a request to make a sandbox, and the response to it.
//!
//! Part of `wire.h` like `wire.rs`, and under the same rules. Does not: decode; see `sandglass::sources::linux::exec`.

/// The runtime received a request to make a sandbox, or more of its metadata: [`SandboxRequestRecord`].
pub const KIND_SANDBOX_REQUEST: u32 = 25;
/// The runtime responded to it, or its caller withdrew it: [`SandboxResponseRecord`].
pub const KIND_SANDBOX_RESPONSE: u32 = 26;

/// Most bytes of a sandbox's metadata: a name and a namespace have at most 253 and 63 bytes, a uid 36; with a longer one a request is
/// not reported.
pub const METADATA_MAX: u32 = 512;
/// Most CRI sockets of a node.
pub const CRI_SOCKETS_MAX: u32 = 4;
/// Most connections to them of which the position in the stream is known, for each direction; of the one that was used longest ago it is
/// forgotten.
pub const CRI_CONNECTIONS_MAX: u32 = 256;
/// Most requests without a response, and most messages of which more frames come; the one that was used longest ago is forgotten.
pub const CRI_STREAMS_MAX: u32 = 1024;
/// Most frames that are looked at in one read or write. More than that have the position in the stream forgotten.
pub const CRI_FRAMES_MAX: u32 = 512;
/// Length of a frame's head (RFC 9113, section 4.1).
pub const FRAME_HEAD: u32 = 9;
/// Frames that are longer are taken for none: the usual limit is 16,384 bytes (RFC 9113, SETTINGS_MAX_FRAME_SIZE).
pub const FRAME_MAX: u32 = 1 << 20;
/// Most bytes of a sandbox's id.
pub const SANDBOX_ID_MAX: u32 = 64;

/// [`SandboxResponseRecord::outcome`]: a sandbox was made.
pub const RESPONSE_MADE: u32 = 1;
/// [`SandboxResponseRecord::outcome`]: none was made; the reason is compressed, and is not read.
pub const RESPONSE_FAILED: u32 = 2;
/// [`SandboxResponseRecord::outcome`]: the caller withdrew its request, because its deadline had passed for example.
pub const RESPONSE_WITHDRAWN: u32 = 3;

/// The CRI sockets: numbers of the inodes of their files, 0 for none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CriSockets {
    /// The numbers.
    pub inodes: [u64; CRI_SOCKETS_MAX as usize],
}

/// A request to make a sandbox arrived; or, where `offset` is not 0, more of its metadata.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxRequestRecord {
    /// Head: the runtime.
    pub header: super::RecordHeader,
    /// When the runtime received the first bytes of the message, nanoseconds of the boot clock; with `stream` it names the request.
    pub requested_ns: u64,
    /// Number of the stream in its connection (RFC 9113, section 5.1.1).
    pub stream: u32,
    /// Bytes of the metadata in all.
    pub metadata_len: u32,
    /// Where the bytes of this record lie in the metadata.
    pub offset: u32,
    /// How many these are.
    pub len: u32,
    /// `PodSandboxMetadata` of the CRI, encoded, as far as it was received.
    pub metadata: [u8; METADATA_MAX as usize],
}

/// A request to make a sandbox has its response.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxResponseRecord {
    /// Head: the runtime.
    pub header: super::RecordHeader,
    /// As in the request's record.
    pub requested_ns: u64,
    /// As in the request's record.
    pub stream: u32,
    /// One of the `RESPONSE_` constants.
    pub outcome: u32,
    /// Bytes of the sandbox's id; 0 where it is not known.
    pub id_len: u32,
    /// Zero.
    pub unused: u32,
    /// The sandbox's id.
    pub id: [u8; SANDBOX_ID_MAX as usize],
}
