//! The real agent observing this machine, as a user would start it: its address, its answers, its log.
//!
//! Used by tests of what only a process can show: signals, a kill, a changed file. Needs root with BPF, or prints `SKIPPED`.
//! Does not: judge what the agent answers.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A running agent; killed when it is dropped.
pub struct Running {
    pub process: Child,
    address: SocketAddr,
    log: PathBuf,
    /// Bytes that were in the log before.
    log_begin: usize,
}

impl Running {
    /// `None`, with a line `SKIPPED`, where this machine cannot be observed. The log is written into `folder`.
    pub fn start(test: &str, folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Option<Running> {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let log = folder.join("log");
        let file = fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let log_begin = usize::try_from(file.metadata().unwrap().len()).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_sandglass"))
            .args(["run", "--cri-endpoint", "none", "--listen", &address.to_string()])
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .unwrap();
        let mut agent = Running {
            process,
            address,
            log,
            log_begin,
        };
        let begin = Instant::now();
        while !agent
            .get("/readyz")
            .is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
        {
            if let Some(status) = agent.process.try_wait().unwrap() {
                // 69: the kernel lacks something; 77: privilege is missing.
                assert!(matches!(status.code(), Some(69 | 77)), "{status}: {}", agent.log());
                eprintln!("SKIPPED {test}: {}", agent.log().lines().last().unwrap_or_default());
                return None;
            }
            assert!(begin.elapsed() < PATIENCE, "the agent is not ready: {}", agent.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(agent)
    }

    /// The answer with its head; `None` while nobody listens.
    pub fn get(&self, path: &str) -> Option<String> {
        ask(self.address, path)
    }

    pub fn metrics(&self) -> String {
        self.get("/metrics").unwrap()
    }

    /// The value of a series, written as `/metrics` does.
    pub fn metric(&self, series: &str) -> Option<f64> {
        let metrics = self.metrics();
        let mut lines = metrics
            .lines()
            .filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        lines.next()?.split(' ').next()?.parse().ok()
    }

    pub fn health(&self) -> Value {
        self.page("/api/v1/health")
    }

    /// An answer of the page's API.
    pub fn page(&self, path: &str) -> Value {
        let answer = ask(self.page_address(), path).unwrap();
        let body = &answer[answer.find('{').unwrap()..=answer.rfind('}').unwrap()];
        serde_json::from_str(body).unwrap()
    }

    /// The page has a port of its own, which the log names: behind what an earlier agent wrote there, and perhaps not yet.
    fn page_address(&self) -> SocketAddr {
        let begin = Instant::now();
        loop {
            let log = self.log();
            let (whole_lines, _) = log[self.log_begin..].rsplit_once('\n').unwrap_or_default();
            let address = whole_lines
                .rsplit_once("the page is served address=")
                .and_then(|(_, after)| after.split_whitespace().next());
            if let Some(address) = address {
                return address.parse().unwrap();
            }
            assert!(begin.elapsed() < PATIENCE, "the page is not served: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until something is true of the agent.
    pub fn until(&self, what: &str, is_so: impl Fn(&Running) -> bool) {
        let begin = Instant::now();
        while !is_so(self) {
            assert!(begin.elapsed() < PATIENCE, "{what}: {}\n{}", self.health(), self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn ask(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Longest wait for the agent, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(120);
