//! One lookup: what was asked for one name, from its first query to its last answer.
//!
//! A name is asked as several questions (A, AAAA), each question as one message or more (retries, other servers, TCP),
//! and the search path makes several names of one. Here is what is known of all that and what it comes to; which message
//! belongs to which lookup is found in `dns.rs`. Does not: know of other lookups.

pub(crate) mod matching;
pub(crate) mod outcome;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::network::{Answer, DnsMessage, Initiator, Question, Transport};
use sandglass_model::trace::LookupResult;

use self::matching::{QueryKind, RETRY_NS};
use self::outcome::AnswerOutcome;
use crate::collections::mix::mix;
use crate::finding::QueryType;
use crate::keys::TraceKey;
use crate::notes::{self, Note, NoteKind};
use crate::owner::Owner;

/// An open lookup.
#[derive(Debug)]
pub(crate) struct Lookup {
    pub(crate) owner: Owner,
    pub(crate) initiator: Option<Initiator>,
    pub(crate) start: Timestamp,
    /// Names tried, in the order of trying. Never empty.
    pub(crate) names: Vec<Arc<str>>,
    pub(crate) questions: Vec<QuestionState>,
    /// Messages sent; those beyond the bound are only counted.
    pub(crate) sent: Vec<SentQuery>,
    queries: u32,
    pub(crate) retransmissions: u32,
    counted: Vec<(QueryType, Transport, u32)>,
    pub(crate) servers: Vec<SocketAddr>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) backend: Option<SocketAddr>,
    /// Conntrack entries that were joined: the kernel's ids.
    pub(crate) flows: Vec<u32>,
    pub(crate) drops: Vec<Dropped>,
    /// The first answer that said that the server could not.
    pub(crate) error: Option<(SocketAddr, u16)>,
    pub(crate) late: u32,
    pub(crate) truncated: bool,
    pub(super) transport: Transport,
    pub(super) last_answer: Timestamp,
    pub(crate) notes: Vec<Note>,
    /// The trace of its sandbox's creation, before its network is ready.
    pub(crate) home: Option<TraceKey>,
    /// Records were lost while it was open.
    pub(crate) lost: bool,
}

/// A question of a lookup.
#[derive(Debug)]
pub(crate) struct QuestionState {
    /// Index in [`Lookup::names`].
    pub(crate) name: usize,
    pub(crate) kind: u16,
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    /// It was sent again because no answer came.
    pub(crate) retried: bool,
    pub(crate) outcome: Option<AnswerOutcome>,
}

/// A message of a lookup.
#[derive(Debug)]
pub(crate) struct SentQuery {
    pub(crate) at: Timestamp,
    /// Index in [`Lookup::questions`].
    pub(crate) question: usize,
    pub(crate) socket: u64,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) transport: Transport,
    pub(crate) id: u16,
    /// As [`DnsMessage::nth`].
    pub(crate) nth: u32,
    pub(crate) answered: Option<Timestamp>,
    /// Its answer may have been among bytes of the connection that were not seen.
    pub(crate) unseen: bool,
    /// It repeats a question.
    pub(crate) again: bool,
    /// The client asked over TCP instead of waiting on.
    pub(crate) left: bool,
}

impl SentQuery {
    /// It asks again what had been answered: the resolver begins anew, or goes over to TCP with both questions.
    fn is_after(&self, outcome: AnswerOutcome) -> bool {
        (self.again || self.transport == Transport::Tcp) && self.at > outcome.at
    }

    /// Its answer may have come unseen up to `at`, if it went over TCP.
    fn miss_answer(&mut self, at: Timestamp) {
        self.unseen |= self.transport == Transport::Tcp && self.at <= at && self.answered.is_none();
    }

    /// It was waited for in vain.
    pub(crate) fn is_missed(&self) -> bool {
        self.answered.is_none() && !self.left && !self.unseen
    }
}

/// A packet of a lookup or a connection that the kernel dropped.
#[derive(Clone, Debug)]
pub(crate) struct Dropped {
    pub(crate) at: Timestamp,
    pub(crate) reason: Arc<str>,
    pub(crate) function: Arc<str>,
    /// It was on its way to the client.
    pub(crate) inbound: bool,
}

const MAX_SENT: usize = 64;
const MAX_QUESTIONS: usize = 48;
/// No more than resolvers take from a resolv.conf, all in all (musl and glibc both bound the line's length).
pub(crate) const MAX_NAMES: usize = 16;
const MAX_SERVERS: usize = 8;
const MAX_ADDRESSES: usize = 16;
const MAX_DROPS: usize = 8;

impl Lookup {
    pub(crate) fn new(at: Timestamp, owner: Owner, message: &DnsMessage, name: &str) -> Lookup {
        Lookup {
            owner,
            initiator: message.initiator.clone(),
            start: at,
            names: vec![name.into()],
            questions: Vec::with_capacity(2),
            sent: Vec::with_capacity(2),
            queries: 0,
            retransmissions: 0,
            counted: Vec::new(),
            servers: Vec::with_capacity(1),
            addresses: Vec::new(),
            backend: None,
            flows: Vec::new(),
            drops: Vec::new(),
            error: None,
            late: 0,
            truncated: false,
            transport: message.transport,
            last_answer: at,
            notes: Vec::with_capacity(4),
            home: None,
            lost: false,
        }
    }

    /// The name that is tried now.
    pub(crate) fn current(&self) -> usize {
        self.names.len() - 1
    }

    /// The question with this name and type.
    pub(crate) fn question(&self, question: &Question) -> Option<usize> {
        self.questions
            .iter()
            .position(|state| state.kind == question.kind && *self.names[state.name] == *question.name)
    }

    /// Takes a message that asks `question` of the name that is tried now, or of one tried before. `false` when it came
    /// before or is beyond the bounds.
    pub(crate) fn add_query(
        &mut self,
        at: Timestamp,
        message: &DnsMessage,
        question: &Question,
        kind_of_query: QueryKind,
    ) -> bool {
        let known = self.question(question);
        if known.is_some_and(|known| self.has(at, message, known)) {
            return false;
        }
        let index = match known {
            Some(index) => index,
            None if self.questions.len() == MAX_QUESTIONS => return false,
            None => {
                self.questions.push(QuestionState {
                    name: self.current(),
                    kind: question.kind,
                    first: at,
                    last: at,
                    retried: false,
                    outcome: None,
                });
                self.questions.len() - 1
            }
        };
        let again = kind_of_query == QueryKind::Retry;
        if self.goes_over_to_tcp(message, index) {
            let mut sent = self.sent.iter_mut();
            if let Some(last) = sent.rfind(|sent| sent.question == index) {
                last.left = at.since(last.at) < RETRY_NS;
            }
        }
        if again {
            self.drop_untrusted_answer(index);
        }
        let state = &mut self.questions[index];
        state.last = state.last.max(at);
        state.retried |= again;
        if state.outcome.is_some_and(|outcome| !outcome.is_final()) {
            state.outcome = None;
        }
        self.queries = self.queries.saturating_add(1);
        self.retransmissions = self.retransmissions.saturating_add(u32::from(again));
        self.count(QueryType::of(question.kind), message.transport);
        if self.servers.len() < MAX_SERVERS && !self.servers.contains(&message.server) {
            self.servers.push(message.server);
        }
        if self.initiator.is_none() {
            self.initiator.clone_from(&message.initiator);
        }
        if self.sent.len() < MAX_SENT {
            self.sent.push(SentQuery {
                at,
                question: index,
                socket: message.socket,
                client: message.client,
                server: message.server,
                transport: message.transport,
                id: message.id,
                nth: message.nth,
                answered: None,
                unseen: false,
                again,
                left: false,
            });
        }
        let note = NoteKind::Query {
            name: Arc::clone(&self.names[self.questions[index].name]),
            kind: question.kind,
            id: message.id,
            server: message.server,
            transport: message.transport,
            again,
        };
        notes::add(&mut self.notes, at, note);
        true
    }

    /// The client did not take an answer from elsewhere.
    fn drop_untrusted_answer(&mut self, question: usize) {
        let state = &mut self.questions[question];
        let Some(outcome) = state.outcome.filter(|outcome| outcome.elsewhere) else {
            return;
        };
        state.outcome = None;
        self.addresses.clear();
        for sent in &mut self.sent {
            if sent.question == question && sent.answered == Some(outcome.at) {
                sent.answered = None;
            }
        }
    }

    fn count(&mut self, kind: QueryType, transport: Transport) {
        let mut counted = self.counted.iter_mut();
        match counted.find(|(of, over, _)| *of == kind && *over == transport) {
            Some((_, _, count)) => *count = count.saturating_add(1),
            None => self.counted.push((kind, transport, 1)),
        }
    }

    /// Takes an answer to the message at `index`.
    pub(crate) fn answer(&mut self, at: Timestamp, index: usize, message: &DnsMessage, answer: &Answer, late: bool) {
        let Some(sent) = self.sent.get_mut(index) else {
            return;
        };
        sent.answered = sent.answered.or(Some(at));
        let state = &mut self.questions[sent.question];
        let note = NoteKind::Answer {
            kind: state.kind,
            id: message.id,
            rcode: answer.rcode,
            truncated: answer.truncated,
            late,
        };
        let new = notes::add(&mut self.notes, at, note);
        if late {
            self.late = self.late.saturating_add(u32::from(new));
            return;
        }
        state.outcome = Some(AnswerOutcome {
            at,
            rcode: answer.rcode,
            records: answer.records,
            truncated: answer.truncated,
            elsewhere: message.server != sent.server,
        });
        if !LookupResult::Rcode(answer.rcode).is_answer() {
            self.error = self.error.or(Some((message.server, answer.rcode)));
        }
        self.truncated |= answer.truncated;
        self.transport = message.transport;
        self.last_answer = self.last_answer.max(at);
        for address in &answer.addresses {
            if self.addresses.len() < MAX_ADDRESSES && !self.addresses.contains(address) {
                self.addresses.push(*address);
            }
        }
    }

    /// Bytes to the client were not seen on this connection: answers to what was asked on it up to `at` may have been
    /// among them.
    pub(crate) fn miss_answers(&mut self, at: Timestamp, socket: u64, client: SocketAddr) {
        let on_connection = |sent: &&mut SentQuery| sent.socket == socket && sent.client == client;
        for sent in self.sent.iter_mut().filter(on_connection) {
            sent.miss_answer(at);
        }
    }

    /// Records of DNS were lost up to `at`: over TCP the loss may show nowhere else.
    pub(crate) fn lose_answers(&mut self, at: Timestamp) {
        for sent in &mut self.sent {
            sent.miss_answer(at);
        }
    }

    /// The kernel dropped a packet of it.
    pub(crate) fn drop_packet(&mut self, dropped: Dropped) {
        if self.drops.len() == MAX_DROPS || self.drops.iter().any(|known| known.at == dropped.at) {
            return;
        }
        let note = NoteKind::Drop {
            reason: Arc::clone(&dropped.reason),
            function: Arc::clone(&dropped.function),
        };
        notes::add(&mut self.notes, dropped.at, note);
        self.drops.push(dropped);
    }

    /// Tells it from others that began at the same time.
    pub(crate) fn seed(&self) -> u64 {
        let first = self.sent.first();
        let socket = first.map_or(0, |sent| sent.socket ^ u64::from(sent.client.port()) << 48);
        self.names.iter().fold(socket, |seed, name| mix(seed, name.as_bytes()))
    }

    /// How many queries of which type went over which transport.
    pub(crate) fn queries(&mut self) -> Vec<(QueryType, Transport, u32)> {
        std::mem::take(&mut self.counted)
    }
}

/// The labels that all names begin with.
pub(crate) fn base<'a>(mut names: impl Iterator<Item = &'a str>) -> &'a str {
    let first = names.next().unwrap_or_default();
    names.fold(first, |base, name| {
        let mut end = 0;
        for (label, other) in base.split('.').zip(name.split('.')) {
            if label != other {
                break;
            }
            end += label.len() + 1;
        }
        &base[..end.saturating_sub(1).min(base.len())]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_meant_is_what_the_names_tried_have_in_common() {
        let base = |names: &[&'static str]| base(names.iter().copied());
        assert_eq!(base(&["a.b"]), "a.b");
        assert_eq!(
            base(&["api.shop.svc.shop.svc.cluster.local", "api.shop.svc.svc.cluster.local"]),
            "api.shop.svc"
        );
        assert_eq!(base(&["example.com.cluster.local", "example.com"]), "example.com");
        assert_eq!(base(&["example.com", "example.com.cluster.local"]), "example.com");
        assert_eq!(base(&["a.x", "ab.x"]), "");
        assert_eq!(base(&["", "a"]), "");
        assert_eq!(base(&[]), "");
    }
}
