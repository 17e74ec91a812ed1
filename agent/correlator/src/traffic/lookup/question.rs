//! What a lookup is made of: its questions, the queries that were sent for them, and the answer that counts.
//!
//! Used by `lookup.rs`, which holds lists of them, by the rules of `matching.rs` and `outcome.rs`, and by `causes.rs`, which
//! looks for evidence in them. Does not: know the lookup that they belong to.

use std::net::SocketAddr;

use sandglass_model::Timestamp;
use sandglass_model::network::Transport;
use sandglass_model::time::MILLISECOND;
use sandglass_model::trace::LookupResult;

/// Queries to other servers within this time were sent at once, not for want of an answer: musl sends each query to all
/// servers in one loop (`__res_msend_rc`, src/network/res_msend.c).
pub(super) const PARALLEL_NS: u64 = 50 * MILLISECOND;
/// A question that another socket of the same process repeats sooner than this belongs to another lookup: no resolver
/// retries so soon.
pub(crate) const RETRY_NS: u64 = 200 * MILLISECOND;

/// How a query relates to the earlier ones of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueryKind {
    /// The question was not sent before.
    First,
    /// The question again, but not for want of an answer: another server at the same instant (musl), or over TCP after
    /// truncation.
    Parallel,
    /// The question again, because no answer came.
    Retry,
}

/// The state of one question: one name and one record type.
#[derive(Debug)]
pub(crate) struct QuestionState {
    /// Index in `Lookup::names`.
    pub(crate) name: usize,
    /// Record type (RFC 1035 3.2.2).
    pub(crate) kind: u16,
    /// When it was first sent.
    pub(crate) first: Timestamp,
    /// When it was last sent.
    pub(crate) last: Timestamp,
    /// It was sent again because no answer came.
    pub(crate) retried: bool,
    /// The answer that counts; `None` while there is none.
    pub(crate) outcome: Option<AnswerOutcome>,
}

/// A query of a lookup.
#[derive(Debug)]
pub(crate) struct SentQuery {
    pub(crate) at: Timestamp,
    /// Index in `Lookup::questions`.
    pub(crate) question: usize,
    /// Socket cookie; 0 where it is not known.
    pub(crate) socket: u64,
    /// The client's end: address and port that the socket sends from.
    pub(crate) client: SocketAddr,
    /// The server's end as the socket sees it.
    pub(crate) server: SocketAddr,
    pub(crate) transport: Transport,
    /// Message id (RFC 1035 4.1.1); retries may repeat it.
    pub(crate) id: u16,
    /// As [`DnsMessage::nth`].
    pub(crate) nth: u32,
    /// When its answer came.
    pub(crate) answered: Option<Timestamp>,
    /// Its answer may have been among bytes of the connection that were not seen.
    pub(crate) unseen: bool,
    /// Since when its answer may be among bytes of the connection that are missing, and may still come.
    pub(super) hole: Option<Timestamp>,
    /// It repeats a question because no answer came.
    pub(crate) again: bool,
    /// The client went over to TCP instead of waiting for its answer: its silence proves nothing.
    pub(crate) left: bool,
}

impl SentQuery {
    /// It repeats what had been answered: the resolver begins anew, or goes over to TCP with both questions.
    pub(super) fn is_after(&self, outcome: AnswerOutcome) -> bool {
        (self.again || self.transport == Transport::Tcp) && self.at > outcome.at
    }

    /// Marks it if its answer may have come unseen up to `at`. Only over TCP: over UDP every datagram is a record of
    /// its own.
    pub(super) fn miss_answer(&mut self, at: Timestamp) {
        self.unseen |= self.transport == Transport::Tcp && self.at <= at && self.answered.is_none();
    }

    /// It has no answer although the client waited for one.
    pub(crate) fn is_missed(&self) -> bool {
        self.answered.is_none() && !self.left && !self.unseen
    }
}

/// What the answer to a question contains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerOutcome {
    pub(super) at: Timestamp,
    /// Response code, extended where the answer has EDNS (RFC 6891 6.1.3).
    pub(crate) rcode: u16,
    /// Records in the answer section; 0 with rcode 0 is NODATA (RFC 2308, section 2.2).
    pub(crate) records: u16,
    /// The TC bit.
    pub(crate) truncated: bool,
    /// It came from another address than the query was sent to: it counts until the question is repeated.
    pub(super) elsewhere: bool,
}

impl AnswerOutcome {
    /// It says that the name exists or that it does not, and it is not truncated.
    pub(super) fn is_final(self) -> bool {
        LookupResult::Rcode(self.rcode).is_answer() && !self.truncated
    }

    /// It contains records.
    pub(crate) fn is_useful(self) -> bool {
        self.rcode == 0 && (self.records > 0 || self.truncated)
    }
}
