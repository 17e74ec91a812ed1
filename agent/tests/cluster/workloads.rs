//! What the test runs in the cluster, and waits for. The image is `deploy/cluster/pod.rs`.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use serde_json::Value;

use super::node::{Node, http, wait_for};
use super::query::query;

const IMAGE: &str = "docker.io/sandglass-test/pod:1";
const TYPE_A: u16 = 1;
/// CoreDNS itself, not its Service.
const COREDNS: &str = "10.244.255.1:5300";

/// A Deployment from none to `replicas` and back.
pub fn scale_up_and_down(node: &Node, namespace: &str, replicas: u32) {
    deployment(node, namespace, "web", 0, "pause", None);
    for wanted in [replicas, 0] {
        scale(node, namespace, "web", wanted, 120);
    }
}

/// A Deployment of no pods yet, whose chain has a plugin that is slow, or whatever the node's `slow-seconds` makes it.
pub fn slow_deployment(node: &Node, namespace: &str, name: &str) {
    deployment(node, namespace, name, 0, "pause", Some("slow"));
}

/// Makes a Deployment as large, and waits until all of its pods run and no other is left.
pub fn scale(node: &Node, namespace: &str, name: &str, wanted: u32, seconds: u64) {
    node.kubectl(&[
        "scale",
        &format!("deployment/{name}"),
        "--namespace",
        namespace,
        &format!("--replicas={wanted}"),
    ]);
    wait_for(&format!("{wanted} pods"), seconds, || {
        let pods = node.get(&["pods", "--namespace", namespace, &format!("--selector=app={name}")]);
        let pods = pods["items"].as_array().unwrap();
        let ready = pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
        match (pods.len(), ready) {
            (all, ready) if all == wanted as usize && ready == all => Ok(()),
            state => Err(format!("(pods, running) {state:?}")),
        }
    });
}

/// Three pods, each replaced by another.
pub fn rolling_update(node: &Node, namespace: &str) {
    deployment(node, namespace, "rolled", 3, "pause", None);
    rollout(node, namespace, "rolled");
    node.kubectl(&["set", "env", "deployment/rolled", "ROUND=2", "--namespace", namespace]);
    rollout(node, namespace, "rolled");
}

/// A Job of three pods that end by themselves.
pub fn job(node: &Node, namespace: &str) {
    batch(node, namespace, "three", 3, &["exit", "0"]);
}

/// A pod calls another through a Service, which kube-proxy translates. It is made when the Service works: what is begun
/// before kube-proxy's rules are there goes wherever the node's routes lead.
pub fn service(node: &Node, namespace: &str) {
    deployment(node, namespace, "server", 1, "serve 0.0.0.0:8080", None);
    rollout(node, namespace, "server");
    node.kubectl(&[
        "expose",
        "deployment/server",
        "--namespace",
        namespace,
        "--port=80",
        "--target-port=8080",
    ]);
    let address = node.get(&["service/server", "--namespace", namespace]);
    let address: Ipv4Addr = address["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
    wait_for("an answer of the Service", 60, || answers((address, 80).into()));
    let name = format!("server.{namespace}.svc.cluster.local");
    wait_for("the Service's name in CoreDNS", 60, || resolves(&name, address));
    batch(node, namespace, "caller", 1, &["ask", &format!("{address}:80")]);
}

/// Whether a `serve` of the image answers the node itself; no sandbox, so nothing that the agent would show.
fn answers(address: SocketAddr) -> Result<(), String> {
    let fail = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(500)).map_err(fail)?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).map_err(fail)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(fail)?;
    if answer == "here\n" {
        Ok(())
    } else {
        Err(format!("{answer:?}"))
    }
}

/// Whether CoreDNS, queried at its own port, answers with this address for the name.
fn resolves(name: &str, address: Ipv4Addr) -> Result<(), String> {
    let fail = |error: std::io::Error| error.to_string();
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(fail)?;
    socket.set_read_timeout(Some(Duration::from_secs(1))).map_err(fail)?;
    socket.send_to(&query(0x5a5a, name, TYPE_A), COREDNS).map_err(fail)?;
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer).map_err(fail)?;
    // One record, which ends with its address.
    if answer[..length].ends_with(&address.octets()) {
        Ok(())
    } else {
        Err(format!("{:?}", &answer[..length]))
    }
}

/// A pod looks a Service up through CoreDNS.
pub fn lookup(node: &Node, namespace: &str) {
    start_lookup(node, namespace, "lookup");
    end_job(node, namespace, "lookup");
}

/// The same by another name, and without waiting for its end.
pub fn start_lookup(node: &Node, namespace: &str, name: &str) {
    let name_of_server = format!("server.{namespace}.svc.cluster.local");
    start_batch(node, namespace, name, 1, &["lookup", &name_of_server], None);
}

/// So many pods at once whose chain has a plugin that is slow, or whatever the node's `slow-seconds` makes it; they end at once.
pub fn slow_job(node: &Node, namespace: &str, name: &str, pods: u32) {
    start_slow_job(node, namespace, name, pods);
    end_job(node, namespace, name);
    node.kubectl(&["delete", "job", name, "--namespace", namespace, "--wait=false"]);
}

/// The same without waiting for its end.
pub fn start_slow_job(node: &Node, namespace: &str, name: &str, pods: u32) {
    start_batch(node, namespace, name, pods, &["exit", "0"], Some("slow"));
}

/// Waits for a job's end, which must be a success: one that failed never completes.
pub fn end_job(node: &Node, namespace: &str, name: &str) {
    let selected = format!("job/{name}");
    let failed = wait_for(&format!("the end of {selected}"), 120, || {
        let job = node.get(&[&selected, "--namespace", namespace]);
        let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is = |kind: &str| {
            let found = conditions.iter();
            found
                .filter(|condition| condition["type"] == kind && condition["status"] == "True")
                .count()
                > 0
        };
        match (is("Complete"), is("Failed")) {
            (true, _) => Ok(None),
            (_, true) => Ok(Some(job["status"].clone())),
            _ => Err(job["status"].to_string()),
        }
    });
    assert_eq!(failed, None::<Value>, "{selected} failed");
}

/// Takes the workloads named away, with their pods.
pub fn delete(node: &Node, namespace: &str, names: &[&str]) {
    node.kubectl(&[&["delete", "--namespace", namespace, "--cascade=foreground"], names].concat());
}

/// A pod whose chain has a slow plugin.
pub fn slow(node: &Node, namespace: &str) {
    pod(node, namespace, "slow", "pause", Some("slow"));
}

/// Pods that never run: the chain of `failing` refuses it, and the network configuration of `broken` names a plugin that is not
/// there. Each has the runtime class of its name.
pub fn start_failing(node: &Node, namespace: &str, names: &[&str]) {
    for name in names {
        create(node, namespace, name, "pause", Some(name));
    }
}

/// Waits for at least two attempts of each, then deletes it, or they would never end.
pub fn end_failing(node: &Node, namespace: &str, names: &[&str]) {
    for name in names {
        wait_for(&format!("two failed attempts of {name}"), 120, || {
            let list = http(
                super::AGENT,
                &format!("/api/v1/sandboxes?result=failed&kind=sandbox&limit=1000&q={name}"),
            );
            let ours = list["rows"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|row| row["namespace"] == namespace && row["pod"] == *name)
                .count();
            if ours >= 2 {
                Ok(())
            } else {
                Err(format!("{ours} failed"))
            }
        });
        node.kubectl(&["delete", "pod", name, "--namespace", namespace, "--now"]);
    }
}

/// One pod that runs.
pub fn pod(node: &Node, namespace: &str, name: &str, command: &str, runtime: Option<&str>) {
    create(node, namespace, name, command, runtime);
    let selected = format!("pod/{name}");
    node.kubectl(&[
        "wait",
        &selected,
        "--namespace",
        namespace,
        "--for=condition=Ready",
        "--timeout=120s",
    ]);
}

fn create(node: &Node, namespace: &str, name: &str, command: &str, runtime: Option<&str>) {
    wait_for_account(node, namespace);
    let class = runtime.map_or(String::new(), |class| format!("  runtimeClassName: {class}\n"));
    node.apply(
        namespace,
        &format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n{class}{}",
            spec(command, "Always", 2)
        ),
    );
}

/// The namespace's account comes a moment after the namespace.
fn wait_for_account(node: &Node, namespace: &str) {
    wait_for("the default account", 60, || {
        let account = node.try_kubectl(&["get", "serviceaccount", "default", "--namespace", namespace]);
        if account.status.success() {
            Ok(())
        } else {
            Err("not there".to_owned())
        }
    });
}

fn deployment(node: &Node, namespace: &str, name: &str, replicas: u32, command: &str, runtime: Option<&str>) {
    let class = runtime.map_or(String::new(), |class| format!("      runtimeClassName: {class}\n"));
    node.apply(
        namespace,
        &format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: {replicas}\n  selector: \
             {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    spec:\n{class}{}",
            spec(command, "Always", 6)
        ),
    );
}

fn batch(node: &Node, namespace: &str, name: &str, completions: u32, command: &[&str]) {
    start_batch(node, namespace, name, completions, command, None);
    end_job(node, namespace, name);
}

fn start_batch(node: &Node, namespace: &str, name: &str, completions: u32, command: &[&str], runtime: Option<&str>) {
    let class = runtime.map_or(String::new(), |class| format!("      runtimeClassName: {class}\n"));
    node.apply(
        namespace,
        &format!(
            "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  completions: {completions}\n  parallelism: \
             {completions}\n  backoffLimit: 0\n  template:\n    spec:\n{class}{}",
            spec(&command.join(" "), "Never", 6)
        ),
    );
}

/// Starts a job of one pod, whose container has this security context.
pub fn start_as(node: &Node, namespace: &str, name: &str, command: &[&str], context: &str) {
    wait_for_account(node, namespace);
    let container = format!("securityContext: {context}, name: c");
    let spec = spec(&command.join(" "), "Never", 6).replacen("name: c", &container, 1);
    node.apply(
        namespace,
        &format!(
            "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  backoffLimit: 0\n  template:\n    \
             spec:\n{spec}"
        ),
    );
}

fn spec(command: &str, restart: &str, indent: usize) -> String {
    let arguments: Vec<String> = command.split(' ').map(|argument| format!("\"{argument}\"")).collect();
    let lines = [
        format!("restartPolicy: {restart}"),
        "terminationGracePeriodSeconds: 1".to_owned(),
        "automountServiceAccountToken: false".to_owned(),
        format!(
            "containers: [{{name: c, image: {IMAGE}, imagePullPolicy: Never, args: [{}]}}]",
            arguments.join(", ")
        ),
    ];
    lines.map(|line| format!("{:indent$}{line}\n", "")).concat()
}

fn rollout(node: &Node, namespace: &str, name: &str) {
    let selected = format!("deployment/{name}");
    node.kubectl(&[
        "rollout",
        "status",
        &selected,
        "--namespace",
        namespace,
        "--timeout=120s",
    ]);
    // Pods that were replaced are gone.
    wait_for("the end of the old pods", 60, || {
        let pods = node.get(&["pods", "--namespace", namespace, &format!("--selector=app={name}")]);
        let ending = pods["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|pod| !pod["metadata"]["deletionTimestamp"].is_null());
        match ending.count() {
            0 => Ok(()),
            ending => Err(format!("{ending} are ending")),
        }
    });
}
