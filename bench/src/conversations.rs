//! Synthetic traffic of a node: pods that look up names and connect to the answers, one after the other.
//!
//! Used by the throughput part. Each conversation is a lookup of both address types from one socket, conntrack's entry for it,
//! and a connect with an entry of its own: [`EVENTS`] events, at a constant rate in the events' time. Does not: produce wire
//! records.

use std::net::SocketAddr;

use sandglass_model::event::Netns;
use sandglass_model::network::{
    Answer, ConnectStep, DnsMessage, Flow, FlowChange, Initiator, Question, Step, Transport,
};
use sandglass_model::time::{MILLISECOND, SECOND};
use sandglass_model::{Body, Event, ProcessKey, SandboxId, Timestamp};

/// Events of a usual conversation.
pub const EVENTS: u64 = 8;

/// Conversations still to come.
#[derive(Debug)]
pub struct Conversations {
    next: u64,
    count: u64,
    pods: u64,
    pause_ns: u64,
}

impl Conversations {
    /// `count` of them, `per_second` in every second, of so many pods.
    pub fn new(count: u64, per_second: u64, pods: u64) -> Conversations {
        Conversations {
            next: 0,
            count,
            pods,
            pause_ns: SECOND / per_second,
        }
    }

    /// What comes first: the owners of the namespaces.
    pub fn pods(&self) -> Vec<Event> {
        let mut events = vec![Event {
            at: Timestamp(BEGIN_NS),
            body: Body::TrafficWatched { node_netns: NODE },
        }];
        events.extend((0..self.pods).map(|pod| Event {
            at: Timestamp(BEGIN_NS),
            body: Body::NetnsObserved(Box::new(Netns {
                sandbox: SandboxId(format!("{pod:064x}")),
                path: String::new(),
                inode: NODE + 1 + pod,
                created: None,
                there: None,
            })),
        }));
        events
    }

    /// Appends the events of the next `most` conversations, in order of time.
    pub fn fill(&mut self, events: &mut Vec<Event>, most: u64) {
        let until = self.count.min(self.next + most);
        for number in self.next..until {
            self.converse(number, events);
        }
        self.next = until;
        events.sort_by_key(|event| event.at);
    }

    fn converse(&self, number: u64, events: &mut Vec<Event>) {
        let begin = BEGIN_NS + MILLISECOND + number * self.pause_ns;
        let pod = number % self.pods;
        let port = 1_024 + (number / self.pods % 60_000) as u16;
        let line = Line {
            netns: NODE + 1 + pod,
            socket: number * 2 + 1,
            client: SocketAddr::from(([10, 88, (pod / 250) as u8, (pod % 250) as u8], port)),
            pid: 1_000 + pod as u32,
        };
        let name = format!("service-{}.shop.svc.cluster.local", number % 50);
        let dns = SocketAddr::from(([10, 96, 0, 10], 53));
        let service = SocketAddr::from(([10, 96, 1, (number % 50) as u8], 80));
        let id = number as u16;
        let mut at = |after_ns: u64, body: Body| {
            events.push(Event {
                at: Timestamp(begin + after_ns),
                body,
            });
        };
        at(0, line.query(dns, id, &name, 1));
        at(20_000, line.query(dns, id ^ 1, &name, 28));
        at(60_000, line.flow(17, dns, number as u32));
        at(400_000, line.answer(dns, id ^ 1, &name, 28, None));
        at(500_000, line.answer(dns, id, &name, 1, Some(service)));
        at(600_000, line.step(service, Step::Started));
        at(650_000, line.flow(6, service, number as u32));
        at(900_000, line.step(service, Step::Established));
    }
}

/// A pod's end.
#[derive(Clone, Copy, Debug)]
struct Line {
    netns: u64,
    socket: u64,
    client: SocketAddr,
    pid: u32,
}

impl Line {
    fn initiator(self) -> Option<Initiator> {
        Some(Initiator {
            process: ProcessKey::new(self.pid, SECOND),
            comm: "app".into(),
        })
    }

    fn query(self, server: SocketAddr, id: u16, name: &str, kind: u16) -> Body {
        Body::DnsSeen(Box::new(self.message(server, id, name, kind, None)))
    }

    fn answer(self, server: SocketAddr, id: u16, name: &str, kind: u16, resolved: Option<SocketAddr>) -> Body {
        let answer = Answer {
            rcode: 0,
            truncated: false,
            records: u16::from(resolved.is_some()),
            addresses: resolved.iter().map(SocketAddr::ip).collect(),
        };
        Body::DnsSeen(Box::new(self.message(server, id, name, kind, Some(answer))))
    }

    fn message(self, server: SocketAddr, id: u16, name: &str, kind: u16, answer: Option<Answer>) -> DnsMessage {
        DnsMessage {
            netns: self.netns,
            socket: self.socket,
            transport: Transport::Udp,
            client: self.client,
            server,
            initiator: self.initiator().filter(|_| answer.is_none()),
            id,
            nth: 0,
            questions: vec![Question {
                name: name.into(),
                kind,
            }],
            answer,
        }
    }

    fn step(self, remote: SocketAddr, step: Step) -> Body {
        Body::ConnectSeen(Box::new(ConnectStep {
            netns: self.netns,
            socket: self.socket + 1,
            local: self.client,
            remote,
            initiator: self.initiator().filter(|_| step == Step::Started),
            step,
            retransmits: 0,
        }))
    }

    fn flow(self, protocol: u8, destination: SocketAddr, id: u32) -> Body {
        Body::FlowSeen(Box::new(Flow {
            netns: NODE,
            id,
            change: FlowChange::New,
            protocol,
            source: self.client,
            destination,
            reply_source: SocketAddr::from(([10, 88, 9, 9], destination.port())),
            reply_destination: self.client,
            replied: false,
        }))
    }
}

/// The node's own network namespace.
const NODE: u64 = 4_026_531_840;
const BEGIN_NS: u64 = 100 * SECOND;
