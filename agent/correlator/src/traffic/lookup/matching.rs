//! Which messages go with a lookup: what asks the same again, what answers it.
//!
//! Used by `dns.rs` to choose among the lookups that are open. Does not: change the lookup.

use sandglass_model::Timestamp;
use sandglass_model::network::{DnsMessage, Transport};
use sandglass_model::time::MILLISECOND;

use super::{Lookup, SentQuery};
use crate::config::TrafficBounds;

/// How a message goes with what was asked before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueryKind {
    /// Nothing like it was asked yet.
    First,
    /// QuestionState of another server at the same instant (musl), or again over TCP.
    Parallel,
    /// QuestionState again.
    Retry,
}

/// How an answer goes with what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerMatch {
    /// It answers.
    Answer,
    /// What it answers was answered already.
    Late,
    /// The very same record a second time.
    Duplicate,
    /// It answers by socket, id and question, but comes from elsewhere than the message went. The socket is not
    /// connected then: either its packets were translated behind it, or the client will not take it and asks again.
    OtherAddress,
    /// It came from elsewhere.
    Stray,
    /// It has nothing to do with this lookup.
    No,
}

/// Messages to other servers within this time were not sent for want of an answer.
pub(super) const PARALLEL_NS: u64 = 50 * MILLISECOND;
/// A question that another socket of the same process repeats sooner is another lookup's.
pub(crate) const RETRY_NS: u64 = 200 * MILLISECOND;
impl Lookup {
    /// How `message` would go with this lookup, if it asks `question` again; `None` when it is another lookup's.
    pub(crate) fn query_kind(
        &self,
        at: Timestamp,
        message: &DnsMessage,
        question: usize,
        config: &TrafficBounds,
    ) -> Option<QueryKind> {
        let state = self.questions.get(question)?;
        if self.has(at, message, question) {
            return Some(QueryKind::Retry);
        }
        let from_here = |sent: &&SentQuery| sent.client == message.client && sent.transport == message.transport;
        let same_socket = self.sent.iter().any(|sent| from_here(&sent));
        let gap = at.since(state.last);
        if self.goes_over_to_tcp(message, question) {
            return Some(QueryKind::Parallel);
        }
        // musl asks server by server, and the first may answer before the next is asked.
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
            // glibc asks both again once it has waited for one of them in vain. When nothing is waited for, another
            // socket begins another lookup: glibc does so where its buffer was too small for the answers.
            let troubled = match self.is_pending() {
                true => self.retransmissions > 0 || (same_socket && at.since(state.first) >= RETRY_NS),
                false => self.retransmissions > 0 && same_socket,
            };
            return troubled.then_some(QueryKind::Retry);
        }
        if at.since(state.first) >= config.lookup_deadline_ns {
            return None;
        }
        // Over TCP nothing is lost that would have to be asked again so soon: a resolver asks for somebody else.
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

    /// An answer was cut, and now this question is asked over TCP, for the first time since it was over UDP. glibc asks
    /// both questions so when one answer was cut, whether the other one has come or not.
    pub(super) fn goes_over_to_tcp(&self, message: &DnsMessage, question: usize) -> bool {
        let mut before = self.sent.iter().rev().filter(|sent| sent.question == question);
        let last = before.next().map(|sent| sent.transport);
        self.truncated && message.transport == Transport::Tcp && last == Some(Transport::Udp)
    }

    /// The very same message was taken before.
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

    /// How an answer goes with this lookup. The id, and the client's end or its socket, are those of a message of it.
    pub(crate) fn match_answer(&self, at: Timestamp, message: &DnsMessage) -> (AnswerMatch, Option<usize>) {
        let (mut found, mut elsewhere) = ((AnswerMatch::No, None), None);
        for (index, sent) in self.sent.iter().enumerate().rev() {
            let state = &self.questions[sent.question];
            let about = message.questions.is_empty()
                || message
                    .questions
                    .iter()
                    .any(|question| question.kind == state.kind && *self.names[state.name] == *question.name);
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
            // Messages that were sent again may have one id.
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
