//! The connection probe against this machine's kernel: connections of every fate, between namespaces of the test's own.
//!
//! Needs root with BPF, `ip` and `nft`; where one is missing each test prints `SKIPPED` and the reason.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test")]

mod collected;
mod namespaces;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use namespaces::{Namespace, Watch, steps};
use rustix::net::sockopt::socket_cookie;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use sandglass::app::settings::default_source;
use sandglass::sources::clock;
use sandglass::sources::linux::{LinuxOptions, Rung};
use sandglass_model::network::{ConnectFailure, ConnectStep, Step};
use sandglass_model::{ProcessKey, Timestamp};

/// A client's and a server's namespace, and a source that watches.
struct Pair {
    client: Namespace,
    server: Namespace,
    watch: Watch,
}

impl Pair {
    fn start(test: &str) -> Option<Pair> {
        Pair::with(test, default_source().unwrap())
    }

    fn with(test: &str, options: LinuxOptions) -> Option<Pair> {
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
        Some(Pair { client, server, watch })
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

    /// The steps of the client's only connection to `port`, when its last one has come.
    fn steps_to(&self, port: u16) -> Vec<(Timestamp, ConnectStep)> {
        self.watch.wait(&format!("the end of a connect to {port}"), |events| {
            let mut steps = steps(events, self.client.inode);
            steps.retain(|(_, step)| step.remote.port() == port);
            let ended = steps.last().is_some_and(|(_, step)| step.step != Step::Started);
            ended.then_some(steps)
        })
    }

    /// As above, of a connection that failed: why, when, and after how many retransmissions.
    fn failure_of(&self, port: u16) -> (ConnectFailure, Duration, u32) {
        let steps = self.steps_to(port);
        assert_eq!(steps.len(), 2, "{steps:?}");
        let (began, ended) = (&steps[0], &steps[1]);
        assert_eq!(began.1.step, Step::Started);
        assert_eq!(began.1.socket, ended.1.socket);
        let Step::Failed(why) = ended.1.step else {
            panic!("{steps:?}")
        };
        (why, Duration::from_nanos(ended.0.0 - began.0.0), ended.1.retransmits)
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
    let Some(pair) = Pair::with(test, options) else { return };
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
    assert_eq!(pair.steps_to(4001)[0].1.local, chosen);
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
    assert_eq!(pair.failure_of(4001).0, ConnectFailure::Refused);
    assert_eq!(
        pair.connect("[fd77::2]:4003").unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    assert_eq!(pair.failure_of(4003).0, ConnectFailure::Refused);
    pair.filter("tcp dport 4002 reject");
    assert_eq!(
        pair.connect("10.77.0.2:4002").unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    assert_eq!(pair.failure_of(4002).0, ConnectFailure::Refused);
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
    assert_eq!(pair.failure_of(4001).0, ConnectFailure::Unreachable);
    // No interface has this address: ARP is not answered.
    assert_eq!(
        pair.connect("10.77.0.9:4002").unwrap_err().kind(),
        ErrorKind::HostUnreachable
    );
    assert_eq!(pair.failure_of(4002).0, ConnectFailure::Unreachable);
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
    let (why, reported, retransmits) = pair.failure_of(4001);
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
    let stream = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| pair.connect("10.77.0.2:4001"));
        std::thread::sleep(Duration::from_millis(300));
        pair.server.run("nft flush ruleset");
        connecting.join().unwrap().unwrap()
    });
    let steps = pair.steps_to(4001);
    let (began, ended) = (&steps[0], &steps[1]);
    assert_eq!((ended.1.step, ended.1.retransmits), (Step::Established, 1));
    assert_eq!(ended.1.local, stream.local_addr().unwrap());
    let took = Duration::from_nanos(ended.0.0 - began.0.0);
    assert!((900..1500).contains(&took.as_millis()), "{took:?}");
}

#[test]
fn given_up_by_the_program() {
    let Some(pair) = Pair::start("given_up_by_the_program") else {
        return;
    };
    pair.filter("tcp dport 4001 drop");
    pair.client.within(|| {
        let socket = non_blocking("10.77.0.2:4001");
        std::thread::sleep(Duration::from_millis(100));
        drop(socket);
    });
    let (why, took, _) = pair.failure_of(4001);
    assert_eq!(why, ConnectFailure::Abandoned);
    assert!((90..300).contains(&took.as_millis()), "{took:?}");
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
    let Some(pair) = Pair::start("a_burst_is_reported_whole") else {
        return;
    };
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
    let reported = pair.watch.wait("all ends", |events| {
        let steps = steps(events, pair.client.inode);
        (steps.len() == 2 * BURST).then_some(steps)
    });
    let established = reported
        .iter()
        .filter(|(_, step)| step.step == Step::Established)
        .count();
    assert_eq!((established, pair.watch.lost("connect")), (BURST, 0));
    eprintln!("{BURST} connections in {took:?}");
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
