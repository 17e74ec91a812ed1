//! Real Prometheus, Alertmanager and promtool, started on loopback and ended with the test.
//!
//! A failure here is a failure of the test that called: these functions panic. Does not: install anything; a test calls
//! [`crate::skip::has`] before.
#![expect(clippy::unwrap_used, reason = "test code")]

use std::fmt::Display;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::output::Output;
use crate::ports::{free, local};

/// Runs a program to its end; returns whether it succeeded and what it printed.
pub fn run(program: &str, arguments: &[&str], directory: &Path) -> (bool, String) {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

/// Body of the answer to a GET request, where its status is 200.
pub fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The agent checks the name in `Host`.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.lines().next()?.contains(" 200 ").then(|| body.to_owned())
}

/// Polls `done` until it returns a value; panics after `seconds`.
pub fn until<T>(what: &str, seconds: u64, mut done: impl FnMut() -> Option<T>) -> T {
    until_ok(what, seconds, || done().ok_or("no answer yet"))
}

/// As [`until`]. The panic names the last error: what there was instead.
pub fn until_ok<T, E: Display>(what: &str, seconds: u64, mut done: impl FnMut() -> Result<T, E>) -> T {
    let begin = Instant::now();
    loop {
        match done() {
            Ok(found) => return found,
            Err(last) => assert!(
                begin.elapsed() < Duration::from_secs(seconds),
                "{what}: not in {seconds} s: {last}"
            ),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A peer in a folder of its own; dropping it ends the process and removes the folder.
pub struct Peer {
    /// Where it answers.
    pub address: SocketAddr,
    process: Child,
    // Before the folder: it prints a file of it.
    _output: Output,
    _folder: tempfile::TempDir,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What Prometheus scrapes, and the labels it adds.
pub struct Target {
    /// Name of the scrape job.
    pub job: &'static str,
    /// Label `node`.
    pub node: String,
    /// Label `cluster`.
    pub cluster: Option<&'static str>,
    /// What is scraped.
    pub address: SocketAddr,
}

/// Starts Prometheus with rule files in `folder`.
pub fn prometheus(targets: &[Target], rule_files: &[PathBuf], alertmanager: Option<SocketAddr>) -> Peer {
    let folder = tempfile::tempdir().unwrap();
    let mut config =
        "global: {scrape_interval: 1s, evaluation_interval: 1s, external_labels: {cluster: test}}\n".to_owned();
    config.push_str("rule_files:\n");
    for file in rule_files {
        config.push_str(&format!("  - {}\n", file.display()));
    }
    if let Some(address) = alertmanager {
        config.push_str(&format!(
            "alerting: {{alertmanagers: [{{static_configs: [{{targets: ['{address}']}}]}}]}}\n"
        ));
    }
    config.push_str("scrape_configs:\n");
    let mut jobs: Vec<&str> = targets.iter().map(|target| target.job).collect();
    jobs.dedup();
    for job in jobs {
        config.push_str(&format!("  - job_name: {job}\n    static_configs:\n"));
        for target in targets.iter().filter(|target| target.job == job) {
            let cluster = target
                .cluster
                .map_or_else(String::new, |cluster| format!(", cluster: {cluster}"));
            config.push_str(&format!(
                "      - {{targets: ['{}'], labels: {{node: {}{cluster}}}}}\n",
                target.address, target.node
            ));
        }
    }
    let path = folder.path().join("prometheus.yml");
    std::fs::write(&path, config).unwrap();
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--config.file={}", path.display()))
        .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
        .arg("--enable-feature=exemplar-storage")
        .arg("--rules.alert.resend-delay=1s");
    started(command, folder)
}

/// Starts a program of the Prometheus project and waits until it is ready.
fn started(mut command: Command, folder: tempfile::TempDir) -> Peer {
    let address = local(free([0]).unwrap()[0]);
    command
        .arg(format!("--web.listen-address={address}"))
        .stdin(Stdio::null());
    let output = Output::of(&mut command, folder.path(), "peer").unwrap();
    let peer = Peer {
        address,
        process: command.spawn().unwrap(),
        _output: output,
        _folder: folder,
    };
    let what = format!("{} is ready", command.get_program().display());
    until(&what, 60, || get(address, "/-/ready"));
    peer
}

/// Starts Alertmanager, which notifies `receiver`.
pub fn alertmanager(receiver: SocketAddr) -> Peer {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "route: {{receiver: on-call, group_by: [alertname, cluster, node], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}}\n\
         receivers:\n  - name: on-call\n    webhook_configs: [{{url: 'http://{receiver}/', send_resolved: true}}]\n"
    );
    let path = folder.path().join("alertmanager.yml");
    std::fs::write(&path, config).unwrap();
    let mut command = Command::new("prometheus-alertmanager");
    command
        .arg(format!("--config.file={}", path.display()))
        .arg(format!("--storage.path={}", folder.path().join("data").display()))
        // An Alertmanager without peers.
        .arg("--cluster.listen-address=");
    started(command, folder)
}

impl Peer {
    /// The samples of an instant query: labels and value.
    pub fn query(&self, text: &str) -> Result<Vec<(Value, f64)>, String> {
        let answer = self.api(&format!("query?query={}", encode(text)));
        let answer = answer.ok_or_else(|| "Prometheus refuses it".to_owned())?;
        let result = answer["result"].as_array().cloned().unwrap_or_default();
        if answer["resultType"] == "scalar" {
            return Ok(vec![(
                Value::Null,
                answer["result"][1].as_str().unwrap().parse().unwrap(),
            )]);
        }
        let samples = result.into_iter().map(|sample| {
            let value = sample["value"][1].as_str().unwrap().parse().unwrap();
            (sample["metric"].clone(), value)
        });
        Ok(samples.collect())
    }

    /// `data` of an answer of the query API.
    pub fn api(&self, path: &str) -> Option<Value> {
        let answer: Value = serde_json::from_str(&get(self.address, &format!("/api/v1/{path}"))?).unwrap();
        Some(answer["data"].clone())
    }
}

/// `text`, percent-encoded for a query string.
pub fn encode(text: &str) -> String {
    let byte = |byte: u8| {
        if byte.is_ascii_alphanumeric() {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    text.bytes().map(byte).collect()
}

/// Runs a program with `input`; returns whether it succeeded and what it printed.
pub fn feed(program: &str, arguments: &[&str], input: &str) -> (bool, String) {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}
