//! The sink against a scripted collector: every class of answer and fault, over both protocols, with exact counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use hyper::{Request, Response};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use proptest::prelude::{Just, ProptestConfig, Strategy, proptest};
use sandglass_model::registry;

use super::*;
use collector::{Act, Collector};
use config::defaults;
use fixture::{config, full_trace, node, small, small_trace};

mod answers;
pub(super) mod back_ends;
mod bounds;
pub(super) mod collector;
mod content;
mod faults;
pub(super) mod fixture;
mod jaeger;
mod outages;
mod spooled;
mod tls_ends;

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(20);

fn http(collector: &Collector) -> Resolved {
    config(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url())])
}

fn grpc(collector: &Collector) -> Resolved {
    config(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
    ])
}

fn start(config: Resolved) -> OtlpSink {
    OtlpSink::start(config, node(), Health::default()).unwrap()
}

/// Makes every trace a request of its own.
fn one_by_one(mut config: Resolved) -> Resolved {
    config.tuning.batch_spans = 1;
    config
}

pub(super) async fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < LONG, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until nothing waits any more, for as long as some of it leaves: thousands of requests take long on a busy machine.
pub(super) async fn until_sent(what: &str, sink: &OtlpSink) {
    let (mut least, mut since) = (u64::MAX, Instant::now());
    loop {
        let status = sink.status();
        if status.waiting == 0 {
            return;
        }
        if status.waiting < least {
            (least, since) = (status.waiting, Instant::now());
        }
        assert!(since.elapsed() < LONG, "never: {what}; {status:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Sends one small trace against `script`; answers the status at the end and what the collector saw.
async fn exchange(collector: Collector, config: Resolved) -> (OtlpStatus, Vec<collector::Seen>) {
    let sink = start(config);
    sink.offer(&small(1));
    until_sent("an end", &sink).await;
    assert_eq!(sink.stop(LONG).await, 0);
    (sink.status(), collector.seen())
}

fn attributes(list: &[KeyValue]) -> BTreeMap<String, String> {
    list.iter()
        .map(|pair| {
            assert!(
                registry::ATTRIBUTES.iter().any(|known| known.key == pair.key),
                "{} is not in the registry",
                pair.key
            );
            (pair.key.clone(), text(pair.value.as_ref().unwrap()))
        })
        .collect()
}

fn text(value: &AnyValue) -> String {
    match value.value.as_ref().unwrap() {
        any_value::Value::StringValue(text) => text.clone(),
        any_value::Value::IntValue(number) => number.to_string(),
        any_value::Value::BoolValue(truth) => truth.to_string(),
        any_value::Value::ArrayValue(array) => array.values.iter().map(text).collect::<Vec<_>>().join("|"),
        other => panic!("{other:?}"),
    }
}

fn registry_text(value: &registry::AttributeValue) -> String {
    match value {
        registry::AttributeValue::Text(text) => text.clone(),
        registry::AttributeValue::Int(number) => number.to_string(),
        registry::AttributeValue::Bool(truth) => truth.to_string(),
        registry::AttributeValue::List(texts) => texts.join("|"),
    }
}

/// `plugin bridge` fits `plugin <type>`.
fn is_registered_name(name: &str) -> bool {
    registry::SPAN_NAMES
        .iter()
        .any(|pattern| match pattern.split_once('<') {
            Some((prefix, _)) => name.len() > prefix.len() && name.starts_with(prefix),
            None => name == *pattern,
        })
}

/// Holds what was sent against the registry and the model, field by field.
fn assert_sent(trace: &Trace, sent: &[Span]) {
    assert_eq!(sent.len(), trace.spans.len());
    for (span, sent) in trace.spans.iter().zip(sent) {
        assert_eq!(sent.trace_id, trace.id.0.to_be_bytes());
        assert_eq!(sent.span_id, span.id.0.to_be_bytes());
        let parent = match span.parent {
            Some(index) => Some(trace.spans[index].id),
            None => trace.remote_parent,
        };
        assert_eq!(
            sent.parent_span_id,
            parent.map(|id| id.0.to_be_bytes().to_vec()).unwrap_or_default()
        );
        let remote = span.parent.is_none() && trace.remote_parent.is_some();
        assert_eq!(
            sent.flags,
            0x101 | if remote { 0x200 } else { 0 },
            "sampled, and whether the parent is remote"
        );
        assert_eq!(sent.name, registry::name(span));
        assert!(is_registered_name(&sent.name), "{}", sent.name);
        let kind = match registry::kind(span) {
            registry::Kind::Internal => 1,
            registry::Kind::Client => 3,
        };
        assert_eq!(sent.kind, kind);
        // The SDK takes times as the system counts them: Windows does in steps of 100 ns.
        let step = if cfg!(windows) { 100 } else { 1 };
        let unix_ns = |at| trace.anchor.unix_ns(at) / step * step;
        assert_eq!(sent.start_time_unix_nano, unix_ns(span.start));
        assert_eq!(sent.end_time_unix_nano, unix_ns(span.end.unwrap()));
        let expected: BTreeMap<_, _> = registry::attributes(trace, span)
            .iter()
            .map(|(key, value)| ((*key).to_owned(), registry_text(value)))
            .collect();
        assert_eq!(attributes(&sent.attributes), expected);
        let status = sent.status.as_ref().unwrap();
        match &span.status {
            sandglass_model::Status::Unset => assert_eq!((status.code, status.message.as_str()), (0, "")),
            sandglass_model::Status::Error { message, .. } => {
                assert_eq!((status.code, &status.message), (2, message));
            }
        }
        assert_eq!(sent.events.len(), span.events.len());
        for (event, sent) in span.events.iter().zip(&sent.events) {
            assert!(registry::SPAN_EVENTS.contains(&sent.name.as_str()));
            assert_eq!(sent.name, event.name);
            assert_eq!(sent.time_unix_nano, unix_ns(event.at));
            assert_eq!(attributes(&sent.attributes), event.attributes.iter().cloned().collect());
        }
        assert_eq!(sent.links.len(), span.links.len());
        for (link, sent) in span.links.iter().zip(&sent.links) {
            assert_eq!(sent.trace_id, link.trace.0.to_be_bytes());
            assert_eq!(sent.span_id, link.span.0.to_be_bytes());
            assert_eq!(
                attributes(&sent.attributes)[registry::RELATION],
                registry::relation(link.relation)
            );
        }
    }
}
