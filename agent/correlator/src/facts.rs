//! Facts: what one room reports for another, in a queue that `correlator.rs` routes.
//!
//! Every room pushes facts through its [`Context`](crate::context::Context); none reads them. A fact is small: keys,
//! times, and boxes that exist anyway. A room that gets one reads the trace that it names from the context. Facts are
//! routed in the order in which they were pushed, after the handler that pushed them has returned, so that no room is
//! entered twice at once. Imports no room.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use sandglass_model::daemons::DaemonProcess;
use sandglass_model::event::ExitStatus;
use sandglass_model::trace::{Detail, SpanEvent};
use sandglass_model::{ProcessKey, SmolStr, TextPairs, Timestamp, Trace};

use crate::daemon_path::Answered;
use crate::exchange::{EndedExchange, Exchange, ExchangeId};
use crate::keys::{SpanRef, TraceKey};

/// Something that happened in one room and concerns another. The router in `correlator.rs` names the receiver of each.
#[derive(Debug)]
pub(crate) enum Fact {
    /// A runtime's operation began; the span is the operation's.
    OperationOpened(SpanRef),
    /// An operation failed before, and another attempt of the same began.
    OperationRetried(SpanRef),
    /// The process of a plugin or a command ended, and its span with it.
    ProcessEnded(ProcessKey, SpanRef),
    /// A runtime's operation is over.
    OperationClosed(SpanRef),
    /// A plugin of this operation reported the addresses of its interface.
    AddressesReported(SpanRef),
    /// The process of a runtime step ended.
    StepEnded {
        /// The process, where its exit was seen.
        process: Option<ProcessKey>,
        /// When its process ended.
        at: Timestamp,
        /// The step's span.
        span: SpanRef,
        /// `Unknown` where the exit was not seen.
        how: ExitStatus,
    },
    /// An exchange began in a sandbox whose network is not ready.
    ExchangeBegan {
        /// The trace of its sandbox's creation.
        home: TraceKey,
        id: ExchangeId,
        /// Its first query or SYN.
        at: Timestamp,
        detail: Detail,
    },
    /// An exchange that is shown in a trace has another detail or another note.
    ExchangeChanged {
        home: TraceKey,
        id: ExchangeId,
        /// As it is now; replaces the one before.
        detail: Detail,
        /// All of its notes so far.
        events: Vec<SpanEvent>,
    },
    /// It is over.
    ExchangeEnded { home: TraceKey, ended: EndedExchange },
    /// An exchange was evicted, or the input ended: how it ends is not known, so it proves nothing about the network.
    ExchangeLost { home: TraceKey, id: ExchangeId },
    /// The network became ready, or its trace closed, while the exchange was open: it goes on outside of the trace.
    ExchangeDetached(ExchangeId),
    /// An exchange ended and belongs to no sandbox's trace: it counts as traffic, and becomes a journey if it went
    /// badly.
    ExchangeReleased(EndedExchange),
    /// A lookup that a service reported as a whole resolved these addresses (Windows).
    AddressesResolved(Box<ResolvedAddresses>),
    /// A journey is complete, but for its pod's labels and its link to the sandbox.
    JourneyClosed(Box<Trace>),
    /// A runtime reported that it begins to create a sandbox (Windows).
    CreationRequested(Box<CreationRequest>),
    /// A runtime reported the end of a creation (Windows); the trace, when its begin was seen.
    CreationReported(Option<TraceKey>, Box<CreationEnd>),
    /// A runtime reported the id of a sandbox that had a stand-in until now (Windows).
    SandboxRenamed(Box<NewName>),
    /// A network compartment belongs to this sandbox (Windows).
    CompartmentKnown(u32, String),
    /// The traffic of this trace's sandbox can be attributed now.
    NetworkKnown(TraceKey),
    /// A daemon whose threads are followed has a request in flight.
    DaemonBusy(Box<DaemonProcess>),
    /// It has none any more.
    DaemonIdle(ProcessKey),
    /// A request has its answer, and the threads of its daemon were followed meanwhile.
    RequestAnswered(Box<Answered>),
}

/// The begin of a creation, as a runtime reports it.
#[derive(Debug)]
pub(crate) struct CreationRequest {
    /// The sandbox in the room that reports it.
    pub(crate) number: u64,
    /// When the runtime logged that it begins.
    pub(crate) at: Timestamp,
    /// The parameters of an ADD for it.
    pub(crate) env: TextPairs,
}

/// The end of a creation, as a runtime reports it.
#[derive(Debug)]
pub(crate) struct CreationEnd {
    /// When the runtime reported it.
    pub(crate) at: Timestamp,
    /// The sandbox's id, or its stand-in.
    pub(crate) container: String,
    /// Why it failed; empty when the runtime gave no reason.
    pub(crate) failure: Option<String>,
}

/// A sandbox's new id.
#[derive(Debug)]
pub(crate) struct NewName {
    /// The id that it replaces: a stand-in.
    pub(crate) before: String,
    /// The id that the runtime reported.
    pub(crate) id: String,
    /// The trace of its creation, when the begin of that was seen.
    pub(crate) trace: Option<TraceKey>,
    /// Its network compartment, if known by now.
    pub(crate) compartment: Option<u32>,
}

/// Addresses that a lookup resolved.
#[derive(Debug)]
pub(crate) struct ResolvedAddresses {
    /// Number of the compartment that the lookup's process runs in.
    pub(crate) netns: u64,
    /// Of all record types, each once.
    pub(crate) addresses: Vec<IpAddr>,
    /// Serial number of the lookup.
    pub(crate) lookup: u64,
    /// The name that was looked up, which a connect to one of the addresses shows.
    pub(crate) name: SmolStr,
    /// The lookup itself, for the journey of such a connect.
    pub(crate) exchange: Arc<Exchange>,
}

/// Facts that are not routed yet, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Facts(VecDeque<Fact>);

impl Facts {
    /// Adds a fact behind those that wait.
    pub(crate) fn push(&mut self, fact: Fact) {
        self.0.push_back(fact);
    }

    /// Takes the oldest fact.
    pub(crate) fn pop(&mut self) -> Option<Fact> {
        self.0.pop_front()
    }
}
