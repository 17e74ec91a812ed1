//! Page and API of an installed agent: not at the node's address, and by `kubectl port-forward`.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::Value;

use super::node::{AGENT, METRICS, NAMESPACE, Node, try_http};

/// The node's address serves metrics and health alone; a forwarded port reaches the page.
pub fn assert_guarded(node: &Node) {
    assert_eq!(try_http(METRICS, "/healthz").unwrap(), "ok\n");
    for path in ["/", "/api/v1/sandboxes"] {
        let refused = try_http(METRICS, path).unwrap_err();
        assert!(refused.contains("404"), "{refused}");
    }
    let (node_address, _) = METRICS.rsplit_once(':').unwrap();
    let (_, page_port) = AGENT.rsplit_once(':').unwrap();
    let open = try_http(&format!("{node_address}:{page_port}"), "/").unwrap_err();
    assert!(open.contains("refused"), "{open}");

    let pod = node.agent_pod()["metadata"]["name"].as_str().unwrap().to_owned();
    let mut forward = node
        .endless("kubectl")
        .args(["port-forward", "--namespace", NAMESPACE, &pod, &format!(":{page_port}")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // "Forwarding from 127.0.0.1:40001 -> 9478"
    let mut line = String::new();
    // Open until the end: kubectl writes a line for each connection, and ends when it cannot.
    let mut output = BufReader::new(forward.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let Some(address) = line.split(' ').nth(2).map(str::to_owned) else {
        let _ = forward.kill();
        panic!("{line:?} names no address");
    };
    let health = try_http(&address, "/api/v1/health");
    forward.kill().unwrap();
    forward.wait().unwrap();
    drop(output);
    let health: Value = serde_json::from_str(&health.unwrap()).unwrap();
    assert_eq!(health["not_alive"], "", "{health}");
}
