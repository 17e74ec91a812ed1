//! Requests to the runtime to make a sandbox: how traces begin and end with them.

use sandglass_model::cri::{SandboxOutcome, SandboxRequest, SandboxResponse};
use sandglass_model::time::MILLISECOND;
use sandglass_model::{Body, PodIdentity, ProcessKey, SandboxId, Status, Timestamp};

use crate::scene::{Scene, add, assert_text, del, of_pod};

impl Scene {
    /// The runtime receives a request for a pod, as it calls itself in the environment of its plugins.
    fn requested(&mut self, pod: &str, stream: u32) -> &mut Scene {
        let runtime = self.caller();
        self.event(Body::SandboxRequested(Box::new(SandboxRequest {
            runtime,
            stream,
            pod: PodIdentity {
                namespace: "shop".to_owned(),
                name: pod.to_owned(),
                uid: format!("uid-{pod}"),
                labels: Vec::new(),
            },
            attempt: 0,
        })))
    }

    /// It responds to what it received at `requested_ms`.
    fn responded(
        &mut self,
        requested_ms: u64,
        stream: u32,
        outcome: SandboxOutcome,
        sandbox: Option<&str>,
    ) -> &mut Scene {
        let runtime = self.caller();
        self.event(Body::SandboxResponded(Box::new(SandboxResponse {
            runtime,
            stream,
            requested: Timestamp(requested_ms * MILLISECOND),
            outcome,
            sandbox: sandbox.map(|id| SandboxId(id.to_owned())),
        })))
    }

    /// The sandbox of a pod from its network namespace at 80 until `runc start` at 190.
    fn makes(&mut self, sandbox: &str, pod: &str) -> &mut Scene {
        let bridge = self.at(100).plugin("bridge", &of_pod(add(sandbox, "eth0"), pod));
        self.at(102).netns(sandbox, 80).at(110).exit(bridge, 0);
        self.containerd_starts(sandbox, 120)
    }
}

#[test]
fn a_creation_begins_with_the_request_and_ends_with_the_response() {
    let mut scene = Scene::new();
    scene.at(50).requested("cart-0", 3).measured(0, 0);
    scene.makes("sb", "cart-0");
    scene.at(195).tick().at(200).measured(30, 15);
    assert_eq!(scene.play().closed.len(), 0, "the runtime has not responded");
    scene.at(200).responded(50, 3, SandboxOutcome::Made, Some("sb"));
    let played = scene.play();
    assert_text(
        &played.text(),
        "
sandbox                 +0 ns   150 ms  [shop/cart-0, sb, containerd]
  sandbox.create        +0 ns   150 ms  [from request, to response, runtime 63.0 ms, unknown 60.0 ms, processor 18.0 ms, run_queue 9.00 ms]
    runtime prepare     +0 ns  30.0 ms  [runtime 21.0 ms, processor 6.00 ms, run_queue 3.00 ms]
    cni ADD          +50.0 ms  10.0 ms  [eth0]
      plugin bridge  +50.0 ms  10.0 ms
    runtime shim     +70.0 ms  10.0 ms
    runtime create   +90.0 ms  30.0 ms
    runtime start     +130 ms  10.0 ms
    runtime finish    +140 ms  10.0 ms  [runtime 7.00 ms, processor 2.00 ms, run_queue 1.00 ms]
",
    );
    let trace = played.only();
    let create = trace.spans[1].detail.as_create().unwrap();
    assert!(create.request_seen && create.response_seen && create.netns_seen && create.runtime_seen);
    // Of every nanosecond it is known what it went to, or that it is not.
    assert_eq!(create.time.as_ref().unwrap().total_ns(), 150 * MILLISECOND);
    let prepare = trace.spans[2].detail.as_runtime_work().unwrap();
    assert_eq!(prepare.time.as_ref().unwrap().total_ns(), 30 * MILLISECOND);
    assert_eq!(played.counters().orphan, 0);
    assert_eq!(played.correlator.next_deadline(), None);
}

#[test]
fn without_the_namespace_the_preparation_ends_with_the_first_plugin() {
    let mut scene = Scene::by_runtime("crio");
    scene.at(50).requested("cart-0", 3);
    scene.ran("bridge", &of_pod(add("sb", "eth0"), "cart-0"), 100, 110);
    // CRI-O starts no process for it. Its response ends the creation, and nobody asks it.
    scene.at(150).responded(50, 3, SandboxOutcome::Made, Some("sb"));
    assert_text(
        &scene.play().text(),
        "
sandbox              +0 ns    100 ms  [shop/cart-0, sb, cri-o]
  sandbox.create     +0 ns    100 ms  [from request, to response]
    runtime prepare  +0 ns    50.0 ms
    cni ADD          +50.0 ms 10.0 ms [eth0]
      plugin bridge  +50.0 ms 10.0 ms
    runtime finish   +60.0 ms 40.0 ms
",
    );
}

#[test]
fn a_request_that_failed_ends_after_the_clean_up() {
    let mut scene = Scene::new();
    scene.at(50).requested("cart-0", 3);
    let bridge = scene.at(100).plugin("bridge", &of_pod(add("sb", "eth0"), "cart-0"));
    scene.at(110).exit(bridge, 1);
    scene.ran("bridge", &of_pod(del("sb", "eth0"), "cart-0"), 115, 900);
    scene.at(1_500).responded(50, 3, SandboxOutcome::Failed, None);
    let played = scene.play();
    let creation = &played.closed[1];
    assert_eq!(creation.root().duration_ns(Timestamp(0)), 1_450 * MILLISECOND);
    let message = format!("{:?}", creation.root().status);
    assert!(message.contains("cni ADD eth0"), "{message}");
    // Nothing that ran failed: the response is what is known.
    let mut scene = Scene::new();
    scene.at(50).requested("cart-0", 3);
    scene.ran("bridge", &of_pod(add("sb", "eth0"), "cart-0"), 100, 110);
    scene.at(150).responded(50, 3, SandboxOutcome::Failed, None);
    let played = scene.play();
    let Status::Error { message, .. } = &played.only().root().status else {
        panic!("{}", played.text());
    };
    assert_eq!(message, "the runtime responded with an error");
}

#[test]
fn a_withdrawn_request_ends_as_without_one() {
    let mut scene = Scene::new();
    scene.at(50).requested("cart-0", 3);
    scene.makes("sb", "cart-0");
    scene.at(195).responded(50, 3, SandboxOutcome::Withdrawn, None);
    let played = scene.play();
    let create = played.only().spans[1].detail.as_create().unwrap().clone();
    assert!(create.request_seen && !create.response_seen);
    assert_eq!(played.only().spans[1].duration_ns(Timestamp(0)), 140 * MILLISECOND);
}

#[test]
fn a_response_that_is_lost_is_not_waited_for_forever() {
    let mut scene = Scene::new();
    scene.at(50).requested("cart-0", 3);
    scene.makes("sb", "cart-0");
    scene.at(10_189).tick();
    assert_eq!(scene.play().closed.len(), 0);
    scene.at(10_191).tick();
    let played = scene.play();
    assert_eq!(played.only().root().duration_ns(Timestamp(0)), 140 * MILLISECOND);
    // It comes all the same.
    scene.at(10_200).responded(50, 3, SandboxOutcome::Made, Some("sb"));
    assert_eq!(scene.play().closed.len(), 1);
}

#[test]
fn of_many_at_once_each_has_its_own() {
    let mut scene = Scene::new();
    let pods: Vec<String> = (0..20).map(|number| format!("cart-{number}")).collect();
    for (number, pod) in (0_u32..).zip(&pods) {
        scene.at(10 + u64::from(number)).requested(pod, 2 * number + 1);
    }
    for (number, pod) in pods.iter().enumerate().rev() {
        scene.ran("bridge", &of_pod(add(&format!("sb-{number}"), "eth0"), pod), 100, 110);
    }
    for (number, stream) in (0_u64..20).zip((1_u32..).step_by(2)) {
        let sandbox = format!("sb-{number}");
        scene
            .at(200 + 3 * number)
            .responded(10 + number, stream, SandboxOutcome::Made, Some(&sandbox));
    }
    let played = scene.play();
    assert_eq!(played.closed.len(), 20);
    for trace in &played.closed {
        let number: u64 = trace.identity.name["cart-".len()..].parse().unwrap();
        assert_eq!(trace.sandbox, Some(SandboxId(format!("sb-{number}"))));
        assert_eq!(trace.root().start, Timestamp((10 + number) * MILLISECOND));
        assert_eq!(trace.spans[1].end, Some(Timestamp((200 + 3 * number) * MILLISECOND)));
    }
}

/// Which one is the sandbox's is not known until the runtime responds.
#[test]
fn of_two_requests_for_one_pod_the_response_decides() {
    let mut scene = Scene::new();
    scene.at(40).requested("cart-0", 3).at(50).requested("cart-0", 5);
    scene.ran("bridge", &of_pod(add("sb", "eth0"), "cart-0"), 100, 110);
    scene.at(120).responded(40, 3, SandboxOutcome::Failed, None);
    scene.at(150).responded(50, 5, SandboxOutcome::Made, Some("sb"));
    let played = scene.play();
    assert_eq!(played.only().root().start, Timestamp(50 * MILLISECOND));
    assert_eq!(played.only().spans[1].end, Some(Timestamp(150 * MILLISECOND)));
    assert_eq!(played.only().root().status, Status::Unset);
}

#[test]
fn a_request_for_another_pod_or_of_another_process_is_not_joined() {
    let mut scene = Scene::new();
    scene.at(40).requested("cart-1", 3);
    let other = ProcessKey {
        pid: 101,
        start_ticks: 1,
    };
    scene.at(50).event(Body::SandboxRequested(Box::new(SandboxRequest {
        runtime: other,
        stream: 3,
        pod: PodIdentity {
            namespace: "shop".to_owned(),
            name: "cart-0".to_owned(),
            uid: "uid-cart-0".to_owned(),
            labels: Vec::new(),
        },
        attempt: 0,
    })));
    scene.makes("sb", "cart-0");
    let played = scene.play();
    assert_eq!(played.only().root().start, Timestamp(80 * MILLISECOND));
    assert!(!played.only().spans[1].detail.as_create().unwrap().request_seen);
}

/// The memory of requests is bounded, by number and by age.
#[test]
fn requests_without_a_sandbox_are_forgotten() {
    let mut scene = Scene::new();
    scene.at(1).requested("cart-0", 1);
    for number in 0..1_024 {
        scene.at(2).requested(&format!("web-{number}"), 2 * number + 3);
    }
    scene.makes("sb", "cart-0");
    let played = scene.play();
    assert_eq!(played.only().root().start, Timestamp(80 * MILLISECOND));
    assert!(played.counters().evicted_remembered.total() > 0);
}
