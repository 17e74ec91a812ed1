//! Journeys: what becomes of traffic once its sandbox's network is ready, and of the node's own; conntrack's records.

use sandglass_correlator::finding::{Nat, Scope};
use sandglass_correlator::{Finding, Output};
use sandglass_model::event::SandboxDescription;
use sandglass_model::network::{ConnectFailure, ConntrackCounts, DroppedPacket, FlowChange};
use sandglass_model::trace::Relation;
use sandglass_model::{Body, Detail, PodIdentity, SandboxId};

use crate::scene::{Played, Scene, assert_text, del};
use crate::wire::{NODE, NOERROR, POD, Socket, address, pod_socket, rendered};

/// A lookup that is answered after a second attempt.
fn retried(scene: &mut Scene, socket: &Socket, name: &str, at_ms: u64) {
    scene.at(at_ms).query(socket, 7, name, "A");
    scene.at(at_ms + 5_000).query(socket, 8, name, "A");
    scene
        .at(at_ms + 5_001)
        .answer(socket, 8, name, "A", NOERROR, &["10.1.0.1"]);
}

#[test]
fn a_bad_lookup_and_the_connection_it_was_for_are_one_journey() {
    let mut scene = Scene::used_sandbox();
    retried(&mut scene, &pod_socket(4_000), "api", 3_000);
    let connect = pod_socket(5_000).tcp().to("10.1.0.1:80");
    scene.at(8_010).connects(&connect);
    scene.at(8_012).established(&connect);
    let played = scene.then_nothing().play().finish();
    assert_text(
        &played.journeys(),
        "
journey  +0 ns    5.01 s [shop/cart, sb, retried]
  lookup +0 ns    5.00 s [api, A, at 10.96.0.10:53, noerror, 1 sent again, cause dns_server_silent (possible), retransmission api A 10.96.0.10 8]
  connect +5.01 s 2.00 ms [to 10.1.0.1:80, api]
",
    );
    let journey = &played.closed[1];
    let link = &journey.root().links[0];
    assert_eq!((link.trace, link.relation), (played.closed[0].id, Relation::Sandbox));
    assert_eq!(journey.sandbox, Some(SandboxId("sb".to_owned())));
    assert_eq!(played.findings_in(Some(journey.id)).count(), 2);
    let again = scene.play().finish();
    assert_eq!(again.closed, played.closed, "ids are the same every time");
}

/// One segment of DNS over TCP can hold two queries of one name, which are two lookups where both ask the same.
#[test]
fn two_lookups_of_one_name_that_begin_at_the_same_instant_are_two_traces() {
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(4_000).tcp();
    scene
        .at(3_000)
        .query(&socket, 7, "api", "A")
        .query(&socket, 8, "api", "A");
    let played = scene.then_nothing().play().finish();
    let journeys: Vec<_> = played.closed[1..].iter().map(|trace| trace.id).collect();
    assert_eq!(journeys.len(), 2, "{}", played.journeys());
    assert_ne!(journeys[0], journeys[1]);
}

#[test]
fn a_connection_that_stalls_keeps_its_journey_open_and_later_ones_are_not_part_of_it() {
    let mut scene = Scene::used_sandbox();
    retried(&mut scene, &pod_socket(4_000), "api", 3_000);
    let (slow, later) = (
        pod_socket(5_000).tcp().to("10.1.0.1:80"),
        pod_socket(5_001).tcp().to("10.1.0.1:80"),
    );
    scene.at(8_010).connects(&slow);
    scene.at(12_012).established(&slow);
    scene.at(14_000).connects(&later);
    scene.at(14_001).established(&later);
    let played = scene.then_nothing().play().finish();
    assert_eq!(played.closed[1].spans.len(), 3);
    assert_eq!(played.findings_in(None).count(), 1);
    assert!(
        rendered(&played).contains("10.1.0.1:80 api established 8010+4002, connect_silent"),
        "{}",
        rendered(&played)
    );
}

#[test]
fn a_bad_connection_brings_the_lookup_of_its_address() {
    let mut scene = Scene::used_sandbox();
    scene.looked_up(&pod_socket(4_000), "api", 3_000, 2_000, "10.1.0.1");
    let connect = pod_socket(5_000).tcp().to("10.1.0.1:80");
    scene.at(4_000).connects(&connect);
    scene.at(4_001).connect_failed(&connect, ConnectFailure::Refused, 0);
    // The same address, when the lookup is long past.
    let stale = pod_socket(5_001).tcp().to("10.1.0.1:80");
    scene.at(14_000).connects(&stale);
    scene.at(14_001).connect_failed(&stale, ConnectFailure::Refused, 0);
    let played = scene.then_nothing().play().finish();
    assert_text(
        &played.journeys(),
        "
journey   +0 ns  1.00 s  [shop/cart, sb, failed, error connect_refused: connect to 10.1.0.1:80 (api): refused]
  lookup  +0 ns  2.00 ms [api, A+AAAA, at 10.96.0.10:53, noerror]
  connect +1.00 s 1.00 ms [to 10.1.0.1:80, api, cause connect_refused (certain), error connect_refused: connect to 10.1.0.1:80 (api): refused]
journey   +0 ns 1.00 ms [shop/cart, sb, failed, error connect_refused: connect to 10.1.0.1:80: refused]
  connect +0 ns 1.00 ms [to 10.1.0.1:80, cause connect_refused (certain), error connect_refused: connect to 10.1.0.1:80: refused]
",
    );
    // The lookup's finding was emitted before its journey opened; both connects are in their journeys.
    assert_eq!(played.findings_in(None).count(), 1);
}

#[test]
fn a_socket_may_connect_again_and_a_record_may_come_twice() {
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(5_000).tcp().to("10.1.0.1:80");
    scene.at(3_000).connects(&socket).connects(&socket);
    scene.at(3_001).connect_failed(&socket, ConnectFailure::Refused, 0);
    scene.connect_failed(&socket, ConnectFailure::Refused, 0);
    scene.at(3_050).connects(&socket);
    scene.at(3_052).established(&socket).established(&socket);
    // Begun before anyone looked.
    scene.at(3_060).established(&pod_socket(5_001).tcp().to("10.1.0.1:80"));
    // A machine's talk with itself.
    scene.at(3_070).connects(&pod_socket(5_002).tcp().to("127.0.0.1:80"));
    let played = scene.then_nothing().play().finish();
    assert_text(
        &rendered(&played),
        "
sandbox connect 10.1.0.9:80 established 200+5
sandbox connect 10.1.0.1:80 refused 3000+1, connect_refused (certain)
sandbox connect 10.1.0.1:80 established 3050+2
",
    );
    assert_eq!(played.counters().orphan, 1);
}

#[test]
fn a_connection_that_nobody_hears_of_again_is_given_up() {
    let mut scene = Scene::used_sandbox();
    scene.at(3_000).connects(&pod_socket(5_000).tcp().to("10.1.0.1:80"));
    let played = scene.at(303_000).tick().play().finish();
    assert!(
        rendered(&played).contains("10.1.0.1:80  timeout 3000+300000"),
        "{}",
        rendered(&played)
    );
    assert!(played.closed[1].incomplete);
}

// === owners ===

#[test]
fn the_nodes_own_and_unknown_namespaces_are_node_scope() {
    let mut scene = Scene::used_sandbox();
    for (netns, port) in [(NODE, 4_000), (77, 4_100)] {
        let socket = pod_socket(port).at(netns, [192, 0, 2, 7]);
        retried(&mut scene, &socket, "registry.example", 3_000);
    }
    scene.events.sort_by_key(|event| event.at);
    let played = scene.then_nothing().play().finish();
    for journey in &played.closed[1..] {
        let Detail::Journey(detail) = &journey.root().detail else {
            panic!("a journey");
        };
        assert!(detail.node && detail.target == "registry.example");
        assert!(journey.sandbox.is_none() && journey.root().links.is_empty());
    }
    assert_eq!(rendered(&played).matches("node lookup").count(), 2);
}

#[test]
fn a_sandbox_older_than_the_agent_has_its_name() {
    let mut scene = Scene::new();
    scene.at(0).watched();
    scene.at(1).described(SandboxDescription {
        sandbox: SandboxId("old".to_owned()),
        identity: PodIdentity {
            namespace: "shop".to_owned(),
            name: "elder".to_owned(),
            ..PodIdentity::default()
        },
        created_unix_ns: 0,
        ready: true,
        preexisting: true,
    });
    scene.at(2).netns_of("old", POD);
    retried(&mut scene, &pod_socket(4_000), "api", 3_000);
    let played = scene.then_nothing().play().finish();
    assert!(
        played
            .journeys()
            .starts_with("journey   +0 ns  5.00 s  [shop/elder, old, retried]"),
        "{}",
        played.journeys()
    );
    assert!(played.only().root().links.is_empty());
}

#[test]
fn the_number_of_a_namespace_is_given_out_again() {
    let mut scene = Scene::used_sandbox();
    scene.ran("bridge", &del("sb", "eth0"), 3_000, 3_010);
    scene.at(4_000).tick();
    retried(&mut scene, &pod_socket(4_000), "nobody", 5_000);
    scene.made("next", "web", POD, 20_000);
    let first = pod_socket(5_000).tcp().to("10.1.0.9:80");
    scene.at(20_200).connects(&first).established(&first);
    retried(&mut scene, &pod_socket(4_001), "somebody", 25_000);
    let played = scene.then_nothing().play().finish();
    let journeys = played.journeys();
    assert!(journeys.contains("journey   +0 ns  5.00 s  [retried]"), "{journeys}");
    assert!(
        journeys.contains("journey   +0 ns  5.00 s  [shop/web, next, retried]"),
        "{journeys}"
    );
}

#[test]
fn a_packet_on_its_way_through_the_node_is_its_sandboxs() {
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(4_000);
    scene.looked_up(&socket, "api", 3_000, 2_000, "10.1.0.1");
    let before = scene.events.len();
    scene.at(3_050).flow(&socket, 1, FlowChange::New, "10.88.0.2:53");
    scene.flow(&socket, 1, FlowChange::Destroyed, "10.88.0.2:53");
    scene.flow(&socket.at(NODE, [192, 0, 2, 7]), 2, FlowChange::New, "10.96.0.10:53");
    scene.dropped(DroppedPacket::TcpSyn, address("192.0.2.7:1"), "10.1.0.1:80", None);
    scene.dropped(DroppedPacket::Dns, socket.server, "10.88.0.5:4000", None);
    scene.counted(ConntrackCounts::default());
    assert_eq!(scene.events.len() - before, 6);
    let played = scene.play();
    let traffic = played.outputs.iter().filter_map(|output| match output {
        Output::Finding(traffic) => Some(traffic),
        _ => None,
    });
    let found: Vec<(Scope, Option<Nat>)> = traffic
        .filter_map(|traffic| match traffic {
            Finding::Flow { scope, nat, .. } => Some((*scope, *nat)),
            Finding::Dropped { scope, .. } | Finding::Conntrack { scope, .. } => Some((*scope, None)),
            _ => None,
        })
        .collect();
    assert_eq!(
        found,
        [
            (Scope::Sandbox, Some(Nat::Dnat)),
            (Scope::Sandbox, Some(Nat::Dnat)),
            (Scope::Node, None),
            (Scope::Node, None),
            (Scope::Sandbox, None),
            (Scope::Node, None),
        ]
    );
}

// === conntrack's entries ===

#[test]
fn an_entry_is_joined_whenever_it_is_reported() {
    let backend = "10.88.0.2:53";
    let backends = |scene: &mut Scene| {
        let played = scene.then_nothing().play().finish();
        let found = played.outputs.iter().filter_map(|output| match output {
            Output::Finding(Finding::Lookup(ended)) => Some(ended.detail.backend),
            Output::Finding(Finding::Connect(ended)) if ended.detail.remote.port() == 443 => Some(ended.detail.backend),
            _ => None,
        });
        found
            .map(|backend| backend.map(|backend| backend.to_string()))
            .collect::<Vec<_>>()
    };
    let expected = Some(backend.to_owned());
    let socket = pod_socket(4_000);
    for reported_us in [2_999_990, 3_000_100, 3_050_000] {
        let mut scene = Scene::used_sandbox();
        scene.looked_up(&socket, "api", 3_000, 2_000, "10.1.0.1");
        scene.at_us(reported_us).flow(&socket, 1, FlowChange::New, backend);
        scene.events.sort_by_key(|event| event.at);
        assert_eq!(backends(&mut scene), std::slice::from_ref(&expected), "{reported_us}");
    }
    // A second lookup from the same socket goes the same way; after the entry is gone the backend is not known.
    let mut scene = Scene::used_sandbox();
    scene.at(2_999).flow(&socket, 1, FlowChange::New, backend);
    scene.looked_up(&socket, "api", 3_000, 2_000, "10.1.0.1");
    scene.looked_up(&socket, "web", 13_000, 2_000, "10.1.0.1");
    scene.at(20_000).flow(&socket, 1, FlowChange::Destroyed, backend);
    scene.looked_up(&socket, "web", 23_000, 2_000, "10.1.0.1");
    assert_eq!(backends(&mut scene), [expected.clone(), expected.clone(), None]);

    // A connection; its port may not be known when it begins.
    let connect = pod_socket(5_000).tcp().to("10.96.0.1:443");
    let unbound = Socket {
        client: address("10.88.0.5:0"),
        ..connect
    };
    for (begins, reported_us) in [
        (connect, 3_000_100),
        (unbound, 3_000_100),
        (unbound, 3_080_000),
        (connect, 2_999_990),
    ] {
        let mut scene = Scene::used_sandbox();
        scene.at(3_000).connects(&begins);
        scene.at(3_002).established(&connect);
        scene.at_us(reported_us).flow(&connect, 1, FlowChange::New, backend);
        scene.events.sort_by_key(|event| event.at);
        assert_eq!(backends(&mut scene), std::slice::from_ref(&expected), "{reported_us}");
    }
    // The entry of an earlier connection from the same port says nothing of this one.
    let mut scene = Scene::used_sandbox();
    scene.at(2_500).flow(&connect, 1, FlowChange::New, backend);
    scene.at(3_000).connects(&connect);
    scene.at(3_002).established(&connect);
    assert_eq!(backends(&mut scene), [None]);
}

#[test]
fn of_several_connections_without_a_port_each_finds_its_own_entry() {
    let mut scene = Scene::used_sandbox();
    let sockets = [5_000, 5_001].map(|port| pod_socket(port).tcp().to("10.96.0.1:443"));
    for socket in sockets {
        scene.at(3_000).connects(&Socket {
            client: address("10.88.0.5:0"),
            ..socket
        });
    }
    scene.at(3_001).flow(&sockets[1], 2, FlowChange::New, "10.88.0.3:8443");
    scene.at(3_001).flow(&sockets[0], 1, FlowChange::New, "10.88.0.2:8443");
    scene.at(3_002).established(&sockets[0]).established(&sockets[1]);
    let played = scene.then_nothing().play().finish();
    let found: Vec<(u16, String)> = played
        .outputs
        .iter()
        .filter_map(|output| match output {
            Output::Finding(Finding::Connect(ended)) if ended.detail.remote.port() == 443 => {
                Some((ended.detail.local.port(), ended.detail.backend?.to_string()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        found,
        [
            (5_000, "10.88.0.2:8443".to_owned()),
            (5_001, "10.88.0.3:8443".to_owned())
        ]
    );
}

// === bounds ===

fn count(played: &Played, is: impl Fn(&Finding) -> bool) -> usize {
    let traffic = played
        .outputs
        .iter()
        .filter(|output| matches!(output, Output::Finding(traffic) if is(traffic)));
    traffic.count()
}

#[test]
fn a_flood_of_bad_lookups_makes_no_more_journeys_than_configured() {
    let mut scene = Scene::used_sandbox();
    scene.config.traffic.journeys_per_minute = 6;
    let refused = |scene: &mut Scene, at: u64, number: u16, netns: u64| {
        let socket = pod_socket(10_000 + number)
            .tcp()
            .to("10.1.0.1:80")
            .at(netns, [10, 88, 0, 5]);
        scene
            .at(at)
            .connects(&socket)
            .connect_failed(&socket, ConnectFailure::Refused, 0);
    };
    // The node's own take half of what there is.
    for number in 0..20 {
        refused(&mut scene, 3_000, number, NODE);
    }
    for number in 20..40 {
        refused(&mut scene, 3_200, number, POD);
    }
    // Ten seconds later there is one more.
    for number in 40..50 {
        refused(&mut scene, 13_200, number, POD);
    }
    let played = scene.then_nothing().play().finish();
    let journeys: Vec<bool> = played.closed[1..].iter().map(|trace| trace.sandbox.is_some()).collect();
    assert_eq!(journeys, [false, false, false, true, true, true, true]);
    assert_eq!(count(&played, |traffic| *traffic == Finding::JourneyHeldBack), 43);
    assert_eq!(count(&played, |traffic| matches!(traffic, Finding::Connect(_))), 51);
}

/// A pod that floods tables and journeys loses its own entries, and another one is still seen.
#[test]
fn a_noisy_pod_does_not_push_out_the_others() {
    let mut scene = Scene::used_sandbox();
    scene.config.traffic.max_lookups = 16;
    scene.config.traffic.max_connects = 16;
    scene.config.traffic.max_flows = 16;
    scene.config.traffic.journeys_per_minute = 30;
    let noisy = |number: u16| pod_socket(10_000 + number).at(4_711, [10, 88, 0, 66]);
    let server = |socket: Socket| socket.tcp().to("10.1.0.1:80");
    let (asks, connects) = (pod_socket(4_000), server(pod_socket(5_000)));
    scene.made("noisy", "noisy", 4_711, 2_000);
    scene.at(3_000).query(&asks, 7, "api", "A").connects(&connects);
    scene.flow(&asks, 999, FlowChange::New, "10.88.0.2:53");
    for number in 0..200 {
        let socket = noisy(number);
        scene.at(3_100).query(&socket, number, &format!("n{number}"), "A");
        scene.connects(&server(noisy(1_000 + number)));
        scene.flow(&socket, u32::from(number), FlowChange::New, "10.88.0.2:53");
    }
    // Each fails at once: more than there may be journeys.
    for number in 2_000..2_060 {
        let socket = server(noisy(number));
        scene
            .at(3_200)
            .connects(&socket)
            .connect_failed(&socket, ConnectFailure::Refused, 0);
    }
    scene
        .at(3_300)
        .connect_failed(&connects, ConnectFailure::Refused, 0)
        .answer(&asks, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    let played = scene.play();
    let (counters, sizes) = (played.counters(), played.correlator.sizes());
    assert_eq!(counters.orphan, 0, "the connection of the quiet pod was evicted");
    assert!(
        sizes.lookups <= 16 && sizes.connects <= 16 && sizes.flows == 16,
        "{sizes:?}"
    );
    let played = scene.then_nothing().play().finish();
    let journeys = played.closed.iter().filter(|trace| {
        let is_journey = trace.spans.iter().any(|span| matches!(span.detail, Detail::Journey(_)));
        is_journey && trace.sandbox == Some(SandboxId("sb".to_owned()))
    });
    assert_eq!(journeys.count(), 1);
}

#[test]
fn of_too_many_open_journeys_those_of_the_oldest_lookups_close_first() {
    // Two more than may be open at once.
    const COUNT: u16 = 258;
    let mut scene = Scene::used_sandbox();
    scene.config.traffic.journeys_per_minute = 10_000;
    let (socket, name) = (|number| pod_socket(4_000 + number), |number| format!("n{number}"));
    for number in 0..COUNT {
        scene.at(3_000).query(&socket(number), 7, &name(number), "A");
    }
    for number in 0..COUNT {
        scene.at(8_000).query(&socket(number), 8, &name(number), "A");
    }
    for number in 0..COUNT {
        let (socket, name) = (socket(number), name(number));
        scene.at(8_001).answer(&socket, 8, &name, "A", NOERROR, &["10.1.0.1"]);
    }
    // Lookups end once no name of a search path followed; journeys a second later.
    let evicted = scene.at(8_500).tick().play();
    assert_eq!(targets(&evicted), ["n0", "n1"]);
    assert_eq!(evicted.correlator.sizes().journeys, usize::from(COUNT) - 2);
    let played = scene.then_nothing().play().finish();
    assert_eq!(targets(&played), (0..COUNT).map(name).collect::<Vec<_>>());
}

/// The names that the closed journeys are about, in the order in which they closed.
fn targets(played: &Played) -> Vec<String> {
    let journeys = played
        .closed
        .iter()
        .filter_map(|trace| trace.root().detail.as_journey());
    journeys.map(|journey| journey.target.clone()).collect()
}

#[test]
fn what_does_not_fit_goes_and_is_counted() {
    let mut scene = Scene::used_sandbox();
    scene.config.traffic.max_lookups = 4;
    scene.config.traffic.max_connects = 3;
    scene.config.traffic.max_flows = 2;
    for number in 0..10 {
        let socket = pod_socket(4_000 + number);
        scene.at(3_000).query(&socket, number, &format!("n{number}"), "A");
        scene.connects(&pod_socket(5_000 + number).tcp().to("10.1.0.1:80"));
        scene.flow(&socket, u32::from(number), FlowChange::New, "10.88.0.2:53");
    }
    let played = scene.play();
    let (counters, sizes) = (played.counters(), played.correlator.sizes());
    assert_eq!((sizes.lookups, sizes.connects, sizes.flows), (4, 3, 2));
    assert_eq!(
        (
            counters.evicted_lookups.total(),
            counters.evicted_connects.total(),
            counters.evicted_flows.total()
        ),
        (6, 7, 8)
    );
    let played = scene.then_nothing().play().finish();
    assert_eq!(count(&played, |traffic| matches!(traffic, Finding::Lookup(_))), 4);
    assert_eq!(played.correlator.sizes().lookups, 0);
}

#[test]
fn one_socket_that_asks_without_end_stays_one_small_lookup_after_the_other() {
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(4_000);
    for number in 0..2_000_u64 {
        scene.at(3_000 + 300 * number).query(&socket, number as u16, "api", "A");
    }
    let played = scene.then_nothing().play().finish();
    assert!(played.correlator.sizes().lookups == 0);
    let lookups = count(&played, |traffic| matches!(traffic, Finding::Lookup(_)));
    assert_eq!(lookups, 59);
    let events = played
        .closed
        .iter()
        .flat_map(|trace| &trace.spans)
        .map(|span| span.events.len())
        .max();
    assert!(events <= Some(48), "{events:?}");
}

#[test]
fn whatever_is_lost_is_not_guessed() {
    let mut scene = Scene::used_sandbox();
    scene.at(3_000).query(&pod_socket(4_000), 7, "api", "A");
    scene.at(3_001).event(Body::Lost {
        probe: "dns".to_owned(),
        count: 1,
    });
    let played = scene.then_nothing().play().finish();
    assert!(played.closed[1].incomplete);
    assert!(rendered(&played).contains("dns_server_silent (possible)"));
}
