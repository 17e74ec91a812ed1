//! The DNS probe with resolvers and servers as they are: glibc's and musl's ways to ask, CoreDNS, dnsmasq, unbound, and hostile ends.
//!
//! Needs root and a kernel that lets BPF in; where a program is missing the test says `SKIPPED` and why. tshark judges counts
//! and latencies. Does not: repeat what `dns_probe` shows of single packets.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

mod collected;
mod lab;

use std::net::UdpSocket;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lab::client::{glibc, musl, query, socket};
use lab::oracle::Oracle;
use lab::server::Server;
use lab::watch::{Seen, Watch};
use lab::{Lab, SERVER, SERVICE, has, inside, recorded};
use sandglass_model::Body;
use sandglass_model::network::Unreported;

const A: u16 = 1;
const AAAA: u16 = 28;
const ROUNDS: usize = 300;

const CLUSTER: &str = "search default.svc.cluster.local svc.cluster.local cluster.local corp.example example\n";

fn queries(seen: &[Seen]) -> Vec<&Seen> {
    seen.iter().filter(|seen| !seen.is_answer()).collect()
}

fn assert_close(differences: &[u64], at_least: usize) {
    assert!(differences.len() >= at_least, "only {} latencies", differences.len());
    let worst = differences.iter().max().unwrap();
    assert!(*worst < 1_000_000, "{worst} ns apart");
    eprintln!("{} latencies compared, {worst} ns apart at most", differences.len());
}

/// Five search domains and ndots:5: a name with one dot is queried six times, as A and as AAAA.
#[test]
fn the_search_path_of_a_cluster_is_seen_name_by_name() {
    let test = "the_search_path_of_a_cluster_is_seen_name_by_name";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let Some(oracle) = Oracle::start(test, &lab) else {
        return;
    };
    let _server = Server::start(&lab);
    lab.resolv_conf(&format!("{CLUSTER}nameserver {SERVER}\noptions ndots:5\n"));
    lab.announce_pod();
    assert!(glibc(&lab, "ok.test").status.success());
    let seen = watch.messages(24);
    let names: Vec<(&str, u16)> = queries(&seen).iter().map(|seen| (seen.name(), seen.kind())).collect();
    let suffixes = [
        ".default.svc.cluster.local",
        ".svc.cluster.local",
        ".cluster.local",
        ".corp.example",
        ".example",
        "",
    ];
    let expected: Vec<(String, u16)> = suffixes
        .iter()
        .flat_map(|suffix| [A, AAAA].map(|kind| (format!("ok.test{suffix}"), kind)))
        .collect();
    let expected: Vec<(&str, u16)> = expected.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
    assert_eq!(names, expected);
    let missing = seen.iter().filter_map(|seen| seen.message.answer.as_ref());
    assert_eq!(missing.filter(|answer| answer.rcode == 3).count(), 10);
    let process = queries(&seen)[0].message.initiator.clone();
    assert!(
        queries(&seen).iter().all(|seen| seen.message.initiator == process),
        "one process sent them all"
    );
    assert_close(&oracle.agrees(&seen), 12);
}

/// glibc's option: each of both questions by a socket of its own, one after the other.
#[test]
fn single_request_reopen_is_two_sockets() {
    let test = "single_request_reopen_is_two_sockets";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let _server = Server::start(&lab);
    lab.announce_pod();
    lab.resolv_conf(&format!("nameserver {SERVER}\noptions single-request-reopen\n"));
    assert!(glibc(&lab, "ok.test").status.success());
    let seen = watch.messages(4);
    let sockets: Vec<u64> = queries(&seen).iter().map(|seen| seen.message.socket).collect();
    assert_eq!(sockets.len(), 2);
    assert_ne!(sockets[0], sockets[1]);
    assert!(seen[1].is_answer(), "the second question waits for the first answer");
}

/// musl sends A and AAAA by one socket that is not connected, to all servers at once.
#[test]
fn musl_asks_all_servers_at_once() {
    let test = "musl_asks_all_servers_at_once";
    let Some(lab) = Lab::start(test) else { return };
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = musl(directory.path()) else {
        eprintln!("SKIPPED {test}: no musl program can be built: rustup target add x86_64-unknown-linux-musl");
        return;
    };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let Some(oracle) = Oracle::start(test, &lab) else {
        return;
    };
    let _server = Server::start(&lab);
    lab.announce_pod();
    // The second server is the first one's other address: it is queried, and does not answer.
    lab.resolv_conf(&format!("nameserver {SERVER}\nnameserver {}\n", lab::ELSEWHERE));
    let output = lab.within(&lab.pod(), &[program.to_str().unwrap(), "ok.test"]).unwrap();
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("10.153.9.0"),
        "{output:?}"
    );
    watch.messages(6);
    let seen = watch.settled();
    let queried: Vec<(String, u16)> = queries(&seen)
        .iter()
        .map(|seen| (seen.message.server.ip().to_string(), seen.kind()))
        .collect();
    for server in [SERVER, lab::ELSEWHERE] {
        for kind in [A, AAAA] {
            assert!(queried.contains(&(server.to_owned(), kind)), "{queried:?}");
        }
    }
    let socket = seen[0].message.socket;
    assert!(seen.iter().all(|seen| seen.message.socket == socket));
    assert_eq!(queries(&seen)[0].message.initiator.as_ref().unwrap().comm, "resolve");
    assert_close(&oracle.agrees(&seen), 2);
}

/// The first query is not answered; the resolver retries after its timeout, with the same id by the same socket.
#[test]
fn a_server_that_is_silent_once_is_queried_again() {
    let test = "a_server_that_is_silent_once_is_queried_again";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let server = Server::start(&lab);
    lab.announce_pod();
    let recording = recorded::wanted();
    // The recording is to hold what glibc does by default: five seconds.
    let options = if recording { "" } else { "options timeout:1\n" };
    lab.resolv_conf(&format!("nameserver {SERVER}\n{options}"));
    let begin = Instant::now();
    assert!(glibc(&lab, "once.test").status.success());
    let at_most = begin.elapsed();
    assert!(server.query_count("once.test", A) >= 2);
    let seen = watch.messages(6);
    let first = queries(&seen);
    assert_eq!(first.len(), 4, "{seen:#?}");
    assert_eq!((first[2].kind(), first[3].kind()), (A, AAAA));
    let waited = Duration::from_nanos(first[2].at.0 - first[0].at.0);
    let at_least = Duration::from_millis(if recording { 4_700 } else { 700 });
    assert!((at_least..=at_most).contains(&waited), "{waited:?} of {at_most:?}");
}

#[test]
fn a_normal_lookup_can_be_recorded() {
    let test = "a_normal_lookup_can_be_recorded";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let _server = Server::start(&lab);
    let sandbox = lab.announce_pod();
    assert!(glibc(&lab, "ok.test").status.success());
    watch.messages(4);
    let pod = lab.inode(&lab.pod());
    let observed = watch.wait("the sandbox's namespace", |events| {
        events.iter().find_map(|event| match &event.body {
            Body::NetnsObserved(netns) if netns.sandbox.0 == sandbox => Some(netns.inode),
            _ => None,
        })
    });
    assert_eq!(observed, pod);
}

#[test]
fn a_truncated_answer_can_be_recorded() {
    let test = "a_truncated_answer_can_be_recorded";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let _server = Server::start(&lab);
    lab.announce_pod();
    assert!(glibc(&lab, "tc.test").status.success());
    watch.messages(8);
}

/// A rule on the node drops the pod's first two queries: the resolver waits, though the server would have answered.
#[test]
fn dropped_queries_stall_a_lookup() {
    let test = "dropped_queries_stall_a_lookup";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let _server = Server::start(&lab);
    lab.announce_pod();
    let recording = recorded::wanted();
    let options = if recording { "" } else { "options timeout:1\n" };
    lab.resolv_conf(&format!("nameserver {SERVER}\n{options}"));
    // Two queries of 53 bytes.
    lab.rules(
        "table ip t { chain c { type filter hook forward priority 0; udp dport 53 quota until 110 bytes drop; }; }",
    );
    assert!(glibc(&lab, "ok.test").status.success());
    let seen = watch.messages(6);
    assert_eq!(queries(&seen).len(), 4, "{seen:#?}");
    // Their names come from /proc/kallsyms, which takes the drops' thread longer than the lookup on a busy machine.
    let drops = watch.dropped(2);
    let dropped: Vec<Option<u16>> = drops.iter().map(|(_, drop)| drop.dns_id).collect();
    let first: Vec<Option<u16>> = queries(&seen)[..2].iter().map(|seen| Some(seen.message.id)).collect();
    assert_eq!(dropped, first);
}

/// A real server, and many lookups: as many messages as tshark counts, none lost.
#[test]
fn dnsmasq_and_unbound_agree_with_tshark() {
    let test = "dnsmasq_and_unbound_agree_with_tshark";
    if !has(test, "dnsmasq") || !has(test, "unbound") {
        return;
    }
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    lab.announce_pod();
    let directory = tempfile::tempdir().unwrap();
    let mut judged = 0;
    for name in ["web.shop.example", "api.shop.example"] {
        let running = Running(match name {
            "web.shop.example" => dnsmasq(&lab),
            _ => unbound(&lab, directory.path()),
        });
        wait_until_answered(&lab, name);
        let before = watch.settled().len();
        let Some(oracle) = Oracle::start(test, &lab) else {
            return;
        };
        for _ in 0..20 {
            assert!(glibc(&lab, name).status.success());
            assert!(!glibc(&lab, "nobody.shop.example").status.success());
        }
        let seen = watch.settled().split_off(before);
        assert!(seen.len() >= 20 * 8, "{} messages", seen.len());
        judged += seen.len();
        assert_close(&oracle.agrees(&seen), 20 * 4);
        drop(running);
    }
    eprintln!("{judged} messages of real servers");
}

/// The server of clusters: what it answers, what it says does not exist, and how long it takes, as tshark sees it.
#[test]
fn coredns_agrees_with_tshark() {
    let test = "coredns_agrees_with_tshark";
    let Some(program) = coredns() else {
        eprintln!("SKIPPED {test}: no CoreDNS; scripts/peer.sh coredns builds it");
        return;
    };
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    lab.announce_pod();
    let directory = tempfile::tempdir().unwrap();
    let (corefile, zone) = (directory.path().join("Corefile"), directory.path().join("zone"));
    let text = "$ORIGIN shop.example.\n@ 60 IN SOA ns hostmaster 1 60 60 60 60\n@ 60 IN NS ns\nns 60 IN A 10.153.2.53\n\
                db 60 IN A 10.153.9.3\ndb 60 IN AAAA fd00:153:9::3\n";
    std::fs::write(&zone, text).unwrap();
    let text = format!("shop.example:53 {{\n  bind {SERVER}\n  file {}\n}}\n", zone.display());
    std::fs::write(&corefile, text).unwrap();
    let arguments = [program.to_str().unwrap(), "-conf", corefile.to_str().unwrap()];
    let _running = Running(quiet(&lab, &arguments));
    wait_until_answered(&lab, "db.shop.example");
    let before = watch.settled().len();
    let Some(oracle) = Oracle::start(test, &lab) else {
        return;
    };
    for _ in 0..20 {
        let found = glibc(&lab, "db.shop.example");
        assert!(
            String::from_utf8_lossy(&found.stdout).contains("10.153.9.3"),
            "{found:?}"
        );
        assert!(!glibc(&lab, "nobody.shop.example").status.success());
    }
    let seen = watch.settled().split_off(before);
    assert_eq!(seen.len(), 20 * 8, "{seen:#?}");
    let answers = || {
        seen.iter()
            .filter_map(|seen| Some((seen.name(), seen.message.answer.as_ref()?)))
    };
    let found = answers().filter(|(name, answer)| *name == "db.shop.example" && answer.addresses.len() == 1);
    assert_eq!(found.count(), 40);
    let missing = answers().filter(|(name, answer)| *name == "nobody.shop.example" && answer.rcode == 3);
    assert_eq!(missing.count(), 40);
    assert_close(&oracle.agrees(&seen), 20 * 4);
}

/// Both questions of glibc at once through a service address. A rule drops one of two, as a lost race does.
#[test]
fn one_of_both_questions_through_a_service_address_is_lost() {
    let test = "one_of_both_questions_through_a_service_address_is_lost";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let _server = Server::start(&lab);
    lab.announce_pod();
    let recording = recorded::wanted();
    let options = if recording { "" } else { "options timeout:1\n" };
    lab.resolv_conf(&format!("nameserver {SERVICE}\n{options}"));
    // AAAA is 28: the last bytes of the question are 0, 28, 0, 1. `ok.test` ends at byte 21 of the message.
    lab.rules(&format!(
        "table ip t {{ chain n {{ type nat hook prerouting priority -100; ip daddr {SERVICE} udp dport 53 dnat to {SERVER}; }}
          chain c {{ type filter hook forward priority 0; udp dport 53 @th,232,32 0x001c0001 quota until 60 bytes drop; }}; }}"
    ));
    assert!(glibc(&lab, "ok.test").status.success());
    let seen = watch.messages(6);
    assert!(
        seen.iter().all(|seen| seen.message.server.ip().to_string() == SERVICE),
        "as the client sees it"
    );
    let (_, drop) = watch.dropped(1).remove(0);
    let lost = queries(&seen)[1];
    assert_eq!((lost.kind(), drop.dns_id), (AAAA, Some(lost.message.id)));
    // Dropped behind the translation: the packet had the backend's address by then.
    assert_eq!(drop.destination.ip().to_string(), SERVER);
}

/// Two threads send by one socket at one instant through a service with two backends: the kernel's own race.
#[test]
fn racing_questions_through_a_service_with_two_backends_are_all_seen() {
    let test = "racing_questions_through_a_service_with_two_backends_are_all_seen";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let _servers = [53, 1053].map(|port| Server::on_port(&lab, port));
    lab.announce_pod();
    lab.rules(&format!(
        "table ip t {{ chain n {{ type nat hook prerouting priority -100;
          ip daddr {SERVICE} udp dport 53 dnat to {SERVER} : numgen random mod 2 map {{ 0 : 53, 1 : 1053 }}; }}; }}"
    ));
    let sockets: Vec<UdpSocket> = (0..ROUNDS).map(|_| socket(&lab, SERVICE)).collect();
    let clones: Vec<UdpSocket> = sockets.iter().map(|socket| socket.try_clone().unwrap()).collect();
    let arrived = Arc::new(AtomicUsize::new(0));
    let race = |sockets: &[UdpSocket], arrived: &AtomicUsize, kind: u16| {
        for (round, socket) in sockets.iter().enumerate() {
            let message = query(kind << 10 | round as u16, "ok.test", kind);
            arrived.fetch_add(1, Ordering::SeqCst);
            while arrived.load(Ordering::SeqCst) < 2 * (round + 1) {
                std::hint::spin_loop();
            }
            socket.send(&message).unwrap();
        }
    };
    let other = std::thread::spawn({
        let arrived = Arc::clone(&arrived);
        move || race(&clones, &arrived, AAAA)
    });
    race(&sockets, &arrived, A);
    other.join().unwrap();
    watch.messages(2 * ROUNDS);
    let seen = watch.settled();
    assert_eq!(queries(&seen).len(), 2 * ROUNDS);
    // What the kernel dropped is what was not answered: it resolves most clashes, and which it does not is its affair.
    let drops = watch.dropped(4 * ROUNDS - seen.len());
    for (_, drop) in &drops {
        eprintln!("dropped {:?} {} in {}", drop.dns_id, drop.reason, drop.function);
    }
    assert_eq!(seen.len() + drops.len(), 4 * ROUNDS);
    let counters = lab.within(&lab.node(), &["conntrack", "-S"]);
    let counters = counters.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    eprintln!(
        "{ROUNDS} races, {} queries dropped; {}",
        drops.len(),
        counters.unwrap_or_default()
    );
}

/// Garbage both ways, as fast as it goes: counted, bounded, survived.
#[test]
fn a_flood_of_garbage_is_counted_and_bounded() {
    let test = "a_flood_of_garbage_is_counted_and_bounded";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let server = inside(&lab.server(), || UdpSocket::bind((SERVER, 53)).unwrap());
    server.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let echo = std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((len, client)) = server.recv_from(&mut buffer) {
            let _ = server.send_to(&buffer[..len], client);
        }
    });
    let before = resident_kib();
    let asking = socket(&lab, SERVER);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut sent = 0;
    for round in 0..30_000_u64 {
        let mut packet = query(round as u16, "ok.test", A);
        for _ in 0..1 + round % 7 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let place = (state >> 33) as usize % packet.len();
            packet[place] = (state >> 24) as u8;
        }
        packet.truncate((state >> 40) as usize % (packet.len() + 1));
        packet.extend(std::iter::repeat_n(0xc0, (state >> 50) as usize % 200));
        sent += u64::from(asking.send(&packet).is_ok());
    }
    echo.join().unwrap();
    std::thread::sleep(Duration::from_millis(1_500));
    let malformed = watch.counted(Unreported::Malformed) + watch.counted(Unreported::Records);
    let lost: u64 = watch
        .all()
        .iter()
        .map(|event| match &event.body {
            Body::Lost { probe, count } if probe == "dns" => *count,
            _ => 0,
        })
        .sum();
    assert!(
        malformed + lost > sent / 2,
        "{malformed} malformed and {lost} lost of {sent} sent"
    );
    let grown = resident_kib().saturating_sub(before);
    eprintln!("{malformed} malformed, {lost} lost of {sent} sent; {grown} KiB more resident");
    // What became events is kept by the test itself.
    assert!(grown < 40_000, "{grown} KiB");
    // And all goes on.
    let _server = Server::start(&lab);
    let before = watch.settled().len();
    assert!(glibc(&lab, "ok.test").status.success());
    watch.messages(before + 4);
}

fn dnsmasq(lab: &Lab) -> Child {
    let program = [
        "dnsmasq",
        "--keep-in-foreground",
        "--no-resolv",
        "--no-hosts",
        "--conf-file=/dev/null",
        "--pid-file=",
        "--user=root",
        "--local=/example/",
        "--host-record=web.shop.example,10.153.9.1,fd00:153:9::1",
        &format!("--listen-address={SERVER}"),
        "--bind-interfaces",
    ];
    quiet(lab, &program)
}

fn unbound(lab: &Lab, directory: &std::path::Path) -> Child {
    let config = directory.join("unbound.conf");
    let text = format!(
        "server:\n  directory: \"{0}\"\n  chroot: \"\"\n  username: \"\"\n  pidfile: \"\"\n  use-syslog: no\n  logfile: \"/dev/null\"\n  \
         do-daemonize: no\n  interface: {SERVER}\n  access-control: 10.153.0.0/16 allow\n  module-config: \"iterator\"\n  \
         local-zone: \"shop.example.\" static\n  local-data: \"api.shop.example. A 10.153.9.2\"\n  \
         local-data: \"api.shop.example. AAAA fd00:153:9::2\"\nremote-control:\n  control-enable: no\n",
        directory.display()
    );
    std::fs::write(&config, text).unwrap();
    quiet(lab, &["unbound", "-d", "-c", config.to_str().unwrap()])
}

/// Where it is installed, or as `scripts/peer.sh coredns` has built it.
fn coredns() -> Option<std::path::PathBuf> {
    sandglass_lab::built::peer("SANDGLASS_COREDNS", "coredns")
}

fn quiet(lab: &Lab, program: &[&str]) -> Child {
    let mut command = lab.command(&lab.server(), program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// A server that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_until_answered(lab: &Lab, name: &str) {
    for _ in 0..100 {
        let asking = socket(lab, SERVER);
        asking.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        if asking.send(&query(1, name, A)).is_ok() && asking.recv(&mut [0; 512]).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    unreachable!("no server answers for {name}");
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().split(' ').next().unwrap().parse().unwrap()
}
