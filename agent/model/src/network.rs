//! Traffic, as sources report it: DNS messages, steps of TCP connects, conntrack entries and counters, dropped packets.
//!
//! Each is a fact of one instant; lookups, journeys and causes are the correlator's. All are from the client's side: a
//! query as it leaves the socket that sends it, an answer as it reaches that socket, addresses as the socket sees them
//! (a service address, not the backend behind it).

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::id::ProcessKey;

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

/// Transport of a DNS message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Datagrams.
    Udp,
    /// A stream of messages, each with a length of two bytes before it (RFC 7766, section 8; RFC 1035 4.2.2).
    Tcp,
}

impl Transport {
    /// Name in metrics and attributes.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
        }
    }
}

/// A query as it left the client's socket, or an answer as it reached it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsMessage {
    /// Inode of the network namespace of the client's socket; 0 when not known.
    pub netns: u64,
    /// Cookie of the client's socket, unique until reboot; 0 when not known.
    pub socket: u64,
    /// How it travelled.
    pub transport: Transport,
    /// The client's end.
    pub client: SocketAddr,
    /// The server's end as the client sees it.
    pub server: SocketAddr,
    /// The process that sent it; only of queries.
    #[serde(default, rename = "asker", skip_serializing_if = "Option::is_none")]
    pub initiator: Option<Initiator>,
    /// Message id (RFC 1035 4.1.1).
    pub id: u16,
    /// Its position among the messages that one TCP segment made readable; 0 for the first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nth: u32,
    /// The questions; in an answer those that it repeats. Bounded to 8.
    pub questions: Vec<Question>,
    /// The answer's content; `None` for a query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

/// DNS traffic of a socket that is not reported as a [`DnsMessage`], and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsUnreported {
    /// Inode of the network namespace of the client's socket; 0 when not known.
    pub netns: u64,
    /// Cookie of the client's socket; 0 when not known.
    pub socket: u64,
    /// How it travelled.
    pub transport: Transport,
    /// The client's end.
    pub client: SocketAddr,
    /// The server's end as the client sees it.
    pub server: SocketAddr,
    /// It came from the server.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inbound: bool,
    /// Why.
    pub reason: Unreported,
    /// How many messages, questions ([`Unreported::Questions`]) or bytes ([`Unreported::Unseen`]).
    pub count: u64,
}

/// Why DNS traffic is not reported as messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unreported {
    /// The opcode is not QUERY: IQUERY, STATUS, NOTIFY, UPDATE, DSO (RFC 8490).
    Opcode,
    /// A query without a question, and its answer: a request for a cookie (RFC 7873 5.4).
    NoQuestion,
    /// A query from a server, or an answer from a client.
    Direction,
    /// Header or question cannot be read.
    Malformed,
    /// The records cannot be read to their end. The message itself is reported.
    Records,
    /// Questions beyond the eighth. The message itself is reported.
    Questions,
    /// The connection closed before all of the message had come.
    Cut,
    /// Bytes of a TCP stream that no message was read from, because they, or bytes before them, were not seen. Answers to
    /// queries that were sent on the connection up to then may have been among them.
    Unseen,
}

impl Unreported {
    /// All of them.
    pub const ALL: [Unreported; 8] = [
        Unreported::Opcode,
        Unreported::NoQuestion,
        Unreported::Direction,
        Unreported::Malformed,
        Unreported::Records,
        Unreported::Questions,
        Unreported::Cut,
        Unreported::Unseen,
    ];

    /// Name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Unreported::Opcode => "opcode",
            Unreported::NoQuestion => "no_question",
            Unreported::Direction => "direction",
            Unreported::Malformed => "malformed",
            Unreported::Records => "records",
            Unreported::Questions => "questions",
            Unreported::Cut => "cut",
            Unreported::Unseen => "unseen",
        }
    }
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// One question.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Question {
    /// The name in lower case without the last dot; what is no printable ASCII is escaped as `\DDD` (RFC 1035 5.1).
    pub name: SmolStr,
    /// Type: 1 is A, 28 is AAAA.
    pub kind: u16,
}

/// The content of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Response code (RFC 1035 4.1.1), with the upper eight bits of EDNS where the answer has an OPT record (RFC 6891
    /// 6.1.3).
    pub rcode: u16,
    /// The TC bit: the message was truncated, and the client has to query again over TCP (RFC 1035 4.1.1).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// How many records its answer section has.
    pub records: u16,
    /// Addresses in it; bounded to 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
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
