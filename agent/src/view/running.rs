//! Operations and runtime steps that run now, oldest first, behind `/api/v1/operations`.
//!
//! Does not: know when an operation counts as stuck; the caller passes the threshold.

use std::sync::Arc;

use sandglass_model::waits::Waiting;
use sandglass_model::{CniCommand, Detail, RootId, SandboxId, Span, SpanId, Trace, registry};
use serde::Serialize;

use super::json::as_text;
use super::now::now_in;
use super::open_spans::open_below;
use super::row::Kept;
use crate::sinks::store::index::TraceOutcome;

/// An operation or a step of the runtime that has not ended.
#[derive(Clone, Debug, Serialize)]
pub struct RunningOperation {
    /// Its trace: `trace_id` and `root_span_id`.
    #[serde(flatten)]
    pub root: RootId,
    /// Its span.
    pub span_id: SpanId,
    /// Name from the registry.
    pub name: String,
    /// The verb, for a CNI operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<CniCommand>,
    /// Requested interface name.
    pub ifname: String,
    /// Network name.
    pub network: String,
    /// The sandbox.
    pub sandbox: Option<SandboxId>,
    /// Kubernetes namespace.
    pub namespace: String,
    /// Pod name.
    pub pod: String,
    /// Names of the open spans below it, outermost first: what it waits for.
    pub waits_for: Vec<String>,
    /// What the processes below it wait for in the kernel, where that was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingNow>,
    /// Process id of the innermost of them; 0 when there is none.
    pub pid: u32,
    /// Time since its begin.
    pub age_ns: u64,
    /// It has run at least as long as the threshold.
    pub stuck: bool,
}

/// What an operation waits for now.
#[derive(Clone, Debug, Serialize)]
pub struct WaitingNow {
    /// Why, as in `sandglass.time.*`.
    pub reason: &'static str,
    /// The file, the lock, the address, or the kernel's work; empty where the reason says all.
    pub what: String,
    /// Name of the process that waits.
    pub who: String,
    /// The process that holds the lock, or that listens behind the socket; empty when not known.
    pub by: String,
    /// The kernel function that it sleeps in.
    pub function: String,
    /// The same as a sentence.
    pub text: String,
    /// Since when.
    #[serde(serialize_with = "as_text")]
    pub since_unix_ns: u64,
    /// How long by now.
    pub for_ns: u64,
}

impl WaitingNow {
    fn of(trace: &Trace, waiting: &Waiting, unix_ns: u64) -> WaitingNow {
        let since_unix_ns = trace.anchor.unix_ns(waiting.since);
        WaitingNow {
            reason: waiting.reason.as_str(),
            what: waiting.what.clone(),
            who: waiting.who.to_string(),
            by: waiting.by.to_string(),
            function: waiting.function.to_string(),
            text: registry::waiting_text(waiting, false),
            since_unix_ns,
            for_ns: unix_ns.saturating_sub(since_unix_ns),
        }
    }
}

pub(super) fn operations(open: &[Arc<Kept>], unix_ns: u64, stuck_after_ns: u64) -> Vec<RunningOperation> {
    let mut found: Vec<RunningOperation> = open
        .iter()
        .filter(|kept| kept.index.outcome == TraceOutcome::Running)
        .filter_map(|kept| kept.trace())
        .flat_map(|trace| {
            let indices = 0..trace.spans.len();
            indices.filter_map(move |index| running_at(&trace, index, unix_ns, stuck_after_ns))
        })
        .collect();
    found.sort_by_key(|operation| std::cmp::Reverse(operation.age_ns));
    found
}

fn running_at(trace: &Trace, index: usize, unix_ns: u64, stuck_after_ns: u64) -> Option<RunningOperation> {
    let span = trace.spans.get(index).filter(|span| span.end.is_none())?;
    let (command, ifname, network) = if let Some(operation) = span.detail.as_operation() {
        let (ifname, network) = (operation.ifname.clone(), operation.network.clone());
        (Some(operation.command), ifname, network)
    } else {
        // Activities that the runtime requested. Those of a plugin are in the `waits_for` of its operation.
        let activity = span.detail.as_activity().is_some() && is_part_of_creation(trace, span);
        if !activity && span.detail.as_step().is_none() {
            return None;
        }
        (None, String::new(), String::new())
    };
    let chain = open_below(trace, index);
    let mut outwards = chain.iter().rev().chain([&span]);
    let pid = outwards
        .find_map(|span| span.process())
        .map_or(0, |process| process.pid);
    let age_ns = span.duration_ns(now_in(trace, unix_ns));
    let mut waiting = chain
        .iter()
        .chain([&span])
        .filter_map(|span| registry::waiting_of(trace, span));
    Some(RunningOperation {
        waiting: waiting.next().map(|waiting| WaitingNow::of(trace, waiting, unix_ns)),
        root: trace.root_id(),
        span_id: span.id,
        name: registry::name(span),
        command,
        ifname,
        network,
        sandbox: trace.sandbox.clone(),
        namespace: trace.identity.namespace.clone(),
        pod: trace.identity.name.clone(),
        pid,
        waits_for: chain.iter().copied().map(registry::name).collect(),
        age_ns,
        stuck: age_ns >= stuck_after_ns,
    })
}

fn is_part_of_creation(trace: &Trace, span: &Span) -> bool {
    let parent = span.parent.and_then(|parent| trace.spans.get(parent));
    parent.is_some_and(|parent| matches!(parent.detail, Detail::Sandbox(_) | Detail::SandboxCreate(_)))
}
