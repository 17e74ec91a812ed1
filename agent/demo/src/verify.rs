//! Holds the traces of the demo against what its caller knows: what was requested, its outcome, how long it took.
//!
//! Used by `make demo ARGS=--once` and the end-to-end tests. Pure: traces and call records in, a list of checks out.
//! What must be found stands in [`expected`], which durations must agree in [`clock`]. A check that cannot be made on
//! this node (traffic that the kernel does not let the agent see) passes with a remark. A duration that disagrees by no
//! more than tasks of this node waited for a processor or a disk meanwhile is not judged, by name. Nothing else is excused.

pub mod clock;
mod expected;
mod lifecycle;
pub mod network;
mod requests;
mod structure;
mod waits;

use std::fmt;
use std::sync::Arc;

use sandglass_model::trace::{Detail, OperationDetail, PluginDetail, Span, Trace};

use crate::pods::CallRecord;
use lifecycle::{deletion, dels, outcome, runtime};
use network::{Looked, Seen};
use structure::{attachments, attempt, processes, same_pod};

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What.
    pub what: &'static str,
    /// What was found: a remark, or what is wrong.
    pub result: Result<String, Wrong>,
}

/// What is wrong, and whether the machine can be the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Something is missing, too much, or in the wrong order. No machine is slow enough to excuse it.
    Fact(String),
    /// Two durations disagree by more than waiting on this node explains.
    Duration(String),
    /// Two durations disagree, but tasks of this node waited at least as long meanwhile: not judged.
    Busy(String),
}

impl Wrong {
    /// Another measurement may find it right.
    #[must_use]
    pub fn is_of_durations(&self) -> bool {
        !matches!(self, Wrong::Fact(_))
    }
}

impl From<String> for Wrong {
    fn from(text: String) -> Wrong {
        Wrong::Fact(text)
    }
}

impl From<&str> for Wrong {
    fn from(text: &str) -> Wrong {
        Wrong::Fact(text.to_owned())
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Fact(text) | Wrong::Duration(text) | Wrong::Busy(text) => f.write_str(text),
        }
    }
}

impl Check {
    /// Neither passed nor failed: the machine was too busy.
    #[must_use]
    pub fn is_unjudged(&self) -> bool {
        matches!(self.result, Err(Wrong::Busy(_)))
    }

    /// As a line: its name, and the remark or what is wrong.
    #[must_use]
    pub fn text(&self) -> String {
        match &self.result {
            Ok(remark) => format!("ok     {}: {remark}\n", self.what),
            Err(Wrong::Busy(wrong)) => format!("NOT JUDGED {}: too busy: {wrong}\n", self.what),
            Err(wrong) => format!("FAILED {}: {wrong}\n", self.what),
        }
    }
}

/// Everything that was looked at for one call of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// `namespace/pod`, with the attempt when it is a retry.
    pub pod: String,
    /// The sandbox, as the trace names it; empty when there is none.
    pub sandbox: String,
    /// The checks, in reading order.
    pub checks: Vec<Check>,
}

impl Report {
    /// All checks passed, those aside that could not be judged.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.checks
            .iter()
            .all(|check| check.result.is_ok() || check.is_unjudged())
    }

    /// Everything but durations is right: for a machine whose durations are not judged.
    #[must_use]
    pub fn facts_hold(&self) -> bool {
        let is_right = |check: &Check| check.result.as_ref().err().is_none_or(Wrong::is_of_durations);
        self.checks.iter().all(is_right)
    }

    /// As text: one line when all is well, else one more per failed check; with `all` one more per check.
    #[must_use]
    pub fn text(&self, all: bool) -> String {
        let verdict = if self.passed() { "ok" } else { "FAILED" };
        let short = self.sandbox.get(..12).unwrap_or(&self.sandbox);
        let mut text = format!(
            "{verdict:<6} {:<22} {short:<12} {} checks\n",
            self.pod,
            self.checks.len()
        );
        for check in self.checks.iter().filter(|check| all || check.result.is_err()) {
            text.push_str("       ");
            text.push_str(&check.text());
        }
        text
    }
}

/// The trace of the sandbox's creation that `record` led to, if there is exactly one.
///
/// A call that failed gave no sandbox id: its trace is that of the pod which began while the call was under way.
pub fn creation<'t>(traces: &'t [Arc<Trace>], record: &CallRecord) -> Result<&'t Arc<Trace>, String> {
    let mut found = traces.iter().filter(|trace| {
        matches!(trace.root().detail, Detail::Sandbox(_))
            && match &record.outcome {
                Ok(id) => trace.sandbox.as_ref() == Some(id),
                Err(_) => {
                    trace.identity.uid == record.pod.identity.uid
                        && (record.run.begin.minus(clock::INODE_TICK_NS)..=record.run.end).contains(&trace.start())
                }
            }
    });
    match (found.next(), found.next()) {
        (Some(trace), None) => Ok(trace),
        (None, _) => Err("no trace".to_owned()),
        (Some(_), Some(_)) => Err("more than one trace".to_owned()),
    }
}

/// Checks every record, as far as the agent sees traffic here.
#[must_use]
pub fn verify(traces: &[Arc<Trace>], records: &[CallRecord], seen: Seen) -> Vec<Report> {
    records.iter().map(|record| report(traces, record, seen)).collect()
}

/// How many of `traces` are not the creation, or an operation, of a sandbox of `records`: other work on the node, or
/// something mixed up. Journeys of the node itself are none of them.
#[must_use]
pub fn strangers(traces: &[Arc<Trace>], records: &[CallRecord]) -> usize {
    let known: Vec<_> = records
        .iter()
        .filter_map(|record| creation(traces, record).ok()?.sandbox.as_ref())
        .collect();
    let is_known = |trace: &&Arc<Trace>| trace.sandbox.as_ref().is_some_and(|id| known.contains(&id));
    let of_sandboxes = traces.iter().filter(|trace| !network::is_of_the_node(trace));
    of_sandboxes.filter(|trace| !is_known(trace)).count()
}

fn report(traces: &[Arc<Trace>], record: &CallRecord, seen: Seen) -> Report {
    let identity = &record.pod.identity;
    let mut pod = format!("{}/{}", identity.namespace, identity.name);
    if record.pod.attempt > 0 {
        pod.push_str(&format!(" (attempt {})", record.pod.attempt + 1));
    }
    let trace = match creation(traces, record) {
        Ok(trace) => trace,
        Err(wrong) => {
            return Report {
                pod,
                sandbox: String::new(),
                checks: vec![Check {
                    what: "trace",
                    result: Err(wrong.into()),
                }],
            };
        }
    };
    let dels = dels(traces, trace);
    let looked = Looked { trace, record, seen };
    let checks = [
        ("trace", complete(trace)),
        ("pod", same_pod(trace, record)),
        ("attempt", attempt(trace, record)),
        ("attachments", attachments(trace, record, seen)),
        ("processes", processes(trace, record)),
        ("outcome", outcome(trace, record, seen)),
        ("runtime", runtime(trace, record)),
        ("deletion", deletion(trace, &dels, record)),
        ("order", clock::order(trace, &dels, record)),
        ("deletion's order", clock::deletion_order(&dels, record)),
        ("network", looked.network()),
        ("backends", looked.backends()),
        ("stall", looked.stall()),
    ];
    // Those that a busy machine may spoil.
    let spoilt = [
        ("waits", waits::waits(trace, record, seen)),
        ("requests", requests::requests(trace, record, seen)),
        ("clock", clock::call(trace, record)),
        ("plugin's clock", clock::script(trace, record)),
        ("lookup's clock", looked.lookup_clock()),
        ("connection's clock", looked.connect_clock()),
        ("network's clock", looked.ready_clock()),
    ];
    let facts = checks.map(|(what, result)| (what, result.map_err(Wrong::Fact)));
    Report {
        pod,
        sandbox: trace.sandbox.as_ref().map_or_else(String::new, ToString::to_string),
        checks: facts
            .into_iter()
            .chain(spoilt)
            .map(|(what, result)| Check { what, result })
            .collect(),
    }
}

fn complete(trace: &Trace) -> Result<String, String> {
    if !trace.closed {
        return Err("is not closed".to_owned());
    }
    if trace.incomplete {
        return Err("is marked incomplete".to_owned());
    }
    trace.check()?;
    Ok(format!("complete, {} spans", trace.spans.len()))
}

fn operations(trace: &Trace) -> impl Iterator<Item = (usize, &OperationDetail)> {
    trace
        .spans
        .iter()
        .enumerate()
        .filter_map(|(index, span)| match &span.detail {
            Detail::Operation(operation) => Some((index, &**operation)),
            _ => None,
        })
}

fn plugins(trace: &Trace) -> impl Iterator<Item = (usize, &PluginDetail)> {
    trace
        .spans
        .iter()
        .enumerate()
        .filter_map(|(index, span)| match &span.detail {
            Detail::Plugin(plugin) => Some((index, &**plugin)),
            _ => None,
        })
}

/// The plugins that the runtime called for `operation`, in time order.
fn chain(trace: &Trace, operation: usize) -> impl Iterator<Item = (&Span, &PluginDetail)> {
    let mut chain: Vec<(&Span, &PluginDetail)> = plugins(trace)
        .filter(|(index, _)| trace.spans[*index].parent == Some(operation))
        .map(|(index, plugin)| (&trace.spans[index], plugin))
        .collect();
    chain.sort_by_key(|(span, _)| span.start);
    chain.into_iter()
}

#[cfg(test)]
mod tests;
