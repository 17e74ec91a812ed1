//! containerd is killed and started again beside a running agent: what it makes afterwards is traced as before, labels included.
//!
//! Used by `end_to_end.rs`. Does not: restart the agent (`agent/tests/kills.rs` does).

use std::sync::Arc;
use std::time::Duration;

use sandglass::cri::Cri;
use sandglass_demo::networks::Network;
use sandglass_demo::pods::Pod;
use sandglass_demo::rig::RigOptions;
use sandglass_demo::scenarios;
use sandglass_demo::verify;

use crate::rig::{Agent, Node, assert_passed};

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_containerd_costs_no_trace() {
    let test = "a_restart_of_containerd_costs_no_trace";
    let Some(mut node) = Node::start(test).await else {
        return;
    };
    let Some(mut agent) = Agent::start(&node, test).await else {
        return;
    };
    let before = vec![
        Pod::new("cart-0", 1, Network::Plain),
        Pod::new("broken-0", 2, Network::Failing),
    ];
    let mut records = node.make(before).await;
    assert_passed(&agent.settle(&records).await);

    let (rig, restarted) = tokio::task::spawn_blocking(move || {
        let restarted = node.rig.restart_containerd(&RigOptions::default());
        (node, restarted)
    })
    .await
    .unwrap();
    node = rig;
    restarted.unwrap();
    let socket = node.rig.cri_socket().to_string_lossy().into_owned();
    node.cri = Arc::new(Cri::connect(&socket, Duration::from_secs(30)).await.unwrap());
    scenarios::wait_for_pause(&node.rig).await.unwrap();

    let after = vec![
        Pod::new("cart-1", 3, Network::Plain),
        Pod::new("broken-1", 4, Network::Failing),
    ];
    records.extend(node.make(after).await);
    // One that is older than this containerd.
    scenarios::delete(&node.cri, &mut records[0]).await.unwrap();
    assert_passed(&agent.settle(&records).await);
    let traces = agent.traces_of(&node);
    assert_eq!(verify::strangers(&traces, &records), 0);
    agent.stop().await;
    node.stop().await;
}
