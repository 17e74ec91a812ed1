//! One trace in one line: the list row that the page, the stream and the terminal view share.
//!
//! Does not: choose rows ([`super::list`]), or list spans ([`super::trace`]).

use std::collections::BTreeMap;

use sandglass_model::phases::{Breakdown, Phase};
use sandglass_model::trace::JourneyReason;
use sandglass_model::{CniCommand, RootId, SandboxId, Span, Status, Trace};
use serde::Serialize;

use super::json::as_text;
use super::now::end_or_now;
use super::readiness::Readiness;
use super::verdict::verdict;
use crate::sinks::store;
use crate::sinks::store::index::{TraceIndex, TraceKind, TraceOutcome};

/// The store as the agent uses it: the list row of a closed trace is kept with it.
pub type Store = store::Store<Row>;

/// A kept trace with its list row.
pub(super) type Kept = store::Kept<Row>;

/// One trace in one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Its key: `trace_id`, and `root_span_id` since several traces may have one trace id.
    #[serde(flatten)]
    pub root: RootId,
    /// What it is about.
    pub kind: TraceKind,
    /// The verb, for an operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<CniCommand>,
    /// The sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// Kubernetes namespace; empty when not known.
    pub namespace: String,
    /// Pod name; empty when not known.
    pub pod: String,
    /// Begin.
    #[serde(serialize_with = "as_text")]
    pub start_unix_ns: u64,
    /// To the end, or to now; while the first traffic of a created sandbox is pending, to the end of its creation.
    pub duration_ns: u64,
    /// The same without the time in which the sandbox's programs did not use the network: that is not the node's.
    pub busy_ns: u64,
    /// State of the trace.
    pub result: TraceOutcome,
    /// It is open, and more than first traffic is pending.
    pub running: bool,
    /// Class of the failure that explains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_class: Option<String>,
    /// One sentence: what took the time, what failed, or what runs.
    pub verdict: String,
    /// Nanoseconds by phase; they add up to `duration_ns`.
    pub phases: BTreeMap<Phase, u64>,
    /// Attempt number: of a sandbox for its pod, of an operation for its verb and attachment.
    pub attempt: u32,
    /// Spans may be missing: records were lost, or the begin was not observed.
    pub incomplete: bool,
    /// Plugin types in order of first appearance.
    pub plugins: Vec<String>,
    /// Number of spans.
    pub spans: usize,
    /// Readiness of a sandbox's network; absent if it sent nothing, or traffic was not observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Readiness>,
    /// Target of a journey: a name, or an address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Why it is a journey.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<JourneyReason>,
    /// Causes of failed and slow lookups and connects in the trace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
}

impl Row {
    /// The row of `trace` at a wall-clock time.
    #[must_use]
    pub fn of(trace: &Trace, index: &TraceIndex, unix_ns: u64) -> Row {
        let now = end_or_now(trace, unix_ns);
        let breakdown = Breakdown::of(trace, now);
        let root = trace.root();
        let duration_ns = root.duration_ns(now);
        let idle_ns = breakdown.phases.get(&Phase::Application).copied().unwrap_or_default();
        Row {
            root: trace.root_id(),
            kind: index.kind,
            operation: index.command,
            sandbox: trace.sandbox.clone(),
            namespace: trace.identity.namespace.clone(),
            pod: trace.identity.name.clone(),
            start_unix_ns: index.start_unix_ns,
            duration_ns,
            busy_ns: duration_ns.saturating_sub(idle_ns),
            result: index.outcome,
            running: index.outcome == TraceOutcome::Running,
            error_class: trace.culprit().and_then(error_class),
            verdict: verdict(trace, now),
            phases: breakdown.phases,
            attempt: attempt(root),
            incomplete: trace.incomplete,
            plugins: index.plugins.clone(),
            spans: trace.spans.len(),
            network: Readiness::of(trace),
            target: root.detail.as_journey().map(|journey| journey.target.clone()),
            reason: index.reason,
            causes: index.causes.clone(),
        }
    }
}

/// The row of a kept trace at a wall-clock time; a closed trace's row does not depend on it. `None` as
/// [`store::Kept::trace`].
pub(super) fn of(kept: &Kept, unix_ns: u64) -> Option<Row> {
    read(kept, unix_ns, Row::clone)
}

/// Reads the row of a kept trace without a copy.
pub(super) fn read<T>(kept: &Kept, unix_ns: u64, read: impl FnOnce(&Row) -> T) -> Option<T> {
    kept.derived(|trace| Row::of(trace, &kept.index, unix_ns), read)
}

fn error_class(span: &Span) -> Option<String> {
    match &span.status {
        Status::Error { class, .. } => Some(class.clone()),
        Status::Unset => None,
    }
}

/// The attempt number of a root span; 1 where attempts are not counted.
#[must_use]
pub fn attempt(root: &Span) -> u32 {
    root.detail.attempt()
}
