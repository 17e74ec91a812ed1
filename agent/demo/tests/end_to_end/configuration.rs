//! What is wrong before any plugin runs, and pools of addresses that run dry: seen on a real containerd.
//!
//! Used by `end_to_end.rs`. The runtime fails before it executes anything, so that the name of the network namespace and the
//! CNI configuration are all that the agent has.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass::config::Config;
use sandglass_demo::networks::Network;
use sandglass_demo::pods::Pod;
use sandglass_model::trace::{Cause, Confidence};
use sandglass_model::{Status, Trace};

use crate::rig::{Agent, Node};

const NETWORK: Network = Network::Plain;

/// The agent's configuration: it reads the directory of the pods' runtime handler.
fn config(node: &Node) -> Config {
    let mut config = node.config();
    config.cni.conf_dir = Some(node.rig.conf_dir(NETWORK));
    config
}

/// Replaces the file at once, as installers of networks do: nobody reads half of one.
fn configure(node: &Node, text: &str) {
    let path = node.rig.conf_dir(NETWORK).join("10-pods.conflist");
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

/// Makes pods from this number on until the runtime, which reads its configuration when it is notified of a change, refuses one
/// like this. The runtime keeps the names of those that it could not clean up.
async fn refused(node: &Node, first: u32, like: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    for number in first.. {
        let pod = Pod::new(&format!("web-{number}"), number, NETWORK);
        let record = node.make(vec![pod]).await.remove(0);
        match record.outcome {
            Err(error) if error.contains(like) => return,
            other => assert!(Instant::now() < deadline, "not refused with {like:?}: {other:?}"),
        }
    }
}

async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn cause(trace: &Trace) -> Option<&Cause> {
    trace.spans.get(1)?.detail.as_create()?.cause.as_deref()
}

fn message(trace: &Trace) -> &str {
    match &trace.root().status {
        Status::Error { message, .. } => message,
        Status::Unset => "",
    }
}

/// The first trace of a sandbox without any plugin that failed for this cause.
async fn failed_for(agent: &mut Agent, wanted: &str) -> Arc<Trace> {
    eventually(wanted, || {
        let mut traces = agent.traces().iter();
        let is_wanted = |trace: &Trace| {
            let named = cause(trace).is_some_and(|cause| cause.cause == wanted);
            named && message(trace).starts_with("no plugin ran for its network namespace: ")
        };
        traces.find(|trace| is_wanted(trace)).cloned()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_for_which_no_plugin_runs_is_a_failed_trace_that_says_why() {
    let test = "a_sandbox_for_which_no_plugin_runs_is_a_failed_trace_that_says_why";
    let Some(node) = Node::start(test).await else { return };
    let Some(mut agent) = Agent::of(&node, &config(&node), test).await else {
        return;
    };
    configure(
        &node,
        r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "not-installed"}, {"type": "portmap"}]}"#,
    );
    refused(&node, 100, "not-installed").await;
    // The agent reads the configuration every few seconds; a cause is likely where it knew the problem all the time.
    eventually("the problem", || {
        let report = agent.cni()?;
        let mut problems = report.problems.iter();
        problems
            .any(|problem| problem.text.contains("not-installed"))
            .then_some(())
    })
    .await;
    // Now neither the first plugin of the chain nor the one that containerd runs for every sandbox is there.
    fs::remove_file(node.rig.bin_dir().join("loopback")).unwrap();
    refused(&node, 200, "failed to find plugin").await;
    let trace = failed_for(&mut agent, "cni_no_plugin").await;
    let found = cause(&trace).unwrap();
    assert_eq!(found.confidence, Confidence::Likely, "{found:?}");
    assert!(
        message(&trace).contains("no plugin \"not-installed\" in "),
        "{}",
        message(&trace)
    );
    let report = agent.cni().unwrap();
    assert!(
        report
            .problems
            .iter()
            .any(|problem| problem.text.contains("not-installed")),
        "{report:?}"
    );

    configure(&node, "{\n  \"cniVersion\": \"1.0.0\",,\n");
    refused(&node, 300, "cni plugin not initialized").await;
    let trace = failed_for(&mut agent, "cni_bad_file").await;
    assert!(
        message(&trace).contains("10-pods.conflist: not JSON, line 2, column 25"),
        "{}",
        message(&trace)
    );
    agent.stop().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_addresses_is_low_before_it_is_empty() {
    let test = "a_pool_of_addresses_is_low_before_it_is_empty";
    let Some(node) = Node::start(test).await else { return };
    let Some(mut agent) = Agent::of(&node, &config(&node), test).await else {
        return;
    };
    let data = node.rig.dir().join("ipam").display().to_string();
    configure(
        &node,
        &format!(
            r#"{{"cniVersion": "1.0.0", "name": "three", "plugins": [{{"type": "bridge", "bridge": "sglthree", "isGateway": true,
            "ipam": {{"type": "host-local", "dataDir": "{data}",
            "ranges": [[{{"subnet": "10.213.99.0/24", "rangeStart": "10.213.99.5", "rangeEnd": "10.213.99.7"}}]]}}}}]}}"#
        ),
    );
    let of_three = |agent: &Agent| agent.pools().into_iter().flatten().find(|pool| pool.network == "three");
    // Pods until the runtime uses the new network, and the pool is full.
    for number in 1_u32.. {
        let full = fs::read_dir(format!("{data}/three")).map_or(0, |entries| {
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| name.starts_with("10.")).count()
        });
        if full == 3 {
            break;
        }
        assert!(
            number < 60,
            "the runtime does not use the network: {full} of 3 addresses"
        );
        let pod = Pod::new(&format!("api-{number}"), number, NETWORK);
        node.make(vec![pod]).await.remove(0).outcome.unwrap();
    }
    let low = eventually("a low pool", || of_three(&agent).filter(|pool| pool.is_low())).await;
    assert_eq!((low.sets[0].addresses, low.sets[0].used), (3, 3));
    // Its containers are known to the runtime, once it has been asked.
    let judged = eventually("the runtime's list", || {
        of_three(&agent).filter(|pool| pool.sets[0].leaked.is_some())
    })
    .await;
    assert_eq!((judged.sets[0].leaked, judged.leaks_unknown), (Some(0), None));

    refused(&node, 100, "no IP addresses available in range set").await;
    if agent.reads_stdio() {
        eventually("the class of the failure", || {
            let mut spans = agent.traces().iter().flat_map(|trace| &trace.spans);
            let exhausted =
                |status: &Status| matches!(status, Status::Error { class, .. } if class == "cni_ipam_exhausted");
            spans.any(|span| exhausted(&span.status)).then_some(())
        })
        .await;
    } else {
        eprintln!("NOT RUN {test}::class: what plugins write is not read here");
    }
    agent.stop().await;
    node.stop().await;
}
