//! The judge of nodes, `scripts/nodes/judge.py`, on this one: what the workflow nodes.yml runs on others.
//!
//! Does not: install the agent.

use std::process::Command;

use super::node::{AGENT, METRICS, NAMESPACE, Node};
use super::root;

/// Pods of the judge's own, one of them slow and one refused by a plugin that it puts behind the node's list: traces, metrics and `doctor` in the agent's
/// own pod are as the judge wants them, and nothing of it stays.
pub(crate) fn assert_judged(test: &str, node: &Node) {
    let evidence = tempfile::tempdir().unwrap();
    let kubectl = node.program("kubectl").display().to_string();
    let doctor = format!(
        "{kubectl} exec --namespace {NAMESPACE} daemonset/sandglass -- /sandglass doctor --json --config /etc/sandglass/config.yaml"
    );
    let judged = Command::new("python3")
        .arg(root("scripts/nodes/judge.py"))
        .arg(evidence.path())
        .args([
            "--plugin=bridge",
            "--plugin=host-local",
            "--plugin=portmap",
            "--plugin=loopback",
        ])
        .args([
            "--image=docker.io/sandglass-test/pod:1",
            "--shared",
            "--limitation=Kubernetes beyond",
        ])
        .arg(format!("--page=http://{AGENT}"))
        .arg(format!("--metrics=http://{METRICS}"))
        .arg(format!("--kubectl={kubectl}"))
        .arg(format!("--doctor={doctor}"))
        .arg(format!("--networks={}", node.path("cni").display()))
        .arg(format!("--plugins={}", node.path("plugins").display()))
        .env("KUBECONFIG", node.path("admin.kubeconfig"))
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&judged.stdout);
    for line in printed.lines() {
        if line.starts_with("NOT JUDGED ") {
            eprintln!("{}", line.replace("judge::", &format!("{test}::")));
        } else {
            println!("{line}");
        }
    }
    let stderr = String::from_utf8_lossy(&judged.stderr);
    assert!(judged.status.success(), "{stderr}");
    let last = printed.lines().last().unwrap();
    assert!(last.starts_with("passed: "), "{last}{stderr}");
}
