//! The same sandboxes from CRI-O with runc and crun, with the pause process that it starts for some, and without.
//!
//! Used by `end_to_end.rs`. `SANDGLASS_CRIO` names a directory with `crio` and `pinns` (`scripts/peer.sh crio` builds them);
//! conmon, runc and podman, which brings the pause image in, are packages. Without one of them each test is skipped, by name.
//! Left out: CRI-O has no pod with two networks, and gives a plugin that hangs five minutes beyond its caller's deadline.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use sandglass_demo::networks::{FAILING_MESSAGE, Network};
use sandglass_demo::pods::{CallRecord, Pod};
use sandglass_demo::rig::RigOptions;
use sandglass_demo::scenarios;
use sandglass_demo::verify::network::is_of_the_node;
use sandglass_demo::verify::{self, clock};
use sandglass_model::cni::CniCommand;
use sandglass_model::trace::{Detail, RuntimeStep, Status, Trace};
use sandglass_model::{Timestamp, text};

use crate::fifty_sandboxes;
use crate::older::older_sandbox;
use crate::own_time::{assert_is_whole, reads_cri};
use crate::rig::{Agent, Node, assert_passed};
use crate::runtimes::{installed, older_sandboxes, one_of_each, ready, steps, without_hybrid_cgroups};

#[tokio::test(flavor = "multi_thread")]
async fn cri_o_is_traced_as_completely() {
    let test = "cri_o_is_traced_as_completely";
    let Some(options) = crio(test) else { return };
    traced_as_completely(test, options, "runc").await;
}

/// What CRI-O's own packages have it start containers with.
#[tokio::test(flavor = "multi_thread")]
async fn crun_below_cri_o_is_recognised() {
    let test = "crun_below_cri_o_is_recognised";
    let Some(options) = crio(test) else { return };
    let Some(crun) = installed("crun") else {
        eprintln!("SKIPPED {test}: crun is not installed");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let crun = without_hybrid_cgroups(&crun, directory.path());
    let options = RigOptions {
        oci_runtime: Some(older_specification(&crun, directory.path())),
        ..options
    };
    traced_as_completely(test, options, "crun").await;
}

/// The demo's scenarios, with a program that starts containers.
async fn traced_as_completely(test: &str, options: RigOptions, runtime: &str) {
    let Some(node) = Node::with(test, options).await else {
        return;
    };
    let lists = node.lists();
    let mut config = node.config_for_traffic();
    config.cni.conf_dir = Some(lists.path().to_owned());
    let Some(mut agent) = Agent::of(&node, &config, test).await else {
        return;
    };
    let mut records = Vec::new();
    for mut pods in scenarios::steps(1) {
        pods.retain(|pod| !matches!(pod.network, Network::Two | Network::Hanging));
        records.extend(node.make(pods).await);
    }
    for record in &mut records {
        if scenarios::DELETED.contains(&record.pod.identity.name.as_str()) {
            scenarios::delete(&node.cri, record).await.unwrap();
        }
    }
    settled(&mut agent, &node, &records).await;
    let traces = agent.traces_of(&node);
    for trace in ready(&traces, &records) {
        let conmon = steps(trace, RuntimeStep::Shim);
        assert_eq!(conmon.len(), 1);
        assert_eq!(conmon[0].file_name().unwrap(), "conmon");
        one_of_each(trace, runtime);
        assert!(from_namespace(trace));
        if reads_cri(&agent) {
            assert_is_whole(trace);
        }
    }
    agent.stop().await;
    node.stop().await;
}

/// As the kubelet requests them: nothing is executed after the last plugin, and the runtime's word is all there is.
#[tokio::test(flavor = "multi_thread")]
async fn cri_o_is_traced_where_it_starts_no_pause_process() {
    let test = "cri_o_is_traced_where_it_starts_no_pause_process";
    let Some(options) = crio(test) else { return };
    let Some(node) = Node::with(test, options).await else {
        return;
    };
    // As on a node: the agent reads the configuration that the runtime reads.
    let mut config = node.config();
    config.cni.conf_dir = Some(node.rig.conf_dir(Network::Plain));
    let Some(mut agent) = Agent::of(&node, &config, test).await else {
        return;
    };
    let apart = |name, number, network| Pod {
        apart: true,
        ..Pod::new(name, number, network)
    };
    let mut records = node.make(vec![apart("cart-0", 1, Network::Plain)]).await;
    let metrics = node.rig.runtime_metrics().unwrap();
    // Gone before anything else could show that it was created.
    scenarios::delete(&node.cri, &mut records[0]).await.unwrap();
    // Mostly the agent has not requested its labels from the runtime by then.
    if agent.creation_of(&records[0]).await.identity.labels.is_empty() {
        records[0].pod.identity.labels.clear();
    }
    let more = vec![
        apart("cart-1", 2, Network::Plain),
        apart("web-0", 3, Network::Plain),
        apart("billing-0", 4, Network::Failing),
    ];
    records.extend(node.make(more).await);
    settled(&mut agent, &node, &records).await;
    let first = verify::creation(agent.traces(), &records[0]).unwrap();
    for check in clock::crio(first, &records[0], &metrics) {
        assert!(check.result.is_ok() || check.is_unjudged(), "{check:?}");
        if check.is_unjudged() {
            eprintln!("NOT JUDGED {test}::crio: {}", check.text().trim());
        }
    }
    for record in &records {
        let trace = verify::creation(agent.traces(), record).unwrap();
        assert!(from_namespace(trace) || record.outcome.is_err());
        for step in [RuntimeStep::Shim, RuntimeStep::Create, RuntimeStep::Start] {
            assert_eq!(steps(trace, step).len(), 0, "{}", record.pod.identity.name);
        }
    }
    agent.stop().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_sandboxes_of_cri_o_are_neither_lost_nor_mixed_up() {
    let test = "fifty_sandboxes_of_cri_o_are_neither_lost_nor_mixed_up";
    let Some(options) = crio(test) else { return };
    fifty_sandboxes(test, options).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cri_o_reports_sandboxes_older_than_the_agent() {
    let test = "cri_o_reports_sandboxes_older_than_the_agent";
    let Some(options) = crio(test) else { return };
    older_sandboxes(test, options).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_cri_o_too_an_older_sandbox_has_traffic_of_its_own() {
    let test = "of_cri_o_too_an_older_sandbox_has_traffic_of_its_own";
    let Some(options) = crio(test) else { return };
    // As the kubelet requests it: its verbose status has no process.
    let pod = Pod {
        apart: true,
        ..Pod::new("cart-0", 1, Network::Plain)
    };
    older_sandbox(test, options, pod).await;
}

/// The judge of the workflow nodes.yml, with a crictl of its own release: what it says of a node is true of this one.
#[tokio::test(flavor = "multi_thread")]
async fn the_judge_of_nodes_accepts_cri_o() {
    let test = "the_judge_of_nodes_accepts_cri_o";
    let Some(options) = crio(test) else { return };
    let Some(crictl) = std::env::var_os("SANDGLASS_CRICTL").map(PathBuf::from) else {
        eprintln!("SKIPPED {test}: SANDGLASS_CRICTL names no crictl; scripts/peer.sh crictl builds one");
        return;
    };
    let Some(node) = Node::with(test, options).await else {
        return;
    };
    let mut config = node.config();
    config.cni.conf_dir = Some(node.rig.chosen_networks());
    let Some(agent) = Agent::serving(&node, &config, test).await else {
        return;
    };
    let evidence = tempfile::tempdir().unwrap();
    let [page, metrics] = agent.addresses();
    let mut judge = Command::new("python3");
    judge
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/nodes/judge.py"))
        .arg(evidence.path())
        .args(["--plugin", "bridge", "--plugin", "host-local", "--shared"])
        .arg(format!("--page=http://{page}"))
        .arg(format!("--metrics=http://{metrics}"))
        .arg(format!("--networks={}", node.rig.chosen_networks().display()))
        .arg(format!("--plugins={}", node.rig.bin_dir().display()));
    let socket = node.rig.cri_socket();
    judge.arg(format!(
        "--crictl={} --runtime-endpoint unix://{} --timeout 60s",
        crictl.display(),
        socket.display()
    ));
    let judged = tokio::task::spawn_blocking(move || judge.output())
        .await
        .unwrap()
        .unwrap();
    let printed = String::from_utf8_lossy(&judged.stdout);
    for line in printed.lines().filter(|line| line.starts_with("NOT JUDGED ")) {
        eprintln!("{}", line.replace("judge::", &format!("{test}::")));
    }
    assert!(
        judged.status.success() && printed.lines().last().unwrap().starts_with("passed: "),
        "{printed}{}",
        String::from_utf8_lossy(&judged.stderr)
    );
    agent.stop().await;
    node.stop().await;
}

/// Every trace is right, and there is none of anything else; those that failed say why.
async fn settled(agent: &mut Agent, node: &Node, records: &[CallRecord]) {
    assert_passed(&agent.settle(records).await);
    let mut traces = agent.traces_of(node);
    // It executes the plugins for their versions whenever it reads its networks (ocicni, `loadNetworks`).
    traces.retain(|trace| !is_version(trace));
    let unknown = |trace: &&Arc<Trace>| {
        let of_records = records
            .iter()
            .filter_map(|record| verify::creation(&traces, record).ok());
        let known = trace.sandbox.is_some() && of_records.into_iter().any(|creation| creation.sandbox == trace.sandbox);
        !known && !is_of_the_node(trace)
    };
    let strangers = traces
        .iter()
        .filter(unknown)
        .map(|trace| text::tree(trace, Timestamp::default()));
    let strangers: String = strangers.collect();
    assert!(
        strangers.is_empty(),
        "traces of nothing that was requested:\n{strangers}"
    );
    let reads = agent.reads_stdio();
    for record in records.iter().filter(|record| record.outcome.is_err()) {
        let trace = verify::creation(&traces, record).unwrap();
        let Status::Error { message, .. } = &trace.root().status else {
            panic!("{}: not failed", record.pod.identity.name);
        };
        assert!(message.contains(FAILING_MESSAGE) || !reads, "{message}");
    }
}

/// crun 1.8 refuses the version of the OCI runtime specification that CRI-O 1.34 writes ("unknown version specified"): it reads an older one,
/// and all else as it is.
fn older_specification(runtime: &Path, directory: &Path) -> PathBuf {
    let path = directory.join("with-older-specification");
    let text = format!(
        r#"#!/bin/sh
previous=
for word do
    [ "$previous" != --bundle ] || sed -i 's/"ociVersion": *"[^"]*"/"ociVersion":"1.0.2"/' "$word/config.json"
    previous=$word
done
exec {} "$@"
"#,
        runtime.display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// It begins when CRI-O named the sandbox's network namespace.
fn from_namespace(trace: &Trace) -> bool {
    let mut creates = trace.spans.iter().filter_map(|span| match &span.detail {
        Detail::SandboxCreate(create) => Some(create.netns_seen),
        _ => None,
    });
    creates.next() == Some(true)
}

fn is_version(trace: &Trace) -> bool {
    matches!(&trace.root().detail, Detail::Operation(operation) if operation.command == CniCommand::Version)
}

/// Where CRI-O is; prints `SKIPPED` where it is not.
fn crio(test: &str) -> Option<RigOptions> {
    let directory = std::env::var_os("SANDGLASS_CRIO").map(PathBuf::from);
    if directory.is_none() {
        eprintln!("SKIPPED {test}: SANDGLASS_CRIO names no CRI-O; scripts/peer.sh crio builds one");
    }
    Some(RigOptions {
        crio: Some(directory?),
        ..RigOptions::default()
    })
}
