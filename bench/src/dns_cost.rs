//! The cost of the DNS and drop probes: kernel and processor time per DNS message, the agent's per lookup (`lookup_cost`),
//! and the throughput of an unrelated TCP connection (`tcp_flow`).
//!
//! Kernel time is from the kernel's run-time statistics, whose own cost (about 57 ns a run on the reference machine) is
//! included. Client and server are on one machine, so each program runs for both sides; the short run of the server's side is
//! measured on another port and subtracted. Does not: count the pipeline's work on the events (`throughput` does).

use std::net::UdpSocket;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sandglass::app::settings::default_source;
use sandglass::sources::linux::LinuxOptions;

use crate::Effort;
use crate::dns_talk::{SERVER, Talk};
use crate::probe::{DROP, DROP_WITHIN, Probe, RECEIVE, Runs, SEND, since};
use crate::report::{Figure, Outcome, Unit, median};
use crate::{lookup_cost, tcp_flow};

/// Measures.
pub fn run(effort: Effort) -> Result<Outcome> {
    let options = LinuxOptions {
        stdio: false,
        connect: false,
        conntrack: false,
        ..default_source()?
    };
    let probe = match Probe::attach_with(options)? {
        Ok(probe) => probe,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    if !probe.runs().iter().any(|runs| runs.program == SEND) {
        return Ok(Outcome::Skipped("the DNS probe cannot be attached here".to_owned()));
    }
    let mut figures = message_cost(&probe, effort)?;
    drop(probe);
    figures.extend(lookup_cost::run(effort)?);
    figures.extend(tcp_flow::run(effort)?);
    Ok(Outcome::Figures(figures))
}

/// Kernel time per message on the client's side, and processor time of the thread that decodes it.
fn message_cost(probe: &Probe, effort: Effort) -> Result<Vec<Figure>> {
    let lookups = effort.pick(20_000, 2_000);
    let (watched, other) = (Talk::on(53)?, Talk::on(10_053)?);
    let mut rounds: Vec<[f64; 5]> = Vec::new();
    for _ in 0..ROUNDS {
        let short = means(probe, || other.lookups(lookups / ROUNDS))?;
        let reader = Reader::of_thread("dns")?;
        let both = means(probe, || watched.lookups(lookups / ROUNDS))?;
        std::thread::sleep(SETTLE);
        let user = reader.spent_ns()? / f64::from(2 * (lookups / ROUNDS));
        rounds.push([
            2.0 * both[0] - short[0],
            2.0 * both[1] - short[1],
            short[0],
            short[1],
            user,
        ]);
    }
    let drop_ns = drop_cost(probe, lookups / ROUNDS)?;
    let middle = |n: usize| median(&rounds.iter().map(|round| round[n]).collect::<Vec<_>>());
    let [query, answer, out, into, user] = std::array::from_fn(middle);
    let kernel = (query + answer) / 2.0;
    Ok(vec![
        Figure::new("kernel time per DNS message, client's side", kernel, Unit::Nanoseconds)
            .remark(format!("query {query:.0} ns, answer {answer:.0} ns")),
        Figure::new(
            "processor time of the reading thread per DNS message",
            user,
            Unit::Nanoseconds,
        )
        .remark("beside the message's way, not in it"),
        Figure::new(
            "kernel and reading thread per DNS message",
            kernel + user,
            Unit::Nanoseconds,
        ),
        Figure::new("kernel time added to a DNS message", kernel, Unit::Nanoseconds).at_most(ADDED_NS),
        Figure::new(
            "kernel time per other UDP packet",
            (out + into) / 2.0,
            Unit::Nanoseconds,
        )
        .remark(format!("out {out:.0} ns, in {into:.0} ns")),
        Figure::new("kernel time per other dropped packet", drop_ns, Unit::Nanoseconds),
    ])
}

/// Mean run time of the drop probe for datagrams without a receiver.
fn drop_cost(probe: &Probe, count: u32) -> Result<f64> {
    let client = UdpSocket::bind((SERVER, 0))?;
    let before = probe.runs();
    for _ in 0..count {
        client.send_to(b"without a listener", (SERVER, NOBODY))?;
    }
    let runs = since(&before, &probe.runs());
    let drops = runs.iter().find(|runs| runs.program == DROP).context("no drop probe")?;
    ensure!(drops.count >= u64::from(count), "only {} drops", drops.count);
    let of_drops = runs.iter().filter(|runs| [DROP, DROP_WITHIN].contains(&&*runs.program));
    Ok(of_drops.map(|runs| runs.ns).sum::<u64>() as f64 / drops.count as f64)
}

/// Mean run times of the programs for sending and receiving.
fn means(probe: &Probe, talk: impl FnOnce() -> Result<()>) -> Result<[f64; 2]> {
    let before = probe.runs();
    talk()?;
    let runs = since(&before, &probe.runs());
    let mean = |name: &str| -> Result<f64> {
        let runs: &Runs = runs
            .iter()
            .find(|runs| runs.program == name)
            .context("no such program")?;
        ensure!(runs.count > 0, "{name} did not run");
        Ok(runs.ns as f64 / runs.count as f64)
    };
    Ok([mean(SEND)?, mean(RECEIVE)?])
}

/// Processor time of one thread of this process.
struct Reader {
    path: std::path::PathBuf,
    begin_ns: f64,
}

impl Reader {
    fn of_thread(name: &str) -> Result<Reader> {
        for task in std::fs::read_dir("/proc/self/task")? {
            let path = task?.path();
            if std::fs::read_to_string(path.join("comm"))?.trim() == name {
                let path = path.join("schedstat");
                let begin_ns = on_processor_ns(&path)?;
                return Ok(Reader { path, begin_ns });
            }
        }
        anyhow::bail!("there is no thread {name}")
    }

    fn spent_ns(&self) -> Result<f64> {
        Ok(on_processor_ns(&self.path)? - self.begin_ns)
    }
}

fn on_processor_ns(path: &std::path::Path) -> Result<f64> {
    let text = std::fs::read_to_string(path)?;
    Ok(text.split_whitespace().next().context("empty schedstat")?.parse()?)
}

/// A port without a socket.
const NOBODY: u16 = 10_054;
const ROUNDS: u32 = 10;
/// Longer than the reading thread lets a record wait.
const SETTLE: Duration = Duration::from_millis(60);
const ADDED_NS: f64 = 500.0;
