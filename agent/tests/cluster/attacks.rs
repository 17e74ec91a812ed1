//! What pods try against the agent beside them, and what must not come of it: `deploy/cluster/attack.rs` is what runs in them.
//!
//! From pods with a runtime's default capabilities, with CAP_NET_ADMIN, and from a user namespace with all capabilities.
//! Does not: repeat the server's own test of two minutes (`flood.rs`), or that of each claim (`exec_probe/trust.rs`).

use serde_json::Value;

use super::node::{AGENT, METRICS, NAMESPACE, Node, http, try_http};
use super::workloads;

/// Forged plugins of each attacker, each under a name of its own.
const FORGED: u64 = 2_000;
/// Forged runtimes of each attacker, one of each name.
const RUNTIMES: u64 = 4;
/// Connections that one pod holds.
const CONNECTIONS: u64 = 2_000;
/// Of the chart's probes, every 15 s each, some fall into it.
const HOLD_SECONDS: u64 = 40;
/// What the forgeries name; nothing of it may be in an output.
const NAMES: [&str; 3] = ["forged-", "coredns-victim", "0af7651916cd43dd8448eb211c80319c"];

/// Security context of a pod's container: uid 0, and its capabilities and privileges.
fn as_root(capabilities: &str) -> String {
    format!("{{runAsUser: 0, capabilities: {{add: [{capabilities}]}}}}")
}

/// What the pod of a finished job printed.
fn printed(node: &Node, namespace: &str, job: &str) -> String {
    workloads::end_job(node, namespace, job);
    node.kubectl(&["logs", &format!("job/{job}"), "--namespace", namespace])
}

/// The node's address serves a pod metrics and health, under no foreign name, and never the page.
pub fn assert_ports_are_guarded(node: &Node, namespace: &str) {
    let (_, page_port) = AGENT.rsplit_once(':').unwrap();
    let (node_address, _) = METRICS.rsplit_once(':').unwrap();
    let page = format!("{node_address}:{page_port}");
    // The bridge of the pods is an address of the node too.
    let bridge = format!("10.244.0.1:{page_port}");
    let same = format!("127.0.0.1:{page_port}");
    let tries = [
        (METRICS, "/healthz", METRICS, "200 OK"),
        (METRICS, "/api/v1/sandboxes", METRICS, "404 Not Found"),
        (METRICS, "/", METRICS, "404 Not Found"),
        (METRICS, "/metrics", "attacker.example", "403 Forbidden"),
        (&page, "/api/v1/sandboxes", "localhost", "refused"),
        (&bridge, "/api/v1/sandboxes", "localhost", "refused"),
        (&same, "/api/v1/sandboxes", "localhost", "refused"),
    ];
    let job = |number: usize| format!("reach-{number}");
    for (number, (at, path, host, _)) in tries.iter().enumerate() {
        workloads::start_as(node, namespace, &job(number), &["get", at, path, host], &as_root(""));
    }
    for (number, (.., expected)) in tries.iter().enumerate() {
        let outcome = printed(node, namespace, &job(number));
        assert!(outcome.contains(expected), "{expected}: {outcome}");
    }
}

/// Begins to hold connections to the agent's open port.
pub fn start_flood(node: &Node, namespace: &str) {
    let (count, seconds) = (CONNECTIONS.to_string(), HOLD_SECONDS.to_string());
    let command = ["hold", METRICS, &count, &seconds];
    workloads::start_as(node, namespace, "flood", &command, &as_root(""));
}

/// While it lasts, the probe of a kubelet and a scrape are answered; afterwards, each connection was made at least once.
pub fn assert_answers_until_the_floods_end(node: &Node, namespace: &str) {
    let mut answers = 0;
    loop {
        assert_eq!(
            try_http(METRICS, "/healthz").unwrap(),
            "ok\n",
            "after {answers} answers"
        );
        assert!(try_http(METRICS, "/metrics").is_ok(), "after {answers} answers");
        answers += 1;
        let job = node.get(&["job/flood", "--namespace", namespace]);
        if job["status"]["active"].as_u64().unwrap_or(0) == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    let outcome = printed(node, namespace, "flood");
    let made: u64 = outcome.trim().rsplit_once(' ').unwrap().1.parse().unwrap();
    assert!(made >= CONNECTIONS, "{outcome}");
    println!("{answers} answers beside a flood: {}", outcome.trim());
}

/// Job, command and added capabilities of each attacker.
const FORGERS: [(&str, &str, &str); 3] = [
    ("attacker-default", "forge", ""),
    ("attacker-net-admin", "forge", "NET_ADMIN, SYS_ADMIN"),
    ("attacker-user-namespace", "forge-in-user-namespace", ""),
];

/// Begins to forge, in three kinds of pods at once.
pub fn start_forgers(node: &Node, namespace: &str) {
    let count = FORGED.to_string();
    for (job, command, capabilities) in FORGERS {
        workloads::start_as(node, namespace, job, &[command, &count], &as_root(capabilities));
    }
}

/// Waits for their end. How many attackers could try: a node may forbid user namespaces.
pub fn end_forgers(test: &str, node: &Node, namespace: &str) -> Attackers {
    let mut attackers = Attackers::default();
    for (job, command, _) in FORGERS {
        let outcome = printed(node, namespace, job);
        println!("{job}: {}", outcome.trim().replace('\n', ", "));
        if outcome.contains("not allowed") {
            eprintln!("NOT RUN {test}::user_namespace: {}", outcome.trim());
            continue;
        }
        assert!(outcome.contains(&format!("forged {FORGED} in")), "{outcome}");
        match command {
            "forge" => attackers.in_containers += 1,
            _ => attackers.in_user_namespaces += 1,
        }
    }
    attackers
}

/// Pods that forged, by the reason for which they are refused.
#[derive(Debug, Default)]
pub struct Attackers {
    pub in_containers: u64,
    pub in_user_namespaces: u64,
}

/// Every forgery is counted as refused, and no output holds one of its names.
pub fn assert_refused(attackers: &Attackers) {
    let metrics = try_http(METRICS, "/metrics").unwrap();
    for (reason, attackers) in [
        ("pid_namespace", attackers.in_containers),
        ("user_namespace", attackers.in_user_namespaces),
    ] {
        for (claim, of_each) in [("plugin", FORGED), ("runtime", RUNTIMES)] {
            let counted = refused(&metrics, claim, reason);
            assert!(
                counted >= attackers * of_each,
                "{claim} {reason}: {counted} of {attackers:?}"
            );
        }
    }
    let list = try_http(AGENT, "/api/v1/sandboxes?kind=all&limit=1000").unwrap();
    let operations = try_http(AGENT, "/api/v1/operations").unwrap();
    let known = try_http(AGENT, "/api/v1/known").unwrap();
    for (place, text) in [
        ("/metrics", &metrics),
        ("the list of sandboxes", &list),
        ("the list of operations", &operations),
        ("what is known", &known),
    ] {
        for name in NAMES {
            assert!(!text.contains(name), "{name} is in {place}");
        }
    }
    let of_attacker = try_http(AGENT, &format!("/api/v1/traces/{}", NAMES[2]));
    assert!(
        of_attacker.as_ref().is_err_and(|problem| problem.contains("404")),
        "{of_attacker:?}"
    );
    // Visible to the person who looks for it.
    let health = http(AGENT, "/api/v1/health");
    let paths = health["refused"].as_array().unwrap();
    assert!(!paths.is_empty() && paths.len() <= 64, "{paths:?}");
    assert_eq!(health["lost"]["by"]["exec"], 0, "{}", health["lost"]);
}

fn refused(metrics: &str, claim: &str, reason: &str) -> u64 {
    let series = format!("sandglass_untrusted_processes_total{{claim=\"{claim}\",reason=\"{reason}\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&series));
    value.map_or(0, |value| value.parse().unwrap())
}

/// The same pod with the same container, which no probe of the kubelet failed since it was ready.
pub fn assert_undisturbed(node: &Node, before: &Value) {
    let now = node.agent_pod();
    assert_eq!(now["metadata"]["uid"], before["metadata"]["uid"]);
    let status = &now["status"]["containerStatuses"][0];
    assert_eq!(
        (&status["restartCount"], &status["ready"]),
        (&0.into(), &true.into()),
        "{status}"
    );
    let name = before["metadata"]["name"].as_str().unwrap();
    let selector = format!("--field-selector=involvedObject.name={name},reason=Unhealthy");
    let events = node.get(&["events", "--namespace", NAMESPACE, &selector]);
    // The startup probe fails until the agent listens.
    let failed = events["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|event| event["message"].as_str());
    let failed: Vec<&str> = failed.filter(|message| !message.starts_with("Startup")).collect();
    assert!(failed.is_empty(), "{failed:?}");
}
