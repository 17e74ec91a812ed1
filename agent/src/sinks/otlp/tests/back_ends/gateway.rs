//! The gateway of `collector-gateway.yaml`: what it keeps, what it passes on at once, what it measures.

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point;
use prost::Message;

use super::*;
use crate::sinks::sampling::Policy;

/// The example's configuration, without a sample of the rest.
fn gateway(ports: Ports, back_end: &jaeger::Jaeger, metrics: &Collector, decision_wait: &str) -> Value {
    let mut config = configuration("collector-gateway.yaml", "collector.yaml");
    listen(&mut config, ports);
    // Jaeger has the second version of this extension only.
    config["extensions"] = json!({});
    set(&mut config, "/service/extensions", json!([]));
    let traces = format!("127.0.0.1:{}", back_end.process.ports.grpc);
    set(&mut config, "/exporters/otlp~1jaeger/endpoint", json!(traces));
    set(
        &mut config,
        "/exporters/otlphttp~1prometheus/endpoint",
        json!(metrics.url()),
    );
    set(
        &mut config,
        "/processors/tail_sampling/decision_wait",
        json!(decision_wait),
    );
    set(
        &mut config,
        "/connectors/spanmetrics/metrics_flush_interval",
        json!("200ms"),
    );
    let policy = "/processors/tail_sampling/policies/4/probabilistic/sampling_percentage";
    set(&mut config, policy, json!(0));
    config
}

/// What an agent marked as bad does not wait for a decision: a gateway that ends before it has passed it on. It is sent once.
#[tokio::test]
async fn the_gateway_passes_on_what_an_agent_found_bad_at_once_and_once() {
    let Some(binary) = peer("the_gateway_passes_on_what_an_agent_found_bad_at_once_and_once") else {
        return;
    };
    let back_end = jaeger::Jaeger::start(&binary.to_string_lossy());
    let metrics = Collector::http(Vec::new()).await;
    let folder = tempfile::tempdir().unwrap();
    let ports = Ports::free(0).unwrap();
    let config = gateway(ports, &back_end, &metrics, "8s");
    let _gateway = Jaeger::with_config(&binary, folder.path(), ports, &config.to_string()).unwrap();

    let marking = start({
        let mut config = grpc_to(ports.grpc);
        config.sampling = Policy::Bad {
            good_per_thousand: 0,
            slow_ns: u64::MAX,
        };
        config
    });
    let (marked, unmarked, good) = (full_trace(99), full_trace(98), small(1));
    marking.offer(&good);
    marking.offer(&marked);
    eventually("delivery", || marking.status().delivered == 6).await;
    assert_eq!(marking.status().sampled_out, 1);
    let unmarking = start_grpc(ports.grpc);
    unmarking.offer(&unmarked);
    eventually("delivery", || unmarking.status().delivered == 6).await;
    let shown_port = back_end.process.ports.query;
    shown(shown_port, &marked.id.to_string(), 6).await;
    assert_eq!(
        spans(shown_port, &unmarked.id.to_string()).await,
        0,
        "its decision was made early"
    );
    // After its decision that of the other was made too.
    shown(shown_port, &unmarked.id.to_string(), 6).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(spans(shown_port, &marked.id.to_string()).await, 6, "it was sent again");
    for sink in [marking, unmarking] {
        assert_eq!(sink.stop(LONG).await, 0);
    }
}

/// Good traces are left out, and counted by the span metrics nevertheless.
#[tokio::test]
async fn the_gateway_samples_by_the_whole_trace_and_measures_all() {
    const GOOD: u64 = 20;
    let Some(binary) = peer("the_gateway_samples_by_the_whole_trace_and_measures_all") else {
        return;
    };
    let back_end = jaeger::Jaeger::start(&binary.to_string_lossy());
    let metrics = Collector::http(Vec::new()).await;
    let folder = tempfile::tempdir().unwrap();
    let ports = Ports::free(0).unwrap();
    let config = gateway(ports, &back_end, &metrics, "1s");
    let _gateway = Jaeger::with_config(&binary, folder.path(), ports, &config.to_string()).unwrap();

    let sink = start_grpc(ports.grpc);
    let bad = full_trace(99);
    (1..=GOOD).for_each(|number| sink.offer(&small(number)));
    sink.offer(&bad);
    eventually("delivery", || sink.status().delivered == GOOD + 6).await;
    assert_eq!(sink.stop(LONG).await, 0);
    let shown_port = back_end.process.ports.query;
    shown(shown_port, &bad.id.to_string(), 6).await;
    for number in 1..=GOOD {
        assert_eq!(
            spans(shown_port, &small(number).id.to_string()).await,
            0,
            "trace {number}"
        );
    }
    // The last value of each series of roots.
    eventually("span metrics", || counted(&metrics) == GOOD + 1).await;
}

fn received(collector: &Collector) -> Vec<Metric> {
    let messages = collector.seen().into_iter().map(|seen| {
        assert_eq!(seen.path.rsplit("/v1/").next(), Some("metrics"), "{}", seen.path);
        ExportMetricsServiceRequest::decode(seen.plain().as_slice()).unwrap()
    });
    let resources = messages.flat_map(|message| message.resource_metrics);
    let scopes = resources.flat_map(|resource| resource.scope_metrics);
    scopes.flat_map(|scope| scope.metrics).collect()
}

/// Roots of sandboxes that the span metrics have counted.
fn counted(collector: &Collector) -> u64 {
    let mut last: BTreeMap<String, i64> = BTreeMap::new();
    for metric in received(collector) {
        let (true, Some(Data::Sum(sum))) = (metric.name.ends_with(".calls"), metric.data) else {
            continue;
        };
        for point in sum.data_points {
            let labels: BTreeMap<&str, String> = point
                .attributes
                .iter()
                .map(|pair| (pair.key.as_str(), text(pair.value.as_ref().unwrap())))
                .collect();
            if labels["span.name"] == "sandbox"
                && let Some(number_data_point::Value::AsInt(value)) = point.value
            {
                last.insert(format!("{labels:?}"), value);
            }
        }
    }
    u64::try_from(last.values().sum::<i64>()).unwrap()
}
