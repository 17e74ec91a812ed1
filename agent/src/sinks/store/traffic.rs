//! What a trace's lookups and connections say of it: when its network proved usable, why it went badly, in one sentence.
//!
//! Used by [`super::row`]. Does not: look at the set-up (`phases::verdict` does), or at other traces.

use sandglass_model::phases::{self, Breakdown, Phase, human};
use sandglass_model::trace::{Cause, Detail, Span, Trace};
use sandglass_model::{Timestamp, registry};
use serde::Serialize;

use crate::sinks::creation;

/// How a sandbox's network proved usable. Times are nanoseconds from the begin of the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Network {
    /// How that stands.
    pub state: NetworkState,
    /// When the sandbox was ready.
    pub created_ns: u64,
    /// Its first query or SYN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_attempt_ns: Option<u64>,
    /// When its network had proven usable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_ns: Option<u64>,
    /// From the first attempt to that, or to the end of the last attempt: the network's own part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ns: Option<u64>,
}

/// Whether a sandbox's network proved usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkState {
    /// Its first traffic is waited for, or what it tries has not worked yet.
    Waiting,
    /// It has.
    Ready,
    /// It tried, and nothing worked.
    Failed,
}

impl Network {
    /// Of the trace of a sandbox that is created.
    #[must_use]
    pub fn of(trace: &Trace) -> Option<Network> {
        let Detail::Sandbox(sandbox) = &trace.root().detail else {
            return None;
        };
        let created = creation::created(trace)?;
        let usable = sandbox.network_ready;
        let state = match (usable, trace.closed, sandbox.first_attempt) {
            (Some(_), ..) => NetworkState::Ready,
            (None, false, _) => NetworkState::Waiting,
            (None, true, Some(_)) => NetworkState::Failed,
            (None, true, None) => return None,
        };
        let offset = |at: Timestamp| at.since(trace.start());
        let until = usable.or(trace.root().end);
        Some(Network {
            state,
            created_ns: offset(created),
            first_attempt_ns: sandbox.first_attempt.map(offset),
            ready_ns: usable.map(offset),
            wait_ns: sandbox
                .first_attempt
                .zip(until)
                .map(|(first, until)| until.since(first)),
        })
    }
}

/// Every cause in the trace, once each.
#[must_use]
pub fn causes(trace: &Trace) -> Vec<String> {
    let mut causes: Vec<String> = Vec::new();
    for cause in trace.spans.iter().filter_map(cause) {
        if !causes.contains(&cause.cause) {
            causes.push(cause.cause.clone());
        }
    }
    causes
}

/// One sentence about a trace in which no process failed: what took the most time that the node answers for.
#[must_use]
pub fn verdict(trace: &Trace, now: Timestamp) -> String {
    let creation = creation::created(trace).map(|created| creation::set_up(trace, created));
    let breakdown = Breakdown::of(trace, now);
    let is_traffic = |span: &Span| matches!(Phase::of(span), Phase::Lookup | Phase::Connect);
    let longest = (0..trace.spans.len())
        .filter(|&index| is_traffic(&trace.spans[index]) && breakdown.own_ns[index] > 0)
        .max_by_key(|&index| (breakdown.own_ns[index], std::cmp::Reverse(index)));
    let Some(longest) = longest else {
        return creation.map_or_else(|| phases::verdict(trace, now), |part| phases::verdict(&part, now));
    };
    let never = matches!(
        Network::of(trace),
        Some(Network {
            state: NetworkState::Failed,
            ..
        })
    );
    if let Some(part) = creation {
        let set_up = Breakdown::of(&part, now);
        let most = set_up.largest().map_or(0, |index| set_up.own_ns[index]);
        if !never && most >= breakdown.own_ns[longest] {
            return phases::verdict(&part, now);
        }
    }
    let span = &trace.spans[longest];
    let sentence = format!("{} took {}", words(span), human(span.duration_ns(now)));
    let sentence = because(sentence, cause(span));
    if never {
        format!("its network never proved usable: {sentence}")
    } else {
        sentence
    }
}

fn because(sentence: String, cause: Option<&Cause>) -> String {
    match cause {
        Some(cause) => format!(
            "{sentence}: {} ({})",
            registry::cause_text(&cause.cause),
            cause.confidence.as_str()
        ),
        None => sentence,
    }
}

fn words(span: &Span) -> String {
    match &span.detail {
        Detail::Lookup(lookup) => format!("lookup of {}", lookup.name),
        Detail::Connect(connect) if connect.name.is_empty() => format!("connect to {}", connect.remote),
        Detail::Connect(connect) => format!("connect to {} ({})", connect.name, connect.remote),
        _ => registry::name(span),
    }
}

fn cause(span: &Span) -> Option<&Cause> {
    match &span.detail {
        Detail::Lookup(lookup) => lookup.cause.as_ref(),
        Detail::Connect(connect) => connect.cause.as_ref(),
        _ => None,
    }
}
