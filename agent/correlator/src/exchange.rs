//! One lookup or connect that has ended, as rooms pass it to one another.
//!
//! Made by `traffic` and `windows`; `sandboxes` holds those of a sandbox until its network is ready. Exchange is the
//! word for both where the difference does not matter. Shared, not copied: a journey and the table of resolved
//! addresses hold the same one. Imports no room.

use std::sync::Arc;

use sandglass_model::network::Transport;
use sandglass_model::trace::{ConnectDetail, Detail, JourneyReason, LookupDetail, SpanEvent, Status};
use sandglass_model::{Timestamp, TraceId};

use crate::finding::{ConnectEnded, Finding, LookupEnded, QueryType};
use crate::notes::{self, Note};
use crate::output::Output;
use crate::owner::Owner;

/// Key of an exchange, open or ended: its serial number. Lookups and connects share one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeId {
    Lookup(u64),
    Connect(u64),
}

/// An exchange that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    /// First query or SYN.
    pub(crate) start: Timestamp,
    /// Last answer that mattered, end of the handshake, or the time at which the client stopped waiting.
    pub(crate) end: Timestamp,
    /// Status of its span, with an error class of the registry.
    pub(crate) status: Status,
    /// Why it becomes a journey; `None` if it went well.
    pub(crate) reason: Option<JourneyReason>,
    pub(crate) detail: ExchangeDetail,
    /// Its instants, in order of time.
    pub(crate) notes: Vec<Note>,
    /// Records were lost while it was open.
    pub(crate) lost: bool,
    /// Distinguishes it from others that began at the same time; part of its journey's trace id, so it must not depend
    /// on anything but the events.
    pub(crate) seed: u64,
}

/// The kind of exchange, with its span's detail.
#[derive(Clone, Debug)]
pub(crate) enum ExchangeDetail {
    Lookup {
        detail: Box<LookupDetail>,
        /// How many queries of which type went over which transport.
        queries: Vec<(QueryType, Transport, u32)>,
    },
    Connect {
        detail: Box<ConnectDetail>,
        /// Serial number of the lookup that resolved the address; `None` if none is known.
        after: Option<u64>,
    },
}

impl Exchange {
    /// It proves that the network works: an answer came, NXDOMAIN included, or the handshake was completed.
    pub(crate) fn works(&self) -> bool {
        match &self.detail {
            ExchangeDetail::Lookup { detail, .. } => detail.result.is_some_and(|result| result.is_answer()),
            ExchangeDetail::Connect { detail, .. } => detail.failure.is_none(),
        }
    }

    pub(crate) fn is_connect(&self) -> bool {
        matches!(self.detail, ExchangeDetail::Connect { .. })
    }

    /// A copy of its detail for a span.
    pub(crate) fn to_detail(&self) -> Detail {
        match &self.detail {
            ExchangeDetail::Lookup { detail, .. } => Detail::Lookup(detail.clone()),
            ExchangeDetail::Connect { detail, .. } => Detail::Connect(detail.clone()),
        }
    }

    /// Its notes as span events.
    pub(crate) fn events(&self) -> Vec<SpanEvent> {
        notes::events(&self.notes, self.start, None)
    }
}

/// An ended exchange with its key and its owner.
#[derive(Clone, Debug)]
pub(crate) struct EndedExchange {
    pub(crate) owner: Owner,
    pub(crate) id: ExchangeId,
    pub(crate) exchange: Arc<Exchange>,
}

impl EndedExchange {
    /// The finding for metrics. `trace` is the trace that shows the exchange, if any, and `journey` whether
    /// that is a journey.
    pub(crate) fn finding(&self, trace: Option<TraceId>, journey: bool) -> Output {
        let exchange = &self.exchange;
        let (scope, start, end) = (self.owner.scope(), exchange.start, exchange.end);
        Output::Finding(match &exchange.detail {
            ExchangeDetail::Lookup { detail, queries } => Finding::Lookup(Box::new(LookupEnded {
                scope,
                owner: self.owner.share().key(),
                start,
                end,
                detail: LookupDetail::clone(detail),
                queries: queries.clone(),
                trace,
                journey,
            })),
            ExchangeDetail::Connect { detail, .. } => Finding::Connect(Box::new(ConnectEnded {
                scope,
                start,
                end,
                detail: ConnectDetail::clone(detail),
                trace,
                journey,
            })),
        })
    }
}
