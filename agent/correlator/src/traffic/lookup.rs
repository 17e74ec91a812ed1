//! One lookup: what was asked for one name, from its first query to its last answer.
//!
//! A name is asked as several questions (A, AAAA), each question as one message or more (retries, other servers, TCP),
//! and the search path makes several names of one. Here is what is known of all that and what it comes to; which message
//! belongs to which lookup is found in `lookups.rs`. Does not: know of other lookups.

pub(crate) mod matching;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::network::{Answer, Asker, DnsMessage, Question, Transport};
use sandglass_model::trace::{LookupDetail, LookupResult, Status};

use self::matching::{Manner, PARALLEL_NS, RETRY_NS};
use crate::collections::mix::mix;
use crate::open::TraceKey;
use crate::traffic::notes::{self, Note, What, type_name};
use crate::traffic::owners::Party;
use crate::traffic::{QueryType, TrafficConfig};

/// An open lookup.
#[derive(Debug)]
pub(crate) struct Lookup {
    pub(crate) party: Party,
    pub(crate) asker: Option<Asker>,
    pub(crate) start: Timestamp,
    /// Names tried, in the order of trying. Never empty.
    pub(crate) names: Vec<Arc<str>>,
    pub(crate) questions: Vec<Asked>,
    /// Messages sent; those beyond the bound are only counted.
    pub(crate) sent: Vec<Sent>,
    queries: u32,
    pub(crate) retransmissions: u32,
    asked: Vec<(QueryType, Transport, u32)>,
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
    transport: Transport,
    last_answer: Timestamp,
    pub(crate) notes: Vec<Note>,
    /// The trace of its sandbox's creation, before its network is ready.
    pub(crate) home: Option<TraceKey>,
    /// Records were lost while it was open.
    pub(crate) lost: bool,
}

/// A question of a lookup.
#[derive(Debug)]
pub(crate) struct Asked {
    /// Index in [`Lookup::names`].
    pub(crate) name: usize,
    pub(crate) kind: u16,
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    /// It was sent again because no answer came.
    pub(crate) retried: bool,
    pub(crate) outcome: Option<Outcome>,
}

/// What a question's answer said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    at: Timestamp,
    pub(crate) rcode: u16,
    pub(crate) records: u16,
    pub(crate) truncated: bool,
    /// It came from elsewhere than it was asked of: it counts until the question is asked again.
    elsewhere: bool,
}

impl Outcome {
    /// There is such a name, or there is none; not cut.
    fn is_final(self) -> bool {
        LookupResult::Rcode(self.rcode).is_answer() && !self.truncated
    }

    /// It names something.
    pub(crate) fn is_useful(self) -> bool {
        self.rcode == 0 && (self.records > 0 || self.truncated)
    }
}

/// A message of a lookup.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) at: Timestamp,
    /// Index in [`Lookup::questions`].
    pub(crate) question: usize,
    pub(crate) socket: u64,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) transport: Transport,
    pub(crate) id: u16,
    pub(crate) answered: Option<Timestamp>,
    /// It repeats a question.
    pub(crate) again: bool,
    /// The client asked over TCP instead of waiting on.
    pub(crate) left: bool,
}

impl Sent {
    /// It asks again what had been answered: the resolver begins anew, or goes over to TCP with both questions.
    fn is_after(&self, outcome: Outcome) -> bool {
        (self.again || self.transport == Transport::Tcp) && self.at > outcome.at
    }

    /// It was waited for in vain.
    pub(crate) fn is_missed(&self) -> bool {
        self.answered.is_none() && !self.left
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
    pub(crate) fn new(at: Timestamp, party: Party, message: &DnsMessage, name: &str) -> Lookup {
        Lookup {
            party,
            asker: message.asker.clone(),
            start: at,
            names: vec![name.into()],
            questions: Vec::with_capacity(2),
            sent: Vec::with_capacity(2),
            queries: 0,
            retransmissions: 0,
            asked: Vec::new(),
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
            .position(|asked| asked.kind == question.kind && *self.names[asked.name] == *question.name)
    }

    /// Takes a message that asks `question` of the name that is tried now, or of one tried before. `false` when it came
    /// before or is beyond the bounds.
    pub(crate) fn ask(&mut self, at: Timestamp, message: &DnsMessage, question: &Question, manner: Manner) -> bool {
        let known = self.question(question);
        if known.is_some_and(|known| self.has(at, message, known)) {
            return false;
        }
        let index = match known {
            Some(index) => index,
            None if self.questions.len() == MAX_QUESTIONS => return false,
            None => {
                self.questions.push(Asked {
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
        let again = manner == Manner::Again;
        if self.goes_over_to_tcp(message, index) {
            let mut sent = self.sent.iter_mut();
            if let Some(last) = sent.rfind(|sent| sent.question == index) {
                last.left = at.since(last.at) < RETRY_NS;
            }
        }
        if again {
            self.disbelieve(index);
        }
        let asked = &mut self.questions[index];
        asked.last = asked.last.max(at);
        asked.retried |= again;
        if asked.outcome.is_some_and(|outcome| !outcome.is_final()) {
            asked.outcome = None;
        }
        self.queries = self.queries.saturating_add(1);
        self.retransmissions = self.retransmissions.saturating_add(u32::from(again));
        self.count(QueryType::of(question.kind), message.transport);
        if self.servers.len() < MAX_SERVERS && !self.servers.contains(&message.server) {
            self.servers.push(message.server);
        }
        if self.asker.is_none() {
            self.asker.clone_from(&message.asker);
        }
        if self.sent.len() < MAX_SENT {
            self.sent.push(Sent {
                at,
                question: index,
                socket: message.socket,
                client: message.client,
                server: message.server,
                transport: message.transport,
                id: message.id,
                answered: None,
                again,
                left: false,
            });
        }
        let what = What::Query {
            name: Arc::clone(&self.names[self.questions[index].name]),
            kind: question.kind,
            id: message.id,
            server: message.server,
            transport: message.transport,
            again,
        };
        notes::add(&mut self.notes, at, what);
        true
    }

    /// The client did not take an answer from elsewhere.
    fn disbelieve(&mut self, question: usize) {
        let asked = &mut self.questions[question];
        let Some(outcome) = asked.outcome.filter(|outcome| outcome.elsewhere) else {
            return;
        };
        asked.outcome = None;
        self.addresses.clear();
        for sent in &mut self.sent {
            if sent.question == question && sent.answered == Some(outcome.at) {
                sent.answered = None;
            }
        }
    }

    fn count(&mut self, kind: QueryType, transport: Transport) {
        let mut asked = self.asked.iter_mut();
        match asked.find(|(of, over, _)| *of == kind && *over == transport) {
            Some((_, _, count)) => *count = count.saturating_add(1),
            None => self.asked.push((kind, transport, 1)),
        }
    }

    /// Takes an answer to the message at `index`.
    pub(crate) fn answer(&mut self, at: Timestamp, index: usize, message: &DnsMessage, answer: &Answer, late: bool) {
        let Some(sent) = self.sent.get_mut(index) else {
            return;
        };
        sent.answered = sent.answered.or(Some(at));
        let asked = &mut self.questions[sent.question];
        let what = What::Answer {
            kind: asked.kind,
            id: message.id,
            rcode: answer.rcode,
            truncated: answer.truncated,
            late,
        };
        let new = notes::add(&mut self.notes, at, what);
        if late {
            self.late = self.late.saturating_add(u32::from(new));
            return;
        }
        asked.outcome = Some(Outcome {
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

    /// The kernel dropped a packet of it.
    pub(crate) fn drop_packet(&mut self, dropped: Dropped) {
        if self.drops.len() == MAX_DROPS || self.drops.iter().any(|known| known.at == dropped.at) {
            return;
        }
        let what = What::Drop {
            reason: Arc::clone(&dropped.reason),
            function: Arc::clone(&dropped.function),
        };
        notes::add(&mut self.notes, dropped.at, what);
        self.drops.push(dropped);
    }

    /// The question has no answer that would do.
    fn waits(&self, index: usize) -> bool {
        let asked = &self.questions[index];
        match asked.outcome {
            None => true,
            Some(outcome) if LookupResult::Rcode(outcome.rcode).is_answer() => {
                let mut sent = self.sent.iter().filter(|sent| sent.question == index);
                sent.any(|sent| sent.answered.is_none() && sent.is_after(outcome))
            }
            // One server could not, another one has been asked too.
            Some(_) => self.sent.iter().any(|sent| {
                sent.question == index && sent.answered.is_none() && sent.at.since(asked.first) <= PARALLEL_NS
            }),
        }
    }

    /// Some answer is missing.
    pub(crate) fn is_waiting(&self) -> bool {
        (0..self.questions.len()).any(|index| self.waits(index))
    }

    /// The name that is tried now came to nothing: every answer is there, and none names anything.
    pub(crate) fn came_to_nothing(&self) -> bool {
        let current = self.current();
        let mut outcomes = self.questions.iter().filter(|asked| asked.name == current);
        !self.is_waiting() && !outcomes.any(|asked| asked.outcome.is_some_and(Outcome::is_useful))
    }

    pub(crate) fn last_answer(&self) -> Timestamp {
        self.last_answer
    }

    /// When something was last heard of it.
    pub(crate) fn last_sign(&self) -> Timestamp {
        let asked = self.questions.iter().map(|asked| asked.last).max();
        asked.unwrap_or(self.start).max(self.last_answer)
    }

    /// When it is over if nothing more comes.
    pub(crate) fn due(&self, config: &TrafficConfig) -> Timestamp {
        // Whether an answer from elsewhere was taken shows when the question is asked again, or not.
        let doubted = |index: usize| self.questions[index].outcome.is_some_and(|outcome| outcome.elsewhere);
        let waiting = (0..self.questions.len()).filter(|&index| self.waits(index) || doubted(index));
        let deadline = waiting.map(|index| self.questions[index].first).max();
        match deadline {
            Some(first) => first.plus(config.lookup_deadline_ns),
            None => self.last_answer.plus(config.search_gap_ns),
        }
    }

    /// How it ends when it ends by `now`: the result, and when.
    pub(crate) fn ending(&self, now: Timestamp) -> (LookupResult, Timestamp) {
        let result = self.result();
        let any_answer = self.questions.iter().any(|asked| asked.outcome.is_some());
        // A question that was asked once and never again was not waited for: the program went on with the other answer.
        let missed = self
            .questions
            .iter()
            .enumerate()
            .filter(|(_, asked)| asked.outcome.is_none() && (asked.retried || !any_answer));
        let given_up = missed.map(|(index, asked)| {
            let pause = self.last_pause(index);
            // Resolvers wait after their last attempt as long as before it.
            pause.map_or(now, |pause| asked.last.plus(pause)).min(now)
        });
        let end = given_up.max().unwrap_or(self.last_answer);
        (result, end.max(self.last_answer).max(self.start))
    }

    /// Time between the last two times a question was sent for want of an answer.
    fn last_pause(&self, question: usize) -> Option<u64> {
        let mut again = self.sent.iter().rev().filter(|sent| sent.question == question);
        let last = again.find(|sent| sent.again)?;
        let before = again.find(|sent| last.at.since(sent.at) >= RETRY_NS)?;
        Some(last.at.since(before.at))
    }

    fn result(&self) -> LookupResult {
        let current = self.current();
        let of_current = self.questions.iter().filter(|asked| asked.name == current);
        let outcomes: Vec<Outcome> = of_current.filter_map(|asked| asked.outcome).collect();
        let useful = outcomes.iter().find(|outcome| outcome.is_useful());
        let answer = outcomes
            .iter()
            .find(|outcome| LookupResult::Rcode(outcome.rcode).is_answer());
        match useful.or(answer).or(outcomes.last()) {
            Some(outcome) => LookupResult::Rcode(outcome.rcode),
            None => LookupResult::Unanswered,
        }
    }

    /// Questions that never got an answer.
    pub(crate) fn unanswered(&self) -> u32 {
        let unanswered = self.questions.iter().filter(|asked| asked.outcome.is_none());
        u32::try_from(unanswered.count()).unwrap_or(u32::MAX)
    }

    /// The name as the program meant it: what all names tried have in common.
    pub(crate) fn name(&self) -> String {
        base(self.names.iter().map(AsRef::as_ref)).to_owned()
    }

    /// The lookup as a span shows it, with its result once it has one.
    pub(crate) fn detail(&self, result: Option<LookupResult>) -> LookupDetail {
        let mut kinds: Vec<u16> = Vec::new();
        for asked in &self.questions {
            if !kinds.contains(&asked.kind) {
                kinds.push(asked.kind);
            }
        }
        LookupDetail {
            name: self.name(),
            types: kinds.into_iter().map(type_name).collect(),
            servers: self.servers.clone(),
            transport: self.transport,
            result,
            queries: self.queries,
            retransmissions: self.retransmissions,
            unanswered: if result.is_some() { self.unanswered() } else { 0 },
            search_names: u32::try_from(self.names.len() - 1).unwrap_or(u32::MAX),
            truncated: self.truncated,
            addresses: self.addresses.clone(),
            backend: self.backend,
            asker: self.asker.clone(),
            cause: None,
        }
    }

    /// Tells it from others that began at the same time.
    pub(crate) fn seed(&self) -> u64 {
        let first = self.sent.first();
        let socket = first.map_or(0, |sent| sent.socket ^ u64::from(sent.client.port()) << 48);
        self.names.iter().fold(socket, |seed, name| mix(seed, name.as_bytes()))
    }

    /// How many queries of which type went over which transport.
    pub(crate) fn asked(&mut self) -> Vec<(QueryType, Transport, u32)> {
        std::mem::take(&mut self.asked)
    }
}

/// Success or failure of a lookup with this result.
pub(crate) fn status(name: &str, result: LookupResult) -> Status {
    if result.is_answer() {
        return Status::Unset;
    }
    let (class, what) = match result.as_str() {
        "servfail" => ("dns_servfail", "the server failed (SERVFAIL)"),
        "refused" => ("dns_refused", "the server refused (REFUSED)"),
        "formerr" => ("dns_formerr", "the server did not understand (FORMERR)"),
        "notimp" => ("dns_notimp", "the server does not do that (NOTIMP)"),
        "timeout" => ("dns_timeout", "no answer"),
        _ => ("dns_other", "the server answered with an error"),
    };
    Status::Error {
        class: class.to_owned(),
        message: format!("lookup of {name}: {what}"),
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

    #[test]
    fn failures_have_their_class() {
        let class = |result| match status("n", result) {
            Status::Error { class, .. } => class,
            Status::Unset => "-".to_owned(),
        };
        let results = [0, 1, 2, 3, 4, 5, 9].map(|rcode| class(LookupResult::Rcode(rcode)));
        let expected = [
            "-",
            "dns_formerr",
            "dns_servfail",
            "-",
            "dns_notimp",
            "dns_refused",
            "dns_other",
        ];
        assert_eq!(results, expected);
        assert_eq!(class(LookupResult::Unanswered), "dns_timeout");
        let known = sandglass_model::registry::ERROR_TYPES;
        assert!(
            results
                .iter()
                .all(|class| class == "-" || known.contains(&class.as_str()))
        );
    }
}
