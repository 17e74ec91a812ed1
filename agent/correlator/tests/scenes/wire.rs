//! Traffic in scenes: sandboxes with a network namespace, sockets that query and connect, conntrack, drops.

use std::net::{IpAddr, SocketAddr};

use sandglass_correlator::{Finding, Output};
use sandglass_model::event::Netns;
use sandglass_model::network::{
    Answer, ConnectFailure, ConnectStep, ConntrackCounts, DnsMessage, DroppedPacket, Flow, FlowChange, Initiator,
    PacketDrop, Question, Step, Transport,
};
use sandglass_model::text::tree;
use sandglass_model::time::MILLISECOND;
use sandglass_model::trace::Cause;
use sandglass_model::{Body, Detail, ProcessKey, SandboxId, Timestamp, TraceId};

use crate::scene::{Played, Scene, add, of_pod};

/// The node's own network namespace.
pub const NODE: u64 = 4_026_531_840;
/// Of the sandbox that [`Scene::ready_sandbox`] makes.
pub const POD: u64 = 4_026_532_001;
/// The cluster's DNS service.
pub const DNS: &str = "10.96.0.10:53";

pub fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// A socket, and who has it.
#[derive(Clone, Copy, Debug)]
pub struct Socket {
    pub netns: u64,
    pub cookie: u64,
    pub client: SocketAddr,
    pub server: SocketAddr,
    pub transport: Transport,
    pub process: Option<ProcessKey>,
}

/// A UDP socket of the sandbox at this port, of a process of its own kind.
pub fn pod_socket(port: u16) -> Socket {
    Socket {
        netns: POD,
        cookie: u64::from(port),
        client: SocketAddr::from(([10, 88, 0, 5], port)),
        server: address(DNS),
        transport: Transport::Udp,
        process: Some(ProcessKey {
            pid: 50,
            start_ticks: 7,
        }),
    }
}

impl Socket {
    pub fn to(self, server: &str) -> Socket {
        Socket {
            server: address(server),
            ..self
        }
    }

    pub fn tcp(self) -> Socket {
        Socket {
            transport: Transport::Tcp,
            ..self
        }
    }

    pub fn of(self, pid: u32) -> Socket {
        Socket {
            process: Some(ProcessKey { pid, start_ticks: 7 }),
            ..self
        }
    }

    pub fn of_nobody(self) -> Socket {
        Socket { process: None, ..self }
    }

    pub fn at(self, netns: u64, client: [u8; 4]) -> Socket {
        Socket {
            netns,
            client: SocketAddr::from((client, self.client.port())),
            ..self
        }
    }

    fn initiator(&self) -> Option<Initiator> {
        self.process.map(|process| Initiator {
            process,
            comm: "app".into(),
        })
    }
}

fn kind(name: &str) -> u16 {
    match name {
        "A" => 1,
        "AAAA" => 28,
        "TXT" => 16,
        other => other.parse().expect("a type"),
    }
}

fn message(socket: &Socket, id: u16, name: &str, of: &str) -> DnsMessage {
    DnsMessage {
        netns: socket.netns,
        socket: socket.cookie,
        transport: socket.transport,
        client: socket.client,
        server: socket.server,
        initiator: None,
        id,
        nth: 0,
        questions: vec![Question {
            name: name.into(),
            kind: kind(of),
        }],
        answer: None,
    }
}

/// An answer's message, to be changed.
pub fn answer_of(socket: &Socket, id: u16, name: &str, of: &str, rcode: u16, addresses: &[&str]) -> DnsMessage {
    let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().expect("an address")).collect();
    DnsMessage {
        answer: Some(Answer {
            rcode,
            truncated: false,
            records: u16::try_from(addresses.len()).expect("few"),
            addresses,
        }),
        ..message(socket, id, name, of)
    }
}

pub const NOERROR: u16 = 0;
pub const SERVFAIL: u16 = 2;
pub const NXDOMAIN: u16 = 3;

/// Findings of traffic, one line each, times in milliseconds: lookups and connects, in the order of their ends.
pub fn rendered(played: &Played) -> String {
    let mut text = String::new();
    for output in &played.outputs {
        let Output::Finding(traffic) = output else { continue };
        match traffic {
            Finding::Lookup(ended) => {
                let lookup = &ended.detail;
                let result = lookup.result.map_or("-", |result| result.as_str());
                let (scope, name, types) = (ended.scope.as_str(), &lookup.name, lookup.types.join("+"));
                let line = format!(
                    "{scope} lookup {name} {types} {result} {}",
                    span(ended.start, ended.end)
                );
                text.push_str(&line);
                for (count, what) in [
                    (lookup.queries, "sent"),
                    (lookup.retransmissions, "again"),
                    (lookup.unanswered, "unanswered"),
                    (lookup.search_names, "search"),
                    (u32::from(lookup.truncated), "cut"),
                ] {
                    if count > 0 {
                        text.push_str(&format!(", {count} {what}"));
                    }
                }
                text.push_str(&cause(lookup.cause.as_ref()));
            }
            Finding::Connect(ended) => {
                let connect = &ended.detail;
                let result = connect.failure.map_or("established", |failure| failure.as_str());
                let (scope, remote, name) = (ended.scope.as_str(), connect.remote, &connect.name);
                let line = format!(
                    "{scope} connect {remote} {name} {result} {}",
                    span(ended.start, ended.end)
                );
                text.push_str(&line);
                if connect.retransmits > 0 {
                    text.push_str(&format!(", {} again", connect.retransmits));
                }
                text.push_str(&cause(connect.cause.as_ref()));
            }
            Finding::JourneyHeldBack => text.push_str("held back"),
            Finding::Flow { .. }
            | Finding::Conntrack { .. }
            | Finding::Dropped { .. }
            | Finding::Activity(_)
            | Finding::Endpoints { .. }
            | Finding::DnsUnreported { .. }
            | Finding::HnsRestarted => continue,
        }
        text.push('\n');
    }
    text
}

fn span(start: Timestamp, end: Timestamp) -> String {
    let ms = |ns: u64| ns as f64 / MILLISECOND as f64;
    format!("{}+{}", ms(start.0), ms(end.since(start)))
}

fn cause(cause: Option<&Cause>) -> String {
    cause.map_or_else(String::new, |cause| {
        format!(", {} ({})", cause.cause, cause.confidence.as_str())
    })
}

impl Played {
    /// Ends of the lookups and connects whose findings name this trace.
    pub fn findings_in(&self, id: Option<TraceId>) -> impl Iterator<Item = Timestamp> {
        self.outputs.iter().filter_map(move |output| match output {
            Output::Finding(Finding::Lookup(ended)) if ended.trace == id => Some(ended.end),
            Output::Finding(Finding::Connect(ended)) if ended.trace == id => Some(ended.end),
            _ => None,
        })
    }

    /// The closed journeys as text.
    pub fn journeys(&self) -> String {
        let journeys = self
            .closed
            .iter()
            .filter(|trace| matches!(trace.root().detail, Detail::Journey(_)));
        journeys.map(|trace| tree(trace, Timestamp(0))).collect()
    }

    /// The evidence of the cause of the only lookup or connect that has one.
    pub fn evidence(&self) -> Vec<String> {
        let causes = self.outputs.iter().filter_map(|output| match output {
            Output::Finding(Finding::Lookup(ended)) => ended.detail.cause.clone(),
            Output::Finding(Finding::Connect(ended)) => ended.detail.cause.clone(),
            _ => None,
        });
        let mut causes: Vec<Cause> = causes.collect();
        assert_eq!(causes.len(), 1, "{causes:?}");
        causes.remove(0).evidence
    }
}

impl Scene {
    /// A sandbox whose network is ready since 205 ms; its trace is closed at 2000 ms.
    pub fn used_sandbox() -> Scene {
        let mut scene = Scene::ready_sandbox();
        let first = pod_socket(3_000).tcp().to("10.1.0.9:80");
        scene.at(200).connects(&first);
        scene.at(205).established(&first);
        scene.at(2_000).tick();
        scene
    }

    /// What follows happens `us` microseconds after boot.
    pub fn at_us(&mut self, us: u64) -> &mut Scene {
        self.set_now(us * 1_000)
    }

    pub fn watched(&mut self) -> &mut Scene {
        self.event(Body::TrafficWatched { node_netns: NODE })
    }

    pub fn netns_of(&mut self, sandbox: &str, inode: u64) -> &mut Scene {
        self.event(Body::NetnsObserved(Box::new(Netns {
            sandbox: SandboxId(sandbox.to_owned()),
            path: format!("/run/netns/{sandbox}"),
            inode,
            created: None,
            there: None,
        })))
    }

    /// A sandbox `sb` of pod `cart`, made from 0 to 180 ms; its traffic is watched.
    pub fn ready_sandbox() -> Scene {
        let mut scene = Scene::new();
        scene.at(0).watched();
        scene.made("sb", "cart", POD, 0);
        scene
    }

    /// A sandbox made from `at_ms` to 180 ms later.
    pub fn made(&mut self, sandbox: &str, pod: &str, netns: u64, at_ms: u64) -> &mut Scene {
        let plugin = self.at(at_ms).plugin("bridge", &of_pod(add(sandbox, "eth0"), pod));
        self.at(at_ms + 1).netns_of(sandbox, netns);
        self.at(at_ms + 100).exit(plugin, 0);
        self.containerd_starts(sandbox, at_ms + 110)
    }

    pub fn dns(&mut self, message: DnsMessage) -> &mut Scene {
        self.event(Body::DnsSeen(Box::new(message)))
    }

    pub fn query(&mut self, socket: &Socket, id: u16, name: &str, of: &str) -> &mut Scene {
        let mut query = message(socket, id, name, of);
        query.initiator = socket.initiator();
        self.dns(query)
    }

    pub fn answer(
        &mut self,
        socket: &Socket,
        id: u16,
        name: &str,
        of: &str,
        rcode: u16,
        addresses: &[&str],
    ) -> &mut Scene {
        self.dns(answer_of(socket, id, name, of, rcode, addresses))
    }

    /// The answer was cut.
    pub fn cut_answer(&mut self, socket: &Socket, id: u16, name: &str, of: &str) -> &mut Scene {
        let mut cut = answer_of(socket, id, name, of, NOERROR, &[]);
        if let Some(answer) = &mut cut.answer {
            answer.truncated = true;
        }
        self.dns(cut)
    }

    /// A whole lookup of both types, from one socket, answered `took_us` later.
    pub fn looked_up(&mut self, socket: &Socket, name: &str, at_ms: u64, took_us: u64, addresses: &str) -> &mut Scene {
        let id = (at_ms % 60_000) as u16;
        let begin = at_ms * 1_000;
        self.at_us(begin).query(socket, id, name, "A");
        self.at_us(begin + 20).query(socket, id + 1, name, "AAAA");
        self.at_us(begin + took_us - 10)
            .answer(socket, id + 1, name, "AAAA", NOERROR, &[]);
        self.at_us(begin + took_us)
            .answer(socket, id, name, "A", NOERROR, &[addresses])
    }

    pub fn step(&mut self, socket: &Socket, step: Step, retransmits: u32) -> &mut Scene {
        self.event(Body::ConnectSeen(Box::new(ConnectStep {
            netns: socket.netns,
            socket: socket.cookie,
            local: socket.client,
            remote: socket.server,
            initiator: socket.initiator().filter(|_| step == Step::Started),
            step,
            retransmits,
        })))
    }

    pub fn connects(&mut self, socket: &Socket) -> &mut Scene {
        self.step(socket, Step::Started, 0)
    }

    pub fn established(&mut self, socket: &Socket) -> &mut Scene {
        self.step(socket, Step::Established, 0)
    }

    pub fn connect_failed(&mut self, socket: &Socket, failure: ConnectFailure, retransmits: u32) -> &mut Scene {
        self.step(socket, Step::Failed(failure), retransmits)
    }

    /// Conntrack made an entry in the node's table for what the socket sends, and sends it on to `backend`.
    pub fn flow(&mut self, socket: &Socket, id: u32, change: FlowChange, backend: &str) -> &mut Scene {
        self.event(Body::FlowSeen(Box::new(Flow {
            netns: NODE,
            id,
            change,
            protocol: if socket.transport == Transport::Udp { 17 } else { 6 },
            source: socket.client,
            destination: socket.server,
            reply_source: address(backend),
            reply_destination: socket.client,
            replied: false,
        })))
    }

    pub fn counted(&mut self, counts: ConntrackCounts) -> &mut Scene {
        self.event(Body::ConntrackCounted(Box::new(ConntrackCounts {
            netns: NODE,
            ..counts
        })))
    }

    pub fn dropped(&mut self, packet: DroppedPacket, from: SocketAddr, to: &str, dns_id: Option<u16>) -> &mut Scene {
        self.event(Body::PacketDropped(Box::new(PacketDrop {
            netns: NODE,
            packet,
            source: from,
            destination: address(to),
            dns_id,
            reason: "NETFILTER_DROP".to_owned(),
            function: "nf_hook_slow".to_owned(),
        })))
    }

    /// A minute passes in which nothing happens.
    pub fn then_nothing(&mut self) -> &mut Scene {
        let last = self.events.iter().map(|event| event.at.0).max().unwrap_or(0);
        self.set_now(last + 60_000 * MILLISECOND).tick()
    }
}
