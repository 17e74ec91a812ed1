//! Names the cause of a lookup or connect that went badly, from what was observed: drops, conntrack's counters and
//! entries, answers.
//!
//! Used by `endings.rs`, for exchanges that have ended. Each cause is a function that returns `None` without evidence;
//! `cause_of_lookup` and `cause_of_connect` try them in order, the most specific first. To add one: a function here,
//! its name with an explanation in `registry::CAUSES`, and a scene in `tests/scenes/causes.rs`.
//! A cause carries its evidence and a confidence. The race of two queries of one socket for one conntrack entry
//! (kubernetes/kubernetes#56903) is named only if the counters or a drop show that an entry lost: from the client's
//! side a silent server looks the same.
//! Does not: look at anything that is still open.
//!
//! The causes of a lookup in the order in which they are tried:
//! - `conntrack_race`: two simultaneous queries of one socket of which exactly one was answered, and conntrack's
//!   counters, a drop or a translation.
//! - `conntrack_table_full`: packets dropped while the table was at least 95 % full.
//! - `packet_drop`: the kernel dropped a packet of it.
//! - `truncation`, `dns_server_error`: what a server answered.
//! - `dns_server_silent`, `dns_server_slow`: an answer is missing or came late, and nothing shows a drop on this node.
//! - `search_path`, `dns_server_slow`: all queries were answered, and it took long.

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
use crate::traffic::lookup::Lookup;
use crate::traffic::lookup::question::{RETRY_NS, SentQuery};
use crate::traffic::packet::Dropped;

/// Queries of one socket within this time count as simultaneous: the second passes the first hook before the entry of
/// the first is confirmed at the last one (`__nf_conntrack_confirm`, net/netfilter/nf_conntrack_core.c).
const RACE_NS: u64 = 2 * MILLISECOND;
/// A drop this soon after a query is that query's: it happens in the same send call.
const DROP_NS: u64 = 10 * MILLISECOND;
/// The shortest time after which a resolver repeats a query: 1 s with `options timeout:1` (resolv.conf(5)), less some
/// margin. Defaults are 5 s in glibc (`RES_TIMEOUT`) and 2.5 s in musl (timeout 5 s over 2 attempts,
/// src/network/res_msend.c).
const RESOLVER_NS: u64 = 900 * MILLISECOND;

/// Two simultaneous queries of one socket, of which one was not answered.
#[derive(Clone, Copy, Debug)]
struct Race {
    /// When the later of the two was sent.
    at: Timestamp,
    /// Record type of the query without an answer.
    missed: u16,
    /// Record type of the query that was answered.
    other: u16,
    /// Time between the two.
    apart_ns: u64,
    /// How long the resolver waited before it repeated the query; `None` if it did not.
    waited_ns: Option<u64>,
}

/// Why a lookup becomes a journey; `None` if it went well, or if its result is not known and there is nothing to
/// explain. The order is that of severity.
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

/// Why a connect becomes a journey; `None` if it went well.
pub(crate) fn reason_of_connect(connect: &Connect, end: Timestamp, config: &TrafficBounds) -> Option<JourneyReason> {
    let slow = end.since(connect.start) > config.slow_connect_ns;
    let failed = match connect.failure() {
        // A program that tries several addresses at once closes the others as soon as one is established (RFC 8305,
        // section 5).
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

/// Drops that explain something. A packet that came after its socket was closed harmed nobody: the second answer of two
/// servers that were both queried.
fn harmful(drops: &[Dropped]) -> impl Iterator<Item = &Dropped> {
    drops
        .iter()
        .filter(|dropped| !(dropped.inbound && &*dropped.reason == "NO_SOCKET"))
}

/// The packet was dropped by netfilter: a rule, or conntrack (`SKB_DROP_REASON_NETFILTER_DROP`,
/// include/net/dropreason-core.h). Before Linux 5.17 only the function shows that.
fn by_netfilter(dropped: &Dropped) -> bool {
    dropped.reason.starts_with("NETFILTER") || dropped.function.contains("nf_")
}

/// A drop as evidence. `packet` names what was dropped on the way out.
fn drop_sentence(dropped: &Dropped, packet: &str) -> String {
    let by = match &*dropped.function {
        "" => String::new(),
        function => format!(" in {function}"),
    };
    let way = if dropped.inbound { "answer" } else { packet };
    format!("the kernel dropped the {way}: {}{by}", dropped.reason)
}

/// A cause by its name in the registry. `evidence` are sentences for people, the strongest first.
fn cause(cause: &str, confidence: Confidence, evidence: Vec<String>) -> Cause {
    Cause {
        cause: cause.to_owned(),
        confidence,
        evidence,
    }
}

/// The history of conntrack's counters, as evidence about packets of one owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConntrackEvidence<'a> {
    /// Readings of all namespaces.
    counters: &'a CounterHistory,
    /// Inode of the node's network namespace; `None` while no source observes traffic.
    node: Option<u64>,
}

impl<'a> ConntrackEvidence<'a> {
    pub(crate) fn new(counters: &'a CounterHistory, node: Option<u64>) -> ConntrackEvidence<'a> {
        ConntrackEvidence { counters, node }
    }

    /// The network namespaces that a packet of this owner passes, and so the conntrack tables: its own, and the node's.
    fn tables(&self, owner: &Owner) -> [u64; 2] {
        [owner.netns, self.node.unwrap_or(owner.netns)]
    }

    /// The cause of a lookup that went badly. Never `None` for one that took long: the last resort is that a server was
    /// slow.
    pub(crate) fn cause_of_lookup(&self, lookup: &Lookup, result: LookupResult, end: Timestamp) -> Option<Cause> {
        let tables = self.tables(&lookup.owner);
        // Each missed query has its own window: counters may have grown around one of them only.
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

    /// The race of two queries. Certain with a counter and a drop, likely with a counter, possible if conntrack is
    /// known to translate the service's address and its counters cannot be read. Otherwise `None`: a silent server is
    /// then as likely.
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
            // A resolved clash lets both packets through, so something must have dropped one of them in that window; with
            // a full table that was the table.
            evidence.push(format!("conntrack's clash_resolve rose by {} then", rise.clash_resolve));
            Confidence::Likely
        } else if !rise.counted && dropped.is_none() && lookup.drops.is_empty() {
            // Without counters the translation shows at least that the race is possible.
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

/// Looks for two simultaneous queries of one socket to one server, for different questions, of which exactly one was
/// answered. The other must have been repeated after a resolver's timeout, or never.
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

/// Conntrack had no room for an entry: it dropped packets while the table was at least 95 % full. On this condition the
/// kernel logs "nf_conntrack: table full, dropping packet".
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

/// A server answered that it could not resolve the name (SERVFAIL, REFUSED and others, RFC 1035 4.1.1), or truncated
/// the answer and did not answer over TCP.
fn answered_badly(lookup: &Lookup, result: LookupResult) -> Option<Cause> {
    // A truncated answer obliges the client to use TCP (RFC 7766, section 5), which firewalls often forget.
    let silent = lookup.sent.iter().any(SentQuery::is_missed);
    if lookup.truncated && result == LookupResult::Unanswered {
        let evidence = vec!["the answer was cut, and over TCP none came".to_owned()];
        return Some(cause("truncation", Confidence::Certain, evidence));
    }
    let (server, rcode) = lookup.error?;
    // The error did not delay the lookup: another server's silence did.
    if result.is_answer() && silent {
        return None;
    }
    let name = LookupResult::Rcode(rcode).as_str();
    let evidence = vec![format!("{server} answered {name}")];
    Some(cause("dns_server_error", Confidence::Certain, evidence))
}

/// A query was not answered, and nothing shows that it was dropped on this node: the server is silent, or slow if an
/// answer came after the query had been repeated. Likely if conntrack's counters are read and no record was lost. Never
/// certain: a packet may be lost on the network or on the server's node, which the agent of that node would see.
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

/// Every query was answered, and the lookup still took long: the search path if it took at least half of the time, else
/// the slowest server.
fn slowness(lookup: &Lookup, end: Timestamp) -> Cause {
    let total = end.since(lookup.start);
    let decided = lookup.questions.iter().filter(|state| state.name == lookup.current());
    let before = decided
        .map(|state| state.first)
        .min()
        .unwrap_or(lookup.start)
        .since(lookup.start);
    // Time before the first query of the current name went to earlier names.
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
    /// The cause of a connect that went badly. `None` for a reset or another error of the socket, which say all there
    /// is.
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
        // The most specific first, as for a lookup.
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
