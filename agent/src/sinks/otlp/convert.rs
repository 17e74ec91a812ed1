//! Converts a closed trace to OpenTelemetry's `SpanData` and the resource it belongs to.
//!
//! Used by the sink's batching task. Names, kinds, attributes and the resource come from `sandglass_model::registry` only.
//! Does not: filter, sample, shorten or reorder: span `i` of the trace is span `i` of the result.

use std::borrow::Cow;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{Event, Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{Array, InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use sandglass_model::registry;
use sandglass_model::time::Timestamp;
use sandglass_model::trace::Relation;
use sandglass_model::{Span, Trace};

use crate::node::NodeInfo;
use crate::sinks::sampling::Chosen;

/// The spans of a closed trace that is sent.
#[must_use]
pub(super) fn spans(chosen: &Chosen, scope: &InstrumentationScope) -> Vec<SpanData> {
    let trace = &chosen.trace;
    // What `sandglass_model::sampling` renders is valid.
    let state = TraceState::from_str(&chosen.tracestate).unwrap_or_default();
    let spans = trace.spans.iter().map(|span| {
        let mut data = span_data(trace, span, scope);
        data.span_context = SpanContext::new(
            data.span_context.trace_id(),
            data.span_context.span_id(),
            TraceFlags::new(chosen.flags),
            false,
            state.clone(),
        );
        data
    });
    spans.collect()
}

/// The resource of a trace: agent, node, pod, and the attributes configured for every resource.
#[must_use]
pub(super) fn resource(trace: &Trace, node: &NodeInfo, service: &str, extra: &[(String, String)]) -> Resource {
    let own = registry::resource(trace, &node.name, service, &node.version)
        .into_iter()
        .map(|(key, value)| KeyValue::new(key, convert_value(value)));
    let extra = extra
        .iter()
        .map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
    // Later attributes win: configured ones never overwrite the trace's.
    Resource::builder_empty()
        .with_schema_url(extra.chain(own), SCHEMA_URL)
        .build()
}

/// The instrumentation scope of every span.
#[must_use]
pub(super) fn scope(version: &str) -> InstrumentationScope {
    InstrumentationScope::builder("sandglass")
        .with_version(version.to_owned())
        .with_schema_url(SCHEMA_URL)
        .build()
}

/// Encoded size of a span in bytes, roughly: framing is underestimated.
#[must_use]
pub(super) fn encoded_size(span: &SpanData) -> usize {
    let attributes = |list: &[KeyValue]| -> usize {
        list.iter()
            .map(|attribute| attribute.key.as_str().len() + value_size(&attribute.value) + ATTRIBUTE_FRAMING)
            .sum()
    };
    let events: usize = span
        .events
        .iter()
        .map(|event| event.name.len() + attributes(&event.attributes) + EVENT_FRAMING)
        .sum();
    let links: usize = span
        .links
        .iter()
        .map(|link| attributes(&link.attributes) + LINK_FRAMING)
        .sum();
    let description = match &span.status {
        Status::Error { description } => description.len(),
        Status::Ok | Status::Unset => 0,
    };
    span.name.len() + attributes(&span.attributes) + events + links + description + SPAN_FRAMING
}

fn value_size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.as_str().len(),
        Value::Array(Array::String(texts)) => texts.iter().map(|text| text.as_str().len() + 4).sum(),
        _ => 10,
    }
}

fn span_data(trace: &Trace, span: &Span, scope: &InstrumentationScope) -> SpanData {
    let trace_id = TraceId::from_bytes(trace.id.0.to_be_bytes());
    let time = |at: Timestamp| SystemTime::UNIX_EPOCH + Duration::from_nanos(trace.anchor.unix_ns(at));
    let (parent_span_id, parent_span_is_remote) = parent(trace, span);
    let mut events = SpanEvents::default();
    events.events.extend(span.events.iter().map(|event| {
        let attributes = event
            .attributes
            .iter()
            .map(|(key, value)| KeyValue::new(key.clone(), value.clone()))
            .collect();
        Event::new(event.name.clone(), time(event.at), attributes, 0)
    }));
    let mut links = SpanLinks::default();
    links.links.extend(span.links.iter().map(|link| {
        let context = SpanContext::new(
            TraceId::from_bytes(link.trace.0.to_be_bytes()),
            SpanId::from_bytes(link.span.0.to_be_bytes()),
            TraceFlags::SAMPLED,
            // Only the caller's context is from another process; all other links are to this agent's traces.
            link.relation == Relation::Caller,
            TraceState::NONE,
        );
        let relation = KeyValue::new(registry::RELATION, registry::relation(link.relation));
        Link::new(context, vec![relation], 0)
    }));
    SpanData {
        span_context: SpanContext::new(
            trace_id,
            SpanId::from_bytes(span.id.0.to_be_bytes()),
            TraceFlags::SAMPLED,
            false,
            TraceState::NONE,
        ),
        parent_span_id,
        parent_span_is_remote,
        span_kind: match registry::kind(span) {
            registry::Kind::Internal => SpanKind::Internal,
            registry::Kind::Client => SpanKind::Client,
        },
        name: Cow::Owned(registry::name(span)),
        start_time: time(span.start),
        // A closed trace has no open span (`Trace::check`); one that had would be exported without a duration.
        end_time: time(span.end.unwrap_or(span.start)),
        attributes: registry::attributes(trace, span)
            .into_iter()
            .map(|(key, value)| KeyValue::new(key, convert_value(value)))
            .collect(),
        dropped_attributes_count: 0,
        events,
        links,
        status: match &span.status {
            sandglass_model::Status::Unset => Status::Unset,
            sandglass_model::Status::Error { message, .. } => Status::error(message.clone()),
        },
        instrumentation_scope: scope.clone(),
    }
}

/// The parent's id, and whether it is remote: the root of an operation within the runtime's own trace.
fn parent(trace: &Trace, span: &Span) -> (SpanId, bool) {
    let local = span.parent.and_then(|index| trace.spans.get(index));
    match (local, trace.remote_parent) {
        (Some(parent), _) => (SpanId::from_bytes(parent.id.0.to_be_bytes()), false),
        (None, Some(remote)) => (SpanId::from_bytes(remote.0.to_be_bytes()), true),
        (None, None) => (SpanId::INVALID, false),
    }
}

fn convert_value(value: registry::AttributeValue) -> Value {
    match value {
        registry::AttributeValue::Text(text) => Value::String(text.into()),
        registry::AttributeValue::Int(number) => Value::I64(number),
        registry::AttributeValue::Bool(truth) => Value::Bool(truth),
        registry::AttributeValue::List(texts) => {
            Value::Array(Array::String(texts.into_iter().map(StringValue::from).collect()))
        }
    }
}

/// The semantic conventions that the registry follows.
pub(super) const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.44.0";
const ATTRIBUTE_FRAMING: usize = 8;
const EVENT_FRAMING: usize = 16;
const LINK_FRAMING: usize = 36;
const SPAN_FRAMING: usize = 96;
