//! Which traces a list shows, in which order: `/api/v1/sandboxes`.
//!
//! `crate::http` parses a [`Query`] from a URL. Does not: parse text, or page through anything but a snapshot (rows may move
//! between two pages when new traces come in).

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use sandglass_model::CniCommand;
use sandglass_model::trace::JourneyReason;
use sandglass_model::waits::TimeReason;
use serde::Serialize;

use super::json::as_text;
use super::quantile::quantile;
use super::row::{self, Kept, Row};
use crate::sinks::store::index::{TraceKind, TraceOutcome};
use crate::sinks::store::{EvictedTraces, StoreSize};

/// Which traces, in which order, how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The order.
    pub sort: Sort,
    /// Open ones, closed ones or both.
    pub state: StateFilter,
    /// Only with this outcome.
    pub result: Option<TraceOutcome>,
    /// What they are about.
    pub kind: KindFilter,
    /// Words that must all occur, case aside, in pod, namespace, sandbox id, plugins, commands, networks or errors.
    pub text: String,
    /// Only traces in which this plugin type ran.
    pub plugin: String,
    /// Only journeys for this reason.
    pub reason: Option<JourneyReason>,
    /// Only traces that waited for this reason for a considerable part of their time.
    pub wait: Option<TimeReason>,
    /// Only traces with a failed or slow lookup or connect of this cause; empty for all.
    pub cause: String,
    /// Rows at most.
    pub limit: usize,
    /// Rows skipped.
    pub offset: usize,
}

impl Default for Query {
    fn default() -> Query {
        Query {
            sort: Sort::Newest,
            state: StateFilter::All,
            result: None,
            kind: KindFilter::All,
            text: String::new(),
            plugin: String::new(),
            reason: None,
            wait: None,
            cause: String::new(),
            limit: 100,
            offset: 0,
        }
    }
}

/// The order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Latest begin first.
    Newest,
    /// Longest first.
    Slowest,
}

/// Open, closed or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateFilter {
    /// Both.
    All,
    /// Open ones, without those whose first traffic alone is pending.
    Running,
    /// Created sandboxes whose first traffic is pending.
    Waiting,
    /// Closed ones.
    Ended,
}

/// What traces are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KindFilter {
    /// Everything.
    All,
    /// Creations of sandboxes.
    Sandbox,
    /// Operations outside of creations.
    Operation,
    /// Journeys: failed, slow, retried and dropped lookups and connects after readiness.
    Journey,
    /// Operations with this verb.
    Verb(CniCommand),
}

/// What a query found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Page {
    /// Traces that match, on all pages.
    pub total: usize,
    /// Rows skipped.
    pub offset: usize,
    /// Rows at most.
    pub limit: usize,
    /// Time of the answer.
    #[serde(serialize_with = "as_text")]
    pub now_unix_ns: u64,
    /// Counts over all traces of the queried kind, whatever the other filters.
    pub counts: Counts,
    /// Every plugin type in the store, sorted.
    pub plugins: Vec<String>,
    /// Every cause in the store, sorted.
    pub causes: Vec<String>,
    /// Every reason of a wait in the store, in the order of the strip.
    pub reasons: Vec<TimeReason>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// Traces by outcome, and how long they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// All.
    pub all: usize,
    /// Open ones, without those whose first traffic alone is pending.
    pub running: usize,
    /// Created sandboxes whose first traffic is pending.
    pub waiting: usize,
    /// Failed ones.
    pub failed: usize,
    /// Median duration of created sandboxes and closed traces that did not fail, without the time in which they did not use
    /// their network.
    pub median_ns: Option<u64>,
    /// 95th percentile of the same.
    pub p95_ns: Option<u64>,
    /// Sandboxes older than the agent, which have no trace.
    pub older_than_agent: usize,
    /// Evicted ones of the queried kind since the start.
    pub evicted: u64,
    /// Those that an earlier run of the agent made.
    pub earlier: usize,
}

pub(super) fn run(query: &Query, traces: &[Arc<Kept>], size: &StoreSize, unix_ns: u64) -> Page {
    let plugins: BTreeSet<&String> = traces.iter().flat_map(|kept| &kept.index.plugins).collect();
    let plugins = plugins.into_iter().cloned().collect();
    let causes: BTreeSet<&String> = traces.iter().flat_map(|kept| &kept.index.causes).collect();
    let causes = causes.into_iter().cloned().collect();
    let reasons: BTreeSet<TimeReason> = traces
        .iter()
        .flat_map(|kept| kept.index.waits.iter().copied())
        .collect();
    let of_kind: Vec<&Arc<Kept>> = traces.iter().filter(|kept| query.kind.matches(kept)).collect();
    let counts = Counts {
        older_than_agent: size.known,
        evicted: query.kind.evicted(&size.evicted_kinds),
        ..count(&of_kind, unix_ns)
    };

    let words: Vec<String> = query.text.split_whitespace().map(str::to_lowercase).collect();
    let mut found: Vec<&Arc<Kept>> = of_kind.into_iter().filter(|kept| query.matches(kept, &words)).collect();
    match query.sort {
        Sort::Newest => found.sort_by_key(|kept| Reverse((kept.index.start_unix_ns, kept.arrival))),
        Sort::Slowest => found.sort_by_key(|kept| Reverse((busy_ns(kept, unix_ns), kept.arrival))),
    }
    let rows = found.iter().skip(query.offset).take(query.limit);
    Page {
        total: found.len(),
        offset: query.offset,
        limit: query.limit,
        now_unix_ns: unix_ns,
        counts,
        plugins,
        causes,
        reasons: reasons.into_iter().collect(),
        rows: rows.filter_map(|kept| row::of(kept, unix_ns)).collect(),
    }
}

impl Query {
    fn matches(&self, kept: &Kept, words: &[String]) -> bool {
        let index = &kept.index;
        let state = match self.state {
            StateFilter::All => true,
            StateFilter::Running => index.outcome == TraceOutcome::Running,
            StateFilter::Waiting => index.outcome == TraceOutcome::Waiting,
            StateFilter::Ended => !matches!(index.outcome, TraceOutcome::Running | TraceOutcome::Waiting),
        };
        state
            && self.result.is_none_or(|result| result == index.outcome)
            && (self.plugin.is_empty() || index.plugins.contains(&self.plugin))
            && self.reason.is_none_or(|reason| index.reason == Some(reason))
            && self.wait.is_none_or(|reason| index.waits.contains(&reason))
            && (self.cause.is_empty() || index.causes.contains(&self.cause))
            && words.iter().all(|word| index.text.contains(word.as_str()))
    }
}

impl KindFilter {
    fn matches(self, kept: &Kept) -> bool {
        match self {
            KindFilter::All => true,
            KindFilter::Sandbox => kept.index.kind == TraceKind::Sandbox,
            KindFilter::Operation => kept.index.kind == TraceKind::Operation,
            KindFilter::Journey => kept.index.kind == TraceKind::Journey,
            KindFilter::Verb(verb) => kept.index.command == Some(verb),
        }
    }

    /// Evicted traces of the kind; of a verb those of all operations, which are not counted by verb.
    fn evicted(self, kinds: &EvictedTraces) -> u64 {
        match self {
            KindFilter::All => kinds.total(),
            KindFilter::Sandbox => kinds.good_sandboxes + kinds.bad_sandboxes,
            KindFilter::Operation | KindFilter::Verb(_) => kinds.good_operations + kinds.bad_operations,
            KindFilter::Journey => kinds.journeys,
        }
    }
}

fn busy_ns(kept: &Kept, unix_ns: u64) -> u64 {
    row::read(kept, unix_ns, |row| row.busy_ns).unwrap_or_default()
}

fn count(traces: &[&Arc<Kept>], unix_ns: u64) -> Counts {
    let mut counts = Counts {
        all: traces.len(),
        ..Counts::default()
    };
    let mut durations = Vec::new();
    for kept in traces {
        counts.earlier += usize::from(kept.earlier);
        match kept.index.outcome {
            TraceOutcome::Running => counts.running += 1,
            TraceOutcome::Failed => counts.failed += 1,
            TraceOutcome::Waiting => {
                counts.waiting += 1;
                durations.push(busy_ns(kept, unix_ns));
            }
            TraceOutcome::Ok => durations.push(busy_ns(kept, unix_ns)),
        }
    }
    durations.sort_unstable();
    counts.median_ns = quantile(&durations, 50);
    counts.p95_ns = quantile(&durations, 95);
    counts
}
