//! The owner of a namespace, reported only after the first lookup or connect in it has begun.

use sandglass_model::event::{Netns, PluginIo, SandboxDescription};
use sandglass_model::network::ConnectFailure;
use sandglass_model::time::MILLISECOND;
use sandglass_model::trace::SandboxDetail;
use sandglass_model::{Body, Detail, PodIdentity, SandboxId, Timestamp, Trace};

use crate::scene::{Played, Scene, add, of_pod};
use crate::wire::{NOERROR, POD, Socket, pod_socket, rendered};

/// A sandbox is made from 0 to 180 ms, `meanwhile` something happens in a namespace without an owner.
fn made_while(meanwhile: impl FnOnce(&mut Scene)) -> Played {
    let mut scene = Scene::new();
    scene.at(0).watched();
    let plugin = scene.plugin("bridge", &of_pod(add("sb", "eth0"), "cart"));
    meanwhile(&mut scene);
    scene.at(100).exit(plugin, 0);
    scene.containerd_starts("sb", 110);
    scene.then_nothing().play().finish()
}

fn named_at(scene: &mut Scene, ms: u64, created: Option<u64>) {
    scene.at(ms).event(Body::NetnsObserved(Box::new(Netns {
        sandbox: SandboxId("sb".to_owned()),
        path: String::new(),
        inode: POD,
        created: created.map(|ms| Timestamp(ms * MILLISECOND)),
        there: None,
    })));
}

fn ready(trace: &Trace) -> (Option<u64>, Option<u64>, Vec<String>) {
    let sandbox = match &trace.root().detail {
        Detail::Sandbox(sandbox) => sandbox.as_ref().clone(),
        _ => SandboxDetail::default(),
    };
    let ms = |at: Timestamp| at.0 / MILLISECOND;
    let children = trace.spans.iter().filter(|span| span.parent == Some(0));
    (
        sandbox.first_attempt.map(ms),
        sandbox.network_ready.map(ms),
        children.skip(1).map(sandglass_model::registry::name).collect(),
    )
}

fn sandbox(played: &Played) -> &Trace {
    let mut closed = played.closed.iter();
    let found = closed.find(|trace| matches!(trace.root().detail, Detail::Sandbox(_)));
    found.expect("a closed sandbox")
}

#[test]
fn what_is_open_when_the_namespace_is_named_is_its_sandboxes() {
    let (client, connects) = (pod_socket(4_000), pod_socket(5_000).tcp().to("10.1.0.1:80"));
    let played = made_while(|scene| {
        scene.at(50).query(&client, 7, "api", "A");
        scene.at(55).connects(&connects);
        named_at(scene, 60, None);
        scene.at(70).answer(&client, 7, "api", "A", NOERROR, &["10.1.0.1"]);
        scene.at(80).established(&connects);
    });
    let (first, usable, attempts) = ready(sandbox(&played));
    assert_eq!((first, usable), (Some(50), Some(80)));
    assert_eq!(attempts, ["lookup", "connect"]);
    let rendered = rendered(&played);
    assert!(!rendered.contains("node "), "{rendered}");
    assert_eq!(played.findings_in(Some(sandbox(&played).id)).count(), 2);
    assert_eq!(sandbox(&played).check(), Ok(()));
}

#[test]
fn it_is_shown_at_once_not_only_at_its_end() {
    let mut scene = Scene::new();
    scene.at(0).watched();
    scene.plugin("bridge", &of_pod(add("sb", "eth0"), "cart"));
    scene.at(50).query(&pod_socket(4_000), 7, "api", "A");
    named_at(&mut scene, 60, None);
    let text = scene.at(70).tick().play().text();
    assert!(text.contains("lookup"), "{text}");
}

#[test]
fn what_ended_before_stays_the_nodes() {
    let client = pod_socket(4_000);
    let played = made_while(|scene| {
        scene.at(50).query(&client, 7, "api", "A");
        scene.at(52).answer(&client, 7, "api", "A", NOERROR, &["10.1.0.1"]);
        // Over for good once no name of a search path followed.
        scene.at(200).tick();
        named_at(scene, 210, None);
    });
    assert!(
        rendered(&played).starts_with("node lookup api A noerror"),
        "{}",
        rendered(&played)
    );
    assert_eq!(ready(sandbox(&played)), (None, None, Vec::new()));
}

#[test]
fn a_lookup_that_is_older_than_the_namespace_was_anothers() {
    let client = pod_socket(4_000);
    let played = made_while(|scene| {
        scene.at(50).query(&client, 7, "api", "A");
        named_at(scene, 60, Some(55));
        scene.at(70).answer(&client, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    });
    assert!(
        rendered(&played).starts_with("node lookup api"),
        "{}",
        rendered(&played)
    );
    assert_eq!(ready(sandbox(&played)).0, None);
}

/// Where the namespace cannot be looked at, the plugin's result gives its address an owner.
#[test]
fn an_address_that_is_reported_late_is_enough_at_the_end() {
    let client = pod_socket(4_000).at(0, [10, 88, 0, 5]);
    let mut scene = Scene::new();
    scene.at(0).watched();
    let plugin = scene.plugin("bridge", &of_pod(add("sb", "eth0"), "cart"));
    scene.at(50).query(&client, 7, "api", "A");
    scene.at(90).plugin_io(PluginIo {
        process: plugin,
        netconf: None,
        error: None,
        addresses: vec!["10.88.0.5/24".to_owned()],
    });
    scene.at(100).exit(plugin, 0);
    scene.at(110).answer(&client, 7, "api", "A", NOERROR, &["10.1.0.1"]);
    let played = scene.clone().then_nothing().play().finish();
    assert!(
        rendered(&played).starts_with("sandbox lookup api"),
        "{}",
        rendered(&played)
    );
    // And enough to wait for its network when it is created.
    scene.containerd_starts("sb", 120);
    scene.looked_up(&client, "web", 2_000, 500, "10.1.0.2");
    let played = scene.then_nothing().play().finish();
    assert_eq!(
        ready(sandbox(&played)),
        (Some(50), Some(110), vec!["lookup".to_owned()])
    );
    scene = unnamed();
    scene.containerd_starts("sb", 120);
    scene.looked_up(&client, "web", 2_000, 500, "10.1.0.2");
    let played = scene.then_nothing().play().finish();
    assert_eq!(
        ready(sandbox(&played)),
        (Some(2_000), Some(2_000), vec!["lookup".to_owned()])
    );
}

#[test]
fn addresses_of_a_nested_operation_belong_to_the_container_that_it_is_for() {
    let (own, other) = ([10, 88, 0, 5], [10, 88, 0, 9]);
    let mut scene = Scene::new();
    scene.at(0).watched();
    let outer = scene.plugin("multus", &of_pod(add("sb", "eth0"), "cart"));
    let nested = scene
        .at(10)
        .delegate(outer, "bridge", &of_pod(add("other", "eth0"), "till"));
    for (at, process, address) in [(20, nested, "10.88.0.9/24"), (90, outer, "10.88.0.5/24")] {
        scene.at(at).plugin_io(PluginIo {
            process,
            netconf: None,
            error: None,
            addresses: vec![address.to_owned()],
        });
        scene.at(at + 1).exit(process, 0);
    }
    scene.looked_up(&pod_socket(4_000).at(0, other), "api", 100, 500, "10.1.0.1");
    scene.looked_up(&pod_socket(4_001).at(0, own), "web", 102, 500, "10.1.0.2");
    scene.containerd_starts("sb", 110);
    let played = scene.then_nothing().play().finish();
    assert_eq!(
        rendered(&played).matches("sandbox lookup").count(),
        2,
        "{}",
        rendered(&played)
    );
    assert_eq!(played.findings_in(Some(sandbox(&played).id)).count(), 1);
    let names: Vec<&str> = sandbox(&played)
        .spans
        .iter()
        .filter_map(|span| Some(span.detail.as_lookup()?.name.as_str()))
        .collect();
    assert_eq!(names, ["web"]);
}

/// A sandbox whose namespace cannot be looked at; its plugin reports the address.
fn unnamed() -> Scene {
    let mut scene = Scene::new();
    scene.at(0).watched();
    let plugin = scene.plugin("bridge", &of_pod(add("sb", "eth0"), "cart"));
    scene.at(90).plugin_io(PluginIo {
        process: plugin,
        netconf: None,
        error: None,
        addresses: vec!["10.88.0.5/24".to_owned()],
    });
    scene.at(100).exit(plugin, 0);
    scene
}

/// An older sandbox, whose pod the runtime reported; its namespace is reported while something fails in it.
fn older(meanwhile: impl FnOnce(&mut Scene)) -> Played {
    let mut scene = Scene::new();
    scene.at(0).watched().described(SandboxDescription {
        sandbox: SandboxId("sb".to_owned()),
        identity: PodIdentity {
            name: "cart".to_owned(),
            ..PodIdentity::default()
        },
        created_unix_ns: 0,
        ready: true,
        preexisting: true,
    });
    meanwhile(&mut scene);
    scene.then_nothing().play().finish()
}

fn journey_of(played: &Played) -> (bool, &str) {
    let journeys = played.closed.iter().filter_map(|trace| match &trace.root().detail {
        Detail::Journey(journey) => Some((journey.node, trace.identity.name.as_str())),
        _ => None,
    });
    let journeys: Vec<_> = journeys.collect();
    assert_eq!(journeys.len(), 1);
    journeys[0]
}

#[test]
fn a_journey_of_a_sandbox_that_is_older_than_the_agent_is_its_own() {
    let connects: Socket = pod_socket(5_000).tcp().to("10.1.0.1:80");
    let played = older(|scene| {
        scene.at(50).connects(&connects);
        named_at(scene, 60, None);
        scene.at(70).connect_failed(&connects, ConnectFailure::Refused, 0);
    });
    assert_eq!(journey_of(&played), (false, "cart"));
    assert!(
        rendered(&played).starts_with("sandbox connect"),
        "{}",
        rendered(&played)
    );
    assert_eq!(played.correlator.counters().orphan, 0);
}

#[test]
fn the_owner_of_a_journey_that_waits_for_its_connection_is_looked_up_again() {
    let client = pod_socket(4_000);
    let played = older(|scene| {
        scene.at(50).query(&client, 7, "api", "A");
        scene.at(2_050).answer(&client, 7, "api", "A", NOERROR, &["10.1.0.1"]);
        named_at(scene, 2_500, None);
    });
    assert_eq!(journey_of(&played), (false, "cart"));
    // What was counted before stays counted.
    assert!(
        rendered(&played).starts_with("node lookup api"),
        "{}",
        rendered(&played)
    );
}
