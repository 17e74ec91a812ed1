//! Flows and counters of conntrack against this machine's kernel, in namespaces of the test's own; `conntrack(8)` is the
//! independent witness.
//!
//! Needs root, `ip`, `nft`, `iptables` and `conntrack`; where one is missing each test says `SKIPPED` and why.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test")]

mod namespaces;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use namespaces::{Namespace, Watch, counts, flows};
use rustix::process::{Pid, Signal, kill_process};
use sandglass::sources::clock;
use sandglass::sources::linux::{FlowOptions, Options};
use sandglass_model::network::{Flow, FlowChange};
use sandglass_model::{Body, Event, Timestamp};

/// The limit of the table is one for the whole machine, and so are its processors: one test at a time.
static MACHINE: Mutex<()> = Mutex::new(());

/// A pod, a node it sends through, and a namespace of backends.
struct Cluster {
    pod: Namespace,
    node: Namespace,
    backends: Namespace,
    watch: Watch,
    _alone: MutexGuard<'static, ()>,
}

impl Cluster {
    fn start(test: &str, flows: FlowOptions) -> Option<Cluster> {
        if let Err(error) = Command::new("conntrack").arg("--version").output() {
            eprintln!("SKIPPED {test}: conntrack: {error}");
            return None;
        }
        let alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let (pod, node, backends) = (Namespace::make(test)?, Namespace::make(test)?, Namespace::make(test)?);
        pod.link(&node, 1);
        node.link(&backends, 2);
        node.run("sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        pod.run("ip route add default via 10.77.1.2; ip -6 route add default via fd77:1::2");
        // Backends answer to the node, as its masquerading asks for; 10.77.2.2 is the first, .3 and .4 the others.
        backends.run(
            "ip addr add 10.77.2.3/24 dev v2b; ip addr add 10.77.2.4/24 dev v2b; ip route add default via 10.77.2.1",
        );
        let options = Options {
            connect: false,
            stdio: false,
            flows,
            ..Options::default()
        };
        let watch = Watch::start(test, &node, options)?;
        let status = watch.probe("conntrack");
        assert!(status.attached, "{status:?}");
        Some(Cluster {
            pod,
            node,
            backends,
            watch,
            _alone: alone,
        })
    }

    /// kube-proxy's way in its nftables mode: a map of services, chains picked at random, masquerading.
    fn serve_by_nft(&self, protocol: &str, port: u16) {
        self.node.run(&format!(
            "nft -f - <<'X'
            table ip kube-proxy {{
                map service-ips {{
                    type ipv4_addr . inet_proto . inet_service : verdict
                    elements = {{ {SERVICE} . {protocol} . {port} : goto service }}
                }}
                chain endpoint-1 {{ meta l4proto {protocol} dnat to 10.77.2.2:{port}; }}
                chain endpoint-2 {{ meta l4proto {protocol} dnat to 10.77.2.3:{port}; }}
                chain endpoint-3 {{ meta l4proto {protocol} dnat to 10.77.2.4:{port}; }}
                chain service {{
                    meta mark set mark or 0x4000
                    numgen random mod 3 vmap {{ 0 : goto endpoint-1, 1 : goto endpoint-2, 2 : goto endpoint-3 }}
                }}
                chain nat-prerouting {{
                    type nat hook prerouting priority -100
                    ip daddr . meta l4proto . th dport vmap @service-ips
                }}
                chain nat-postrouting {{
                    type nat hook postrouting priority 100
                    meta mark & 0x4000 == 0x4000 meta mark set mark xor 0x4000 masquerade fully-random
                }}
            }}
X"
        ));
    }

    /// The same by iptables, as kube-proxy's default mode does it.
    fn serve_by_iptables(&self, protocol: &str, port: u16) {
        let mut rules = "iptables -t nat -N KUBE-SVC; iptables -t nat -N KUBE-MARK;
            iptables -t nat -A KUBE-MARK -j MARK --or-mark 0x4000;
            iptables -t nat -A KUBE-SVC -j KUBE-MARK;"
            .to_owned();
        for (number, probability) in [(2, "0.33333"), (3, "0.5"), (4, "1")] {
            rules += &format!(
                "iptables -t nat -N KUBE-SEP-{number};
                 iptables -t nat -A KUBE-SEP-{number} -p {protocol} -j DNAT --to-destination 10.77.2.{number}:{port};
                 iptables -t nat -A KUBE-SVC -m statistic --mode random --probability {probability} -j KUBE-SEP-{number};"
            );
        }
        rules += &format!(
            "iptables -t nat -A PREROUTING -d {SERVICE} -p {protocol} --dport {port} -j KUBE-SVC;
             iptables -t nat -A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully"
        );
        self.node.run(&rules);
    }

    /// Makes the node track flows without translating any.
    fn track(&self) {
        self.node.run("nft add table inet t; nft 'add chain inet t f { type filter hook forward priority 0; }'; nft add rule inet t f ct state invalid drop");
    }

    /// All events once `enough` flows of that kind came.
    fn wait_for(&self, change: FlowChange, enough: usize) -> Vec<(Timestamp, Flow)> {
        self.watch.wait(&format!("{enough} flows {change:?}"), |events| {
            let all = flows(events);
            (all.iter().filter(|(_, flow)| flow.change == change).count() >= enough).then_some(all)
        })
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        statistics(&self.node.run("conntrack -S"))
    }
}

/// Sums of `conntrack -S` over all processors.
fn statistics(text: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for pair in text.split_whitespace() {
        let Some((name, value)) = pair.split_once('=') else {
            continue;
        };
        *sums.entry(name.to_owned()).or_default() += value.parse::<u64>().unwrap();
    }
    sums
}

/// `conntrack -E`, which writes what it is told to a pipe.
struct Witness(Child);

impl Witness {
    fn start(node: &Namespace) -> Witness {
        let mut command = node.command("exec conntrack -E -e NEW,DESTROY -o timestamp,id -b 8388608 2>/dev/null");
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let witness = Witness(child);
        // Subscribed when the kernel shows a second listener.
        for _ in 0..200 {
            let table = node.run("cat /proc/net/netlink");
            let listeners = table.lines().filter(|line| {
                let mut columns = line.split_whitespace().skip(1);
                columns.next() == Some("12") && columns.nth(1).is_some_and(|groups| groups == "00000005")
            });
            if listeners.count() >= 2 {
                return witness;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("conntrack -E did not subscribe");
    }

    /// Its lines so far, read to the end after it was asked to stop.
    fn finish(mut self) -> Vec<Seen> {
        let pid = Pid::from_raw(self.0.id().cast_signed()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        kill_process(pid, Signal::INT).unwrap();
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        let seen = lines.map(|line| Seen::read(&line.unwrap())).collect();
        self.0.wait().unwrap();
        seen
    }
}

/// A line of it: `[1731.1\t] [NEW] udp 17 30 src=.. dst=.. sport=.. dport=.. [UNREPLIED] src=.. .. id=7`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    new: bool,
    id: u32,
    ends: [String; 4],
}

impl Seen {
    fn read(line: &str) -> Seen {
        let values = |name: &str| -> Vec<String> {
            let prefix = format!("{name}=");
            let words = line.split_whitespace();
            words
                .filter_map(|word| word.strip_prefix(&prefix).map(str::to_owned))
                .collect()
        };
        let (sources, destinations) = (values("src"), values("dst"));
        let (from, to) = (values("sport"), values("dport"));
        let end = |addresses: &[String], ports: &[String], way: usize| {
            SocketAddr::new(addresses[way].parse().unwrap(), ports[way].parse().unwrap()).to_string()
        };
        Seen {
            new: line.contains("[NEW]"),
            id: values("id")[0].parse().unwrap(),
            ends: [
                end(&sources, &from, 0),
                end(&destinations, &to, 0),
                end(&sources, &from, 1),
                end(&destinations, &to, 1),
            ],
        }
    }

    fn of(flow: &Flow) -> Seen {
        let ends = [flow.source, flow.destination, flow.reply_source, flow.reply_destination];
        Seen {
            new: flow.change == FlowChange::New,
            id: flow.id,
            ends: ends.map(|end| end.to_string()),
        }
    }
}

/// TCP connections of a pod through a service address; the witness must have seen the same flows.
fn translated(test: &str, flows: FlowOptions, rules: impl Fn(&Cluster)) {
    let Some(cluster) = Cluster::start(test, flows) else {
        return;
    };
    rules(&cluster);
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
    let told = cluster.wait_for(FlowChange::Destroyed, locals.len());
    let mut used = BTreeMap::new();
    for local in &locals {
        let (at, flow) = told
            .iter()
            .find(|(_, flow)| flow.change == FlowChange::New && flow.source == *local)
            .unwrap();
        assert!(before <= *at && *at <= after, "{before:?} {at:?} {after:?}");
        assert_eq!((flow.netns, flow.protocol), (cluster.node.inode, 6));
        assert_eq!(flow.destination.to_string(), format!("{SERVICE}:{PORT}"));
        assert!(flow.is_dnat() && flow.is_snat(), "{flow:?}");
        assert_eq!(flow.reply_destination.ip().to_string(), "10.77.2.1");
        *used.entry(flow.reply_source).or_insert(0) += 1;
    }
    assert_eq!(used.len(), 3, "all three backends are used: {used:?}");
    agree(witness.finish(), &told);
    assert_eq!(cluster.watch.lost("conntrack"), 0);
}

/// The witness and the source tell of the same flows.
fn agree(mut seen: Vec<Seen>, told: &[(Timestamp, Flow)]) {
    let mut told: Vec<Seen> = told.iter().map(|(_, flow)| Seen::of(flow)).collect();
    seen.sort();
    told.sort();
    assert!(!seen.is_empty());
    assert_eq!(seen, told);
}

#[test]
fn translation_by_nftables_is_told_as_the_witness_sees_it() {
    translated(
        "translation_by_nftables_is_told_as_the_witness_sees_it",
        FlowOptions::default(),
        |cluster| cluster.serve_by_nft("tcp", PORT),
    );
}

#[test]
fn translation_by_iptables_is_told_as_the_witness_sees_it() {
    translated(
        "translation_by_iptables_is_told_as_the_witness_sees_it",
        FlowOptions::default(),
        |cluster| cluster.serve_by_iptables("tcp", PORT),
    );
}

#[test]
fn the_socket_alone_tells_the_same_with_the_kernels_time() {
    translated(
        "the_socket_alone_tells_the_same_with_the_kernels_time",
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
    let Some(cluster) = Cluster::start("udp_with_and_without_an_answer_and_ipv6", FlowOptions::default()) else {
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
    let told = cluster.wait_for(FlowChange::Destroyed, 3);
    for (number, port) in locals.iter().enumerate() {
        let of = |change| {
            let mut flows = told.iter().map(|(_, flow)| flow);
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
    let Some(cluster) = Cluster::start(test, FlowOptions::default()) else {
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
    let told = counts(&cluster.watch.events(), cluster.node.inode);
    for (name, told) in [
        ("drop", told.iter().map(|counts| counts.drop).sum::<u64>()),
        ("early_drop", told.iter().map(|counts| counts.early_drop).sum()),
        ("insert_failed", told.iter().map(|counts| counts.insert_failed).sum()),
    ] {
        let grown = after[name] - before[name];
        eprintln!("{test}: {name} grew by {grown}");
        assert_eq!(told, grown, "{name}");
    }
    assert!(after["drop"] > before["drop"]);
}

/// The node's limit is everybody's: only for a moment, and put back whatever happens.
struct Limit(String);

impl Limit {
    fn set(limit: u32) -> Limit {
        let path = "/proc/sys/net/netfilter/nf_conntrack_max";
        let before = std::fs::read_to_string(path).unwrap();
        std::fs::write(path, limit.to_string()).unwrap();
        Limit(before)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        std::fs::write("/proc/sys/net/netfilter/nf_conntrack_max", &self.0).unwrap();
    }
}

/// Two queries from one socket at the same instant, through a service address: each makes an entry of its own, to
/// another backend perhaps, and only one of them can stay.
#[test]
fn races_for_one_tuple_are_counted_as_the_witness_counts_them() {
    let test = "races_for_one_tuple_are_counted_as_the_witness_counts_them";
    let Some(cluster) = Cluster::start(test, FlowOptions::default()) else {
        return;
    };
    cluster.serve_by_nft("udp", 53);
    let base = cluster.watch.wait("the first counts", |events| {
        counts(events, cluster.node.inode).first().copied()
    });
    let before = cluster.counters();
    cluster.pod.within(|| {
        for _ in 0..RACES {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect(format!("{SERVICE}:53")).unwrap();
            let both = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                for _ in 0..2 {
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
    eprintln!(
        "{test}: {RACES} races, insert_failed {}, clash_resolve {}, drop {}",
        grown("insert_failed"),
        grown("clash_resolve"),
        grown("drop"),
    );
    let sums = || {
        let told = counts(&cluster.watch.events(), cluster.node.inode);
        [
            told.iter().map(|counts| counts.insert_failed).sum::<u64>(),
            told.iter().map(|counts| counts.clash_resolve).sum(),
            told.iter().map(|counts| counts.drop).sum(),
        ]
    };
    let wanted = ["insert_failed", "clash_resolve", "drop"].map(grown);
    for _ in 0..30 {
        if sums() == wanted {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(sums(), wanted, "insert_failed, clash_resolve, drop; base {base:?}");
    if wanted[0] + wanted[1] == 0 {
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
    let told = || flows(&cluster.watch.events()).len() as u64;
    for _ in 0..40 {
        if told() + cluster.watch.lost("conntrack") >= made {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let (told, lost) = (told(), cluster.watch.lost("conntrack"));
    eprintln!("{test}: {made} flows made, {told} told, {lost} lost");
    assert!(lost > 0, "nothing was lost: the test is too small");
    assert_eq!(told + lost, made, "{before:?}");
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
        ..FlowOptions::default()
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
    let Some(cluster) = Cluster::start(test, FlowOptions::default()) else {
        return;
    };
    // A rule of a service mesh, say, makes this sandbox track what it sends; the other one does not.
    cluster.pod.run("nft add table inet t; nft 'add chain inet t o { type filter hook output priority 0; }'; nft add rule inet t o ct state invalid drop");
    for sandbox in [&cluster.pod, &cluster.backends] {
        let added = Command::new("/bin/true")
            .envs([("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "x"), ("CNI_IFNAME", "eth0")])
            .env("CNI_NETNS", sandbox.path())
            .status()
            .unwrap();
        assert!(added.success());
    }
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
    // Flows are told of the node's table only.
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

#[test]
fn events_switched_off_in_the_kernel_are_said_to_be() {
    let test = "events_switched_off_in_the_kernel_are_said_to_be";
    let Some(node) = Namespace::make(test) else { return };
    node.run("sysctl -q -w net.netfilter.nf_conntrack_events=0");
    let Some(watch) = Watch::start(test, &node, Options::default()) else {
        return;
    };
    let status = watch.probe("conntrack");
    assert!(status.consequence.contains("nf_conntrack_events is 0"), "{status:?}");
}

fn plain() -> FlowOptions {
    FlowOptions {
        filter: false,
        ..FlowOptions::default()
    }
}

const SERVICE: &str = "10.96.0.10";
const PORT: u16 = 4001;
const RACES: u32 = 3_000;
const BURST: u32 = 50_000;
