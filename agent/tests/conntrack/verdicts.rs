//! What the correlator makes of what this kernel really did: races that lost a query, connections of several fates.
//!
//! `RECORD_INTO=DIR` makes each test write a recording of it, as golden recordings were made. Does not: play
//! a race: a query counts as lost to one only where the kernel counted it.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Barrier;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use sandglass::sources::clock;
use sandglass::sources::linux::FlowOptions;
use sandglass_correlator::{Correlator, CorrelatorConfig, Finding, Output};
use sandglass_model::network::{ConntrackCounts, FlowChange, Step};
use sandglass_model::time::SECOND;
use sandglass_model::trace::{Cause, Confidence};
use sandglass_model::{Body, Event, Timestamp};

use crate::cluster::{Cluster, PORT, SERVICE};
use crate::lab::client::query;
use crate::lab::recorded::record;
use crate::limit::Limit;
use crate::namespaces::{Namespace, counts, flows, steps};
use crate::tracefs::Tracefs;
use crate::{RACES, connecting};

const A: u16 = 1;
const AAAA: u16 = 28;

fn watched(test: &str) -> Option<Cluster> {
    connecting(test, FlowOptions::LADDER)
}

/// What happened in the cluster, in the order of its happening, and a minute of silence. `of_interest` chooses among DNS
/// messages, drops and entries, of which a race makes thousands.
fn story(cluster: &Cluster, of_interest: impl Fn(&Body) -> bool) -> Vec<Event> {
    let (pod, node) = (cluster.pod.inode, cluster.node.inode);
    let mut events = cluster.watch.events();
    events.retain(|event| match &event.body {
        Body::DnsSeen(message) => message.netns == pod && of_interest(&event.body),
        Body::PacketDropped(drop) => [pod, node].contains(&drop.netns) && of_interest(&event.body),
        Body::FlowSeen(flow) => flow.netns == node && of_interest(&event.body),
        Body::ConnectSeen(step) => step.netns == pod,
        Body::ConntrackCounted(counts) => counts.netns == node,
        Body::TrafficWatched { .. } | Body::ClockAnchored { .. } => true,
        _ => false,
    });
    events.sort_by_key(|event| event.at);
    let last = events.last().map_or(0, |event| event.at.0);
    events.extend((1..=60).map(|second| Event {
        at: Timestamp(last + second * SECOND),
        body: Body::Tick,
    }));
    events
}

/// Records what the pod did and what became of it; flows of others, of which a node has its own, are left out.
pub fn record_all(test: &str, cluster: &Cluster) {
    let service = |body: &Body| match body {
        Body::FlowSeen(flow) => flow.destination.ip().to_string() == SERVICE,
        _ => true,
    };
    record(test, &story(cluster, service));
}

fn findings(events: &[Event]) -> Vec<Finding> {
    let mut correlator = Correlator::new(CorrelatorConfig::default());
    for event in events {
        correlator.handle(event.clone());
    }
    let traffic = |output| match output {
        Output::Finding(traffic) => Some(traffic),
        _ => None,
    };
    correlator.drain().into_iter().filter_map(traffic).collect()
}

/// Answers every query: there is such a name, and nothing of that type.
fn serve(cluster: &Cluster, address: &str) {
    let socket = cluster.backends.within(|| UdpSocket::bind((address, 53)).unwrap());
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((len, client)) = socket.recv_from(&mut buffer) {
            buffer[2] |= 0x80;
            let _ = socket.send_to(&buffer[..len], client);
        }
    });
}

/// Queries both types at once, as glibc does; the ids that were answered, and whether it was at once.
fn ask_both(socket: &UdpSocket, name: &str, ids: [u16; 2], together: &Barrier) -> (Vec<u16>, bool) {
    let queries = [query(ids[0], name, A), query(ids[1], name, AAAA)];
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    together.wait();
    let begin = Instant::now();
    for query in &queries {
        socket.send(query).unwrap();
    }
    let at_once = begin.elapsed() < AT_ONCE;
    (answered(socket, 2), at_once)
}

fn answered(socket: &UdpSocket, count: usize) -> Vec<u16> {
    let mut buffer = [0; 512];
    let answers = (0..count).map_while(|_| {
        socket
            .recv(&mut buffer)
            .ok()
            .map(|_| ())
            .map(|()| [buffer[0], buffer[1]])
    });
    answers.map(u16::from_be_bytes).collect()
}

/// Two clients of the same port query both types at once and are masqueraded to one address: one takes the
/// translated port from the other, whose query the kernel drops. The resolver retries after its timeout.
#[test]
fn a_query_that_lost_a_race_for_a_translated_port_is_blamed_on_conntrack() {
    let test = "a_query_that_lost_a_race_for_a_translated_port_is_blamed_on_conntrack";
    let Some(cluster) = watched(test) else { return };
    cluster.pod.run("ip addr add 10.77.1.3/24 dev v1a");
    cluster.node.run(
        "nft add table ip t; nft 'add chain ip t p { type nat hook postrouting priority 100; }'; nft add rule ip t p masquerade",
    );
    serve(&cluster, "10.77.2.2");
    cluster.watch.wait("the first counts", |events| {
        counts(events, cluster.node.inode).first().copied()
    });
    let lost = (0..RACES).find_map(|number| race_once(&cluster, number));
    let Some((client, name)) = lost else {
        eprintln!("SKIPPED {test}: no race happened in {RACES} tries on this machine");
        return;
    };
    cluster
        .watch
        .wait("the failed insertion, and the second answer", |events| {
            let seen: Vec<Timestamp> = events
                .iter()
                .filter(|event| match &event.body {
                    Body::DnsSeen(message) => message.netns == cluster.pod.inode && message.client == client,
                    _ => false,
                })
                .map(|event| event.at)
                .collect();
            // Of this race: one before it may have failed too, with nothing lost or everything.
            let failed = events.iter().any(|event| match &event.body {
                Body::ConntrackCounted(counts) => {
                    counts.netns == cluster.node.inode && counts.insert_failed > 0 && seen.first() < Some(&event.at)
                }
                _ => false,
            });
            (failed && seen.len() >= 5).then_some(())
        });
    // Who won is of interest too.
    let port = client.port();
    let events = story(&cluster, |body| match body {
        Body::DnsSeen(message) => message.client.port() == port,
        Body::FlowSeen(flow) => flow.source.port() == port,
        _ => true,
    });
    record(test, &events);
    let causes: Vec<(String, Option<Cause>)> = findings(&events)
        .into_iter()
        .filter_map(|traffic| match traffic {
            Finding::Lookup(ended) => Some((ended.detail.name.clone(), ended.detail.cause)),
            _ => None,
        })
        .collect();
    // The winner has no cause to complain.
    assert_eq!(
        causes.iter().filter(|(_, cause)| cause.is_some()).count(),
        1,
        "{causes:?}"
    );
    let (_, cause) = causes.into_iter().find(|(queried, _)| *queried == name).unwrap();
    let cause = cause.unwrap();
    eprintln!("{test}: {cause:?}");
    assert_eq!(cause.cause, "conntrack_race");
    assert!(cause.confidence >= Confidence::Likely, "{cause:?}");
    let shows = |what: &str| cause.evidence.iter().any(|line| line.contains(what));
    assert!(
        shows("insert_failed rose by") && shows("from one socket within"),
        "{cause:?}"
    );
}

/// One race; where exactly one of a client's queries was lost, it is sent again after [`LOST_TIMER`]: which client queried what.
fn race_once(cluster: &Cluster, number: u16) -> Option<(SocketAddr, String)> {
    cluster.pod.within(|| {
        let sockets = [1, 3].map(|host| {
            let socket = UdpSocket::bind(format!("10.77.1.{host}:{}", 20_000 + number)).unwrap();
            socket.connect("10.77.2.2:53").unwrap();
            socket
        });
        let together = Barrier::new(2);
        let lost = std::thread::scope(|scope| {
            let (sockets, together) = (&sockets, &together);
            let asking = [0, 1].map(|side| {
                let name = format!("{}.race{number}.test", ["left", "right"][usize::from(side)]);
                let ids = [0, 1].map(|kind| number * 4 + side * 2 + kind);
                let socket = &sockets[usize::from(side)];
                scope.spawn(move || (ask_both(socket, &name, ids, together), ids, name))
            });
            let mut lost = None;
            for (socket, asking) in sockets.iter().zip(asking) {
                let ((answered, at_once), ids, name) = asking.join().unwrap();
                if let ([came], true) = (&answered[..], at_once) {
                    let (id, kind) = if *came == ids[0] { (ids[1], AAAA) } else { (ids[0], A) };
                    lost = Some((socket, id, kind, name));
                }
            }
            lost
        });
        let (socket, id, kind, name) = lost?;
        std::thread::sleep(LOST_TIMER);
        socket.send(&query(id, &name, kind)).unwrap();
        assert_eq!(answered(socket, 1), [id]);
        Some((socket.local_addr().unwrap(), name))
    })
}

/// A and AAAA of one socket through a service with three backends. Since Linux 5.7 the kernel lets the loser's packet
/// pass: clashes are counted, no query is lost, and nothing is blamed.
#[test]
fn races_of_both_types_of_one_socket_are_resolved_by_this_kernel_and_blamed_on_nothing() {
    let test = "races_of_both_types_of_one_socket_are_resolved_by_this_kernel_and_blamed_on_nothing";
    let Some(cluster) = watched(test) else { return };
    cluster.serve_by_nft("udp", 53);
    for host in 2..5 {
        serve(&cluster, &format!("10.77.2.{host}"));
    }
    cluster.watch.wait("the first counts", |events| {
        counts(events, cluster.node.inode).first().copied()
    });
    let before = cluster.counters();
    let rounds = 200;
    let lost = cluster.pod.within(|| {
        let both = |number: u16| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect((SERVICE, 53)).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            let (name, together) = (format!("race{number}.test"), Barrier::new(2));
            std::thread::scope(|scope| {
                for kind in [A, AAAA] {
                    let (query, socket, together) = (query(kind, &name, kind), &socket, &together);
                    scope.spawn(move || {
                        together.wait();
                        socket.send(&query).unwrap();
                    });
                }
            });
            2 - answered(&socket, 2).len()
        };
        (0..rounds).map(both).sum::<usize>()
    });
    let after = cluster.counters();
    let grown = ["insert_failed", "clash_resolve"].map(|name| after[name] - before[name]);
    eprintln!("{test}: {rounds} races, insert_failed and clash_resolve grew by {grown:?}, {lost} answers lost");
    let last = format!("race{}.test", rounds - 1);
    cluster.watch.wait("the last messages and the counters", |events| {
        let reported = counts(events, cluster.node.inode);
        let seen = events.iter().filter(|event| is_about(event, &last)).count();
        let counted = reported.iter().map(|counts| counts.clash_resolve).sum::<u64>() >= grown[1];
        (seen + lost >= 4 && counted).then_some(())
    });
    let events = story(&cluster, |_| true);
    record(test, &events);
    let lookups: Vec<_> = findings(&events)
        .into_iter()
        .filter_map(|traffic| match traffic {
            Finding::Lookup(ended) => Some(ended.detail),
            _ => None,
        })
        .collect();
    assert_eq!(lookups.len(), usize::from(rounds));
    let blamed = lookups.iter().filter(|lookup| lookup.cause.is_some()).count();
    if grown[0] == 0 {
        assert_eq!((lost, blamed), (0, 0));
    }
    if grown[1] == 0 {
        eprintln!("SKIPPED {test}: no race happened in {rounds} tries on this machine");
    }
}

/// Through a service with three backends; to a port without a listener; to one where a rule drops every SYN.
#[test]
fn connections_have_their_backends_and_their_causes() {
    let test = "connections_have_their_backends_and_their_causes";
    let Some(cluster) = watched(test) else { return };
    cluster.serve_by_nft("tcp", PORT);
    cluster.node.run("nft add table ip d; nft 'add chain ip d f { type filter hook forward priority 0; }'; nft add rule ip d f tcp dport 4998 drop");
    cluster.pod.run("sysctl -q -w net.ipv4.tcp_syn_retries=1");
    for host in 2..5 {
        let listen = || TcpListener::bind(format!("10.77.2.{host}:{PORT}")).unwrap();
        let listener = cluster.backends.within(listen);
        std::thread::spawn(move || while listener.accept().is_ok() {});
    }
    cluster.pod.within(|| {
        for _ in 0..6 {
            TcpStream::connect(format!("{SERVICE}:{PORT}")).unwrap();
        }
        let error = |address: &str| TcpStream::connect(address).unwrap_err().kind();
        assert_eq!(error("10.77.2.2:4999"), ErrorKind::ConnectionRefused);
        assert_eq!(error("10.77.2.2:4998"), ErrorKind::TimedOut);
    });
    cluster.watch.wait("all ends and entries", |events| {
        let (steps, flows) = (steps(events, cluster.pod.inode), flows(events));
        let new = flows
            .iter()
            .filter(|(_, flow)| flow.change == FlowChange::New && flow.is_dnat());
        (steps.len() >= 16 && new.count() >= 6).then_some(())
    });
    // The last step may come before the last drop.
    std::thread::sleep(Duration::from_millis(300));
    let events = story(&cluster, |_| true);
    record(test, &events);
    let mut ends: Vec<String> = findings(&events)
        .iter()
        .filter_map(|traffic| match traffic {
            Finding::Connect(ended) => {
                let connect = &ended.detail;
                let cause = connect.cause.as_ref().map_or("fine", |cause| &cause.cause);
                let backend = connect
                    .backend
                    .map_or_else(String::new, |backend| format!(" at {}", backend.port()));
                Some(format!("{}{backend}: {cause}", connect.remote))
            }
            _ => None,
        })
        .collect();
    ends.sort_unstable();
    ends.dedup();
    let expected = [
        "10.77.2.2:4998: packet_drop".to_owned(),
        "10.77.2.2:4999: connect_refused".to_owned(),
        format!("{SERVICE}:{PORT} at {PORT}: fine"),
    ];
    assert_eq!(ends, expected);
}

/// Another pod fills the node's table. What asks and connects then waits until there is room again, and that is what is
/// blamed: not the server, and no race, though of two queries sent at once one may have found room.
#[test]
fn what_finds_a_full_table_is_blamed_on_it_and_not_on_a_race() {
    let test = "what_finds_a_full_table_is_blamed_on_it_and_not_on_a_race";
    let (Some(cluster), Some(neighbour)) = (watched(test), Namespace::make(test)) else {
        return;
    };
    neighbour.link(&cluster.node, 3);
    neighbour.run("ip route add default via 10.77.3.2");
    cluster.backends.run("sysctl -q -w net.ipv4.icmp_ratelimit=0");
    cluster.serve_by_nft("udp", 53);
    for host in 2..5 {
        serve(&cluster, &format!("10.77.2.{host}"));
    }
    let listener = cluster
        .backends
        .within(|| TcpListener::bind(format!("10.77.2.2:{PORT}")).unwrap());
    std::thread::spawn(move || while listener.accept().is_ok() {});
    cluster.watch.wait("the first counts", |events| {
        counts(events, cluster.node.inode).first().copied()
    });
    let limit = Limit::above_the_machines();
    if limit > MOST_ENTRIES {
        eprintln!("SKIPPED {test}: the machine's own table has {limit} entries");
        return;
    }
    let ends_in_init = Tracefs::connects_of_init(test);
    // The kernel may throw out another entry for a new one, if it finds one near its place: then no query waits.
    let mut began = clock::now();
    let suffered = (0..10).find(|number| {
        // What an earlier try ended with is not taken for the beginning of this one.
        std::thread::sleep(Duration::from_millis(300));
        began = clock::now();
        stall_once(&cluster, &neighbour, limit, *number)
    });
    let name = full_name(suffered.expect("a lookup and a connection that wait, in ten tries"));
    let seen = |events: &[Event]| times(events, |event| is_about(event, &name));
    let counted = |events: &[Event]| {
        let node = cluster.node.inode;
        times(
            events,
            |event| matches!(&event.body, Body::ConntrackCounted(counts) if counts.netns == node),
        )
    };
    // Another probe reports it, and its thread may be the later one. Other tests on the machine connect too.
    let connected = |events: &[Event]| {
        let pod = cluster.pod.inode;
        times(
            events,
            |event| matches!(&event.body, Body::ConnectSeen(connect) if connect.netns == pod && connect.step == Step::Established),
        )
    };
    let is_whole = |events: &[Event]| {
        let seen = seen(events);
        let (first, last) = (*seen.first()?, *seen.last()?);
        let is_after = |times: &[Timestamp], at| times.iter().any(|time| *time > at);
        let holds = seen.len() >= 5 && is_after(&counted(events), last) && is_after(&connected(events), first);
        holds.then_some(())
    };
    let found = cluster.watch.wait_for(Duration::from_secs(20), is_whole);
    if found.is_none() && ends_in_init.is_some_and(|ends| ends.connects_to(PORT) > 0) {
        eprintln!("NOT RUN {test}::init: the end of a connect interrupted process 1");
        return;
    }
    if found.is_none() {
        let events = cluster.watch.events();
        panic!(
            "the answers, the connection and the counters after them did not come: messages at {:?}, connections at {:?}, counters at {:?}",
            seen(&events),
            connected(&events),
            counted(&events)
        );
    }
    let of_pod = |address: SocketAddr| address.ip().to_string() == "10.77.1.1";
    let mut events = story(&cluster, |body| match body {
        Body::FlowSeen(flow) => of_pod(flow.source),
        Body::PacketDropped(drop) => of_pod(drop.source) || of_pod(drop.destination),
        _ => true,
    });
    // Earlier tries are not part of the story; what was counted meanwhile is.
    events.retain(|event| {
        let always = matches!(
            event.body,
            Body::TrafficWatched { .. } | Body::ClockAnchored { .. } | Body::ConntrackCounted(_)
        );
        // The connection may begin before the query.
        always || event.at >= began
    });
    record(test, &events);

    let table = counts(&events, cluster.node.inode);
    let filled = |percent: u64| {
        let at_least = |counts: &&ConntrackCounts| counts.limit == limit && counts.entries * 100 >= limit * percent;
        table.iter().filter(at_least).count()
    };
    // Full, and still nearly so a second later: entries expire meanwhile.
    assert!(filled(95) >= 1 && filled(90) >= 2, "{table:?}");
    let sum = |of: fn(&ConntrackCounts) -> u64| table.iter().map(of).sum::<u64>();
    let (dropped, early) = (sum(|counts| counts.drop), sum(|counts| counts.early_drop));
    eprintln!("{test}: {limit} entries at most, {dropped} dropped, {early} thrown out");
    assert!(dropped > 0 && early > 0);
    assert_eq!(sum(|counts| counts.insert_failed), 0);
    for (what, cause) in causes(&events) {
        let cause = cause.unwrap_or_else(|| panic!("{what} has no cause"));
        assert_eq!(
            (cause.cause.as_str(), cause.confidence),
            ("conntrack_table_full", Confidence::Certain),
            "{what}: {cause:?}"
        );
        assert!(
            cause
                .evidence
                .iter()
                .any(|line| line.contains(&format!(" of {limit} entries"))),
            "{cause:?}"
        );
    }
    assert_eq!(
        causes(&events).len(),
        2,
        "a lookup and a connection: {:#?}",
        findings(&events)
    );
}

fn full_name(number: u16) -> String {
    format!("full{number}.test")
}

/// When those events happened that are so, in the order in which they came.
fn times(events: &[Event], is_so: impl Fn(&Event) -> bool) -> Vec<Timestamp> {
    events
        .iter()
        .filter(|event| is_so(event))
        .map(|event| event.at)
        .collect()
}

fn is_about(event: &Event, name: &str) -> bool {
    match &event.body {
        Body::DnsSeen(message) => message.questions.iter().any(|question| question.name == name),
        _ => false,
    }
}

/// Every lookup and connection that ended, and what was blamed.
fn causes(events: &[Event]) -> Vec<(String, Option<Cause>)> {
    let ended = findings(events).into_iter().filter_map(|traffic| match traffic {
        Finding::Lookup(ended) => Some((ended.detail.name.clone(), ended.detail.cause)),
        Finding::Connect(ended) => Some((ended.detail.remote.to_string(), ended.detail.cause)),
        _ => None,
    });
    ended.collect()
}

/// Fills the table; A and AAAA are queried at once, and a connection is tried. The limit is back shortly before the
/// resolver asks again, and not before the agent has counted twice below it. Returns whether it has, and both had to wait for that:
/// where the kernel threw out enough entries they wait for less, and nothing more is counted.
fn stall_once(cluster: &Cluster, neighbour: &Namespace, limit: u64, number: u16) -> bool {
    let counted = || {
        let counts = counts(&cluster.watch.events(), cluster.node.inode);
        counts.iter().filter(|counts| counts.limit == limit).count()
    };
    let earlier = counted();
    let lowered = Limit::set(limit);
    neighbour.within(|| flood(limit + limit / 4));
    let (room, has_room) = channel();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| cluster.pod.within(|| ask_until_answered(&full_name(number), has_room)));
        let connecting = scope.spawn(|| {
            let begin = Instant::now();
            cluster
                .pod
                .within(|| TcpStream::connect(format!("10.77.2.2:{PORT}")).unwrap());
            begin.elapsed() > Duration::from_millis(900)
        });
        std::thread::sleep(RESOLVER_TIMER - Duration::from_millis(300));
        // Counters are read every second, later on a busy machine, and reported when they grew: where both found room, they
        // do not.
        let deadline = Instant::now() + Duration::from_secs(5);
        while counted() < earlier + 2 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        let stayed_full = counted() >= earlier + 2;
        drop(lowered);
        // Who had its answers does not listen.
        let _ = room.send(());
        let (queried_again, waited) = (asking.join().unwrap(), connecting.join().unwrap());
        stayed_full && queried_again && waited
    })
}

/// Flows without an answer, each a datagram.
fn flood(count: u64) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    for number in 0..count {
        let (host, port) = (2 + number / 20_000, 10_000 + number % 20_000);
        let _ = socket.send_to(b"x", format!("10.77.2.{host}:{port}"));
        if number % 200 == 0 {
            // Slow enough for who listens to conntrack.
            std::thread::sleep(Duration::from_millis(4));
        }
    }
}

/// Both types at once through the service, and what is not answered again after the resolver's time, once the table
/// `has_room`; whether that was necessary.
fn ask_until_answered(name: &str, has_room: Receiver<()>) -> bool {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect((SERVICE, 53)).unwrap();
    let (came, _) = ask_both(&socket, name, [A, AAAA], &Barrier::new(1));
    let missing = [A, AAAA].into_iter().filter(|id| !came.contains(id));
    let missing: Vec<u16> = missing.collect();
    if missing.is_empty() {
        return false;
    }
    std::thread::sleep(RESOLVER_TIMER);
    has_room.recv().unwrap();
    for kind in &missing {
        socket.send(&query(*kind, name, *kind)).unwrap();
    }
    assert_eq!(answered(&socket, missing.len()).len(), missing.len());
    true
}

/// What the verdict takes for one instant is 2 ms.
const AT_ONCE: Duration = Duration::from_millis(1);
/// How long the loser of a race waits for its answer. Counters are read every second, and later on a busy machine; a lookup
/// is over 100 ms after its last answer.
const LOST_TIMER: Duration = Duration::from_secs(2);
/// musl's.
const RESOLVER_TIMER: Duration = Duration::from_millis(2_500);
/// More would take long to fill.
const MOST_ENTRIES: u64 = 50_000;
