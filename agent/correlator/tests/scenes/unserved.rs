//! Sandboxes for which no plugin ran: the runtime named their network namespace, and nothing else of them is seen.

use sandglass_model::cni::ConfigProblem;
use sandglass_model::trace::{Cause, Confidence};
use sandglass_model::{Body, Trace};

use crate::scene::{Env, Scene, add, assert_text, del, of_pod, with};

const NAME: &str = "cni-0a1b2c3d-1111-2222-3333-0123456789ab";
const MISSING: (&str, &str) = (
    "no_plugin",
    "/etc/cni/net.d/10-x.conflist: no plugin \"x\" in /opt/cni/bin",
);

fn in_namespace(env: Env, name: &str) -> Env {
    with(env, "CNI_NETNS", &format!("/var/run/netns/{name}"))
}

fn cause(trace: &Trace) -> Option<&Cause> {
    trace.spans[1].detail.as_create()?.cause.as_deref()
}

#[test]
fn a_namespace_that_is_named_and_removed_without_a_plugin_is_a_failed_sandbox() {
    let mut scene = Scene::new();
    scene.at(0).judged(&[MISSING]);
    scene
        .at(1_000)
        .netns_named(NAME, false)
        .at(1_040)
        .netns_named(NAME, true);
    scene.at(10_999).tick();
    assert_eq!(scene.play().closed, []);
    scene.at(11_000).tick();
    let played = scene.play();
    assert_text(
        &played.text(),
        "
sandbox          +0 ns 40.0 ms [containerd, error sandbox_failed: no plugin ran for its network namespace: \
         /etc/cni/net.d/10-x.conflist: no plugin \"x\" in /opt/cni/bin (likely)]
  sandbox.create +0 ns 40.0 ms [from namespace, error sandbox_failed: no plugin ran for its network namespace: \
         /etc/cni/net.d/10-x.conflist: no plugin \"x\" in /opt/cni/bin (likely)]
",
    );
    let trace = played.only();
    assert_eq!((&trace.sandbox, trace.incomplete), (&None, false));
    let cause = cause(trace).unwrap();
    assert_eq!(
        (cause.cause.as_str(), cause.confidence),
        ("cni_no_plugin", Confidence::Likely)
    );
    assert_eq!(
        cause.evidence[1],
        format!("no plugin was executed for network namespace {NAME}")
    );
    // Once is enough, and the end of the input adds nothing.
    scene.at(60_000).tick();
    assert_eq!(scene.play().finish().closed.len(), 1);
}

/// containerd keeps the name where its clean-up fails for the same reason; when the attempt ended is then not seen.
#[test]
fn a_name_that_stays_counts_where_the_configuration_explains_it() {
    let mut scene = Scene::new();
    scene.at(1_000).netns_named(NAME, false);
    // The agent looks at the configuration every few seconds.
    scene
        .at(4_000)
        .judged(&[("bad_file", "/etc/cni/net.d/10-x.conflist: not JSON, line 3, column 7")]);
    scene.at(11_000).tick();
    assert_text(
        &scene.play().text(),
        "
sandbox          +0 ns 0 ns [containerd, error sandbox_failed: no plugin ran for its network namespace: \
         /etc/cni/net.d/10-x.conflist: not JSON, line 3, column 7 (likely)]
  sandbox.create +0 ns 0 ns [from namespace, error sandbox_failed: no plugin ran for its network namespace: \
         /etc/cni/net.d/10-x.conflist: not JSON, line 3, column 7 (likely)]
",
    );
}

#[test]
fn a_problem_that_was_mended_meanwhile_is_still_the_cause() {
    let mut scene = Scene::by_runtime("crio");
    scene
        .at(0)
        .judged(&[("no_configuration", "no network configuration in /etc/cni/net.d")]);
    scene.at(1_000).netns_named(&NAME[4..], false);
    scene.at(4_000).judged(&[]);
    scene.at(11_000).tick();
    let played = scene.play();
    assert_eq!(cause(played.only()).unwrap().cause, "cni_no_configuration");
    assert_eq!(played.only().spans[0].detail.as_sandbox().unwrap().runtime, "cri-o");
}

/// The earlier judgement may be some seconds old when the runtime fails.
#[test]
fn of_two_problems_the_later_is_possible() {
    let mut scene = Scene::new();
    scene.at(0).judged(&[MISSING]);
    scene.at(1_000).netns_named(NAME, false);
    scene.at(4_000).judged(&[("bad_file", "10-x.conflist: not JSON")]);
    scene.at(11_000).tick();
    let played = scene.play();
    let cause = cause(played.only()).unwrap();
    assert_eq!(
        (cause.cause.as_str(), cause.confidence),
        ("cni_bad_file", Confidence::Possible)
    );
}

/// libcni removes in reverse order: plugins behind the missing one run for the DEL, and name the pod.
#[test]
fn a_del_says_which_sandbox_it_was() {
    let mut scene = Scene::new();
    scene.at(0).judged(&[MISSING]);
    scene.at(1_000).netns_named(NAME, false);
    let env = in_namespace(of_pod(del("sb", "eth0"), "cart"), NAME);
    scene.ran("portmap", &env, 1_010, 1_020);
    scene.at(11_000).tick();
    let played = scene.play();
    let failed = played
        .closed
        .iter()
        .find(|trace| trace.root().detail.as_sandbox().is_some());
    let failed = failed.unwrap();
    assert_eq!(failed.identity.name, "cart");
    assert_eq!(failed.sandbox.as_ref().unwrap().0, "sb");
}

#[test]
fn a_runtime_handlers_problem_is_possible_only() {
    let mut scene = Scene::new();
    scene.at(0).event(Body::CniConfigJudged {
        problems: vec![ConfigProblem {
            kind: MISSING.0.to_owned(),
            text: MISSING.1.to_owned(),
            handlers: vec!["kata".to_owned()],
        }],
    });
    scene.at(1_000).netns_named(NAME, false);
    scene.at(11_000).tick();
    let played = scene.play();
    let cause = cause(played.only()).unwrap();
    assert_eq!(cause.confidence, Confidence::Possible);
    assert!(cause.evidence[0].ends_with("for runtime handler kata"), "{cause:?}");
}

/// The configuration shows nothing: a name that is gone within the wait is a sandbox that the runtime gave up, if plugins
/// are visible at all.
#[test]
fn without_a_reason_only_a_name_that_is_gone_counts() {
    let other = &NAME.replace("0a1b", "ffff");
    let played = |visible: bool, removed: bool| {
        let mut scene = Scene::new();
        if visible {
            scene.ran("bridge", &in_namespace(add("other", "eth0"), other), 0, 10);
        }
        scene.at(1_000).netns_named(NAME, false);
        if removed {
            scene.at(1_030).netns_named(NAME, true);
        }
        scene.at(60_000).tick();
        let played = scene.play().finish();
        let mut messages = played.closed.iter().map(|trace| format!("{:?}", trace.root().status));
        messages.find(|message| message.contains("no plugin ran"))
    };
    let shown = played(true, true).unwrap();
    assert!(shown.contains("and the CNI configuration shows no reason"), "{shown}");
    assert_eq!(played(true, false), None);
    assert_eq!(played(false, true), None);
}

#[test]
fn what_is_no_sandbox_or_was_served_or_may_have_been_is_left_alone() {
    let quiet = |prepare: &dyn Fn(&mut Scene)| {
        let mut scene = Scene::new();
        scene.at(0).judged(&[MISSING, ("new_kind", "of a newer agent")]);
        prepare(&mut scene);
        scene.at(90_000).tick();
        let played = scene.play().finish();
        assert!(!played.text().contains("no plugin ran"), "{}", played.text());
    };
    // `ip netns add`, podman, tests of CNI plugins.
    for name in [
        "blue",
        &NAME.replace("cni-", "netns-"),
        &NAME.replace("cni-", "cnitest-"),
    ] {
        quiet(&|scene| {
            scene
                .at(1_000)
                .netns_named(name, false)
                .at(1_010)
                .netns_named(name, true);
        });
    }
    let env = &in_namespace(add("sb", "eth0"), NAME);
    quiet(&|scene| {
        scene.at(1_000).netns_named(NAME, false);
        scene.ran("bridge", env, 2_000, 2_010);
        scene.at(2_500).netns_named(NAME, true);
    });
    // The thread that sees names woke up late.
    quiet(&|scene| {
        scene.ran("bridge", env, 900, 2_010);
        scene.at(2_500).netns_named(NAME, false).netns_named(NAME, true);
    });
    // The ADD's record may be among those that were lost.
    quiet(&|scene| {
        scene.at(1_000).netns_named(NAME, false);
        scene.at(3_000).lost(4);
    });
    quiet(&|scene| {
        scene.at(900).lost(4);
        scene.at(1_000).netns_named(NAME, false);
    });
    quiet(&|scene| {
        scene.at(1_000).judged(&[("new_kind", "of a newer agent")]);
        scene.netns_named(NAME, false);
    });
}

#[test]
fn the_configuration_says_why_a_runtime_gave_a_sandbox_up() {
    let mut scene = Scene::new();
    scene.at(0).judged(&[MISSING]);
    scene.ran("loopback", &in_namespace(add("sb", "lo"), NAME), 10, 12);
    scene.ran("loopback", &in_namespace(del("sb", "lo"), NAME), 20, 22);
    scene.at(1_000).tick();
    let played = scene.play();
    let given_up = &played.closed[0];
    let shown = format!("{:?}", given_up.root().status);
    assert!(
        shown.contains("the runtime gave the sandbox up before it started it: /etc/cni/net.d/10-x.conflist: no plugin"),
        "{shown}"
    );
    assert_eq!(cause(given_up).unwrap().confidence, Confidence::Likely);
    // A plugin that failed is the reason itself.
    let mut scene = Scene::new();
    scene.at(0).judged(&[MISSING]);
    let plugin = scene.at(10).plugin("bridge", &add("sb", "eth0"));
    scene.at(12).exit(plugin, 1);
    scene.ran("bridge", &del("sb", "eth0"), 20, 22);
    scene.at(1_000).tick();
    assert_eq!(cause(&scene.play().closed[0]), None);
}

#[test]
fn what_is_kept_of_names_is_bounded() {
    let mut scene = Scene::new();
    scene.at(0).judged(&[MISSING]);
    for number in 0..3_000 {
        let name = format!("cni-0a1b2c3d-1111-2222-3333-{number:012x}");
        scene.at(1_000).netns_named(&name, false);
    }
    scene.at(60_000).tick();
    let played = scene.play().finish();
    assert_eq!(played.closed.len(), 1_024);
    assert_eq!(played.counters().evicted_remembered.total(), 3_000 - 1_024);
}
