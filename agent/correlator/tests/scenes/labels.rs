//! When the labels of a sandbox are requested, and how long a complete trace waits for the response.

use sandglass_correlator::Output;
use sandglass_model::event::SandboxDescription;
use sandglass_model::time::MILLISECOND;
use sandglass_model::{PodIdentity, SandboxId, Timestamp};

use crate::scene::{Played, Scene, add, of_pod};

/// A pod's sandbox whose creation is over at 180 ms and whose network is not observed: its trace is complete then.
fn complete_at_180() -> Scene {
    let mut scene = Scene::new();
    scene.config.labels_wait_ns = 2_000 * MILLISECOND;
    scene.ran("bridge", &of_pod(add("sb", "eth0"), "cart-0"), 0, 100);
    scene.containerd_starts("sb", 110);
    scene
}

fn description(labels: &[(&str, &str)]) -> SandboxDescription {
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    SandboxDescription {
        sandbox: SandboxId("sb".to_owned()),
        identity: PodIdentity {
            labels: labels.collect(),
            ..PodIdentity::default()
        },
        created_unix_ns: 0,
        ready: true,
        preexisting: false,
    }
}

/// Outputs about the sandbox after its creation's spans, in order.
fn outputs(played: &Played) -> Vec<&'static str> {
    let outputs = played.outputs.iter().filter_map(|output| match output {
        Output::Created(_) => Some("created"),
        Output::LabelsNeeded(_) => Some("requested"),
        Output::Closed(_) => Some("closed"),
        Output::Ended(_) | Output::Finding(_) | Output::Preexisting { .. } => None,
    });
    outputs.collect()
}

#[test]
fn the_runtime_is_queried_when_the_creation_is_over_and_the_trace_waits_for_the_response() {
    let waiting = complete_at_180().play();
    assert_eq!(outputs(&waiting), ["created", "requested"]);
    assert_eq!(waiting.correlator.sizes().unlabelled, 1);
    assert_eq!(waiting.correlator.open().count(), 0, "it is complete");

    let mut scene = complete_at_180();
    scene.at(230).described(description(&[("app", "cart")]));
    let played = scene.play();
    assert_eq!(outputs(&played), ["created", "requested", "closed"]);
    let labels = &played.only().identity.labels;
    assert_eq!(labels, &[("app".to_owned(), "cart".to_owned())]);
    assert_eq!(played.only().identity.name, "cart-0", "what was known stays");
    assert_eq!(played.only().root().end, Some(Timestamp(180 * MILLISECOND)));
    assert_eq!(played.correlator.next_deadline(), None);
}

#[test]
fn without_an_answer_the_trace_goes_out_without_labels() {
    let given_up = Timestamp(2_180 * MILLISECOND);
    let waiting = complete_at_180().set_now(given_up.0 - 1).tick().play();
    assert_eq!(outputs(&waiting), ["created", "requested"]);
    assert_eq!(waiting.correlator.next_deadline(), Some(given_up));
    let mut scene = complete_at_180();
    scene.set_now(given_up.0).tick();
    // Nobody waits for it any more.
    scene.at(3_000).described(description(&[("app", "cart")]));
    let played = scene.play();
    assert_eq!(outputs(&played), ["created", "requested", "closed"]);
    assert!(played.only().identity.labels.is_empty());
    // The end of the input does not wait.
    assert_eq!(
        outputs(&complete_at_180().play().finish()),
        ["created", "requested", "closed"]
    );
}

#[test]
fn a_pod_without_labels_is_not_waited_for_once_that_was_reported() {
    let mut open = Scene::new();
    open.config.labels_wait_ns = 2_000 * MILLISECOND;
    let plugin = open.plugin("bridge", &of_pod(add("sb", "eth0"), "cart-0"));
    open.at(50).described(description(&[])).at(100).exit(plugin, 0);
    open.containerd_starts("sb", 110);
    assert_eq!(outputs(&open.play()), ["created", "closed"], "reported before");
    let mut after = complete_at_180();
    after.at(200).described(description(&[]));
    assert_eq!(
        outputs(&after.play()),
        ["created", "requested", "closed"],
        "reported while it waits"
    );
}

#[test]
fn labels_are_not_requested_of_what_is_no_pods_or_was_not_created() {
    let mut of_podman = Scene::new();
    of_podman.config.labels_wait_ns = 2_000 * MILLISECOND;
    of_podman.ran("bridge", &add("sb", "eth0"), 0, 100);
    of_podman.containerd_starts("sb", 110);
    assert_eq!(outputs(&of_podman.play()), ["created", "closed"]);

    let mut failed = Scene::new();
    failed.config.labels_wait_ns = 2_000 * MILLISECOND;
    let plugin = failed.plugin("bridge", &of_pod(add("sb", "eth0"), "cart-0"));
    failed.at(100).exit(plugin, 1).at(1_000).tick();
    assert_eq!(outputs(&failed.play()), ["created", "closed"]);
}

#[test]
fn as_many_wait_as_have_room_and_the_oldest_goes_out() {
    let mut scene = Scene::new();
    scene.config.labels_wait_ns = 2_000 * MILLISECOND;
    for number in 0..1_030 {
        let id = format!("sb{number}");
        scene.ran(
            "bridge",
            &of_pod(add(&id, "eth0"), &format!("cart-{number}")),
            number,
            number,
        );
        scene.containerd_starts(&id, number);
    }
    let played = scene.play();
    assert_eq!(played.correlator.sizes().unlabelled, 1_024);
    assert_eq!(played.closed.len(), 6);
    let first = played.closed[0].sandbox.as_ref().map(|id| id.0.as_str());
    assert_eq!(first, Some("sb0"));
    assert_eq!(played.finish().closed.len(), 1_030);
}
