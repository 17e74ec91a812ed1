//! Which traces a list shows, in which order: the query of `/api/v1/sandboxes` as a value.
//!
//! Used by the store; `crate::http` makes it from a URL. Does not: parse text, or page through anything but a snapshot
//! (rows may move between two pages when new traces come in).

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use sandglass_model::CniCommand;
use sandglass_model::trace::JourneyReason;
use serde::Serialize;

use super::Entry;
use super::row::{Outcome, Row, TraceKind, as_text};

/// Which traces, in which order, how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The order.
    pub sort: Sort,
    /// Open ones, closed ones or both.
    pub state: State,
    /// Only with this outcome.
    pub result: Option<Outcome>,
    /// What they are about.
    pub kind: KindFilter,
    /// Words that must all occur, case aside, in pod, namespace, sandbox id, plugins, commands, networks or errors.
    pub text: String,
    /// Only traces in which this plugin type ran.
    pub plugin: String,
    /// Only journeys for this reason.
    pub reason: Option<JourneyReason>,
    /// Only traces in which something went badly for this cause; empty for all.
    pub cause: String,
    /// Rows at most.
    pub limit: usize,
    /// Rows passed over.
    pub offset: usize,
}

impl Default for Query {
    fn default() -> Query {
        Query {
            sort: Sort::Newest,
            state: State::All,
            result: None,
            kind: KindFilter::All,
            text: String::new(),
            plugin: String::new(),
            reason: None,
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
pub enum State {
    /// Both.
    All,
    /// Open ones, but for those that only wait for traffic.
    Running,
    /// Created sandboxes whose first traffic is waited for.
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
    /// Operations apart from those.
    Operation,
    /// Lookups and connections that went badly.
    Journey,
    /// Operations with this verb.
    Verb(CniCommand),
}

/// What a query found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Page {
    /// Traces that match, on all pages.
    pub total: usize,
    /// Rows passed over.
    pub offset: usize,
    /// Rows at most.
    pub limit: usize,
    /// Time of the answer.
    #[serde(serialize_with = "as_text")]
    pub now_unix_ns: u64,
    /// What the store holds of the kinds asked for, whatever the other filters.
    pub counts: Counts,
    /// Every plugin type seen in the store, sorted.
    pub plugins: Vec<String>,
    /// Every cause of a bad lookup or connection seen in the store, sorted.
    pub causes: Vec<String>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// Traces by outcome, and how long the closed sandboxes took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// All.
    pub all: usize,
    /// Open ones, but for those that only wait for traffic.
    pub running: usize,
    /// Created sandboxes whose first traffic is waited for.
    pub waiting: usize,
    /// Failed ones.
    pub failed: usize,
    /// Median duration of those that are created or closed and did not fail, without the time in which they did not
    /// use their network.
    pub median_ns: Option<u64>,
    /// 95th percentile of the same.
    pub p95_ns: Option<u64>,
    /// Sandboxes older than the agent, which have no trace.
    pub older_than_agent: usize,
}

pub(super) fn run(query: &Query, entries: Vec<Arc<Entry>>, known: usize, unix_ns: u64) -> Page {
    let plugins: BTreeSet<&String> = entries.iter().flat_map(|entry| &entry.subject.plugins).collect();
    let plugins = plugins.into_iter().cloned().collect();
    let causes: BTreeSet<&String> = entries.iter().flat_map(|entry| &entry.subject.causes).collect();
    let causes = causes.into_iter().cloned().collect();
    let of_kind: Vec<&Arc<Entry>> = entries.iter().filter(|entry| query.kind.matches(entry)).collect();
    let counts = count(&of_kind, known, unix_ns);

    let words: Vec<String> = query.text.split_whitespace().map(str::to_lowercase).collect();
    let mut found: Vec<&Arc<Entry>> = of_kind
        .into_iter()
        .filter(|entry| query.matches(entry, &words))
        .collect();
    match query.sort {
        Sort::Newest => found.sort_by_key(|entry| Reverse((entry.subject.start_unix_ns, entry.arrival))),
        Sort::Slowest => found.sort_by_key(|entry| Reverse((busy_ns(entry, unix_ns), entry.arrival))),
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
        rows: rows.map(|entry| entry.row_at(unix_ns)).collect(),
    }
}

impl Query {
    fn matches(&self, entry: &Entry, words: &[String]) -> bool {
        let subject = &entry.subject;
        let state = match self.state {
            State::All => true,
            State::Running => subject.outcome == Outcome::Running,
            State::Waiting => subject.outcome == Outcome::Waiting,
            State::Ended => !matches!(subject.outcome, Outcome::Running | Outcome::Waiting),
        };
        state
            && self.result.is_none_or(|result| result == subject.outcome)
            && (self.plugin.is_empty() || subject.plugins.contains(&self.plugin))
            && self.reason.is_none_or(|reason| subject.reason == Some(reason))
            && (self.cause.is_empty() || subject.causes.contains(&self.cause))
            && words.iter().all(|word| subject.haystack.contains(word.as_str()))
    }
}

impl KindFilter {
    fn matches(self, entry: &Entry) -> bool {
        match self {
            KindFilter::All => true,
            KindFilter::Sandbox => entry.subject.kind == TraceKind::Sandbox,
            KindFilter::Operation => entry.subject.kind == TraceKind::Operation,
            KindFilter::Journey => entry.subject.kind == TraceKind::Journey,
            KindFilter::Verb(verb) => entry.subject.command == Some(verb),
        }
    }
}

fn busy_ns(entry: &Entry, unix_ns: u64) -> u64 {
    entry.with_row(unix_ns, |row| row.busy_ns)
}

fn count(entries: &[&Arc<Entry>], known: usize, unix_ns: u64) -> Counts {
    let mut counts = Counts {
        all: entries.len(),
        older_than_agent: known,
        ..Counts::default()
    };
    let mut durations = Vec::new();
    for entry in entries {
        match entry.subject.outcome {
            Outcome::Running => counts.running += 1,
            Outcome::Failed => counts.failed += 1,
            Outcome::Waiting => {
                counts.waiting += 1;
                durations.push(busy_ns(entry, unix_ns));
            }
            Outcome::Ok => durations.push(busy_ns(entry, unix_ns)),
        }
    }
    durations.sort_unstable();
    counts.median_ns = quantile(&durations, 50);
    counts.p95_ns = quantile(&durations, 95);
    counts
}

/// The smallest value that at least `percent` of the sorted values do not exceed.
pub(super) fn quantile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}
