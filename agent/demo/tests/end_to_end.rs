//! End to end: real pod sandboxes on a private containerd with real CNI plugins, traced by the agent.
//!
//! Needs root, containerd, the distribution's CNI plugins and a kernel that lets BPF in; where one is missing each
//! test prints `SKIPPED` and the reason. The judge of single sandboxes is `sandglass_demo::verify`, which is tested by itself.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test"
)]

#[path = "end_to_end/callers.rs"]
mod callers;
#[path = "end_to_end/configuration.rs"]
mod configuration;
#[path = "end_to_end/crio.rs"]
mod crio;
#[path = "end_to_end/older.rs"]
mod older;
#[path = "end_to_end/own_time.rs"]
mod own_time;
#[path = "end_to_end/restarted.rs"]
mod restarted;
#[allow(dead_code, reason = "each test binary uses its own part")]
mod rig;
#[path = "end_to_end/runtimes.rs"]
mod runtimes;

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rig::witness::Witness;
use rig::{Agent, Node, assert_passed};
use sandglass::cri::Cri;
use sandglass_demo::networks::{HANGING_PLUGIN, Network, SLOW_COMMAND, SLOW_PLUGIN};
use sandglass_demo::pods::{CallRecord, Pod};
use sandglass_demo::rig::RigOptions;
use sandglass_demo::scenarios;
use sandglass_demo::verify::{self, clock};
use sandglass_model::cni::CniCommand;
use sandglass_model::event::ExitStatus;
use sandglass_model::trace::{Detail, OperationDetail, PluginDetail, Span, Trace};

#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_is_traced_completely() {
    let test = "every_scenario_is_traced_completely";
    let _ = every_scenario(test, RigOptions::default()).await;
}

/// The demo's scenarios on a node of its own. Returns the traces and the calls, `None` where it was skipped.
async fn every_scenario(test: &str, options: RigOptions) -> Option<(Vec<Arc<Trace>>, Vec<CallRecord>)> {
    let node = Node::with(test, options).await?;
    let lists = node.lists();
    let mut config = node.config_for_traffic();
    config.cni.conf_dir = Some(lists.path().to_owned());
    let mut agent = Agent::of(&node, &config, test).await?;
    let mut records = Vec::new();
    for pods in scenarios::steps(1) {
        records.extend(node.make(pods).await);
    }
    for record in &mut records {
        if scenarios::DELETED.contains(&record.pod.identity.name.as_str()) {
            scenarios::delete(&node.cri, record).await.unwrap();
        }
    }
    assert_passed(&agent.settle(&records).await);

    // The runtime counts its own deletions too, of sandboxes that failed: their traces may still be open.
    let deadline = Instant::now() + Duration::from_secs(30);
    let (traces, checks) = loop {
        let traces = agent.traces_of(&node);
        let checks = clock::containerd(&traces, &records, &node.rig.runtime_metrics().unwrap(), 0, "");
        let hold = checks.iter().all(|check| check.result.is_ok() || check.is_unjudged());
        if hold || Instant::now() > deadline {
            break (traces, checks);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert_eq!(
        verify::strangers(&traces, &records),
        0,
        "traces of nothing that was requested"
    );
    for check in checks {
        assert!(check.result.is_ok() || check.is_unjudged(), "{check:?}");
        if check.is_unjudged() {
            eprintln!("NOT JUDGED {test}::containerd: {}", check.text().trim());
        }
    }
    agent.stop().await;
    node.stop().await;
    Some((traces, records))
}

#[tokio::test(flavor = "multi_thread")]
async fn two_networks_on_one_pod_are_two_operations() {
    let test = "two_networks_on_one_pod_are_two_operations";
    let Some(node) = Node::start(test).await else { return };
    let Some(mut agent) = Agent::start(&node, test).await else {
        return;
    };
    let records = node
        .make(vec![
            Pod::new("db-0", 1, Network::Two),
            Pod::new("db-1", 2, Network::Two),
        ])
        .await;
    assert_passed(&agent.settle(&records).await);
    for record in &records {
        let addresses = addresses(&node.cri, record).await;
        for ifname in ["eth0", "eth1"] {
            assert_eq!(addresses[ifname].len(), 1, "the runtime gave {addresses:?}");
        }
        let trace = verify::creation(agent.traces(), record).unwrap();
        for operation in operations(trace).filter(|operation| operation.ifname != "lo") {
            // That there is one where the agent reads what plugins write is among the checks above.
            for address in &operation.addresses {
                let bare = address.split('/').next().unwrap_or_default();
                assert_eq!(addresses[&operation.ifname], [bare], "{}", operation.ifname);
            }
        }
    }
    agent.stop().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_sandboxes_at_once_are_neither_lost_nor_mixed_up() {
    fifty_sandboxes(
        "fifty_sandboxes_at_once_are_neither_lost_nor_mixed_up",
        RigOptions::default(),
    )
    .await;
}

async fn fifty_sandboxes(test: &str, options: RigOptions) {
    let Some(node) = Node::with(test, options).await else {
        return;
    };
    // As on a node: the agent knows the list of the pods' network, so that a plugin that is executed late belongs to it.
    let mut config = node.config();
    config.cni.conf_dir = Some(node.rig.conf_dir(Network::Plain));
    let Some(mut agent) = Agent::of(&node, &config, test).await else {
        return;
    };
    let witness = Witness::start();
    if witness.is_none() {
        eprintln!("NOT RUN {test}::witness: this kernel has no process connector");
    }
    let pods = (0..50)
        .map(|number| Pod::new(&format!("pod-{number}"), number, Network::Plain))
        .collect();
    let mut records = node.make(pods).await;
    assert_passed(&agent.settle(&records).await);

    let mut seen = BTreeSet::new();
    for record in &records {
        // Found by sandbox id: that it is the right pod was checked, that it is the right namespace is checked here.
        let trace = verify::creation(agent.traces(), record).unwrap();
        let netns = netns(&node.cri, record).await;
        for operation in operations(trace) {
            assert_eq!(operation.netns, netns, "{}", record.pod.identity.name);
        }
        assert!(seen.insert(netns), "one namespace for two sandboxes");
    }
    for chunk in records.chunks_mut(10) {
        for record in chunk {
            scenarios::delete(&node.cri, record).await.unwrap();
        }
    }
    assert_passed(&agent.settle(&records).await);
    assert_eq!(
        verify::strangers(&agent.traces_of(&node), &records),
        0,
        "traces of nothing that was requested"
    );
    if let Some(witness) = witness {
        agrees_with(&witness, &agent.traces_of(&node));
    }
    agent.stop().await;
    node.stop().await;
}

/// Each process of each trace began and ended at the times and with the status that the kernel's process connector reports.
fn agrees_with(witness: &Witness, traces: &[Arc<Trace>]) {
    let lives = witness.lives();
    let mut apart = Vec::new();
    for span in traces.iter().flat_map(|trace| &trace.spans) {
        let (Detail::Plugin(_) | Detail::Command(_), Some(process), Some(end)) =
            (&span.detail, span.process(), span.end)
        else {
            continue;
        };
        let life = lives
            .get(&process.pid)
            .unwrap_or_else(|| panic!("the witness did not see {}", process.path));
        let exit = life
            .exit_ns
            .unwrap_or_else(|| panic!("the witness did not see {} end", process.path));
        apart.extend([span.start.0.abs_diff(life.exec_ns), end.0.abs_diff(exit)]);
        let status = match process.exit {
            Some(ExitStatus::Code(code)) => code.unsigned_abs() << 8,
            Some(ExitStatus::Signal(signal)) => signal.unsigned_abs(),
            Some(ExitStatus::Unknown) | None => u32::MAX,
        };
        assert_eq!(status, life.status & 0xff7f, "{}", process.path);
    }
    apart.sort_unstable();
    assert!(apart.len() >= 2 * 50 * 4, "only {} stamps were compared", apart.len());
    let (median, worst) = (apart[apart.len() / 2], apart[apart.len() - 1]);
    println!(
        "{} stamps compared: {median} ns apart at the median, {worst} at most",
        apart.len()
    );
    // Both stamps are made by one kernel, some microseconds apart; between them a process may lose its processor, and
    // on a busy machine that is what the worst case shows.
    assert!(median < 2_000_000, "{median} ns apart at the median");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_plugin_is_shown_with_its_signal_and_its_deletion() {
    let test = "a_killed_plugin_is_shown_with_its_signal_and_its_deletion";
    let Some(node) = Node::start(test).await else { return };
    let Some(mut agent) = Agent::start(&node, test).await else {
        return;
    };
    let pod = Pod {
        deadline: Duration::from_secs(5),
        ..Pod::new("search-0", 1, Network::Hanging)
    };
    let records = node.make(vec![pod]).await;
    assert_passed(&agent.settle(&records).await);
    let trace = verify::creation(agent.traces(), &records[0]).unwrap();
    let (span, plugin) = plugin(trace, HANGING_PLUGIN).unwrap();
    assert_eq!(plugin.process.exit, Some(ExitStatus::Signal(9)));
    assert!(span.status.is_error());
    agent.stop().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_in_the_middle_of_an_add_finds_it_running_again() {
    let test = "an_agent_killed_in_the_middle_of_an_add_finds_it_running_again";
    let Some(node) = Node::start(test).await else { return };
    // Only to know whether an agent can observe anything here at all.
    let Some(probe) = Agent::start(&node, test).await else {
        return;
    };
    probe.stop().await;

    let mut first = Command::new(env!("CARGO_BIN_EXE_sandglass-demo-agent"))
        .args(["run", "--listen", "127.0.0.1:0", "--cri-endpoint", "none"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let cri = Arc::clone(&node.cri);
    let making = tokio::spawn({
        let pod = Pod::new("reports-0", 1, Network::Slow);
        let parent = node.rig.cgroup_parent();
        async move { scenarios::make_one(&cri, &parent, pod).await }
    });
    wait_for_process(SLOW_COMMAND).await;
    first.kill().unwrap();
    first.wait().unwrap();
    let Some(mut second) = Agent::start(&node, test).await else {
        return;
    };
    let record = making.await.unwrap();
    let later = node.make(vec![Pod::new("cart-0", 2, Network::Plain)]).await;

    // The sandbox that was under way: what ran is found, what was over is not made up.
    let trace = wait_for_trace(&mut second, &record).await;
    assert_eq!(trace.check(), Ok(()));
    assert!(trace.incomplete, "its beginning was not seen");
    assert_eq!(trace.identity.name, "reports-0");
    let (_, slow) = plugin(&trace, SLOW_PLUGIN).unwrap();
    assert!(slow.process.found_running);
    assert_eq!(slow.process.exit, Some(ExitStatus::Code(0)));
    let command = trace.spans.iter().find_map(|span| match &span.detail {
        Detail::Command(command) if *command.name == *SLOW_COMMAND => Some(command),
        _ => None,
    });
    assert!(command.unwrap().process.found_running);
    assert!(
        plugin(&trace, "bridge").is_none(),
        "it was over before the second agent came"
    );
    // The next one is as complete as ever.
    assert_passed(&second.settle(&later).await);
    second.stop().await;
    node.stop().await;
}

async fn wait_for_trace(agent: &mut Agent, record: &CallRecord) -> Arc<Trace> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        if let Ok(trace) = verify::creation(agent.traces(), record) {
            return Arc::clone(trace);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("no trace of {}", record.pod.identity.name);
}

/// Waits until a script of this name runs; scripts carry their path as second argument.
async fn wait_for_process(name: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        let runs = std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let second = arguments.split(|byte| *byte == 0).nth(1).unwrap_or_default();
            second.ends_with(format!("/{name}").as_bytes())
        });
        if runs {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{name} never ran");
}

fn operations(trace: &Trace) -> impl Iterator<Item = &OperationDetail> {
    trace.spans.iter().filter_map(|span| match &span.detail {
        Detail::Operation(operation) if operation.command == CniCommand::Add => Some(&**operation),
        _ => None,
    })
}

fn plugin<'t>(trace: &'t Trace, name: &str) -> Option<(&'t Span, &'t PluginDetail)> {
    trace.spans.iter().find_map(|span| match &span.detail {
        Detail::Plugin(plugin) if *plugin.plugin == *name => Some((span, &**plugin)),
        _ => None,
    })
}

/// Addresses of the sandbox as the runtime reports them, by interface. The status proper names those of the first one only.
async fn addresses(cri: &Cri, record: &CallRecord) -> BTreeMap<String, Vec<String>> {
    let info = info(cri, record).await;
    let interfaces = info["cniResult"]["Interfaces"].as_object().unwrap();
    let of = |interface: &serde_json::Value| {
        let configs = interface["IPConfigs"].as_array();
        let addresses = configs.into_iter().flatten().filter_map(|config| config["IP"].as_str());
        addresses.map(str::to_owned).collect()
    };
    interfaces
        .iter()
        .map(|(name, interface)| (name.clone(), of(interface)))
        .collect()
}

/// Path of the sandbox's network namespace, as the runtime reports it.
async fn netns(cri: &Cri, record: &CallRecord) -> String {
    let info = info(cri, record).await;
    let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array().unwrap();
    let network = namespaces
        .iter()
        .find(|namespace| namespace["type"] == "network")
        .unwrap();
    network["path"].as_str().unwrap().to_owned()
}

/// The runtime's verbose information on the sandbox.
async fn info(cri: &Cri, record: &CallRecord) -> serde_json::Value {
    let id = record.outcome.as_ref().unwrap();
    let answer = cri.pod_sandbox_status(&id.0, true).await.unwrap();
    assert_eq!(answer.status.unwrap().metadata.unwrap().name, record.pod.identity.name);
    serde_json::from_str(&answer.info["info"]).unwrap()
}
