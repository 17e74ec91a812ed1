//! `otlp.sampling: bad` on recordings: at least ten times fewer bytes on a healthy mix, every bad trace sent, and the same metrics.
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "lab/collector.rs"]
mod collector;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use collector::Collector;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

/// What was sent since the last call.
fn take(collector: &Collector) -> Sent {
    let mut sent = Sent::default();
    for body in collector.take() {
        sent.bytes += body.len();
        let request = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
        let scopes = request.resource_spans.into_iter().flat_map(|spans| spans.scope_spans);
        sent.spans.extend(scopes.flat_map(|scope| scope.spans));
    }
    sent
}

#[derive(Default)]
struct Sent {
    bytes: usize,
    spans: Vec<Span>,
}

/// Replays with a policy; returns the metrics.
fn replay(recording: &Path, collector: &Collector, policy: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_sandglass"))
        .args(["replay", "--print", "metrics", "--export", "--set", policy])
        .arg(recording)
        .env_clear()
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address))
        .env("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {complaint}", recording.display());
    // The line after the metrics counts the spans that were sent.
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_once("# EOF").unwrap().0.to_owned()
}

/// The numbers, sorted, without exemplars: the registry writes series in no particular order, and the process is another one.
fn numbers(metrics: &str) -> Vec<&str> {
    let own = |line: &&str| !line.contains("sandglass_process_");
    let numbers = metrics.lines().filter(own);
    let mut numbers: Vec<&str> = numbers.map(|line| line.split(" # {").next().unwrap_or(line)).collect();
    numbers.sort_unstable();
    numbers
}

/// Trace ids of the exemplars.
fn exemplars(metrics: &str) -> BTreeSet<String> {
    let ids = metrics.split("trace_id=\"").skip(1);
    ids.map(|rest| rest.split('"').next().unwrap_or_default().to_owned())
        .collect()
}

/// Replays with both policies: what each sent, after the numbers and exemplars were compared.
fn compare(recording: &Path, collector: &Collector) -> [Sent; 2] {
    let metrics_of_all = replay(recording, collector, "otlp.sampling=all");
    let all = take(collector);
    let metrics_of_bad = replay(recording, collector, "otlp.sampling=bad");
    let bad = take(collector);
    let name = recording.display();
    assert_eq!(numbers(&metrics_of_all), numbers(&metrics_of_bad), "{name}");
    let sent: BTreeSet<String> = bad.spans.iter().map(|span| hex(&span.trace_id)).collect();
    let lost: Vec<String> = exemplars(&metrics_of_bad).difference(&sent).cloned().collect();
    assert_eq!(
        lost,
        Vec::<String>::new(),
        "{name}: exemplars of traces that were not sent"
    );
    let failed = |sent: &Sent| -> BTreeSet<Vec<u8>> {
        // STATUS_CODE_ERROR of opentelemetry/proto/trace/v1/trace.proto.
        let is_failed = |span: &&Span| {
            span.parent_span_id.is_empty() && span.status.as_ref().is_some_and(|status| status.code == 2)
        };
        sent.spans
            .iter()
            .filter(is_failed)
            .map(|span| span.span_id.clone())
            .collect()
    };
    assert_eq!(failed(&all), failed(&bad), "{name}: failed traces");
    let incomplete = |sent: &Sent| {
        let is_marked = |span: &&Span| span.attributes.iter().any(|one| one.key == "sandglass.incomplete");
        sent.spans.iter().filter(is_marked).count()
    };
    assert_eq!(incomplete(&all), incomplete(&bad), "{name}: incomplete traces");
    assert!(
        bad.spans.iter().all(|span| span.trace_state.starts_with("ot=th:")),
        "{name}"
    );
    [all, bad]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings")
}

#[test]
fn on_every_recording_the_numbers_stay_and_what_failed_is_sent() {
    let collector = Collector::start();
    let mut compared = 0;
    for entry in fs::read_dir(recordings()).unwrap() {
        let events = entry.unwrap().path().join("events.jsonl");
        if events.is_file() {
            compare(&events, &collector);
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared}");
}

/// Fifteen nodes on which all goes well, and one with the demo's failures.
#[test]
fn a_healthy_mix_is_a_tenth_of_the_bytes() {
    let collector = Collector::start();
    let directory = tempfile::tempdir().unwrap();
    let mut bytes = [0, 0];
    let mut add = |recording: &Path| {
        let sent = compare(recording, &collector);
        for (sum, sent) in bytes.iter_mut().zip(sent) {
            *sum += sent.bytes;
        }
    };
    add(&recordings().join("demo-scenarios/events.jsonl"));
    for name in ["containerd-2", "two-networks", "podman", "cnitool"] {
        let events = fs::read_to_string(recordings().join(name).join("events.jsonl")).unwrap();
        for node in 0..15 {
            // Another boot of a node has other trace ids.
            let (header, rest) = events.split_once('\n').unwrap();
            let boot = header
                .split("\"boot_id\":\"")
                .nth(1)
                .and_then(|rest| rest.split('"').next());
            let header = header.replace(boot.unwrap(), &format!("00000000-0000-4000-8000-{node:012}"));
            let copy = directory.path().join(format!("{name}-{node}.jsonl"));
            fs::write(&copy, format!("{header}\n{rest}")).unwrap();
            add(&copy);
        }
    }
    let [all, bad] = bytes;
    println!("{all} bytes with all, {bad} with bad");
    assert!(bad > 0 && all >= bad * 10, "{all} bytes with all, {bad} with bad");
}
