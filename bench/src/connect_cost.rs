//! The cost of observing connects and conntrack: kernel time for an unrelated change of state, for a connect, for a flow;
//! losses at full speed; processor time of the polling threads on an idle node.
//!
//! In a network namespace of its own, over its loopback, so that other traffic of the machine is excluded. Only the mean run
//! times of the programs include changes of state in other namespaces, which cost the same.
//! Does not: subtract the cost of the measurement (two clock reads, about 57 ns a run on the reference machine).

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use prometheus_client::metrics::gauge::Gauge;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sandglass::app::settings::default_source;
use sandglass::failure::Advice as _;
use sandglass::health::Health;
use sandglass::sources;
use sandglass::sources::linux::{self, LinuxSource};
use sandglass_model::Body;

use crate::Effort;
use crate::report::{Figure, Outcome, Unit, median};

/// Measures.
pub fn run(effort: Effort) -> Result<Outcome> {
    // A thread of its own: it enters the namespace, which its children inherit.
    let measuring = std::thread::spawn(move || measure(effort));
    measuring
        .join()
        .map_err(|_| anyhow::anyhow!("the measuring thread panicked"))?
}

fn measure(effort: Effort) -> Result<Outcome> {
    let unwatched = match Namespace::enter("a")? {
        Ok(namespace) => namespace,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let without = flow_ns(&unwatched, effort)?;
    // A new one for the rest: the flows of the first cause events when they expire.
    let namespace = match Namespace::enter("b")? {
        Ok(namespace) => namespace,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    drop(unwatched);
    let watch = match Watch::start() {
        Ok(watch) => watch,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let mut figures = vec![idle("processor of the thread 'conntrack', idle", effort)?.at_most(IDLE_PERCENT)];
    let count = effort.pick(SANDBOXES, 10);
    let sandboxes = Sandboxes::make(count)?;
    // Until each table was read once.
    std::thread::sleep(Duration::from_secs(u64::from(count) / 8 + 2));
    figures.push(idle(&format!("the same, with the tables of {count} sandboxes"), effort)?.at_most(IDLE_PERCENT));
    drop(sandboxes);
    let with = flow_ns(&namespace, effort)?;
    let _counting = linux::enable_run_time().context("cannot switch the kernel's run-time statistics on")?;
    figures.extend(transitions(&watch, effort)?);
    figures.extend(flows(&watch, &namespace, effort)?);
    figures.push(
        Figure::new(
            "processor time to send the first packet of a flow",
            with,
            Unit::Nanoseconds,
        )
        .remark(format!(
            "over loopback with a stateful rule; {without:.0} ns without a subscriber to conntrack's events"
        )),
    );
    figures.extend(full_speed(&watch, effort)?);
    Ok(Outcome::Figures(figures))
}

/// Mean run times of the program: for changes of state without a connect, then for connects.
fn transitions(watch: &Watch, effort: Effort) -> Result<Vec<Figure>> {
    let rounds = effort.pick(20_000_u32, 2_000);
    // From closed to listening and back.
    let listen = || {
        drop(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
        Ok(())
    };
    // Without a listener: closed to sent, sent to closed.
    let refused = || {
        let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, 1));
        ensure!(refused.is_err(), "port 1 has a listener");
        Ok(())
    };
    let programs = ["on_set_state", "on_set_state_within"];
    let unrelated = watch.mean(&programs, rounds, listen)?;
    let related = watch.mean(&programs, rounds, refused)?;
    Ok(vec![
        Figure::new(
            "kernel time per change of state that is no connection's set-up",
            unrelated,
            Unit::Nanoseconds,
        )
        .at_most(UNRELATED_NS),
        Figure::new("kernel time per connection's set-up", 2.0 * related, Unit::Nanoseconds)
            .at_most(CONNECT_NS)
            .remark("two steps: begun, and refused"),
    ])
}

fn flows(watch: &Watch, namespace: &Namespace, effort: Effort) -> Result<Vec<Figure>> {
    let rounds = effort.pick(20_000_u32, 2_000);
    let mean = watch.mean(&["on_message"], rounds, || namespace.flow())?;
    Ok(vec![
        Figure::new("kernel time of the filter per flow", mean, Unit::Nanoseconds).at_most(FLOW_NS),
    ])
}

/// Processor time to send a datagram that creates a flow, in nanoseconds: the median of several blocks.
fn flow_ns(namespace: &Namespace, effort: Effort) -> Result<f64> {
    let mut blocks = Vec::new();
    for _ in 0..effort.pick(15, 5) {
        let began = processor_ns();
        for _ in 0..FLOWS_IN_BLOCK {
            namespace.flow()?;
        }
        blocks.push((processor_ns() - began) as f64 / f64::from(FLOWS_IN_BLOCK));
    }
    Ok(median(&blocks))
}

/// Processor time of this thread so far.
fn processor_ns() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Connects of two threads at full speed: the agent must report every one.
fn full_speed(watch: &Watch, effort: Effort) -> Result<Vec<Figure>> {
    let before = watch.connects.load(Ordering::Relaxed);
    let connections = effort.pick(100_000_u64, 10_000);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..connections / 2 {
                    let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, 1));
                }
            });
        }
    });
    let rate = connections as f64 / began.elapsed().as_secs_f64();
    let reported = || watch.connects.load(Ordering::Relaxed) - before;
    let deadline = Instant::now() + Duration::from_secs(3);
    while reported() < 2 * connections && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    // Other programs of the machine connect too, so more may be reported.
    let missing = (2 * connections).saturating_sub(reported());
    Ok(vec![
        Figure::new(
            "steps of connections not reported at full speed",
            missing as f64,
            Unit::Count,
        )
        .at_most(0.0)
        .remark(format!("of {}", 2 * connections)),
        Figure::new("connections a second meanwhile", rate, Unit::PerSecond).remark("two threads, refused at once"),
    ])
}

/// Processor share of the two observing threads on an idle machine.
fn idle(what: &str, effort: Effort) -> Result<Figure> {
    // Until the threads sleep.
    std::thread::sleep(Duration::from_secs(2));
    let before = thread_times()?;
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(effort.pick(20, 5)));
    let passed = began.elapsed().as_nanos() as f64;
    let after = thread_times()?;
    let share = |thread: usize| (after[thread] - before[thread]) as f64 / passed * 100.0;
    Ok(Figure::new(what, share(1), Unit::Percent).remark(format!(
        "of one core, counters polled every second; 'connect' {:.3} %, which sees every connection of the machine",
        share(0)
    )))
}

/// Nanoseconds that the threads 'connect' and 'conntrack' ran so far.
fn thread_times() -> Result<[u64; 2]> {
    let mut times = [None; 2];
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
        let Some(which) = ["connect", "conntrack"].iter().position(|known| *known == name.trim()) else {
            continue;
        };
        let schedstat = std::fs::read_to_string(task.join("schedstat")).context("no schedstat")?;
        let ran = schedstat.split_whitespace().next().and_then(|first| first.parse().ok());
        times[which] = Some(ran.context("schedstat has no number")?);
    }
    let [Some(connect), Some(conntrack)] = times else {
        bail!("the observing threads do not exist");
    };
    Ok([connect, conntrack])
}

/// The source, and the number of steps of connections that it reported.
struct Watch {
    source: LinuxSource,
    connects: Arc<AtomicU64>,
}

impl Watch {
    fn start() -> Result<Watch, String> {
        let (sender, receiver) = sources::channel(1024, Gauge::default());
        let health = Health::default();
        let source = linux::start(
            default_source().map_err(|error| error.to_string())?,
            sender,
            health.clone(),
        )
        .map_err(|error| format!("{error} ({})", error.hint()))?;
        let missing = health
            .probes()
            .into_iter()
            .find(|probe| matches!(probe.probe.as_str(), "connect" | "conntrack") && !probe.attached);
        if let Some(probe) = missing {
            return Err(format!("{}: {}", probe.probe, probe.consequence));
        }
        let connects = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&connects);
        std::thread::spawn(move || {
            while let Ok(event) = receiver.receive(Duration::from_secs(3600)) {
                if event.is_some_and(|event| matches!(event.body, Body::ConnectSeen(_))) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Ok(Watch { source, connects })
    }

    /// Nanoseconds per run of the first of these programs, with the runs of the others at the same events, while `play` is
    /// repeated: the median of several rounds.
    fn mean(&self, programs: &[&str], times: u32, play: impl Fn() -> Result<()>) -> Result<f64> {
        let mut means = Vec::new();
        for _ in 0..ROUNDS {
            let (runs_before, ns_before) = self.time(programs)?;
            for _ in 0..times / ROUNDS {
                play()?;
            }
            let (runs, ns) = self.time(programs)?;
            let runs = runs - runs_before;
            ensure!(runs >= u64::from(times / ROUNDS), "{programs:?} ran only {runs} times");
            means.push((ns - ns_before) as f64 / runs as f64);
        }
        Ok(median(&means))
    }

    /// Runs of the first of these programs so far, and nanoseconds of all of them.
    fn time(&self, programs: &[&str]) -> Result<(u64, u64)> {
        let times = self.source.traffic_run_time();
        let of = |program: &&str| times.iter().find(|time| time.program == **program);
        let found: Vec<_> = programs.iter().filter_map(of).collect();
        ensure!(found.len() == programs.len(), "not all of {programs:?} are loaded");
        Ok((found[0].run_count, found.iter().map(|time| time.run_time_ns).sum()))
    }
}

/// A network namespace that this thread has entered, with a rule that enables connection tracking.
struct Namespace {
    name: String,
    socket: UdpSocket,
    next: AtomicU64,
}

impl Namespace {
    /// The inner error says why this machine does not allow that.
    fn enter(which: &str) -> Result<Result<Namespace, String>> {
        let name = format!("sgbench{}{which}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        match made {
            Ok(output) if output.status.success() => {}
            Ok(output) => return Ok(Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
            Err(error) => return Ok(Err(format!("ip: {error}"))),
        }
        let namespace = File::open(format!("/run/netns/{name}"))?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        let made = Namespace {
            name,
            socket: UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?,
            next: AtomicU64::new(0),
        };
        for command in [
            "ip link set lo up",
            "nft add table inet t",
            "nft add chain inet t o { type filter hook output priority 0; }",
            "nft add rule inet t o ct state invalid drop",
            // Without a listener the kernel sends an ICMP error, which is not measured.
            "nft add rule inet t o icmp type destination-unreachable drop",
        ] {
            let words: Vec<&str> = command.split(' ').collect();
            match Command::new(words[0]).args(&words[1..]).output() {
                Ok(output) if output.status.success() => {}
                Ok(output) => return Ok(Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
                Err(error) => return Ok(Err(format!("{}: {error}", words[0]))),
            }
        }
        Ok(Ok(made))
    }

    /// Sends a datagram to a new destination.
    fn flow(&self) -> Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let [.., high, low] = (number / 60_000 + 1).to_be_bytes();
        let port = u16::try_from(1 + number % 60_000)?;
        self.socket
            .send_to(b"x", SocketAddr::from(([127, 1, high, low], port)))?;
        Ok(())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Network namespaces that the agent attributes to sandboxes, since a plugin was run for each.
struct Sandboxes(Vec<String>);

impl Sandboxes {
    fn make(count: u32) -> Result<Sandboxes> {
        let mut made = Sandboxes(Vec::new());
        for number in 0..count {
            let name = format!("sgbench{}-{number}", std::process::id());
            let added = Command::new("ip").args(["netns", "add", &name]).status()?;
            ensure!(added.success(), "ip netns add {name} failed");
            let plugin = Command::new("/bin/true")
                .envs([("CNI_COMMAND", "ADD"), ("CNI_IFNAME", "eth0")])
                .env("CNI_CONTAINERID", &name)
                .env("CNI_NETNS", format!("/run/netns/{name}"))
                .status()?;
            ensure!(plugin.success(), "/bin/true failed");
            made.0.push(name);
        }
        Ok(made)
    }
}

impl Drop for Sandboxes {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// The kubelet's default of pods per node.
const SANDBOXES: u32 = 110;
const ROUNDS: u32 = 10;
const FLOWS_IN_BLOCK: u32 = 2_000;
const UNRELATED_NS: f64 = 100.0;
const CONNECT_NS: f64 = 2_000.0;
const FLOW_NS: f64 = 1_000.0;
const IDLE_PERCENT: f64 = 0.02;
