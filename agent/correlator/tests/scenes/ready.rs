//! Network readiness: what belongs to a sandbox's trace after its creation, and where the trace ends.

use sandglass_correlator::Output;
use sandglass_model::event::SandboxDescription;
use sandglass_model::network::{ConnectFailure, Step};
use sandglass_model::time::MILLISECOND;
use sandglass_model::trace::SandboxDetail;
use sandglass_model::{Body, Detail, Event, PodIdentity, SandboxId, Timestamp, Trace};

use crate::scene::{Played, Scene, add, assert_text, del, of_pod};
use crate::wire::{NODE, NOERROR, NXDOMAIN, POD, pod_socket, rendered};

fn created(played: &Played) -> usize {
    let created = played
        .outputs
        .iter()
        .filter(|output| matches!(output, Output::Created(_)));
    created.count()
}

#[test]
fn the_trace_goes_on_to_the_first_answer_and_the_first_connection() {
    let mut scene = Scene::ready_sandbox();
    let (client, connects) = (pod_socket(4_000), pod_socket(5_000).tcp().to("10.1.0.1:80"));
    scene.looked_up(&client, "api.shop.svc", 300, 2_000, "10.1.0.1");
    scene.at(303).connects(&connects);
    scene.at(305).established(&connects);
    scene.then_nothing();
    let played = scene.play().finish();
    assert_eq!(created(&played), 1);
    assert_text(
        &played.text(),
        "
sandbox              +0 ns 305 ms  [shop/cart, sb, containerd, network ready]
  sandbox.create     +0 ns 180 ms  [to runtime start]
    cni ADD          +0 ns 100 ms  [eth0]
      plugin bridge  +0 ns 100 ms
    runtime shim   +110 ms 10.0 ms
    runtime create +130 ms 30.0 ms
    runtime start  +170 ms 10.0 ms
  lookup           +300 ms 2.00 ms [api.shop.svc, A+AAAA, at 10.96.0.10:53, noerror]
  connect          +303 ms 2.00 ms [to 10.1.0.1:80, api.shop.svc]
",
    );
    let Detail::Sandbox(sandbox) = &played.only().root().detail else {
        panic!("a sandbox");
    };
    assert_eq!(sandbox.first_attempt, Some(Timestamp(300 * MILLISECOND)));
    assert_eq!(sandbox.network_ready, Some(Timestamp(305 * MILLISECOND)));
    let rendered: Vec<_> = played.findings_in(Some(played.only().id)).collect();
    assert_eq!(rendered.len(), 2);
}

#[test]
fn a_sandbox_that_sends_nothing_ends_where_its_creation_did() {
    let mut scene = Scene::ready_sandbox();
    let silent = scene.then_nothing().play().finish();
    assert_text(
        &silent.text(),
        "
sandbox              +0 ns 180 ms  [shop/cart, sb, containerd, sent nothing]
  sandbox.create     +0 ns 180 ms  [to runtime start]
    cni ADD          +0 ns 100 ms  [eth0]
      plugin bridge  +0 ns 100 ms
    runtime shim   +110 ms 10.0 ms
    runtime create +130 ms 30.0 ms
    runtime start  +170 ms 10.0 ms
",
    );
    let deadline = Timestamp((180 + 30_000) * MILLISECOND);
    let mut open = Scene::ready_sandbox();
    let open = open.set_now(deadline.0 - 1).tick().play();
    assert_eq!((open.closed.len(), created(&open)), (0, 1));
    assert_eq!(open.correlator.next_deadline(), Some(deadline));
}

#[test]
fn failed_attempts_before_are_part_of_it() {
    let mut scene = Scene::ready_sandbox();
    let connect = pod_socket(5_000).tcp().to("10.1.0.1:80");
    scene.at(300).connects(&connect);
    scene.at(301).connect_failed(&connect, ConnectFailure::Refused, 0);
    let again = pod_socket(5_001).tcp().to("10.1.0.1:80");
    scene.at(1_300).connects(&again);
    scene.at(1_302).established(&again);
    scene.then_nothing();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox              +0 ns 1.30 s  [shop/cart, sb, containerd, network ready]
  sandbox.create     +0 ns 180 ms  [to runtime start]
    cni ADD          +0 ns 100 ms  [eth0]
      plugin bridge  +0 ns 100 ms
    runtime shim   +110 ms 10.0 ms
    runtime create +130 ms 30.0 ms
    runtime start  +170 ms 10.0 ms
  connect          +300 ms 1.00 ms [to 10.1.0.1:80, cause connect_refused (certain), error connect_refused: connect to 10.1.0.1:80: refused]
  connect          +1.30 s 2.00 ms [to 10.1.0.1:80]
",
    );
}

/// When the network was ready and first tried, and how long the root is, in milliseconds; of the only closed trace.
fn times(played: &Played) -> (Option<u64>, Option<u64>, u64) {
    let trace = played
        .closed
        .iter()
        .find(|trace| matches!(trace.root().detail, Detail::Sandbox(_)));
    let root = trace.expect("a closed sandbox").root();
    let sandbox = match &root.detail {
        Detail::Sandbox(sandbox) => sandbox.as_ref().clone(),
        _ => SandboxDetail::default(),
    };
    let ms = |at: Timestamp| at.0 / MILLISECOND;
    (
        sandbox.network_ready.map(ms),
        sandbox.first_attempt.map(ms),
        root.duration_ns(Timestamp(0)) / MILLISECOND,
    )
}

/// Names of the root's children, but for the creation itself.
fn attempts(trace: &Trace) -> Vec<String> {
    let children = trace.spans.iter().filter(|span| span.parent == Some(0));
    children.skip(1).map(sandglass_model::registry::name).collect()
}

#[test]
fn a_lookup_alone_suffices_after_a_moment() {
    let mut scene = Scene::ready_sandbox();
    scene.looked_up(&pod_socket(4_000), "api", 300, 2_000, "10.1.0.1");
    assert_eq!(scene.clone().at(1_301).tick().play().closed.len(), 0);
    let played = scene.at(1_302).tick().play();
    assert_eq!(times(&played), (Some(302), Some(300), 302));
    // No such name: an answer.
    let mut scene = Scene::ready_sandbox();
    scene.at(300).query(&pod_socket(4_000), 7, "nope", "A");
    scene.at(303).answer(&pod_socket(4_000), 7, "nope", "A", NXDOMAIN, &[]);
    assert_eq!(times(&scene.at(1_303).tick().play()), (Some(303), Some(300), 303));
}

#[test]
fn a_connection_alone_suffices_and_a_lookup_begun_soon_after_counts_too() {
    let mut scene = Scene::ready_sandbox();
    let connect = pod_socket(5_000).tcp().to("10.1.0.1:80");
    scene.at(300).connects(&connect);
    scene.at(302).established(&connect);
    assert_eq!(times(&scene.clone().then_nothing().play()), (Some(302), Some(300), 302));
    scene.looked_up(&pod_socket(4_000), "api", 1_200, 400_000, "10.1.0.1");
    assert_eq!(times(&scene.then_nothing().play()), (Some(1_600), Some(300), 1_600));
}

#[test]
fn a_connection_begun_soon_after_the_answer_is_waited_for() {
    let mut scene = Scene::ready_sandbox();
    let connect = pod_socket(5_000).tcp().to("10.1.0.1:80");
    scene.looked_up(&pod_socket(4_000), "api", 300, 2_000, "10.1.0.1");
    scene.at(303).connects(&connect);
    let open = scene.clone().at(5_000).tick().play();
    assert!(
        open.text()
            .ends_with("+303 ms  4.70 s+  [to 10.1.0.1:80, api, running]\n"),
        "{}",
        open.text()
    );
    let mut stands = scene.clone();
    stands.at(7_303).step(&connect, Step::Established, 3);
    assert_eq!(times(&stands.then_nothing().play()), (Some(7_303), Some(300), 7_303));
    // It comes to nothing: the answer alone decides, and the failure is a journey of its own.
    let mut fails = scene.clone();
    fails.at(7_303).connect_failed(&connect, ConnectFailure::TimedOut, 3);
    let played = fails.then_nothing().play().finish();
    assert_eq!(times(&played), (Some(302), Some(300), 302));
    assert_eq!(attempts(&played.closed[0]), ["lookup"]);
    assert_text(
        &played.journeys(),
        "
journey   +0 ns    7.00 s  [shop/cart, sb, failed, error connect_timeout: connect to 10.1.0.1:80 (api): no answer]
  lookup  +0 ns    2.00 ms [api, A+AAAA, at 10.96.0.10:53, noerror]
  connect +3.00 ms 7.00 s  [to 10.1.0.1:80, api, 3 SYNs sent again, cause connect_silent (possible), error connect_timeout: connect to 10.1.0.1:80 (api): no answer]
",
    );
    // Nobody says how it ends: the deadline does.
    let played = scene.at(180 + 30_000).tick().play();
    assert_eq!(times(&played), (Some(302), Some(300), 302));
}

#[test]
fn a_connection_begun_later_is_none_of_it() {
    let mut scene = Scene::ready_sandbox();
    scene.looked_up(&pod_socket(4_000), "api", 300, 2_000, "10.1.0.1");
    let connect = pod_socket(5_000).tcp().to("10.1.0.1:80");
    scene.at(1_400).connects(&connect);
    scene.at(1_402).established(&connect);
    let played = scene.then_nothing().play().finish();
    assert_eq!(times(&played), (Some(302), Some(300), 302));
    assert_eq!(attempts(played.only()), ["lookup"]);
}

#[test]
fn a_first_failure_after_the_answer_does_not_hide_the_connection_that_follows() {
    let mut scene = Scene::ready_sandbox();
    scene.looked_up(&pod_socket(4_000), "api", 300, 2_000, "10.1.0.1");
    let (first, second) = (
        pod_socket(5_000).tcp().to("10.1.0.1:80"),
        pod_socket(5_001).tcp().to("10.1.0.1:80"),
    );
    scene.at(303).connects(&first);
    scene.at(304).connect_failed(&first, ConnectFailure::Refused, 0);
    scene.at(800).connects(&second);
    scene.at(801).established(&second);
    let played = scene.then_nothing().play().finish();
    assert_eq!(times(&played), (Some(801), Some(300), 801));
    assert_eq!(attempts(played.only()), ["lookup", "connect", "connect"]);
    assert_eq!(played.findings_in(Some(played.only().id)).count(), 3);
}

#[test]
fn when_nothing_works_the_trace_ends_with_the_last_attempt() {
    let mut scene = Scene::ready_sandbox();
    for at in [400, 10_400, 20_000] {
        let socket = pod_socket(4_000 + (at / 100) as u16);
        scene.at(at).query(&socket, 7, "api", "A");
    }
    let played = scene.clone().then_nothing().play().finish();
    // Repeated within its timeout, the last query is the second lookup's.
    assert_eq!(times(&played), (None, Some(400), 20_400));
    assert_eq!(attempts(played.only()), ["lookup", "lookup"]);
    assert!(!played.only().root().status.is_error() && !played.only().incomplete);
    // One is still open at the deadline: it is cut there, and continues as traffic.
    let late = pod_socket(4_999);
    scene.at(30_100).query(&late, 7, "web", "A");
    let played = scene.then_nothing().play().finish();
    assert_eq!(times(&played), (None, Some(400), 30_180));
    let sandbox = &played.closed[0];
    let Some(Detail::Lookup(cut)) = sandbox.spans.last().map(|span| &span.detail) else {
        panic!("a lookup");
    };
    assert_eq!((cut.name.as_str(), cut.result), ("web", None));
    assert!(
        played
            .journeys()
            .starts_with("journey   +0 ns  10.0 s  [shop/cart, sb, failed"),
        "{}",
        played.journeys()
    );
    assert_eq!(played.findings_in(Some(sandbox.id)).count(), 2);
    assert_eq!(played.findings_in(Some(played.closed[1].id)).count(), 1);
}

#[test]
fn what_is_still_open_when_the_network_is_ready_is_cut_there_and_goes_on() {
    let mut scene = Scene::ready_sandbox();
    let (stalls, works) = (pod_socket(4_000).of(60), pod_socket(4_001));
    scene.at(290).query(&stalls, 7, "slow", "A");
    scene.looked_up(&works, "api", 300, 2_000, "10.1.0.1");
    scene.at(5_290).query(&stalls, 7, "slow", "A");
    scene.at(5_292).answer(&stalls, 7, "slow", "A", NOERROR, &["10.1.0.2"]);
    let played = scene.then_nothing().play().finish();
    assert_eq!(times(&played), (Some(302), Some(290), 302));
    assert_eq!(attempts(&played.closed[0]), ["lookup", "lookup"]);
    let cut = &played.closed[0].spans[played.closed[0].spans.len() - 2];
    assert_eq!(cut.end, Some(Timestamp(302 * MILLISECOND)));
    assert!(
        played.journeys().contains("+0 ns  5.00 s  [slow, A"),
        "{}",
        played.journeys()
    );
}

#[test]
fn the_removal_of_a_sandbox_ends_the_wait() {
    let mut scene = Scene::ready_sandbox();
    let plugin = scene.at(900).plugin("bridge", &del("sb", "eth0"));
    scene.at(950).exit(plugin, 0);
    let played = scene.at(960).tick().play();
    assert_eq!(times(&played), (None, None, 180));
    assert!(!played.closed[0].incomplete);
    assert!(!played.text().contains("sent nothing"), "it had no time to");
    // With an answer it was ready.
    let mut scene = Scene::ready_sandbox();
    scene.looked_up(&pod_socket(4_000), "api", 300, 2_000, "10.1.0.1");
    scene.at(310).query(&pod_socket(4_001), 9, "web", "A");
    scene.at(500).plugin("bridge", &del("sb", "eth0"));
    let played = scene.at(501).tick().play();
    assert_eq!(times(&played), (Some(302), Some(300), 302));
    assert_eq!(attempts(&played.closed[0]), ["lookup"]);
}

/// A short pod: what might follow an answer cannot any more. What has no answer yet, and a name that was not found, of which the search
/// path may have another form, have no result.
#[test]
fn what_was_answered_just_before_the_removal_has_its_result() {
    let mut answered = Scene::ready_sandbox();
    answered.looked_up(&pod_socket(4_000), "api.shop.svc", 300, 2_000, "10.1.0.1");
    let pid = answered.at(310).plugin("bridge", &del("sb", "eth0"));
    answered.at(330).exit(pid, 0);
    let played = answered.then_nothing().play().finish();
    assert_eq!(times(&played), (Some(302), Some(300), 302));
    assert!(
        played
            .text()
            .contains("[api.shop.svc, A+AAAA, at 10.96.0.10:53, noerror]"),
        "{}",
        played.text()
    );
    let mut connected = Scene::ready_sandbox();
    let connect = pod_socket(5_000).tcp().to("10.1.0.1:80");
    connected.at(303).connects(&connect);
    connected.at(305).established(&connect);
    let pid = connected.at(306).plugin("bridge", &del("sb", "eth0"));
    connected.at(330).exit(pid, 0);
    let played = connected.then_nothing().play().finish();
    assert_eq!(times(&played), (Some(305), Some(303), 305));
    for rcode in [None, Some(NXDOMAIN)] {
        let mut open = Scene::ready_sandbox();
        let client = pod_socket(4_000);
        open.at(300).query(&client, 7, "api.shop.svc", "A");
        if let Some(rcode) = rcode {
            open.at(302).answer(&client, 7, "api.shop.svc", "A", rcode, &[]);
        }
        let pid = open.at(310).plugin("bridge", &del("sb", "eth0"));
        open.at(330).exit(pid, 0);
        let played = open.then_nothing().play().finish();
        assert_eq!(times(&played), (None, Some(300), 310), "{rcode:?}");
    }
}

#[test]
fn a_creation_that_failed_waits_for_nothing() {
    let mut scene = Scene::new();
    scene.at(0).watched();
    let plugin = scene.plugin("bridge", &add("sb", "eth0"));
    scene.at(1).netns_of("sb", POD);
    scene.at(5).query(&pod_socket(4_000), 7, "api", "A");
    scene.at(10).exit(plugin, 1);
    let played = scene.at(1_000).tick().play();
    assert_eq!((created(&played), played.closed.len()), (1, 1));
    assert!(played.only().root().status.is_error());
    assert_eq!(attempts(played.only()), ["lookup"]);
}

#[test]
fn where_nobody_watches_or_the_namespace_is_not_known_the_creation_is_all() {
    let mut unwatched = Scene::new();
    unwatched.made("sb", "cart", POD, 0);
    let played = unwatched.at(190).tick().play();
    assert_eq!((created(&played), times(&played)), (1, (None, None, 180)));

    let mut unknown = Scene::new();
    unknown.at(0).watched();
    let plugin = unknown.plugin("bridge", &add("sb", "eth0"));
    unknown.at(100).exit(plugin, 0);
    unknown.containerd_starts("sb", 110);
    let played = unknown.at(190).tick().play();
    assert_eq!((created(&played), times(&played)), (1, (None, None, 180)));
}

#[test]
fn traffic_before_the_creation_is_over_counts_too() {
    let mut scene = Scene::new();
    scene.at(0).watched();
    let plugin = scene.plugin("bridge", &of_pod(add("sb", "eth0"), "cart"));
    scene.at(1).netns_of("sb", POD);
    scene.looked_up(&pod_socket(4_000), "api", 50, 2_000, "10.1.0.1");
    scene.at(100).exit(plugin, 0);
    scene.containerd_starts("sb", 110);
    let played = scene.at(1_300).tick().play().finish();
    assert_eq!(times(&played), (Some(52), Some(50), 180));
}

#[test]
fn the_end_of_the_input_leaves_nothing_out() {
    let mut scene = Scene::ready_sandbox();
    let played = scene.clone().play().finish();
    assert_eq!(times(&played), (None, None, 180));
    assert!(!played.only().incomplete);
    scene.looked_up(&pod_socket(4_000), "api", 300, 2_000, "10.1.0.1");
    let played = scene.clone().play().finish();
    assert_eq!(times(&played), (Some(302), Some(300), 302));
    assert!(!played.only().incomplete);
    scene.at(310).connects(&pod_socket(5_000).tcp().to("10.1.0.1:80"));
    assert!(scene.play().finish().only().incomplete);
}

#[test]
fn lost_records_of_traffic_concern_only_what_waits_for_traffic() {
    let lost = |probe: &str| {
        let mut scene = Scene::ready_sandbox();
        let running = scene.at(300).plugin("bridge", &del("other", "eth0"));
        scene.at(400).event(Body::Lost {
            probe: probe.to_owned(),
            count: 1,
        });
        scene.at(500).exit(running, 0);
        let played = scene.then_nothing().play().finish();
        played.closed.iter().map(|trace| trace.incomplete).collect::<Vec<_>>()
    };
    // The removal, then the sandbox.
    assert_eq!(lost("exec"), [true, false]);
    for probe in ["dns", "connect", "conntrack", "drops"] {
        assert_eq!(lost(probe), [false, true], "{probe}");
    }
}

#[test]
fn limited_records_concern_only_their_owner() {
    let limited = |netns, source: Option<[u8; 4]>| {
        let mut scene = Scene::ready_sandbox();
        let running = scene.at(300).plugin("bridge", &del("other", "eth0"));
        scene.at(350).query(&pod_socket(4_000), 7, "api", "A");
        scene.at(400).event(Body::Limited {
            probe: "drops".to_owned(),
            netns,
            source: source.map(Into::into),
        });
        scene.at(500).exit(running, 0);
        let played = scene.then_nothing().play().finish();
        // The removal, then the sandbox.
        let traces = played.closed.iter().take(2);
        traces.map(|trace| trace.incomplete).collect::<Vec<_>>()
    };
    assert_eq!(limited(POD, None), [false, true]);
    assert_eq!(
        limited(NODE, Some([10, 88, 0, 5])),
        [false, true],
        "by the sender's address"
    );
    assert_eq!(limited(0, None), [false, true], "everybody's");
    assert_eq!(limited(NODE, Some([10, 88, 0, 6])), [false, false]);
    assert_eq!(limited(4_711, None), [false, false]);
}

#[test]
fn more_attempts_than_can_be_shown_are_counted_and_still_decide() {
    let mut scene = Scene::ready_sandbox();
    for number in 0..100 {
        let socket = pod_socket(5_000 + number).tcp().to("10.1.0.1:80");
        scene
            .at(300 + u64::from(number))
            .connects(&socket)
            .connect_failed(&socket, ConnectFailure::Refused, 0);
    }
    scene.looked_up(&pod_socket(4_000), "api", 500, 2_000, "10.1.0.1");
    let played = scene.then_nothing().play().finish();
    assert_eq!(times(&played), (Some(502), Some(300), 502));
    // The first ones, and the one that decided.
    let shown = attempts(played.only());
    assert_eq!((shown.len(), shown[64].as_str()), (65, "lookup"));
    assert!(!played.only().incomplete, "nothing was lost");
    assert_eq!((left_out(&played), played.counters().evicted_spans), (36, 0));
    assert!(played.text().contains(", 36 attempts not shown"), "{}", played.text());
    assert_eq!(played.findings_in(Some(played.only().id)).count(), 101);
    assert_eq!(played.only().check(), Ok(()));
}

fn left_out(played: &Played) -> u32 {
    match &played.only().root().detail {
        Detail::Sandbox(sandbox) => sandbox.attempts_left_out,
        _ => 0,
    }
}

/// It tries on while it is waited whether a connection follows the answer: those attempts are none of the creation's.
#[test]
fn attempts_that_are_not_shown_count_only_when_they_began_before_the_network_was_ready() {
    let mut scene = Scene::ready_sandbox();
    let refused = |scene: &mut Scene, from: u16, at: u64| {
        for number in from..from + 70 {
            let socket = pod_socket(5_000 + number).tcp().to("10.1.0.1:80");
            scene
                .at(at + u64::from(number))
                .connects(&socket)
                .connect_failed(&socket, ConnectFailure::Refused, 0);
        }
    };
    refused(&mut scene, 0, 300);
    scene.looked_up(&pod_socket(4_000), "api", 500, 2_000, "10.1.0.1");
    refused(&mut scene, 70, 510);
    let played = scene.then_nothing().play().finish();
    assert_eq!(times(&played), (Some(502), Some(300), 502));
    assert_eq!((attempts(played.only()).len(), left_out(&played)), (65, 6));
}

#[test]
fn what_the_runtime_reports_and_does_meanwhile_finds_its_place() {
    let mut scene = Scene::ready_sandbox();
    scene.at(300).described(SandboxDescription {
        sandbox: SandboxId("sb".to_owned()),
        identity: PodIdentity {
            labels: [("app".to_owned(), "cart".to_owned())].into_iter().collect(),
            ..PodIdentity::default()
        },
        created_unix_ns: 0,
        ready: true,
        preexisting: false,
    });
    scene.ran("macvlan", &add("sb", "net1"), 400, 410);
    let played = scene.then_nothing().play().finish();
    let [single, sandbox] = &played.closed[..] else {
        panic!("two traces:\n{}", played.text());
    };
    assert!(matches!(single.root().detail, Detail::Operation(_)));
    assert_eq!(single.root().links[0].trace, sandbox.id);
    assert_eq!(sandbox.identity.labels.len(), 1);
    assert_eq!(times(&played), (None, None, 180));
}

#[test]
fn what_was_being_created_when_watching_began_is_waited_for() {
    let mut scene = Scene::new();
    let plugin = scene.at(0).plugin("bridge", &of_pod(add("sb", "eth0"), "cart"));
    scene.at(1).netns_of("sb", POD);
    scene.at(50).watched();
    scene.at(100).exit(plugin, 0);
    scene.containerd_starts("sb", 110);
    scene.looked_up(&pod_socket(4_000), "api.shop.svc", 300, 2_000, "10.1.0.1");
    scene.then_nothing();
    let played = scene.play().finish();
    let Detail::Sandbox(sandbox) = &played.only().root().detail else {
        panic!("a sandbox");
    };
    assert_eq!(sandbox.network_ready, Some(Timestamp(302 * MILLISECOND)));
}

/// The records of a scene's connects, as they come a second time.
fn steps_of(scene: &Scene) -> Vec<Event> {
    let steps = scene
        .events
        .iter()
        .filter(|event| matches!(event.body, Body::ConnectSeen(_)));
    steps.cloned().collect()
}

#[test]
fn steps_that_are_reported_again_after_a_del_ended_the_connect_change_nothing() {
    for (end, expected) in [
        (Step::Established, "sandbox connect 10.1.0.9:80  established 300+2\n"),
        (
            Step::Failed(ConnectFailure::Refused),
            "sandbox connect 10.1.0.9:80  refused 300+2, connect_refused (certain)\n",
        ),
    ] {
        let mut scene = Scene::ready_sandbox();
        let socket = pod_socket(5_000).tcp().to("10.1.0.9:80");
        scene.at(300).connects(&socket);
        scene.at(302).step(&socket, end, 0);
        let again = steps_of(&scene);
        let plugin = scene.at(310).plugin("bridge", &del("sb", "eth0"));
        scene.events.extend(again);
        scene.at(330).exit(plugin, 0);
        let played = scene.then_nothing().play().finish();
        assert_eq!((rendered(&played).as_str(), played.counters().orphan), (expected, 0));
    }
}

#[test]
fn steps_that_are_reported_again_after_the_socket_began_again_are_none_of_the_next_connect() {
    let mut scene = Scene::ready_sandbox();
    let socket = pod_socket(5_000).tcp().to("10.1.0.9:80");
    scene.at(300).connects(&socket);
    scene.at(302).connect_failed(&socket, ConnectFailure::Refused, 0);
    let again = steps_of(&scene);
    scene.at(303).connects(&socket);
    scene.events.extend(again);
    scene.at(306).established(&socket);
    let played = scene.then_nothing().play().finish();
    let expected = "sandbox connect 10.1.0.9:80  refused 300+2, connect_refused (certain)
sandbox connect 10.1.0.9:80  established 303+3
";
    assert_eq!((rendered(&played).as_str(), played.counters().orphan), (expected, 0));
}
