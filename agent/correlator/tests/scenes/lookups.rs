//! Lookups: which messages are one, when it is over, and what it comes to.

use crate::scene::{Scene, assert_text};
use crate::wire::{NOERROR, NXDOMAIN, SERVFAIL, Socket, pod_socket, rendered};

/// Lookups of a sandbox whose network is ready; the one connection that made it ready is left out.
#[track_caller]
pub(crate) fn assert_rendered(scene: &mut Scene, expected: &str) {
    let played = scene.then_nothing().play().finish();
    let rendered = rendered(&played);
    let rest = rendered.split_once('\n').map_or("", |(_, rest)| rest);
    assert_text(rest, expected);
    assert_eq!(played.counters().orphan, 0);
}

#[test]
fn both_types_from_one_socket_are_one_lookup() {
    let mut scene = Scene::used_sandbox();
    scene.looked_up(&pod_socket(4_000), "api.shop.svc", 3_000, 2_000, "10.1.0.1");
    assert_rendered(&mut scene, "sandbox lookup api.shop.svc A+AAAA noerror 3000+2, 2 sent");
}

#[test]
fn musl_asks_all_servers_at_once_and_takes_the_first_answer() {
    let mut scene = Scene::used_sandbox();
    let one = pod_socket(4_000);
    let other = one.to("10.96.0.11:53");
    for socket in [one, other] {
        scene
            .at(3_000)
            .query(&socket, 7, "api", "A")
            .query(&socket, 8, "api", "AAAA");
    }
    scene.at(3_001).answer(&other, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    scene.at(3_002).answer(&one, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    scene.at(3_003).answer(&one, 8, "api", "AAAA", NOERROR, &[]);
    // The socket may be gone, and the lookup over.
    scene.at(3_500).answer(&other, 8, "api", "AAAA", NOERROR, &[]);
    assert_rendered(&mut scene, "sandbox lookup api A+AAAA noerror 3000+3, 4 sent");
}

#[test]
fn one_of_two_servers_queried_at_once_may_fail() {
    let mut scene = Scene::used_sandbox();
    let one = pod_socket(4_000);
    let other = one.to("10.96.0.11:53");
    scene.at(3_000).query(&one, 7, "api", "A").query(&other, 7, "api", "A");
    scene.at(3_001).answer(&one, 7, "api", "A", SERVFAIL, &[]);
    scene.at(3_400).answer(&other, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    assert_rendered(&mut scene, "sandbox lookup api A noerror 3000+400, 2 sent");
}

#[test]
fn go_asks_each_type_from_a_socket_of_its_own() {
    let mut scene = Scene::used_sandbox();
    let (a, aaaa) = (pod_socket(4_000), pod_socket(4_001));
    scene.at(3_000).query(&a, 7, "api", "A").query(&aaaa, 9, "api", "AAAA");
    scene.at(3_002).answer(&aaaa, 9, "api", "AAAA", NOERROR, &[]);
    scene.at(3_004).answer(&a, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    assert_rendered(&mut scene, "sandbox lookup api A+AAAA noerror 3000+4, 2 sent");
}

#[test]
fn one_type_after_the_other_is_one_lookup_too() {
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(4_000);
    scene.at(3_000).query(&socket, 7, "api", "A");
    scene.at(3_050).answer(&socket, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    scene.at(3_051).query(&socket, 8, "api", "AAAA");
    scene.at(3_090).answer(&socket, 8, "api", "AAAA", NOERROR, &[]);
    assert_rendered(&mut scene, "sandbox lookup api A+AAAA noerror 3000+90, 2 sent");
}

#[test]
fn a_silent_server_is_followed_by_the_next_one() {
    let mut scene = Scene::used_sandbox();
    let (first, second) = (pod_socket(4_000), pod_socket(4_001).to("10.96.0.11:53"));
    scene
        .at(3_000)
        .query(&first, 7, "api", "A")
        .query(&first, 8, "api", "AAAA");
    scene
        .at(8_000)
        .query(&second, 7, "api", "A")
        .query(&second, 8, "api", "AAAA");
    scene.at(8_001).answer(&second, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    scene.at(8_002).answer(&second, 8, "api", "AAAA", NOERROR, &[]);
    let expected = "sandbox lookup api A+AAAA noerror 3000+5002, 4 sent, 2 again, dns_server_silent (possible)";
    assert_rendered(&mut scene, expected);
}

#[test]
fn a_server_that_fails_is_followed_by_the_next_one() {
    let mut scene = Scene::used_sandbox();
    let (first, second) = (pod_socket(4_000), pod_socket(4_001).to("10.96.0.11:53"));
    scene.at(3_000).query(&first, 7, "api", "A");
    scene.at(3_001).answer(&first, 7, "api", "A", SERVFAIL, &[]);
    scene.at(3_001).query(&second, 7, "api", "A");
    scene.at(3_003).answer(&second, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    let expected = "sandbox lookup api A noerror 3000+3, 2 sent, 1 again, dns_server_error (certain)";
    assert_rendered(&mut scene, expected);
}

#[test]
fn glibc_asks_both_types_again_when_one_was_not_answered() {
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(4_000);
    scene
        .at(3_000)
        .query(&socket, 7, "api", "A")
        .query(&socket, 8, "api", "AAAA");
    scene.at(3_001).answer(&socket, 8, "api", "AAAA", NOERROR, &[]);
    scene.at(8_005).query(&socket, 7, "api", "A");
    scene.at(8_006).answer(&socket, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    scene.at(8_007).query(&socket, 8, "api", "AAAA");
    scene.at(8_008).answer(&socket, 8, "api", "AAAA", NOERROR, &[]);
    let expected = "sandbox lookup api A+AAAA noerror 3000+5008, 4 sent, 2 again, dns_server_silent (possible)";
    assert_rendered(&mut scene, expected);
}

#[test]
fn nobody_answers() {
    // glibc: two attempts, five seconds each.
    let mut scene = Scene::used_sandbox();
    for (at, port) in [(3_000, 4_000), (8_000, 4_001)] {
        let socket = pod_socket(port);
        scene
            .at(at)
            .query(&socket, 7, "api", "A")
            .query(&socket, 8, "api", "AAAA");
    }
    assert_rendered(
        &mut scene,
        "sandbox lookup api A+AAAA timeout 3000+10000, 4 sent, 2 again, 2 unanswered, dns_server_silent (possible)",
    );
    // musl: the same socket every 2.5 seconds, five seconds in all.
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(4_000);
    for at in [3_000, 5_500] {
        scene
            .at(at)
            .query(&socket, 7, "api", "A")
            .query(&socket, 8, "api", "AAAA");
    }
    assert_rendered(
        &mut scene,
        "sandbox lookup api A+AAAA timeout 3000+5000, 4 sent, 2 again, 2 unanswered, dns_server_silent (possible)",
    );
    // A program that sends one query.
    let mut scene = Scene::used_sandbox();
    scene.at(3_000).query(&socket, 7, "api", "A");
    let expected = "sandbox lookup api A timeout 3000+10000, 1 sent, 1 unanswered, dns_server_silent (possible)";
    assert_rendered(&mut scene, expected);
}

#[test]
fn a_query_that_was_never_repeated_was_not_waited_for() {
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(4_000);
    scene
        .at(3_000)
        .query(&socket, 7, "api", "A")
        .query(&socket, 8, "api", "AAAA");
    scene.at(3_002).answer(&socket, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    assert_rendered(
        &mut scene,
        "sandbox lookup api A+AAAA noerror 3000+2, 2 sent, 1 unanswered",
    );
}

#[test]
fn a_cut_answer_is_queried_again_over_tcp() {
    let cut = |scene: &mut Scene| {
        let (udp, tcp) = (pod_socket(4_000), pod_socket(4_001).tcp());
        scene.at(3_000).query(&udp, 7, "big", "TXT");
        scene.at(3_001).cut_answer(&udp, 7, "big", "TXT");
        scene.at(3_002).query(&tcp, 7, "big", "TXT");
        tcp
    };
    let mut scene = Scene::used_sandbox();
    let tcp = cut(&mut scene);
    scene.at(3_004).answer(&tcp, 7, "big", "TXT", NOERROR, &["10.1.0.1"]);
    let text = scene.clone().then_nothing().play().finish();
    assert_eq!(text.journeys(), "");
    assert_rendered(&mut scene, "sandbox lookup big TXT noerror 3000+4, 2 sent, 1 cut");

    let mut scene = Scene::used_sandbox();
    cut(&mut scene);
    assert_rendered(
        &mut scene,
        "sandbox lookup big TXT timeout 3000+10000, 2 sent, 1 unanswered, 1 cut, truncation (certain)",
    );
    // Some take what there is.
    let mut scene = Scene::used_sandbox();
    let udp = pod_socket(4_000);
    scene.at(3_000).query(&udp, 7, "big", "TXT");
    scene.at(3_001).cut_answer(&udp, 7, "big", "TXT");
    assert_rendered(&mut scene, "sandbox lookup big TXT noerror 3000+1, 1 sent, 1 cut");
}

const DOMAINS: [&str; 5] = [
    "shop.svc.cluster.local",
    "svc.cluster.local",
    "cluster.local",
    "corp.example",
    "lan",
];

/// The search path as resolvers walk it: each name from a socket of its own, both types.
fn searched(scene: &mut Scene, name: &str, last: u16, socket: impl Fn(u16) -> Socket) {
    let names = DOMAINS
        .iter()
        .map(|domain| format!("{name}.{domain}"))
        .chain([name.to_owned()]);
    for (number, name) in names.enumerate() {
        let port = number as u16;
        let (socket, at) = (socket(port), 3_000 + 2 * number as u64);
        let rcode = if number == DOMAINS.len() { last } else { NXDOMAIN };
        let addresses = if rcode == NOERROR { &["10.1.0.1"][..] } else { &[] };
        scene
            .at(at)
            .query(&socket, port, &name, "A")
            .query(&socket, 90 + port, &name, "AAAA");
        scene.at(at + 1).answer(&socket, 90 + port, &name, "AAAA", rcode, &[]);
        scene.answer(&socket, port, &name, "A", rcode, addresses);
    }
}

#[test]
fn the_names_of_the_search_path_are_one_lookup() {
    let expected = "sandbox lookup example.com A+AAAA noerror 3000+11, 12 sent, 5 search";
    let mut scene = Scene::used_sandbox();
    searched(&mut scene, "example.com", NOERROR, |number| pod_socket(4_000 + number));
    assert_rendered(&mut scene, expected);
    // One socket for all.
    let mut scene = Scene::used_sandbox();
    searched(&mut scene, "example.com", NOERROR, |_| pod_socket(4_000));
    assert_rendered(&mut scene, expected);
    // The process is not known.
    let mut scene = Scene::used_sandbox();
    searched(&mut scene, "example.com", NOERROR, |number| {
        pod_socket(4_000 + number).of_nobody()
    });
    assert_rendered(&mut scene, expected);
    // There is no such name: that is an answer, and nothing bad.
    let mut scene = Scene::used_sandbox();
    searched(&mut scene, "example.com", NXDOMAIN, |number| pod_socket(4_000 + number));
    assert_eq!(scene.clone().then_nothing().play().finish().journeys(), "");
    assert_rendered(
        &mut scene,
        "sandbox lookup example.com A+AAAA nxdomain 3000+11, 12 sent, 5 search",
    );
}

#[test]
fn another_name_a_moment_later_is_another_lookup() {
    let mut scene = Scene::used_sandbox();
    for (at, port, name) in [(3_000, 1, "www.a.example"), (3_200, 2, "www.b.example")] {
        let socket = pod_socket(4_000 + port);
        scene.at(at).query(&socket, port, name, "A");
        scene.at(at + 1).answer(&socket, port, name, "A", NXDOMAIN, &[]);
    }
    assert_rendered(
        &mut scene,
        "sandbox lookup www.a.example A nxdomain 3000+1, 1 sent
sandbox lookup www.b.example A nxdomain 3200+1, 1 sent",
    );
}

#[test]
fn the_same_name_again_is_a_new_lookup() {
    let mut scene = Scene::used_sandbox();
    scene.looked_up(&pod_socket(4_000), "api", 3_000, 2_000, "10.1.0.1");
    scene.looked_up(&pod_socket(4_001), "api", 3_010, 2_000, "10.1.0.1");
    scene.looked_up(&pod_socket(4_001), "api", 3_020, 2_000, "10.1.0.1");
    assert_rendered(
        &mut scene,
        "sandbox lookup api A+AAAA noerror 3000+2, 2 sent
sandbox lookup api A+AAAA noerror 3010+2, 2 sent
sandbox lookup api A+AAAA noerror 3020+2, 2 sent",
    );
}

#[test]
fn threads_of_one_process_that_ask_the_same_at_once_have_lookups_of_their_own() {
    let mut scene = Scene::used_sandbox();
    let (one, other) = (pod_socket(4_000), pod_socket(4_001));
    scene.at_us(3_000_000).query(&one, 1, "api", "A");
    scene.at_us(3_000_010).query(&other, 2, "api", "A");
    scene.at_us(3_000_020).query(&one, 3, "api", "AAAA");
    scene.at_us(3_000_030).query(&other, 4, "api", "AAAA");
    scene
        .at(3_001)
        .answer(&one, 3, "api", "AAAA", NOERROR, &[])
        .answer(&other, 4, "api", "AAAA", NOERROR, &[]);
    scene.at(3_002).answer(&other, 2, "api", "A", NOERROR, &["10.1.0.1"]);
    scene.at(3_003).answer(&one, 1, "api", "A", NOERROR, &["10.1.0.1"]);
    assert_rendered(
        &mut scene,
        "sandbox lookup api A+AAAA noerror 3000.01+1.99, 2 sent
sandbox lookup api A+AAAA noerror 3000+3, 2 sent",
    );
}

#[test]
fn a_resolver_for_others_asks_many_names_from_one_socket() {
    let mut scene = Scene::used_sandbox();
    let socket = pod_socket(4_000);
    let names = ["www.a.example", "www.b.example", "api.a.example", "www"];
    for (number, name) in names.iter().enumerate() {
        scene
            .at_us(3_000_000 + number as u64)
            .query(&socket, number as u16, name, "A");
    }
    for (number, name) in names.iter().enumerate().rev() {
        let rcode = if number == 3 { NXDOMAIN } else { NOERROR };
        let at = 3_010 + 10 * number as u64;
        scene.at(at).answer(
            &socket,
            number as u16,
            name,
            "A",
            rcode,
            &["10.1.0.1"][..usize::from(rcode == NOERROR)],
        );
    }
    scene.events.sort_by_key(|event| event.at);
    // An answer like those of the search path, while others are waited for.
    scene.at(3_041).query(&socket, 20, "www.c.example", "A");
    scene.at(3_042).answer(&socket, 20, "www.c.example", "A", NXDOMAIN, &[]);
    scene.at(3_043).query(&socket, 21, "www.d.example", "A");
    scene
        .at(3_044)
        .answer(&socket, 21, "www.d.example", "A", NOERROR, &["10.1.0.2"]);
    assert_rendered(
        &mut scene,
        "sandbox lookup www.a.example A noerror 3000+10, 1 sent
sandbox lookup www.b.example A noerror 3000.001+19.999, 1 sent
sandbox lookup api.a.example A noerror 3000.002+29.998, 1 sent
sandbox lookup www A nxdomain 3000.003+39.997, 1 sent
sandbox lookup www.c.example A nxdomain 3041+1, 1 sent
sandbox lookup www.d.example A noerror 3043+1, 1 sent",
    );
}

#[test]
fn an_answer_to_what_was_answered_already_is_late() {
    let mut scene = Scene::used_sandbox();
    let (socket, again) = (pod_socket(4_000), pod_socket(4_001));
    scene.at(3_000).query(&socket, 7, "api", "A");
    scene.at(8_000).query(&again, 9, "api", "A");
    scene.at(8_001).answer(&again, 9, "api", "A", NOERROR, &["10.1.0.1"]);
    scene.at(8_050).answer(&socket, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    scene.at(9_000).answer(&socket, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    let played = scene.clone().then_nothing().play().finish();
    assert!(
        played.journeys().contains("late answer A noerror 7"),
        "{}",
        played.journeys()
    );
    let expected = "sandbox lookup api A noerror 3000+5001, 2 sent, 1 again, dns_server_slow (likely)";
    assert_rendered(&mut scene, expected);
}

#[test]
fn a_response_without_a_query_is_no_answer_but_counted() {
    let mut scene = Scene::used_sandbox();
    // Without the socket's cookie only the addresses match an answer to its query.
    let socket = Socket {
        cookie: 0,
        ..pod_socket(4_000)
    };
    scene.at(3_000).query(&socket, 7, "api", "A");
    scene.at(3_001).answer(&socket, 99, "api", "A", NOERROR, &["6.6.6.6"]);
    scene
        .at(3_002)
        .answer(&socket.to("10.9.9.9:53"), 7, "api", "A", NOERROR, &["6.6.6.6"]);
    scene.at(3_003).answer(&socket, 7, "other", "A", NOERROR, &["6.6.6.6"]);
    // Nothing at all.
    scene
        .at(3_004)
        .answer(&pod_socket(4_009), 7, "api", "A", NOERROR, &["6.6.6.6"]);
    let played = scene.then_nothing().play().finish();
    assert_eq!(played.counters().orphan, 2);
    let journeys = played.journeys();
    assert!(
        journeys.contains("stray answer 10.96.0.10 99, stray answer 10.9.9.9 7"),
        "{journeys}"
    );
    assert!(!journeys.contains("6.6.6.6"), "{journeys}");
    assert!(
        rendered(&played).contains("api A timeout 3000+10000, 1 sent, 1 unanswered"),
        "{}",
        rendered(&played)
    );
}
