//! The sink against a real receiver: Jaeger 2 with storage in memory, asked through its query API.
//!
//! Runs where `SANDGLASS_JAEGER` names a Jaeger 2 binary; skipped, by name, elsewhere.

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A Jaeger process of our own, killed at the end.
struct Jaeger {
    process: Child,
    query: u16,
    http: u16,
    grpc: u16,
    _folder: tempfile::TempDir,
}

impl Drop for Jaeger {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Jaeger {
    async fn start(binary: &str) -> Jaeger {
        let mut ports = Vec::new();
        let mut held = Vec::new();
        for _ in 0..4 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            ports.push(listener.local_addr().unwrap().port());
            held.push(listener);
        }
        drop(held);
        let [query, query_grpc, http, grpc] = ports.try_into().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jaeger.yaml");
        let config = format!(
            "service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines:
    traces: {{receivers: [otlp], exporters: [jaeger_storage_exporter]}}
  telemetry:
    metrics: {{level: none}}
extensions:
  jaeger_storage:
    backends: {{mem: {{memory: {{max_traces: 1000}}}}}}
  jaeger_query:
    storage: {{traces: mem}}
    http: {{endpoint: '127.0.0.1:{query}'}}
    grpc: {{endpoint: '127.0.0.1:{query_grpc}'}}
receivers:
  otlp:
    protocols:
      http: {{endpoint: '127.0.0.1:{http}'}}
      grpc: {{endpoint: '127.0.0.1:{grpc}'}}
exporters:
  jaeger_storage_exporter: {{trace_storage: mem}}
"
        );
        std::fs::write(&path, config).unwrap();
        let process = Command::new(binary)
            .arg("--config")
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Jaeger {
            process,
            query,
            http,
            grpc,
            _folder: folder,
        }
    }

    /// `None` while there is no answer.
    async fn get(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.query)).await.ok()?;
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    async fn trace(&self, id: &str) -> Value {
        let begin = Instant::now();
        loop {
            if let Some(answer) = self.get(&format!("/api/traces/{id}")).await
                && answer["data"][0]["spans"]
                    .as_array()
                    .is_some_and(|spans| spans.len() == 6)
            {
                return answer["data"][0].clone();
            }
            assert!(begin.elapsed() < LONG, "Jaeger does not show trace {id}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn jaeger_shows_the_same_tree_over_http_and_grpc() {
    let Ok(binary) = std::env::var("SANDGLASS_JAEGER") else {
        eprintln!("SKIPPED jaeger_shows_the_same_tree_over_http_and_grpc: SANDGLASS_JAEGER names no Jaeger 2 binary");
        return;
    };
    let jaeger = Jaeger::start(&binary).await;
    for (number, protocol, port) in [(1, "http/protobuf", jaeger.http), (2, "grpc", jaeger.grpc)] {
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
