//! Traffic, as sources report it: DNS messages, steps of TCP connects, conntrack entries and counters, dropped packets.
//!
//! Each is a fact of one instant; lookups, journeys and causes are the correlator's. All are from the client's side: a
//! query as it leaves the socket that sends it, an answer as it reaches that socket, addresses as the socket sees them
//! (a service address, not the backend behind it).

mod dns;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::id::ProcessKey;

pub use self::dns::{Answer, DnsMessage, DnsUnreported, Question, STREAM_WAIT_MAX_NS, Transport, Unreported};

/// The process that sent a query or opened a connection, where the kernel still knew it.
///
/// Recordings name the field `asker`; that is part of their format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Initiator {
    /// The process.
    pub process: ProcessKey,
    /// Its `comm`, 15 bytes at most.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub comm: SmolStr,
}

/// A step of a TCP connection's establishment, from the side that connects (RFC 9293 3.5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectStep {
    /// Inode of the socket's network namespace; 0 when not known.
    pub netns: u64,
    /// Cookie of the socket.
    pub socket: u64,
    /// The connecting end.
    pub local: SocketAddr,
    /// The other end as the client sees it.
    pub remote: SocketAddr,
    /// The process that connects; only of the first step.
    #[serde(default, rename = "asker", skip_serializing_if = "Option::is_none")]
    pub initiator: Option<Initiator>,
    /// Which step.
    pub step: Step,
    /// How many SYNs were sent again so far.
    #[serde(default)]
    pub retransmits: u32,
}

/// Steps of a connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The first SYN is on its way.
    Started,
    /// The handshake is complete.
    Established,
    /// It failed.
    Failed(ConnectFailure),
}

/// Why a connect failed, by the socket's error (connect(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectFailure {
    /// The other end answered with a reset (ECONNREFUSED; RFC 9293 3.10.7.3).
    Refused,
    /// No answer until the kernel gave up (ETIMEDOUT), by default after six retransmissions, about 127 s
    /// (`tcp_syn_retries`).
    TimedOut,
    /// There is no route, or a router reported that (EHOSTUNREACH, ENETUNREACH).
    Unreachable,
    /// Reset during the establishment (ECONNRESET).
    Reset,
    /// The program closed the socket before an answer came.
    Abandoned,
    /// Another error of the socket.
    Other,
}

impl ConnectFailure {
    /// Name in metrics and attributes.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ConnectFailure::Refused => "refused",
            ConnectFailure::TimedOut => "timeout",
            ConnectFailure::Unreachable => "unreachable",
            ConnectFailure::Reset => "reset",
            ConnectFailure::Abandoned => "abandoned",
            ConnectFailure::Other => "other",
        }
    }
}

/// A conntrack entry was created or removed (ctnetlink; `enum ctattr_type`,
/// include/uapi/linux/netfilter/nfnetlink_conntrack.h).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Inode of the network namespace whose table it is in.
    pub netns: u64,
    /// The kernel's id of the entry (`CTA_ID`).
    pub id: u32,
    /// What happened to it.
    pub change: FlowChange,
    /// IP protocol: 6 is TCP, 17 is UDP.
    pub protocol: u8,
    /// Source of the first packet.
    pub source: SocketAddr,
    /// Destination of the first packet, before translation.
    pub destination: SocketAddr,
    /// Source of replies; differs from `destination` if that was translated (DNAT).
    pub reply_source: SocketAddr,
    /// Destination of replies; differs from `source` if that was translated (SNAT).
    pub reply_destination: SocketAddr,
    /// A reply was seen (`IPS_SEEN_REPLY`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replied: bool,
}

impl Flow {
    /// The destination was translated.
    #[must_use]
    pub fn is_dnat(&self) -> bool {
        self.reply_source != self.destination
    }

    /// The source was translated.
    #[must_use]
    pub fn is_snat(&self) -> bool {
        self.reply_destination != self.source
    }
}

/// What happened to a conntrack entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowChange {
    /// Confirmed: its first packet has passed the last hook.
    New,
    /// Removed.
    Destroyed,
}

/// Counters of one network namespace's conntrack table: how much each grew since the last event, and its fill.
/// Names: `struct ip_conntrack_stat`, include/linux/netfilter/nf_conntrack_common.h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConntrackCounts {
    /// Inode of the network namespace.
    pub netns: u64,
    /// Entries in the table at the reading.
    pub entries: u64,
    /// Bound on entries (`nf_conntrack_max`); 0 when not known.
    pub limit: u64,
    /// Entries that lost against another for the same tuple: their packet was dropped.
    #[serde(default)]
    pub insert_failed: u64,
    /// Packets dropped because no entry could be made, mostly because the table was full.
    #[serde(default)]
    pub drop: u64,
    /// Entries removed before their timeout to make room (`early_drop`, net/netfilter/nf_conntrack_core.c).
    #[serde(default)]
    pub early_drop: u64,
    /// Races for one tuple that the kernel resolved without dropping the packet.
    #[serde(default)]
    pub clash_resolve: u64,
    /// Look-ups begun again because the table was resized, or an entry moved, meanwhile.
    #[serde(default)]
    pub search_restart: u64,
}

/// The kernel dropped a DNS packet or a TCP SYN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketDrop {
    /// Inode of the network namespace it was dropped in; 0 when not known.
    pub netns: u64,
    /// Which kind of packet.
    pub packet: DroppedPacket,
    /// Sender, as the packet had it when it was dropped: perhaps translated already.
    pub source: SocketAddr,
    /// Receiver, likewise.
    pub destination: SocketAddr,
    /// Message id of a DNS packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_id: Option<u16>,
    /// The kernel's reason without its prefix, e.g. `NETFILTER_DROP` (`enum skb_drop_reason`,
    /// include/net/dropreason-core.h, as in Linux 6.12); `NOT_SPECIFIED` where the kernel states none.
    pub reason: String,
    /// Kernel function that dropped it; empty when not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub function: String,
}

/// Which kind of packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DroppedPacket {
    /// A DNS query or answer over UDP.
    Dns,
    /// The first packet of a TCP connection (SYN), or the answer to it (SYN-ACK).
    TcpSyn,
}

impl DroppedPacket {
    /// Name in metrics and attributes.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            DroppedPacket::Dns => "dns",
            DroppedPacket::TcpSyn => "tcp_syn",
        }
    }
}
