//! The back ends of `deploy/examples`, started with the configuration that is in the files and fed by the sink.
//!
//! Jaeger 2 is built on the OpenTelemetry Collector and has the gateway's processors and connectors. Addresses, directories and
//! times are those of the test; a part that Jaeger's build does not have (an extension) is replaced. Runs where `SANDGLASS_JAEGER`
//! names a Jaeger 2 binary; skipped, by name, elsewhere. `prometheus.yaml` is started in `push/tests/prometheus.rs`.

use std::path::{Path, PathBuf};

use sandglass_lab::jaeger::{Jaeger, Ports};
use serde_json::{Value, json};

use super::jaeger::spans;
use super::*;

mod gateway;
mod routing;
mod tempo;

/// Longest wait for programs that start beside other tests.
const PEERS: Duration = Duration::from_secs(120);

/// The Kubernetes objects of an example.
pub(in crate::sinks::otlp) fn documents(example: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/examples")
        .join(example);
    serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The configuration in the ConfigMap of an example.
pub(in crate::sinks::otlp) fn configuration(example: &str, key: &str) -> Value {
    let documents = documents(example);
    let map = documents
        .iter()
        .find(|document| document["kind"] == "ConfigMap")
        .unwrap();
    serde_saphyr::from_str(map["data"][key].as_str().unwrap()).unwrap()
}

/// Replaces a value that is there.
pub(in crate::sinks::otlp) fn set(config: &mut Value, path: &str, value: Value) {
    let place = config.pointer_mut(path);
    *place.unwrap_or_else(|| panic!("no {path} in the example")) = value;
}

fn listen(config: &mut Value, ports: Ports) {
    let local = |port: u16| json!(format!("127.0.0.1:{port}"));
    set(config, "/receivers/otlp/protocols/grpc/endpoint", local(ports.grpc));
    set(config, "/receivers/otlp/protocols/http/endpoint", local(ports.http));
    // Its own metrics would be on a port that another test has.
    config["service"]["telemetry"] = json!({"metrics": {"level": "none"}});
}

fn peer(test: &str) -> Option<PathBuf> {
    let binary = std::env::var_os("SANDGLASS_JAEGER").map(PathBuf::from);
    if binary.is_none() {
        eprintln!("SKIPPED {test}: SANDGLASS_JAEGER names no Jaeger 2 binary");
    }
    binary
}

#[tokio::test]
async fn a_durable_jaeger_has_its_traces_after_a_kill() {
    let Some(binary) = peer("a_durable_jaeger_has_its_traces_after_a_kill") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let ports = Ports::free(0).unwrap();
    let mut config = configuration("jaeger-durable.yaml", "jaeger.yaml");
    listen(&mut config, ports);
    let local = |port: u16| json!(format!("127.0.0.1:{port}"));
    set(
        &mut config,
        "/extensions/jaeger_query/http/endpoint",
        local(ports.query),
    );
    set(
        &mut config,
        "/extensions/jaeger_query/grpc/endpoint",
        local(ports.query_grpc),
    );
    set(&mut config, "/extensions/healthcheckv2/http/endpoint", local(0));
    for part in ["keys", "values"] {
        let path = format!("/extensions/jaeger_storage/backends/disk/badger/directories/{part}");
        set(&mut config, &path, json!(folder.path().join(part)));
    }
    let start = || Jaeger::with_config(&binary, folder.path(), ports, &config.to_string()).unwrap();
    let jaeger = start();
    let sink = start_grpc(ports.grpc);
    let trace = full_trace(1);
    sink.offer(&trace);
    eventually("delivery", || sink.status().delivered == 6).await;
    let id = trace.id.to_string();
    shown(ports.query, &id, 6).await;
    // By SIGKILL.
    drop(jaeger);
    let _again = start();
    shown(ports.query, &id, 6).await;
    assert_eq!(sink.stop(LONG).await, 0);
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PEERS, "never: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until a Jaeger has all spans of a trace.
async fn shown(port: u16, id: &str, number: usize) {
    let begin = Instant::now();
    while spans(port, id).await != number {
        assert!(begin.elapsed() < PEERS, "Jaeger does not show trace {id}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn grpc_to(port: u16) -> Resolved {
    config(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://127.0.0.1:{port}")),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
    ])
}

fn start_grpc(port: u16) -> OtlpSink {
    start(grpc_to(port))
}
