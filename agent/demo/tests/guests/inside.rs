//! What the test does in the machine: a node, the agent, two pods, and every fact that the demo checks of them.
//!
//! Does not: judge durations, or skip anything. Whatever is missing in the machine fails the test.

use std::time::{Duration, Instant};

use sandglass::config::Period;
use sandglass::log;
use sandglass_demo::client::Talk;
use sandglass_demo::networks::Network;
use sandglass_demo::pods::Pod;
use sandglass_demo::scenarios;
use sandglass_demo::verify::{self, Report};
use sandglass_model::event::ExitStatus;
use sandglass_model::trace::{Detail, RuntimeStep, Trace};

use crate::TEST;
use crate::rig::{Agent, Node};

/// Variable of the environment that has the test run this side.
pub const MARK: &str = "SANDGLASS_IN_GUEST";

/// Of a call to the runtime.
const DEADLINE: Duration = Duration::from_secs(240);

/// How long a lookup may still be tried with the next name of its search path.
const SEARCH_GAP: Duration = Duration::from_secs(5);

/// Makes pods and judges their traces; panics where something is wrong.
pub fn pods() {
    // The loader logs what each program took.
    let lines = log::info().with_target("sandglass::sources::linux::loader", tracing::Level::DEBUG);
    log::start(lines, log::to_stdout(), false);
    tokio::runtime::Runtime::new().unwrap().block_on(traced());
}

async fn traced() {
    let node = Node::start(TEST).await.expect("a node");
    let snapshotter = std::fs::read_to_string(node.rig.dir().join("snapshotter")).unwrap();
    println!("snapshotter: {snapshotter}");
    println!(
        "runtime: containerd {}",
        node.cri.version().await.unwrap().runtime_version
    );
    let begin = Instant::now();
    let mut config = node.config();
    // Steps that take milliseconds on a node take up to half a minute here where the host is busy (an ADD took 55 s beside twelve
    // busy loops). The agent knows the pods' list: it waits as long for the list's next plugin as for the runtime.
    config.cni.conf_dir = Some(node.rig.conf_dir(Network::Plain));
    config.correlation.settle = Period::from_secs(20);
    config.correlation.runtime_wait = Period::from_secs(200);
    // The pod's program paused for longer than the default between two names of its search path.
    config.traffic.search_gap = Period::from_secs(SEARCH_GAP.as_secs());
    // The same between the answer and the connection.
    config.traffic.ready_grace = Period::from_secs(5);
    // A lookup is over SEARCH_GAP after its last answer. A trace that ends before would show it without its result.
    config.traffic.ready_deadline = Period::from_secs(60);
    let mut agent = Agent::of(&node, &config, TEST).await.expect("an agent");
    println!("ready after: {} ms", begin.elapsed().as_millis());
    for probe in agent.probes() {
        let hook = if probe.attached { &*probe.hook } else { "none" };
        println!("probe {}: {hook}", probe.probe);
    }
    let web = Pod {
        host_port: Some(8080),
        talk: Some(Talk {
            name: "orders.shop",
            port: 80,
            stalls: false,
        }),
        deadline: DEADLINE,
        ..Pod::new("web-0", 1, Network::Plain)
    };
    let billing = Pod {
        deadline: DEADLINE,
        ..Pod::new("billing-0", 2, Network::Failing)
    };
    let mut records = node.make(vec![web]).await;
    records.extend(node.make(vec![billing]).await);
    // The deletion ends the trace too.
    tokio::time::sleep(SEARCH_GAP).await;
    scenarios::delete(&node.cri, &mut records[0]).await.unwrap();
    let reports = agent.settle_facts(&records).await;
    for report in &reports {
        println!("{}", report.text(true));
    }
    if !reports.iter().all(Report::facts_hold) {
        println!("containerd: {}", node.rig.log());
        let wrong = reports.iter().map(|report| report.text(false)).collect::<String>();
        panic!("not every pod was traced completely: {wrong}");
    }
    assert_eq!(
        verify::strangers(agent.traces(), &records),
        0,
        "traces of nothing that was requested"
    );
    one_of_each_step(verify::creation(agent.traces(), &records[0]).unwrap());
    for report in &reports {
        println!("pod {}: traced", report.pod);
    }
    agent.stop().await;
    node.stop().await;
}

/// One shim, one `create` and one `start`, which ended well and lie within `sandbox.create`.
fn one_of_each_step(trace: &Trace) {
    for step in [RuntimeStep::Shim, RuntimeStep::Create, RuntimeStep::Start] {
        let of_step = trace.spans.iter().filter_map(|span| match &span.detail {
            Detail::RuntimeStep(found) if found.step == step => Some((span, &found.process)),
            _ => None,
        });
        let found: Vec<_> = of_step.collect();
        let [(span, process)] = found[..] else {
            panic!("{} times {step:?}", found.len())
        };
        assert_eq!(process.exit, Some(ExitStatus::Code(0)), "{step:?}");
        let parent = &trace.spans[span.parent.unwrap()];
        assert!(matches!(parent.detail, Detail::SandboxCreate(_)), "{step:?}");
    }
}
