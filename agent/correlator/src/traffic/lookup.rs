//! One lookup: all queries and answers for one name, from the first query to the last answer.
//!
//! Held in the table of lookups. A name is queried as several questions (A, AAAA), each question as one message or more
//! (retries, other servers, TCP), and the search path makes several names of one. This file holds the state and takes
//! queries, answers and drops; `lookup/question.rs` is what it is made of; `lookup/matching.rs` decides whether a message belongs to it, `lookup/outcome.rs` what
//! its result is. Which lookup a message belongs to is found in `dns.rs` and `answers.rs`.
//! Bounded in every list; beyond a bound messages are only counted. Does not: know other lookups.

pub(crate) mod matching;
pub(crate) mod outcome;
pub(crate) mod question;
mod seed;

use std::net::{IpAddr, SocketAddr};

use sandglass_model::network::{Answer, DnsMessage, Initiator, Question, STREAM_WAIT_MAX_NS, Transport};
use sandglass_model::trace::LookupResult;
use sandglass_model::{SmolStr, Timestamp};

use self::question::{AnswerOutcome, QueryKind, QuestionState, RETRY_NS, SentQuery};
use crate::finding::QueryType;
use crate::keys::TraceKey;
use crate::notes::{self, Note, NoteKind};
use crate::owner::Owner;
use crate::traffic::packet::Dropped;
use crate::traffic::table::Owned;

/// An open lookup.
#[derive(Debug)]
pub(crate) struct Lookup {
    /// The owner of the client's socket; it may change while the lookup is open.
    pub(crate) owner: Owner,
    /// The process that sent the first query that named one.
    pub(crate) initiator: Option<Initiator>,
    /// Time of the first query.
    pub(crate) start: Timestamp,
    /// Names tried, in order; the last one is current. Never empty.
    pub(crate) names: Vec<SmolStr>,
    /// Questions of all names, in order of their first query.
    pub(crate) questions: Vec<QuestionState>,
    /// Queries, in order. Those beyond the bound are only counted.
    pub(crate) sent: Vec<SentQuery>,
    /// All queries, those beyond the bound included.
    queries: u32,
    /// Queries that repeat a question because no answer came.
    pub(crate) retransmissions: u32,
    /// Queries by type and transport, for metrics.
    counted: Vec<(QueryType, Transport, u32)>,
    /// Servers that were queried, as the client addresses them.
    pub(crate) servers: Vec<SocketAddr>,
    /// Addresses of all answers, each once.
    pub(crate) addresses: Vec<IpAddr>,
    /// The server behind the service address, as conntrack translated it.
    pub(crate) backend: Option<SocketAddr>,
    /// Kernel ids of the conntrack entries that were joined.
    pub(crate) flows: Vec<u32>,
    /// Its packets that the kernel dropped, bounded by [`Dropped::add_to`].
    pub(crate) drops: Vec<Dropped>,
    /// Server and response code of the first answer that is an error.
    pub(crate) error: Option<(SocketAddr, u16)>,
    /// Answers to questions that had been answered.
    pub(crate) late: u32,
    /// An answer had the TC bit (RFC 1035 4.1.1; RFC 2181, section 9): the client has to query again over TCP.
    pub(crate) truncated: bool,
    /// Transport of the last answer.
    pub(super) transport: Transport,
    /// Time of the last answer; the begin of the lookup while there is none.
    pub(super) last_answer: Timestamp,
    /// Its instants, for span events.
    pub(crate) notes: Vec<Note>,
    /// The trace of its sandbox's creation, before its network is ready.
    pub(crate) home: Option<TraceKey>,
    /// Records were lost while it was open.
    pub(crate) lost: bool,
}

/// Bound on the queries that are kept.
const MAX_SENT: usize = 64;
/// Bound on questions: three for each of the names.
const MAX_QUESTIONS: usize = 48;
/// Bound on names. Above what a search list makes: glibc took 6 domains until 2.26 (`MAXDNSRCH`, resolv.h), musl bounds
/// the list to 256 bytes (src/network/resolvconf.c).
pub(crate) const MAX_NAMES: usize = 16;
/// Bound on servers. Resolvers take 3 (`MAXNS`, resolv.h).
const MAX_SERVERS: usize = 8;
/// Bound on addresses kept of all answers.
const MAX_ADDRESSES: usize = 16;

impl Owned for Lookup {
    fn share(&self) -> u64 {
        self.owner.share().key()
    }
}

impl Lookup {
    /// A lookup that begins with `message`, with room for the two questions of a usual one.
    pub(crate) fn new(at: Timestamp, owner: Owner, message: &DnsMessage, name: &SmolStr) -> Lookup {
        Lookup {
            owner,
            initiator: message.initiator.clone(),
            start: at,
            names: vec![name.clone()],
            questions: Vec::with_capacity(2),
            sent: Vec::with_capacity(2),
            queries: 0,
            retransmissions: 0,
            counted: Vec::with_capacity(2),
            servers: Vec::with_capacity(1),
            addresses: Vec::with_capacity(2),
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

    /// The same in the memory of a lookup that is over: nothing is allocated or moved.
    pub(crate) fn begin_again(&mut self, at: Timestamp, begin_owner: Owner, message: &DnsMessage, name: &SmolStr) {
        // Every field by its name, so that a new one is not forgotten here.
        let Lookup {
            owner,
            initiator,
            start,
            names,
            questions,
            sent,
            queries,
            retransmissions,
            counted,
            servers,
            addresses,
            backend,
            flows,
            drops,
            error,
            late,
            truncated,
            transport,
            last_answer,
            notes,
            home,
            lost,
        } = self;
        *owner = begin_owner;
        initiator.clone_from(&message.initiator);
        (*start, *last_answer, *transport) = (at, at, message.transport);
        names.clear();
        names.push(name.clone());
        questions.clear();
        sent.clear();
        counted.clear();
        servers.clear();
        addresses.clear();
        flows.clear();
        drops.clear();
        notes.clear();
        (*queries, *retransmissions, *late) = (0, 0, 0);
        (*backend, *error, *home) = (None, None, None);
        (*truncated, *lost) = (false, false);
    }

    /// Index of the name that is tried now.
    pub(crate) fn current(&self) -> usize {
        self.names.len() - 1
    }

    /// Index of the question with this name and type, whichever name it belongs to.
    pub(crate) fn question(&self, question: &Question) -> Option<usize> {
        self.questions
            .iter()
            .position(|state| state.kind == question.kind && self.names[state.name] == question.name)
    }

    /// Adds a query for `question` of the current name, or of one tried before. Returns `false` if the record came
    /// twice or is beyond the bounds.
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
        // The query over UDP whose answer the client no longer waits for is marked, so that its silence is no evidence.
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
        // An error or a truncated answer was not accepted: the question is pending again.
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
                hole: None,
                again,
                left: false,
            });
        }
        let note = NoteKind::Query {
            name: self.names[self.questions[index].name].clone(),
            kind: question.kind,
            id: message.id,
            server: message.server,
            transport: message.transport,
            again,
        };
        notes::add(&mut self.notes, at, note);
        true
    }

    /// The client repeats a question whose answer came from another address than it was sent to: it did not accept that
    /// answer, so the answer does not count.
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

    /// Counts a query for metrics.
    fn count(&mut self, kind: QueryType, transport: Transport) {
        let mut counted = self.counted.iter_mut();
        match counted.find(|(of, over, _)| *of == kind && *over == transport) {
            Some((_, _, count)) => *count = count.saturating_add(1),
            None => self.counted.push((kind, transport, 1)),
        }
    }

    /// Takes an answer to the query at `index`. A `late` one is only noted and counted: the question had its answer.
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

    /// Bytes to the client were not seen on this connection: answers to what was queried on it up to `at` may have been
    /// among them.
    pub(crate) fn miss_answers(&mut self, at: Timestamp, socket: u64, client: SocketAddr) {
        // Of this connection only: other sockets of the lookup lost nothing.
        let on_connection = |sent: &&mut SentQuery| sent.socket == socket && sent.client == client;
        for sent in self.sent.iter_mut().filter(on_connection) {
            sent.miss_answer(at);
        }
    }

    /// Bytes to the client are missing on this connection since `at`, and may still come: until then, answers to what was
    /// queried on it may be among them, or wait behind them.
    pub(crate) fn await_answers(&mut self, at: Timestamp, socket: u64, client: SocketAddr) {
        let pending = |sent: &&mut SentQuery| {
            sent.socket == socket
                && sent.client == client
                && sent.transport == Transport::Tcp
                && sent.at <= at
                && sent.answered.is_none()
        };
        for sent in self.sent.iter_mut().filter(pending) {
            sent.hole = sent.hole.max(Some(at));
        }
    }

    /// The lookup is over at `at`. Bytes that were missing a moment ago may be missing still: its answers may be among them.
    pub(crate) fn give_up_holes(&mut self, at: Timestamp) {
        for sent in &mut self.sent {
            sent.unseen |= sent.answered.is_none() && sent.hole.is_some_and(|hole| at.since(hole) < STREAM_WAIT_MAX_NS);
        }
    }

    /// Records of DNS messages were lost up to `at`. Over TCP the loss may show nowhere else.
    pub(crate) fn lose_answers(&mut self, at: Timestamp) {
        for sent in &mut self.sent {
            sent.miss_answer(at);
        }
    }

    /// The kernel dropped a packet of it.
    pub(crate) fn drop_packet(&mut self, dropped: Dropped) {
        dropped.add_to(&mut self.drops, &mut self.notes);
    }

    /// A number that distinguishes it from lookups that began at the same time: part of its journey's trace id.
    pub(crate) fn seed(&self) -> u64 {
        let first = self.sent.first();
        let socket = first.map_or(0, |sent| sent.socket ^ u64::from(sent.client.port()) << 48);
        self.names
            .iter()
            .fold(socket, |seed, name| seed::fold(seed, name.as_bytes()))
    }

    /// How many queries of which type went over which transport.
    pub(crate) fn queries(&self) -> &[(QueryType, Transport, u32)] {
        &self.counted
    }
}

/// The labels that all names begin with, without the last dot: the name as the program meant it.
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
