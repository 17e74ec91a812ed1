//! Delivery over an outage: ten minutes of 50 sandboxes a second without a collector, then one that accepts everything.
//!
//! Runs the real binary with spool, journal of open traces and store on disk in one directory. Measured are its memory, what it makes the kernel write, idle and busy, and
//! which sandboxes arrive, against the load's own list. Does not: measure the collector, or write to a tmpfs: the kernel does not count those bytes.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use flate2::read::GzDecoder;

use crate::Effort;
use crate::agent::{Agent, Started};
use crate::load::{Load, id_prefix};
use crate::report::{Figure, Outcome, Unit};

/// Measures.
pub fn run(effort: Effort) -> Result<Outcome> {
    let spool = Spool::new()?;
    if is_tmpfs(&spool.0)? {
        return Ok(Outcome::Skipped(format!(
            "{} is a tmpfs, and what is written there is not counted (set TMPDIR)",
            spool.0.display()
        )));
    }
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let (endpoint, directory) = (
        format!("http://{address}"),
        format!("otlp.spool_directory={}", spool.0.display()),
    );
    let agent = match Agent::start_with(&["--otlp-endpoint", &endpoint, "--set", &directory])? {
        Started::Ready(agent) => agent,
        Started::Impossible(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let mut figures = Vec::new();
    let load = Load::new()?;
    // The first traces begin the files; what is written then is the load's.
    load.play(RATE, Duration::from_secs(2))?;
    std::thread::sleep(SETTLED);
    let (before, idle) = (agent.written_bytes()?, Duration::from_secs(effort.pick(60, 10)));
    std::thread::sleep(idle);
    figures.push(
        Figure::new("written, idle", agent.written_bytes()? - before, Unit::Bytes)
            .at_most(0.0)
            .remark(format!("in {} s, with traces that wait", idle.as_secs())),
    );

    let (before, begin) = (agent.written_bytes()?, Instant::now());
    let minutes = effort.pick(10, 1);
    let period = Duration::from_secs(effort.pick(60, 20));
    let mut resident = Vec::new();
    let mut sandboxes = RATE * 2;
    for _ in 0..minutes {
        // Numbers go on: a sandbox of each minute is another one.
        sandboxes += load.play_from(sandboxes, RATE, period)?.sandboxes;
        resident.push(agent.resident_bytes()?);
    }
    let rate = (agent.written_bytes()? - before) / begin.elapsed().as_secs_f64();
    let megabytes: Vec<String> = resident.iter().map(|bytes| format!("{:.1}", bytes / 1e6)).collect();
    let metrics = agent.metrics()?;
    let waiting = metrics.sum("sandglass_export_queue_spans", &[]);
    figures.push(
        Figure::new(
            "resident memory, in the outage",
            resident.iter().copied().fold(0.0, f64::max),
            Unit::Bytes,
        )
        .at_most(RESIDENT_BYTES)
        .remark(format!("MB after each minute: {}", megabytes.join(", "))),
    );
    figures.push(
        Figure::new("written a second, in the outage", rate, Unit::Bytes)
            .at_most(WRITTEN_BYTES)
            .remark(format!(
                "{RATE} sandboxes/s; spool, journal and store; {waiting} spans wait"
            )),
    );

    let collector = Collector::start(address)?;
    let begin = Instant::now();
    let delivered = loop {
        let metrics = agent.metrics()?;
        if metrics.sum("sandglass_export_queue_spans", &[]) == 0.0 || begin.elapsed() > DRAINED {
            break begin.elapsed();
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    // The batch of the last ones, which were still open.
    std::thread::sleep(SETTLED);
    let metrics = agent.metrics()?;
    let dropped: f64 = DROPPED
        .iter()
        .map(|outcome| metrics.sum("sandglass_export_spans_total", &[&format!("outcome=\"{outcome}\"")]))
        .sum();
    let arrived = collector.sandboxes();
    let missing = (0..sandboxes).filter(|number| !arrived.contains(number)).count();
    figures.push(
        Figure::new("sandboxes that did not arrive", missing as f64, Unit::Count)
            .at_most(0.0)
            .remark(format!(
                "of {sandboxes}; all within {:.1} s of the collector's return",
                delivered.as_secs_f64()
            )),
    );
    figures.push(Figure::new("spans dropped", dropped, Unit::Count).at_most(0.0));
    agent.stop()?;
    Ok(Outcome::Figures(figures))
}

/// The directory of the spool, removed when this is dropped.
struct Spool(PathBuf);

impl Spool {
    fn new() -> Result<Spool> {
        let directory = std::env::temp_dir().join(format!("sandglass-bench-spool-{}", std::process::id()));
        std::fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        Ok(Spool(directory))
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn is_tmpfs(directory: &Path) -> Result<bool> {
    let found = rustix::fs::statfs(directory)?;
    Ok(i128::from(found.f_type) == i128::from(libc::TMPFS_MAGIC))
}

/// Accepts every request, and keeps the numbers of the sandboxes in it.
struct Collector(Arc<Mutex<BTreeSet<u64>>>);

impl Collector {
    fn start(address: SocketAddr) -> Result<Collector> {
        let listener = TcpListener::bind(address)?;
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        let collector = Collector(Arc::clone(&seen));
        // Ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = answer(stream, &seen);
            }
        });
        Ok(collector)
    }

    fn sandboxes(&self) -> BTreeSet<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Answers the requests of one connection until its end.
fn answer(stream: TcpStream, seen: &Mutex<BTreeSet<u64>>) -> Result<()> {
    let mut answers = stream.try_clone()?;
    let mut requests = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if requests.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        requests.read_exact(&mut body)?;
        let mut plain = Vec::new();
        GzDecoder::new(body.as_slice()).read_to_end(&mut plain)?;
        numbers(&plain, &mut seen.lock().unwrap_or_else(PoisonError::into_inner));
        answers.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n")?;
    }
}

/// The numbers of all container ids in a message: protobuf holds texts as they are.
fn numbers(message: &[u8], found: &mut BTreeSet<u64>) {
    let prefix = id_prefix();
    let length = 2 * prefix.len();
    for window in message
        .windows(length)
        .filter(|window| window.starts_with(prefix.as_bytes()))
    {
        let digits = std::str::from_utf8(&window[prefix.len()..]).ok();
        found.extend(digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()));
    }
}

/// Sandboxes a second.
const RATE: u64 = 50;
const RESIDENT_BYTES: f64 = 25e6;
const WRITTEN_BYTES: f64 = 2e6;
/// After the last DEL, until its trace is closed, batched and written.
const SETTLED: Duration = Duration::from_secs(15);
/// Longest wait for the spool to be empty.
const DRAINED: Duration = Duration::from_secs(120);
/// Outcomes of spans that never arrive.
const DROPPED: [&str; 6] = ["rejected", "evicted", "expired", "corrupt", "partial_rejected", "shed"];
