//! The running node that `deploy/cluster/test.sh` started: kubectl, helm, the agent's API, Jaeger, containerd's metrics.
//!
//! Every wait and every command has an end, and what did not come is in the message; a test that fails prints the state of
//! the node besides (`state.rs`). Does not: start or end the node.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::state;

/// The agent, at the node's own address, as the chart has it.
pub const METRICS: &str = "10.244.255.1:9477";
/// Page and API of the agent, on the loopback address of the node, which is that of this machine.
pub const AGENT: &str = "127.0.0.1:9478";
/// Jaeger's query API.
pub const JAEGER: &str = "127.0.0.1:16686";
/// Prometheus, where it is installed.
pub const PROMETHEUS: &str = "127.0.0.1:9490";
/// containerd's metrics.
pub const CONTAINERD: &str = "127.0.0.1:1338";
/// Where the agent is installed.
pub const NAMESPACE: &str = "sandglass";
/// Longest time of one command: some of kubectl's would wait for ever.
const COMMAND_SECONDS: u32 = 240;

/// The node.
pub struct Node {
    dir: PathBuf,
    bin: PathBuf,
}

/// The node goes with the run, and with it the reason why a test failed: print it here.
impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            state::tell(self);
        }
    }
}

impl Node {
    /// The node, or prints `SKIPPED`.
    pub fn find(test: &str) -> Option<Node> {
        let (Some(dir), Some(bin)) = (
            std::env::var_os("SANDGLASS_CLUSTER"),
            std::env::var_os("SANDGLASS_CLUSTER_BIN"),
        ) else {
            eprintln!("SKIPPED {test}: no cluster here: make test-cluster starts one");
            return None;
        };
        println!("=== {test}");
        let node = Node {
            dir: dir.into(),
            bin: bin.into(),
        };
        node.clean();
        Some(node)
    }

    /// Waits for the end of what runs beside these tests: the process with the id `SANDGLASS_BESIDE`, if that is set. `.ci/run` has the fuzz
    /// targets run beside tests that hold no durations against another clock.
    pub fn wait_to_be_alone(&self) {
        let Ok(pid) = std::env::var("SANDGLASS_BESIDE") else {
            return;
        };
        let begin = Instant::now();
        wait_for("the end of what runs beside these tests", 900, || {
            // A process that has ended and is not waited for yet has no arguments (proc_pid_cmdline(5)).
            match std::fs::read(format!("/proc/{pid}/cmdline")) {
                Ok(arguments) if !arguments.is_empty() => Err(format!("{pid} runs")),
                _ => Ok(()),
            }
        });
        println!("alone after {:.0} s", begin.elapsed().as_secs_f64());
    }

    /// Takes away what a test that failed left behind, so that the next one can succeed.
    fn clean(&self) {
        // Not there is as good.
        let _ = std::fs::remove_file(self.path("fail-del"));
        std::fs::write(self.path("slow-seconds"), "2\n").unwrap();
        let uninstall = [
            "uninstall",
            "sandglass",
            "--namespace",
            NAMESPACE,
            "--ignore-not-found",
            "--wait",
        ];
        let _ = self.command("helm", COMMAND_SECONDS).args(uninstall).output();
        self.try_kubectl(&["delete", "namespace", "work", "--ignore-not-found", "--timeout=60s"]);
        // What the plain manifests made, which Helm would not take over.
        let ours = "--selector=app.kubernetes.io/part-of=sandglass";
        let kinds = "all,configmaps,secrets,serviceaccounts";
        if !self
            .kubectl(&["get", kinds, "--namespace", NAMESPACE, ours, "--output=name"])
            .is_empty()
        {
            self.try_kubectl(&["delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=60s"]);
        }
        self.try_kubectl(&["delete", "pod", "--all", "--namespace=default", "--now"]);
    }

    /// A path below the node's folder.
    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.join(below)
    }

    /// Where a program of the cluster is.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// A program of the cluster, ended after so many seconds.
    pub fn command(&self, program: &str, seconds: u32) -> Command {
        let mut command = self.configured(Command::new("timeout"));
        command
            .args(["--kill-after=5", &seconds.to_string()])
            .arg(self.bin.join(program));
        command
    }

    /// A program of the cluster, for as long as its caller lets it run.
    pub fn endless(&self, program: &str) -> Command {
        self.configured(Command::new(self.bin.join(program)))
    }

    fn configured(&self, mut command: Command) -> Command {
        command
            .env("KUBECONFIG", self.path("admin.kubeconfig"))
            .stdin(Stdio::null());
        command
    }

    /// Runs kubectl to the end.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Output {
        self.command("kubectl", COMMAND_SECONDS)
            .args(arguments)
            .output()
            .unwrap()
    }

    /// Runs kubectl; what it prints.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        succeeded(&format!("kubectl {}", arguments.join(" ")), self.try_kubectl(arguments))
    }

    /// kubectl's output as JSON.
    pub fn get(&self, arguments: &[&str]) -> Value {
        let text = self.kubectl(&[&["get", "--output=json"], arguments].concat());
        serde_json::from_str(&text).unwrap()
    }

    /// Applies manifests.
    pub fn apply(&self, namespace: &str, yaml: &str) {
        let mut child = self
            .command("kubectl", COMMAND_SECONDS)
            .args(["apply", "--namespace", namespace, "--filename", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(yaml.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "kubectl apply of {yaml}");
    }

    /// Runs helm; what it prints.
    pub fn helm(&self, arguments: &[&str]) -> String {
        succeeded(
            &format!("helm {}", arguments.join(" ")),
            self.command("helm", COMMAND_SECONDS).args(arguments).output().unwrap(),
        )
    }

    /// Makes the namespace of the agent, as the chart's notes say. It stays for the next test: Kubernetes takes five seconds to
    /// remove one.
    pub fn namespace(&self) {
        // There already is as good.
        self.try_kubectl(&["create", "namespace", NAMESPACE]);
        self.kubectl(&[
            "label",
            "namespace",
            NAMESPACE,
            "--overwrite",
            "pod-security.kubernetes.io/enforce=privileged",
        ]);
    }

    /// `--set` arguments for this node's paths: everything else is the chart's default.
    pub fn values(&self) -> Vec<String> {
        [
            ("linux.cni.confDir", "cni"),
            ("linux.cni.binDir", "plugins"),
            ("linux.runtimeConfigDir", "etc"),
        ]
        .iter()
        .map(|(key, below)| format!("--set={key}={}", self.path(below).display()))
        .collect()
    }

    /// Installs the chart, or changes what is installed, and waits until it is rolled out.
    pub fn install(&self, more: &[&str]) {
        self.install_without_waiting(&[more, &["--wait", "--timeout=180s"]].concat());
    }

    /// The same without waiting.
    pub fn install_without_waiting(&self, more: &[&str]) {
        let chart = super::root("deploy/helm/sandglass");
        let values = self.values();
        let mut arguments = vec![
            "upgrade",
            "--install",
            "sandglass",
            chart.to_str().unwrap(),
            "--namespace",
            NAMESPACE,
            "--set=image.repository=localhost/sandglass",
        ];
        arguments.extend(values.iter().map(String::as_str));
        arguments.extend(more);
        self.helm(&arguments);
    }

    /// Writes for Prometheus which pods carry its annotations.
    pub fn find_targets(&self) {
        let mut script = Command::new(super::root("deploy/cluster/targets.sh"));
        let output = script.arg(&self.bin).arg(&self.dir).output().unwrap();
        succeeded("targets.sh", output);
    }

    /// Takes the chart away, and waits until its pod is gone too: Helm waits for its own objects only.
    pub fn uninstall(&self) {
        self.helm(&["uninstall", "sandglass", "--namespace", NAMESPACE, "--wait"]);
        wait_for("the end of the agent's pods", 120, || match self.agent_pods().len() {
            0 => Ok(()),
            pods => Err(format!("{pods} are there")),
        });
    }

    fn agent_pods(&self) -> Vec<Value> {
        let selector = "--selector=app.kubernetes.io/component=agent-linux";
        let pods = self.get(&["pods", "--namespace", NAMESPACE, selector]);
        pods["items"].as_array().unwrap().clone()
    }

    /// The agent's pod, not one that is ending.
    pub fn agent_pod(&self) -> Value {
        let mut pods = self.agent_pods();
        pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        pods.pop().unwrap_or(Value::Null)
    }

    /// The log of the agent's container, that of the one before included.
    pub fn agent_log(&self) -> String {
        let pod = self.agent_pod();
        let Some(name) = pod["metadata"]["name"].as_str() else {
            return String::new();
        };
        let log = |more: &[&str]| {
            let output = self.try_kubectl(&[&["logs", "--namespace", NAMESPACE, name], more].concat());
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        log(&["--previous"]) + &log(&[])
    }

    /// Process ids of agents that run in containers of the cluster.
    pub fn agent_processes(&self) -> Vec<u32> {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| {
            let read = |file| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            read("cmdline").starts_with(b"/sandglass\0run\0")
                && String::from_utf8_lossy(&read("cgroup")).contains("kubepods")
        })
        .collect()
    }
}

fn succeeded(what: &str, output: Output) -> String {
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{what}: {}: {printed}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    printed
}

/// Waits until `check` returns a value; `what` is for the message.
pub fn wait_for<T>(what: &str, seconds: u64, mut check: impl FnMut() -> Result<T, String>) -> T {
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        match check() {
            Ok(value) => return value,
            Err(state) if Instant::now() >= end => panic!("{what} did not come within {seconds} s: {state}"),
            Err(_) => sleep(Duration::from_millis(300)),
        }
    }
}

/// The body of an answer, or why there is none.
pub fn try_http(address: &str, path: &str) -> Result<String, String> {
    let fail = |error: std::io::Error| format!("{address}{path}: {error}");
    let socket = address.to_socket_addrs().map_err(fail)?.next().ok_or("no address")?;
    let mut stream = TcpStream::connect_timeout(&socket, Duration::from_secs(5)).map_err(fail)?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).map_err(fail)?;
    // HTTP 1.0: the answer ends with the connection, without chunks.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").map_err(fail)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(fail)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(format!("{address}{path}: {}", head.lines().next().unwrap_or_default())),
    }
}

/// JSON from an API.
pub fn http(address: &str, path: &str) -> Value {
    serde_json::from_str(&try_http(address, path).unwrap_or_else(|problem| panic!("{problem}"))).unwrap()
}
