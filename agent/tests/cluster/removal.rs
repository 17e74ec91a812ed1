//! What a removal leaves behind: nothing in the cluster, in the kernel, or on the node's addresses.
//!
//! Used by the tests of the chart and of the plain manifests. Does not: remove anything but the namespace.

use std::collections::BTreeSet;

use sandglass_lab::{bpf, left};

use crate::node::{AGENT, METRICS, NAMESPACE, Node, try_http, wait_for};

/// Everything of ours in the cluster, whatever its kind, and what the agent and its pods left in the kernel: namespaces,
/// links, mounts and chains of the machine.
pub(crate) fn all_left(node: &Node) -> BTreeSet<String> {
    let kinds = "all,configmaps,secrets,serviceaccounts,controllerrevisions,roles,rolebindings";
    let named = node.kubectl(&[
        "get",
        kinds,
        "--all-namespaces",
        "--selector=app.kubernetes.io/part-of=sandglass",
        "--output=name",
    ]);
    let releases = node.kubectl(&[
        "get",
        "secrets",
        "--all-namespaces",
        "--selector=owner=helm",
        "--output=name",
    ]);
    let objects = named.lines().chain(releases.lines()).map(str::to_owned);
    objects.chain(left::named().unwrap()).collect()
}

/// All of it goes again: the runtime removes a pod's namespace, links and mounts a while after the API has forgotten it.
pub(crate) fn assert_left(node: &Node, before: &BTreeSet<String>) {
    wait_for("the clean-up of what was made", 90, || {
        let now = all_left(node);
        let more: Vec<&String> = now.difference(before).collect();
        if more.is_empty() {
            Ok(())
        } else {
            Err(format!("left behind: {more:?}"))
        }
    });
}

/// `remove` ends the agent's process, closes its port, and its programs, maps and links are gone from the kernel.
pub(crate) fn assert_removal(test: &str, node: &Node, remove: impl FnOnce()) {
    let agents = node.agent_processes();
    assert_eq!(agents.len(), 1, "agents in containers: {agents:?}");
    let objects = bpf::objects_of(agents[0]);
    let programs = objects.iter().filter(|(kind, _)| *kind == "prog").count();
    assert!(programs >= 3, "programs of fork, exec and exit: {objects:?}");
    remove();
    wait_for("the end of the agent", 60, || match node.agent_processes() {
        pids if pids.is_empty() => Ok(()),
        pids => Err(format!("{pids:?} run")),
    });
    for address in [METRICS, AGENT] {
        assert!(
            try_http(address, "/healthz").is_err(),
            "something still listens at {address}"
        );
    }
    match bpf::wait_until_gone(&objects) {
        Ok(()) => {}
        Err(None) => eprintln!("NOT RUN {test}::kernel_objects: bpftool is not installed"),
        Err(Some(still)) => panic!("still in the kernel: {still:?}"),
    }
    node.try_kubectl(&["delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=60s"]);
}
