//! The image and the chart as shipped, in a real Kubernetes: the agent's traces and metrics against API server, kubelet,
//! containerd and Jaeger.
//!
//! `make test-cluster` starts the node and runs these one after the other; without a node each prints `SKIPPED`. Those that hold durations
//! against other clocks come last, and wait until nothing else runs (`Node::wait_to_be_alone`). Tests run in the order of their paths, so that
//! all stand in this file.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test"
)]

#[path = "cluster/attacks.rs"]
mod attacks;
#[path = "cluster/crowd.rs"]
mod crowd;
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "dashboards/of_a_cluster.rs"]
mod dashboards;
#[path = "cluster/judged.rs"]
mod judged;
#[path = "cluster/node.rs"]
mod node;
#[path = "cluster/observed.rs"]
mod observed;
#[path = "cluster/own_time.rs"]
mod own_time;
#[path = "cluster/page.rs"]
mod page;
#[path = "cluster/peers.rs"]
mod peers;
#[path = "cluster/pods.rs"]
mod pods;
#[path = "lab/query.rs"]
mod query;
#[path = "cluster/removal.rs"]
mod removal;
#[path = "cluster/scheduling.rs"]
mod scheduling;
#[path = "cluster/state.rs"]
mod state;
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "lab/tracefs.rs"]
mod tracefs;
#[path = "cluster/workloads.rs"]
mod workloads;

use std::path::{Path, PathBuf};
use std::time::Instant;

use node::{AGENT, NAMESPACE, Node, PROMETHEUS, http, try_http, wait_for};
use pods::{PodWatch, assert_same, assert_whole, by_uid, names, operation_traces, sandbox_traces};
use removal::{all_left, assert_left, assert_removal};
use sandglass_lab::pressure::Pressure;
use serde_json::Value;

/// A path of the tree.
fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// So that another runtime's sandboxes on the same machine do not push ours out.
const ROOMY: &str = "--set=config.store.max_traces=20000";
/// What is observed with the chart's capabilities.
const ALL: [&str; 6] = ["exec", "stdio", "netns", "dns", "connect", "conntrack"];
/// Memory limit of the chart.
const LIMIT_KB: u64 = 96 << 10;
const OTLP: &str = "--set=otlp.endpoint=http://127.0.0.1:4317";

/// The plain manifests as they are in the tree, without a single change.
#[test]
fn a_the_plain_manifests_do_the_same() {
    let test = "a_the_plain_manifests_do_the_same";
    let Some(node) = Node::find(test) else { return };
    let before = all_left(&node);
    let file = root("deploy/manifests/linux.yaml");
    let file = file.to_str().unwrap();
    node.kubectl(&["apply", "--filename", file]);
    node.kubectl(&[
        "rollout",
        "status",
        "daemonset/sandglass",
        "--namespace",
        NAMESPACE,
        "--timeout=180s",
    ]);
    assert_attached(&ALL);
    assert_one_pod_is_traced(&node, "plain");
    assert_removal(test, &node, || {
        node.kubectl(&["delete", "--filename", file, "--wait"]);
    });
    assert_left(&node, &before);
}

/// Each capability taken away in turn: the agent reports what it lost, as the table in deploy/README.md lists it, and runs on.
#[test]
fn b_without_a_capability_the_agent_says_what_it_lost() {
    let Some(node) = Node::find("b_without_a_capability_the_agent_says_what_it_lost") else {
        return;
    };
    node.namespace();
    let all = ["BPF", "PERFMON", "SYS_PTRACE", "NET_ADMIN"];
    for taken in all {
        let rest: Vec<&str> = all.into_iter().filter(|capability| *capability != taken).collect();
        let set = format!("--set=linux.capabilities={{{}}}", rest.join(","));
        match taken {
            // Nothing can be observed: the agent ends with the reason.
            "BPF" | "PERFMON" => {
                node.install_without_waiting(&[ROOMY, &set]);
                let (code, log) = wait_for(&format!("the end of an agent without {taken}"), 120, || ended(&node));
                assert_eq!(code, 77, "without {taken}: {log}");
                assert!(
                    log.contains("hint: ") && log.contains("CAP_BPF and CAP_PERFMON"),
                    "without {taken}: {log}"
                );
            }
            "SYS_PTRACE" => {
                node.install(&[ROOMY, &set]);
                let lost = unattached("netns");
                assert!(
                    lost["consequence"]
                        .as_str()
                        .unwrap()
                        .contains("begins with its first plugin"),
                    "{lost}"
                );
                assert!(lost["hint"].as_str().unwrap().contains("CAP_SYS_PTRACE"), "{lost}");
                assert!(
                    node.agent_log().contains("begins with its first plugin"),
                    "{}",
                    node.agent_log()
                );
                assert_attached(&["exec"]);
                let trace = one_trace(&node, "no-ptrace");
                assert_eq!(trace["timeline"][1]["attributes"]["sandglass.netns_seen"], false);
                assert_eq!(trace["identity"]["name"], "no-ptrace");
            }
            _ => {
                node.install(&[ROOMY, &set]);
                for probe in ["dns", "conntrack"] {
                    let lost = unattached(probe);
                    assert!(lost["hint"].as_str().unwrap().contains("CAP_NET_ADMIN"), "{lost}");
                    assert!(
                        node.agent_log().contains(lost["consequence"].as_str().unwrap()),
                        "{}",
                        node.agent_log()
                    );
                }
                assert_attached(&["exec", "stdio", "netns", "connect"]);
                assert_one_pod_is_traced(&node, "no-net-admin");
            }
        }
        println!("without {taken}: as in the table");
        node.uninstall();
    }
}

/// With the CRI socket the agent knows pods that are older than itself, and labels. The judge of the workflow nodes.yml finds nothing wrong with it.
#[test]
fn c_with_the_cri_socket_older_pods_are_known() {
    let test = "c_with_the_cri_socket_older_pods_are_known";
    let Some(node) = Node::find(test) else { return };
    node.namespace();
    workloads::pod(&node, "default", "older", "pause", None);
    let socket = format!("--set=linux.cri.socket={}", node.path("run/containerd.sock").display());
    // Pods that send nothing are not waited for long.
    let ready = "--set=config.traffic.ready_deadline=8s";
    node.install(&[ROOMY, ready, "--set=linux.cri.enabled=true", &socket]);
    wait_for("the older pod", 60, || {
        let known = http(AGENT, "/api/v1/known");
        if known.to_string().contains("\"older\"") {
            Ok(())
        } else {
            Err(known.to_string())
        }
    });
    judged::assert_judged(test, &node);
    node.kubectl(&["delete", "pod", "older", "--namespace=default", "--now"]);
    node.uninstall();
}

/// A real Prometheus finds the agent by the pod's annotations, as it does without an operator.
#[test]
fn d_prometheus_finds_the_agent_by_its_annotations() {
    let test = "d_prometheus_finds_the_agent_by_its_annotations";
    let Some(node) = Node::find(test) else { return };
    if !node.path("run/prometheus.pid").exists() {
        eprintln!("SKIPPED {test}: prometheus is not installed");
        return;
    }
    node.namespace();
    node.install(&[ROOMY]);
    node.find_targets();
    workloads::pod(&node, "default", "scraped", "pause", None);
    let value = |query: &str| -> Option<f64> {
        let answer: Value =
            serde_json::from_str(&try_http(PROMETHEUS, &format!("/api/v1/query?query={query}")).ok()?).ok()?;
        answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    };
    for (query, least) in [
        ("up%7Bjob=%22sandglass%22,node=%22n1%22%7D", 1.0),
        (
            "sum(sandglass_cni_operation_duration_seconds_count%7Boperation=%22ADD%22%7D)",
            1.0,
        ),
    ] {
        wait_for(query, 90, || match value(query) {
            Some(found) if found >= least => Ok(()),
            found => Err(format!("{found:?}")),
        });
    }
    node.kubectl(&["delete", "pod", "scraped", "--namespace=default", "--now"]);
    node.uninstall();
}

/// A slow plugin in the chain wakes the person on call, and panels, rules and alerts have their data.
#[test]
fn e_a_slow_plugin_wakes_the_person_on_call_and_every_query_has_data() {
    let test = "e_a_slow_plugin_wakes_the_person_on_call_and_every_query_has_data";
    let Some(node) = Node::find(test) else { return };
    node.namespace();
    let socket = format!("--set=linux.cri.socket={}", node.path("run/containerd.sock").display());
    // The node's networks keep their addresses there (`dataDir`).
    let state = format!("--set=linux.cni.stateDir={}", node.path("ipam").display());
    node.install(&[ROOMY, OTLP, "--set=linux.cri.enabled=true", &socket, &state]);
    let Some(observed) = observed::Observed::start(test, &node) else {
        node.uninstall();
        return;
    };
    let namespace = "work";
    node.kubectl(&["create", "namespace", namespace]);
    observed.every_query_has_data(|| {
        observed.slow_plugin_wakes(&node, namespace);
        observed::Observed::long_add(&node, namespace);
        observed.failing_del(&node, namespace);
        for _ in 0..2 {
            workloads::start_failing(&node, namespace, &["failing"]);
            workloads::service(&node, namespace);
            workloads::lookup(&node, namespace);
            observed.silent_server(&node, namespace);
            workloads::end_failing(&node, namespace, &["failing"]);
            workloads::delete(
                &node,
                namespace,
                &[
                    "deployment/server",
                    "service/server",
                    "job/caller",
                    "job/lookup",
                    "job/stalled",
                ],
            );
        }
    });
    node.kubectl(&["delete", "namespace", namespace]);
    node.uninstall();
}

/// Pods beside the agent forge, hold connections and reach for its page: it is neither fooled nor silenced, and traces on. The
/// agent is under the chart's own seccomp profile.
#[test]
fn f_a_pod_can_neither_forge_nor_silence_the_agent() {
    let test = "f_a_pod_can_neither_forge_nor_silence_the_agent";
    let Some(node) = Node::find(test) else { return };
    node.namespace();
    let confined = [
        "--set=linux.seccompProfile.type=Localhost",
        "--set=linux.seccompProfile.localhostProfile=sandglass.json",
    ];
    node.install(&[&[ROOMY][..], &confined].concat());
    assert_attached(&ALL);
    let before = node.agent_pod();
    let namespace = "work";
    node.kubectl(&["create", "namespace", namespace]);
    attacks::assert_ports_are_guarded(&node, namespace);
    attacks::start_flood(&node, namespace);
    attacks::start_forgers(&node, namespace);
    assert_one_pod_is_traced(&node, "honest");
    attacks::assert_answers_until_the_floods_end(&node, namespace);
    attacks::assert_refused(&attacks::end_forgers(test, &node, namespace));
    attacks::assert_undisturbed(&node, &before);
    node.kubectl(&["delete", "namespace", namespace]);
    node.uninstall();
}

/// Install, rollout, `helm test`; every kind of workload, each sandbox one complete trace; upgrade, uninstall, nothing left.
#[test]
fn g_the_chart_traces_every_sandbox_and_leaves_nothing() {
    let test = "g_the_chart_traces_every_sandbox_and_leaves_nothing";
    let Some(node) = Node::find(test) else { return };
    node.wait_to_be_alone();
    let before = all_left(&node);
    node.namespace();
    node.install(&[ROOMY, OTLP]);
    let tested = node.helm(&["test", "sandglass", "--namespace", NAMESPACE]);
    assert!(tested.contains("Succeeded"), "{tested}");
    assert_attached(&ALL);
    page::assert_guarded(&node);

    let namespace = "work";
    node.kubectl(&["create", "namespace", namespace]);
    let ran = peers::CniCounts::read();
    let watch = PodWatch::start(&node, namespace);
    let (pressure, begin) = (Pressure::now(), Instant::now());
    let mut alone = Vec::new();
    for number in 1..=10 {
        let before = peers::CniCounts::read();
        workloads::pod(&node, namespace, &format!("alone-{number}"), "pause", None);
        alone.push(before.since());
    }
    // First those that take long: Kubernetes waits between two attempts, and the trace of a pod that sends nothing stays open.
    let failing = ["failing", "broken"];
    workloads::start_failing(&node, namespace, &failing);
    workloads::slow(&node, namespace);
    workloads::scale_up_and_down(&node, namespace, 30);
    workloads::rolling_update(&node, namespace);
    workloads::job(&node, namespace);
    workloads::service(&node, namespace);
    workloads::lookup(&node, namespace);
    workloads::end_failing(&node, namespace, &failing);
    let traces = sandbox_traces(namespace);
    // The share of the time in which some task waited, of every processor in the mean.
    let waited = pressure.ns_since() as f64 / begin.elapsed().as_nanos() as f64 / processors();
    println!("tasks of the node waited {:.0} % of the time", waited * 100.0);
    let pods = watch.finish();
    assert!(pods.len() >= 10 + 30 + 6 + 3 + 5, "{} pods", pods.len());
    assert_same(&pods, &traces, |name| failing.contains(&name));
    assert_story(&traces);
    assert_traffic(&traces);
    ran.since().assert_same_count(&traces);
    let is_alone = |trace: &Value| trace["pod"].as_str().unwrap().starts_with("alone-");
    peers::assert_same_duration(
        test,
        &alone,
        &traces.iter().filter(|trace| is_alone(trace)).collect::<Vec<_>>(),
    );
    peers::assert_durations_agree(test, &traces, waited, is_alone);
    peers::assert_jaeger_shows(&traces);
    peers::assert_links_lead_on(&traces, &operation_traces(namespace));
    let health = http(AGENT, "/api/v1/health");
    for loss in ["evicted", "shed"] {
        assert_eq!(health[loss]["total"], 0, "{loss}: {}", health[loss]);
    }
    // Of traffic the agent sees all that is on the machine.
    for probe in ["exec", "stdio", "netns"] {
        assert_eq!(health["lost"]["by"][probe], 0, "{}", health["lost"]);
    }
    let (late, events) = (
        health["late"]["total"].as_u64().unwrap(),
        health["events"].as_u64().unwrap(),
    );
    println!("of {events} events {late} came late");
    assert!(late * 1000 <= events, "{late} late of {events}");

    let peak = peak_kb(node.agent_processes()[0]);
    println!("the agent's resident memory was {peak} kB at most");
    assert!(
        peak * 4 < LIMIT_KB * 3,
        "{peak} kB is too near the limit of {LIMIT_KB} kB"
    );

    // The upgrade replaces the pod, and the new agent traces on.
    let old = node.agent_pod()["metadata"]["uid"].clone();
    let http_protobuf = [
        "--set=otlp.endpoint=http://127.0.0.1:4318",
        "--set=otlp.protocol=http/protobuf",
    ];
    // And from the runtime's seccomp profile to ours, with which the same is attached.
    let confined = [
        "--set=linux.seccompProfile.type=Localhost",
        "--set=linux.seccompProfile.localhostProfile=sandglass.json",
    ];
    node.install(&[&[ROOMY, "--set=image.tag=next"][..], &http_protobuf, &confined].concat());
    assert_attached(&ALL);
    let pod = node.agent_pod();
    assert_ne!(pod["metadata"]["uid"], old);
    assert!(
        pod["spec"]["containers"][0]["image"]
            .as_str()
            .unwrap()
            .ends_with(":next")
    );
    let after = assert_one_pod_is_traced(&node, "after-upgrade");
    peers::assert_jaeger_shows(&[after]);

    node.kubectl(&["delete", "namespace", namespace]);
    assert_removal(test, &node, || {
        node.uninstall();
    });
    assert_left(&node, &before);
}

#[test]
fn h_a_trace_covers_what_containerd_does_for_a_pod() {
    own_time::a_trace_covers_what_containerd_does("h_a_trace_covers_what_containerd_does_for_a_pod");
}

#[test]
fn i_the_run_queue_of_95_pods_at_once_is_that_of_the_kernel() {
    crowd::the_run_queue_is_that_of_the_kernel("i_the_run_queue_of_95_pods_at_once_is_that_of_the_kernel");
}

/// The traces of the slow and the failing pod must name the culprit.
fn assert_story(traces: &[Value]) {
    let of = |name: &str| -> Vec<&Value> {
        let named = traces.iter().filter(|trace| trace["pod"] == name);
        named.collect()
    };
    let slow = of("slow");
    assert_eq!(slow.len(), 1);
    let verdict = slow[0]["verdict"].as_str().unwrap();
    assert!(
        verdict.contains("sleep") || verdict.contains("slow-policy"),
        "{verdict}"
    );
    assert!(names(slow[0]).contains(&"command sleep"), "{:?}", names(slow[0]));
    let failing = of("failing");
    assert!(failing.len() >= 2, "only {} attempts", failing.len());
    let refusal = failing[0]["timeline"]
        .as_array()
        .unwrap()
        .iter()
        .find(|span| span["name"] == "plugin strict-policy");
    assert_eq!(
        refusal.unwrap()["error_message"],
        "no policy allows this pod",
        "{}",
        failing[0]["trace_id"]
    );
}

/// A name resolved through CoreDNS and a call through a Service: both in the trace of the pod that did it, with the
/// address behind the Service as conntrack translated it.
fn assert_traffic(traces: &[Value]) {
    let spans = |prefix: &str, name: &str| -> Vec<Value> {
        let trace = traces
            .iter()
            .find(|trace| trace["pod"].as_str().unwrap().starts_with(prefix))
            .unwrap();
        let spans = trace["timeline"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|span| span["name"] == name);
        let spans: Vec<Value> = spans.cloned().collect();
        assert!(
            !spans.is_empty(),
            "no {name} in the trace of {prefix}: {:?}",
            names(trace)
        );
        spans
    };
    let lookup = &spans("lookup-", "lookup")[0];
    assert_eq!(
        lookup["attributes"]["dns.question.name"], "server.work.svc.cluster.local",
        "{lookup}"
    );
    assert_eq!(lookup["attributes"]["sandglass.dns.rcode"], "noerror", "{lookup}");
    let connect = &spans("caller-", "connect")[0];
    assert_eq!(connect["attributes"]["network.peer.port"], 80, "{connect}");
    let backend = connect["attributes"]["sandglass.nat.backend"]
        .as_str()
        .unwrap_or_default();
    assert!(
        backend.starts_with("10.244.0.") && backend.ends_with(":8080"),
        "{connect}"
    );
}

fn assert_attached(probes: &[&str]) {
    let health = http(AGENT, "/api/v1/health");
    for probe in probes {
        let statuses = health["probes"].as_array().unwrap();
        let status = statuses.iter().find(|status| status["probe"] == *probe).unwrap();
        assert_eq!(status["attached"], true, "{status}");
    }
}

fn unattached(probe: &str) -> Value {
    let health = http(AGENT, "/api/v1/health");
    let status = health["probes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|status| status["probe"] == probe)
        .cloned();
    let status = status.unwrap();
    assert_eq!(status["attached"], false, "{status}");
    status
}

fn assert_one_pod_is_traced(node: &Node, name: &str) -> Value {
    let trace = one_trace(node, name);
    assert_eq!(trace["result"], "ok");
    assert_whole(&trace);
    assert_eq!(
        trace["timeline"][1]["attributes"]["sandglass.netns_seen"], true,
        "{}",
        trace["timeline"][1]
    );
    trace
}

/// Runs one pod, and gives its only trace.
fn one_trace(node: &Node, name: &str) -> Value {
    let namespace = format!("one-{name}");
    node.kubectl(&["create", "namespace", &namespace]);
    let watch = PodWatch::start(node, &namespace);
    workloads::pod(node, &namespace, name, "pause", None);
    let pods = watch.finish();
    // Before its trace is read: it ends with the pod, which sends nothing, or after `traffic.ready_deadline`.
    node.kubectl(&["delete", "pod", name, "--namespace", &namespace, "--now"]);
    let traces = sandbox_traces(&namespace);
    assert_eq!((pods.len(), traces.len()), (1, 1), "{pods:?}");
    let uid = &pods.first().unwrap().uid;
    assert_eq!(by_uid(&traces).keys().collect::<Vec<_>>(), [uid]);
    node.kubectl(&["delete", "namespace", &namespace, "--wait=false"]);
    traces.into_iter().next().unwrap()
}

/// Exit code and words of an agent that ended.
fn ended(node: &Node) -> Result<(i64, String), String> {
    let pod = node.agent_pod();
    let status = &pod["status"]["containerStatuses"][0];
    let ends = [
        &status["state"]["terminated"]["exitCode"],
        &status["lastState"]["terminated"]["exitCode"],
    ];
    let code = ends
        .into_iter()
        .find_map(Value::as_i64)
        .ok_or_else(|| status.to_string())?;
    // Between two containers of the pod the kubelet has no log of either, and reports that or nothing.
    match node.agent_log() {
        log if log.is_empty() || log.contains("unable to retrieve container logs") => Err(format!("log: {log:?}")),
        log => Ok((code, log)),
    }
}

fn processors() -> f64 {
    std::thread::available_parallelism().unwrap().get() as f64
}

fn peak_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}
