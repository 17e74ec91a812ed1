//! Details of spans of traffic: journeys, lookups and connects, and the cause of one that failed or was slow.
//!
//! Made by the correlator's room of traffic, and by that of Windows for lookups of the DNS client service. Addresses
//! are as the client sees them.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::network::{ConnectFailure, Initiator, Transport};

/// Root of the trace of a lookup or connect that went badly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JourneyDetail {
    /// Why it has a trace of its own.
    pub reason: JourneyReason,
    /// The name or address of its first exchange.
    pub target: String,
    /// Its owner is the node, not a sandbox.
    #[serde(default)]
    pub node: bool,
}

/// Why a lookup or connection has a trace of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JourneyReason {
    /// It failed.
    Failed,
    /// A packet of it was dropped.
    Dropped,
    /// A query or SYN had to be sent again.
    Retried,
    /// It took longer than the configured threshold.
    Slow,
}

impl JourneyReason {
    /// All reasons, the gravest first.
    pub const ALL: [JourneyReason; 4] = [
        JourneyReason::Failed,
        JourneyReason::Dropped,
        JourneyReason::Retried,
        JourneyReason::Slow,
    ];

    /// Name in metrics and attributes.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            JourneyReason::Failed => "failed",
            JourneyReason::Dropped => "dropped",
            JourneyReason::Retried => "retried",
            JourneyReason::Slow => "slow",
        }
    }
}

/// How a lookup ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LookupResult {
    /// With an answer of this response code.
    Rcode(u16),
    /// Without an answer.
    Unanswered,
    /// Not known: bytes of its connection were not seen, and its answer may have been among them.
    Unknown,
    /// It did not: the input ended before an answer came and before the timeout.
    Open,
}

impl LookupResult {
    /// Every name that [`as_str`](LookupResult::as_str) gives.
    pub const NAMES: [&'static str; 10] = [
        "noerror", "nxdomain", "servfail", "refused", "formerr", "notimp", "other", "timeout", "unknown", "open",
    ];

    /// Name in metrics and attributes: a closed set.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            LookupResult::Rcode(0) => "noerror",
            LookupResult::Rcode(1) => "formerr",
            LookupResult::Rcode(2) => "servfail",
            LookupResult::Rcode(3) => "nxdomain",
            LookupResult::Rcode(4) => "notimp",
            LookupResult::Rcode(5) => "refused",
            LookupResult::Rcode(_) => "other",
            LookupResult::Unanswered => "timeout",
            LookupResult::Unknown => "unknown",
            LookupResult::Open => "open",
        }
    }

    /// It is known how it ended.
    #[must_use]
    pub fn is_known(self) -> bool {
        !matches!(self, LookupResult::Unknown | LookupResult::Open)
    }

    /// The network and the server worked: the name exists, or it does not (NXDOMAIN).
    #[must_use]
    pub fn is_answer(self) -> bool {
        matches!(self, LookupResult::Rcode(0 | 3))
    }
}

/// One DNS name that a program resolved, with all its queries, answers and retries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookupDetail {
    /// The name as the program meant it, as far as that shows: without what the search path added.
    pub name: String,
    /// Record types queried, in order of their first query: `A`, `AAAA`, `TYPE65`, ...
    pub types: Vec<String>,
    /// Servers queried, in order of their first query, as the client sees them.
    pub servers: Vec<SocketAddr>,
    /// Transport of the last answer.
    pub transport: Transport,
    /// How it ended; `None` while it runs.
    pub result: Option<LookupResult>,
    /// Queries sent in all.
    pub queries: u32,
    /// How many of them repeated a question.
    pub retransmissions: u32,
    /// Questions that never got an answer.
    pub unanswered: u32,
    /// Names tried before or besides the one that decided (the search path, ndots).
    pub search_names: u32,
    /// An answer was truncated, and the query repeated over TCP.
    #[serde(default)]
    pub truncated: bool,
    /// Addresses found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The server behind the service address, where conntrack translated it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<SocketAddr>,
    /// The process that resolves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiator: Option<Initiator>,
    /// Why it failed or was slow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
}

/// The establishment of one TCP connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectDetail {
    /// The connecting end.
    pub local: SocketAddr,
    /// The other end as the client sees it.
    pub remote: SocketAddr,
    /// The end behind a service address, where conntrack translated it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<SocketAddr>,
    /// The name whose lookup resolved the address; empty when none is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// SYNs sent again.
    pub retransmits: u32,
    /// Why it failed; `None` while it is open, and when it was established.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<ConnectFailure>,
    /// The process that connects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiator: Option<Initiator>,
    /// Why it went badly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
}

/// Why a lookup or connect failed or was slow, with evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The cause: one of [`crate::registry::CAUSES`], of a sandbox's creation one of
    /// [`CREATION_CAUSES`](crate::registry::CREATION_CAUSES).
    pub cause: String,
    /// How sure it is.
    pub confidence: Confidence,
    /// Observed facts that support it, one sentence each.
    pub evidence: Vec<String>,
}

/// How sure a cause is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Some of the evidence, and nothing against it.
    Possible,
    /// Most of the evidence.
    Likely,
    /// All of the evidence: the kernel reported it.
    Certain,
}

impl Confidence {
    /// Name in attributes.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Confidence::Possible => "possible",
            Confidence::Likely => "likely",
            Confidence::Certain => "certain",
        }
    }
}
