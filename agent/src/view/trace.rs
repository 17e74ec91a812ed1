//! One trace in full as JSON: every span, and the traces related to it.
//!
//! Every name, kind and attribute of a span comes from [`sandglass_model::registry`], as in OTLP.
//! Does not: choose traces ([`super::list`]), or build the one-line form ([`super::row`]).

use std::sync::Arc;

use sandglass_model::phases::{Breakdown, Phase};
use sandglass_model::registry::{self, AttributeValue, Kind};
use sandglass_model::trace::Relation;
use sandglass_model::{PodIdentity, Span, SpanId, Status, Timestamp, Trace, TraceId};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::json::{as_optional_text, as_text};
use super::now::end_or_now;
use super::row::{self, Kept, Row};
use crate::sinks::store::index::{TraceIndex, TraceKind};

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
    /// Where the runbooks of reasons lie, which the page links to.
    pub runbooks: &'static str,
    /// The root first, parents before their children.
    pub timeline: Vec<SpanView>,
    /// Related traces in the store, oldest first; of more than 50 the nearest in time.
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
    /// The part of the root's duration that is attributed to this span.
    pub own_ns: u64,
    /// The phase of that part.
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
    pub attributes: AttributeMap,
    /// Instants in it.
    pub events: Vec<EventView>,
    /// Links to other traces.
    pub links: Vec<LinkView>,
}

/// Attributes as one JSON object in the registry's order.
#[derive(Clone, Debug)]
pub struct AttributeMap(Vec<(&'static str, AttributeValue)>);

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

/// A related trace.
#[derive(Clone, Debug, Serialize)]
pub struct RelatedTrace {
    /// Why: `previous_attempt`, `next_attempt`, `sandbox` (the creation of this sandbox), `operation` (on it),
    /// `journey` (of its traffic) or `same_trace` (of another sandbox, requested within the same trace of the runtime).
    pub relation: &'static str,
    /// The trace in one line.
    #[serde(flatten)]
    pub row: Row,
}

impl TraceView {
    /// The view of `kept`; `traces` are those that may be related. `None` as [`crate::sinks::store::Kept::trace`].
    pub(super) fn new(kept: &Kept, traces: &[Arc<Kept>], unix_ns: u64) -> Option<TraceView> {
        let trace = &*kept.trace()?;
        let now = end_or_now(trace, unix_ns);
        let mut related: Vec<RelatedTrace> = traces
            .iter()
            .filter(|other| is_related(&other.index, &kept.index))
            .filter_map(|other| {
                Some(RelatedTrace {
                    relation: relation(&other.index, &kept.index),
                    row: row::of(other, unix_ns)?,
                })
            })
            .collect();
        let start = kept.index.start_unix_ns;
        related.sort_by_key(|other| (!other.is_kept_first(), other.row.start_unix_ns.abs_diff(start)));
        related.truncate(MAX_RELATED);
        related.sort_by_key(|other| other.row.start_unix_ns);
        Some(TraceView {
            row: row::of(kept, unix_ns)?,
            identity: trace.identity.clone(),
            now_unix_ns: unix_ns,
            runbooks: RUNBOOKS,
            timeline: timeline(trace, now),
            related,
        })
    }
}

impl RelatedTrace {
    /// Relations of which a trace has few, however often an operation is repeated.
    fn is_kept_first(&self) -> bool {
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
            attributes: AttributeMap(registry::attributes(trace, span)),
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

/// Whether `other` is shown with `trace`: of the same sandbox, with the same trace id, or linked in either direction.
fn is_related(other: &TraceIndex, trace: &TraceIndex) -> bool {
    other.root != trace.root
        && (other.root.trace == trace.root.trace
            || of_one_sandbox(other, trace)
            || links(other, trace).is_some()
            || links(trace, other).is_some())
}

fn of_one_sandbox(one: &TraceIndex, other: &TraceIndex) -> bool {
    one.sandbox.is_some() && one.sandbox == other.sandbox
}

fn links(from: &TraceIndex, to: &TraceIndex) -> Option<Relation> {
    let mut links = from.links.iter();
    links
        .find(|(linked, _)| *linked == to.root)
        .map(|(_, relation)| *relation)
}

/// What `other` is to `trace`.
fn relation(other: &TraceIndex, trace: &TraceIndex) -> &'static str {
    if links(trace, other) == Some(Relation::PreviousAttempt) {
        "previous_attempt"
    } else if links(other, trace) == Some(Relation::PreviousAttempt) {
        "next_attempt"
    } else if other.root.trace == trace.root.trace && !of_one_sandbox(other, trace) {
        "same_trace"
    } else {
        match other.kind {
            TraceKind::Sandbox => "sandbox",
            TraceKind::Journey => "journey",
            TraceKind::Operation => "operation",
        }
    }
}

impl Serialize for AttributeMap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            match value {
                AttributeValue::Text(text) => map.serialize_entry(key, text)?,
                AttributeValue::Int(number) => map.serialize_entry(key, number)?,
                AttributeValue::Bool(flag) => map.serialize_entry(key, flag)?,
                AttributeValue::List(list) => map.serialize_entry(key, list)?,
            }
        }
        map.end()
    }
}

const MAX_RELATED: usize = 50;
const RUNBOOKS: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/dashboards/runbooks/reasons/");
