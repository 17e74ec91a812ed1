//! Decides whether a message belongs to a lookup, and how: a query by its question and socket, an answer by id,
//! addresses and question.
//!
//! Used by `dns.rs` and `answers.rs`, which choose among the open lookups. The rules are those by which the resolvers
//! of glibc, musl and Go send and accept messages (RFC 1035 7.3; RFC 5452, section 9.1). Does not: change the lookup.
//!
//! A query belongs to a lookup in this order of rules; `first` and `last` are when its question was first and last
//! sent:
//! 1. It goes over to TCP after a truncated answer, or to another server within 50 ms of `first`: parallel.
//! 2. The question has its answer: a retry if that answer was an error, was not accepted, or if the resolver has begun
//!    anew after waiting in vain; parallel if it was truncated; otherwise another lookup.
//! 3. The question has no answer and the timeout passed: another lookup.
//! 4. It comes from the same socket, or 200 ms after `last`, or over another transport: a retry. Sooner and from
//!    another socket it is another lookup of the same name, such as that of a second thread.

use sandglass_model::Timestamp;
use sandglass_model::network::{DnsMessage, Transport};

use crate::config::TrafficBounds;
use crate::traffic::lookup::Lookup;
use crate::traffic::lookup::question::{PARALLEL_NS, QueryKind, RETRY_NS, SentQuery};

/// How an answer relates to the queries of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerMatch {
    /// It answers a pending query.
    Answer,
    /// It answers a query whose question has its answer.
    Late,
    /// The same record came twice.
    Duplicate,
    /// It matches by socket, id and question, but comes from another address than the query was sent to. The socket is
    /// not connected then: either its packets are translated behind it, or the client will not accept the answer and
    /// repeats the query.
    OtherAddress,
    /// It matches a query but for the address that it comes from.
    Stray,
    /// It matches no query of this lookup.
    No,
}

impl Lookup {
    /// How `message` relates to this lookup if it repeats the question at `question`; `None` if it belongs to another
    /// lookup.
    pub(crate) fn query_kind(
        &self,
        at: Timestamp,
        message: &DnsMessage,
        question: usize,
        config: &TrafficBounds,
    ) -> Option<QueryKind> {
        let state = self.questions.get(question)?;
        // The caller finds by `has` that it is a duplicate and adds nothing.
        if self.has(at, message, question) {
            return Some(QueryKind::Retry);
        }
        let from_here = |sent: &&SentQuery| sent.client == message.client && sent.transport == message.transport;
        let same_socket = self.sent.iter().any(|sent| from_here(&sent));
        let gap = at.since(state.last);
        if self.goes_over_to_tcp(message, question) {
            return Some(QueryKind::Parallel);
        }
        // musl queries server by server, and the first may answer before the next query is sent.
        let known_server = self
            .sent
            .iter()
            .any(|sent| sent.question == question && sent.server == message.server);
        if same_socket && !known_server && at.since(state.first) <= PARALLEL_NS {
            return Some(QueryKind::Parallel);
        }
        if let Some(outcome) = state.outcome {
            if outcome.elsewhere && same_socket {
                return Some(QueryKind::Retry);
            }
            if outcome.truncated {
                return Some(QueryKind::Parallel);
            }
            if !outcome.is_final() {
                return Some(QueryKind::Retry);
            }
            // glibc repeats both questions when it has waited in vain for the answer to one of them. If nothing is
            // pending, another socket begins another lookup: glibc does that when its buffer was too small for the
            // answers.
            let troubled = match self.is_pending() {
                true => self.retransmissions > 0 || (same_socket && at.since(state.first) >= RETRY_NS),
                false => self.retransmissions > 0 && same_socket,
            };
            return troubled.then_some(QueryKind::Retry);
        }
        if at.since(state.first) >= config.lookup_deadline_ns {
            return None;
        }
        // TCP loses nothing that would have to be repeated so soon: this is a resolver that queries for others.
        let on_this_connection = |sent: &SentQuery| sent.question == question && from_here(&sent);
        if message.transport == Transport::Tcp && gap < RETRY_NS && self.sent.iter().any(on_this_connection) {
            return None;
        }
        let changes_transport = self
            .sent
            .iter()
            .any(|sent| sent.question == question && sent.transport != message.transport);
        (same_socket || gap >= RETRY_NS || changes_transport).then_some(QueryKind::Retry)
    }

    /// An answer was truncated, and this question goes out over TCP for the first time since it went out over UDP.
    /// glibc repeats both questions over TCP when one answer was truncated, whether the other one has come or not.
    pub(super) fn goes_over_to_tcp(&self, message: &DnsMessage, question: usize) -> bool {
        let mut before = self.sent.iter().rev().filter(|sent| sent.question == question);
        let last = before.next().map(|sent| sent.transport);
        self.truncated && message.transport == Transport::Tcp && last == Some(Transport::Udp)
    }

    /// The same record came before.
    pub(super) fn has(&self, at: Timestamp, message: &DnsMessage, question: usize) -> bool {
        self.sent.iter().any(|sent| {
            sent.question == question
                && sent.at == at
                && sent.id == message.id
                && sent.nth == message.nth
                && sent.client == message.client
                && sent.server == message.server
        })
    }

    /// How an answer relates to this lookup, and the index of the query in `sent`. The caller has looked the lookup up
    /// by message id and client, so that both belong to one of its messages.
    pub(crate) fn match_answer(&self, at: Timestamp, message: &DnsMessage) -> (AnswerMatch, Option<usize>) {
        let (mut found, mut elsewhere) = ((AnswerMatch::No, None), None);
        // Newest first: an answer belongs to the last query that it fits.
        for (index, sent) in self.sent.iter().enumerate().rev() {
            let state = &self.questions[sent.question];
            // Some servers answer errors without repeating the question.
            let about = message.questions.is_empty()
                || message
                    .questions
                    .iter()
                    .any(|question| question.kind == state.kind && self.names[state.name] == question.name);
            let same_socket = sent.socket != 0 && sent.socket == message.socket;
            let here = sent.id == message.id
                && (sent.client == message.client || same_socket)
                && sent.transport == message.transport;
            if !about || !here {
                continue;
            }
            if sent.answered == Some(at) {
                found = (AnswerMatch::Duplicate, None);
                continue;
            }
            let open = sent.answered.is_none()
                && state
                    .outcome
                    .is_none_or(|outcome| !outcome.is_final() || sent.is_after(outcome));
            if sent.server != message.server {
                if open && same_socket && !message.questions.is_empty() {
                    elsewhere = elsewhere.or(Some(index));
                }
                found = (AnswerMatch::Stray, None);
                continue;
            }
            if open {
                return (AnswerMatch::Answer, Some(index));
            }
            // A resolver may repeat a query under the same id.
            if found.0 != AnswerMatch::Duplicate {
                found = (AnswerMatch::Late, Some(index));
            }
        }
        match (found, elsewhere) {
            ((AnswerMatch::Stray, _), Some(index)) => (AnswerMatch::OtherAddress, Some(index)),
            _ => found,
        }
    }
}
