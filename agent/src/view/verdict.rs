//! The verdict on a trace: one sentence that says what took the time, what failed, or what runs.
//!
//! Used by the list rows and the terminal. The sentence about a set-up is `phases::verdict`'s; this adds traffic and open
//! traces. Does not: look at other traces.

use sandglass_model::phases::{self, Breakdown, Phase, human};
use sandglass_model::trace::{Cause, Detail, Span, Trace};
use sandglass_model::{Timestamp, registry};

use super::open_spans::open_below;
use super::readiness::{Readiness, ReadinessState};
use crate::sinks::creation;
use crate::sinks::store::index::cause;

/// One sentence: what took the time or what failed; of an open trace without a failure, the processes that run and
/// the daemons that have requests, outermost first.
#[must_use]
pub fn verdict(trace: &Trace, now: Timestamp) -> String {
    if trace.culprit().is_some() {
        return phases::verdict(trace, now);
    }
    let open: Vec<String> = open_below(trace, 0)
        .into_iter()
        .filter(|span| span.process().is_some() || span.detail.as_daemon().is_some())
        .map(registry::name)
        .collect();
    if trace.closed || open.is_empty() {
        longest(trace, now)
    } else {
        format!("waits for {}{}", open.join(" › "), waiting(trace, now))
    }
}

/// What the outermost process that runs waits for in the kernel, and for how long by now, as the end of a sentence.
fn waiting(trace: &Trace, now: Timestamp) -> String {
    let mut open = open_below(trace, 0).into_iter();
    let waiting = open.find_map(|span| span.process()?.waiting.as_deref());
    waiting.map_or_else(String::new, |waiting| {
        let text = registry::waiting_text(waiting, false);
        match now.since(waiting.since) {
            0 => format!(": {text}"),
            ns => format!(": {text}, for {} now", human(ns)),
        }
    })
}

/// What took the most time, leaving out the time in which the sandbox did not use its network.
fn longest(trace: &Trace, now: Timestamp) -> String {
    let creation = creation::created(trace).map(|created| creation::set_up(trace, created));
    let breakdown = Breakdown::of(trace, now);
    let is_traffic = |span: &Span| matches!(Phase::of(span), Phase::Lookup | Phase::Connect);
    let index = (0..trace.spans.len())
        .filter(|&index| is_traffic(&trace.spans[index]) && breakdown.own_ns[index] > 0)
        .max_by_key(|&index| (breakdown.own_ns[index], std::cmp::Reverse(index)));
    let Some(index) = index else {
        return creation.map_or_else(|| phases::verdict(trace, now), |part| phases::verdict(&part, now));
    };
    let never = matches!(
        Readiness::of(trace),
        Some(Readiness {
            state: ReadinessState::Failed,
            ..
        })
    );
    if let Some(part) = creation {
        let set_up = Breakdown::of(&part, now);
        let most = set_up.largest().map_or(0, |index| set_up.own_ns[index]);
        if !never && most >= breakdown.own_ns[index] {
            return phases::verdict(&part, now);
        }
    }
    let span = &trace.spans[index];
    let sentence = format!("{} took {}", described(span), human(span.duration_ns(now)));
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

/// What a span is called in a sentence.
fn described(span: &Span) -> String {
    match &span.detail {
        Detail::Lookup(lookup) => format!("lookup of {}", lookup.name),
        Detail::Connect(connect) if connect.name.is_empty() => format!("connect to {}", connect.remote),
        Detail::Connect(connect) => format!("connect to {} ({})", connect.name, connect.remote),
        _ => registry::name(span),
    }
}
