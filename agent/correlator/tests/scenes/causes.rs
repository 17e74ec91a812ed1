//! Causes: named with their evidence, and not without it.

use sandglass_model::network::{ConnectFailure, ConntrackCounts, DroppedPacket, FlowChange};

use crate::scene::{Played, Scene, assert_text};
use crate::wire::{NODE, NOERROR, NXDOMAIN, address, pod_socket, rendered};

/// A and AAAA leave at once, A is lost and sent again after five seconds.
fn stalled() -> Scene {
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(4_000);
    scene.at_us(3_000_000).query(&socket, 7, "api", "A");
    scene.at_us(3_000_080).query(&socket, 8, "api", "AAAA");
    scene.at(3_001).answer(&socket, 8, "api", "AAAA", NOERROR, &[]);
    scene.at(8_005).query(&socket, 7, "api", "A");
    scene.at(8_006).answer(&socket, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    scene
}

fn with(mut scene: Scene, more: impl FnOnce(&mut Scene)) -> Played {
    more(&mut scene);
    scene.events.sort_by_key(|event| event.at);
    scene.then_nothing().play().finish()
}

/// Counters read at 2900 ms, 3900 ms and 8900 ms; the caller passes what grew at the second reading.
fn counted(scene: &mut Scene, grown: ConntrackCounts) {
    scene.at(2_900).counted(ConntrackCounts::default());
    scene.at(3_900).counted(grown);
    scene.at(8_900).counted(ConntrackCounts::default());
}

#[track_caller]
fn assert_cause(played: &Played, expected: &str) {
    let rendered = rendered(played);
    let line = rendered.lines().last().unwrap_or_default();
    assert!(
        line.ends_with(expected),
        "{expected} is not in {rendered}{:?}",
        played.evidence()
    );
}

const FAILED: ConntrackCounts = ConntrackCounts {
    netns: NODE,
    entries: 10,
    limit: 1_000,
    insert_failed: 1,
    drop: 0,
    early_drop: 0,
    clash_resolve: 0,
    search_restart: 0,
};

#[test]
fn a_race_is_likely_when_an_insertion_failed_then() {
    let played = with(stalled(), |scene| counted(scene, FAILED));
    assert_cause(&played, "conntrack_race (likely)");
    assert_eq!(
        played.evidence(),
        [
            "AAAA and A were asked from one socket within 80.0 us",
            "A got no answer and was sent again after 5.00 s",
            "conntrack's insert_failed rose by 1 then",
        ]
    );
    assert_text(
        &played.journeys(),
        "
journey  +0 ns 5.01 s [shop/cart, sb, retried]
  lookup +0 ns 5.01 s [api, A+AAAA, at 10.96.0.10:53, noerror, 1 sent again, cause conntrack_race (likely), retransmission api A 10.96.0.10 7]
",
    );
}

#[test]
fn a_race_is_certain_when_the_query_was_seen_to_be_dropped() {
    let played = with(stalled(), |scene| {
        counted(scene, FAILED);
        // The packet goes to a backend already.
        let from = pod_socket(4_000).client;
        scene
            .at_us(3_000_090)
            .dropped(DroppedPacket::Dns, from, "10.88.0.2:53", Some(7));
    });
    assert_cause(&played, "conntrack_race (certain)");
    assert!(
        played
            .evidence()
            .contains(&"the kernel dropped the query: NETFILTER_DROP in nf_hook_slow".to_owned())
    );
}

#[test]
fn a_stall_without_evidence_is_not_blamed_on_conntrack() {
    let quiet = with(stalled(), |scene| {
        counted(
            scene,
            ConntrackCounts {
                insert_failed: 0,
                ..FAILED
            },
        )
    });
    assert_cause(&quiet, "dns_server_silent (likely)");
    assert_eq!(quiet.evidence()[1], "conntrack's counters speak of no drop then");
    // The kernel resolved a clash: nothing was dropped.
    let resolved = ConntrackCounts {
        insert_failed: 0,
        clash_resolve: 3,
        ..FAILED
    };
    assert_cause(
        &with(stalled(), |scene| counted(scene, resolved)),
        "dns_server_silent (likely)",
    );
    // An insertion failed, but seconds before or after.
    let elsewhere = with(stalled(), |scene| {
        scene.at(2_900).counted(FAILED);
        scene.at(3_900).counted(ConntrackCounts::default());
        scene.at(7_000).counted(FAILED);
    });
    assert_cause(&elsewhere, "dns_server_silent (likely)");
    assert_cause(&with(stalled(), |_| {}), "dns_server_silent (possible)");
}

#[test]
fn a_clash_with_a_drop_is_likely_a_race() {
    let clash = ConntrackCounts {
        insert_failed: 0,
        clash_resolve: 1,
        drop: 1,
        ..FAILED
    };
    assert_cause(
        &with(stalled(), |scene| counted(scene, clash)),
        "conntrack_race (likely)",
    );
}

#[test]
fn without_counters_a_race_is_possible_where_the_address_was_translated() {
    let played = with(stalled(), |scene| {
        scene
            .at_us(3_000_200)
            .flow(&pod_socket(4_000), 1, FlowChange::New, "10.88.0.3:53");
    });
    assert_cause(&played, "conntrack_race (possible)");
    assert!(
        played.journeys().contains("behind it 10.88.0.3:53"),
        "{}",
        played.journeys()
    );
}

#[test]
fn what_is_no_race_is_not_called_one() {
    // Both were not answered.
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(4_000);
    for at in [3_000, 8_000] {
        scene
            .at(at)
            .query(&socket, 7, "api", "A")
            .query(&socket, 8, "api", "AAAA");
    }
    assert_cause(
        &with(scene, |scene| counted(scene, FAILED)),
        "dns_server_silent (likely)",
    );
    // One after the other.
    let mut scene = Scene::used_sandbox();
    scene.at(3_000).query(&socket, 8, "api", "AAAA");
    scene.at(3_005).query(&socket, 7, "api", "A");
    scene.at(3_006).answer(&socket, 8, "api", "AAAA", NOERROR, &[]);
    scene.at(8_005).query(&socket, 7, "api", "A");
    scene.at(8_006).answer(&socket, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    assert_cause(
        &with(scene, |scene| counted(scene, FAILED)),
        "dns_server_silent (likely)",
    );
    // From two sockets.
    let mut scene = Scene::used_sandbox();
    let other = pod_socket(4_001);
    scene
        .at(3_000)
        .query(&socket, 7, "api", "A")
        .query(&other, 8, "api", "AAAA");
    scene.at(3_001).answer(&other, 8, "api", "AAAA", NOERROR, &[]);
    scene.at(8_000).query(&socket, 7, "api", "A");
    scene.at(8_001).answer(&socket, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    assert_cause(
        &with(scene, |scene| counted(scene, FAILED)),
        "dns_server_silent (likely)",
    );
}

#[test]
fn a_race_that_ends_in_giving_up_is_one_too() {
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(4_000);
    scene
        .at(3_000)
        .query(&socket, 7, "api", "A")
        .query(&socket, 8, "api", "AAAA");
    scene.at(3_001).answer(&socket, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    for at in [5_500, 8_000] {
        scene.at(at).query(&socket, 8, "api", "AAAA");
    }
    let played = with(scene, |scene| counted(scene, FAILED));
    assert_cause(
        &played,
        "3000+7500, 4 sent, 2 again, 1 unanswered, conntrack_race (likely)",
    );
}

#[test]
fn a_full_table_is_the_cause_when_it_dropped_then() {
    let full = ConntrackCounts {
        entries: 998,
        drop: 40,
        insert_failed: 0,
        ..FAILED
    };
    let played = with(stalled(), |scene| counted(scene, full));
    assert_cause(&played, "conntrack_table_full (likely)");
    assert_eq!(played.evidence()[0], "conntrack's table had 998 of 1000 entries");
    let played = with(stalled(), |scene| {
        counted(scene, full);
        let from = pod_socket(4_000).client;
        scene
            .at_us(3_000_090)
            .dropped(DroppedPacket::Dns, from, "10.96.0.10:53", Some(7));
    });
    assert_cause(&played, "conntrack_table_full (certain)");
}

#[test]
fn a_dropped_packet_is_the_cause_and_makes_a_lookup_bad_by_itself() {
    let played = with(stalled(), |scene| {
        counted(scene, ConntrackCounts::default());
        let from = pod_socket(4_000).client;
        scene
            .at_us(3_000_050)
            .dropped(DroppedPacket::Dns, from, "10.96.0.10:53", Some(7));
    });
    assert_cause(&played, "packet_drop (certain)");
    assert!(played.journeys().contains("packet dropped NETFILTER_DROP nf_hook_slow"));
    // Translated at both ends: only the id is the packet's own.
    let played = with(stalled(), |scene| {
        scene
            .at_us(3_000_050)
            .dropped(DroppedPacket::Dns, address("192.0.2.1:33"), "10.88.0.2:53", Some(7));
    });
    assert_cause(&played, "packet_drop (certain)");
    // Another's.
    let played = with(stalled(), |scene| {
        scene
            .at_us(3_000_050)
            .dropped(DroppedPacket::Dns, address("192.0.2.1:33"), "10.88.0.2:53", Some(70));
    });
    assert_cause(&played, "dns_server_silent (possible)");
}

#[test]
fn the_search_path_is_the_cause_when_it_took_the_most_time() {
    let mut scene = Scene::used_sandbox();
    for (number, (name, rcode)) in [("a.b.x.y", NXDOMAIN), ("a.b.y", NXDOMAIN), ("a.b", NOERROR)]
        .into_iter()
        .enumerate()
    {
        let (socket, at) = (pod_socket(4_000 + number as u16), 3_000 + 600 * number as u64);
        scene.at(at).query(&socket, 7, name, "A");
        let addresses = if rcode == NOERROR { &["10.1.0.1"][..] } else { &[] };
        scene.at(at + 599).answer(&socket, 7, name, "A", rcode, addresses);
    }
    let played = with(scene, |_| {});
    assert_cause(
        &played,
        "sandbox lookup a.b A noerror 3000+1799, 3 sent, 2 search, search_path (certain)",
    );
    assert_eq!(played.evidence()[1], "these took 1.20 s of 1.80 s");
}

#[test]
fn a_slow_server_is_the_cause_of_a_slow_answer() {
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(4_000);
    scene.at(3_000).query(&socket, 7, "api", "A");
    scene.at(4_500).answer(&socket, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    let played = with(scene, |_| {});
    assert_cause(&played, "dns_server_slow (likely)");
    assert_eq!(played.evidence(), ["10.96.0.10:53 answered after 1.50 s"]);
}

#[test]
fn an_answer_for_a_socket_that_is_gone_harms_nobody() {
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(4_000);
    scene.looked_up(&socket, "api", 3_000, 2_000, "10.1.0.1");
    let played = with(scene, |scene| {
        scene.at(3_003).event(sandglass_model::Body::PacketDropped(Box::new(
            sandglass_model::network::PacketDrop {
                netns: NODE,
                packet: DroppedPacket::Dns,
                source: socket.server,
                destination: socket.client,
                dns_id: Some(3_000),
                reason: "NO_SOCKET".to_owned(),
                function: String::new(),
            },
        )));
    });
    assert_eq!(played.journeys(), "");
}

#[test]
fn lost_records_lower_the_confidence_and_are_reported() {
    let played = with(stalled(), |scene| {
        counted(scene, ConntrackCounts::default());
        scene.at(3_500).event(sandglass_model::Body::Lost {
            probe: "dns".to_owned(),
            count: 3,
        });
    });
    assert_cause(&played, "dns_server_silent (possible)");
    assert!(played.journeys().contains("incomplete"), "{}", played.journeys());
    assert!(!played.closed[0].incomplete);
}

#[test]
fn connections_fail_for_different_reasons() {
    for (failure, retransmits, took, expected) in [
        (
            ConnectFailure::Refused,
            0,
            1,
            "refused 3000+1, connect_refused (certain)",
        ),
        (
            ConnectFailure::Unreachable,
            0,
            1,
            "unreachable 3000+1, unreachable (certain)",
        ),
        (
            ConnectFailure::TimedOut,
            6,
            130_000,
            "timeout 3000+130000, 6 again, connect_silent (possible)",
        ),
        (
            ConnectFailure::Abandoned,
            2,
            5_000,
            "abandoned 3000+5000, 2 again, connect_silent (possible)",
        ),
        (ConnectFailure::Abandoned, 0, 20, "abandoned 3000+20"),
        (ConnectFailure::Reset, 0, 20, "reset 3000+20"),
    ] {
        let mut scene = Scene::used_sandbox();
        let socket = pod_socket(5_000).tcp().to("10.1.0.1:80");
        scene.at(3_000).connects(&socket);
        scene.at(3_000 + took).connect_failed(&socket, failure, retransmits);
        let played = with(scene, |_| {});
        let rendered = rendered(&played);
        assert!(rendered.ends_with(&format!("{expected}\n")), "{expected}: {rendered}");
        assert_eq!(
            played.journeys().is_empty(),
            expected == "abandoned 3000+20",
            "{expected}"
        );
    }
}

#[test]
fn a_dropped_syn_is_the_cause() {
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(5_000).tcp().to("10.1.0.1:80");
    scene.at(3_000).connects(&socket);
    scene.at(4_001).established(&socket);
    let played = with(scene, |scene| {
        scene
            .at_us(3_000_010)
            .dropped(DroppedPacket::TcpSyn, socket.client, "10.88.0.9:8080", None);
    });
    assert_cause(&played, "packet_drop (certain)");
    assert_eq!(
        played.evidence(),
        ["the kernel dropped the SYN: NETFILTER_DROP in nf_hook_slow"]
    );
}
