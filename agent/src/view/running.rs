//! Operations and runtime steps that run now, oldest first, behind `/api/v1/operations`.
//!
//! Does not: know when an operation counts as stuck; the caller passes the threshold.

use std::sync::Arc;

use sandglass_model::{CniCommand, Detail, RootId, SandboxId, Span, SpanId, Trace, registry};
use serde::Serialize;

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
    /// Process id of the innermost of them; 0 when there is none.
    pub pid: u32,
    /// Time since its begin.
    pub age_ns: u64,
    /// It has run at least as long as the threshold.
    pub stuck: bool,
}

pub(super) fn operations(open: &[Arc<Kept>], unix_ns: u64, stuck_after_ns: u64) -> Vec<RunningOperation> {
    let mut found: Vec<RunningOperation> = open
        .iter()
        .filter(|kept| kept.index.outcome == TraceOutcome::Running)
        .flat_map(|kept| {
            let trace = &kept.trace;
            (0..trace.spans.len()).filter_map(move |index| running_at(trace, index, unix_ns, stuck_after_ns))
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
    Some(RunningOperation {
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
