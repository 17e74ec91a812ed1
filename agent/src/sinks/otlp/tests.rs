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
use config::Tuning;
use fixture::{config, full_trace, node, small, small_trace};

mod collector;
mod fixture;
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

async fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < LONG, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Sends one small trace against `script`; answers the status at the end and what the collector saw.
async fn exchange(collector: Collector, config: Resolved) -> (OtlpStatus, Vec<collector::Seen>) {
    let sink = start(config);
    sink.offer(&small(1));
    until("an end", || sink.status().waiting == 0).await;
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

fn registry_text(value: &registry::Value) -> String {
    match value {
        registry::Value::Text(text) => text.clone(),
        registry::Value::Int(number) => number.to_string(),
        registry::Value::Bool(truth) => truth.to_string(),
        registry::Value::List(texts) => texts.join("|"),
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
        assert_eq!(sent.start_time_unix_nano, trace.anchor.unix_ns(span.start));
        assert_eq!(sent.end_time_unix_nano, trace.anchor.unix_ns(span.end.unwrap()));
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
            assert_eq!(sent.time_unix_nano, trace.anchor.unix_ns(event.at));
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

// What is sent.

#[tokio::test]
async fn http_sends_what_the_registry_says() {
    for compression in ["gzip", "none"] {
        let collector = Collector::http(Vec::new()).await;
        let sink = start(config(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("{}/base/", collector.url())),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20secret,x-tenant=t1"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", compression),
            ("OTEL_RESOURCE_ATTRIBUTES", "k8s.node.name=wrong,k8s.pod.name=agent-7"),
        ]));
        let trace = full_trace(1);
        sink.offer(&trace);
        assert_eq!(sink.stop(LONG).await, 0);
        let [seen] = collector.seen().try_into().unwrap();
        assert_eq!(seen.path, "/base/v1/traces");
        assert_eq!(seen.header("content-type"), "application/x-protobuf");
        assert_eq!(
            seen.header("content-encoding"),
            if compression == "gzip" { "gzip" } else { "" }
        );
        assert_eq!(seen.header("api-key"), "a secret");
        assert_eq!(seen.header("x-tenant"), "t1");
        assert_eq!(seen.header("host"), collector.address.to_string());
        assert_eq!(
            seen.header("user-agent"),
            "OTel-OTLP-Exporter-Rust/0.33.1 sandglass/9.8.7"
        );
        let request = seen.decode();
        let [resource] = request.resource_spans.as_slice() else {
            panic!("{request:?}")
        };
        assert_eq!(resource.schema_url, "https://opentelemetry.io/schemas/1.44.0");
        let expected: BTreeMap<_, _> = registry::resource(&trace, "node-1", "sandglass", "9.8.7")
            .iter()
            .map(|(key, value)| ((*key).to_owned(), registry_text(value)))
            .collect();
        assert_eq!(expected[registry::POD_NAME], "cart-1");
        assert_eq!(attributes(&resource.resource.as_ref().unwrap().attributes), expected);
        assert_sent(&trace, &seen.spans());
        assert_eq!(sink.status().delivered, trace.spans.len() as u64);
    }
}

#[tokio::test]
async fn grpc_sends_what_the_registry_says() {
    for compression in ["gzip", "none"] {
        let collector = Collector::grpc(Vec::new()).await;
        let sink = start(config(&[
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &collector.address.to_string()),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_INSECURE", "true"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "api-key=secret"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", compression),
        ]));
        let trace = full_trace(1);
        sink.offer(&trace);
        assert_eq!(sink.stop(LONG).await, 0);
        let [seen] = collector.seen().try_into().unwrap();
        assert_eq!(
            seen.path,
            format!(
                "http://{}/opentelemetry.proto.collector.trace.v1.TraceService/Export",
                collector.address
            )
        );
        assert_eq!(seen.header("content-type"), "application/grpc");
        assert_eq!(seen.header("te"), "trailers");
        assert_eq!(
            seen.header("grpc-encoding"),
            if compression == "gzip" { "gzip" } else { "" }
        );
        assert!(seen.header("grpc-timeout").ends_with('m'));
        assert_eq!(seen.header("api-key"), "secret");
        assert_eq!(
            seen.header("user-agent"),
            "OTel-OTLP-Exporter-Rust/0.33.1 sandglass/9.8.7"
        );
        assert_sent(&trace, &seen.spans());
    }
}

#[tokio::test]
async fn pods_share_a_request_and_each_has_its_resource() {
    let collector = Collector::http(Vec::new()).await;
    let sink = start(http(&collector));
    let mut again = small_trace(7);
    again.identity = small_trace(1).identity;
    for trace in [small(1), small(2), Arc::new(again)] {
        sink.offer(&trace);
    }
    assert_eq!(sink.stop(LONG).await, 0);
    let [seen] = collector.seen().try_into().unwrap();
    let pods: Vec<_> = seen
        .decode()
        .resource_spans
        .iter()
        .map(|resource| {
            let attributes = attributes(&resource.resource.as_ref().unwrap().attributes);
            (
                attributes[registry::POD_UID].clone(),
                resource.scope_spans[0].spans.len(),
            )
        })
        .collect();
    assert_eq!(pods, [("uid-1".to_owned(), 2), ("uid-2".to_owned(), 1)]);
}

#[tokio::test]
async fn big_batches_are_cut_by_spans_and_by_bytes() {
    let collector = Collector::http(Vec::new()).await;
    let mut by_spans = http(&collector);
    by_spans.tuning.batch_spans = 4;
    let sink = start(by_spans);
    for number in 1..=3 {
        sink.offer(&full_trace(number));
    }
    assert_eq!(sink.stop(LONG).await, 0);
    let sizes: Vec<_> = collector.seen().iter().map(|seen| seen.spans().len()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 18);
    assert!(sizes.iter().all(|size| *size <= 4), "{sizes:?}");

    let collector = Collector::http(Vec::new()).await;
    let mut by_bytes = http(&collector);
    by_bytes.tuning.batch_bytes = 2_000;
    by_bytes.gzip = false;
    let sink = start(by_bytes);
    for number in 1..=5 {
        sink.offer(&full_trace(number));
    }
    assert_eq!(sink.stop(LONG).await, 0);
    let seen = collector.seen();
    assert_eq!(collector.spans().len(), 30);
    assert!(
        seen.len() > 3 && seen.iter().all(|seen| seen.raw.len() < 3_000),
        "{}",
        seen.len()
    );
}

#[tokio::test]
async fn open_traces_are_not_sent() {
    let collector = Collector::http(Vec::new()).await;
    let sink = start(http(&collector));
    let mut open = small_trace(1);
    open.closed = false;
    sink.offer(&Arc::new(open));
    assert_eq!(sink.stop(LONG).await, 0);
    assert!(collector.seen().is_empty(), "an empty request is not sent either");
    assert_eq!(sink.status().delivered, 0);
}

/// The exporter compresses when the process environment says so; the delivery takes that as well.
#[tokio::test]
async fn bodies_that_come_compressed_are_joined_plain() {
    use std::io::Write;
    let delivery = Delivery::new(false, Outbox::new(1, 100), Arc::new(Metrics::new()));
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(b"one").unwrap();
    let compressed = Request::post("http://localhost/")
        .header("content-encoding", "gzip")
        .body(Bytes::from(encoder.finish().unwrap()))
        .unwrap();
    delivery.send_bytes(compressed).await.unwrap();
    let plain = Request::post("http://localhost/").body(Bytes::from("two")).unwrap();
    delivery.send_bytes(plain).await.unwrap();
    assert_eq!(delivery.open_bytes(), 6);
}

/// The user agent names the version of a crate that has no constant for it.
#[tokio::test]
async fn the_user_agent_names_the_exporters_version() {
    #[derive(Debug, Default)]
    struct Peek(Mutex<String>);

    #[async_trait::async_trait]
    impl HttpClient for Peek {
        async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
            *self.0.lock().unwrap() = request.headers()["user-agent"].to_str().unwrap().to_owned();
            Ok(Response::new(Bytes::new()))
        }
    }

    use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
    use opentelemetry_sdk::trace::SpanExporter as _;
    let peek = Arc::new(Peek::default());
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_shared_http_client(Arc::clone(&peek) as Arc<dyn HttpClient>)
        .with_endpoint("http://localhost/")
        .build()
        .unwrap();
    let spans = convert::spans(&small_trace(1), &convert::scope("1"));
    exporter.export(spans).await.unwrap();
    let said = peek.0.lock().unwrap().clone();
    assert_eq!(said, format!("OTel-OTLP-Exporter-Rust/{}", transport::EXPORTER_VERSION));
}

// Answers.

#[tokio::test]
async fn http_statuses_are_retried_or_final_as_the_specification_says() {
    for status in [429, 502, 503, 504] {
        let collector = Collector::http(vec![Act::status(status), Act::status(status)]).await;
        let config = http(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, end.rejected, seen.len()), (1, 0, 3), "{status}");
        assert!(
            seen.iter().all(|one| one.raw == seen[0].raw),
            "{status}: the same bytes"
        );
        assert!(!end.failing);
        assert!(end.last_error.unwrap().contains(&status.to_string()));
    }
    for status in [
        301, 307, 400, 401, 403, 404, 405, 408, 413, 415, 422, 431, 500, 501, 505, 507,
    ] {
        let collector = Collector::http(vec![Act::status(status)]).await;
        let config = http(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, end.rejected, seen.len()), (0, 1, 1), "{status}");
    }
    for status in [200, 202, 204] {
        let collector = Collector::http(vec![Act::status(status)]).await;
        let config = http(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, end.rejected, seen.len()), (1, 0, 1), "{status}");
    }
}

#[tokio::test]
async fn grpc_codes_are_retried_or_final_as_the_specification_says() {
    for code in [1, 4, 10, 11, 14, 15] {
        let collector = Collector::grpc(vec![Act::grpc(code), Act::grpc(code)]).await;
        let config = grpc(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, end.rejected, seen.len()), (1, 0, 3), "{code}");
        assert!(end.last_error.unwrap().contains("as scripted"));
    }
    for code in [2, 3, 5, 6, 7, 8, 9, 12, 13, 16, 99] {
        let collector = Collector::grpc(vec![Act::grpc(code)]).await;
        let config = grpc(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, end.rejected, seen.len()), (0, 1, 1), "{code}");
    }
    for (status, delivered) in [(503, 1), (429, 1), (404, 0), (500, 0)] {
        let collector = Collector::grpc(vec![Act::status(status)]).await;
        let config = grpc(&collector);
        let (end, _) = exchange(collector, config).await;
        assert_eq!(
            (end.delivered, end.rejected),
            (delivered, 1 - delivered),
            "HTTP {status}"
        );
    }
}

#[tokio::test]
async fn a_throttling_collector_is_given_the_time_it_asks() {
    // RESOURCE_EXHAUSTED is retried only because of the RetryInfo; UNAVAILABLE in any case.
    for code in [8, 14] {
        let details = verdict::tests::retry_info(Some((0, 400_000_000)));
        let collector = Collector::grpc(vec![Act::Grpc(code, details, Vec::new())]).await;
        let config = grpc(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, seen.len()), (1, 2), "{code}");
        assert_pause(&seen, 400);
    }
    for seconds in [true, false] {
        let (header, least) = if seconds {
            ("1".to_owned(), 1_000)
        } else {
            // The date has no fractions of a second.
            let date = SystemTime::now() + Duration::from_secs(2);
            (httpdate::fmt_http_date(date), 900)
        };
        let throttle = Act::Answer(503, vec![("retry-after", header.clone())], Vec::new());
        let collector = Collector::http(vec![throttle]).await;
        let config = http(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, seen.len()), (1, 2), "{header}");
        assert_pause(&seen, least);
    }
}

fn assert_pause(seen: &[collector::Seen], least_ms: u64) {
    let pause = seen[1].at - seen[0].at;
    let least = Duration::from_millis(least_ms);
    assert!(pause >= least && pause < least * 2 + SHORT, "{pause:?}");
}

#[tokio::test]
async fn partial_success_is_counted_and_never_retried() {
    // ExportTraceServiceResponse { partial_success { rejected_spans: 4, error_message: "too old" } }
    let partial = b"\x0a\x0b\x08\x04\x12\x07too old".to_vec();
    // The same with 0 spans: a warning.
    let warning = b"\x0a\x09\x12\x07too old".to_vec();
    for over_grpc in [false, true] {
        for (answer, delivered, rejected) in [(&partial, 2, 4), (&warning, 6, 0)] {
            let (collector, config) = if over_grpc {
                let collector = Collector::grpc(vec![Act::Grpc(0, String::new(), answer.clone())]).await;
                let config = grpc(&collector);
                (collector, config)
            } else {
                let collector = Collector::http(vec![Act::Answer(200, Vec::new(), answer.clone())]).await;
                let config = http(&collector);
                (collector, config)
            };
            let sink = start(config);
            sink.offer(&full_trace(1));
            assert_eq!(sink.stop(LONG).await, 0);
            let status = sink.status();
            assert_eq!((status.delivered, status.rejected), (delivered, rejected));
            assert!(status.last_error.unwrap().contains("too old"));
            assert_eq!(collector.seen().len(), 1);
        }
    }
}

#[tokio::test]
async fn an_answer_over_the_limit_is_final() {
    let huge = vec![b'x'; (4 << 20) + 1];
    for status in [200, 503] {
        let collector = Collector::http(vec![Act::Answer(status, Vec::new(), huge.clone())]).await;
        let config = http(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, end.rejected, seen.len()), (0, 1, 1), "{status}");
        assert!(end.last_error.unwrap().contains("4 MiB"));
    }
    let collector = Collector::grpc(vec![Act::Grpc(0, String::new(), huge)]).await;
    let config = grpc(&collector);
    let (end, seen) = exchange(collector, config).await;
    assert_eq!((end.delivered, end.rejected, seen.len()), (0, 1, 1));
}

#[tokio::test]
async fn a_success_that_is_not_otlp_is_delivered_and_said() {
    let page = Act::Answer(200, vec![("content-type", "text/html".to_owned())], b"<html>".to_vec());
    let collector = Collector::http(vec![page]).await;
    let config = http(&collector);
    let (end, seen) = exchange(collector, config).await;
    assert_eq!((end.delivered, seen.len()), (1, 1));
    assert!(end.last_error.unwrap().contains("not OTLP"));
}

// Faults.

#[tokio::test]
async fn no_whole_answer_means_again() {
    for act in [Act::Reset, Act::Close, Act::Truncate(200), Act::Truncate(503)] {
        let collector = Collector::http(vec![act.clone(), act.clone()]).await;
        let config = http(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, end.rejected), (1, 0), "{act:?}");
        assert_eq!(seen.len(), 3, "{act:?}");
        assert!(seen.iter().all(|one| one.raw == seen[0].raw), "{act:?}");
    }
    for act in [Act::Reset, Act::Truncate(200)] {
        let collector = Collector::grpc(vec![act.clone()]).await;
        let config = grpc(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, end.rejected), (1, 0), "{act:?}");
        assert!(seen.len() >= 2, "{act:?}");
    }
}

#[tokio::test]
async fn a_slow_answer_is_given_up_at_the_timeout() {
    for over_grpc in [false, true] {
        let hang = vec![Act::Hang(Duration::from_secs(60))];
        let (collector, mut config) = if over_grpc {
            let collector = Collector::grpc(hang).await;
            let config = grpc(&collector);
            (collector, config)
        } else {
            let collector = Collector::http(hang).await;
            let config = http(&collector);
            (collector, config)
        };
        config.timeout = SHORT;
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, seen.len()), (1, 2));
        assert!(end.last_error.unwrap().contains("within 300 ms"));
        assert_ne!(
            seen[0].connection, seen[1].connection,
            "a stuck connection is not used again"
        );
        assert!(seen[1].at - seen[0].at < SHORT * 4);
    }
}

#[tokio::test]
async fn a_status_counts_even_if_its_body_never_comes() {
    for (act, delivered, requests) in [
        (Act::HeadOnly(400), 0, 1),
        (Act::Truncate(400), 0, 1),
        (Act::HeadOnly(503), 1, 2),
        (Act::HeadOnly(200), 1, 2),
    ] {
        let collector = Collector::http(vec![act.clone()]).await;
        let mut config = http(&collector);
        config.timeout = SHORT;
        let (end, seen) = exchange(collector, config).await;
        assert_eq!(
            (end.delivered, end.rejected, seen.len()),
            (delivered, 1 - delivered, requests),
            "{act:?}"
        );
    }
}

#[tokio::test]
async fn the_connection_is_kept_and_replaced_when_the_server_closed_it() {
    for over_grpc in [false, true] {
        let collector = if over_grpc {
            Collector::grpc(Vec::new()).await
        } else {
            Collector::http(Vec::new()).await
        };
        let sink = start(one_by_one(if over_grpc { grpc(&collector) } else { http(&collector) }));
        for number in 1..=20 {
            sink.offer(&small(number));
        }
        until("20 requests", || collector.seen().len() == 20).await;
        assert!(collector.seen().iter().all(|seen| seen.connection == 0));
        assert_eq!(sink.stop(LONG).await, 0);
    }
    let collector = Collector::http(vec![Act::OkThenClose, Act::OkThenClose]).await;
    let sink = start(one_by_one(http(&collector)));
    for number in 1..=3 {
        sink.offer(&small(number));
    }
    assert_eq!(sink.stop(LONG).await, 0);
    let numbers: Vec<_> = collector.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(numbers, [0, 1, 2]);
    assert_eq!(sink.metrics.retries.get(), 0);
    assert_eq!(sink.status().last_error, None);
}

#[tokio::test]
async fn a_collector_that_goes_and_comes_back_gets_every_span_once_and_in_order() {
    for over_grpc in [false, true] {
        let first = Collector::start("127.0.0.1:0", Vec::new(), over_grpc, None).await;
        let sink = start(one_by_one(if over_grpc { grpc(&first) } else { http(&first) }));
        for number in 0..10 {
            sink.offer(&small(number));
        }
        until("the first ten", || sink.status().delivered == 10).await;
        let mut got = first.spans();
        let address = first.go_away().await;
        for number in 10..60 {
            sink.offer(&small(number));
        }
        until("three failures", || sink.delivery.failure().streak >= 3).await;
        let away = sink.status();
        assert_eq!((away.delivered, away.waiting, away.failing), (10, 50, true));
        let second = Collector::start(&address.to_string(), Vec::new(), over_grpc, None).await;
        for number in 60..70 {
            sink.offer(&small(number));
        }
        until("all", || sink.status().waiting == 0).await;
        assert_eq!(sink.stop(LONG).await, 0);
        got.extend(second.spans());
        let expected: Vec<_> = (0..70)
            .map(|number| fixture::span_id(number, 0).0.to_be_bytes().to_vec())
            .collect();
        assert_eq!(
            got.iter().map(|span| span.span_id.clone()).collect::<Vec<_>>(),
            expected
        );
        let end = sink.status();
        assert_eq!((end.delivered, end.rejected, end.evicted, end.shed), (70, 0, 0, 0));
        assert!(!end.failing);
    }
}

#[tokio::test]
async fn a_sink_dropped_without_stop_does_not_spin() {
    let gone = Collector::http(Vec::new()).await;
    let mut config = http(&gone);
    config.tuning.backoff_initial = SHORT;
    config.tuning.backoff_max = SHORT;
    gone.go_away().await;
    let sink = start(config);
    sink.offer(&small(1));
    until("a failure", || sink.status().failing).await;
    let delivery = Arc::clone(&sink.delivery);
    drop(sink);
    // The drop may cut one wait short.
    tokio::time::sleep(SHORT * 2).await;
    assert!(delivery.failure().streak <= 6, "{}", delivery.failure().streak);
}

#[tokio::test]
async fn the_wrong_protocol_is_a_failure_that_keeps_the_spans() {
    for over_grpc in [false, true] {
        let collector = Collector::start("127.0.0.1:0", Vec::new(), over_grpc, None).await;
        let mut config = if over_grpc { http(&collector) } else { grpc(&collector) };
        config.timeout = SHORT;
        let sink = start(config);
        sink.offer(&small(1));
        until("two failures", || sink.delivery.failure().streak >= 2).await;
        assert_eq!(sink.stop(Duration::from_millis(20)).await, 1);
    }
}

/// What an act means for the request.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    Again,
    Final,
}

fn any_act() -> impl Strategy<Value = (Act, Fault)> {
    proptest::prop_oneof![
        3 => Just((Act::status(200), Fault::None)),
        1 => Just((Act::OkThenClose, Fault::None)),
        1 => Just((Act::status(503), Fault::Again)),
        1 => Just((Act::status(429), Fault::Again)),
        1 => Just((Act::Reset, Fault::Again)),
        1 => Just((Act::Close, Fault::Again)),
        1 => Just((Act::Truncate(200), Fault::Again)),
        1 => Just((Act::status(400), Fault::Final)),
        1 => Just((Act::status(500), Fault::Final)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the collector does, every span ends in one place, in order, and none is forgotten.
    #[test]
    fn any_script_adds_up(script in proptest::collection::vec(any_act(), 0..24)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let collector = Collector::http(script.iter().map(|(act, _)| act.clone()).collect()).await;
            let mut config = one_by_one(http(&collector));
            config.tuning.backoff_initial = Duration::from_millis(1);
            config.tuning.backoff_max = Duration::from_millis(2);
            let sink = start(config);
            for number in 0..12 {
                sink.offer(&small(number));
            }
            assert_eq!(sink.stop(LONG).await, 0);
            let end = sink.status();
            assert_eq!(end.delivered + end.rejected, 12);
            let seen = collector.seen();
            let sent: Vec<_> = seen.iter().map(|seen| seen.spans()[0].span_id.clone()).collect();
            assert!(sent.is_sorted(), "newer ones wait behind older ones");
            let mut once = sent.clone();
            once.dedup();
            assert_eq!(once.len(), 12, "each was sent");
            let final_answers = script
                .iter()
                .take(seen.len())
                .filter(|(_, fault)| matches!(fault, Fault::Final))
                .count();
            assert_eq!(end.rejected, final_answers as u64);
            let again = script
                .iter()
                .take(seen.len())
                .filter(|(_, fault)| matches!(fault, Fault::Again))
                .count();
            assert_eq!(seen.len(), 12 + again, "nothing is sent more often than needed");
        });
    }
}

// Bounds.

#[tokio::test]
async fn evicted_spans_are_the_oldest_and_counted_exactly() {
    let gone = Collector::http(Vec::new()).await;
    let mut config = one_by_one(http(&gone));
    config.tuning.queue_requests = 3;
    let address = gone.go_away().await;
    let sink = start(config);
    // 6 spans per trace, one span per request.
    for number in 1..=5 {
        sink.offer(&full_trace(number));
    }
    until("evictions", || sink.status().evicted >= 26).await;
    let back = Collector::start(&address.to_string(), Vec::new(), false, None).await;
    until("all", || sink.status().waiting == 0).await;
    let end = sink.status();
    let got = back.spans();
    assert_eq!(end.delivered + end.evicted, 30);
    assert_eq!(end.delivered, got.len() as u64);
    assert!(
        (3..=4).contains(&got.len()),
        "the queue, and perhaps the one under way: {}",
        got.len()
    );
    let last: Vec<_> = (3..6)
        .map(|index| fixture::span_id(5, index).0.to_be_bytes().to_vec())
        .collect();
    let ids: Vec<_> = got.iter().map(|span| span.span_id.clone()).collect();
    assert!(ids.ends_with(&last), "the newest are kept");
    assert_eq!(sink.stop(LONG).await, 0);
}

#[tokio::test]
async fn shed_traces_and_their_spans_are_counted_exactly() {
    let collector = Collector::http(Vec::new()).await;
    let mut config = http(&collector);
    config.tuning.queue_traces = 4;
    let health = Health::default();
    let sink = OtlpSink::start(config, node(), health.clone()).unwrap();
    // Nothing else runs on this runtime while this loop does.
    for number in 1..=10 {
        sink.offer(&full_trace(number));
    }
    assert_eq!(sink.status().shed, 36);
    assert_eq!(health.shed.get_or_create(&SinkLabel { sink: "otlp" }).get(), 6);
    assert_eq!(sink.stop(LONG).await, 0);
    assert_eq!(collector.spans().len(), 24);
    sink.offer(&full_trace(11));
    assert_eq!(sink.status().shed, 42, "a stopped sink sheds");
    assert_eq!(sink.status().waiting, 0);
}

#[tokio::test]
async fn stop_sends_what_waits_and_counts_what_is_left() {
    let collector = Collector::http(Vec::new()).await;
    let mut patient = http(&collector);
    patient.tuning.batch_delay = Duration::from_secs(60);
    let sink = start(patient);
    sink.offer(&full_trace(1));
    assert_eq!(sink.stop(LONG).await, 0, "the batch is not waited for");
    assert_eq!(collector.spans().len(), 6);

    let gone = Collector::http(Vec::new()).await;
    let mut config = http(&gone);
    config.tuning.backoff_initial = Duration::from_secs(60);
    config.tuning.backoff_max = Duration::from_secs(60);
    let address = gone.go_away().await;
    let sink = start(config.clone());
    sink.offer(&full_trace(1));
    until("a failure", || sink.status().failing).await;
    let begin = Instant::now();
    assert_eq!(sink.stop(SHORT).await, 6);
    assert!(begin.elapsed() < SHORT * 3);
    assert_eq!(sink.stop(SHORT).await, 6, "a second call only answers");

    let sink = start(config);
    sink.offer(&full_trace(1));
    until("a failure", || sink.status().failing).await;
    let back = Collector::start(&address.to_string(), Vec::new(), false, None).await;
    assert_eq!(sink.stop(LONG).await, 0, "the wait of a minute is cut short");
    assert_eq!(back.spans().len(), 6);
}

#[tokio::test]
async fn metrics_start_at_zero_and_say_what_happened() {
    let collector = Collector::http(vec![Act::status(503), Act::status(200), Act::status(400)]).await;
    let sink = start(http(&collector));
    let mut registry = Registry::with_prefix("sandglass");
    sink.register(&mut registry);
    let text = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    };
    for outcome in ["delivered", "rejected", "evicted", "partial_rejected", "shed"] {
        let line = format!("sandglass_export_spans_total{{outcome=\"{outcome}\"}} 0\n");
        assert!(text().contains(&line), "{line}{}", text());
    }
    sink.offer(&full_trace(1));
    until("delivery", || sink.status().delivered == 6).await;
    sink.offer(&full_trace(2));
    until("rejection", || sink.status().rejected == 6).await;
    assert_eq!(sink.stop(LONG).await, 0);
    for line in [
        "sandglass_export_spans_total{outcome=\"delivered\"} 6\n",
        "sandglass_export_spans_total{outcome=\"rejected\"} 6\n",
        "sandglass_export_retries_total 1\n",
        "sandglass_export_queue_spans 0\n",
        "sandglass_export_queue_bytes 0\n",
        "sandglass_export_queue_oldest_timestamp_seconds 0\n",
        "sandglass_export_request_duration_seconds_count 3\n",
    ] {
        assert!(text().contains(line), "{line}{}", text());
    }
}

#[tokio::test]
async fn a_request_over_the_limit_is_counted_and_not_sent() {
    let metrics = Arc::new(Metrics::new());
    let delivery = Delivery::new(true, Outbox::new(10, 1 << 30), Arc::clone(&metrics));
    let body = Bytes::from(vec![0; (64 << 20) + 1]);
    let request = Request::post("http://localhost/").body(body).unwrap();
    delivery.send_bytes(request).await.unwrap();
    delivery.seal(17);
    assert_eq!(metrics.total(Outcome::rejected), 17);
    assert!(delivery.failure().last.unwrap().contains("64 MiB"));
}

#[test]
fn the_sink_needs_a_runtime_and_says_so() {
    let config = config(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")]);
    assert_eq!(config.tuning.queue_traces, Tuning::default().queue_traces);
    let error = OtlpSink::start(config, node(), Health::default()).unwrap_err();
    assert!(matches!(error, StartError::NoRuntime(_)));
}
