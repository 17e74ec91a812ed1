//! Attempts: sandboxes of one pod, operations that are repeated, and how long that is remembered.

use sandglass_model::Detail;
use sandglass_model::event::ExitStatus;
use sandglass_model::trace::{Relation, Trace};

use crate::scene::{Scene, add, assert_text, del, of_pod};

fn attempt(trace: &Trace) -> u32 {
    match &trace.root().detail {
        Detail::Sandbox(sandbox) => sandbox.attempt,
        Detail::Operation(operation) => operation.attempt,
        // None of these is a root.
        Detail::SandboxCreate(_)
        | Detail::Plugin(_)
        | Detail::Command(_)
        | Detail::RuntimeStep(_)
        | Detail::Journey(_)
        | Detail::Lookup(_)
        | Detail::Connect(_)
        | Detail::Activity(_)
        | Detail::VnicWait(_)
        | Detail::Wait(_)
        | Detail::Daemon(_)
        | Detail::RuntimeWork(_) => 0,
    }
}

fn previous(trace: &Trace) -> Option<String> {
    let links = &trace.root().links;
    let link = links.iter().find(|link| link.relation == Relation::PreviousAttempt)?;
    Some(link.trace.to_string())
}

/// ADDs that fail, for sandboxes `a`, `b`, `c` of one pod.
fn retried() -> Scene {
    let mut scene = Scene::new();
    for (index, sandbox) in ["a", "b", "c"].into_iter().enumerate() {
        let from = index as u64 * 10_000;
        let plugin = scene.at(from).plugin("bridge", &of_pod(add(sandbox, "eth0"), "cart-0"));
        scene.at(from + 10).exit(plugin, 1);
        scene.ran("bridge", &of_pod(del(sandbox, "eth0"), "cart-0"), from + 20, from + 30);
    }
    scene.at(60_000).tick();
    scene
}

#[test]
fn sandboxes_of_one_pod_are_numbered_and_linked() {
    let played = retried().play().finish();
    let sandboxes: Vec<_> = played
        .closed
        .iter()
        .filter(|trace| matches!(trace.root().detail, Detail::Sandbox(_)))
        .collect();
    assert_eq!(
        sandboxes.iter().map(|trace| attempt(trace)).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert_eq!(
        sandboxes.iter().map(|trace| previous(trace)).collect::<Vec<_>>(),
        [
            None,
            Some(sandboxes[0].id.to_string()),
            Some(sandboxes[1].id.to_string())
        ]
    );
}

#[test]
fn another_pod_is_no_retry() {
    let mut scene = Scene::new();
    scene.ran("bridge", &of_pod(add("a", "eth0"), "cart-0"), 0, 10);
    scene.ran("bridge", &of_pod(add("b", "eth0"), "cart-1"), 20, 30);
    scene.ran("bridge", &add("c", "eth0"), 40, 50);
    scene.ran("bridge", &add("d", "eth0"), 60, 70);
    scene.at(60_000).tick();
    let played = scene.play().finish();
    assert_eq!(played.closed.len(), 4);
    assert!(
        played
            .closed
            .iter()
            .all(|trace| attempt(trace) == 1 && previous(trace).is_none())
    );
}

#[test]
fn a_retry_links_to_an_attempt_that_is_still_open() {
    let mut scene = Scene::new();
    let stuck = scene.at(0).plugin("bridge", &of_pod(add("a", "eth0"), "cart-0"));
    scene.ran("bridge", &of_pod(add("b", "eth0"), "cart-0"), 10, 20);
    scene.at(30).exit(stuck, 1).at(60_000).tick();
    let played = scene.play().finish();
    let (first, second) = (&played.closed[0], &played.closed[1]);
    assert_eq!((attempt(first), attempt(second)), (1, 2));
    assert_eq!(previous(second), Some(first.id.to_string()));
}

#[test]
fn the_same_sandbox_again_after_a_failure_is_the_next_attempt() {
    let mut scene = Scene::by_runtime("cnitool");
    for from in [0, 10_000] {
        let plugin = scene.at(from).plugin("bridge", &add("sb", "eth0"));
        scene.at(from + 10).exit(plugin, 1);
    }
    scene.ran("bridge", &add("sb", "eth0"), 20_000, 20_010);
    scene.at(60_000).tick();
    let played = scene.play().finish();
    assert_eq!(played.closed.iter().map(attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(previous(&played.closed[2]), Some(played.closed[1].id.to_string()));
}

#[test]
fn an_add_repeated_at_once_is_the_next_attempt_in_the_same_trace_and_decides() {
    let mut scene = Scene::by_runtime("cnitool");
    let plugin = scene.at(0).plugin("bridge", &add("sb", "eth0"));
    scene.at(10).exit(plugin, 1);
    scene.ran("bridge", &add("sb", "eth0"), 20, 30);
    scene.at(60_000).tick();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox             +0 ns    30.0 ms [sb, cnitool]
  sandbox.create    +0 ns    30.0 ms
    cni ADD         +0 ns    10.0 ms [eth0, error exit_code: plugin bridge exited with code 1]
      plugin bridge +0 ns    10.0 ms [error exit_code: plugin bridge exited with code 1]
    cni ADD         +20.0 ms 10.0 ms [eth0, attempt 2]
      plugin bridge +20.0 ms 10.0 ms
",
    );
}

#[test]
fn deletes_are_counted_per_interface() {
    let mut scene = Scene::new();
    for (from, ifname, how) in [
        (0, "eth0", ExitStatus::Signal(9)),
        (1_000, "net1", ExitStatus::Code(0)),
        (2_000, "eth0", ExitStatus::Code(1)),
        (3_000, "eth0", ExitStatus::Code(0)),
    ] {
        let plugin = scene.at(from).plugin("bridge", &del("sb", ifname));
        scene.at(from + 1).ended(plugin, how);
    }
    scene.at(60_000).tick();
    let played = scene.play().finish();
    assert_eq!(played.closed.iter().map(attempt).collect::<Vec<_>>(), [1, 1, 2, 3]);
    assert_eq!(previous(&played.closed[3]), Some(played.closed[2].id.to_string()));
}

#[test]
fn memory_is_bounded_and_what_is_forgotten_counted() {
    let mut scene = retried();
    scene.config.max_remembered = 1;
    for index in 0..10 {
        let env = of_pod(add(&format!("x{index}"), "eth0"), &format!("pod-{index}"));
        scene.ran("bridge", &env, 100_000 + index * 100, 100_010 + index * 100);
    }
    // Forgotten: the first of a pod as far as is known.
    scene.ran("bridge", &of_pod(add("d", "eth0"), "cart-0"), 200_000, 200_010);
    scene.at(300_000).tick();
    let played = scene.play();
    let sizes = played.correlator.sizes();
    assert_eq!((sizes.sandboxes, sizes.pods), (1, 1));
    // Two sandboxes of the retries, and for each of the eleven others a sandbox and a pod.
    assert_eq!(played.counters().evicted_remembered.total(), 2 + 2 * 11);
    assert_eq!(played.closed.last().map(attempt), Some(1));
}
