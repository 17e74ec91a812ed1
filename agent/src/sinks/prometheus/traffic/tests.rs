use std::sync::Arc;

use sandglass_model::TraceId;
use sandglass_model::time::SECOND;
use sandglass_model::trace::{Confidence, ConnectDetail, LookupDetail};

use super::super::{Metrics, ProductMetrics};
use super::*;
use sandglass_correlator::finding::Nat;
use sandglass_model::network::{ConntrackCounts, FlowChange};
use sandglass_model::{Timestamp, Trace};

use crate::health::Health;
use crate::node::NodeInfo;
use crate::samples;
use crate::sinks::creation;

fn metrics() -> (Metrics, ProductMetrics) {
    let metrics = Metrics::new(&NodeInfo::default(), &Health::default());
    let product = ProductMetrics::new(3);
    metrics.register(|registry| product.register(registry));
    (metrics, product)
}

fn expect(metrics: &Metrics, expected: &[(&str, &str)]) {
    let text = metrics.encode().unwrap();
    for (series, value) in expected {
        let found = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("sandglass_{series} ")));
        assert_eq!(found, Some(*value), "{series}\n{text}");
    }
}

fn lookup(result: LookupResult, cause: Option<&str>) -> Finding {
    let detail = LookupDetail {
        name: "db.shop.svc.cluster.local".into(),
        types: vec!["A".into(), "AAAA".into()],
        servers: vec!["10.96.0.10:53".parse().unwrap()],
        transport: Transport::Udp,
        result: Some(result),
        queries: 5,
        retransmissions: 1,
        unanswered: 1,
        search_names: 2,
        truncated: true,
        addresses: Vec::new(),
        backend: None,
        initiator: None,
        cause: cause.map(|cause| Cause {
            cause: cause.into(),
            confidence: Confidence::Likely,
            evidence: Vec::new(),
        }),
    };
    Finding::Lookup(Box::new(LookupEnded {
        scope: Scope::Sandbox,
        owner: 1,
        start: Timestamp(SECOND),
        end: Timestamp(6 * SECOND),
        detail,
        queries: vec![(QueryType::A, Transport::Udp, 3), (QueryType::Aaaa, Transport::Tcp, 2)],
        trace: Some(TraceId(9)),
        journey: false,
    }))
}

fn connect(failure: Option<ConnectFailure>) -> Finding {
    let detail = ConnectDetail {
        local: "10.22.0.7:40000".parse().unwrap(),
        remote: "10.96.0.1:443".parse().unwrap(),
        backend: None,
        name: String::new(),
        retransmits: 2,
        failure,
        initiator: None,
        cause: None,
    };
    Finding::Connect(Box::new(ConnectEnded {
        scope: Scope::Node,
        start: Timestamp(0),
        end: Timestamp(3 * SECOND),
        detail,
        trace: None,
        journey: false,
    }))
}

#[test]
fn known_series_start_at_zero() {
    let (metrics, _) = metrics();
    let text = metrics.encode().unwrap();
    for series in [
        "dns_lookup_duration_seconds_count{scope=\"node\",rcode=\"timeout\"} 0",
        "dns_queries_total{scope=\"sandbox\",type=\"AAAA\",transport=\"tcp\"} 0",
        "connect_duration_seconds_count{scope=\"sandbox\",result=\"unreachable\"} 0",
        "conntrack_clash_resolve_total{scope=\"node\"} 0",
        "conntrack_nat_total{scope=\"sandbox\",nat=\"both\"} 0",
        "root_causes_total{cause=\"conntrack_race\"} 0",
        "journeys_total{reason=\"dropped\"} 0",
        "journeys_held_back_total 0",
        "network_silent_total 0",
        "network_ready_duration_seconds_count{result=\"failed\"} 0",
    ] {
        assert!(text.contains(&format!("\nsandglass_{series}\n")), "{series}\n{text}");
    }
}

#[test]
fn lookups_and_connections_count_with_their_labels_and_exemplars() {
    let (metrics, mut product) = metrics();
    for traffic in [
        lookup(LookupResult::Rcode(0), Some("conntrack_race")),
        lookup(LookupResult::Unanswered, Some("made up elsewhere")),
        connect(None),
        connect(Some(ConnectFailure::Abandoned)),
        connect(Some(ConnectFailure::Refused)),
        Finding::JourneyHeldBack,
    ] {
        product.record(&Output::Finding(traffic));
    }
    expect(
        &metrics,
        &[
            (
                "dns_lookup_duration_seconds_count{scope=\"sandbox\",rcode=\"noerror\"}",
                "1",
            ),
            (
                "dns_lookup_duration_seconds_sum{scope=\"sandbox\",rcode=\"timeout\"}",
                "5.0",
            ),
            ("dns_queries_total{scope=\"sandbox\",type=\"A\",transport=\"udp\"}", "6"),
            (
                "dns_queries_total{scope=\"sandbox\",type=\"AAAA\",transport=\"tcp\"}",
                "4",
            ),
            ("dns_retransmissions_total{scope=\"sandbox\"}", "2"),
            ("dns_unanswered_total{scope=\"sandbox\"}", "2"),
            ("dns_search_names_total{scope=\"sandbox\"}", "4"),
            ("dns_truncated_total{scope=\"sandbox\"}", "2"),
            ("dns_truncated_total{scope=\"node\"}", "0"),
            (
                "connect_duration_seconds_count{scope=\"node\",result=\"established\"}",
                "1",
            ),
            ("connect_duration_seconds_count{scope=\"node\",result=\"refused\"}", "1"),
            ("connect_duration_seconds_sum{scope=\"node\",result=\"other\"}", "3.0"),
            ("connect_retransmissions_total{scope=\"node\"}", "6"),
            ("root_causes_total{cause=\"conntrack_race\"}", "1"),
            ("journeys_held_back_total", "1"),
        ],
    );
    let text = metrics.encode().unwrap();
    assert!(
        text.contains("# {trace_id=\"00000000000000000000000000000009\"} 5.0"),
        "{text}"
    );
    assert!(
        !text.contains("made up elsewhere") && !text.contains("svc.cluster"),
        "{text}"
    );
}

#[test]
fn conntrack_and_drops_count_and_reasons_are_bounded() {
    let (metrics, mut product) = metrics();
    let counts = ConntrackCounts {
        netns: 1,
        entries: 812,
        limit: 262_144,
        insert_failed: 3,
        drop: 1,
        ..ConntrackCounts::default()
    };
    let flow = |change, nat| Finding::Flow {
        scope: Scope::Sandbox,
        change,
        nat,
    };
    let dropped = |reason: &str| Finding::Dropped {
        scope: Scope::Sandbox,
        packet: DroppedPacket::Dns,
        reason: reason.into(),
    };
    let (sandbox, node) = (Scope::Sandbox, Scope::Node);
    for traffic in [
        Finding::Conntrack { scope: node, counts },
        Finding::Conntrack {
            scope: sandbox,
            counts: ConntrackCounts { entries: 4, ..counts },
        },
        flow(FlowChange::New, Some(Nat::Dnat)),
        flow(FlowChange::Destroyed, Some(Nat::Dnat)),
        flow(FlowChange::New, None),
        dropped("NETFILTER_DROP"),
        dropped("a"),
        dropped("b"),
        dropped("c"),
        dropped("d"),
    ] {
        product.record(&Output::Finding(traffic));
    }
    expect(
        &metrics,
        &[
            ("conntrack_entries{scope=\"node\"}", "812"),
            ("conntrack_entries_limit{scope=\"node\"}", "262144"),
            ("conntrack_insert_failed_total{scope=\"node\"}", "3"),
            ("conntrack_insert_failed_total{scope=\"sandbox\"}", "3"),
            ("conntrack_drop_total{scope=\"node\"}", "1"),
            ("conntrack_flows_total{scope=\"sandbox\",change=\"new\"}", "2"),
            ("conntrack_flows_total{scope=\"sandbox\",change=\"destroyed\"}", "1"),
            ("conntrack_nat_total{scope=\"sandbox\",nat=\"dnat\"}", "1"),
            (
                "packet_drops_total{scope=\"sandbox\",packet=\"dns\",reason=\"NETFILTER_DROP\"}",
                "1",
            ),
            (
                // Sandboxes have half of the values.
                "packet_drops_total{scope=\"sandbox\",packet=\"dns\",reason=\"other\"}",
                "4",
            ),
        ],
    );
    assert!(
        !metrics
            .encode()
            .unwrap()
            .contains("conntrack_entries{scope=\"sandbox\"}")
    );
}

/// Feeds a sandbox as the correlator does: created while open, then closed.
fn live(product: &mut ProductMetrics, trace: Trace) {
    let mut open = trace.clone();
    open.closed = false;
    open.spans[0].end = None;
    product.record(&Output::Created(Arc::new(open)));
    product.record(&Output::Closed(Arc::new(trace)));
}

#[test]
fn a_sandbox_counts_once_as_ready_failed_or_silent_and_its_set_up_without_its_traffic() {
    let (metrics, mut product) = metrics();
    let ready = samples::network_ready("shop", "web-0", 1, SECOND);
    let created = creation::created(&ready).unwrap();
    let Detail::Sandbox(sandbox) = &ready.root().detail else {
        panic!("no sandbox")
    };
    let seconds = |to: Timestamp, from: Timestamp| format!("{:?}", to.since(from) as f64 / 1e9);
    let ready_after = seconds(sandbox.network_ready.unwrap(), created);
    let waited = seconds(sandbox.network_ready.unwrap(), sandbox.first_attempt.unwrap());
    let set_up = seconds(created, ready.start());
    live(&mut product, ready);

    let mut silent = samples::usual("shop", "silent-0", 2, SECOND);
    let Detail::Sandbox(sandbox) = &mut silent.spans[0].detail else {
        panic!("no sandbox")
    };
    sandbox.silent = true;
    live(&mut product, silent);
    live(&mut product, samples::never_connected("shop", "sad-0", 3, SECOND));
    // Removed while it was waited for.
    live(&mut product, samples::usual("shop", "removed-0", 5, SECOND));
    // One that was not waited for: as before anybody watched traffic.
    let unwatched = Arc::new(samples::usual("shop", "old-0", 4, SECOND));
    product.record(&Output::Created(Arc::clone(&unwatched)));
    product.record(&Output::Closed(unwatched));
    expect(
        &metrics,
        &[
            ("network_ready_duration_seconds_count{result=\"ready\"}", "1"),
            ("network_ready_duration_seconds_sum{result=\"ready\"}", &ready_after),
            ("network_wait_duration_seconds_sum{result=\"ready\"}", &waited),
            ("network_ready_duration_seconds_count{result=\"failed\"}", "1"),
            ("network_silent_total", "1"),
            ("sandbox_setup_duration_seconds_count{result=\"success\"}", "5"),
        ],
    );

    // Two at once in one trace of the runtime.
    let (metrics, mut product) = self::metrics();
    let traces = [1, 2].map(|number| {
        let mut trace = samples::network_ready("shop", "web-0", number, SECOND);
        trace.id = TraceId(9);
        trace
    });
    for trace in traces.clone() {
        let mut open = trace;
        open.closed = false;
        product.record(&Output::Created(Arc::new(open)));
    }
    for trace in traces {
        product.record(&Output::Closed(Arc::new(trace)));
    }
    expect(
        &metrics,
        &[("network_ready_duration_seconds_count{result=\"ready\"}", "2")],
    );

    let (metrics, mut product) = self::metrics();
    live(&mut product, samples::network_ready("shop", "web-0", 1, SECOND));
    expect(
        &metrics,
        &[("sandbox_setup_duration_seconds_sum{result=\"success\"}", &set_up)],
    );
    let text = metrics.encode().unwrap();
    let phases: f64 = text
        .lines()
        .filter(|line| line.starts_with("sandglass_sandbox_phase_duration_seconds_sum"))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .sum();
    assert!(
        (phases - set_up.parse::<f64>().unwrap()).abs() < 1e-9,
        "{phases} {set_up}"
    );
    assert!(
        !text.contains("phase=\"lookup\"") && !text.contains("phase=\"application\""),
        "{text}"
    );
}

#[test]
fn journeys_count_by_their_reason() {
    let (metrics, mut product) = metrics();
    let sandbox = samples::network_ready("shop", "web-0", 1, SECOND);
    product.record(&Output::Closed(Arc::new(samples::stalled_journey(&sandbox, SECOND))));
    expect(
        &metrics,
        &[
            ("journeys_total{reason=\"retried\"}", "1"),
            ("journeys_total{reason=\"failed\"}", "0"),
        ],
    );
}
