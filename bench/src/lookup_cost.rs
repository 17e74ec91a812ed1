//! The processor time that the agent takes per lookup, and whether it loses a message, at a constant rate.
//!
//! Used by `dns_cost`. The real agent beside lookups alone, over loopback, and beside lookups that are each followed by a
//! connect, between two network namespaces: once directly, and once through service addresses that a third namespace, the
//! node's, translates, so that each lookup and each connect has a conntrack entry that the agent observes. All of the agent's
//! threads count, from the first lookup until it has caught up.
//! Does not: count the kernel's time in the program that looks up (`dns_cost` does).

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::Effort;
use crate::agent::{Agent, Metrics, Started, Switched};
use crate::dns_talk::{Talk, answer, query};
use crate::report::{Figure, Unit, median};
use crate::service_node::{BEHIND_NODE, Node, SERVICE_PORT, SERVICES};
use crate::tcp_flow::{ADDRESSES, Link, inside};

/// Measures.
pub fn run(effort: Effort) -> Result<Vec<Figure>> {
    let talk = Talk::on(53)?;
    let mut rounds = Vec::new();
    for _ in 0..effort.pick(ROUNDS, 1) {
        let agent = started()?;
        rounds.push(play(&agent, LOOKUPS_PER_SECOND, effort, |count| talk.lookups(count))?);
        agent.stop()?;
    }
    drop(talk);
    let path = Path::direct()?;
    let mut conversations = Vec::new();
    for _ in 0..effort.pick(ROUNDS, 1) {
        let agent = started()?;
        conversations.push(play(&agent, CONVERSATIONS_PER_SECOND, effort, |count| {
            path.converse(count)
        })?);
        agent.stop()?;
    }
    drop(path);
    let path = Path::through_services()?;
    let mut with_flows = Vec::new();
    for _ in 0..effort.pick(ROUNDS, 1) {
        let switched = Switched::start_on(path.node()?)?;
        with_flows.push(play(&switched.agent, CONVERSATIONS_PER_SECOND, effort, |count| {
            path.converse(count)
        })?);
        switched.stop()?;
    }
    drop(path);
    let sum = |rounds: &[LookupRun], of: fn(&LookupRun) -> f64| rounds.iter().map(of).sum::<f64>();
    for rounds in [&conversations, &with_flows] {
        let (connects, done) = (sum(rounds, |played| played.connects), sum(rounds, |played| played.done));
        ensure!(connects >= done, "{connects} connects were counted of {done}");
    }
    let (flows, done) = (
        sum(&with_flows, |played| played.flows),
        sum(&with_flows, |played| played.done),
    );
    // Two each, but for those that found an entry of the same port from before.
    ensure!(
        flows >= 1.8 * done,
        "{flows} conntrack entries were counted of {done} lookups and connects"
    );
    let lost = rounds.iter().map(|played| played.lost).sum();
    let rates: Vec<f64> = rounds.iter().map(|played| played.rate).collect();
    Ok(vec![
        Figure::new(
            format!("DNS messages lost at {LOOKUPS_PER_SECOND} lookups/s"),
            lost,
            Unit::Count,
        )
        .at_most(0.0)
        .remark(format!(
            "{:.0} lookups/s, {} times, client and server on the same machine",
            median(&rates),
            rounds.len()
        )),
        cost("processor time of the agent per lookup", &rounds).at_most(LOOKUP_NS),
        cost("processor time of the agent per lookup with a connect", &conversations),
        cost(
            "processor time of the agent per lookup with a connect, each with a conntrack entry",
            &with_flows,
        ),
    ])
}

fn cost(name: &str, rounds: &[LookupRun]) -> Figure {
    let costs: Vec<f64> = rounds.iter().map(|played| played.ns).collect();
    let (least, most) = costs
        .iter()
        .fold((f64::MAX, 0.0_f64), |(least, most), ns| (least.min(*ns), most.max(*ns)));
    Figure::new(name, median(&costs), Unit::Nanoseconds)
        .remark(format!("{} rounds, {least:.0} to {most:.0} ns", costs.len()))
}

/// What came of one round.
struct LookupRun {
    /// Lookups.
    done: f64,
    /// A second.
    rate: f64,
    /// Processor time of the agent for each.
    ns: f64,
    /// Messages lost.
    lost: f64,
    /// Connects that the agent counted.
    connects: f64,
    /// Conntrack entries that it saw begin.
    flows: f64,
}

/// The agent as users start it.
fn started() -> Result<Agent> {
    match Agent::start()? {
        Started::Ready(agent) => Ok(agent),
        Started::Impossible(reason) => anyhow::bail!("the agent started before and does not now: {reason}"),
    }
}

/// Lookups at a constant rate beside an agent: every message becomes an event or is counted as lost.
fn play(
    agent: &Agent,
    per_second: u32,
    effort: Effort,
    mut lookups: impl FnMut(u32) -> Result<()>,
) -> Result<LookupRun> {
    let before = agent.await_dns_probe()?;
    let (begin, cpu) = (Instant::now(), agent.cpu()?);
    let mut done = 0_u32;
    // In bursts of 10 ms: lookups of a node are bursty too.
    for burst in 1..=100 * effort.pick(SECONDS, 2) {
        lookups(per_second / 100)?;
        done += per_second / 100;
        let due = begin + Duration::from_millis(10) * burst;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    let took = begin.elapsed().as_secs_f64();
    let after = settled(agent)?;
    let cpu = agent.cpu()?.saturating_sub(cpu);
    let grown = |name: &str, labels: &[&str]| after.sum(name, labels) - before.sum(name, labels);
    let lost = grown("sandglass_events_lost_total", &["probe=\"dns\""]);
    let events = grown("sandglass_events_total", &[]);
    ensure!(
        events + lost >= f64::from(2 * done),
        "of {} messages only {events} became events and {lost} were counted as lost",
        2 * done
    );
    Ok(LookupRun {
        done: f64::from(done),
        rate: f64::from(done) / took,
        ns: cpu.as_secs_f64() * 1e9 / f64::from(done),
        lost,
        connects: grown("sandglass_connect_duration_seconds_count", &[]),
        flows: grown("sandglass_conntrack_flows_total", &["change=\"new\""]),
    })
}

/// The agent's metrics once it has caught up.
fn settled(agent: &Agent) -> Result<Metrics> {
    let mut last = -1.0;
    for _ in 0..40 {
        // Losses are counted once a second.
        std::thread::sleep(Duration::from_millis(1_100));
        let metrics = agent.metrics()?;
        let events = metrics.sum("sandglass_events_total", &[]);
        // Ticks are events too.
        if events - last < 100.0 {
            return Ok(metrics);
        }
        last = events;
    }
    anyhow::bail!("the agent does not catch up")
}

/// A client in one network namespace and its servers in another. They end with the process.
struct Path {
    link: Link,
    /// Between both, where there is one.
    node: Option<Node>,
    /// What the client looks up at, and connects to.
    dns: SocketAddr,
    service: SocketAddr,
}

impl Path {
    /// The client reaches the servers over one veth pair.
    fn direct() -> Result<Path> {
        Path::with(Link::make()?, None)
    }

    /// The client reaches them by service addresses that a node between both translates.
    fn through_services() -> Result<Path> {
        let (link, node) = Node::between()?;
        Path::with(link, Some(node))
    }

    fn with(link: Link, node: Option<Node>) -> Result<Path> {
        let at = if node.is_some() { BEHIND_NODE } else { ADDRESSES[1] };
        let servers = inside(&link.ends[1], move || -> Result<(UdpSocket, TcpListener)> {
            Ok((UdpSocket::bind((at, 53))?, TcpListener::bind((at, SERVICE_PORT))?))
        });
        let (dns, service) = servers??;
        let (dns_address, service_address) = match node {
            Some(_) => (
                SocketAddr::new(SERVICES[0].parse()?, 53),
                SocketAddr::new(SERVICES[1].parse()?, SERVICE_PORT),
            ),
            None => (dns.local_addr()?, service.local_addr()?),
        };
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((_, from)) = dns.recv_from(&mut buffer) {
                let id = u16::from_be_bytes([buffer[0], buffer[1]]);
                let _ = dns.send_to(&answer(id, service_address.ip()), from);
            }
        });
        std::thread::spawn(move || while service.accept().is_ok() {});
        Ok(Path {
            link,
            node,
            dns: dns_address,
            service: service_address,
        })
    }

    /// Name of the node's network namespace.
    fn node(&self) -> Result<&str> {
        let node = self.node.as_ref().context("no node is between both")?;
        Ok(&node.name)
    }

    /// `count` lookups, each from a socket of its own and followed by a connect.
    fn converse(&self, count: u32) -> Result<()> {
        let (dns, service) = (self.dns, self.service);
        inside(&self.link.ends[0], move || -> Result<()> {
            let mut buffer = [0; 512];
            for number in 0..count {
                let socket = UdpSocket::bind((ADDRESSES[0], 0))?;
                socket.set_read_timeout(Some(Duration::from_secs(2)))?;
                socket.connect(dns)?;
                socket.send(&query(number as u16))?;
                socket.recv(&mut buffer)?;
                let mut connection = TcpStream::connect(service)?;
                while connection.read(&mut buffer)? > 0 {}
                reset(&connection)?;
            }
            Ok(())
        })?
    }
}

/// Makes the close of a connection a reset, which leaves no socket behind that waits.
fn reset(connection: &TcpStream) -> Result<()> {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: `linger` is what SO_LINGER takes, of the length that is given.
    let failed = unsafe {
        libc::setsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of_val(&linger) as libc::socklen_t,
        )
    };
    ensure!(failed == 0, "SO_LINGER: {}", std::io::Error::last_os_error());
    Ok(())
}

const LOOKUPS_PER_SECOND: u32 = 20_000;
/// What two processors can do beside the agent.
const CONVERSATIONS_PER_SECOND: u32 = 4_000;
const SECONDS: u32 = 10;
const ROUNDS: usize = 5;
const LOOKUP_NS: f64 = 5_000.0;
