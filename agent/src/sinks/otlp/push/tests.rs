//! The push against the scripted collector: names, temporality, failures, and what a node's metrics become.

use std::sync::Arc;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, ExponentialHistogramDataPoint, number_data_point,
};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::super::config::{Resolution, Settings, Temporality, resolve_push};
use super::super::tests::collector::{Act, Collector, Seen};
use super::super::tests::fixture::node;
use super::super::tests::until;
use super::*;
use crate::health::Health;
use crate::sinks::prometheus::{Buckets, DurationSeries};
use sandglass_model::TraceId;

mod prometheus;

const LONG: Duration = Duration::from_secs(20);

struct Subject {
    registry: Metrics,
    counter: Counter,
    seconds: DurationSeries,
}

impl Subject {
    fn new() -> Subject {
        let registry = Metrics::new(&node(), &Health::default());
        let subject = Subject {
            registry,
            counter: Counter::default(),
            seconds: DurationSeries::new([0.1, 1.0], Buckets::AndExponential),
        };
        let gauge: Gauge = Gauge::default();
        gauge.set(-3);
        subject.registry.register(|registry| {
            Registry::register(registry, "pods", "Pods", subject.counter.clone());
            Registry::register(registry, "held_bytes", "Held", gauge);
            Registry::register(registry, "taken_seconds", "Taken", subject.seconds.clone());
        });
        subject
    }

    fn push(&self, collector: &Collector, variables: &[(&str, &str)]) -> MetricsPush {
        MetricsPush::start(options(&collector.url(), variables), &node(), self.registry.clone()).unwrap()
    }
}

fn options(endpoint: &str, variables: &[(&str, &str)]) -> PushOptions {
    let file = Settings {
        endpoint: Some(endpoint.to_owned()),
        metrics: Some(true),
        metrics_interval_ms: Some(100),
        ..Settings::default()
    };
    let env = |name: &str| {
        let found = variables.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    match resolve_push(&Settings::default(), &env, &file) {
        Ok(Resolution::On(options)) => *options,
        other => panic!("{other:?}"),
    }
}

fn decode(seen: &Seen) -> Vec<Metric> {
    let message = ExportMetricsServiceRequest::decode(seen.plain().as_slice()).unwrap();
    assert_eq!(message.resource_metrics.len(), 1);
    message.resource_metrics[0].scope_metrics[0].metrics.clone()
}

fn metric(seen: &Seen, name: &str) -> Metric {
    let found = decode(seen).into_iter().find(|metric| metric.name == name);
    found.unwrap_or_else(|| panic!("no {name}"))
}

/// Value and temporality of the counter.
fn pods(seen: &Seen) -> (i64, AggregationTemporality) {
    let Some(Data::Sum(sum)) = metric(seen, "sandglass.pods").data else {
        panic!("not a sum")
    };
    assert!(sum.is_monotonic);
    let temporality = sum.aggregation_temporality();
    match sum.data_points[0].value {
        Some(number_data_point::Value::AsInt(value)) => (value, temporality),
        other => panic!("{other:?}"),
    }
}

fn taken(seen: &Seen) -> ExponentialHistogramDataPoint {
    let Some(Data::ExponentialHistogram(histogram)) = metric(seen, "sandglass.taken").data else {
        panic!("not an exponential histogram")
    };
    histogram.data_points[0].clone()
}

#[tokio::test]
async fn all_kinds_arrive_with_names_units_and_the_resource() {
    for (protocol, path) in [
        ("http/protobuf", "/v1/metrics"),
        (
            "grpc",
            "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
        ),
    ] {
        let collector = match protocol {
            "grpc" => Collector::grpc(Vec::new()).await,
            _ => Collector::http(Vec::new()).await,
        };
        let subject = Subject::new();
        subject.counter.inc_by(7);
        subject.seconds.observe(0.3, Some(TraceId(0xabc)));
        subject.seconds.observe(0.3, None);
        let push = subject.push(&collector, &[("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", protocol)]);
        until("a push", || !collector.seen().is_empty()).await;
        push.stop(LONG).await;
        let seen = collector.seen();
        let first = &seen[0];
        assert!(first.path.ends_with(path), "{}", first.path);
        assert_eq!(pods(first), (7, AggregationTemporality::Cumulative));
        let held = metric(first, "sandglass.held");
        assert_eq!((held.unit.as_str(), held.description.as_str()), ("By", "Held."));
        let Some(Data::Gauge(gauge)) = held.data else {
            panic!("not a gauge")
        };
        assert_eq!(gauge.data_points[0].value, Some(number_data_point::Value::AsInt(-3)));
        let build = metric(first, "sandglass.build_info");
        let Some(Data::Sum(sum)) = build.data else {
            panic!("not a sum")
        };
        assert!(!sum.is_monotonic);
        let point = taken(first);
        assert_eq!((point.count, point.sum, point.scale), (2, Some(0.6), 8));
        let buckets = point.positive.unwrap();
        assert_eq!(buckets.bucket_counts, [2]);
        let exemplar = &point.exemplars[0];
        assert_eq!(exemplar.trace_id, 0xabc_u128.to_be_bytes());
        assert!(point.start_time_unix_nano < point.time_unix_nano);
        // Each exemplar is sent once.
        assert!(seen[1..].iter().all(|seen| taken(seen).exemplars.is_empty()));
        let message = ExportMetricsServiceRequest::decode(first.plain().as_slice()).unwrap();
        let resource = message.resource_metrics[0].resource.clone().unwrap();
        let keys: Vec<&str> = resource.attributes.iter().map(|pair| pair.key.as_str()).collect();
        assert_eq!(
            keys,
            [
                "service.name",
                "service.version",
                "k8s.node.name",
                "service.instance.id"
            ]
        );
    }
}

/// A collector that restarts, or that is away for a while, has the whole count afterwards.
#[tokio::test]
async fn cumulative_values_go_on_after_failures() {
    let script = vec![Act::status(503), Act::status(503), Act::status(200), Act::OkThenClose];
    let collector = Collector::http(script).await;
    let subject = Subject::new();
    subject.counter.inc();
    let push = subject.push(&collector, &[]);
    until("five requests", || collector.seen().len() >= 5).await;
    subject.counter.inc();
    push.stop(LONG).await;
    let seen = collector.seen();
    assert!(seen[2..].iter().all(|seen| seen.taken));
    assert_eq!(pods(seen.last().unwrap()), (2, AggregationTemporality::Cumulative));
    let starts: Vec<u64> = seen.iter().map(|seen| taken(seen).start_time_unix_nano).collect();
    assert!(starts.iter().all(|start| *start == starts[0]), "{starts:?}");
    let text = subject.registry.encode().unwrap();
    assert!(
        text.contains("sandglass_export_metric_requests_total{outcome=\"failed\"} 2"),
        "{text}"
    );
}

/// The values of accepted requests add up to what was counted, whatever failed between them.
#[tokio::test]
async fn deltas_add_up_over_failures() {
    let collector = Collector::http(vec![Act::status(200), Act::status(503), Act::status(400)]).await;
    let subject = Subject::new();
    let preference = ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Delta");
    let push = subject.push(&collector, &[preference]);
    for step in 1_usize..8 {
        subject.counter.inc_by(step as u64);
        subject.seconds.observe(step as f64, None);
        until("the next request", || collector.seen().len() >= step).await;
    }
    push.stop(LONG).await;
    let seen: Vec<Seen> = collector.seen().into_iter().filter(|seen| seen.taken).collect();
    assert!(seen.iter().all(|seen| pods(seen).1 == AggregationTemporality::Delta));
    assert_eq!(seen.iter().map(|seen| pods(seen).0).sum::<i64>(), 28);
    assert_eq!(seen.iter().map(|seen| taken(seen).count).sum::<u64>(), 7);
    assert_eq!(seen.iter().filter_map(|seen| taken(seen).sum).sum::<f64>(), 28.0);
    for pair in seen.windows(2) {
        assert_eq!(taken(&pair[1]).start_time_unix_nano, taken(&pair[0]).time_unix_nano);
    }
    // What does not grow has no delta.
    let Some(Data::Sum(sum)) = metric(&seen[0], "sandglass.build_info").data else {
        panic!("not a sum")
    };
    assert_eq!(sum.aggregation_temporality(), AggregationTemporality::Cumulative);
}

#[tokio::test]
async fn the_wait_that_a_collector_asks_for_is_kept() {
    let act = Act::Answer(429, vec![("retry-after", "1".to_owned())], Vec::new());
    let collector = Collector::http(vec![act]).await;
    let push = Subject::new().push(&collector, &[]);
    until("a second request", || collector.seen().len() >= 2).await;
    let seen = collector.seen();
    assert!(seen[1].at - seen[0].at >= Duration::from_secs(1));
    push.stop(LONG).await;
}

#[tokio::test]
async fn refused_points_are_counted() {
    // ExportMetricsPartialSuccess: rejected_data_points = 2.
    let partial = Act::Answer(200, Vec::new(), vec![0x0a, 0x02, 0x08, 0x02]);
    let collector = Collector::http(vec![partial]).await;
    let subject = Subject::new();
    let push = subject.push(&collector, &[]);
    until("a push", || !collector.seen().is_empty()).await;
    push.stop(LONG).await;
    let text = subject.registry.encode().unwrap();
    assert!(
        text.contains("sandglass_export_metric_refused_points_total 2"),
        "{text}"
    );
}

/// gRPC receivers reject messages above 4 MiB by default.
#[test]
fn requests_are_split_by_size_and_keep_every_point() {
    let registry = Metrics::new(&node(), &Health::default());
    let family = prometheus_client::metrics::family::Family::<Vec<(String, String)>, Counter>::default();
    for number in 0..20_000_u64 {
        let label = ("label".to_owned(), format!("{number:0>100}"));
        family.get_or_create(&vec![label]).inc_by(number);
    }
    registry.register(|registry| Registry::register(registry, "many", "Many", family));
    let state = PushState::new(Temporality::Cumulative, SystemTime::now());
    let requests = requests(state.points(registry.families().unwrap(), SystemTime::now()));
    assert!(requests.len() > 1);
    let mut points = 0;
    for request in &requests {
        let bytes: usize = request.metrics.iter().map(Message::encoded_len).sum();
        assert!(bytes <= defaults::BATCH_BYTES);
        let many = request.metrics.iter().filter(|metric| metric.name == "sandglass.many");
        points += many
            .map(|metric| match &metric.data {
                Some(Data::Sum(sum)) => sum.data_points.len(),
                other => panic!("{other:?}"),
            })
            .sum::<usize>();
    }
    assert_eq!(points, 20_000);
}

/// What a receiver makes of a pushed name by OpenTelemetry's mapping, as Prometheus and the Collector implement it.
fn back(metric: &Metric) -> String {
    let mut name = metric.name.replace('.', "_");
    match metric.unit.as_str() {
        "s" => name += "_seconds",
        "By" => name += "_bytes",
        unit => assert_eq!(unit, ""),
    }
    match &metric.data {
        Some(Data::Sum(sum)) if sum.is_monotonic => name + "_total",
        _ => name,
    }
}

/// Every name of the scrape, and no other, with as many series.
#[tokio::test]
async fn a_push_has_what_a_scrape_has() {
    let registry = Metrics::new(&node(), &Health::default());
    registry.register_process();
    let product = crate::sinks::prometheus::ProductMetrics::with_buckets(10, Buckets::AndExponential);
    registry.register(|registry| product.register(registry));
    let mut config = super::super::tests::fixture::config(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")]);
    config.buckets = Buckets::AndExponential;
    let sink = Arc::new(super::super::OtlpSink::start(config, node(), Health::default()).unwrap());
    registry.register(|registry| sink.register(registry));
    let text = registry.encode().unwrap();
    let mut scraped: Vec<String> = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.contains("_bucket{") && !is_histogram_sum(line, &text))
        .map(|line| {
            let name = line.split(['{', ' ']).next().unwrap();
            let histogram = name.strip_suffix("_count").filter(|name| is_histogram(name, &text));
            histogram.unwrap_or(name).to_owned()
        })
        .collect();
    let state = PushState::new(Temporality::Cumulative, SystemTime::now());
    let points = state.points(registry.families().unwrap(), SystemTime::now());
    let mut pushed: Vec<String> = points.iter().map(|point| back(&point.metric)).collect();
    scraped.sort();
    pushed.sort();
    assert!(scraped.len() > 100, "{}", scraped.len());
    assert_eq!(pushed, scraped);
    sink.stop(Duration::ZERO).await;
}

fn is_histogram(name: &str, text: &str) -> bool {
    text.contains(&format!("# TYPE {name} histogram\n"))
}

fn is_histogram_sum(line: &str, text: &str) -> bool {
    let name = line.split(['{', ' ']).next().unwrap();
    name.strip_suffix("_sum").is_some_and(|name| is_histogram(name, text))
}
