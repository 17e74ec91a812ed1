//! Dashboards, rules and alerts with nothing replayed: a private node with real plugins, the real agent, real peers; and
//! `sandglass-demo --observability` as a user runs it.
//!
//! Needs what `end_to_end.rs` needs, and Prometheus, Alertmanager or Jaeger; where one is missing the test is skipped by
//! name. Other work on the machine that runs CNI plugins is seen by the agent too; a test that counts takes it into account.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test"
)]

#[allow(dead_code, reason = "shared with the agent's tests of the dashboards")]
#[path = "../../tests/dashboards/documents.rs"]
mod documents;
#[allow(dead_code, reason = "shared with the agent's tests of the dashboards")]
#[path = "../../tests/dashboards/exposition.rs"]
mod exposition;
#[allow(dead_code, reason = "shared with the agent's tests of the dashboards")]
#[path = "../../tests/dashboards/promql.rs"]
mod promql;
#[allow(dead_code, reason = "shared with the agent's tests of the dashboards")]
#[path = "../../tests/dashboards/questions.rs"]
mod questions;
#[allow(dead_code, reason = "shared with the agent's tests of the dashboards")]
#[path = "../../tests/dashboards/receiver.rs"]
mod receiver;

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use sandglass::app;
use sandglass::config::Config;
use sandglass::cri::Cri;
use sandglass_demo::networks::Network;
use sandglass_demo::pods::Pod;
use sandglass_demo::rig::{Rig, RigOptions};
use sandglass_demo::scenarios;
use sandglass_model::{CniCommand, Detail, Span, Trace};
use serde_json::Value;

use exposition::Exposition;
use questions::shortened;
use receiver::Receiver;
use sandglass_lab::peers::{self, Target};

/// One test at a time has the machine: the agent sees every plugin on it.
static MACHINE: Mutex<()> = Mutex::new(());

/// A node, and the runtime on it.
async fn node(test: &str) -> Option<(Rig, Arc<Cri>)> {
    if let Some(obstacle) = Rig::obstacle(&RigOptions::default()) {
        eprintln!("SKIPPED {test}: {obstacle}");
        return None;
    }
    let rig = tokio::task::spawn_blocking(|| Rig::start(&RigOptions::default()));
    let rig = rig.await.unwrap().unwrap();
    scenarios::wait_for_pause(&rig).await.unwrap();
    let cri = Cri::connect(&rig.cri_socket().to_string_lossy(), Duration::from_secs(30)).await;
    Some((rig, Arc::new(cri.unwrap())))
}

#[test]
fn a_real_slow_plugin_wakes_the_person_on_call() {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(wake("a_real_slow_plugin_wakes_the_person_on_call"));
}

async fn wake(test: &str) {
    if !sandglass_lab::skip::has(test, "prometheus") || !sandglass_lab::skip::has(test, "prometheus-alertmanager") {
        return;
    }
    let Some((rig, cri)) = node(test).await else { return };
    let (sender, closed) = mpsc::channel();
    let mut config = Config::default();
    config.cri.endpoint = format!("unix://{}", rig.cri_socket().display());
    config.cni.bin_dirs = vec![rig.bin_dir()];
    config.node_name = "worker-1".to_owned();
    config.http.address = SocketAddr::from(([127, 0, 0, 1], 0));
    let options = app::StartOptions {
        closed: Some(sender),
        serve: true,
        ..app::StartOptions::default()
    };
    let agent = match app::start(&config, options).await {
        Ok(agent) => agent,
        Err(failure) if matches!(failure.exit().code(), 69 | 77) => {
            eprintln!(
                "SKIPPED {test}: {}",
                failure.to_string().lines().next().unwrap_or_default()
            );
            return;
        }
        Err(failure) => panic!("the agent does not start: {failure}"),
    };
    let receiver = Receiver::start();
    let alertmanager = peers::alertmanager(receiver.address);
    let folder = tempfile::tempdir().unwrap();
    let target = Target {
        job: "sandglass",
        node: "worker-1".to_owned(),
        cluster: Some("c1"),
        address: agent.address.unwrap(),
    };
    let prometheus = peers::prometheus(&[target], &shortened(folder.path()), Some(alertmanager.address));

    // Pods come and go through a chain whose plugin waits two seconds, until the alert fires.
    let name = "SandglassCniAddSlow";
    let slow = |alert: &Value| alert["labels"]["network"] == "pods-slow";
    let mut number = 0;
    let alert = loop {
        let pods = (0..4).map(|_| {
            number += 1;
            Pod::new(&format!("slow-{number}"), number, Network::Slow)
        });
        let mut records = scenarios::make(&cri, &rig, pods.collect()).await;
        for record in &mut records {
            scenarios::delete(&cri, record).await.unwrap();
        }
        if let Some(alert) = receiver.newest(name, "firing").filter(slow) {
            break alert;
        }
        assert!(number < 100, "the alert does not fire");
    };
    assert_eq!(alert["labels"]["node"], "worker-1");
    let description = alert["annotations"]["description"].as_str().unwrap();
    assert!(description.contains("The slowest plugin is slow-policy: 2."), "{alert}");
    println!("fired after {number} pods: {description}");

    // The same pods without the slow plugin: resolved.
    for _ in 0..3 {
        let mut records = scenarios::make(&cri, &rig, vec![Pod::new("fast-0", 1_000, Network::Plain)]).await;
        scenarios::delete(&cri, &mut records[0]).await.unwrap();
    }
    peers::until("the alert is resolved", 60, || {
        receiver.newest(name, "resolved").filter(slow)
    });

    // An exemplar of the slow operations is the trace of such a pod.
    let traces: Vec<_> = closed.try_iter().collect();
    let path = format!(
        "query_exemplars?query={}&start=0&end=9999999999",
        peers::encode("sandglass_cni_operation_duration_seconds_bucket{network=\"pods-slow\"}")
    );
    let exemplars = peers::until("exemplars", 30, || prometheus.api(&path));
    let ids: Vec<&str> = exemplars
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|series| series["exemplars"].as_array().unwrap())
        .map(|exemplar| exemplar["labels"]["trace_id"].as_str().unwrap())
        .collect();
    let known = |id: &&str| traces.iter().any(|trace| trace.id.to_string() == **id);
    assert!(!ids.is_empty() && ids.iter().all(known), "{ids:?}");

    old_names_agree_with_containerd(&rig, &prometheus, traces, &closed);
    agent.stop().await.unwrap();
    tokio::task::spawn_blocking(|| rig.stop()).await.unwrap().unwrap();
}

/// The recorded series with containerd's names count what containerd's own do, and what else ran CNI plugins here.
fn old_names_agree_with_containerd(
    rig: &Rig,
    prometheus: &peers::Peer,
    mut traces: Vec<Arc<Trace>>,
    closed: &mpsc::Receiver<Arc<Trace>>,
) {
    let text = rig.runtime_metrics().unwrap();
    let rules = documents::rules("optional/compatibility.yaml")
        .into_iter()
        .map(|rule| rule.name);
    // containerd names its errors only when there are some.
    for name in rules.filter(|name| name.starts_with("containerd_") && !name.contains("_errors_")) {
        assert!(
            text.contains(&format!("\n{name}{{operation_type=")),
            "containerd knows no {name}"
        );
    }
    for (operation, command) in [("set_up_pod", CniCommand::Add), ("tear_down_pod", CniCommand::Del)] {
        let series = "containerd_cri_network_plugin_operations_duration_seconds_seconds_count";
        let selector = format!("{series}{{operation_type=\"{operation}\"}}");
        let line = text.lines().find_map(|line| line.strip_prefix(&selector));
        let theirs: usize = line.expect("containerd counts").trim().parse().unwrap();
        let mut last = String::new();
        let ours = peers::until(&format!("{operation} as containerd counts it"), 30, || {
            traces.extend(closed.try_iter());
            let strangers = traces
                .iter()
                .map(|trace| strange_operations(trace, &rig.bin_dir(), command));
            let strangers: usize = strangers.sum();
            let ours = prometheus.query(&format!("sum({selector})")).ok()?.first()?.1;
            let now = format!("{operation}: {ours} here, {theirs} by containerd itself, {strangers} of other runtimes");
            if now != last {
                println!("{now}");
                last = now;
            }
            (ours == (theirs + strangers) as f64).then_some(ours)
        });
        assert!(ours > 10.0);
    }
}

/// Operations of a trace whose plugins are none of this node's, loopback left out.
fn strange_operations(trace: &Trace, bin_dir: &Path, command: CniCommand) -> usize {
    let mut processes = trace.spans.iter().filter_map(|span| span.process());
    if processes.any(|process| Path::new(&*process.path).starts_with(bin_dir)) {
        return 0;
    }
    let fits = |span: &&Span| match &span.detail {
        Detail::Operation(operation) => operation.command == command && operation.network != "cni-loopback",
        _ => false,
    };
    trace.spans.iter().filter(fits).count()
}

/// The demo as a process; ended with the test.
struct Demo {
    process: Child,
    lines: Vec<String>,
}

impl Drop for Demo {
    fn drop(&mut self) {
        // Gone already is as good; the next demo removes what a killed one left.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Demo {
    /// The address in the line that begins so.
    fn address(&self, begin: &str) -> SocketAddr {
        let line = self.lines.iter().find_map(|line| line.strip_prefix(begin));
        let line = line.unwrap_or_else(|| panic!("no line {begin}: {:?}", self.lines));
        line.split('/').next().unwrap().parse().unwrap()
    }
}

fn jaeger() -> Option<PathBuf> {
    sandglass_lab::built::peer("SANDGLASS_JAEGER", "jaeger")
}

#[test]
fn the_demo_shows_its_traces_in_jaeger_and_its_numbers_in_prometheus() {
    let test = "the_demo_shows_its_traces_in_jaeger_and_its_numbers_in_prometheus";
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(jaeger) = jaeger() else {
        eprintln!("SKIPPED {test}: SANDGLASS_JAEGER names no Jaeger 2 binary");
        return;
    };
    if let Some(obstacle) = Rig::obstacle(&RigOptions::default()) {
        eprintln!("SKIPPED {test}: {obstacle}");
        return;
    }
    if !sandglass_lab::skip::has(test, "prometheus") {
        return;
    }
    let mut process = Command::new(env!("CARGO_BIN_EXE_sandglass-demo"))
        .args(["--observability", "--listen", "127.0.0.1:0", "--node-name", "worker-1"])
        .env("SANDGLASS_JAEGER", jaeger)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut demo = Demo {
        process,
        lines: Vec::new(),
    };
    for line in output.by_ref().lines() {
        let line = line.unwrap();
        let last = line.starts_with("Ctrl-C ends the demo");
        demo.lines.push(line);
        if last {
            break;
        }
    }
    if !demo.lines.iter().any(|line| line.starts_with("Ctrl-C")) {
        let output = end_of(&mut demo.process);
        if matches!(output.0, Some(69 | 77)) {
            eprintln!("SKIPPED {test}: {}", output.1.lines().next().unwrap_or_default());
            return;
        }
        panic!("{output:?}");
    }
    let agent = demo.address("the page is at http://");
    let shown = demo.address("Jaeger is at http://");
    let prometheus = demo.address("Prometheus is at http://");
    jaeger_has_what_was_delivered(agent, shown);
    prometheus_has_what_was_counted(agent, prometheus);

    let pid = rustix::process::Pid::from_child(&demo.process);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut farewell = String::new();
    output.read_to_string(&mut farewell).unwrap();
    assert!(farewell.contains("gone again"), "{farewell}");
    assert!(demo.process.wait().unwrap().success());
    for address in [agent, shown, prometheus] {
        assert!(
            std::net::TcpStream::connect(address).is_err(),
            "{address} still answers"
        );
    }
}

/// Exit code and last words of what has ended.
fn end_of(process: &mut Child) -> (Option<i32>, String) {
    let mut words = String::new();
    process.stderr.take().unwrap().read_to_string(&mut words).unwrap();
    (process.wait().unwrap().code(), words)
}

#[test]
fn the_demo_says_at_once_what_is_missing() {
    for (path, jaeger, missing) in [("/nowhere", "/nowhere", "prometheus"), ("FAKE", "/nowhere", "jaeger")] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("prometheus"), "").unwrap();
        let path = if path == "FAKE" { folder.path() } else { Path::new(path) };
        let output = Command::new(env!("CARGO_BIN_EXE_sandglass-demo"))
            .args(["--observability", "--once"])
            .env_clear()
            .env("PATH", path)
            .env("SANDGLASS_JAEGER", jaeger)
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(69), "{printed}");
        assert!(
            printed.contains(&format!("{missing} is not installed")) && printed.contains("hint: "),
            "{printed}"
        );
    }
}

fn sum_of(agent: SocketAddr, series: &str) -> f64 {
    let exposition = Exposition::parse(&peers::get(agent, "/metrics").unwrap());
    let samples = exposition.families.values().flat_map(|family| &family.samples);
    samples
        .filter(|sample| sample.key.starts_with(series))
        .map(|sample| sample.value)
        .sum()
}

fn jaeger_has_what_was_delivered(agent: SocketAddr, jaeger: SocketAddr) {
    let get = |path: &str| -> Option<Value> { serde_json::from_str(&peers::get(jaeger, path)?).ok() };
    let search = |query: &str| -> Option<Vec<Value>> {
        let answer = get(&format!("/api/traces?service=sandglass&limit=1000&{query}"))?;
        answer["data"].as_array().cloned()
    };
    let node = peers::encode("{\"k8s.node.name\":\"worker-1\"}");
    let error = peers::encode("{\"error.type\":\"sandbox_failed\"}");
    // The searches are those that dashboards and alerts lead to. The last traces close some seconds after the demo's end.
    let found = || -> Option<[usize; 4]> {
        let all = search("")?;
        let spans = all
            .iter()
            .map(|trace| trace["spans"].as_array().map_or(0, Vec::len))
            .sum();
        let slow = search(&format!("minDuration=2s&tags={node}"))?.len();
        let failed = search(&format!("tags={error}"))?.len();
        Some([spans, all.len(), slow, failed])
    };
    let [spans, all, slow, failed] = peers::until_ok("Jaeger has every span that was delivered", 120, || {
        let delivered = sum_of(agent, "sandglass_export_spans_total{outcome=\"delivered\"}");
        let found = found().ok_or("Jaeger does not answer a search")?;
        let [spans, all, slow, failed] = found;
        (spans as f64 == delivered && slow >= 2 && failed >= 2)
            .then_some(found)
            .ok_or_else(|| format!("{spans} spans of {delivered} in {all} traces, {slow} slow, {failed} failed"))
    });
    assert!(slow < all && failed < all, "{slow} slow, {failed} failed of {all}");
    println!("Jaeger has {spans} spans in {all} traces, {slow} of them slow, {failed} failed");
}

fn prometheus_has_what_was_counted(agent: SocketAddr, prometheus: SocketAddr) {
    let query = |text: &str| -> Option<f64> {
        let answer = peers::get(prometheus, &format!("/api/v1/query?query={}", peers::encode(text)))?;
        let answer: Value = serde_json::from_str(&answer).ok()?;
        answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    };
    let series = "sandglass_cni_operation_duration_seconds_count";
    let counted = peers::until("Prometheus has what the agent counts", 60, || {
        let counted = sum_of(agent, series);
        (counted > 10.0 && query(&format!("sum({series}{{node=\"worker-1\"}})")) == Some(counted)).then_some(counted)
    });
    let rules = peers::get(prometheus, "/api/v1/rules").unwrap();
    let alerts = rules.matches("\"type\":\"alerting\"").count();
    assert_eq!(alerts, documents::alerts().len());
    let recorded = peers::until("rules record", 60, || {
        query("count({__name__=~\"kubelet_network_plugin_operations_.+\"})")
    });
    println!("Prometheus has {counted} operations, {alerts} alerts, {recorded} series under the kubelet's names");
}
