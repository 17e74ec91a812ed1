//! What the correlator tells of traffic besides traces: every lookup, connection, flow, drop and count, good or bad.
//!
//! Metrics and the node view are made of these; traces are made of the bad ones only. Below: `lookups.rs` and `connects.rs`
//! join messages, `conntrack.rs` joins entries, counters and drops, `causes.rs` names causes, `journeys.rs` makes traces.

pub(crate) mod attempts;
pub(crate) mod causes;
pub(crate) mod connect;
pub(crate) mod connects;
pub(crate) mod conntrack;
pub(crate) mod journeys;
pub(crate) mod lookup;
pub(crate) mod lookups;
pub(crate) mod notes;
pub(crate) mod owners;
pub(crate) mod table;
pub(crate) mod watch;

use std::sync::Arc;

use sandglass_model::network::{ConntrackCounts, DroppedPacket, FlowChange, Transport};
use sandglass_model::time::{MILLISECOND, SECOND};
use sandglass_model::trace::{ConnectDetail, LookupDetail};
use sandglass_model::windows::Service;
use sandglass_model::{Timestamp, TraceId};

/// Deadlines, thresholds and bounds of what is made of traffic. All times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficConfig {
    /// A sandbox that has sent nothing for so long after it was ready counts as silent: its trace ends where it was
    /// ready.
    pub ready_deadline_ns: u64,
    /// After the first answered lookup, wait this long for the first connection to begin, and the other way round.
    pub ready_grace_ns: u64,
    /// A question without an answer is given up this long after it was first asked; asked again later it is another
    /// lookup's.
    pub lookup_deadline_ns: u64,
    /// After an answer that names nothing, wait this long for the next name of the search path.
    pub search_gap_ns: u64,
    /// A lookup that takes longer is slow.
    pub slow_lookup_ns: u64,
    /// A connection whose set-up takes longer is slow.
    pub slow_connect_ns: u64,
    /// Most journeys (traces of bad lookups and connections) a minute, in bursts of as many; the node's own may take no
    /// more than half of what there is. 0 makes none.
    pub journeys_per_minute: u32,
    /// Most lookups open at once.
    pub max_lookups: usize,
    /// Most connections open at once.
    pub max_connects: usize,
    /// Most conntrack entries remembered, to join translations.
    pub max_flows: usize,
}

impl Default for TrafficConfig {
    fn default() -> TrafficConfig {
        TrafficConfig {
            ready_deadline_ns: 30 * SECOND,
            ready_grace_ns: SECOND,
            lookup_deadline_ns: 10 * SECOND,
            search_gap_ns: 100 * MILLISECOND,
            slow_lookup_ns: SECOND,
            slow_connect_ns: SECOND,
            journeys_per_minute: 60,
            max_lookups: 8_192,
            max_connects: 8_192,
            max_flows: 16_384,
        }
    }
}

/// Whose traffic it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// A sandbox's.
    Sandbox,
    /// The node's own, or of a network namespace that no sandbox is known for.
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

/// One finding about traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// A lookup ended.
    Lookup(Box<LookupEnded>),
    /// A connection stood, or was given up.
    Connect(Box<ConnectEnded>),
    /// A conntrack entry came or went.
    Flow {
        /// Whose.
        scope: Scope,
        /// Which of both.
        change: FlowChange,
        /// What was translated.
        nat: Option<Nat>,
    },
    /// Conntrack's counters grew, or its table's fill changed.
    Conntrack {
        /// Whose table.
        scope: Scope,
        /// By how much.
        counts: ConntrackCounts,
    },
    /// The kernel dropped a DNS packet or a SYN.
    Dropped {
        /// Whose.
        scope: Scope,
        /// Which kind.
        packet: DroppedPacket,
        /// The kernel's reason.
        reason: Arc<str>,
    },
    /// A bad lookup or connection got no trace of its own, because there were too many.
    JourneyHeldBack,
    /// An activity of HNS, HCS or a silo ended, whosever it was (Windows).
    Activity(Box<ActivityEnded>),
    /// The Host Network Service was started again (Windows).
    HnsRestarted,
    /// How many HNS endpoints were seen made and not deleted since, and how many sandboxes (Windows).
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
    /// Whose.
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

/// What conntrack translated.
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
    /// Whose.
    pub scope: Scope,
    /// The first query.
    pub start: Timestamp,
    /// The last answer that mattered, or when it was given up.
    pub end: Timestamp,
    /// What it was.
    pub detail: LookupDetail,
    /// How many queries of which type went over which transport.
    pub asked: Vec<(QueryType, Transport, u32)>,
    /// The trace it can be seen in: its sandbox's, or its journey's.
    pub trace: Option<TraceId>,
}

/// A connection that stood, or was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectEnded {
    /// Whose.
    pub scope: Scope,
    /// The first SYN.
    pub start: Timestamp,
    /// The end of the handshake, or when it was given up.
    pub end: Timestamp,
    /// What it was.
    pub detail: ConnectDetail,
    /// The trace it can be seen in: its sandbox's, or its journey's.
    pub trace: Option<TraceId>,
}

/// Record types as metrics tell them apart.
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

    /// Of the number of a record type (RFC 1035 3.2.2, RFC 3596 2.1).
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
