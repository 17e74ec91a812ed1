//! Why lookups and connections go badly, from what was seen: drops, conntrack's counters and entries, answers.
//!
//! A cause is named only with what speaks for it, and with how much that is. The race of two queries of one socket for
//! one conntrack entry (kubernetes#56903) is named only when the counters, or a drop, say that an entry lost: a server
//! that is silent looks the same from the client's side. Does not: look at anything but what is over.

use sandglass_model::Timestamp;
use sandglass_model::network::{ConnectFailure, Transport};
use sandglass_model::phases::human;
use sandglass_model::time::MILLISECOND;
use sandglass_model::trace::{Cause, Confidence, JourneyReason, LookupResult};

use crate::config::TrafficBounds;
use crate::notes::type_name;
use crate::owner::Owner;
use crate::traffic::connect::Connect;
use crate::traffic::counters::{CounterHistory, Rise};
use crate::traffic::lookup::matching::RETRY_NS;
use crate::traffic::lookup::{Dropped, Lookup, SentQuery};

/// Queries of one socket within this time are sent at the same instant: the second leaves before the first's conntrack
/// entry is confirmed.
const RACE_NS: u64 = 2 * MILLISECOND;
/// A drop so soon after a query is that query's.
const DROP_NS: u64 = 10 * MILLISECOND;
/// Resolvers wait at least so long (`timeout:1`; by default 5 s in glibc, 2.5 s in musl).
const RESOLVER_NS: u64 = 900 * MILLISECOND;

/// Two queries of one socket at one instant, one of them not answered.
#[derive(Clone, Copy, Debug)]
struct Race {
    at: Timestamp,
    /// The type whose query got no answer, and the other.
    missed: u16,
    other: u16,
    apart_ns: u64,
    /// How long the resolver waited; `None` when it gave up.
    waited_ns: Option<u64>,
}

/// Why a lookup deserves a journey; `None` when it went well.
pub(crate) fn reason_of_lookup(
    lookup: &Lookup,
    result: LookupResult,
    end: Timestamp,
    config: &TrafficBounds,
) -> Option<JourneyReason> {
    if result == LookupResult::Unknown {
        // Nothing is known of how it went, so there is nothing to explain.
        None
    } else if result == LookupResult::Open {
        (end.since(lookup.start) > config.slow_lookup_ns).then_some(JourneyReason::Slow)
    } else if !result.is_answer() {
        Some(JourneyReason::Failed)
    } else if harmful(&lookup.drops).next().is_some() {
        Some(JourneyReason::Dropped)
    } else if lookup.retransmissions > 0 {
        Some(JourneyReason::Retried)
    } else {
        (end.since(lookup.start) > config.slow_lookup_ns).then_some(JourneyReason::Slow)
    }
}

/// Why a connect deserves a journey; `None` when it went well.
pub(crate) fn reason_of_connect(connect: &Connect, end: Timestamp, config: &TrafficBounds) -> Option<JourneyReason> {
    let slow = end.since(connect.start) > config.slow_connect_ns;
    let failed = match connect.failure() {
        // Programs that try several addresses at once close the others as soon as one is established.
        Some(ConnectFailure::Abandoned) => slow || connect.retransmits > 0,
        Some(_) => true,
        None => false,
    };
    if failed {
        Some(JourneyReason::Failed)
    } else if harmful(&connect.drops).next().is_some() {
        Some(JourneyReason::Dropped)
    } else if connect.retransmits > 0 {
        Some(JourneyReason::Retried)
    } else {
        slow.then_some(JourneyReason::Slow)
    }
}

/// A packet that came when its socket was gone harmed nobody: the second answer of two servers that were both asked.
fn harmful(drops: &[Dropped]) -> impl Iterator<Item = &Dropped> {
    drops
        .iter()
        .filter(|dropped| !(dropped.inbound && &*dropped.reason == "NO_SOCKET"))
}

fn by_netfilter(dropped: &Dropped) -> bool {
    dropped.reason.starts_with("NETFILTER") || dropped.function.contains("nf_")
}

fn drop_sentence(dropped: &Dropped, packet: &str) -> String {
    let by = match &*dropped.function {
        "" => String::new(),
        function => format!(" in {function}"),
    };
    let way = if dropped.inbound { "answer" } else { packet };
    format!("the kernel dropped the {way}: {}{by}", dropped.reason)
}

fn cause(cause: &str, confidence: Confidence, evidence: Vec<String>) -> Cause {
    Cause {
        cause: cause.to_owned(),
        confidence,
        evidence,
    }
}

/// Conntrack's counters, as evidence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConntrackEvidence<'a> {
    counters: &'a CounterHistory,
    /// The network namespace of the node, where it is known.
    node: Option<u64>,
}

impl<'a> ConntrackEvidence<'a> {
    pub(crate) fn new(counters: &'a CounterHistory, node: Option<u64>) -> ConntrackEvidence<'a> {
        ConntrackEvidence { counters, node }
    }

    /// Conntrack's tables that a packet of this owner goes through.
    fn tables(&self, owner: &Owner) -> [u64; 2] {
        [owner.netns, self.node.unwrap_or(owner.netns)]
    }

    pub(crate) fn cause_of_lookup(&self, lookup: &Lookup, result: LookupResult, end: Timestamp) -> Option<Cause> {
        let tables = self.tables(&lookup.owner);
        let unanswered = lookup.sent.iter().filter(|sent| sent.is_missed());
        let rises: Vec<Rise> = unanswered.map(|sent| self.counters.around(tables, sent.at)).collect();
        let counted = self.counters.around(tables, lookup.start).counted;
        self.race_of(lookup)
            .or_else(|| full_table(&rises, &lookup.drops))
            .or_else(|| {
                let dropped = harmful(&lookup.drops).next()?;
                Some(cause(
                    "packet_drop",
                    Confidence::Certain,
                    vec![drop_sentence(dropped, "query")],
                ))
            })
            .or_else(|| answered_badly(lookup, result))
            .or_else(|| silence(lookup, counted))
            .or_else(|| Some(slowness(lookup, end)))
    }

    fn race_of(&self, lookup: &Lookup) -> Option<Cause> {
        let race = race_in(lookup)?;
        let rise = self.counters.around(self.tables(&lookup.owner), race.at);
        let dropped = harmful(&lookup.drops)
            .find(|dropped| by_netfilter(dropped) && !dropped.inbound && dropped.at.since(race.at) <= DROP_NS);
        let mut evidence = vec![
            format!(
                "{} and {} were asked from one socket within {}",
                type_name(race.other),
                type_name(race.missed),
                human(race.apart_ns.max(1_000))
            ),
            match race.waited_ns {
                Some(waited) => format!(
                    "{} got no answer and was sent again after {}",
                    type_name(race.missed),
                    human(waited)
                ),
                None => format!("{} never got an answer", type_name(race.missed)),
            },
        ];
        evidence.extend(dropped.map(|dropped| drop_sentence(dropped, "query")));
        let confidence = if rise.insert_failed > 0 {
            evidence.push(format!("conntrack's insert_failed rose by {} then", rise.insert_failed));
            if dropped.is_some() {
                Confidence::Certain
            } else {
                Confidence::Likely
            }
        } else if rise.clash_resolve > 0 && (rise.drop > 0 || dropped.is_some()) && rise.full.is_none() {
            evidence.push(format!("conntrack's clash_resolve rose by {} then", rise.clash_resolve));
            Confidence::Likely
        } else if !rise.counted && dropped.is_none() && lookup.drops.is_empty() {
            let backend = lookup.backend?;
            evidence.push(format!(
                "conntrack translated {} to {backend} for one of both, its counters cannot be read",
                lookup.servers.first()?
            ));
            Confidence::Possible
        } else {
            return None;
        };
        Some(cause("conntrack_race", confidence, evidence))
    }
}

/// Looks for two queries of one socket at one instant of which exactly one was answered.
fn race_in(lookup: &Lookup) -> Option<Race> {
    let first: Vec<_> = lookup
        .sent
        .iter()
        .filter(|sent| sent.transport == Transport::Udp && !sent.again)
        .collect();
    for (index, one) in first.iter().enumerate() {
        for other in &first[index + 1..] {
            let apart_ns = other.at.since(one.at);
            let alike = one.client == other.client && one.server == other.server && one.question != other.question;
            if !alike || apart_ns > RACE_NS || one.answered.is_some() == other.answered.is_some() {
                continue;
            }
            let (missed, came) = if one.answered.is_none() {
                (one, other)
            } else {
                (other, one)
            };
            let again = lookup
                .sent
                .iter()
                .find(|sent| sent.question == missed.question && sent.again && sent.at.since(missed.at) >= RETRY_NS);
            let waited_ns = again.map(|again| again.at.since(missed.at));
            let gave_up = lookup.questions[missed.question].outcome.is_none();
            if waited_ns.is_none() && !gave_up || waited_ns.is_some_and(|waited| waited < RESOLVER_NS) {
                continue;
            }
            return Some(Race {
                at: missed.at.max(came.at),
                missed: lookup.questions[missed.question].kind,
                other: lookup.questions[came.question].kind,
                apart_ns,
                waited_ns,
            });
        }
    }
    None
}

fn full_table(rises: &[Rise], drops: &[Dropped]) -> Option<Cause> {
    let rise = rises.iter().find(|rise| rise.drop > 0 && rise.full.is_some())?;
    let (entries, limit) = rise.full?;
    let mut evidence = vec![
        format!("conntrack's table had {entries} of {limit} entries"),
        format!("conntrack dropped {} packets for want of an entry then", rise.drop),
    ];
    let dropped = harmful(drops).find(|dropped| by_netfilter(dropped));
    evidence.extend(dropped.map(|dropped| drop_sentence(dropped, "packet")));
    let confidence = if dropped.is_some() {
        Confidence::Certain
    } else {
        Confidence::Likely
    };
    Some(cause("conntrack_table_full", confidence, evidence))
}

/// A server said that it could not.
fn answered_badly(lookup: &Lookup, result: LookupResult) -> Option<Cause> {
    let silent = lookup.sent.iter().any(SentQuery::is_missed);
    if lookup.truncated && result == LookupResult::Unanswered {
        let evidence = vec!["the answer was cut, and over TCP none came".to_owned()];
        return Some(cause("truncation", Confidence::Certain, evidence));
    }
    let (server, rcode) = lookup.error?;
    if result.is_answer() && silent {
        return None;
    }
    let name = LookupResult::Rcode(rcode).as_str();
    let evidence = vec![format!("{server} answered {name}")];
    Some(cause("dns_server_error", Confidence::Certain, evidence))
}

/// A query was not answered, and nothing says that it was dropped here.
fn silence(lookup: &Lookup, counted: bool) -> Option<Cause> {
    let missed = lookup.sent.iter().filter(|sent| sent.is_missed());
    let missed: Vec<_> = missed
        .filter(|sent| lookup.questions[sent.question].retried || lookup.unanswered() > 0)
        .collect();
    let first = missed.first()?;
    let mut evidence = vec![format!(
        "{} of {} queries got no answer, the first of them to {}",
        missed.len(),
        lookup.sent.len(),
        first.server
    )];
    if lookup.late > 0 {
        evidence.push("an answer came after the query had been sent again".to_owned());
        return Some(cause("dns_server_slow", Confidence::Likely, evidence));
    }
    if counted {
        evidence.push("conntrack's counters speak of no drop then".to_owned());
    }
    let confidence = if counted && !lookup.lost {
        Confidence::Likely
    } else {
        Confidence::Possible
    };
    Some(cause("dns_server_silent", confidence, evidence))
}

/// Every query was answered, and it still took long.
fn slowness(lookup: &Lookup, end: Timestamp) -> Cause {
    let total = end.since(lookup.start);
    let decided = lookup.questions.iter().filter(|state| state.name == lookup.current());
    let before = decided
        .map(|state| state.first)
        .min()
        .unwrap_or(lookup.start)
        .since(lookup.start);
    if lookup.names.len() > 1 && before * 2 >= total {
        let missing = lookup.names.len() - 1;
        let evidence = vec![
            format!(
                "{} names were asked, {missing} of them because of the search path",
                lookup.names.len()
            ),
            format!("these took {} of {}", human(before), human(total)),
        ];
        return cause("search_path", Confidence::Certain, evidence);
    }
    let slowest = lookup
        .sent
        .iter()
        .filter_map(|sent| Some((sent.answered?.since(sent.at), sent)))
        .max_by_key(|(took, _)| *took);
    let evidence = slowest.map(|(took, sent)| format!("{} answered after {}", sent.server, human(took)));
    cause("dns_server_slow", Confidence::Likely, evidence.into_iter().collect())
}

impl ConntrackEvidence<'_> {
    pub(crate) fn cause_of_connect(&self, connect: &Connect, end: Timestamp) -> Option<Cause> {
        let took = human(end.since(connect.start));
        match connect.failure() {
            Some(ConnectFailure::Refused) => {
                let evidence = vec![format!("{} answered with a reset after {took}", connect.remote)];
                return Some(cause("connect_refused", Confidence::Certain, evidence));
            }
            Some(ConnectFailure::Unreachable) => {
                let evidence = vec![format!("there is no way to {}", connect.remote)];
                return Some(cause("unreachable", Confidence::Certain, evidence));
            }
            Some(ConnectFailure::Reset | ConnectFailure::Other) => return None,
            Some(ConnectFailure::TimedOut | ConnectFailure::Abandoned) | None => {}
        }
        let tables = self.tables(&connect.owner);
        let rise = self.counters.around(tables, connect.start);
        if let Some(full) = full_table(&[rise], &connect.drops) {
            return Some(full);
        }
        if let Some(dropped) = harmful(&connect.drops).next() {
            return Some(cause(
                "packet_drop",
                Confidence::Certain,
                vec![drop_sentence(dropped, "SYN")],
            ));
        }
        let mut evidence = vec![match (connect.retransmits, connect.failure()) {
            (0, _) => format!("{} took {took} to answer", connect.remote),
            (again, None) => format!(
                "the SYN to {} was sent {again} times more before an answer came",
                connect.remote
            ),
            (again, Some(_)) => format!(
                "no answer from {} to {} SYNs in {took}",
                connect.remote,
                again.saturating_add(1)
            ),
        }];
        if rise.counted {
            evidence.push("conntrack's counters speak of no drop then".to_owned());
        }
        let confidence = match rise.counted && !connect.lost && connect.retransmits > 0 {
            true => Confidence::Likely,
            false => Confidence::Possible,
        };
        Some(cause("connect_silent", confidence, evidence))
    }
}
