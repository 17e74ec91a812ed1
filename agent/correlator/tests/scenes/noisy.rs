//! A Kubernetes namespace, or a plugin, that fills a table loses its own entries, and what belongs to others stays.

use sandglass_model::Timestamp;
use sandglass_model::trace::{Relation, Trace};

use crate::scene::{Env, Scene, add, del, with};

/// `env` of a pod of a Kubernetes namespace.
fn of(env: Env, namespace: &str, name: &str) -> Env {
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID=uid-{name}");
    with(env, "CNI_ARGS", &args)
}

fn is_of(trace: &Trace, sandbox: &str) -> bool {
    trace.sandbox.as_ref().is_some_and(|id| id.0 == sandbox)
}

#[test]
fn a_namespace_with_many_open_traces_gives_its_own_up() {
    let mut scene = Scene::by_runtime("cnitool");
    scene.config.max_traces = 8;
    let quiet = scene.at(0).plugin("bridge", &of(add("quiet", "eth0"), "shop", "web"));
    for number in 0..50 {
        let name = format!("noisy-{number}");
        scene
            .at(1 + number)
            .plugin("bridge", &of(add(&name, "eth0"), "batch", &name));
    }
    let other = scene.at(60).plugin("bridge", &of(add("other", "eth0"), "mail", "smtp"));
    scene.at(70).exit(quiet, 0).exit(other, 0);
    let played = scene.play();
    let counters = played.counters();
    assert_eq!(
        (counters.evicted_traces.noisy, counters.evicted_traces.total()),
        (44, 44)
    );
    assert_eq!((counters.orphan, played.correlator.sizes().traces), (0, 8));
    // Those of the noisy namespace went in order of age.
    let closed = played
        .closed
        .iter()
        .map(|trace| trace.sandbox.clone().map(|id| id.0).unwrap_or_default());
    assert_eq!(
        closed.collect::<Vec<_>>(),
        (0..44).map(|number| format!("noisy-{number}")).collect::<Vec<_>>()
    );
    for sandbox in ["quiet", "other"] {
        let open = played.correlator.open().find(|trace| is_of(trace, sandbox));
        assert!(open.is_some_and(|trace| !trace.incomplete), "{sandbox}");
    }
}

#[test]
fn a_plugin_that_forks_without_end_loses_its_own_processes() {
    let mut scene = Scene::by_runtime("cnitool");
    scene.config.max_processes = 16;
    let quiet = scene.at(0).plugin("bridge", &add("quiet", "eth0"));
    let shell = scene.at(1).command(quiet, "/bin/sh", &[]);
    let bomb = scene.at(2).plugin("fork-bomb", &add("noisy", "eth0"));
    for ms in 3..200 {
        scene.at(ms).fork(bomb);
    }
    // The child of a process that was in the table all the time.
    let late = scene.at(200).fork(shell);
    scene.exec(late, shell, "/bin/true", &[], &add("quiet", "eth0"));
    scene.at(210).exit(late, 0).exit(shell, 0).exit(quiet, 0).exit(bomb, 0);
    scene.at(2_000).tick();
    let played = scene.play();
    assert!(played.correlator.sizes().processes <= 16);
    assert_eq!(
        (played.counters().orphan, played.counters().evicted_processes.noisy),
        (0, 0)
    );
    assert!(played.counters().evicted_processes.sandbox > 100);
    let text = played.closed.iter().find(|trace| is_of(trace, "quiet"));
    let text = text.map(|trace| (trace.incomplete, sandglass_model::text::tree(trace, Timestamp(0))));
    let (incomplete, text) = text.unwrap_or_default();
    assert!(!incomplete && text.contains("sh") && text.contains("true"), "{text}");
}

#[test]
fn what_is_remembered_of_a_namespace_outlives_the_pods_of_another() {
    let mut scene = Scene::by_runtime("cnitool");
    scene.config.max_remembered = 16;
    scene.ran("bridge", &of(add("quiet", "eth0"), "shop", "web"), 0, 10);
    for number in 0..100 {
        let name = format!("noisy-{number}");
        let from = 1_000 * (1 + number);
        scene.ran("bridge", &of(add(&name, "eth0"), "batch", &name), from, from + 10);
        scene.ran("bridge", &of(del(&name, "eth0"), "batch", &name), from + 20, from + 30);
    }
    scene.ran("bridge", &of(del("quiet", "eth0"), "shop", "web"), 200_000, 200_010);
    scene.at(300_000).tick();
    let played = scene.play();
    let sizes = played.correlator.sizes();
    assert_eq!((sizes.sandboxes, sizes.pods), (16, 16));
    let counters = played.counters();
    assert_eq!(counters.evicted_remembered.noisy, counters.evicted_remembered.total());
    assert!(counters.evicted_remembered.noisy >= 2 * (100 - 16), "{counters:?}");
    let removal = played.closed.last().filter(|trace| is_of(trace, "quiet"));
    let is_linked = |trace: &Trace| {
        let mut links = trace.root().links.iter();
        links.any(|link| link.relation == Relation::Sandbox)
    };
    assert!(removal.is_some_and(is_linked), "{}", played.text());
}
