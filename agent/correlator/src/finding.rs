//! Findings: what the correlator reports of traffic, and of HNS and HCS, for metrics, whether or not a span is made of
//! it.
//!
//! Used by the sinks: metrics count every finding, while traces show only the first exchanges of sandboxes, and
//! journeys. Labels that metrics make of them are closed enums. Imports no room.

use std::sync::Arc;

use sandglass_model::network::{ConntrackCounts, DroppedPacket, FlowChange, Transport, Unreported};
use sandglass_model::trace::{ConnectDetail, LookupDetail};
use sandglass_model::windows::Service;
use sandglass_model::{Timestamp, TraceId};

/// The kind of owner that a finding is attributed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// A sandbox.
    Sandbox,
    /// The node itself, or a network namespace without a known sandbox.
    Node,
}

impl Scope {
    /// Both.
    pub const ALL: [Scope; 2] = [Scope::Sandbox, Scope::Node];

    /// Name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Sandbox => "sandbox",
            Scope::Node => "node",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A lookup ended.
    Lookup(Box<LookupEnded>),
    /// A connect ended.
    Connect(Box<ConnectEnded>),
    /// A conntrack entry came or went.
    Flow {
        /// The owner.
        scope: Scope,
        /// It came or it went.
        change: FlowChange,
        /// Which addresses were translated.
        nat: Option<Nat>,
    },
    /// Conntrack's counters grew, or its table's fill changed.
    Conntrack {
        /// The owner of the table.
        scope: Scope,
        /// By how much they grew.
        counts: ConntrackCounts,
    },
    /// The kernel dropped a DNS packet or a SYN.
    Dropped {
        /// The owner.
        scope: Scope,
        /// DNS or SYN.
        packet: DroppedPacket,
        /// The kernel's reason.
        reason: Arc<str>,
    },
    /// DNS traffic was not reported as messages.
    DnsUnreported {
        /// The owner.
        scope: Scope,
        /// Why.
        reason: Unreported,
        /// How many messages, questions or bytes.
        count: u64,
    },
    /// A lookup or connect went badly and became no journey because of the rate limit.
    JourneyHeldBack,
    /// An activity of HNS, HCS or a silo ended, whether or not its sandbox is known (Windows).
    Activity(Box<ActivityEnded>),
    /// The Host Network Service was restarted (Windows).
    HnsRestarted,
    /// HNS endpoints that were created and not deleted since the agent started, and sandboxes (Windows).
    Endpoints {
        /// Endpoints.
        endpoints: u64,
        /// Sandboxes.
        sandboxes: u64,
    },
}

/// An activity that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivityEnded {
    /// The service that logged it.
    pub service: Service,
    /// As its provider names it.
    pub name: Arc<str>,
    /// Begin.
    pub start: Timestamp,
    /// End.
    pub end: Timestamp,
    /// It failed.
    pub failed: bool,
}

/// The addresses of a flow that conntrack translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Nat {
    /// The destination.
    Dnat,
    /// The source.
    Snat,
    /// Both.
    Both,
}

impl Nat {
    /// All three.
    pub const ALL: [Nat; 3] = [Nat::Dnat, Nat::Snat, Nat::Both];

    /// Name in metrics and attributes.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Nat::Dnat => "dnat",
            Nat::Snat => "snat",
            Nat::Both => "both",
        }
    }
}

/// A lookup that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupEnded {
    /// The owner.
    pub scope: Scope,
    /// The owner as a number: equal for all lookups of one sandbox. For tables that owners share.
    pub owner: u64,
    /// The first query.
    pub start: Timestamp,
    /// The last answer that mattered, or the timeout.
    pub end: Timestamp,
    /// As its span shows it.
    pub detail: LookupDetail,
    /// How many queries of which type over which transport.
    pub queries: Vec<(QueryType, Transport, u32)>,
    /// The trace that shows it: its sandbox's, or its journey.
    pub trace: Option<TraceId>,
    /// That trace is a journey.
    pub journey: bool,
}

impl LookupEnded {
    /// One to be filled.
    pub(crate) fn blank() -> LookupEnded {
        LookupEnded {
            scope: Scope::Node,
            owner: 0,
            start: Timestamp(0),
            end: Timestamp(0),
            detail: no_lookup(),
            queries: Vec::new(),
            trace: None,
            journey: false,
        }
    }
}

/// The detail of a lookup, to be filled.
pub(crate) fn no_lookup() -> LookupDetail {
    LookupDetail {
        name: String::new(),
        types: Vec::new(),
        servers: Vec::new(),
        transport: Transport::Udp,
        result: None,
        queries: 0,
        retransmissions: 0,
        unanswered: 0,
        search_names: 0,
        truncated: false,
        addresses: Vec::new(),
        backend: None,
        initiator: None,
        cause: None,
    }
}

/// A connect that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectEnded {
    /// The owner.
    pub scope: Scope,
    /// The first SYN.
    pub start: Timestamp,
    /// The end of the handshake, or of the attempt.
    pub end: Timestamp,
    /// As its span shows it.
    pub detail: ConnectDetail,
    /// The trace that shows it: its sandbox's, or its journey.
    pub trace: Option<TraceId>,
    /// That trace is a journey.
    pub journey: bool,
}

/// DNS record types as metrics distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueryType {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Anything else.
    Other,
}

impl QueryType {
    /// All three.
    pub const ALL: [QueryType; 3] = [QueryType::A, QueryType::Aaaa, QueryType::Other];

    /// The type of a record type's number (RFC 1035 3.2.2, RFC 3596 2.1).
    #[must_use]
    pub fn of(kind: u16) -> QueryType {
        match kind {
            1 => QueryType::A,
            28 => QueryType::Aaaa,
            _ => QueryType::Other,
        }
    }

    /// Name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            QueryType::A => "A",
            QueryType::Aaaa => "AAAA",
            QueryType::Other => "other",
        }
    }
}
