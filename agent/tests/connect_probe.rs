//! The connection probe against this machine's kernel: connections of every fate, between namespaces of the test's own.
//!
//! Needs root with BPF, `ip` and `nft`; where one is missing each test prints `SKIPPED` and the reason.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test")]

mod collected;
mod namespaces;
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "lab/tracefs.rs"]
mod tracefs;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use namespaces::{Namespace, Watch, steps};
use rustix::net::sockopt::socket_cookie;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustix::thread::{CpuSet, sched_setaffinity};
use sandglass::app::settings::default_source;
use sandglass::health::ProbeLabel;
use sandglass::sources::clock;
use sandglass::sources::linux::{LinuxOptions, Rung};
use sandglass_lab::skip::skipped;
use sandglass_model::network::{ConnectFailure, ConnectStep, Step};
use sandglass_model::{Body, Event, ProcessKey, Timestamp};

use crate::tracefs::Tracefs;

/// A client's and a server's namespace, and a source that watches.
struct Pair {
    test: String,
    client: Namespace,
    server: Namespace,
    watch: Watch,
    /// The kernel's own events of ends of connections in the time of process 1.
    ends_in_init: Option<Tracefs>,
    /// One of both: a test that floods runs alone.
    _turn: (
        Option<RwLockReadGuard<'static, ()>>,
        Option<RwLockWriteGuard<'static, ()>>,
    ),
}

impl Pair {
    fn start(test: &str) -> Option<Pair> {
        Pair::with(test, default_source().unwrap(), false)
    }

    /// For a test that makes thousands of events: every source sees those of all tests, and what it loses then is nobody's.
    fn start_alone(test: &str) -> Option<Pair> {
        Pair::with(test, default_source().unwrap(), true)
    }

    fn with(test: &str, options: LinuxOptions, alone: bool) -> Option<Pair> {
        static TURNS: RwLock<()> = RwLock::new(());
        let shared = (!alone).then(|| TURNS.read().unwrap_or_else(PoisonError::into_inner));
        let only = alone.then(|| TURNS.write().unwrap_or_else(PoisonError::into_inner));
        let client = Namespace::make(test)?;
        let server = Namespace::make(test)?;
        client.link(&server, 0);
        let options = LinuxOptions {
            conntrack: false,
            ..options
        };
        let watch = Watch::start(test, &client, options)?;
        let status = watch.probe("connect");
        assert!(status.attached, "{status:?}");
        Some(Pair {
            test: test.to_owned(),
            client,
            server,
            watch,
            ends_in_init: Tracefs::connects_of_init(test),
            _turn: (shared, only),
        })
    }

    fn listen(&self, address: &str) -> TcpListener {
        self.server.within(|| TcpListener::bind(address).unwrap())
    }

    fn connect(&self, address: &str) -> std::io::Result<TcpStream> {
        self.client.within(|| TcpStream::connect(address))
    }

    /// Drops what matches on the server's side.
    fn filter(&self, rule: &str) {
        self.server.run(&format!(
            "nft add table inet t; nft 'add chain inet t in {{ type filter hook input priority 0; }}'; nft 'add rule inet t in {rule}'"
        ));
    }

    /// The steps of the client's only connection to `port`, when its last one has come. `None`, with the line `NOT RUN`, where
    /// it came in the time of process 1 ([`Tracefs::of_init`]).
    fn steps_to(&self, port: u16) -> Option<Vec<(Timestamp, ConnectStep)>> {
        let steps = |events: &[Event]| {
            let mut steps = steps(events, self.client.inode);
            steps.retain(|(_, step)| step.remote.port() == port);
            steps
        };
        let ended = |events: &[Event]| {
            let steps = steps(events);
            let ended = steps.last().is_some_and(|(_, step)| step.step != Step::Started);
            ended.then_some(steps)
        };
        let found = self.watch.wait_for(Duration::from_secs(20), ended);
        if found.is_none() && self.ends_in_init(port) > 0 {
            eprintln!(
                "NOT RUN {}::init: the end of a connect to {port} interrupted process 1",
                self.test
            );
            return None;
        }
        assert!(
            found.is_some(),
            "the end of a connect to {port} did not come, {} records lost; seen: {:?}",
            self.lost("connect"),
            steps(&self.watch.events())
        );
        found
    }

    /// How many ends of connections to `port` interrupted process 1.
    fn ends_in_init(&self, port: u16) -> usize {
        self.ends_in_init.as_ref().map_or(0, |ends| ends.connects_to(port))
    }

    /// How much a probe has lost.
    fn lost(&self, probe: &str) -> usize {
        usize::try_from(self.watch.lost(probe)).unwrap()
    }

    /// Checks why the connection to `port` failed, where its end was seen.
    fn assert_failed(&self, port: u16, why: ConnectFailure) {
        if let Some((seen, ..)) = self.failure_of(port) {
            assert_eq!(seen, why);
        }
    }

    /// As above, of a connection that failed: why, when, and after how many retransmissions.
    fn failure_of(&self, port: u16) -> Option<(ConnectFailure, Duration, u32)> {
        let steps = self.steps_to(port)?;
        assert_eq!(steps.len(), 2, "{} records lost: {steps:?}", self.lost("connect"));
        let (began, ended) = (&steps[0], &steps[1]);
        assert_eq!(began.1.step, Step::Started);
        assert_eq!(began.1.socket, ended.1.socket);
        let Step::Failed(why) = ended.1.step else {
            panic!("{steps:?}")
        };
        Some((why, Duration::from_nanos(ended.0.0 - began.0.0), ended.1.retransmits))
    }
}

fn non_blocking(address: &str) -> OwnedFd {
    let address: SocketAddr = address.parse().unwrap();
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    assert_eq!(connect(&socket, &address), Err(rustix::io::Errno::INPROGRESS));
    socket
}

fn established(test: &str, options: LinuxOptions) {
    let Some(pair) = Pair::with(test, options, false) else {
        return;
    };
    let listener = pair.listen("[::]:4001");
    for (address, remote) in [
        ("10.77.0.2:4001", "10.77.0.2:4001"),
        ("[fd77:0::2]:4001", "[fd77::2]:4001"),
        // IPv4 through an IPv6 socket.
        ("[::ffff:10.77.0.2]:4001", "10.77.0.2:4001"),
    ] {
        let before = clock::now();
        let stream = pair.connect(address).unwrap();
        let after = clock::now();
        let accepted = listener.accept().unwrap();
        let local = stream.local_addr().unwrap();
        let found = pair.watch.wait("both steps", |events| {
            let steps = steps(events, pair.client.inode);
            let end = steps
                .iter()
                .find(|(_, step)| step.step == Step::Established && step.local.port() == local.port())?;
            let mut same = steps.iter().filter(|(_, step)| step.socket == end.1.socket);
            Some([same.next()?.clone(), same.next()?.clone()])
        });
        let [(began, first), (ended, second)] = found;
        assert_eq!((first.step, second.step), (Step::Started, Step::Established));
        assert!(
            before <= began && began <= ended && ended <= after,
            "{before:?} {began:?} {ended:?} {after:?}"
        );
        assert_eq!(second.remote.to_string(), remote);
        assert_eq!(first.remote, second.remote);
        assert_eq!(second.local.ip(), local.ip().to_canonical());
        // The port is chosen after the first step.
        assert_eq!(first.local, SocketAddr::new(local.ip().to_canonical(), 0));
        let initiator = first.initiator.unwrap();
        assert_eq!(initiator.process.pid, std::process::id());
        assert_eq!(initiator.process, own_key());
        assert_eq!(Some(initiator.comm.to_string()), comm());
        assert_eq!(second.retransmits, 0);
        if test.contains("typed") {
            assert_eq!(first.socket, socket_cookie(&stream).unwrap());
        }
        assert_ne!(first.socket, 0);
        drop(accepted);
    }
    // The side that accepts is no client.
    assert_eq!(steps(&pair.watch.events(), pair.server.inode), []);
}

/// This process, from /proc.
fn own_key() -> ProcessKey {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_comm = &stat[stat.rfind(')').unwrap()..];
    let start_ticks = after_comm.split_whitespace().nth(20).unwrap().parse().unwrap();
    ProcessKey {
        pid: std::process::id(),
        start_ticks,
    }
}

fn comm() -> Option<String> {
    let comm = std::fs::read_to_string(format!("/proc/self/task/{}/comm", std::process::id())).unwrap();
    Some(comm.trim_end().to_owned())
}

#[test]
fn established_is_seen_on_typed_tracepoints() {
    established("established_is_seen_on_typed_tracepoints", default_source().unwrap());
}

#[test]
fn established_is_seen_on_raw_tracepoints() {
    let options = LinuxOptions {
        rungs: vec![Rung::RawTp],
        ..default_source().unwrap()
    };
    established("established_is_seen_on_raw_tracepoints", options);
}

#[test]
fn a_port_that_the_program_chose_is_known_at_once() {
    let Some(pair) = Pair::start("a_port_that_the_program_chose_is_known_at_once") else {
        return;
    };
    let _listener = pair.listen("0.0.0.0:4001");
    let chosen: SocketAddr = "10.77.0.1:5055".parse().unwrap();
    let remote: SocketAddr = "10.77.0.2:4001".parse().unwrap();
    let _socket = pair.client.within(|| {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &chosen).unwrap();
        connect(&socket, &remote).unwrap();
        socket
    });
    let Some(steps) = pair.steps_to(4001) else { return };
    assert_eq!(steps[0].1.local, chosen);
}

#[test]
fn refused_by_a_reset_and_by_icmp() {
    let Some(pair) = Pair::start("refused_by_a_reset_and_by_icmp") else {
        return;
    };
    assert_eq!(
        pair.connect("10.77.0.2:4001").unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    pair.assert_failed(4001, ConnectFailure::Refused);
    assert_eq!(
        pair.connect("[fd77::2]:4003").unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    pair.assert_failed(4003, ConnectFailure::Refused);
    pair.filter("tcp dport 4002 reject");
    assert_eq!(
        pair.connect("10.77.0.2:4002").unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    pair.assert_failed(4002, ConnectFailure::Refused);
}

#[test]
fn unreachable_by_icmp_is_seen_and_without_a_route_is_not() {
    let Some(pair) = Pair::start("unreachable_by_icmp_is_seen_and_without_a_route_is_not") else {
        return;
    };
    pair.filter("tcp dport 4001 reject with icmpx type host-unreachable");
    assert_eq!(
        pair.connect("10.77.0.2:4001").unwrap_err().kind(),
        ErrorKind::HostUnreachable
    );
    pair.assert_failed(4001, ConnectFailure::Unreachable);
    // No interface has this address: ARP is not answered.
    assert_eq!(
        pair.connect("10.77.0.9:4002").unwrap_err().kind(),
        ErrorKind::HostUnreachable
    );
    pair.assert_failed(4002, ConnectFailure::Unreachable);
    // No change of state, so the kernel reports it to the program only.
    assert_eq!(
        pair.connect("192.0.2.1:4003").unwrap_err().kind(),
        ErrorKind::NetworkUnreachable
    );
    std::thread::sleep(Duration::from_millis(200));
    let untold = steps(&pair.watch.events(), pair.client.inode);
    assert!(untold.iter().all(|(_, step)| step.remote.port() != 4003), "{untold:?}");
}

#[test]
fn unanswered_until_the_kernel_gives_up() {
    let Some(pair) = Pair::start("unanswered_until_the_kernel_gives_up") else {
        return;
    };
    pair.client
        .run("sysctl -q -w net.ipv4.tcp_syn_retries=1 net.ipv4.tcp_syn_linear_timeouts=0");
    pair.filter("tcp dport 4001 drop");
    let began = Instant::now();
    assert_eq!(pair.connect("10.77.0.2:4001").unwrap_err().kind(), ErrorKind::TimedOut);
    let took = began.elapsed();
    let Some((why, reported, retransmits)) = pair.failure_of(4001) else {
        return;
    };
    assert_eq!((why, retransmits), (ConnectFailure::TimedOut, 1));
    assert!(
        reported <= took && took - reported < Duration::from_millis(50),
        "{reported:?} of {took:?}"
    );
}

#[test]
fn a_first_syn_that_is_lost_is_sent_again() {
    let Some(pair) = Pair::start("a_first_syn_that_is_lost_is_sent_again") else {
        return;
    };
    let _listener = pair.listen("0.0.0.0:4001");
    pair.filter("tcp dport 4001 drop");
    let (stream, at_most) = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            let begin = Instant::now();
            (pair.connect("10.77.0.2:4001").unwrap(), begin.elapsed())
        });
        std::thread::sleep(Duration::from_millis(300));
        pair.server.run("nft flush ruleset");
        connecting.join().unwrap()
    });
    let Some(steps) = pair.steps_to(4001) else { return };
    let (began, ended) = (&steps[0], &steps[1]);
    assert_eq!((ended.1.step, ended.1.retransmits), (Step::Established, 1));
    assert_eq!(ended.1.local, stream.local_addr().unwrap());
    let took = Duration::from_nanos(ended.0.0 - began.0.0);
    // TCP_TIMEOUT_INIT is a second (include/net/tcp.h); how much later the machine is, the client's own clock says.
    let at_least = Duration::from_millis(900);
    assert!((at_least..=at_most).contains(&took), "{took:?} of {at_most:?}");
}

#[test]
fn given_up_by_the_program() {
    let Some(pair) = Pair::start("given_up_by_the_program") else {
        return;
    };
    pair.filter("tcp dport 4001 drop");
    let (at_least, at_most) = pair.client.within(|| {
        let begin = Instant::now();
        let socket = non_blocking("10.77.0.2:4001");
        let connecting = Instant::now();
        std::thread::sleep(Duration::from_millis(100));
        let at_least = connecting.elapsed();
        drop(socket);
        (at_least, begin.elapsed())
    });
    let Some((why, took, _)) = pair.failure_of(4001) else {
        return;
    };
    assert_eq!(why, ConnectFailure::Abandoned);
    assert!(
        (at_least..=at_most).contains(&took),
        "{took:?} of {at_least:?} to {at_most:?}"
    );
}

#[test]
fn without_a_free_port_it_fails_otherwise() {
    let Some(pair) = Pair::start("without_a_free_port_it_fails_otherwise") else {
        return;
    };
    pair.client
        .run("sysctl -q -w net.ipv4.ip_local_port_range='50000 50000'");
    let _listener = pair.listen("0.0.0.0:4001");
    let _only = pair.connect("10.77.0.2:4001").unwrap();
    assert_eq!(
        pair.connect("10.77.0.2:4001").unwrap_err().kind(),
        ErrorKind::AddrNotAvailable
    );
    pair.watch.wait("a failure", |events| {
        let steps = steps(events, pair.client.inode);
        let failed = Step::Failed(ConnectFailure::Other);
        steps.iter().find(|(_, step)| step.step == failed).map(|_| ())
    });
}

#[test]
fn a_burst_is_reported_whole() {
    const TEST: &str = "a_burst_is_reported_whole";
    let Some(pair) = Pair::start_alone(TEST) else { return };
    let listener = pair.listen("0.0.0.0:4001");
    listener.set_nonblocking(false).unwrap();
    std::thread::spawn(move || while listener.accept().is_ok() {});
    let began = Instant::now();
    pair.client.within(|| {
        for _ in 0..BURST {
            drop(TcpStream::connect("10.77.0.2:4001").unwrap());
        }
    });
    let took = began.elapsed();
    let in_init = pair.ends_in_init(4001);
    if in_init > 0 {
        eprintln!("NOT RUN {TEST}::init: {in_init} of {BURST} ends interrupted process 1");
    }
    let due = 2 * BURST - in_init;
    let all = |events: &[Event]| {
        let steps = steps(events, pair.client.inode);
        (steps.len() >= due).then_some(steps)
    };
    let count = |events: &[Event]| format!("{} of {due}", steps(events, pair.client.inode).len());
    let reported = pair.watch.wait_showing("all ends", all, count);
    let established = reported
        .iter()
        .filter(|(_, step)| step.step == Step::Established)
        .count();
    assert!(established <= BURST, "{established} of {BURST}");
    assert_eq!((reported.len() - established, pair.watch.lost("connect")), (BURST, 0));
    eprintln!("{BURST} connections in {took:?}");
}

/// The kernel does not run a program within a run of itself: a connection that fails in an interrupt, while another one begins
/// on that processor, is reported all the same.
#[test]
fn failures_in_interrupts_are_reported_while_others_connect() {
    const TEST: &str = "failures_in_interrupts_are_reported_while_others_connect";
    if !has_two_processors(TEST) {
        return;
    }
    let Some(pair) = Pair::start_alone(TEST) else { return };
    // What comes to the client is received on the first processor, by an interrupt (Documentation/networking/scaling.rst, RPS).
    pair.client.run("echo 1 > /sys/class/net/v0a/queues/rx-0/rps_cpus");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pair.client.within(|| {
                run_on(0);
                while !done.load(Ordering::Relaxed) {
                    drop(non_blocking("10.77.0.9:4002"));
                }
            });
        });
        pair.client.within(|| {
            run_on(1);
            for _ in 0..REFUSED {
                TcpStream::connect(format!("10.77.0.2:{REFUSED_PORT}")).unwrap_err();
            }
        });
        done.store(true, Ordering::Relaxed);
    });
    let failed = |events: &[Event]| {
        let steps = steps(events, pair.client.inode);
        let of_port = steps.iter().filter(|(_, step)| step.remote.port() == REFUSED_PORT);
        of_port.filter(|(_, step)| step.step != Step::Started).count()
    };
    let in_init = pair.ends_in_init(REFUSED_PORT);
    if in_init > 0 {
        eprintln!("NOT RUN {TEST}::init: {in_init} of {REFUSED} failures interrupted process 1");
    }
    let due = least_of(REFUSED - in_init);
    // What found the ring full is counted.
    let all = |events: &[Event]| (failed(events) + pair.lost("connect") >= due).then_some(());
    pair.watch
        .wait_showing("every failure", all, |events| format!("{} of {due}", failed(events)));
    assert!(failed(&pair.watch.events()) <= REFUSED, "reported twice");
}

/// As above, of dropped packets.
#[test]
fn drops_in_interrupts_are_counted_while_others_are_dropped() {
    const TEST: &str = "drops_in_interrupts_are_counted_while_others_are_dropped";
    if !has_two_processors(TEST) {
        return;
    }
    let Some(in_init) = Tracefs::of_init("drops_in_interrupts", "skb/kfree_skb", "protocol == 0x0800") else {
        return;
    };
    let Some(pair) = Pair::start_alone(TEST) else { return };
    assert!(pair.watch.probe("drops").attached);
    pair.server.run("echo 1 > /sys/class/net/v0b/queues/rx-0/rps_cpus");
    pair.client.run(
        "nft add table inet t; nft 'add chain inet t out { type filter hook output priority 0; }'; \
         nft 'add rule inet t out ip daddr 10.77.0.9 drop'",
    );
    let done = AtomicBool::new(false);
    let refused = std::thread::scope(|scope| {
        let refused = scope.spawn(|| {
            pair.client.within(|| {
                run_on(0);
                let socket = UdpSocket::bind("10.77.0.1:0").unwrap();
                let mut refused = 0;
                while !done.load(Ordering::Relaxed) {
                    refused += usize::from(socket.send_to(&[0; 32], "10.77.0.9:53").is_err());
                }
                refused
            })
        });
        pair.client.within(|| {
            run_on(1);
            let socket = UdpSocket::bind("10.77.0.1:0").unwrap();
            for _ in 0..DROPPED {
                socket.send_to(&[0; 32], "10.77.0.2:53").unwrap();
            }
        });
        done.store(true, Ordering::Relaxed);
        refused.join().unwrap()
    });
    let in_init = in_init.lines().len();
    if in_init > 0 {
        eprintln!("NOT RUN {TEST}::init: {in_init} drops interrupted process 1");
    }
    let due = least_of(refused + DROPPED - in_init);
    // Counts that come without an event are read once a second.
    std::thread::sleep(Duration::from_millis(1_500));
    let label = ProbeLabel {
        probe: "drops".to_owned(),
    };
    // Of so many drops most are left out, and counted (OWNER_DROPS_PER_SECOND).
    let counted = |events: &[Event]| {
        let reported = events
            .iter()
            .filter(|event| matches!(event.body, Body::PacketDropped(_)));
        let limited = pair.watch.health.limited.get_or_create(&label).get();
        reported.count() + usize::try_from(limited).unwrap() + pair.lost("drops")
    };
    let all = |events: &[Event]| (counted(events) >= due).then_some(());
    pair.watch
        .wait_showing("every drop", all, |events| format!("{} of {due}", counted(events)));
}

/// How many of so many have to be there. 0 to 6 of 10,000 were missing besides; without the second program 300 and more.
fn least_of(all: usize) -> usize {
    all - all / 500
}

/// Prints that the test is skipped where it is not so.
fn has_two_processors(test: &str) -> bool {
    let has_two = std::thread::available_parallelism().unwrap().get() >= 2;
    if !has_two {
        skipped(test, "needs two processors");
    }
    has_two
}

/// This thread runs on one processor only.
fn run_on(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).unwrap();
}

#[test]
fn switched_off_it_reports_that_and_nothing_else() {
    let test = "switched_off_it_reports_that_and_nothing_else";
    let Some(namespace) = Namespace::make(test) else { return };
    let options = LinuxOptions {
        connect: false,
        conntrack: false,
        ..default_source().unwrap()
    };
    let Some(watch) = Watch::start(test, &namespace, options) else {
        return;
    };
    for probe in ["connect", "conntrack"] {
        let status = watch.probe(probe);
        assert!(
            !status.attached && status.consequence.contains("switched off"),
            "{status:?}"
        );
    }
    let refused = namespace.within(|| TcpStream::connect("127.0.0.1:1").unwrap_err());
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(steps(&watch.finish(), namespace.inode), []);
}

const BURST: usize = 5_000;
const DROPPED: usize = 20_000;
const REFUSED: usize = 10_000;
/// No other test connects to it.
const REFUSED_PORT: u16 = 4777;
