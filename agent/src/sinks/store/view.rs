//! One trace in full, and what runs now, as JSON.
//!
//! Every name, kind and attribute of a span comes from [`sandglass_model::registry`], as in OTLP.
//! Does not: choose traces (`query`), or make the one-line form (`row`).

use std::sync::Arc;

use sandglass_model::phases::{Breakdown, Phase};
use sandglass_model::registry::{self, Kind, Value};
use sandglass_model::trace::Relation;
use sandglass_model::{
    CniCommand, Detail, PodIdentity, RootId, SandboxId, Span, SpanId, Status, Timestamp, Trace, TraceId,
};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::Entry;
use super::row::{Outcome, Row, as_text, end_or_now, now_in};

/// One trace with every span.
#[derive(Clone, Debug, Serialize)]
pub struct TraceView {
    /// The same trace in one line.
    #[serde(flatten)]
    pub row: Row,
    /// The pod, labels included.
    pub identity: PodIdentity,
    /// Time of the answer.
    #[serde(serialize_with = "as_text")]
    pub now_unix_ns: u64,
    /// The root first, parents before their children.
    pub timeline: Vec<SpanView>,
    /// Other traces it belongs with that the store holds, oldest first; of too many the nearest in time.
    pub related: Vec<RelatedTrace>,
}

/// One span.
#[derive(Clone, Debug, Serialize)]
pub struct SpanView {
    /// Its id.
    pub id: SpanId,
    /// Its parent's.
    pub parent_id: Option<SpanId>,
    /// Number of ancestors.
    pub depth: usize,
    /// Name from the registry.
    pub name: String,
    /// `internal` or `client`.
    pub kind: &'static str,
    /// Begin.
    #[serde(serialize_with = "as_text")]
    pub start_unix_ns: u64,
    /// End; absent while it runs.
    #[serde(serialize_with = "as_optional_text", skip_serializing_if = "Option::is_none")]
    pub end_unix_ns: Option<u64>,
    /// Begin, from the begin of the root.
    pub offset_ns: u64,
    /// To the end, or to now.
    pub duration_ns: u64,
    /// The part of the root's duration that this span answers for.
    pub own_ns: u64,
    /// What that part is counted as.
    pub phase: Phase,
    /// `unset` or `error`.
    pub status: &'static str,
    /// Class of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_class: Option<String>,
    /// Message of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// Attributes, in the registry's order.
    pub attributes: Attributes,
    /// Instants in it.
    pub events: Vec<EventView>,
    /// Links to other traces.
    pub links: Vec<LinkView>,
}

/// Attributes as one JSON object in the registry's order.
#[derive(Clone, Debug)]
pub struct Attributes(Vec<(&'static str, Value)>);

/// An instant in a span.
#[derive(Clone, Debug, Serialize)]
pub struct EventView {
    /// From the begin of the root.
    pub offset_ns: u64,
    /// Name from the registry.
    pub name: String,
    /// Attributes.
    pub attributes: Vec<(String, String)>,
}

/// A link to another trace.
#[derive(Clone, Debug, Serialize)]
pub struct LinkView {
    /// Its id.
    pub trace_id: TraceId,
    /// Its root's span id.
    pub span_id: SpanId,
    /// Why.
    pub relation: &'static str,
}

/// Another trace that belongs with the one shown.
#[derive(Clone, Debug, Serialize)]
pub struct RelatedTrace {
    /// Why: `previous_attempt`, `next_attempt`, `sandbox` (the creation of this sandbox), `operation` (on it),
    /// `journey` (of its traffic) or `same_trace` (of another sandbox, and asked for within the same trace of the runtime).
    pub relation: &'static str,
    /// The trace in one line.
    #[serde(flatten)]
    pub row: Row,
}

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
    /// Interface asked for.
    pub ifname: String,
    /// Network name.
    pub network: String,
    /// The sandbox.
    pub sandbox: Option<SandboxId>,
    /// Kubernetes namespace.
    pub namespace: String,
    /// Pod name.
    pub pod: String,
    /// Names of the open spans below it, outermost first: who is waited for.
    pub waits_for: Vec<String>,
    /// Process id of the innermost of them; 0 when there is none.
    pub pid: u32,
    /// How long it has run.
    pub age_ns: u64,
    /// Longer than the threshold.
    pub stuck: bool,
}

/// A sandbox older than the agent.
#[derive(Clone, Debug, Serialize)]
pub struct KnownSandbox {
    /// Its id.
    pub sandbox: SandboxId,
    /// Its pod.
    pub identity: PodIdentity,
    /// When the runtime says it was created, nanoseconds since boot.
    pub created_boot_ns: u64,
}

impl TraceView {
    pub(super) fn new(entry: &Entry, family: &[Arc<Entry>], unix_ns: u64) -> TraceView {
        let trace = &entry.trace;
        let now = end_or_now(trace, unix_ns);
        let mut related: Vec<RelatedTrace> = family
            .iter()
            .map(|other| RelatedTrace {
                relation: relation(&other.trace, trace),
                row: other.row_at(unix_ns),
            })
            .collect();
        let start = entry.subject.start_unix_ns;
        related.sort_by_key(|other| (!other.is_next_of_kin(), other.row.start_unix_ns.abs_diff(start)));
        related.truncate(MAX_RELATED);
        related.sort_by_key(|other| other.row.start_unix_ns);
        TraceView {
            row: entry.row_at(unix_ns),
            identity: trace.identity.clone(),
            now_unix_ns: unix_ns,
            timeline: timeline(trace, now),
            related,
        }
    }
}

impl RelatedTrace {
    /// There are few of these, however often an operation is repeated.
    fn is_next_of_kin(&self) -> bool {
        matches!(self.relation, "sandbox" | "previous_attempt" | "next_attempt")
    }
}

/// Every span of `trace`, each below its parent; open ones are taken to end at `now`.
#[must_use]
pub fn timeline(trace: &Trace, now: Timestamp) -> Vec<SpanView> {
    let breakdown = Breakdown::of(trace, now);
    let views = trace.in_tree_order().into_iter().map(|(index, depth)| SpanView {
        depth,
        own_ns: breakdown.own_ns.get(index).copied().unwrap_or_default(),
        duration_ns: trace.spans[index].duration_ns(now),
        ..SpanView::of(trace, &trace.spans[index])
    });
    views.collect()
}

impl SpanView {
    fn of(trace: &Trace, span: &Span) -> SpanView {
        let offset = |at: Timestamp| at.since(trace.start());
        let (status, error_class, error_message) = match &span.status {
            Status::Unset => ("unset", None, None),
            Status::Error { class, message } => ("error", Some(class.clone()), Some(message.clone())),
        };
        SpanView {
            id: span.id,
            parent_id: span
                .parent
                .and_then(|parent| trace.spans.get(parent))
                .map(|parent| parent.id),
            depth: 0,
            name: registry::name(span),
            kind: match registry::kind(span) {
                Kind::Internal => "internal",
                Kind::Client => "client",
            },
            start_unix_ns: trace.anchor.unix_ns(span.start),
            end_unix_ns: span.end.map(|end| trace.anchor.unix_ns(end)),
            offset_ns: offset(span.start),
            duration_ns: 0,
            own_ns: 0,
            phase: Phase::of(span),
            status,
            error_class,
            error_message: error_message.filter(|message| !message.is_empty()),
            attributes: Attributes(registry::attributes(trace, span)),
            events: span
                .events
                .iter()
                .map(|event| EventView {
                    offset_ns: offset(event.at),
                    name: event.name.clone(),
                    attributes: event.attributes.clone(),
                })
                .collect(),
            links: span
                .links
                .iter()
                .map(|link| LinkView {
                    trace_id: link.trace,
                    span_id: link.span,
                    relation: registry::relation(link.relation),
                })
                .collect(),
        }
    }
}

/// Whether `other` belongs on the page of `trace`: the same sandbox, the same trace id, or a link one way or the other.
pub(super) fn related(other: &Trace, trace: &Trace) -> bool {
    other.root_id() != trace.root_id()
        && (other.id == trace.id
            || of_one_sandbox(other, trace)
            || links(other, trace).is_some()
            || links(trace, other).is_some())
}

fn of_one_sandbox(one: &Trace, other: &Trace) -> bool {
    one.sandbox.is_some() && one.sandbox == other.sandbox
}

fn links(from: &Trace, to: &Trace) -> Option<Relation> {
    from.spans
        .iter()
        .flat_map(|span| &span.links)
        .find(|link| link.to() == to.root_id())
        .map(|link| link.relation)
}

/// What `other` is to `trace`.
fn relation(other: &Trace, trace: &Trace) -> &'static str {
    if links(trace, other) == Some(Relation::PreviousAttempt) {
        "previous_attempt"
    } else if links(other, trace) == Some(Relation::PreviousAttempt) {
        "next_attempt"
    } else if other.id == trace.id && !of_one_sandbox(other, trace) {
        "same_trace"
    } else if matches!(other.root().detail, Detail::Sandbox(_)) {
        "sandbox"
    } else if matches!(other.root().detail, Detail::Journey(_)) {
        "journey"
    } else {
        "operation"
    }
}

pub(super) fn running(open: &[Arc<Entry>], unix_ns: u64, stuck_after_ns: u64) -> Vec<RunningOperation> {
    let mut found: Vec<RunningOperation> = open
        .iter()
        .filter(|entry| entry.subject.outcome == Outcome::Running)
        .flat_map(|entry| {
            let trace = &entry.trace;
            (0..trace.spans.len()).filter_map(move |index| running_at(trace, index, unix_ns, stuck_after_ns))
        })
        .collect();
    found.sort_by_key(|operation| std::cmp::Reverse(operation.age_ns));
    found
}

fn running_at(trace: &Trace, index: usize, unix_ns: u64, stuck_after_ns: u64) -> Option<RunningOperation> {
    let span = trace.spans.get(index).filter(|span| span.end.is_none())?;
    let (command, ifname, network) = match &span.detail {
        Detail::Operation(operation) => (
            Some(operation.command),
            operation.ifname.clone(),
            operation.network.clone(),
        ),
        Detail::RuntimeStep(_) => (None, String::new(), String::new()),
        // What HNS and HCS do for the runtime; what they do for a plugin is what that waits for.
        Detail::Activity(_) if is_part_of_creation(trace, span) => (None, String::new(), String::new()),
        Detail::Sandbox(_)
        | Detail::SandboxCreate(_)
        | Detail::Plugin(_)
        | Detail::Command(_)
        | Detail::Journey(_)
        | Detail::Lookup(_)
        | Detail::Connect(_)
        | Detail::Activity(_)
        | Detail::VnicWait(_) => return None,
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

/// The newest open span below `top`, the newest below that, and so on.
pub(super) fn open_below(trace: &Trace, top: usize) -> Vec<&Span> {
    let mut chain = Vec::new();
    let mut at = top;
    // Parents stand before their children, so one pass forward follows the chain down.
    while let Some((index, span)) = trace
        .spans
        .iter()
        .enumerate()
        .skip(at + 1)
        .filter(|(_, span)| span.parent == Some(at) && span.end.is_none())
        .max_by_key(|(_, span)| span.start)
    {
        chain.push(span);
        at = index;
    }
    chain
}

impl Serialize for Attributes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            match value {
                Value::Text(text) => map.serialize_entry(key, text)?,
                Value::Int(number) => map.serialize_entry(key, number)?,
                Value::Bool(flag) => map.serialize_entry(key, flag)?,
                Value::List(list) => map.serialize_entry(key, list)?,
            }
        }
        map.end()
    }
}

fn as_optional_text<S: Serializer>(value: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

const MAX_RELATED: usize = 50;
