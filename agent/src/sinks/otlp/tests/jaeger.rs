//! The sink against a real receiver: Jaeger 2 with storage in memory, queried through its API.
//!
//! Runs where `SANDGLASS_JAEGER` names a Jaeger 2 binary; skipped, by name, elsewhere.

use std::collections::HashMap;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// A Jaeger process of the test's own, killed at the end.
pub(super) struct Jaeger {
    pub(super) process: sandglass_lab::jaeger::Jaeger,
    _folder: tempfile::TempDir,
}

impl Jaeger {
    pub(super) fn start(binary: &str) -> Jaeger {
        let folder = tempfile::tempdir().unwrap();
        let process = sandglass_lab::jaeger::Jaeger::start(binary.as_ref(), folder.path()).unwrap();
        Jaeger {
            process,
            _folder: folder,
        }
    }

    async fn get(&self, path: &str) -> Option<Value> {
        get(self.process.ports.query, path).await
    }

    async fn trace(&self, id: &str) -> Value {
        shown(self.process.ports.query, id, 6).await
    }
}

/// What Jaeger's API says; `None` while there is no answer.
async fn get(port: u16, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

/// Number of spans that a Jaeger has of a trace.
pub(super) async fn spans(port: u16, id: &str) -> usize {
    let answer = get(port, &format!("/api/traces/{id}")).await;
    answer.map_or(0, |answer| answer["data"][0]["spans"].as_array().map_or(0, Vec::len))
}

/// A trace, once the Jaeger has all of its spans.
async fn shown(port: u16, id: &str, number: usize) -> Value {
    let begin = Instant::now();
    while spans(port, id).await != number {
        assert!(begin.elapsed() < LONG, "Jaeger does not show trace {id}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    get(port, &format!("/api/traces/{id}")).await.unwrap()["data"][0].clone()
}

#[tokio::test]
async fn jaeger_shows_the_same_tree_over_http_and_grpc() {
    let Ok(binary) = std::env::var("SANDGLASS_JAEGER") else {
        eprintln!("SKIPPED jaeger_shows_the_same_tree_over_http_and_grpc: SANDGLASS_JAEGER names no Jaeger 2 binary");
        return;
    };
    let jaeger = Jaeger::start(&binary);
    let ports = jaeger.process.ports;
    for (number, protocol, port) in [(1, "http/protobuf", ports.http), (2, "grpc", ports.grpc)] {
        let sink = start(config(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://127.0.0.1:{port}")),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ]));
        let trace = full_trace(number);
        // It comes up meanwhile: the first attempts fail.
        sink.offer(&trace);
        until("delivery", || sink.status().delivered == 6).await;
        assert_eq!(sink.stop(LONG).await, 0);
        assert_shown(&trace, &jaeger.trace(&trace.id.to_string()).await);
    }
    let services = jaeger.get("/api/services").await.unwrap();
    assert_eq!(services["data"], serde_json::json!(["sandglass"]));
}

fn assert_shown(trace: &Trace, shown: &Value) {
    let spans: HashMap<&str, &Value> = shown["spans"]
        .as_array()
        .unwrap()
        .iter()
        .map(|span| (span["spanID"].as_str().unwrap(), span))
        .collect();
    let tags = |list: &Value| -> HashMap<String, Value> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|tag| (tag["key"].as_str().unwrap().to_owned(), tag["value"].clone()))
            .collect()
    };
    for span in &trace.spans {
        let shown_span = spans[span.id.to_string().as_str()];
        assert_eq!(shown_span["operationName"], registry::name(span));
        let start_us = trace.anchor.unix_ns(span.start) / 1_000;
        assert_eq!(shown_span["startTime"], start_us);
        assert_eq!(shown_span["duration"], span.duration_ns(span.start) / 1_000);
        let parent = span.parent.map(|index| trace.spans[index].id).or(trace.remote_parent);
        let shown_parent = shown_span["references"]
            .as_array()
            .unwrap()
            .iter()
            .find(|reference| reference["refType"] == "CHILD_OF")
            .map(|reference| reference["spanID"].as_str().unwrap().to_owned());
        assert_eq!(shown_parent, parent.map(|id| id.to_string()));
        let tags = tags(&shown_span["tags"]);
        assert_eq!(tags.contains_key("error"), span.status.is_error());
        if let sandglass_model::Status::Error { class, message } = &span.status {
            assert_eq!(tags["otel.status_description"], *message);
            assert_eq!(tags["error.type"], *class);
        }
    }
    let process = &shown["processes"]["p1"];
    assert_eq!(process["serviceName"], "sandglass");
    assert_eq!(tags(&process["tags"])["k8s.pod.name"], trace.identity.name);
}
