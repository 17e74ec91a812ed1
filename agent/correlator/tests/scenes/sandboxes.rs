//! Traces of sandboxes: begin, end, the runtime's steps, identity, other operations' links.

use sandglass_correlator::Output;
use sandglass_model::cni::{CniError, PodIdentity};
use sandglass_model::event::{ExitStatus, PluginIo, SandboxDescription};
use sandglass_model::time::{MILLISECOND, SECOND};
use sandglass_model::trace::Relation;
use sandglass_model::{Body, Detail, SandboxId, SpanId, Status, Timestamp, TraceId, registry};

use crate::scene::{Scene, add, assert_text, cni, del, of_pod};

#[test]
fn containerd_makes_a_sandbox() {
    let mut scene = Scene::new();
    let env = of_pod(add("sb", "eth0"), "cart-0");
    let lo = scene.at(100).plugin("loopback", &of_pod(add("sb", "lo"), "cart-0"));
    let bridge = scene.at(101).plugin("bridge", &env);
    scene.at(102).netns("sb", 80);
    scene.at(103).exit(lo, 0).at(110).exit(bridge, 0);
    scene.containerd_starts("sb", 120);
    let played = scene.play();
    // Nothing was left to wait for.
    assert_text(
        &played.text(),
        "
sandbox              +0 ns    110 ms  [shop/cart-0, sb, containerd]
  sandbox.create     +0 ns    110 ms  [from namespace, to runtime start]
    cni ADD          +20.0 ms 3.00 ms [lo]
      plugin loopback +20.0 ms 3.00 ms
    cni ADD          +21.0 ms 9.00 ms [eth0]
      plugin bridge  +21.0 ms 9.00 ms
    runtime shim     +40.0 ms 10.0 ms
    runtime create   +60.0 ms 30.0 ms
    runtime start    +100 ms  10.0 ms
",
    );
    assert!(
        played
            .outputs
            .contains(&Output::LabelsNeeded(SandboxId("sb".to_owned())))
    );
    assert_eq!(played.counters().orphan, 0);
    assert_eq!(played.correlator.next_deadline(), None);
}

#[test]
fn crio_makes_a_sandbox() {
    let mut scene = Scene::by_runtime("crio");
    scene.ran("bridge", &add("sb", "eth0"), 0, 10);
    let conmon = scene
        .at(20)
        .runtime("/usr/bin/conmon", &["-b", "/b", "-c", "sb", "-r", "/usr/bin/crun"]);
    let create = scene
        .at(22)
        .runtime("/usr/bin/crun", &["--root=/r", "create", "--bundle", "/b", "sb"]);
    scene.at(30).exit(create, 0).at(31).exit(conmon, 0);
    let start = scene.at(40).runtime("/usr/bin/crun", &["start", "sb"]);
    scene.at(45).exit(start, 0);
    assert_text(
        &scene.play().text(),
        "
sandbox              +0 ns    45.0 ms [sb, cri-o]
  sandbox.create     +0 ns    45.0 ms [to runtime start]
    cni ADD          +0 ns    10.0 ms [eth0]
      plugin bridge  +0 ns    10.0 ms
    runtime shim     +20.0 ms 11.0 ms
    runtime create   +22.0 ms 8.00 ms
    runtime start    +40.0 ms 5.00 ms
",
    );
}

/// runc and crun execute a copy of themselves from a file descriptor, by what they were called by: of CRI-O a path. It is the runtime's, and nobody's orphan.
#[test]
fn an_oci_runtimes_copy_of_itself_is_no_orphan() {
    for called in ["runc", "/usr/sbin/runc", "/usr/libexec/crio/crun"] {
        let mut scene = Scene::by_runtime("crio");
        scene.ran("bridge", &add("sb", "eth0"), 0, 10);
        let create = scene
            .at(22)
            .runtime("/usr/sbin/runc", &["--root=/r", "create", "--bundle", "/b", "sb"]);
        let init = scene.new_process();
        let mut copy = scene.exec_event(init, create, "/dev/fd/6", &["init"], &Vec::new());
        copy.args = [called, "init"].map(str::to_owned).into_iter().collect();
        scene
            .at(25)
            .event(Body::ProcessExecuted(Box::new(copy)))
            .at(26)
            .exit(init, 0);
        scene.at(30).exit(create, 0);
        assert_eq!(scene.play().counters().orphan, 0, "{called}");
    }
}

/// CRI-O lets the plugins check what they attached, before it starts anything.
#[test]
fn crios_check_of_what_it_attached_is_part_of_the_creation() {
    let mut scene = Scene::by_runtime("crio");
    let check = cni("CHECK", "sb", "eth0");
    scene.ran("bridge", &add("sb", "eth0"), 0, 10);
    scene.ran("bridge", &check, 12, 20);
    let start = scene.at(40).runtime("/usr/bin/crun", &["start", "sb"]);
    scene.at(45).exit(start, 0);
    assert_text(
        &scene.play().text(),
        "
sandbox              +0 ns    45.0 ms [sb, cri-o]
  sandbox.create     +0 ns    45.0 ms [to runtime start]
    cni ADD          +0 ns    10.0 ms [eth0]
      plugin bridge  +0 ns    10.0 ms
    cni CHECK        +12.0 ms 8.00 ms [eth0]
      plugin bridge  +12.0 ms 8.00 ms
    runtime start    +40.0 ms 5.00 ms
",
    );
    // One that fails is why there is no sandbox.
    let mut scene = Scene::by_runtime("crio");
    scene.ran("bridge", &add("sb", "eth0"), 0, 10);
    let plugin = scene.at(12).plugin("bridge", &check);
    scene.at(20).exit(plugin, 1);
    scene.ran("bridge", &del("sb", "eth0"), 22, 30);
    scene.at(1_000).tick();
    let played = scene.play();
    let failed = format!("{:?}", played.closed[0].root().status);
    assert!(failed.contains("cni CHECK eth0"), "{failed}");
    // Later it is a trace of its own, and so it is by anybody else.
    let mut scene = Scene::by_runtime("podman");
    scene.ran("bridge", &add("sb", "eth0"), 0, 10);
    scene.ran("bridge", &check, 12, 20);
    scene.at(2_000).tick();
    assert_eq!(scene.play().closed.len(), 2);
}

/// As the kubelet requests pods: CRI-O starts no process for the sandbox.
#[test]
fn crio_is_asked_where_it_starts_nothing_and_its_word_ends_the_creation() {
    let attached = || {
        let mut scene = Scene::by_runtime("crio");
        scene.ran("bridge", &of_pod(add("sb", "eth0"), "cart-0"), 0, 10);
        scene.at(1_000).tick();
        scene
    };
    let asked = |scene: &Scene| {
        let outputs = scene.play().outputs;
        outputs
            .iter()
            .filter(|output| matches!(output, Output::LabelsNeeded(_)))
            .count()
    };
    let mut scene = attached();
    // The ADD is over at 510 ms; half a second later nothing has come.
    assert_eq!((asked(&scene), scene.play().closed.len()), (1, 0));
    scene.at(5_000).tick();
    assert_eq!((asked(&scene), scene.play().closed.len()), (1, 0));
    let ready = |ready| SandboxDescription {
        sandbox: SandboxId("sb".to_owned()),
        identity: PodIdentity::default(),
        created_unix_ns: 0,
        ready,
        preexisting: false,
    };
    scene.at(5_001).described(ready(false));
    assert_eq!(scene.play().closed.len(), 0);
    scene.at(5_002).described(ready(true));
    let played = scene.play();
    assert_text(
        &played.text(),
        "
sandbox             +0 ns 10.0 ms [shop/cart-0, sb, cri-o]
  sandbox.create    +0 ns 10.0 ms
    cni ADD         +0 ns 10.0 ms [eth0]
      plugin bridge +0 ns 10.0 ms
",
    );
    // Without a response the creation is over when a runtime would have gone on.
    let mut scene = attached();
    scene.at(11_000).tick();
    assert!(!scene.play().only().root().status.is_error());
    // A pause process comes before the settle time is over.
    let mut scene = Scene::by_runtime("crio");
    scene.ran("bridge", &of_pod(add("sb", "eth0"), "cart-0"), 0, 10);
    let conmon = scene.at(20).runtime("/usr/bin/conmon", &["-b", "/b", "-c", "sb"]);
    scene.at(31).exit(conmon, 0).at(1_600).tick();
    assert_eq!(asked(&scene), 0);
}

#[test]
fn other_work_of_runtimes_is_neither_step_nor_orphan() {
    let mut scene = Scene::new();
    scene.ran("bridge", &add("sb", "eth0"), 0, 10);
    for (path, args) in [
        (
            "/usr/bin/containerd-shim-runc-v2",
            vec!["-namespace", "k8s.io", "-id", "sb", "-address", "/a"],
        ),
        ("/usr/bin/containerd-shim-runc-v2", vec!["-id", "sb", "delete"]),
        ("/usr/bin/containerd-shim-runc-v2", vec!["-id", "app", "start"]),
        ("/usr/bin/runc", vec!["create", "--bundle", "/b", "app"]),
        ("/usr/bin/runc", vec!["start", "app"]),
        ("/usr/bin/runc", vec!["state", "sb"]),
        ("/usr/bin/runc", vec![]),
    ] {
        let process = scene.at(20).runtime(path, &args);
        let child = scene.fork(process);
        scene.exit(child, 0).exit(process, 0);
    }
    let played = scene.play();
    assert_eq!(played.counters().orphan, 0);
    assert_eq!(played.correlator.open().next().map(|trace| trace.spans.len()), Some(4));
}

#[test]
fn without_the_runtimes_steps_the_sandbox_ends_with_its_last_operation() {
    let mut scene = Scene::new();
    scene.ran("bridge", &add("sb", "eth0"), 0, 10);
    // The wait begins anew with each step.
    let create = scene.at(9_000).runtime("/usr/bin/runc", &["create", "sb"]);
    scene.at(9_001).exit(create, 0);
    scene.at(19_000).tick();
    assert_eq!(scene.play().closed, []);
    scene.at(19_001).tick();
    assert_text(
        &scene.play().text(),
        "
sandbox              +0 ns    9.00 s  [sb, containerd]
  sandbox.create     +0 ns    9.00 s
    cni ADD          +0 ns    10.0 ms [eth0]
      plugin bridge  +0 ns    10.0 ms
    runtime create   +9.00 s  1.00 ms
",
    );
}

/// A chain that names a plugin which is not there: every plugin that runs succeeds, and yet there is no sandbox.
#[test]
fn a_sandbox_that_is_removed_before_it_is_started_has_failed() {
    let played = |runtime: &str, shim: bool| {
        let mut scene = Scene::by_runtime(runtime);
        scene.ran("bridge", &add("sb", "eth0"), 0, 10);
        if shim {
            let shim = scene.at(12).runtime(
                "/usr/bin/containerd-shim-kata-v2",
                &["-namespace", "k8s.io", "-id", "sb", "start"],
            );
            scene.at(14).exit(shim, 0);
        }
        scene.ran("loopback", &del("sb", "lo"), 20, 22);
        scene.at(1_000).tick();
        scene.play()
    };
    let given_up = &played("containerd", false).closed[0];
    assert_eq!(
        given_up.spans[0].status,
        Status::Error {
            class: "sandbox_failed".to_owned(),
            message: "the runtime gave the sandbox up before it started it".to_owned(),
        }
    );
    assert!(!given_up.spans[2].status.is_error(), "no plugin failed");
    // What starts a sandbox is not always seen: a shim that runs no runc may have.
    // And CRI-O may start nothing: it may have made the sandbox, and removed it at once.
    for (runtime, shim) in [("containerd", true), ("podman", false), ("crio", false)] {
        let played = played(runtime, shim);
        assert!(!played.closed[0].spans[0].status.is_error(), "{runtime}");
    }
}

#[test]
fn a_sandbox_of_an_unknown_runtime_waits_for_further_attachments() {
    let mut scene = Scene::by_runtime("podman");
    scene.ran("bridge", &add("sb", "eth0"), 0, 10);
    scene.ran("macvlan", &add("sb", "eth1"), 300, 310);
    scene.at(809).tick();
    assert_eq!(scene.play().closed, []);
    scene.at(810).tick();
    let played = scene.play();
    assert_eq!(played.only().spans[0].end, Some(Timestamp(310 * MILLISECOND)));
    assert_eq!(played.only().spans.len(), 6);
}

#[test]
fn a_runtime_step_that_fails_fails_the_sandbox() {
    let mut scene = Scene::new();
    scene.ran("bridge", &add("sb", "eth0"), 0, 10);
    let create = scene.at(20).runtime("/usr/bin/runc", &["create", "sb"]);
    scene.at(30).exit(create, 1);
    assert_text(
        &scene.play().text(),
        "
sandbox              +0 ns    30.0 ms [sb, containerd, error sandbox_failed: runtime create exited with code 1]
  sandbox.create     +0 ns    30.0 ms [error sandbox_failed: runtime create exited with code 1]
    cni ADD          +0 ns    10.0 ms [eth0]
      plugin bridge  +0 ns    10.0 ms
    runtime create   +20.0 ms 10.0 ms [error exit_code: runtime create exited with code 1]
",
    );
}

#[test]
fn a_runtime_step_that_never_ends_is_given_up() {
    let mut scene = Scene::new();
    scene.ran("bridge", &add("sb", "eth0"), 0, 10);
    scene.at(20).runtime("/usr/bin/runc", &["create", "sb"]);
    scene.at(300_019).tick();
    assert_eq!(scene.play().closed, []);
    scene.at(400_000).tick();
    let played = scene.play();
    assert_text(
        &played.text(),
        "
sandbox              +0 ns    300 s [sb, containerd, error sandbox_failed: a step of the runtime did not end]
  sandbox.create     +0 ns    300 s [error sandbox_failed: a step of the runtime did not end]
    cni ADD          +0 ns    10.0 ms [eth0]
      plugin bridge  +0 ns    10.0 ms
    runtime create   +20.0 ms 300 s [error deadline: still running after 300 s]
",
    );
    assert_eq!(
        played.only().spans[4].end,
        Some(Timestamp(20 * MILLISECOND + 300 * SECOND))
    );
}

#[test]
fn a_failed_add_fails_the_sandbox() {
    let mut scene = Scene::new();
    let lo = scene.at(0).plugin("loopback", &add("sb", "lo"));
    let bridge = scene.at(1).plugin("bridge", &add("sb", "eth0"));
    scene.at(2).plugin_io(PluginIo {
        process: bridge,
        netconf: None,
        error: Some(CniError {
            code: 100,
            msg: "no addresses left".to_owned(),
            details: String::new(),
        }),
        addresses: Vec::new(),
    });
    scene.at(3).exit(bridge, 1);
    // The other attachment is waited for.
    scene.at(2_000).tick();
    assert_eq!(scene.play().closed, []);
    scene.at(2_001).exit(lo, 0).at(2_501).tick().at(3_001).tick();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox              +0 ns    2.00 s [sb, containerd, error sandbox_failed: cni ADD eth0: no addresses left]
  sandbox.create     +0 ns    2.00 s [error sandbox_failed: cni ADD eth0: no addresses left]
    cni ADD          +0 ns    2.00 s [lo]
      plugin loopback +0 ns   2.00 s
    cni ADD          +1.00 ms 2.00 ms [eth0, error cni_plugin_specific: no addresses left]
      plugin bridge  +1.00 ms 2.00 ms [error cni_plugin_specific: no addresses left]
",
    );
}

#[test]
fn the_clean_up_of_a_failed_add_closes_it() {
    let mut scene = Scene::new();
    let env = of_pod(add("sb", "eth0"), "cart-0");
    let bridge = scene.at(0).plugin("bridge", &env);
    scene.at(10).ended(bridge, ExitStatus::Signal(9));
    scene.ran("bridge", &of_pod(del("sb", "eth0"), "cart-0"), 12, 15);
    scene.ran("bridge", &del("sb", "eth0"), 1_012, 1_015);
    scene.at(3_000).tick();
    let played = scene.play().finish();
    assert_text(
        &played.text(),
        "
sandbox              +0 ns 10.0 ms [shop/cart-0, sb, containerd, error sandbox_failed: cni ADD eth0: plugin bridge was killed by signal 9 (SIGKILL)]
  sandbox.create     +0 ns 10.0 ms [error sandbox_failed: cni ADD eth0: plugin bridge was killed by signal 9 (SIGKILL)]
    cni ADD          +0 ns 10.0 ms [eth0, error signal: plugin bridge was killed by signal 9 (SIGKILL)]
      plugin bridge  +0 ns 10.0 ms [error signal: plugin bridge was killed by signal 9 (SIGKILL)]
cni DEL              +0 ns 3.00 ms [shop/cart-0, sb, eth0]
  plugin bridge      +0 ns 3.00 ms
cni DEL              +0 ns 3.00 ms [shop/cart-0, sb, eth0, attempt 2]
  plugin bridge      +0 ns 3.00 ms
",
    );
    let links = |index: usize| -> Vec<(TraceId, SpanId, Relation)> {
        let links = &played.closed[index].spans[0].links;
        links
            .iter()
            .map(|link| (link.trace, link.span, link.relation))
            .collect()
    };
    let root = |index: usize| (played.closed[index].id, played.closed[index].spans[0].id);
    let (sandbox, first) = (root(0), root(1));
    assert_eq!(links(1), [(sandbox.0, sandbox.1, Relation::Sandbox)]);
    assert_eq!(
        links(2),
        [
            (sandbox.0, sandbox.1, Relation::Sandbox),
            (first.0, first.1, Relation::PreviousAttempt)
        ]
    );
}

#[test]
fn an_add_to_a_sandbox_that_exists_is_a_trace_of_its_own() {
    let mut scene = Scene::by_runtime("cnitool");
    scene.ran("bridge", &add("sb", "eth0"), 0, 10);
    scene.ran("macvlan", &add("sb", "net1"), 5_000, 5_010);
    // The last interface is removed, the id used anew.
    scene.ran("macvlan", &del("sb", "net1"), 6_000, 6_010);
    scene.ran("bridge", &del("sb", "eth0"), 7_000, 7_010);
    scene.ran("bridge", &add("sb", "eth0"), 8_000, 8_010);
    scene.at(9_000).tick();
    let played = scene.play().finish();
    let roots: Vec<_> = played
        .closed
        .iter()
        .map(|trace| (registry::name(trace.root()), trace.root().links.len()))
        .collect();
    let expected = [
        ("sandbox", 0),
        ("cni ADD", 1),
        ("cni DEL", 1),
        ("cni DEL", 1),
        ("sandbox", 0),
    ];
    assert_eq!(roots, expected.map(|(name, links)| (name.to_owned(), links)));
    assert_ne!(played.closed[0].id, played.closed[4].id);
}

#[test]
fn a_namespace_counts_as_the_begin_only_when_it_fits() {
    for (created_ms, seen) in [(99_000, true), (40_000, true), (39_999, false), (100_001, false)] {
        let mut scene = Scene::by_runtime("cnitool");
        let plugin = scene.at(100_000).plugin("bridge", &add("sb", "eth0"));
        scene
            .at(100_001)
            .netns("sb", created_ms)
            .at(100_002)
            .netns("sb", created_ms - 1);
        scene.at(100_003).exit(plugin, 0).at(101_000).tick();
        let played = scene.play().finish();
        let trace = played.only();
        let begin = if seen { created_ms } else { 100_000 };
        // A second answer does not move it again.
        assert_eq!(trace.spans[0].start, Timestamp(begin * MILLISECOND), "{created_ms}");
        assert_eq!(trace.spans[1].start, trace.spans[0].start);
        assert_eq!(trace.spans[2].start, Timestamp(100_000 * MILLISECOND));
    }
}

#[test]
fn how_long_a_namespace_took_to_make_is_marked() {
    // Its inode's time may be a tick early.
    for (there_ms, marked_ms) in [(95, 95), (76, 80)] {
        let mut scene = Scene::by_runtime("cnitool");
        let plugin = scene.at(100).plugin("bridge", &add("sb", "eth0"));
        scene.at(101).netns_made("sb", 80, Some(there_ms));
        scene.at(103).exit(plugin, 0).at(1_000).tick();
        let played = scene.play();
        let events = &played.only().spans[1].events;
        let events: Vec<_> = events.iter().map(|event| (event.name.as_str(), event.at)).collect();
        assert_eq!(events, [(registry::EVENT_NETNS, Timestamp(marked_ms * MILLISECOND))]);
        assert_eq!(
            played.text().contains("[from namespace, made in 15.0 ms]"),
            there_ms == 95
        );
    }
}

#[test]
fn a_namespace_of_nobody_is_an_orphan() {
    let mut scene = Scene::new();
    scene.at(1).netns("nobody", 0);
    assert_eq!(scene.play().counters().orphan, 1);
}

#[test]
fn the_cri_names_the_pod_of_a_sandbox() {
    let described = |preexisting| SandboxDescription {
        sandbox: SandboxId("sb".to_owned()),
        identity: PodIdentity {
            namespace: "shop".to_owned(),
            name: "cart-0".to_owned(),
            uid: "u".to_owned(),
            labels: vec![("app".to_owned(), "cart".to_owned())],
        },
        created_unix_ns: 5 * SECOND,
        ready: true,
        preexisting,
    };
    // Described while it is being created.
    let mut scene = Scene::by_runtime("cnitool");
    let plugin = scene.at(0).plugin("bridge", &of_pod(add("sb", "eth0"), "cart-0"));
    scene
        .at(1)
        .described(described(false))
        .at(2)
        .exit(plugin, 0)
        .at(1_000)
        .tick();
    let played = scene.play().finish();
    let identity = &played.only().identity;
    assert_eq!((identity.uid.as_str(), identity.labels.len()), ("uid-cart-0", 1));

    // Older than the agent.
    let mut scene = Scene::new();
    scene.at(1_000).event(Body::ClockAnchored { unix_ns: 20 * SECOND });
    scene.described(described(true)).described(described(true));
    scene.ran("macvlan", &add("sb", "net1"), 2_000, 2_010);
    scene.ran("bridge", &del("sb", "eth0"), 3_000, 3_010);
    scene.at(4_000).tick();
    let played = scene.play().finish();
    let known: Vec<_> = played
        .outputs
        .iter()
        .filter(|output| matches!(output, Output::Preexisting { .. } | Output::LabelsNeeded(_)))
        .collect();
    assert_eq!(
        known,
        [&Output::Preexisting {
            sandbox: SandboxId("sb".to_owned()),
            identity: described(true).identity,
            // Before the node booted, as far as the clocks show.
            created: Timestamp(0),
        }]
    );
    assert_text(
        &played.text(),
        "
cni ADD          +0 ns 10.0 ms [shop/cart-0, sb, net1]
  plugin macvlan +0 ns 10.0 ms
cni DEL          +0 ns 10.0 ms [shop/cart-0, sb, eth0]
  plugin bridge  +0 ns 10.0 ms
",
    );
    assert!(played.closed.iter().all(|trace| trace.root().links.is_empty()));
    assert_eq!(played.closed[0].anchor.unix_ns, 20 * SECOND);
}

#[test]
fn the_clock_anchor_is_that_of_the_begin() {
    let mut scene = Scene::by_runtime("cnitool");
    scene.at(1).event(Body::ClockAnchored { unix_ns: 100 });
    let plugin = scene.at(2).plugin("bridge", &add("sb", "eth0"));
    scene.at(3).event(Body::ClockAnchored { unix_ns: 900 });
    scene.at(4).exit(plugin, 0);
    scene.ran("bridge", &cni("STATUS", "", ""), 5, 6);
    scene.at(2_000).tick();
    let played = scene.play().finish();
    let anchors: Vec<_> = played.closed.iter().map(|trace| trace.anchor.unix_ns).collect();
    assert_eq!(anchors, [100, 900]);
    assert!(matches!(played.closed[0].root().detail, Detail::Sandbox(_)));
}
