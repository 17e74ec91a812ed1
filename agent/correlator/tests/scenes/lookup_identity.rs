//! Lookups: which lookup a message belongs to, by socket, id, name and address. What a lookup comes to is in `lookups.rs`.

use sandglass_model::network::{DroppedPacket, PacketDrop, Transport};
use sandglass_model::{Body, Event};

use crate::lookups::assert_rendered;
use crate::scene::{Scene, del};
use crate::wire::{NOERROR, NXDOMAIN, POD, Socket, answer_of, pod_socket, rendered};

/// An answer from elsewhere counts by socket and id: behind a socket that is not connected, addresses may be translated.
#[test]
fn packets_translated_behind_the_socket_are_joined_by_socket_and_id() {
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(4_000);
    let service = socket.to("10.96.0.10:53");
    let backend = socket.to("10.88.0.99:53");
    scene
        .at(3_000)
        .query(&backend, 7, "api", "A")
        .query(&backend, 8, "api", "AAAA");
    scene.at(3_001).answer(&service, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    // The client's end may differ too.
    let mut outside = answer_of(&service, 8, "api", "AAAA", NOERROR, &[]);
    outside.client.set_ip([127, 0, 0, 1].into());
    scene.at(3_002).dns(outside);
    assert_rendered(&mut scene, "sandbox lookup api A+AAAA noerror 3000+2, 2 sent");
}

/// The client did not accept the answer: it repeats the query.
#[test]
fn an_answer_from_elsewhere_that_the_client_does_not_take_is_none() {
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(4_000);
    scene.at(3_000).query(&socket, 7, "api", "A");
    let elsewhere = socket.to("10.9.9.9:53");
    scene.at(3_001).answer(&elsewhere, 7, "api", "A", NOERROR, &["6.6.6.6"]);
    scene.at(8_000).query(&socket, 7, "api", "A");
    scene.at(8_001).answer(&socket, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    let played = scene.clone().then_nothing().play().finish();
    let journeys = played.journeys();
    assert!(journeys.contains("stray answer 10.9.9.9 7"), "{journeys}");
    assert!(!journeys.contains("6.6.6.6"), "{journeys}");
    let expected = "sandbox lookup api A noerror 3000+5001, 2 sent, 1 again, dns_server_silent (possible)";
    assert_rendered(&mut scene, expected);
}

/// glibc closes its socket at the first truncated answer and repeats both over TCP; the second answer finds no socket. Where its
/// buffer is too small for what comes, it begins again from the start.
#[test]
fn glibc_goes_over_to_tcp_with_both_questions_and_repeats_whole_lookups() {
    let both = |scene: &mut Scene, at: u64, port: u16| {
        let (udp, tcp) = (pod_socket(port), pod_socket(port + 1).tcp());
        scene.at(at).query(&udp, 7, "big", "A").query(&udp, 8, "big", "AAAA");
        scene.at(at + 1).cut_answer(&udp, 7, "big", "A");
        (udp, tcp)
    };
    let over_tcp = |scene: &mut Scene, at: u64, tcp: &Socket| {
        scene.at(at).query(tcp, 7, "big", "A").query(tcp, 8, "big", "AAAA");
        scene.at(at + 4).answer(tcp, 7, "big", "A", NOERROR, &["10.1.0.1"]);
        scene.at(at + 5).answer(tcp, 8, "big", "AAAA", NOERROR, &[]);
    };
    let mut scene = Scene::used_sandbox();
    let (udp, tcp) = both(&mut scene, 3_000, 4_000);
    over_tcp(&mut scene, 3_003, &tcp);
    scene.at(3_002).event(Body::PacketDropped(Box::new(PacketDrop {
        netns: POD,
        packet: DroppedPacket::Dns,
        source: udp.server,
        destination: udp.client,
        dns_id: Some(8),
        reason: "NO_SOCKET".to_owned(),
        function: "__udp4_lib_rcv".to_owned(),
    })));
    let (_, tcp) = both(&mut scene, 3_020, 4_010);
    over_tcp(&mut scene, 3_023, &tcp);
    let played = scene.clone().then_nothing().play().finish();
    assert_eq!(played.journeys(), "");
    assert_rendered(
        &mut scene,
        "sandbox lookup big A+AAAA noerror 3000+8, 4 sent, 1 cut
sandbox lookup big A+AAAA noerror 3020+8, 4 sent, 1 cut",
    );
    // The other answer was there, whole, before the cut one.
    let mut scene = Scene::used_sandbox();
    let (udp, tcp) = (pod_socket(4_000), pod_socket(4_001).tcp());
    scene.at(3_000).query(&udp, 7, "big", "A").query(&udp, 8, "big", "AAAA");
    scene.at(3_001).answer(&udp, 8, "big", "AAAA", NOERROR, &[]);
    scene.at(3_002).cut_answer(&udp, 7, "big", "A");
    over_tcp(&mut scene, 3_003, &tcp);
    assert_rendered(&mut scene, "sandbox lookup big A+AAAA noerror 3000+8, 4 sent, 1 cut");
}

/// musl queries server by server; the first one's answer may come before the second is queried.
#[test]
fn a_server_that_is_queried_after_the_other_has_answered_is_still_the_same_lookup() {
    let mut scene = Scene::used_sandbox();
    let one = pod_socket(4_000);
    let other = one.to("10.96.0.11:53");
    scene.at(3_000).query(&one, 7, "api", "A");
    scene.at(3_002).answer(&one, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    scene.at(3_004).query(&other, 7, "api", "A");
    scene.query(&one, 8, "api", "AAAA").query(&other, 8, "api", "AAAA");
    scene.at(3_005).answer(&one, 8, "api", "AAAA", NOERROR, &[]);
    assert_rendered(&mut scene, "sandbox lookup api A+AAAA noerror 3000+5, 4 sent");
}

/// After a loss and full answers, the whole lookup from another socket is another one, not one more retransmission.
#[test]
fn a_repeat_after_full_answers_is_another_lookup() {
    let mut scene = Scene::used_sandbox();
    let (socket, next) = (pod_socket(4_000), pod_socket(4_001));
    scene.at(3_000).query(&socket, 7, "api", "A");
    scene.at(8_000).query(&socket, 7, "api", "A");
    scene.at(8_001).answer(&socket, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    scene.at(8_002).query(&next, 9, "api", "A");
    scene.at(8_003).answer(&next, 9, "api", "A", NOERROR, &["10.1.0.1"]);
    assert_rendered(
        &mut scene,
        "sandbox lookup api A noerror 3000+5001, 2 sent, 1 again, dns_server_silent (possible)
sandbox lookup api A noerror 8002+1, 1 sent",
    );
}

#[test]
fn a_server_may_leave_the_question_out_of_its_answer() {
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(4_000);
    scene.at(3_000).query(&socket, 7, "api", "A");
    let mut answer = answer_of(&socket, 7, "api", "A", 1, &[]);
    answer.questions.clear();
    scene.at(3_001).dns(answer);
    assert_rendered(
        &mut scene,
        "sandbox lookup api A formerr 3000+1, 1 sent, dns_server_error (certain)",
    );
}

#[test]
fn several_questions_of_one_message_are_answered_by_one() {
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(4_000);
    let mut query = answer_of(&socket, 7, "api", "A", 0, &[]);
    query.answer = None;
    let mut second = query.questions[0].clone();
    second.kind = 28;
    query.questions.push(second);
    let mut answer = query.clone();
    answer.answer = answer_of(&socket, 7, "api", "A", 0, &["10.1.0.1"]).answer;
    scene.at(3_000).dns(query);
    scene.at(3_001).dns(answer);
    assert_rendered(&mut scene, "sandbox lookup api A+AAAA noerror 3000+1, 2 sent");
}

#[test]
fn a_message_that_is_reported_twice_counts_once() {
    let mut scene = Scene::used_sandbox();
    scene.looked_up(&pod_socket(4_000), "api", 3_000, 2_000, "10.1.0.1");
    let doubled: Vec<_> = scene
        .events
        .iter()
        .flat_map(|event| [event.clone(), event.clone()])
        .collect();
    scene.events = doubled;
    assert_rendered(&mut scene, "sandbox lookup api A+AAAA noerror 3000+2, 2 sent");
}

/// A lookup with its answers ends when the sandbox's DEL begins, before the second records of its queries come.
#[test]
fn queries_that_are_reported_again_after_the_lookup_are_no_other_one() {
    let mut scene = Scene::ready_sandbox();
    scene.looked_up(&pod_socket(4_000), "api", 300, 2_000, "10.1.0.1");
    let is_query = |event: &&Event| matches!(&event.body, Body::DnsSeen(message) if message.answer.is_none());
    let queries: Vec<Event> = scene.events.iter().filter(is_query).cloned().collect();
    assert_eq!(queries.len(), 2);
    let plugin = scene.at(310).plugin("bridge", &del("sb", "eth0"));
    scene.events.extend(queries);
    scene.at(330).exit(plugin, 0);
    let rendered = rendered(&scene.then_nothing().play().finish());
    let lookups: Vec<&str> = rendered.lines().filter(|line| line.contains("lookup")).collect();
    assert_eq!(lookups, ["sandbox lookup api A+AAAA noerror 300+2, 2 sent"]);
}

#[test]
fn ipv6_servers_and_mapped_addresses_are_addresses_like_others() {
    let mut scene = Scene::used_sandbox();
    let mut socket = pod_socket(4_000).to("[fd00::10]:53");
    socket.client = "[fd00::5]:4000".parse().expect("an address");
    scene.looked_up(&socket, "api", 3_000, 2_000, "fd00::99");
    let mut mapped = pod_socket(4_001).to("[::ffff:10.96.0.10]:53");
    mapped.client = "[::ffff:10.88.0.5]:4001".parse().expect("an address");
    scene.at(4_000).query(&mapped, 7, "api", "A");
    scene
        .at(4_001)
        .answer(&pod_socket(4_001), 7, "api", "A", NOERROR, &["10.1.0.1"]);
    assert_rendered(
        &mut scene,
        "sandbox lookup api A+AAAA noerror 3000+2, 2 sent
sandbox lookup api A noerror 4000+1, 1 sent",
    );
}

#[test]
fn sockets_of_one_address_in_two_namespaces_are_two() {
    let mut scene = Scene::used_sandbox();
    let (here, there) = (
        pod_socket(4_000).at(POD, [127, 0, 0, 1]),
        pod_socket(4_000).at(99, [127, 0, 0, 1]),
    );
    scene.at(3_000).query(&here, 7, "api", "A").query(&there, 7, "api", "A");
    scene.at(3_002).answer(&there, 7, "api", "A", NXDOMAIN, &[]);
    scene.at(3_004).answer(&here, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    assert_eq!(here.transport, Transport::Udp);
    assert_rendered(
        &mut scene,
        "node lookup api A nxdomain 3000+2, 1 sent
sandbox lookup api A noerror 3000+4, 1 sent",
    );
}

/// A resolver with one connection to the next resolver: two of its clients resolve the same name.
#[test]
fn the_same_question_twice_at_once_over_one_connection_is_two_lookups() {
    let mut scene = Scene::used_sandbox();
    let client = pod_socket(4_000).tcp();
    scene.at(3_000).query(&client, 1, "api", "A");
    scene.at(3_001).query(&client, 4, "api", "A");
    scene.at(3_005).answer(&client, 1, "api", "A", NOERROR, &["10.1.0.1"]);
    scene.at(3_009).answer(&client, 4, "api", "A", NOERROR, &["10.1.0.1"]);
    // Later it is a retry.
    scene.at(4_000).query(&client, 5, "web", "A");
    scene.at(5_000).query(&client, 6, "web", "A");
    scene.at(5_001).answer(&client, 6, "web", "A", NOERROR, &["10.1.0.2"]);
    let rendered = rendered(&scene.then_nothing().play().finish());
    let lookups: Vec<&str> = rendered.lines().filter(|line| line.contains("lookup")).collect();
    assert_eq!(
        lookups,
        [
            "sandbox lookup api A noerror 3000+5, 1 sent",
            "sandbox lookup api A noerror 3001+8, 1 sent",
            "sandbox lookup web A noerror 4000+1001, 2 sent, 1 again, dns_server_silent (possible)"
        ]
    );
}
