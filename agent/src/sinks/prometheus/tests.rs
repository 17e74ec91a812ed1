use std::sync::Arc;

use sandglass_correlator::{EndedSpan, Output};
use sandglass_model::trace::{OperationDetail, PluginDetail, ProcessDetail, SandboxDetail, Span, Status};
use sandglass_model::{ClockAnchor, CniCommand, Detail, PodIdentity, SandboxId, SpanId, Timestamp, Trace, TraceId};

use super::*;

fn span(parent: Option<usize>, end: Option<u64>, detail: Detail, status: Status) -> Span {
    Span {
        id: SpanId(1),
        parent,
        start: Timestamp(0),
        end: end.map(Timestamp),
        status,
        detail,
        events: Vec::new(),
        links: Vec::new(),
    }
}

fn plugin(end: Option<u64>, status: Status) -> Span {
    let detail = PluginDetail {
        plugin: "bridge".into(),
        command: CniCommand::Add,
        delegate: false,
        spec_version: String::new(),
        error: None,
        process: ProcessDetail::default(),
    };
    span(Some(1), end, Detail::Plugin(Box::new(detail)), status)
}

fn trace(end: Option<u64>, status: Status) -> Trace {
    let operation = OperationDetail {
        command: CniCommand::Add,
        ifname: "eth0".into(),
        network: "podnet".into(),
        netns: String::new(),
        attempt: 1,
        plugins: vec!["bridge".into()],
        addresses: Vec::new(),
        time: None,
    };
    Trace {
        id: TraceId(7),
        sandbox: Some(SandboxId("s".into())),
        identity: PodIdentity::default(),
        anchor: ClockAnchor::default(),
        incomplete: false,
        closed: end.is_some(),
        remote_parent: None,
        caller: None,
        spans: vec![
            span(
                None,
                end,
                Detail::Sandbox(Box::new(SandboxDetail {
                    attempt: 2,
                    runtime: "containerd".into(),
                    ..SandboxDetail::default()
                })),
                status.clone(),
            ),
            span(Some(0), end, Detail::Operation(Box::new(operation)), status.clone()),
            plugin(end, status),
        ],
    }
}

fn metrics() -> (Metrics, ProductMetrics) {
    let metrics = Metrics::new(&NodeInfo::default(), &Health::default());
    let product = ProductMetrics::new(10);
    metrics.register(|registry| product.register(registry));
    (metrics, product)
}

fn value(text: &str, series: &str) -> Option<String> {
    text.lines()
        .find_map(|line| line.strip_prefix(series))
        .map(|rest| rest.trim().to_owned())
}

#[test]
fn a_failed_sandbox_counts_once_everywhere_with_its_exemplar() {
    let (metrics, mut product) = metrics();
    let failed = Status::Error {
        class: "cni_try_again_later".into(),
        message: "later".into(),
    };
    let trace = trace(Some(2_000_000_000), failed);
    for span in &trace.spans {
        product.record(&Output::Ended(EndedSpan::of(&trace, span)));
    }
    let trace = Arc::new(trace);
    product.record(&Output::Created(Arc::clone(&trace)));
    product.record(&Output::Closed(trace));
    let text = metrics.encode().unwrap();
    for (series, expected) in [
        ("sandglass_sandbox_setup_duration_seconds_count{result=\"error\"}", "1"),
        (
            "sandglass_sandbox_setup_duration_seconds_count{result=\"success\"}",
            "0",
        ),
        ("sandglass_sandbox_setup_duration_seconds_sum{result=\"error\"}", "2.0"),
        ("sandglass_sandbox_retries_total", "1"),
        (
            "sandglass_cni_operation_duration_seconds_count{operation=\"ADD\",network=\"podnet\",result=\"error\"}",
            "1",
        ),
        (
            "sandglass_cni_operation_errors_total{operation=\"ADD\",plugin=\"bridge\",error=\"cni_try_again_later\"}",
            "1",
        ),
        (
            "sandglass_cni_plugin_duration_seconds_count{operation=\"ADD\",plugin=\"bridge\",result=\"error\"}",
            "1",
        ),
        ("sandglass_cni_operation_retries_total{operation=\"DEL\"}", "0"),
    ] {
        assert_eq!(value(&text, series).as_deref(), Some(expected), "{series}\n{text}");
    }
    assert!(
        text.contains("# {trace_id=\"00000000000000000000000000000007\"} 2.0"),
        "{text}"
    );
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn what_runs_is_counted_with_its_age() {
    let (metrics, _) = metrics();
    let in_flight = InFlight::new(|| Timestamp(5_000_000_000));
    metrics.register(|registry| registry.register_collector(Box::new(in_flight.clone())));
    in_flight.set([trace(None, Status::Unset)].iter());
    let text = metrics.encode().unwrap();
    assert_eq!(
        value(&text, "sandglass_cni_operations_in_flight{operation=\"ADD\"}").as_deref(),
        Some("1")
    );
    assert_eq!(
        value(&text, "sandglass_cni_operation_oldest_age_seconds{operation=\"ADD\"}").as_deref(),
        Some("5.0")
    );
    assert_eq!(
        value(&text, "sandglass_cni_operations_in_flight{operation=\"DEL\"}").as_deref(),
        Some("0")
    );
}

#[test]
fn every_metric_has_help_and_a_base_unit() {
    let (metrics, _) = metrics();
    let text = metrics.encode().unwrap();
    for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
        let name = line.split(' ').nth(2).unwrap();
        assert!(name.starts_with("sandglass_"), "{name}");
        assert!(text.contains(&format!("# HELP {name} ")), "{name} has no help");
        assert!(!name.contains("_ms") && !name.contains("milli"), "{name}");
    }
}

#[test]
fn samples_stand_in_one_order_and_histograms_stay_whole() {
    let text = "# TYPE a histogram\na_sum{r=\"y\"} 1\na_count{r=\"y\"} 1\na_bucket{le=\"1.0\",r=\"y\"} 0\n\
                a_bucket{le=\"+Inf\",r=\"y\"} 1 # {trace_id=\"0\"} 2\na_sum{r=\"x}\\\"\"} 1\n\
                a_bucket{le=\"1.0\",r=\"x}\\\"\"} 0\n# EOF\n";
    let lines: Vec<String> = in_order(text).lines().map(str::to_owned).collect();
    assert_eq!(lines[0], "# TYPE a histogram");
    assert!(
        lines[1].starts_with("a_sum{r=\"x}") && lines[2].starts_with("a_bucket{le=\"1.0\",r=\"x}"),
        "{lines:?}"
    );
    assert_eq!(lines[3], "a_sum{r=\"y\"} 1");
    assert_eq!(lines[6], "a_bucket{le=\"+Inf\",r=\"y\"} 1 # {trace_id=\"0\"} 2");
    assert_eq!(lines[7], "# EOF");
}
