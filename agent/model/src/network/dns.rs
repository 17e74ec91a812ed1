//! DNS messages, and what of DNS was seen and not reported.
//!
//! Part of [`super`], which re-exports it. One event is one message, and every message that was seen is in one event:
//! reported as
//! [`DnsMessage`], or counted in a [`DnsUnreported`]. Does not: join queries and answers.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::Initiator;
use crate::time::SECOND;

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
    /// How many messages, questions ([`Unreported::Questions`]) or bytes ([`Unreported::Unseen`]). No bytes at all: some are
    /// missing in front of others that were seen, and TCP may send them again. Either they come, or another event with their
    /// number follows, within [`STREAM_WAIT_MAX_NS`].
    pub count: u64,
}

/// A source waits no longer than this for missing bytes of a TCP stream, nanoseconds.
pub const STREAM_WAIT_MAX_NS: u64 = 7 * SECOND;

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
