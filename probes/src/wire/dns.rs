//! Records of the DNS probe (`bpf/dns.bpf.c`) and of the drop probe (`bpf/drop.bpf.c`).
//!
//! Part of `wire.h` like `wire.rs`, and under the same rules. Addresses are as in packets; an IPv4 address takes the
//! first four bytes. Ports are in the node's byte order. Does not: decode; see `sandglass::sources::linux`.

/// Most ports that can be watched for DNS.
pub const DNS_PORTS_MAX: usize = 8;
/// Bytes taken of what follows a [`DnsRecord`], by size of what there is: most queries,
pub const DNS_ROOM_SMALL: u32 = 128;
/// most answers,
pub const DNS_ROOM_MIDDLE: u32 = 512;
/// and all others. Of a longer datagram this much is taken; a longer TCP segment takes several records.
pub const DNS_ROOM_LARGE: u32 = 2048;
/// Most records for one TCP segment: 65,536 bytes, more than one IPv4 packet holds, merged ones (GSO, GRO) included.
pub const DNS_PIECES_MAX: u32 = 32;

/// [`DnsRecord::direction`]: it leaves the client.
pub const DNS_OUT: u8 = 0;
/// [`DnsRecord::direction`]: it reaches the client.
pub const DNS_IN: u8 = 1;

/// [`DnsRecord::tcp_flags`]: the sender's last byte (RFC 9293 3.1).
pub const TCP_FIN: u8 = 1;
/// [`DnsRecord::tcp_flags`]: the beginning of a stream.
pub const TCP_SYN: u8 = 2;
/// [`DnsRecord::tcp_flags`]: the connection is gone.
pub const TCP_RST: u8 = 4;

/// [`DnsRecord::tcp_fresh`]: the client has received no byte of data before this segment.
pub const DNS_NOTHING_RECEIVED: u8 = 1;
/// [`DnsRecord::tcp_fresh`]: the server has acknowledged no byte of data before this segment.
pub const DNS_NOTHING_ACKNOWLEDGED: u8 = 2;

/// IP version 4.
pub const FAMILY_V4: u8 = 4;
/// IP version 6.
pub const FAMILY_V6: u8 = 6;
/// IP protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// A datagram, or a piece of a TCP segment, of a socket that talks to a watched port. `captured` bytes follow. A segment
/// without payload has a record only when it ends its stream (FIN, RST).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DnsRecord {
    /// When, nanoseconds of the boot clock.
    pub at_ns: u64,
    /// Start of the process that sent it, nanoseconds of the boot clock; 0 when not known.
    pub start_ns: u64,
    /// Cookie of the socket.
    pub socket: u64,
    /// Bytes that waited in the ring buffer when this record was written.
    pub ring_bytes: u64,
    /// The process that sent it; 0 when not known.
    pub pid: u32,
    /// Inode number of the socket's network namespace; 0 when not known.
    pub netns: u32,
    /// Length of the datagram or of this piece of a segment. The last piece that a segment may have stands for all the
    /// rest of it.
    pub wire_len: u32,
    /// Bytes of them that follow.
    pub captured: u32,
    /// Sequence number of the first byte; TCP only.
    pub tcp_seq: u32,
    /// Port of the client.
    pub local_port: u16,
    /// Port of the server.
    pub remote_port: u16,
    /// One of the `FAMILY_` constants.
    pub family: u8,
    /// One of the `PROTOCOL_` constants.
    pub protocol: u8,
    /// One of the `DNS_` directions.
    pub direction: u8,
    /// Flags of the TCP header; 0 for a datagram.
    pub tcp_flags: u8,
    /// `DNS_NOTHING_` flags: what the connection has not carried yet; TCP only.
    pub tcp_fresh: u8,
    /// Zero.
    pub unused: [u8; 3],
    /// Address of the client.
    pub local: [u8; 16],
    /// Address of the server.
    pub remote: [u8; 16],
    /// Name of the process that sent it.
    pub comm: [u8; 16],
    /// The client has received the server's stream up to this sequence number (`rcv_nxt`), this segment not counted; TCP only.
    pub tcp_received: u32,
    /// The server has acknowledged the client's stream up to this sequence number (`snd_una`), likewise.
    pub tcp_acknowledged: u32,
}

/// [`DropRecord::packet`]: a DNS message over UDP.
pub const DROP_DNS: u8 = 0;
/// [`DropRecord::packet`]: a TCP segment with SYN.
pub const DROP_SYN: u8 = 1;

/// Most drops reported a second, per processor.
pub const DROPS_PER_SECOND: u64 = 2000;
/// Most drops of one owner (network namespace and sender) reported a second.
pub const OWNER_DROPS_PER_SECOND: u64 = 500;
/// Owners whose drops are counted at a time; the least recently used one is replaced.
pub const DROP_OWNERS: u32 = 1024;
/// [`DropRecord::limited`]: further drops may be reported.
pub const LIMITED_NOT: u32 = 0;
/// [`DropRecord::limited`]: further drops of its owner are not reported within this second.
pub const LIMITED_OWNER: u32 = 1;
/// [`DropRecord::limited`]: further drops on this processor are not reported within this second.
pub const LIMITED_ALL: u32 = 2;

/// A DNS datagram or a TCP SYN that the kernel dropped.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropRecord {
    /// When, nanoseconds of the boot clock.
    pub at_ns: u64,
    /// Address in the kernel's code where it was dropped.
    pub location: u64,
    /// Bytes that waited in the ring buffer when this record was written.
    pub ring_bytes: u64,
    /// Inode number of the network namespace; 0 when not known.
    pub netns: u32,
    /// Number of the reason: `enum skb_drop_reason` or a subsystem's own; 0 when the kernel has none.
    pub reason: u32,
    /// Port of the sender.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// Message id of a DNS message.
    pub dns_id: u16,
    /// One of the `FAMILY_` constants.
    pub family: u8,
    /// One of the `DROP_` constants.
    pub packet: u8,
    /// Address of the sender.
    pub source: [u8; 16],
    /// Address of the receiver.
    pub destination: [u8; 16],
    /// One of the `LIMITED_` constants.
    pub limited: u32,
    /// Zero.
    pub unused: u32,
}
