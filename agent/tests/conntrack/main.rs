//! Flows and counters of conntrack against this machine's kernel, in namespaces of the test's own; `conntrack(8)` is the
//! independent witness.
//!
//! Needs root, `ip`, `nft`, `iptables` and `conntrack`; where one is missing each test prints `SKIPPED` and the reason.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test")]

mod cluster;
#[path = "../collected/mod.rs"]
mod collected;
mod kube;
#[path = "../lab/mod.rs"]
mod lab;
mod limit;
#[path = "../namespaces/mod.rs"]
mod namespaces;
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "../lab/tracefs.rs"]
mod tracefs;
mod verdicts;
mod witness;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Barrier;
use std::time::Duration;

use cluster::{Cluster, PORT, SERVICE};
use kube::Kube;
use limit::Limit;
use namespaces::{Namespace, Watch, counts, flows};
use rustix::thread::CapabilitySet;
use sandglass::app::settings::default_source;
use sandglass::sources::clock;
use sandglass::sources::linux::{FlowOptions, LinuxOptions};
use sandglass_model::network::{ConntrackCounts, FlowChange};
use sandglass_model::{Body, Event};
use witness::{Witness, agree};

/// TCP connections of a pod through a service address; the witness must have seen the same flows.
fn translated(test: &str, flows: FlowOptions, rules: impl Fn(&Cluster)) {
    if let Some(cluster) = connecting(test, flows) {
        rules(&cluster);
        connect_and_compare(&cluster);
        verdicts::record_all(test, &cluster);
    }
}

/// A cluster of which connections are watched too.
fn connecting(test: &str, flows: FlowOptions) -> Option<Cluster> {
    let options = LinuxOptions {
        stdio: false,
        flows,
        ..default_source().unwrap()
    };
    Cluster::with(test, options)
}

fn connect_and_compare(cluster: &Cluster) {
    cluster.node.run("sysctl -q -w net.netfilter.nf_conntrack_tcp_timeout_time_wait=1 net.netfilter.nf_conntrack_tcp_timeout_close=1");
    let witness = Witness::start(&cluster.node);
    let listeners: Vec<TcpListener> = (2..5)
        .map(|host| {
            cluster
                .backends
                .within(|| TcpListener::bind(format!("10.77.2.{host}:{PORT}")).unwrap())
        })
        .collect();
    for listener in listeners {
        std::thread::spawn(move || while listener.accept().is_ok() {});
    }
    let before = clock::now();
    let locals: Vec<SocketAddr> = cluster.pod.within(|| {
        let connect = |_| {
            TcpStream::connect(format!("{SERVICE}:{PORT}"))
                .unwrap()
                .local_addr()
                .unwrap()
        };
        (0..30).map(connect).collect()
    });
    let after = clock::now();
    cluster.node.run("sleep 0.2; conntrack -F 2>/dev/null");
    let service: SocketAddr = format!("{SERVICE}:{PORT}").parse().unwrap();
    let mut reported = cluster.wait_for_ends(locals.len(), |flow| flow.destination == service);
    let mut used = BTreeMap::new();
    for local in &locals {
        let (at, flow) = reported
            .iter()
            .find(|(_, flow)| flow.change == FlowChange::New && flow.source == *local)
            .unwrap();
        assert!(before <= *at && *at <= after, "{before:?} {at:?} {after:?}");
        assert_eq!((flow.netns, flow.protocol), (cluster.node.inode, 6));
        assert_eq!(flow.destination, service);
        assert!(flow.is_dnat() && flow.is_snat(), "{flow:?}");
        assert_eq!(flow.reply_destination.ip().to_string(), "10.77.2.1");
        *used.entry(flow.reply_source).or_insert(0) += 1;
    }
    assert_eq!(used.len(), 3, "all three backends are used: {used:?}");
    let mut seen = witness.finish();
    // Of flows older than the witness it sees the end only, and the other way round: of both, only those of the service.
    reported.retain(|(_, flow)| flow.destination == service);
    seen.retain(|seen| seen.ends[1] == service.to_string());
    agree(seen, &reported);
    assert_eq!(cluster.watch.lost("conntrack"), 0);
}

#[test]
fn translation_by_nftables_is_reported_as_the_witness_sees_it() {
    translated(
        "translation_by_nftables_is_reported_as_the_witness_sees_it",
        FlowOptions::LADDER,
        |cluster| cluster.serve_by_nft("tcp", PORT),
    );
}

#[test]
fn translation_by_iptables_is_reported_as_the_witness_sees_it() {
    translated(
        "translation_by_iptables_is_reported_as_the_witness_sees_it",
        FlowOptions::LADDER,
        |cluster| cluster.serve_by_iptables("tcp", PORT),
    );
}

fn rules_of_kube_proxy(test: &str, mode: &str) {
    let Some(bin) = Kube::programs(test) else { return };
    let Some(cluster) = connecting(test, FlowOptions::LADDER) else {
        return;
    };
    let _kube = Kube::start(&cluster.node, &bin, mode);
    connect_and_compare(&cluster);
    verdicts::record_all(test, &cluster);
}

#[test]
fn the_rules_of_kube_proxy_itself_with_iptables() {
    rules_of_kube_proxy("the_rules_of_kube_proxy_itself_with_iptables", "iptables");
}

#[test]
fn the_rules_of_kube_proxy_itself_with_nftables() {
    rules_of_kube_proxy("the_rules_of_kube_proxy_itself_with_nftables", "nftables");
}

#[test]
fn the_socket_alone_reports_the_same_with_the_kernels_time() {
    translated(
        "the_socket_alone_reports_the_same_with_the_kernels_time",
        plain(),
        |cluster| {
            // Since Linux 6.14 announcements then say when; before, they are timed when they are read.
            cluster.node.run("sysctl -q -w net.netfilter.nf_conntrack_timestamp=1");
            cluster.serve_by_nft("tcp", PORT);
        },
    );
}

#[test]
fn udp_with_and_without_an_answer_and_ipv6() {
    let Some(cluster) = Cluster::start("udp_with_and_without_an_answer_and_ipv6", FlowOptions::LADDER) else {
        return;
    };
    cluster.track();
    cluster.backends.run("ip -6 route add default via fd77:2::1");
    let server = cluster
        .backends
        .within(|| UdpSocket::bind(format!("[::]:{PORT}")).unwrap());
    let pings = [("0.0.0.0:0", "10.77.2.2"), ("[::]:0", "[fd77:2::2]")];
    let mut locals = Vec::new();
    for (any, address) in pings {
        let client = cluster.pod.within(|| UdpSocket::bind(any).unwrap());
        client.send_to(b"ask", format!("{address}:{PORT}")).unwrap();
        let mut buffer = [0; 16];
        let (_, from) = server.recv_from(&mut buffer).unwrap();
        server.send_to(b"answer", from).unwrap();
        client.recv_from(&mut buffer).unwrap();
        locals.push(client.local_addr().unwrap().port());
    }
    let silent = cluster.pod.within(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    silent.send_to(b"ask", "10.77.2.3:9").unwrap();
    locals.push(silent.local_addr().unwrap().port());
    std::thread::sleep(Duration::from_millis(100));
    cluster.node.run("conntrack -F 2>/dev/null");
    let reported = cluster.wait_for_ends(locals.len(), |flow| locals.contains(&flow.source.port()));
    for (number, port) in locals.iter().enumerate() {
        let of = |change| {
            let mut flows = reported.iter().map(|(_, flow)| flow);
            flows
                .find(|flow| flow.source.port() == *port && flow.change == change)
                .unwrap()
        };
        let (new, gone) = (of(FlowChange::New), of(FlowChange::Destroyed));
        assert_eq!((new.id, new.protocol, new.replied), (gone.id, 17, false));
        assert!(!new.is_dnat() && !new.is_snat());
        assert_eq!(gone.replied, number < 2, "{gone:?}");
        assert_eq!(new.source.is_ipv6(), number == 1);
    }
}

#[test]
fn a_full_table_drops_and_that_is_counted() {
    let test = "a_full_table_drops_and_that_is_counted";
    let Some(cluster) = Cluster::start(test, FlowOptions::LADDER) else {
        return;
    };
    cluster.track();
    let first = cluster.watch.wait("the first counts", |events| {
        counts(events, cluster.node.inode).first().copied()
    });
    assert_eq!((first.insert_failed, first.drop, first.early_drop), (0, 0, 0));
    let client = cluster.pod.within(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    let before = cluster.counters();
    {
        let _limit = Limit::set(200);
        for port in 1..=600 {
            let _ = client.send_to(b"x", format!("10.77.2.2:{port}"));
        }
        let full = cluster.watch.wait("drops", |events| {
            counts(events, cluster.node.inode)
                .into_iter()
                .find(|counts| counts.drop > 0)
        });
        assert_eq!(full.limit, 200);
        assert!((150..=210).contains(&full.entries), "{full:?}");
    }
    // Established flows without an answer may go early when there is no room.
    let after = cluster.counters();
    let reported = counts(&cluster.watch.events(), cluster.node.inode);
    for (name, reported) in [
        ("drop", reported.iter().map(|counts| counts.drop).sum::<u64>()),
        ("early_drop", reported.iter().map(|counts| counts.early_drop).sum()),
        (
            "insert_failed",
            reported.iter().map(|counts| counts.insert_failed).sum(),
        ),
    ] {
        let grown = after[name] - before[name];
        eprintln!("{test}: {name} grew by {grown}");
        assert_eq!(reported, grown, "{name}");
    }
    assert!(after["drop"] > before["drop"]);
}

/// Lets two threads send from these sockets at the same instant, again and again. What conntrack counted meanwhile must
/// equal what `conntrack -S` prints; returns insert_failed, clash_resolve and drop.
fn race(test: &str, cluster: &Cluster, sockets: impl Fn(u16) -> [UdpSocket; 2] + Sync) -> [u64; 3] {
    cluster.watch.wait("the first counts", |events| {
        counts(events, cluster.node.inode).first().copied()
    });
    let before = cluster.counters();
    cluster.pod.within(|| {
        for number in 0..RACES {
            let sockets = sockets(number);
            let both = Barrier::new(2);
            std::thread::scope(|scope| {
                for socket in &sockets {
                    scope.spawn(|| {
                        both.wait();
                        let _ = socket.send(b"query");
                    });
                }
            });
        }
    });
    let after = cluster.counters();
    let grown = |name: &str| after.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
    let wanted = ["insert_failed", "clash_resolve", "drop"].map(grown);
    eprintln!("{test}: {RACES} races, insert_failed, clash_resolve, drop grew by {wanted:?}");
    let sums = || {
        let reported = counts(&cluster.watch.events(), cluster.node.inode);
        let sum = |of: fn(&ConntrackCounts) -> u64| reported.iter().map(of).sum::<u64>();
        [sum(|c| c.insert_failed), sum(|c| c.clash_resolve), sum(|c| c.drop)]
    };
    for _ in 0..30 {
        if sums() == wanted {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(sums(), wanted, "insert_failed, clash_resolve, drop");
    wanted
}

/// Two queries from one socket, through a service address: each makes an entry of its own, to another backend perhaps,
/// and only one of them can stay. The kernel lets the packet of the other one pass all the same, since Linux 5.7.
#[test]
fn races_of_one_socket_are_resolved_and_counted() {
    let test = "races_of_one_socket_are_resolved_and_counted";
    let Some(cluster) = Cluster::start(test, FlowOptions::LADDER) else {
        return;
    };
    cluster.serve_by_nft("udp", 53);
    let [failed, resolved, _] = race(test, &cluster, |_| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect(format!("{SERVICE}:53")).unwrap();
        [socket.try_clone().unwrap(), socket]
    });
    // The flow that lost a race is not reported as new.
    let reported = flows(&cluster.watch.events());
    let new = reported
        .iter()
        .filter(|(_, flow)| flow.change == FlowChange::New)
        .count();
    assert!(new <= usize::from(RACES), "{new} flows");
    if failed + resolved == 0 {
        eprintln!("SKIPPED {test}: no race happened in {RACES} tries on this machine");
    }
}

/// Two pods that use the same port, masqueraded to the same address: one of them takes the translated port away from the
/// other, whose packet the kernel must drop.
#[test]
fn races_for_a_translated_port_fail_and_are_counted() {
    let test = "races_for_a_translated_port_fail_and_are_counted";
    let Some(cluster) = Cluster::start(test, FlowOptions::LADDER) else {
        return;
    };
    cluster.pod.run("ip addr add 10.77.1.3/24 dev v1a");
    cluster.node.run(
        "nft add table ip t; nft 'add chain ip t p { type nat hook postrouting priority 100; }'; nft add rule ip t p masquerade",
    );
    let [failed, _, dropped] = race(test, &cluster, |number| {
        [1, 3].map(|host| {
            let socket = UdpSocket::bind(format!("10.77.1.{host}:{}", 20_000 + number)).unwrap();
            socket.connect("10.77.2.2:53").unwrap();
            socket
        })
    });
    // Each loser is one packet that is lost.
    assert_eq!(failed, dropped);
    if failed == 0 {
        eprintln!("SKIPPED {test}: no race happened in {RACES} tries on this machine");
    }
}

/// What does not fit is counted, and the source goes on: by the ring or by the socket.
fn overrun(test: &str, options: FlowOptions) {
    let Some(cluster) = Cluster::start(test, options) else {
        return;
    };
    cluster.track();
    let before = cluster.counters();
    let client = cluster.pod.within(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    for number in 0..BURST {
        let address = format!("10.77.2.{}:{}", 2 + number / 25_000, 1 + number % 25_000);
        let _ = client.send_to(b"x", address);
    }
    let made: u64 = cluster.node.run("conntrack -C").trim().parse().unwrap();
    assert!(made > u64::from(BURST) / 2, "{made} flows");
    let reported = || flows(&cluster.watch.events()).len() as u64;
    for _ in 0..40 {
        if reported() + cluster.watch.lost("conntrack") >= made {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let (reported, lost) = (reported(), cluster.watch.lost("conntrack"));
    eprintln!("{test}: {made} flows made, {reported} reported, {lost} lost");
    assert!(lost > 0, "nothing was lost: the test is too small");
    assert_eq!(reported + lost, made, "{before:?}");
    let reported: u64 = cluster.watch.events().iter().map(lost_in).sum();
    assert_eq!(reported, lost);
    // It goes on.
    client.send_to(b"x", "10.77.2.2:60000").unwrap();
    cluster.watch.wait("the flow after the flood", |events| {
        flows(events)
            .iter()
            .find(|(_, flow)| flow.destination.port() == 60_000)
            .map(|_| ())
    });
}

fn lost_in(event: &Event) -> u64 {
    match &event.body {
        Body::Lost { probe, count } if probe == "conntrack" => *count,
        _ => 0,
    }
}

#[test]
fn what_the_ring_cannot_hold_is_counted() {
    let options = FlowOptions {
        buffer_bytes: Some(16 << 10),
        ..FlowOptions::LADDER
    };
    overrun("what_the_ring_cannot_hold_is_counted", options);
}

#[test]
fn what_the_socket_cannot_hold_is_counted() {
    let options = FlowOptions {
        buffer_bytes: Some(16 << 10),
        ..plain()
    };
    overrun("what_the_socket_cannot_hold_is_counted", options);
}

#[test]
fn the_table_of_a_sandbox_is_visited_when_it_is_in_use() {
    let test = "the_table_of_a_sandbox_is_visited_when_it_is_in_use";
    let Some(cluster) = Cluster::start(test, FlowOptions::LADDER) else {
        return;
    };
    // A rule of a service mesh, say, makes this sandbox track what it sends; the other one does not.
    track_own(&cluster.pod);
    add(&cluster.pod);
    add(&cluster.backends);
    let client = cluster.pod.within(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    for port in 1..=50 {
        client.send_to(b"x", format!("10.77.2.2:{port}")).unwrap();
    }
    let seen = cluster.watch.wait("the sandbox's table", |events| {
        counts(events, cluster.pod.inode)
            .into_iter()
            .find(|counts| counts.entries >= 50)
    });
    assert!(seen.limit > 0, "{seen:?}");
    assert_eq!((seen.insert_failed, seen.drop), (0, 0));
    let events = cluster.watch.events();
    assert_eq!(counts(&events, cluster.backends.inode), []);
    // Only flows of the node's table are reported.
    assert_eq!(flows(&events), []);
    // The agent does not keep a namespace alive: a device moved into it goes with it.
    let node = cluster.node.run("ip -br link");
    assert!(node.contains("v1b"), "{node}");
    drop(client);
    let Cluster { pod, node, .. } = &cluster;
    let status = Command::new("ip").args(["netns", "del", &pod.name]).status().unwrap();
    assert!(status.success());
    for _ in 0..50 {
        if !node.run("ip -br link").contains("v1b") {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("the sandbox's link is still there");
}

/// Makes a namespace track what it sends itself.
fn track_own(sandbox: &Namespace) {
    sandbox.run(
        "nft add table inet t; nft 'add chain inet t o { type filter hook output priority 0; }'; \
         nft add rule inet t o ct state invalid drop",
    );
}

/// Runs a plugin that names this a sandbox's namespace.
fn add(sandbox: &Namespace) {
    let added = Command::new("/bin/true")
        .envs([("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "x"), ("CNI_IFNAME", "eth0")])
        .env("CNI_NETNS", sandbox.path())
        .status()
        .unwrap();
    assert!(added.success());
}

#[test]
fn without_the_right_to_enter_only_the_nodes_table_is_polled() {
    let test = "without_the_right_to_enter_only_the_nodes_table_is_polled";
    let (Some(node), Some(sandbox)) = (Namespace::make(test), Namespace::make(test)) else {
        return;
    };
    let Some(watch) = Watch::without(CapabilitySet::SYS_ADMIN, test, &node, default_source().unwrap()) else {
        return;
    };
    let status = watch.probe("conntrack");
    assert_eq!((status.attached, status.hook.as_str()), (true, "ctnetlink filter"));
    track_own(&sandbox);
    add(&sandbox);
    let client = sandbox.within(|| UdpSocket::bind("127.0.0.1:0").unwrap());
    let _ = client.send_to(b"x", "127.0.0.1:9");
    watch.wait("the node's table", |events| counts(events, node.inode).first().copied());
    // A visit would have come within a second.
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(counts(&watch.finish(), sandbox.inode), []);
}

#[test]
fn without_the_right_to_subscribe_the_source_says_so_and_goes_on() {
    let test = "without_the_right_to_subscribe_the_source_says_so_and_goes_on";
    let Some(node) = Namespace::make(test) else { return };
    let Some(watch) = Watch::without(CapabilitySet::NET_ADMIN, test, &node, default_source().unwrap()) else {
        return;
    };
    let status = watch.probe("conntrack");
    assert!(!status.attached && status.hint.contains("CAP_NET_ADMIN"), "{status:?}");
    assert!(status.consequence.contains("not permitted"), "{status:?}");
    assert!(watch.probe("connect").attached && watch.probe("exec").attached);
}

#[test]
fn events_switched_off_in_the_kernel_are_reported_as_such() {
    let test = "events_switched_off_in_the_kernel_are_reported_as_such";
    let Some(node) = Namespace::make(test) else { return };
    node.run("sysctl -q -w net.netfilter.nf_conntrack_events=0");
    let Some(watch) = Watch::start(test, &node, default_source().unwrap()) else {
        return;
    };
    let status = watch.probe("conntrack");
    assert!(status.consequence.contains("nf_conntrack_events is 0"), "{status:?}");
}

fn plain() -> FlowOptions {
    FlowOptions {
        filter: false,
        ..FlowOptions::LADDER
    }
}

const RACES: u16 = 3_000;
const BURST: u32 = 50_000;
