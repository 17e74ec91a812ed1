//! The real agent, started as a user would: its address, its metrics, its processor time and memory.
//!
//! Used by the parts that measure beside it. Always on a port of its own, without CRI and exporters, and with nothing but PATH
//! in its environment. Stopped by SIGTERM when dropped. Comparisons use a [`Switched`] agent, whose hooks detach and attach
//! within a millisecond: starting one takes a quarter of a second of work, which changes the state of the machine. Does not:
//! measure.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::processor;

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    address: SocketAddr,
    /// Time from its start until `/readyz` succeeded.
    pub ready_after: Duration,
}

/// Result of a start.
#[derive(Debug)]
pub enum Started {
    /// It runs and is ready.
    Ready(Agent),
    /// It cannot observe this machine, with the reason.
    Impossible(String),
}

impl Agent {
    /// Starts `sandglass run` and waits until it is ready.
    pub fn start() -> Result<Started> {
        Agent::start_with(&[])
    }

    /// The same, with more arguments.
    pub fn start_with(arguments: &[&str]) -> Result<Started> {
        let address = free_address()?;
        // That of the image is linked statically, with another allocator.
        let given = std::env::var_os("SANDGLASS_BENCH_AGENT").map(PathBuf::from);
        let mut command = Command::new(given.map_or_else(|| program("sandglass"), Ok)?);
        command.args(["run", "--cri-endpoint", "none", "--listen", &address.to_string()]);
        command.args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Agent::start_as(command, address)
    }

    fn start_as(mut command: Command, address: SocketAddr) -> Result<Started> {
        let begin = Instant::now();
        let mut child = command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("SANDGLASS_LOG", "error")
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        while begin.elapsed() < START_DEADLINE {
            if let Some(status) = child.try_wait()? {
                let mut stderr_text = String::new();
                if let Some(stderr) = &mut child.stderr {
                    stderr.read_to_string(&mut stderr_text)?;
                }
                let reason = stderr_text.trim().lines().next().unwrap_or_default().to_owned();
                // 69: the kernel lacks something; 77: privilege is missing.
                if matches!(status.code(), Some(69 | 77)) {
                    return Ok(Started::Impossible(reason));
                }
                bail!("the agent ended with {status}: {reason}");
            }
            if get(address, "/readyz").is_ok_and(|(status, _)| status == 200) {
                let ready_after = begin.elapsed();
                return Ok(Started::Ready(Agent {
                    child,
                    address,
                    ready_after,
                }));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill()?;
        child.wait()?;
        bail!("the agent was not ready after {START_DEADLINE:?}")
    }

    /// Its metrics now.
    pub fn metrics(&self) -> Result<Metrics> {
        Ok(Metrics::parse(&self.exposition()?))
    }

    /// The text of its metrics.
    pub fn exposition(&self) -> Result<String> {
        let (status, text) = get(self.address, "/metrics")?;
        ensure!(status == 200, "/metrics answers {status}");
        Ok(text)
    }

    /// Its metrics once its DNS probe is attached: readiness covers the process probe only.
    pub fn await_dns_probe(&self) -> Result<Metrics> {
        for _ in 0..100 {
            let metrics = self.metrics()?;
            if metrics.has("sandglass_probe_info", "probe=\"dns\"") {
                return Ok(metrics);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("the agent has no DNS probe")
    }

    /// Fails unless it reports exactly so many ADDs of a plugin, those during which its hooks were attached: other figures would mean nothing.
    pub fn ensure_adds(&self, plugin: &str, observed: u32) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(5);
        let labels = ["operation=\"ADD\"", &format!("plugin=\"{plugin}\"")];
        loop {
            let reported = self
                .metrics()?
                .sum("sandglass_cni_plugin_duration_seconds_count", &labels);
            if reported == f64::from(observed) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "the agent reports {reported} ADDs of {plugin}; its hooks were attached for {observed}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Processor time of all its threads so far, to the nanosecond.
    pub fn cpu(&self) -> Result<Duration> {
        processor::time_of(self.child.id())
    }

    /// Its resident memory in bytes.
    pub fn resident_bytes(&self) -> Result<f64> {
        processor::resident_bytes(self.child.id())
    }

    /// Bytes of files that it has made the kernel write to a disk (proc(5), /proc/PID/io, `write_bytes`): whole pages, none for a tmpfs.
    pub fn written_bytes(&self) -> Result<f64> {
        let io = std::fs::read_to_string(format!("/proc/{}/io", self.child.id()))?;
        let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        Ok(written.context("no write_bytes")?.trim().parse()?)
    }

    /// Ends it and waits for that.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        if let Some(pid) = rustix::process::Pid::from_raw(i32::try_from(self.child.id())?) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.child.kill()?;
        self.child.wait()?;
        bail!("the agent did not end within 10 s of SIGTERM")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// A running agent whose hooks can be detached and attached.
#[derive(Debug)]
pub struct Switched {
    /// For its metrics and its processor time.
    pub agent: Agent,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Switched {
    /// Starts it and waits until it is ready, with attached hooks.
    pub fn start() -> Result<Switched> {
        Switched::start_with(None)
    }

    /// The same, with this network namespace as the node's: its conntrack is observed.
    pub fn start_on(node: &str) -> Result<Switched> {
        Switched::start_with(Some(node))
    }

    /// The same, without the recording of waits.
    pub fn start_without_waits() -> Result<Switched> {
        Switched::start_with(Some("--no-waits"))
    }

    fn start_with(argument: Option<&str>) -> Result<Switched> {
        let address = free_address()?;
        let mut command = Command::new(program("sandglass-bench-agent")?);
        command.arg(address.to_string()).args(argument);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut agent = match Agent::start_as(command, address)? {
            Started::Ready(agent) => agent,
            Started::Impossible(reason) => bail!("the agent cannot observe here: {reason}"),
        };
        let orders = agent.child.stdin.take().context("no way to give orders")?;
        let answers = agent.child.stdout.take().context("no way to hear answers")?;
        Ok(Switched {
            agent,
            orders,
            answers: BufReader::new(answers),
        })
    }

    /// Puts its hooks on, or takes them off: always both, the one that is wanted last, so that what follows begins alike.
    pub fn hook(&mut self, hooked: bool) -> Result<()> {
        for order in if hooked { ["off\n", "on\n"] } else { ["on\n", "off\n"] } {
            self.orders.write_all(order.as_bytes())?;
            let mut answer = String::new();
            self.answers.read_line(&mut answer)?;
            ensure!(answer == order, "the agent answered {answer:?} to {order:?}");
        }
        std::thread::sleep(AFTER_SWITCH);
        Ok(())
    }

    /// Ends it and waits for that.
    pub fn stop(self) -> Result<()> {
        self.agent.stop()
    }
}

/// Samples of `/metrics`.
#[derive(Debug, Default)]
pub struct Metrics(BTreeMap<String, Vec<(String, f64)>>);

impl Metrics {
    /// The samples of a text.
    pub fn parse(text: &str) -> Metrics {
        let mut samples: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            // An exemplar may follow the value.
            let line = line.split(" # ").next().unwrap_or(line);
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let Ok(value) = value.parse() else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            samples
                .entry(name.to_owned())
                .or_default()
                .push((labels.to_owned(), value));
        }
        Metrics(samples)
    }

    /// Whether there is a series of `name` with this label.
    pub fn has(&self, name: &str, label: &str) -> bool {
        let series = self.0.get(name).map(Vec::as_slice).unwrap_or_default();
        series.iter().any(|(labels, _)| labels.contains(label))
    }

    /// Sum of all series of `name` that have each of `labels` (`key="value"`).
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let series = self.0.get(name).map(Vec::as_slice).unwrap_or_default();
        let wanted = series
            .iter()
            .filter(|(have, _)| labels.iter().all(|label| have.contains(label)));
        wanted.map(|(_, value)| value).sum()
    }
}

/// The agent's binaries lie beside this one.
fn program(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name(name);
    ensure!(
        program.is_file(),
        "{} does not exist\nhint: build it with `cargo build --release --package sandglass --package sandglass-bench`",
        program.display()
    );
    Ok(program)
}

/// A port without a listener at the moment.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Status and body of the answer to a GET request.
pub fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(
        stream,
        "GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let status = head.split_whitespace().nth(1).context("no HTTP status")?.parse()?;
    Ok((status, body.to_owned()))
}

const START_DEADLINE: Duration = Duration::from_secs(10);
/// The kernel frees what a hook needed once no processor can be in it any more (RCU), some 10 ms later.
const AFTER_SWITCH: Duration = Duration::from_millis(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_summed_by_label() {
        let text = "# TYPE a histogram\na_count{p=\"x\",r=\"ok\"} 3\na_bucket{p=\"x\",le=\"1.0\"} 3 # {trace_id=\"1\"} 0.1\n\
                    a_count{p=\"y\",r=\"ok\"} 4\nb_total 7\n# EOF\n";
        let metrics = Metrics::parse(text);
        assert_eq!(metrics.sum("a_count", &[]), 7.0);
        assert_eq!(metrics.sum("a_count", &["p=\"x\""]), 3.0);
        assert_eq!(metrics.sum("a_bucket", &["p=\"x\""]), 3.0);
        assert_eq!(metrics.sum("b_total", &[]), 7.0);
        assert_eq!(metrics.sum("c_total", &[]), 0.0);
        assert!(metrics.has("a_count", "p=\"x\"") && !metrics.has("a_count", "p=\"z\""));
    }
}
