//! The Collectors of `collector-routing.yaml` in front of two gateways: all spans of a trace reach the same one.
//!
//! Runs where `SANDGLASS_COLLECTOR` names a Collector with the loadbalancing exporter, or `scripts/peer.sh collector` has built one
//! (`agent/lab/collector`); skipped, by name, elsewhere. Of the example addresses are changed, and for traces the way to find gateways:
//! names of a cluster's DNS cannot be had here.

use std::collections::BTreeSet;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prost::Message;
use sandglass_lab::ports::{free, local};

use super::super::super::push::MetricsPush;
use super::super::config::{Resolution, Settings, resolve_push};
use super::*;
use crate::sinks::prometheus::Metrics;

const TRACES: u64 = 40;
const TRACES_RESOLVER: &str = "/exporters/loadbalancing~1traces/resolver";

fn collector(test: &str) -> Option<PathBuf> {
    let binary = sandglass_lab::built::peer("SANDGLASS_COLLECTOR", "collector");
    if binary.is_none() {
        eprintln!("SKIPPED {test}: no Collector with the loadbalancing exporter; scripts/peer.sh collector builds one");
    }
    binary
}

#[tokio::test]
async fn spans_of_one_trace_reach_the_same_of_two_gateways() {
    let Some(binary) = collector("spans_of_one_trace_reach_the_same_of_two_gateways") else {
        return;
    };
    let gateways = [Collector::grpc(Vec::new()).await, Collector::grpc(Vec::new()).await];
    let folder = tempfile::tempdir().unwrap();
    let ports = Ports::free(0).unwrap();
    let [health] = free([0]).unwrap();
    let mut config = configuration("collector-routing.yaml", "collector.yaml");
    listen(&mut config, ports);
    set(&mut config, "/extensions/health_check/endpoint", json!(local(health)));
    let addresses = gateways.each_ref().map(|gateway| gateway.address.to_string());
    set(
        &mut config,
        TRACES_RESOLVER,
        json!({"static": {"hostnames": addresses}}),
    );
    // As in the example, with a name that needs no server.
    let resolver = "/exporters/loadbalancing~1metrics/resolver/dns";
    set(&mut config, &format!("{resolver}/hostname"), json!("127.0.0.1"));
    config.pointer_mut(resolver).unwrap()["port"] = json!(gateways[0].address.port().to_string());
    let _router = Jaeger::with_config(&binary, folder.path(), ports, &config.to_string()).unwrap();

    // A trace of the runtime's, which two agents continue.
    let one = start_grpc(ports.grpc);
    let other = start_grpc(ports.grpc);
    for number in 1..=TRACES {
        one.offer(&small(number));
        other.offer(&Arc::new(Trace {
            id: small(number).id,
            ..small_trace(number + 1_000)
        }));
    }
    eventually("delivery", || {
        one.status().delivered == TRACES && other.status().delivered == TRACES
    })
    .await;
    assert!(
        sandglass_lab::peers::get(local(health), "/").is_some(),
        "its health check does not answer"
    );
    // The router has no queue: what it has answered is at a gateway.
    let received = gateways.each_ref().map(Collector::spans);
    let [first, second] = received.each_ref().map(|spans| {
        let ids = spans.iter().map(|span| span.trace_id.clone());
        ids.collect::<BTreeSet<_>>()
    });
    assert!(first.is_disjoint(&second), "a trace was divided");
    assert_eq!(first.len() + second.len(), TRACES as usize);
    assert!(!first.is_empty() && !second.is_empty(), "one gateway has all");
    assert_eq!(received[0].len() + received[1].len(), 2 * TRACES as usize);
    for sink in [one, other] {
        assert_eq!(sink.stop(LONG).await, 0);
    }

    let endpoint = format!("http://127.0.0.1:{}", ports.grpc);
    let variables = [
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
    ];
    let env = |name: &str| {
        let found = variables.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let resolved = resolve_push(&Settings::default(), &env, &Settings::default()).unwrap();
    let Resolution::On(options) = resolved else {
        panic!("{resolved:?}")
    };
    let registry = Metrics::new(&node(), &Health::default());
    let push = MetricsPush::start(*options, &node(), registry).unwrap();
    eventually("metrics", || {
        let metrics = gateways[0]
            .seen()
            .into_iter()
            .filter(|seen| seen.path.ends_with("MetricsService/Export"));
        metrics
            .map(|seen| ExportMetricsServiceRequest::decode(seen.plain().as_slice()).unwrap())
            .any(|message| {
                let scopes = message
                    .resource_metrics
                    .into_iter()
                    .flat_map(|resource| resource.scope_metrics);
                scopes
                    .flat_map(|scope| scope.metrics)
                    .any(|metric| metric.name == "sandglass.build_info")
            })
    })
    .await;
    push.stop(LONG).await;
}

/// The name in the example belongs to a cluster: without it the Collector starts, and the agent keeps what it cannot send.
#[tokio::test]
async fn without_gateways_the_router_of_the_example_refuses_and_nothing_is_lost() {
    let Some(binary) = collector("without_gateways_the_router_of_the_example_refuses_and_nothing_is_lost") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let ports = Ports::free(0).unwrap();
    let [health] = free([0]).unwrap();
    let mut config = configuration("collector-routing.yaml", "collector.yaml");
    listen(&mut config, ports);
    set(&mut config, "/extensions/health_check/endpoint", json!(local(health)));
    let _router = Jaeger::with_config(&binary, folder.path(), ports, &config.to_string()).unwrap();
    eventually("health", || sandglass_lab::peers::get(local(health), "/").is_some()).await;
    let sink = start_grpc(ports.grpc);
    sink.offer(&small(1));
    eventually("an attempt", || sink.status().failing).await;
    let status = sink.status();
    assert_eq!(
        (status.waiting, status.delivered, status.rejected),
        (1, 0, 0),
        "{status:?}"
    );
    assert_eq!(sink.stop(SHORT).await, 1);
}

/// A router that keeps what it cannot send in memory would lose it with its end.
#[tokio::test]
async fn what_no_gateway_takes_stays_with_the_agent() {
    let Some(binary) = collector("what_no_gateway_takes_stays_with_the_agent") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let ports = Ports::free(0).unwrap();
    let [health, nobody] = free([0, 0]).unwrap();
    let mut config = configuration("collector-routing.yaml", "collector.yaml");
    listen(&mut config, ports);
    set(&mut config, "/extensions/health_check/endpoint", json!(local(health)));
    set(
        &mut config,
        TRACES_RESOLVER,
        json!({"static": {"hostnames": [local(nobody)]}}),
    );
    let _router = Jaeger::with_config(&binary, folder.path(), ports, &config.to_string()).unwrap();
    eventually("health", || sandglass_lab::peers::get(local(health), "/").is_some()).await;
    let sink = start_grpc(ports.grpc);
    sink.offer(&small(1));
    eventually("an attempt", || sink.status().failing || sink.status().delivered > 0).await;
    let status = sink.status();
    assert_eq!((status.waiting, status.delivered), (1, 0), "{status:?}");
    assert_eq!(sink.stop(SHORT).await, 1);
}
