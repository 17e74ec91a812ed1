//! The DNS and drop probes on this kernel, with real resolvers, real servers, and tshark as the judge.
//!
//! Needs root and a kernel that lets BPF in; where a program is missing the test says `SKIPPED` and why. What is tested is
//! what becomes of packets as events; lookups are the correlator's, which is tested by recordings.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

mod collected;
mod lab;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use lab::client::{glibc, query, socket};
use lab::oracle::Oracle;
use lab::server::Server;
use lab::watch::{Seen, Watch};
use lab::{Lab, POD, SERVER, SERVER_V6, inside, recorded};
use prometheus_client::metrics::gauge::Gauge;
use sandglass::app::settings::default_source;
use sandglass::health::{Health, ProbeLabel};
use sandglass::sources;
use sandglass::sources::linux::LinuxOptions;
use sandglass_model::Body;
use sandglass_model::network::{DroppedPacket, Transport, Unreported};

const A: u16 = 1;
const AAAA: u16 = 28;

/// Names and types of queries in their order.
fn questions(seen: &[Seen]) -> Vec<(&str, u16)> {
    let queries = seen.iter().filter(|seen| !seen.is_answer());
    queries.map(|seen| (seen.name(), seen.kind())).collect()
}

fn codes(seen: &[Seen], name: &str) -> Vec<u16> {
    let answers = seen.iter().filter(|seen| seen.name() == name);
    answers
        .filter_map(|seen| Some(seen.message.answer.as_ref()?.rcode))
        .collect()
}

fn assert_close(differences: &[u64], at_least: usize) {
    assert!(differences.len() >= at_least, "only {} latencies", differences.len());
    let worst = differences.iter().max().unwrap();
    assert!(*worst < 1_000_000, "{worst} ns apart");
    eprintln!("{} latencies compared, {worst} ns apart at most", differences.len());
}

#[test]
fn a_lookup_of_glibc_is_seen_as_tshark_sees_it() {
    let test = "a_lookup_of_glibc_is_seen_as_tshark_sees_it";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let Some(oracle) = Oracle::start(test, &lab) else {
        return;
    };
    let _server = Server::start(&lab);
    let output = glibc(&lab, "ok.test");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("10.153.9.0"),
        "{output:?}"
    );
    assert!(!glibc(&lab, "none.test").status.success());

    let seen = watch.messages(8);
    assert_eq!(seen.len(), 8, "{seen:#?}");
    assert_eq!(
        questions(&seen),
        [("ok.test", A), ("ok.test", AAAA), ("none.test", A), ("none.test", AAAA)]
    );
    assert_eq!(
        (codes(&seen, "ok.test"), codes(&seen, "none.test")),
        (vec![0, 0], vec![3, 3])
    );
    for one in &seen {
        assert_eq!(one.message.client.ip(), POD.parse::<IpAddr>().unwrap());
        assert_eq!(one.message.server.to_string(), format!("{SERVER}:53"));
        assert_eq!(one.message.transport, Transport::Udp);
        assert_eq!(one.message.initiator.is_some(), !one.is_answer());
        assert_ne!(one.message.socket, 0);
    }
    // A and AAAA of one call leave by one socket, of one process.
    assert_eq!(seen[0].message.socket, seen[1].message.socket);
    let initiator = seen[0].message.initiator.clone().unwrap();
    assert_eq!(initiator.comm, "getent");
    assert!(initiator.process.start_ticks > 0);
    let answer = seen.iter().find(|seen| seen.is_answer() && seen.kind() == A).unwrap();
    assert_eq!(
        answer.message.answer.as_ref().unwrap().addresses,
        ["10.153.9.0".parse::<IpAddr>().unwrap()]
    );
    assert_close(&oracle.agrees(&seen), 4);
}

#[test]
fn lookups_over_ipv6_are_seen() {
    let test = "lookups_over_ipv6_are_seen";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let Some(oracle) = Oracle::start(test, &lab) else {
        return;
    };
    let _server = Server::start(&lab);
    lab.announce_pod();
    lab.resolv_conf(&format!("nameserver {SERVER_V6}\n"));
    assert!(glibc(&lab, "ok.test").status.success());
    let seen = watch.messages(4);
    assert_eq!(seen[0].message.server.to_string(), format!("[{SERVER_V6}]:53"));
    assert_eq!(seen[0].message.client.ip(), lab::POD_V6.parse::<IpAddr>().unwrap());
    assert_close(&oracle.agrees(&seen), 2);
}

/// Both probes look behind a header of destination options.
#[test]
fn extension_headers_of_ipv6_are_looked_behind() {
    let test = "extension_headers_of_ipv6_are_looked_behind";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let _server = Server::start(&lab);
    lab.rules("table ip6 t { chain c { type filter hook forward priority 0; udp dport 53 udp length 27 drop; }; }");
    let asking = socket(&lab, SERVER_V6);
    // Eight bytes: the next header's number, which the kernel fills in, no further eight, and padding.
    let options: [u8; 8] = [0, 0, 1, 4, 0, 0, 0, 0];
    // SAFETY: descriptor, pointer and length are of live values.
    let outcome = unsafe {
        libc::setsockopt(
            asking.as_raw_fd(),
            libc::IPPROTO_IPV6,
            libc::IPV6_DSTOPTS,
            options.as_ptr().cast(),
            options.len() as libc::socklen_t,
        )
    };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
    asking.send(&query(1, "ok.test", AAAA)).unwrap();
    let answer = asking.recv(&mut [0; 512]);
    assert!(answer.is_ok(), "{answer:?}, {:?}, {:?}", watch.settled(), watch.drops());
    // 8 bytes of UDP header, 12 of the message's, 7 of its question: that the rule drops.
    asking.send(&query(2, "x", AAAA)).unwrap();
    let seen = watch.messages(3);
    let ids: Vec<(u16, bool)> = seen.iter().map(|seen| (seen.message.id, seen.is_answer())).collect();
    assert_eq!(ids, [(1, false), (1, true), (2, false)]);
    let (_, drop) = watch.dropped(1).remove(0);
    assert_eq!((drop.dns_id, drop.reason.as_str()), (Some(2), "NETFILTER_DROP"));
    assert_eq!(drop.destination.to_string(), format!("[{SERVER_V6}]:53"));
}

/// Programs of others on the same cgroup stay, and so do ours when theirs go.
#[test]
fn two_agents_do_not_disturb_each_other() {
    let test = "two_agents_do_not_disturb_each_other";
    let Some(lab) = Lab::start(test) else { return };
    let Some(one) = Watch::start(test, &lab) else { return };
    let Some(other) = Watch::start(test, &lab) else { return };
    let _server = Server::start(&lab);
    assert!(glibc(&lab, "ok.test").status.success());
    assert_eq!((one.messages(4).len(), other.messages(4).len()), (4, 4));
    drop(other);
    assert!(glibc(&lab, "ok.test").status.success());
    assert_eq!(one.messages(8).len(), 8);
}

/// The cgroup in which a socket was made is removed below the hook while the socket is in use: it is seen as before, and so are others.
#[test]
fn a_socket_outlives_its_cgroup_in_sight_of_the_probe() {
    const SCRIPT: &str = r#"set -e
        mkdir "$1"; echo $$ > "$1/cgroup.procs"
        exec 3<>/dev/udp/$2/53
        echo $$ > "$1/../cgroup.procs"; rmdir "$1"
        cat "$3" >&3; timeout 10 head -c 12 <&3 > /dev/null"#;
    let test = "a_socket_outlives_its_cgroup_in_sight_of_the_probe";
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let of_v2 = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"));
    let Some(mount) = of_v2.and_then(|line| line.split(' ').nth(1)) else {
        eprintln!("SKIPPED {test}: no cgroup v2 tree");
        return;
    };
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let _server = Server::start(&lab);
    let folder = tempfile::tempdir().unwrap();
    let message = folder.path().join("query");
    std::fs::write(&message, query(0xabcd, "ok.test", A)).unwrap();
    let group = format!("{mount}/sandglass-removed-{}", std::process::id());
    // Not `ip netns exec`, which hides the cgroup tree behind a /sys of its own.
    let output = std::process::Command::new("nsenter")
        .arg(format!("--net=/run/netns/{}", lab.pod()))
        .args(["bash", "-c", SCRIPT, "bash", &group, SERVER])
        .arg(&message)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(!std::path::Path::new(&group).exists());
    let ids: Vec<(u16, bool)> = watch
        .messages(2)
        .iter()
        .map(|seen| (seen.message.id, seen.is_answer()))
        .collect();
    assert_eq!(ids, [(0xabcd, false), (0xabcd, true)]);
    assert!(glibc(&lab, "ok.test").status.success());
    assert_eq!(watch.messages(6).len(), 6);
    assert_eq!(watch.health.lost.count().total, 0);
}

#[test]
fn a_truncated_answer_is_followed_over_tcp() {
    let test = "a_truncated_answer_is_followed_over_tcp";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let server = Server::start(&lab);
    let output = glibc(&lab, "tc.test");
    assert!(output.status.success(), "{output:?}");
    let seen = watch.messages(8);
    assert!(server.query_count("tc.test", A) >= 2);
    let over = |transport, answer| {
        let chosen = seen
            .iter()
            .filter(move |seen| seen.message.transport == transport && seen.is_answer() == answer);
        chosen.cloned().collect::<Vec<Seen>>()
    };
    for answer in over(Transport::Udp, true) {
        let answer = answer.message.answer.unwrap();
        assert!(answer.truncated && answer.records == 0, "{answer:?}");
    }
    let answers = over(Transport::Tcp, true);
    // glibc queries again when its buffer was too small for so many addresses.
    assert!(answers.len() >= 2, "{seen:#?}");
    for answer in answers {
        let answer = answer.message.answer.unwrap();
        assert_eq!(
            (answer.truncated, answer.records, answer.addresses.len()),
            (false, 60, 8)
        );
    }
    for question in over(Transport::Tcp, false) {
        assert_eq!(question.message.initiator.unwrap().comm, "getent");
    }
}

#[test]
fn a_query_that_the_node_drops_is_reported_with_its_reason() {
    let test = "a_query_that_the_node_drops_is_reported_with_its_reason";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let _server = Server::start(&lab);
    lab.rules("table ip t { chain c { type filter hook forward priority 0; udp dport 53 drop; }; }");
    let asking = socket(&lab, SERVER);
    asking.send(&query(0xabcd, "ok.test", A)).unwrap();
    let seen = watch.messages(1);
    assert_eq!(seen[0].message.id, 0xabcd);
    let (at, drop) = watch.dropped(1).remove(0);
    assert!(at > seen[0].at, "dropped after it left");
    assert_eq!((drop.packet, drop.dns_id), (DroppedPacket::Dns, Some(0xabcd)));
    assert_eq!(drop.netns, lab.inode(&lab.node()));
    assert_eq!(drop.reason, "NETFILTER_DROP");
    assert_eq!(drop.source, asking.local_addr().unwrap());
    eprintln!("dropped in {}", drop.function);
}

#[test]
fn a_dropped_syn_is_reported_and_a_lookup_that_works_drops_nothing() {
    let test = "a_dropped_syn_is_reported_and_a_lookup_that_works_drops_nothing";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let _server = Server::start(&lab);
    assert!(glibc(&lab, "ok.test").status.success());
    watch.messages(4);
    assert_eq!(watch.drops(), [], "nothing was dropped");
    lab.rules("table ip t { chain c { type filter hook forward priority 0; tcp dport 8080 drop; }; }");
    let server: SocketAddr = format!("{SERVER}:8080").parse().unwrap();
    let outcome = inside(&lab.pod(), move || {
        TcpStream::connect_timeout(&server, Duration::from_millis(300))
    });
    assert!(outcome.is_err());
    let (_, drop) = watch.dropped(1).remove(0);
    assert_eq!((drop.packet, drop.dns_id), (DroppedPacket::TcpSyn, None));
    assert_eq!((drop.destination, drop.reason.as_str()), (server, "NETFILTER_DROP"));
}

#[test]
fn a_socket_nobody_listens_to_is_no_silence_without_reason() {
    let test = "a_socket_nobody_listens_to_is_no_silence_without_reason";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let asking = socket(&lab, SERVER);
    asking.send(&query(77, "ok.test", A)).unwrap();
    let (_, drop) = watch.dropped(1).remove(0);
    assert_eq!((drop.packet, drop.dns_id), (DroppedPacket::Dns, Some(77)));
    assert_eq!(drop.netns, lab.inode(&lab.server()));
    assert_eq!(drop.reason, "NO_SOCKET");
}

/// In a socket's queue the packet's device is not known any more; its socket is.
#[test]
fn an_answer_that_finds_the_sockets_queue_full_is_reported() {
    let test = "an_answer_that_finds_the_sockets_queue_full_is_reported";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let server = inside(&lab.server(), || UdpSocket::bind((SERVER, 53)).unwrap());
    let asking = socket(&lab, SERVER);
    rustix::net::sockopt::set_socket_recv_buffer_size(&asking, 2048).unwrap();
    let question = query(9, "ok.test", A);
    asking.send(&question).unwrap();
    let (_, client) = server.recv_from(&mut [0; 512]).unwrap();
    for _ in 0..20 {
        server.send_to(&question, client).unwrap();
    }
    let (_, drop) = watch.dropped(1).remove(0);
    assert_eq!(drop.reason, "SOCKET_RCVBUFF");
    assert_eq!((drop.netns, drop.dns_id), (lab.inode(&lab.pod()), Some(9)));
}

#[test]
fn a_flood_of_drops_is_reported_in_part_and_counted_in_full() {
    let test = "a_flood_of_drops_is_reported_in_part_and_counted_in_full";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    lab.rules("table ip t { chain c { type filter hook forward priority 0; udp dport 53 drop; }; }");
    let asking = socket(&lab, SERVER);
    let question = query(9, "ok.test", A);
    for _ in 0..20_000 {
        asking.send(&question).unwrap();
    }
    let of_drops = ProbeLabel {
        probe: "drops".to_owned(),
    };
    let limited = || watch.health.limited.get_or_create(&of_drops).get();
    let deadline = Instant::now() + Duration::from_secs(10);
    while watch.drops().len() as u64 + limited() < 20_000 {
        assert!(
            Instant::now() < deadline,
            "{} reported, {} left out",
            watch.drops().len(),
            limited()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(limited() > 0, "all were reported");
    let (mut announced, mut lost) = (0, 0);
    for event in watch.all() {
        match &event.body {
            Body::Limited { netns, source, .. } => {
                announced += 1;
                assert_ne!(*netns, 0, "the flood of one owner leaves out nobody else's");
                assert_eq!(*source, Some(asking.local_addr().unwrap().ip()));
            }
            Body::Lost { probe, .. } if probe == "drops" => lost += 1,
            _ => {}
        }
    }
    assert!(announced > 0, "what is left out is announced");
    assert_eq!(lost, 0, "what is left out on purpose is not lost");
}

/// What servers do wrong, and what the client's side sees of it.
#[test]
fn misbehaving_servers_are_seen_for_what_they_do() {
    let test = "misbehaving_servers_are_seen_for_what_they_do";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let _server = Server::start(&lab);
    lab.announce_pod();
    let mut late_at_most = Duration::ZERO;
    for (number, name) in (1_u16..).zip([
        "servfail.test",
        "refused.test",
        "badvers.test",
        "late.test",
        "wrongid.test",
        "silent.test",
        "garbage.test",
        "elsewhere.test",
    ]) {
        let asking = socket(&lab, SERVER);
        let begin = Instant::now();
        asking.send(&query(number, name, A)).unwrap();
        let mut answer = [0; 512];
        let waits = if matches!(name, "silent.test" | "elsewhere.test") {
            300
        } else {
            2000
        };
        asking.set_read_timeout(Some(Duration::from_millis(waits))).unwrap();
        let got = asking.recv(&mut answer);
        if name == "late.test" {
            late_at_most = begin.elapsed();
        }
        if name == "wrongid.test" {
            asking.recv(&mut answer).unwrap();
        }
        assert_eq!(got.is_err(), waits == 300, "{name}: {got:?}");
    }
    let seen = watch.settled();
    let answers = |name: &str| -> Vec<(u16, u16)> {
        let answers = seen.iter().filter(|seen| seen.name() == name);
        answers
            .filter_map(|seen| Some((seen.message.id, seen.message.answer.as_ref()?.rcode)))
            .collect()
    };
    assert_eq!(questions(&seen).len(), 8);
    assert_eq!(answers("servfail.test"), [(1, 2)]);
    assert_eq!(answers("refused.test"), [(2, 5)]);
    assert_eq!(answers("badvers.test"), [(3, 16)], "with the upper bits of EDNS");
    assert_eq!(answers("wrongid.test"), [(5 ^ 0xff, 0), (5, 0)]);
    assert_eq!((answers("silent.test"), answers("garbage.test")), (vec![], vec![]));
    // A connected socket does not get what comes from another address: to the client it never came.
    assert_eq!(answers("elsewhere.test"), []);
    assert!(watch.counted(Unreported::Malformed) >= 1, "the garbage");
    let late: Vec<&Seen> = seen.iter().filter(|seen| seen.name() == "late.test").collect();
    let took = Duration::from_nanos(late[1].at.0 - late[0].at.0);
    // The server waits for 300 ms; how much later the machine is, the client's own clock says.
    let late_at_least = Duration::from_millis(295);
    assert!(
        (late_at_least..=late_at_most).contains(&took),
        "{took:?} of {late_at_most:?}"
    );
    if recorded::wanted() {
        // Until the resolver gives up.
        std::thread::sleep(Duration::from_secs(9));
    }
}

#[test]
fn an_answer_from_another_address_reaches_a_socket_that_is_not_connected() {
    let test = "an_answer_from_another_address_reaches_a_socket_that_is_not_connected";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let _server = Server::start(&lab);
    lab.announce_pod();
    let asking = inside(&lab.pod(), || UdpSocket::bind("0.0.0.0:0").unwrap());
    asking.send_to(&query(1, "elsewhere.test", A), (SERVER, 53)).unwrap();
    let mut answer = [0; 512];
    let (_, from) = asking.recv_from(&mut answer).unwrap();
    let seen = watch.messages(2);
    assert_eq!(seen[0].message.server.to_string(), format!("{SERVER}:53"));
    assert_eq!(
        seen[0].message.client.to_string(),
        format!("{POD}:{}", asking.local_addr().unwrap().port())
    );
    assert_eq!(seen[1].message.server, from);
    assert_eq!(seen[1].message.client, seen[0].message.client);
}

/// Three questions in one segment, a fourth one byte by byte, and answers in pieces.
#[test]
fn questions_of_one_tcp_buffer_are_separated() {
    let test = "questions_of_one_tcp_buffer_are_separated";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let Some(oracle) = Oracle::start(test, &lab) else {
        return;
    };
    let _server = Server::start(&lab);
    lab.announce_pod();
    let framed = |id, name| {
        let query = query(id, name, A);
        [&u16::try_from(query.len()).unwrap().to_be_bytes()[..], &query].concat()
    };
    let mut connection = inside(&lab.pod(), || TcpStream::connect((SERVER, 53)).unwrap());
    connection.set_nodelay(true).unwrap();
    let together = [framed(1, "ok.test"), framed(2, "tc.test"), framed(3, "none.test")].concat();
    connection.write_all(&together).unwrap();
    for byte in framed(4, "ok.test") {
        connection.write_all(&[byte]).unwrap();
    }
    for _ in 0..4 {
        let mut prefix = [0; 2];
        connection.read_exact(&mut prefix).unwrap();
        let mut answer = vec![0; usize::from(u16::from_be_bytes(prefix))];
        connection.read_exact(&mut answer).unwrap();
    }
    let seen = watch.messages(8);
    let ids = |answers: bool| -> Vec<u16> {
        let chosen = seen.iter().filter(|seen| seen.is_answer() == answers);
        chosen.map(|seen| seen.message.id).collect()
    };
    assert_eq!((ids(false), ids(true)), (vec![1, 2, 3, 4], vec![1, 2, 3, 4]));
    assert_eq!(watch.drops(), [], "a connection that is set up drops nothing");
    assert_close(&oracle.agrees(&seen), 4);
}

#[test]
fn other_ports_are_watched_where_configured_and_nothing_else_is() {
    let test = "other_ports_are_watched_where_configured_and_nothing_else_is";
    let Some(lab) = Lab::start(test) else { return };
    let options = LinuxOptions {
        dns_ports: vec![53, 1053],
        ..default_source().unwrap()
    };
    let Some(watch) = Watch::with(test, &lab, options) else {
        return;
    };
    let _servers = [1053, 1054].map(|port| Server::on_port(&lab, port));
    let asking = inside(&lab.pod(), || UdpSocket::bind("0.0.0.0:0").unwrap());
    for (id, port) in [(1, 1054), (2, 1053), (3, 1054)] {
        asking.send_to(&query(id, "ok.test", A), (SERVER, port)).unwrap();
        asking.recv(&mut [0; 512]).unwrap();
    }
    let seen = watch.settled();
    let ids: Vec<u16> = seen.iter().map(|seen| seen.message.id).collect();
    assert_eq!(ids, [2, 2]);
    // The server's own sockets talk on that port too: that side is not reported.
    let all = watch.all();
    let servers = lab.inode(&lab.server());
    assert!(
        !all.iter()
            .any(|event| matches!(&event.body, Body::DnsSeen(message) if message.netns == servers))
    );
}

#[test]
fn a_datagram_longer_than_the_room_for_it_is_read_as_far_as_it_goes() {
    let test = "a_datagram_longer_than_the_room_for_it_is_read_as_far_as_it_goes";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::start(test, &lab) else { return };
    let server = inside(&lab.server(), || UdpSocket::bind((SERVER, 53)).unwrap());
    let asking = socket(&lab, SERVER);
    asking.send(&query(9, "ok.test", A)).unwrap();
    let (_, client) = server.recv_from(&mut [0; 512]).unwrap();
    // 300 addresses: 4.8 kB, which is sent as four fragments.
    let mut answer = query(9, "ok.test", A);
    answer[2..8].copy_from_slice(&[0x81, 0x80, 0, 1, 1, 44]);
    for _ in 0..300 {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, 1]);
    }
    server.send_to(&answer, client).unwrap();
    let answer = watch.messages(2).remove(1).message.answer.unwrap();
    assert_eq!((answer.records, answer.addresses.len()), (300, 8));
}

#[test]
fn traffic_is_announced_with_the_nodes_own_namespace() {
    let test = "traffic_is_announced_with_the_nodes_own_namespace";
    let Some(lab) = Lab::start(test) else { return };
    let Some(watch) = Watch::with(test, &lab, default_source().unwrap()) else {
        return;
    };
    let watched = watch.wait("the announcement", |events| {
        events.iter().find_map(|event| match event.body {
            Body::TrafficWatched { node_netns } => Some(node_netns),
            _ => None,
        })
    });
    // Tests run in the node's own namespace, where they may observe it at all.
    assert_eq!(watched, std::fs::metadata("/proc/self/ns/net").unwrap().ino());
    // Off means off.
    drop(watch);
    let options = LinuxOptions {
        dns: false,
        drops: false,
        ..default_source().unwrap()
    };
    let health = Health::default();
    let (sender, _receiver) = sources::channel(64, Gauge::default());
    let source = sources::linux::start(options, sender, health.clone()).unwrap();
    let off = health.probes().into_iter().filter(|probe| !probe.attached);
    let hints: Vec<String> = off.map(|probe| probe.hint).collect();
    assert_eq!(hints, ["set probes.drops to true", "set probes.dns to true"]);
    drop(source);
}
