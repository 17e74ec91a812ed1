//! Throughput of one TCP connection over a veth pair, with and without the agent's hooks, in pairs.
//!
//! Used by `dns_cost`: its hook runs for every packet of every socket. Both ends are in network namespaces that are created
//! and removed here. The effect is smaller than the difference between two seconds. So both ends share one processor; short
//! blocks of the same number of bytes over one connection alternate between detached (A) and attached hooks (B) in the order
//! ABBA, then BAAB; the blocks between two changes count with their lower quartile, since disturbances only lengthen them; four
//! of these give one ratio, and the result is the Hodges-Lehmann estimate over all ratios with a bootstrap interval.
//! Reported beside it: the processor time of both ends for the same bytes, which varies less; and the share of the hook in
//! that time by the kernel's statistics, which noise hardly affects.
//! Does not: measure a connection on two processors.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::time::{ClockId, clock_gettime};
use sandglass::app::settings::default_source;
use sandglass::sources::linux::LinuxOptions;

use crate::Effort;
use crate::agent::Switched;
use crate::estimate::{Took, bootstrap_interval, hodges_lehmann};
use crate::probe::{Probe, RECEIVE, SEND, since};
use crate::processor::{go_before_other_work, stay_on_one_processor};
use crate::report::{Figure, Unit, median, quantile};

/// Measures.
pub fn run(effort: Effort) -> Result<Vec<Figure>> {
    // A thread of its own: it stays on one processor, and what is measured next does not.
    let measuring = std::thread::spawn(move || measure(effort));
    measuring.join().map_err(|_| anyhow!("the measuring thread panicked"))?
}

fn measure(effort: Effort) -> Result<Vec<Figure>> {
    go_before_other_work();
    stay_on_one_processor();
    let mut agent = Switched::start()?;
    agent.agent.await_dns_probe()?;
    let mut flow = Flow::start(Link::make()?)?;
    let (mut less, mut longer, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    let end = Instant::now() + effort.pick(PERIOD, PERIOD_QUICK);
    while Instant::now() < end || less.len() < QUADS_LEAST {
        let [off, on] = flow.quad(&mut agent, less.len() % 2 == 1)?;
        less.push((1.0 - off.wall / on.wall) * 100.0);
        longer.push(on.more_than(off).processor);
        rates.push(flow.bytes as f64 * 8.0 / off.wall);
    }
    agent.stop()?;
    let hook = hook_share(&mut flow, effort)?;
    flow.end()?;
    Ok(vec![
        figure("TCP throughput less with the agent, median", &less)
            .at_most(LESS_PERCENT)
            .between(bootstrap_interval(&less))
            .remark(format!(
                "{}; {:.1} Gbit/s without, both ends on one processor; rung cgroup_skb",
                spread(&less),
                median(&rates)
            )),
        figure("processor time per byte of TCP more with the agent, median", &longer).remark(spread(&longer)),
        hook,
    ])
}

/// Which share of a connection's processor time the programs take that see its packets, by the kernel's statistics. Their
/// own cost is in it, about half of a run, and so is what other sockets send meanwhile: it is not less than the truth.
fn hook_share(flow: &mut Flow, effort: Effort) -> Result<Figure> {
    let options = LinuxOptions {
        stdio: false,
        connect: false,
        conntrack: false,
        drops: false,
        ..default_source()?
    };
    let probe = Probe::attach_with(options)?.map_err(|reason| anyhow!("cannot attach the DNS probe: {reason}"))?;
    std::thread::sleep(REST);
    let (mut shares, mut each, mut packets) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..effort.pick(30 * BLOCKS, 3 * BLOCKS) {
        let before = probe.runs();
        let took = flow.block()?;
        let runs = since(&before, &probe.runs());
        let hook = runs
            .iter()
            .filter(|runs| [SEND, RECEIVE].contains(&runs.program.as_str()));
        let (count, ns) = hook.fold((0, 0), |(count, ns), runs| (count + runs.count, ns + runs.ns));
        ensure!(count > 0, "the hook did not see the connection");
        shares.push(ns as f64 / took.processor * 100.0);
        each.push(ns as f64 / count as f64);
        packets.push(count as f64 / flow.bytes as f64 * 1e6);
    }
    let name = "share of the hook in the processor time of TCP, its measuring included";
    Ok(Figure::new(name, median(&shares), Unit::Percent)
        .at_most(LESS_PERCENT)
        .remark(format!(
            "{:.0} ns each for {:.0} packets a megabyte, both ends together; middle half {:.2} to {:.2} %",
            median(&each),
            median(&packets),
            quantile(&shares, 0.25),
            quantile(&shares, 0.75)
        )))
}

fn figure(name: &str, percents: &[f64]) -> Figure {
    Figure::new(name, hodges_lehmann(percents), Unit::Percent)
}

fn spread(percents: &[f64]) -> String {
    let (low, high) = bootstrap_interval(percents);
    format!(
        "{low:+.2} to {high:+.2} % at 95 % confidence; {} times four blocks; middle half {:+.1} to {:+.1} %",
        percents.len(),
        quantile(percents, 0.25),
        quantile(percents, 0.75),
    )
}

/// One connection, and how many bytes of it are a block.
struct Flow {
    connection: TcpStream,
    receiver: JoinHandle<std::io::Result<()>>,
    bytes: u64,
    data: Vec<u8>,
    _link: Link,
}

impl Flow {
    fn start(link: Link) -> Result<Flow> {
        let listener = inside(&link.ends[1], || TcpListener::bind((ADDRESSES[1], 0)))??;
        let address = listener.local_addr()?;
        let receiver = std::thread::spawn(move || receive(&listener));
        let connection = inside(&link.ends[0], move || TcpStream::connect(address))??;
        connection.set_nodelay(true)?;
        let mut flow = Flow {
            connection,
            receiver,
            bytes: FIRST_BYTES,
            data: vec![7; CHUNK],
            _link: link,
        };
        // Until windows and buffers have grown; then as many bytes as take as long as a block shall.
        for _ in 0..WARM_UP {
            let took = flow.block()?;
            let chunks = BLOCK.as_nanos() as f64 / took.wall * (flow.bytes / CHUNK as u64) as f64;
            flow.bytes = CHUNK as u64 * (chunks as u64).max(1);
        }
        Ok(flow)
    }

    /// Four turns: two without and two with the agent's hooks, in the middle or, `turned`, around them. Returns what a block
    /// usually took without and with them.
    fn quad(&mut self, agent: &mut Switched, turned: bool) -> Result<[Took; 2]> {
        let mut times = [Vec::new(), Vec::new()];
        for with in [turned, !turned, !turned, turned] {
            agent.hook(with)?;
            self.block()?;
            let blocks: Vec<Took> = (0..BLOCKS).map(|_| self.block()).collect::<Result<_>>()?;
            times[usize::from(with)].push(Took::quantile(&blocks, UNDISTURBED));
        }
        Ok(times.map(|turns| turns[0].mean(turns[1])))
    }

    /// Sends a block and waits until the other end has all of it.
    fn block(&mut self) -> Result<Took> {
        let (begin, processor) = (Instant::now(), processor_ns());
        self.connection.write_all(&self.bytes.to_ne_bytes())?;
        for _ in 0..self.bytes / CHUNK as u64 {
            self.connection.write_all(&self.data)?;
        }
        let mut theirs = [0; 8];
        self.connection.read_exact(&mut theirs)?;
        Ok(Took {
            wall: begin.elapsed().as_nanos() as f64,
            processor: (processor_ns() - processor + u64::from_ne_bytes(theirs)) as f64,
        })
    }

    fn end(self) -> Result<()> {
        drop(self.connection);
        self.receiver.join().map_err(|_| anyhow!("the receiver panicked"))??;
        Ok(())
    }
}

/// Receives blocks, each after its length, and sends the processor time of each; until the connection ends.
fn receive(listener: &TcpListener) -> std::io::Result<()> {
    stay_on_one_processor();
    let (mut connection, _) = listener.accept()?;
    connection.set_nodelay(true)?;
    let mut buffer = vec![0; CHUNK];
    let mut length = [0; 8];
    loop {
        if let Err(error) = connection.read_exact(&mut length) {
            let ended = error.kind() == std::io::ErrorKind::UnexpectedEof;
            return if ended { Ok(()) } else { Err(error) };
        }
        let begin = processor_ns();
        let mut left = u64::from_ne_bytes(length);
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            match connection.read(&mut buffer[..most])? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                read => left -= read as u64,
            }
        }
        connection.write_all(&(processor_ns() - begin).to_ne_bytes())?;
    }
}

/// Processor time of this thread so far.
fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Two namespaces and the veth pair between them.
#[derive(Debug)]
pub struct Link {
    /// Names of the namespaces.
    pub ends: [String; 2],
}

impl Link {
    /// The namespaces alone.
    pub fn unjoined() -> Result<Link> {
        let link = Link {
            ends: ["a", "b"].map(|end| format!("sgbench{}{end}", std::process::id())),
        };
        for end in &link.ends {
            ip(&["netns", "add", end])?;
        }
        Ok(link)
    }

    /// Creates them.
    pub fn make() -> Result<Link> {
        let link = Link::unjoined()?;
        let [one, other] = &link.ends;
        ip(&[
            "-n", one, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", other,
        ])?;
        for (end, address) in [(one, ADDRESSES[0]), (other, ADDRESSES[1])] {
            ip(&["-n", end, "addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
            ip(&["-n", end, "link", "set", "eth0", "up"])?;
        }
        Ok(link)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for end in &self.ends {
            let _ = ip(&["netns", "del", end]);
        }
    }
}

/// Runs `work` on a thread within a namespace; its sockets stay there.
pub fn inside<T: Send + 'static>(namespace: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let namespace = File::open(format!("/run/netns/{namespace}"))?;
    let thread = std::thread::spawn(move || {
        let kind = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).map(|()| work())
    });
    let outcome = thread.join().map_err(|_| anyhow!("the thread panicked"))?;
    outcome.context("cannot enter a network namespace")
}

/// Runs `ip`.
pub fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(arguments).output().context("cannot run ip")?;
    ensure!(
        output.status.success(),
        "ip {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// One address of each end.
pub const ADDRESSES: [&str; 2] = ["10.154.0.1", "10.154.0.2"];
/// Bytes of each call.
const CHUNK: usize = 128 << 10;
/// Of the very first block.
const FIRST_BYTES: u64 = 64 << 20;
const WARM_UP: u32 = 4;
/// How long a block takes, about; short, so that most meet no disturbance.
const BLOCK: Duration = Duration::from_millis(8);
/// Blocks between two changes.
const BLOCKS: u32 = 12;
/// Quantile of the blocks between two changes that counts: disturbances only lengthen blocks.
const UNDISTURBED: f64 = 0.25;
/// How long blocks are sent.
const PERIOD: Duration = Duration::from_secs(100);
const PERIOD_QUICK: Duration = Duration::from_secs(10);
/// Lower bound on quads: fewer show no distribution.
const QUADS_LEAST: usize = 4;
/// Pause after the probe is attached, so that the attach itself is not measured.
const REST: Duration = Duration::from_millis(250);
const LESS_PERCENT: f64 = 1.0;
