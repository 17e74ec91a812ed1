//! What holds for every history: order within the window does not matter, a record may come twice, any record may be
//! missing, input may end anywhere, and whatever comes, nothing panics and everything stays bounded.

#![expect(
    clippy::expect_used,
    reason = "the history builder is test code outside of test functions"
)]

use std::collections::{BTreeMap, BTreeSet};

use std::net::{IpAddr, SocketAddr};

use proptest::collection::vec;
use proptest::prelude::*;
use sandglass_correlator::{Config, Correlator, Output, Reorder, Traffic, TrafficConfig};
use sandglass_model::cni::{CniError, NetConf, NetworkList, PodIdentity};
use sandglass_model::event::{Exec, Exit, ExitStatus, Fork, Netns, PluginIo, SandboxDescription};
use sandglass_model::network::{
    Answer, Asker, ConnectFailure, ConnectStep, ConntrackCounts, DnsMessage, DroppedPacket, Flow, FlowChange,
    PacketDrop, Question, Step, Transport,
};
use sandglass_model::time::{MILLISECOND, SECOND};
use sandglass_model::windows::{
    ActivityChange, ActivityStep, InterfaceStep, LookupChange, LookupStep, ObjectKey, RuntimeSaid, RuntimeSpan,
    Service, SiloChange, SiloStep,
};
use sandglass_model::{Body, Detail, Event, ProcessKey, SandboxId, SpanId, Timestamp, Trace, TraceId};

// === playing ===

/// What came out, in a form that does not depend on the order of traces that end at the same time.
#[derive(Debug, PartialEq)]
struct Outcome {
    closed: Vec<Trace>,
    orphan: u64,
}

fn config() -> Config {
    Config {
        boot_id: "boot".to_owned(),
        max_traces: 16,
        max_processes: 64,
        max_spans: 24,
        max_remembered: 16,
        traffic: TrafficConfig {
            max_lookups: 64,
            max_connects: 64,
            max_flows: 32,
            ..TrafficConfig::default()
        },
        ..Config::default()
    }
}

/// Plays events in the order given and checks everything that must hold at any time.
fn play(config: &Config, events: &[Event]) -> Outcome {
    let mut correlator = Correlator::new(config.clone());
    let mut ended: BTreeMap<SpanId, Option<Timestamp>> = BTreeMap::new();
    let mut closed: Vec<Trace> = Vec::new();
    let mut created: BTreeSet<TraceId> = BTreeSet::new();
    let mut told: BTreeSet<TraceId> = BTreeSet::new();
    let (mut creations, mut sandboxes) = (0, 0);
    let mut take = |correlator: &mut Correlator| {
        for id in correlator.take_changed() {
            assert!(correlator.open_trace(id).is_some());
        }
        for output in correlator.drain() {
            match output {
                Output::Ended(span) => {
                    let twice = ended.insert(span.id, Some(span.end));
                    assert!(twice.is_none(), "a span ended twice");
                }
                Output::Closed(trace) => {
                    assert_eq!(trace.check(), Ok(()));
                    assert!(trace.closed);
                    assert!(trace.spans.len() <= config.max_spans);
                    sandboxes += usize::from(matches!(trace.root().detail, Detail::Sandbox(_)));
                    assert!(trace.spans.iter().all(|span| span.events.len() <= 64));
                    for span in &trace.spans {
                        assert_eq!(ended.remove(&span.id).expect("a span did not end"), span.end);
                        assert!(span.end.is_some());
                    }
                    closed.push(Trace::clone(&trace));
                }
                Output::Created(trace) => {
                    assert_eq!(trace.check(), Ok(()));
                    assert!(trace.spans.iter().skip(1).take(1).all(|create| create.end.is_some()));
                    creations += 1;
                    created.insert(trace.id);
                }
                Output::Traffic(Traffic::Lookup(ended)) => {
                    assert!(ended.start <= ended.end && ended.detail.result.is_some());
                    told.extend(ended.trace);
                }
                Output::Traffic(Traffic::Connect(ended)) => {
                    assert!(ended.start <= ended.end);
                    told.extend(ended.trace);
                }
                Output::Asked(_) | Output::Known { .. } | Output::Traffic(_) => {}
            }
        }
        let sizes = correlator.sizes();
        assert!(sizes.traces <= config.max_traces, "{sizes:?}");
        assert!(sizes.processes <= config.max_processes, "{sizes:?}");
        assert!(sizes.sandboxes <= config.max_remembered, "{sizes:?}");
        assert!(sizes.pods <= config.max_remembered, "{sizes:?}");
        assert!(sizes.lookups <= config.traffic.max_lookups, "{sizes:?}");
        assert!(sizes.connects <= config.traffic.max_connects, "{sizes:?}");
        assert!(sizes.flows <= config.traffic.max_flows, "{sizes:?}");
        assert!(sizes.owners <= 3 * config.max_remembered, "{sizes:?}");
        assert!(sizes.journeys <= 256, "{sizes:?}");
        assert!(sizes.windows <= 5 * config.max_remembered + 6_144, "{sizes:?}");
        let open = sizes.traces + sizes.lookups + sizes.connects + sizes.journeys;
        // Lookups of Windows have timers, and no trace of their own.
        let traffic = config.windows && open == 0;
        assert!(
            traffic || (open == 0) == correlator.next_deadline().is_none(),
            "a timer for everything that is open"
        );
    };
    for event in events {
        correlator.handle(event.clone());
        take(&mut correlator);
        for trace in correlator.with_running() {
            assert_eq!(trace.check(), Ok(()));
            assert!(trace.spans.len() <= config.max_spans);
            let ids: BTreeSet<_> = trace.spans.iter().map(|span| span.id).collect();
            assert_eq!(ids.len(), trace.spans.len(), "span ids are unique");
        }
    }
    for trace in correlator.open() {
        assert_eq!(trace.check(), Ok(()));
    }
    let orphan = correlator.counters().orphan;
    correlator.finish();
    take(&mut correlator);
    assert_eq!(correlator.open().count(), 0);
    assert!(ended.is_empty(), "spans of no trace: {ended:?}");
    assert_eq!(creations, sandboxes, "every creation is told once");
    let ids: BTreeSet<TraceId> = closed.iter().map(|trace| trace.id).collect();
    assert!(
        created.is_subset(&ids) && told.is_subset(&ids),
        "told to be seen in a trace that never came"
    );
    closed.sort_by_key(|trace| (trace.start(), trace.id));
    Outcome { closed, orphan }
}

/// Plays events through the reorder stage.
fn play_arrivals(events: &[Event], window_ns: u64) -> Outcome {
    let mut reorder = Reorder::new(window_ns);
    let mut ordered = Vec::with_capacity(events.len());
    for event in events {
        reorder.push(event.clone());
        while let Some(next) = reorder.pop() {
            assert!(!next.late, "nothing is shuffled beyond the window");
            ordered.push(next.event);
        }
    }
    while let Some(next) = reorder.flush() {
        ordered.push(next.event);
    }
    play(&config(), &ordered)
}

// === histories that make sense ===

/// One sandbox's life, as numbers to make it from.
#[derive(Clone, Debug)]
struct Life {
    begin_ms: u64,
    plugins: Vec<(u8, u8, bool)>,
    steps: bool,
    removed: bool,
    /// When after its creation, what, and with which of a few names.
    talks: Vec<(u64, u8, u8)>,
}

fn life() -> impl Strategy<Value = Life> {
    (
        0u64..3_000,
        vec((0u8..4, 1u8..30, prop::bool::weighted(0.2)), 1..4),
        any::<bool>(),
        any::<bool>(),
        vec((0u64..4_000, 0u8..10, 0u8..3), 0..6),
    )
        .prop_map(|(begin_ms, plugins, steps, removed, talks)| Life {
            begin_ms,
            plugins,
            steps,
            removed,
            talks,
        })
}

struct History {
    events: Vec<Event>,
    pids: u32,
    taken: BTreeSet<u64>,
    ports: u16,
}

const RUNTIME: ProcessKey = ProcessKey { pid: 1, start_ticks: 1 };

impl History {
    /// Every event has a time of its own: records of one time keep their order of arrival, which a shuffle changes.
    fn push(&mut self, at_ns: u64, body: Body) {
        let mut at = at_ns;
        while !self.taken.insert(at) {
            at += 1;
        }
        self.events.push(Event {
            at: Timestamp(at),
            body,
        });
    }

    fn process(&mut self, at_ns: u64) -> ProcessKey {
        self.pids += 1;
        ProcessKey::new(self.pids, at_ns)
    }

    fn exec(&mut self, at_ns: u64, parent: ProcessKey, path: &str, args: &[&str], env: &[(&str, &str)]) -> ProcessKey {
        let process = self.process(at_ns);
        if parent != RUNTIME {
            self.push(at_ns, Body::ProcessForked(Fork { process, parent }));
        }
        self.push(at_ns + 1_000, exec(process, parent, path, args, env));
        process
    }

    fn exit(&mut self, at_ns: u64, process: ProcessKey, code: i32) {
        let how = ExitStatus::Code(code);
        self.push(at_ns, Body::ProcessExited(Exit { process, how }));
    }

    /// One chain, from `at` on; returns when it ended.
    fn chain(&mut self, sandbox: &str, verb: &str, mut at: u64, plugins: &[(u8, u8, bool)]) -> u64 {
        let netns = format!("/run/netns/{sandbox}");
        let args = format!("K8S_POD_NAMESPACE=n;K8S_POD_NAME=p-{}", sandbox.len() % 3);
        let env = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", sandbox),
            ("CNI_NETNS", &netns),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", &args),
            ("CNI_PATH", "/opt/cni/bin"),
        ];
        for (index, &(children, took, fails)) in plugins.iter().enumerate() {
            let path = format!("/opt/cni/bin/plugin{index}");
            let plugin = self.exec(at, RUNTIME, &path, &[], &env);
            self.push(at + MILLISECOND / 2, spoke(plugin, fails));
            let mut child_at = at + MILLISECOND;
            for child in 0..children {
                let path = ["/opt/cni/bin/ipam", "/sbin/iptables"][usize::from(child % 2)];
                let process = self.exec(child_at, plugin, path, &["-w"], &env);
                child_at += 2 * MILLISECOND;
                self.exit(child_at, process, i32::from(child == 3));
            }
            at = child_at + u64::from(took) * MILLISECOND;
            self.exit(at, plugin, i32::from(fails));
            at += MILLISECOND;
            if fails {
                break;
            }
        }
        at
    }
}

/// The node's own network namespace.
const NODE: u64 = 900;

/// One end of a conversation.
#[derive(Clone, Copy, Debug)]
struct Line {
    netns: u64,
    client: SocketAddr,
    server: SocketAddr,
    transport: Transport,
}

fn line(netns: u64, port: u16, server: ([u8; 4], u16), transport: Transport) -> Line {
    Line {
        netns,
        client: SocketAddr::from(([10, 0, 0, netns as u8], port)),
        server: SocketAddr::from(server),
        transport,
    }
}

fn asker() -> Option<Asker> {
    Some(Asker {
        process: ProcessKey { pid: 7, start_ticks: 7 },
        comm: "app".to_owned(),
    })
}

fn dns(line: Line, id: u16, name: &str, kind: u16, answer: Option<Answer>) -> Body {
    Body::DnsSeen(Box::new(DnsMessage {
        netns: line.netns,
        socket: u64::from(line.client.port()),
        transport: line.transport,
        client: line.client,
        server: line.server,
        asker: asker().filter(|_| answer.is_none()),
        id,
        questions: vec![Question {
            name: name.to_owned(),
            kind,
        }],
        answer,
    }))
}

fn said(rcode: u16, which: u8) -> Option<Answer> {
    let addresses: Vec<IpAddr> = vec![IpAddr::from([10, 1, 0, which])];
    Some(Answer {
        rcode,
        truncated: false,
        records: u16::from(rcode == 0),
        addresses: if rcode == 0 { addresses } else { Vec::new() },
    })
}

fn step(line: Line, step: Step) -> Body {
    Body::ConnectSeen(Box::new(ConnectStep {
        netns: line.netns,
        socket: u64::from(line.client.port()),
        local: line.client,
        remote: line.server,
        asker: asker().filter(|_| step == Step::Started),
        step,
        retransmits: 0,
    }))
}

fn flow(line: Line, change: FlowChange) -> Body {
    Body::FlowSeen(Box::new(Flow {
        netns: NODE,
        id: u32::from(line.client.port()),
        change,
        protocol: if line.transport == Transport::Udp { 17 } else { 6 },
        source: line.client,
        destination: line.server,
        reply_source: SocketAddr::from(([10, 2, 0, 1], 53)),
        reply_destination: line.client,
        replied: false,
    }))
}

fn dropped(line: Line, packet: DroppedPacket, id: Option<u16>) -> Body {
    Body::PacketDropped(Box::new(PacketDrop {
        netns: NODE,
        packet,
        source: line.client,
        destination: SocketAddr::from(([10, 2, 0, 2], 53)),
        dns_id: id,
        reason: "NETFILTER_DROP".to_owned(),
        function: String::new(),
    }))
}

fn counted(entries: u64, insert_failed: u64) -> Body {
    Body::ConntrackCounted(Box::new(ConntrackCounts {
        netns: NODE,
        entries,
        limit: 1_000,
        insert_failed,
        ..ConntrackCounts::default()
    }))
}

impl History {
    /// Something a sandbox does with its network. Every record is whole: what is asked is answered, or never is.
    fn talk(&mut self, netns: u64, at: u64, what: u8, which: u8) {
        self.ports += 3;
        let port = self.ports;
        let service = ([10, 96, 0, 10], 53);
        let udp = line(netns, port, service, Transport::Udp);
        let tcp = line(netns, port + 1, ([10, 1, 0, which], 80), Transport::Tcp);
        let name = ["api.shop", "web", "db.example"][usize::from(which)];
        match what {
            0 | 1 => {
                self.push(at, dns(udp, port, name, 1, None));
                self.push(at + 20_000, dns(udp, port + 1, name, 28, None));
                self.push(at + MILLISECOND / 10, flow(udp, FlowChange::New));
                self.push(at + MILLISECOND, dns(udp, port + 1, name, 28, said(0, which)));
                self.push(at + 2 * MILLISECOND, dns(udp, port, name, 1, said(0, which)));
                if what == 1 {
                    self.push(at + 3 * MILLISECOND, step(tcp, Step::Started));
                    self.push(at + 4 * MILLISECOND, step(tcp, Step::Established));
                }
            }
            2 | 3 => {
                self.push(at, dns(udp, port, name, 1, None));
                self.push(at + 20_000, dns(udp, port + 1, name, 28, None));
                if what == 3 {
                    self.push(at + 30_000, dropped(udp, DroppedPacket::Dns, Some(port)));
                }
                self.push(at + MILLISECOND, dns(udp, port + 1, name, 28, said(0, which)));
                self.push(at + 5 * SECOND, dns(udp, port, name, 1, None));
                self.push(at + 5 * SECOND + MILLISECOND, dns(udp, port, name, 1, said(0, which)));
            }
            4 => self.push(at, dns(udp, port, name, 1, None)),
            5 => {
                for (number, suffix) in [".a.local", ".local", ""].into_iter().enumerate() {
                    let udp = line(netns, port + number as u16, service, Transport::Udp);
                    let at = at + number as u64 * 2 * MILLISECOND;
                    let name = format!("{name}{suffix}");
                    self.push(at, dns(udp, port, &name, 1, None));
                    let rcode = if suffix.is_empty() { 0 } else { 3 };
                    self.push(at + MILLISECOND, dns(udp, port, &name, 1, said(rcode, which)));
                }
            }
            6 => {
                self.push(at, step(tcp, Step::Started));
                self.push(at + MILLISECOND / 10, flow(tcp, FlowChange::New));
                self.push(at + MILLISECOND, step(tcp, Step::Failed(ConnectFailure::Refused)));
                self.push(at + 300 * MILLISECOND, flow(tcp, FlowChange::Destroyed));
            }
            7 => {
                self.push(at, step(tcp, Step::Started));
                self.push(at + MILLISECOND / 10, dropped(tcp, DroppedPacket::TcpSyn, None));
                self.push(at + SECOND, step(tcp, Step::Established));
            }
            8 => {
                let cut = said(0, which).map(|answer| Answer {
                    truncated: true,
                    ..answer
                });
                let over_tcp = line(netns, port + 2, service, Transport::Tcp);
                self.push(at, dns(udp, port, name, 16, None));
                self.push(at + MILLISECOND, dns(udp, port, name, 16, cut));
                self.push(at + 2 * MILLISECOND, dns(over_tcp, port, name, 16, None));
                self.push(at + 3 * MILLISECOND, dns(over_tcp, port, name, 16, said(0, which)));
            }
            _ => {
                self.push(at, dns(udp, port, name, 1, None));
                self.push(at + MILLISECOND, dns(udp, port, name, 1, said(2, which)));
            }
        }
    }
}

fn exec(process: ProcessKey, parent: ProcessKey, path: &str, args: &[&str], env: &[(&str, &str)]) -> Body {
    Body::ProcessExecuted(Box::new(Exec {
        process,
        parent,
        parent_comm: if parent == RUNTIME { "containerd" } else { "" }.into(),
        path: path.into(),
        args: std::iter::once(path).chain(args.iter().copied()).collect(),
        args_truncated: false,
        env: env.iter().copied().collect(),
        cgroup: String::new(),
        netns: 0,
        running: false,
    }))
}

fn spoke(process: ProcessKey, fails: bool) -> Body {
    Body::PluginSpoke(Box::new(PluginIo {
        process,
        netconf: Some(NetConf {
            network: "pods".to_owned(),
            ..NetConf::default()
        }),
        error: fails.then(|| CniError {
            code: 11,
            msg: "later".to_owned(),
            details: String::new(),
        }),
        addresses: Vec::new(),
    }))
}

/// The histories of several sandboxes, in order of time.
fn history(lives: &[Life]) -> Vec<Event> {
    let mut history = History {
        events: Vec::new(),
        pids: 100,
        taken: BTreeSet::new(),
        ports: 1_000,
    };
    history.push(SECOND / 2, Body::TrafficWatched { node_netns: NODE });
    for second in 1..60 {
        history.push(second * SECOND, counted(second, u64::from(second % 3 == 0)));
    }
    for (index, life) in lives.iter().enumerate() {
        let sandbox = format!("{}{index}", "s".repeat(1 + index));
        let at = SECOND + life.begin_ms * MILLISECOND;
        history.push(
            at - MILLISECOND,
            Body::SandboxDescribed(Box::new(SandboxDescription {
                sandbox: SandboxId("elder".to_owned()),
                identity: PodIdentity::default(),
                created_unix_ns: 0,
                ready: true,
                preexisting: true,
            })),
        );
        let mut end = history.chain(&sandbox, "ADD", at, &life.plugins);
        history.push(
            at + 2 * MILLISECOND,
            Body::NetnsObserved(Box::new(Netns {
                sandbox: SandboxId(sandbox.clone()),
                path: String::new(),
                inode: NODE + 1 + index as u64,
                created: Some(Timestamp(at - 5 * MILLISECOND)),
            })),
        );
        if life.steps {
            for step in ["create", "start"] {
                let runc = history.exec(end + MILLISECOND, RUNTIME, "/usr/bin/runc", &[step, &sandbox], &[]);
                end += 9 * MILLISECOND;
                history.exit(end, runc, 0);
            }
        }
        for &(after_ms, what, which) in &life.talks {
            history.talk(NODE + 1 + index as u64, end + after_ms * MILLISECOND, what, which);
        }
        if life.removed {
            history.chain(&sandbox, "DEL", end + SECOND, &life.plugins);
        }
    }
    history.events.sort_by_key(|event| event.at);
    let last = history.events.last().map_or(Timestamp(0), |event| event.at);
    history.push(last.0 + 400 * SECOND, Body::Tick);
    history.events
}

fn histories() -> impl Strategy<Value = Vec<Event>> {
    vec(life(), 1..6).prop_map(|lives| history(&lives))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_order_of_arrival_within_the_window_does_not_matter(
        events in histories(),
        delays in vec(0u64..20 * MILLISECOND, 64),
    ) {
        let expected = play(&config(), &events);
        prop_assert!(!expected.closed.is_empty());
        let mut arrivals: Vec<(u64, Event)> = events
            .iter()
            .enumerate()
            .map(|(index, event)| (event.at.0 + delays[index % delays.len()], event.clone()))
            .collect();
        arrivals.sort_by_key(|(arrival, _)| *arrival);
        let shuffled: Vec<Event> = arrivals.into_iter().map(|(_, event)| event).collect();
        prop_assert_eq!(play_arrivals(&shuffled, 20 * MILLISECOND), expected);
    }

    #[test]
    fn a_history_that_is_whole_is_complete_and_without_orphans(events in histories()) {
        let outcome = play(&Config { max_spans: 512, max_traces: 512, max_processes: 4_096, max_remembered: 512, ..config() }, &events);
        prop_assert_eq!(outcome.orphan, 0);
        prop_assert!(outcome.closed.iter().all(|trace| !trace.incomplete));
    }

    #[test]
    fn input_may_end_anywhere(events in histories(), cut in any::<prop::sample::Index>()) {
        let (before, after) = events.split_at(cut.index(events.len()));
        play(&config(), before);
        // An agent that starts then sees only the rest.
        play(&config(), after);
    }

    #[test]
    fn a_record_that_comes_twice_changes_nothing(
        events in histories(),
        which in any::<prop::sample::Index>(),
        later in 0usize..6,
    ) {
        let expected = play(&config(), &events);
        let index = which.index(events.len());
        // Told twice at once, or again a little later: by two sources, never seconds after.
        let mut doubled = events.clone();
        let soon = events[index].at.plus(100 * MILLISECOND);
        let place = (index + 1 + later).min(events.partition_point(|event| event.at < soon));
        doubled.insert(place, events[index].clone());
        prop_assert_eq!(play(&config(), &doubled), expected, "{:?}", events[index]);
    }

    #[test]
    fn a_record_that_is_missing_breaks_nothing(events in histories(), which in any::<prop::sample::Index>()) {
        let mut rest = events;
        rest.remove(which.index(rest.len()));
        play(&config(), &rest);
    }

    #[test]
    fn a_record_that_was_lost_marks_what_was_open(events in histories(), which in any::<prop::sample::Index>()) {
        let index = which.index(events.len());
        let mut lossy = events;
        lossy[index].body = Body::Lost { probe: "exec".to_owned(), count: 1 };
        let at = lossy[index].at;
        let outcome = play(&config(), &lossy);
        for trace in &outcome.closed {
            // Open then for certain: begun before, and a part of it ended after. A sandbox that waits for its network
            // and a journey have no processes.
            let part = match &trace.root().detail {
                Detail::Sandbox(_) => trace.spans.get(1).map_or(trace.root(), |create| create),
                Detail::Journey(_) => continue,
                _ => trace.root(),
            };
            if part.start < at && part.end > Some(at) {
                prop_assert!(trace.incomplete);
            }
        }
    }
}

// === soup ===

fn soup_process() -> impl Strategy<Value = ProcessKey> {
    (1u32..9, 0u64..3).prop_map(|(pid, start_ticks)| ProcessKey { pid, start_ticks })
}

fn soup_exec() -> impl Strategy<Value = Body> {
    let path = prop::sample::select(vec![
        "/opt/cni/bin/bridge",
        "/opt/cni/bin/host-local",
        "/bin/sh",
        "",
        "runc",
        "/usr/bin/conmon",
        "/usr/bin/containerd-shim-runc-v2",
    ]);
    let args = vec(
        prop::sample::select(vec!["create", "start", "-id", "-c", "a", "b", "--cid=a"]),
        0..4,
    );
    let env = vec(
        (
            prop::sample::select(vec![
                "CNI_COMMAND",
                "CNI_CONTAINERID",
                "CNI_IFNAME",
                "CNI_PATH",
                "TRACEPARENT",
            ]),
            prop::sample::select(vec![
                "ADD",
                "ADD",
                "DEL",
                "GC",
                "a",
                "b",
                "eth0",
                "/opt/cni/bin",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            ]),
        ),
        0..6,
    );
    (soup_process(), soup_process(), path, args, env, any::<bool>()).prop_map(
        |(process, parent, path, args, env, running)| {
            let mut body = exec(process, parent, path, &args, &env);
            if let Body::ProcessExecuted(exec) = &mut body {
                exec.running = running;
                exec.parent_comm = ["containerd", "crio", ""][parent.pid as usize % 3].into();
                // Otherwise few would be plugins.
                if process.pid % 2 == 0 {
                    let container = ["a", "b", ""][process.start_ticks as usize];
                    let first = [("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", container)];
                    exec.env = first.into_iter().chain(exec.env.iter()).collect();
                }
            }
            body
        },
    )
}

fn soup_body() -> impl Strategy<Value = Body> {
    let how = prop_oneof![
        (0i32..3).prop_map(ExitStatus::Code),
        (1i32..70).prop_map(ExitStatus::Signal),
        Just(ExitStatus::Unknown)
    ];
    let sandbox = prop::sample::select(vec!["a", "b", "c", ""]).prop_map(|id| SandboxId(id.to_owned()));
    prop_oneof![
        6 => soup_exec(),
        3 => (soup_process(), soup_process()).prop_map(|(process, parent)| Body::ProcessForked(Fork { process, parent })),
        4 => (soup_process(), how).prop_map(|(process, how)| Body::ProcessExited(Exit { process, how })),
        1 => (soup_process(), any::<bool>()).prop_map(|(process, fails)| spoke(process, fails)),
        1 => (sandbox.clone(), any::<u64>(), any::<bool>()).prop_map(|(sandbox, created_unix_ns, preexisting)| {
            Body::SandboxDescribed(Box::new(SandboxDescription {
                sandbox,
                identity: PodIdentity::default(),
                created_unix_ns,
                ready: true,
                preexisting,
            }))
        }),
        2 => (sandbox, prop::option::of(0u64..400 * SECOND), 0u64..4).prop_map(|(sandbox, created, inode)| {
            Body::NetnsObserved(Box::new(Netns { sandbox, path: String::new(), inode, created: created.map(Timestamp) }))
        }),
        1 => vec(vec(prop::sample::select(vec!["bridge", "host-local", "sh"]), 0..3), 0..3).prop_map(|lists| {
            Body::NetworksConfigured {
                networks: lists
                    .into_iter()
                    .map(|plugins| NetworkList {
                        network: plugins.concat(),
                        version: String::new(),
                        plugins: plugins.into_iter().map(str::to_owned).collect(),
                    })
                    .collect(),
            }
        }),
        1 => any::<u64>().prop_map(|unix_ns| Body::ClockAnchored { unix_ns }),
        1 => (any::<u64>(), prop::sample::select(vec!["exec", "dns"])).prop_map(|(count, probe)| {
            Body::Lost { probe: probe.to_owned(), count }
        }),
        1 => (0u64..4).prop_map(|node_netns| Body::TrafficWatched { node_netns }),
        12 => soup_traffic(),
        1 => Just(Body::Tick),
    ]
}

fn soup_line() -> impl Strategy<Value = Line> {
    (0u64..4, 0u16..4, 0u8..3, any::<bool>()).prop_map(|(netns, port, server, tcp)| {
        let transport = if tcp { Transport::Tcp } else { Transport::Udp };
        line(netns, port, ([10, 1, 0, server], 53), transport)
    })
}

fn soup_dns() -> impl Strategy<Value = Body> {
    let name = prop::sample::select(vec!["", "a", "a.b", "a.b.c", "a.c", "b", ".", "a..b"]);
    let answer = prop::option::of((0u16..6, any::<bool>(), 0u8..3));
    (
        soup_line(),
        0u16..3,
        name,
        prop::sample::select(vec![1, 28, 16]),
        answer,
        0usize..3,
    )
        .prop_map(|(line, id, name, kind, answer, questions)| {
            let answer = answer
                .and_then(|(rcode, truncated, which)| said(rcode, which).map(|answer| Answer { truncated, ..answer }));
            let mut body = dns(line, id, name, kind, answer);
            if let Body::DnsSeen(message) = &mut body {
                let question = message.questions.remove(0);
                message.questions = vec![question; questions];
                if id == 0 {
                    message.asker = None;
                    message.socket = 0;
                }
            }
            body
        })
}

fn soup_traffic() -> impl Strategy<Value = Body> {
    let steps = prop::sample::select(vec![
        Step::Started,
        Step::Established,
        Step::Failed(ConnectFailure::Refused),
        Step::Failed(ConnectFailure::Abandoned),
    ]);
    let changes = prop::sample::select(vec![FlowChange::New, FlowChange::Destroyed]);
    let packets = prop::sample::select(vec![DroppedPacket::Dns, DroppedPacket::TcpSyn]);
    prop_oneof![
        6 => soup_dns(),
        3 => (soup_line(), steps).prop_map(|(line, at)| step(line, at)),
        2 => (soup_line(), changes).prop_map(|(line, change)| flow(line, change)),
        1 => (soup_line(), packets, prop::option::of(0u16..3)).prop_map(|(line, packet, id)| dropped(line, packet, id)),
        1 => (any::<u64>(), any::<u64>()).prop_map(|(entries, failed)| counted(entries, failed)),
    ]
}

fn tiny() -> TrafficConfig {
    TrafficConfig {
        max_lookups: 2,
        max_connects: 1,
        max_flows: 1,
        journeys_per_minute: 3,
        ..TrafficConfig::default()
    }
}

/// Any events, mostly forward in time, sometimes far.
fn soup() -> impl Strategy<Value = Vec<Event>> {
    let step = prop_oneof![8 => 0i64..5_000_000, 1 => -20_000_000i64..0, 1 => 0i64..400_000_000_000];
    vec((step, soup_body()), 0..200).prop_map(|steps| {
        let mut at = 1_000_000_000i64;
        steps
            .into_iter()
            .map(|(step, body)| {
                at = (at + step).max(0);
                Event {
                    at: Timestamp(at.unsigned_abs()),
                    body,
                }
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_nothing_breaks(events in soup(), small in any::<bool>()) {
        let config = if small {
            Config { max_traces: 2, max_processes: 4, max_spans: 8, max_remembered: 1, traffic: tiny(), ..config() }
        } else {
            config()
        };
        prop_assert_eq!(play(&config, &events), play(&config, &events));
    }

    #[test]
    fn times_at_the_ends_of_the_clock_break_nothing(mut events in soup()) {
        for (index, event) in events.iter_mut().enumerate() {
            event.at = [Timestamp(0), Timestamp(u64::MAX), event.at][index % 3];
        }
        play(&config(), &events);
    }
}

// === Windows ===

fn guid() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "a-1", "b-2", "c-3", "00-00"]).prop_map(str::to_owned)
}

fn object() -> impl Strategy<Value = ObjectKey> {
    (guid(), 0u32..4, 0u8..9).prop_map(|(id, number, kind)| match kind {
        0 => ObjectKey::Namespace(id),
        1 => ObjectKey::Endpoint(id),
        2 => ObjectKey::Port(id),
        3 => ObjectKey::Network(id),
        4 => ObjectKey::Container(["a", "b", "x"][number as usize % 3].to_owned()),
        5 => ObjectKey::Silo(id),
        6 => ObjectKey::Job(number),
        7 => ObjectKey::Operation(u64::from(number)),
        _ => ObjectKey::Compartment(number),
    })
}

fn activity_step() -> impl Strategy<Value = Body> {
    let name = prop::sample::select(vec![
        "RequestHandler",
        "EndpointAttachShared",
        "Entity",
        "ActivityStoppedAutomatically",
    ]);
    let service = prop::sample::select(vec![Service::Hns, Service::Hcs, Service::Silo]);
    let result = prop::option::of(prop::sample::select(vec![0u32, 0x803b_0017, 0xc037_0103]));
    (
        service,
        name,
        guid(),
        guid(),
        0u32..3,
        0u8..5,
        result,
        vec(object(), 0..3),
    )
        .prop_map(|(service, name, activity, related, tid, step, result, keys)| {
            let message = String::new();
            Body::ActivitySeen(Box::new(ActivityStep {
                service,
                name: name.to_owned(),
                activity,
                related,
                pid: 9,
                tid,
                step: match step {
                    0 | 1 => ActivityChange::Started,
                    2 | 3 => ActivityChange::Stopped { result, message },
                    _ => ActivityChange::Noted { result, message },
                },
                keys,
                fields: [("method", "POST")].into_iter().collect(),
            }))
        })
}

fn runtime_said() -> impl Strategy<Value = Body> {
    let id = prop::sample::select(vec!["a", "b", "x", ""]);
    (0u8..12, 0u8..3, id, guid(), 0u64..900 * SECOND).prop_map(|(what, pod, id, other, from)| {
        let identity = PodIdentity {
            namespace: "n".to_owned(),
            name: format!("p{pod}"),
            uid: ["", "u1", "u2"][usize::from(pod)].to_owned(),
            labels: Vec::new(),
        };
        let sandbox = SandboxId(id.to_owned());
        let message = other.clone();
        Body::RuntimeSaid(Box::new(match what {
            0 | 1 => RuntimeSaid::RunBegan {
                identity,
                attempt: u32::from(pod),
            },
            2 => RuntimeSaid::RunReturned { identity, sandbox },
            3 => RuntimeSaid::RunFailed { identity, message },
            4 => RuntimeSaid::StopBegan { sandbox },
            5 => RuntimeSaid::StopReturned { sandbox, message },
            6 => RuntimeSaid::NamespaceOf {
                sandbox,
                namespace: other,
            },
            7 => RuntimeSaid::EndpointOf {
                namespace: other.clone(),
                endpoint: other,
            },
            8 => RuntimeSaid::ShimLaunched { sandbox, pid: 3 },
            9 => RuntimeSaid::ContainerOf {
                sandbox,
                container: "a-container".to_owned(),
            },
            _ => RuntimeSaid::Span(Box::new(RuntimeSpan {
                name: "HcsStartComputeSystem".to_owned(),
                trace: "0af7651916cd43dd8448eb211c80319c".to_owned(),
                span: "b7ad6b7169203331".to_owned(),
                container: id.to_owned(),
                start: Timestamp(from),
                end: Timestamp(from / 2),
                message,
            })),
        }))
    })
}

fn lookup_step() -> impl Strategy<Value = Body> {
    let status = prop::sample::select(vec![0u32, 9_002, 9_003, 1_460, 87]);
    (guid(), 1u32..4, 0u8..8, status, prop::sample::select(vec![1u16, 28])).prop_map(
        |(silo, pid, step, status, kind)| {
            let server = "10.0.0.10".to_owned();
            Body::LookupSeen(Box::new(LookupStep {
                silo,
                process: ProcessKey { pid, start_ticks: 0 },
                name: "db.example".to_owned(),
                kind,
                step: match step {
                    0 | 1 => LookupChange::Started,
                    2 => LookupChange::Sent { server },
                    3 => LookupChange::Answered { server, status },
                    4 => LookupChange::TimedOut { server },
                    5 => LookupChange::Called,
                    6 => LookupChange::Returned {
                        status,
                        addresses: Vec::new(),
                    },
                    _ => LookupChange::Finished {
                        status,
                        addresses: vec![[10, 0, 0, 1].into()],
                    },
                },
            }))
        },
    )
}

fn windows_exec() -> impl Strategy<Value = Body> {
    let path = prop::sample::select(vec![
        "C:/cni/sdnbridge.exe",
        "C:/cni/host-local.exe",
        "C:/x/containerd-shim-runhcs-v1.exe",
        "powershell.exe",
        "C:/Windows/conhost.exe",
        ".exe",
        "",
    ]);
    let parent_comm = prop::sample::select(vec!["containerd.exe", "containerd.exe", "antrea-agent.exe", "cmd.exe"]);
    let args = vec(prop::sample::select(vec!["start", "-id", "a", "b", "x"]), 0..4);
    (soup_process(), soup_process(), path, parent_comm, args).prop_map(|(process, parent, path, comm, args)| {
        let mut body = exec(process, parent, path, &args, &[]);
        if let Body::ProcessExecuted(exec) = &mut body {
            exec.parent_comm = comm.into();
        }
        body
    })
}

fn windows_body() -> impl Strategy<Value = Body> {
    let change = prop_oneof![
        Just(SiloChange::Started),
        Just(SiloChange::Terminated),
        guid().prop_map(|monitor| SiloChange::CallbackStarted { monitor }),
        guid().prop_map(|monitor| SiloChange::CallbackStopped { monitor, status: 0 }),
    ];
    let silo =
        (guid(), 0u32..3, change).prop_map(|(silo, job, step)| Body::SiloSeen(Box::new(SiloStep { silo, job, step })));
    let connect = (0u64..4, 1u32..4, 0u8..3).prop_map(|(netns, pid, step)| {
        let process = ProcessKey { pid, start_ticks: 0 };
        Body::ConnectSeen(Box::new(ConnectStep {
            netns,
            socket: netns,
            local: ([10, 0, 0, 2], 5_000).into(),
            remote: ([10, 0, 0, 1], 443).into(),
            asker: Some(Asker {
                process,
                comm: String::new(),
            }),
            step: [Step::Started, Step::Established, Step::Failed(ConnectFailure::Refused)][usize::from(step)],
            retransmits: 0,
        }))
    });
    prop_oneof![
        6 => activity_step(),
        5 => runtime_said(),
        4 => windows_exec(),
        3 => lookup_step(),
        2 => soup_body(),
        1 => silo,
        1 => connect,
        1 => (0u32..4, any::<bool>()).prop_map(|(compartment, added)| {
            Body::InterfaceSeen(InterfaceStep { compartment, index: 7, added })
        }),
        1 => Just(Body::TrafficWatched { node_netns: 1 }),
    ]
}

fn windows_soup() -> impl Strategy<Value = Vec<Event>> {
    let step = prop_oneof![8 => 0i64..50_000_000, 1 => -20_000_000i64..0, 1 => 0i64..400_000_000_000];
    vec((step, windows_body()), 0..200).prop_map(|steps| {
        let mut at = 1_000_000_000i64;
        let mut events = Vec::new();
        for (step, body) in steps {
            at = (at + step).max(0);
            events.push(Event {
                at: Timestamp(at.unsigned_abs()),
                body,
            });
        }
        events
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_windows_node_says_nothing_breaks(mut events in windows_soup(), small in any::<bool>(), wild in any::<bool>()) {
        let roomy = Config { windows: true, ..config() };
        let config = if small {
            Config { max_traces: 2, max_processes: 4, max_spans: 8, max_remembered: 1, ..roomy }
        } else {
            roomy
        };
        if wild {
            for (index, event) in events.iter_mut().enumerate() {
                event.at = [Timestamp(0), Timestamp(u64::MAX), event.at, event.at][index % 4];
            }
        }
        prop_assert_eq!(play(&config, &events), play(&config, &events));
    }
}
