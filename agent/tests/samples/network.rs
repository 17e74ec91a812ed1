//! Hand-made traces with traffic: networks that prove usable, stall or fail, and journeys.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::SocketAddr;

use sandglass_model::id::ProcessKey;
use sandglass_model::network::{ConnectFailure, Initiator, Transport};
use sandglass_model::time::MILLISECOND;
use sandglass_model::trace::{
    Cause, Confidence, ConnectDetail, JourneyDetail, JourneyReason, Link, LookupDetail, LookupResult, Relation,
    SpanEvent,
};
use sandglass_model::{Detail, Timestamp, Trace, registry};

use super::{Scene, usual};

/// Name that most samples look up.
pub const NAME: &str = "db.shop.svc.cluster.local";

/// A usual sandbox that has become a scene again, at the end of its creation; returns that, in milliseconds.
fn created(namespace: &str, pod: &str, number: u32, start_unix_ns: u64) -> (Scene, u64) {
    let trace = usual(namespace, pod, number, start_unix_ns);
    let begin_ns = trace.start().0;
    let end_ms = trace.root().end.unwrap().since(trace.start()) / MILLISECOND;
    let mut scene = Scene {
        trace,
        begin_ns,
        next_pid: 9_000 + number,
    };
    scene.trace.closed = false;
    scene.trace.spans[0].end = None;
    (scene, end_ms)
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn initiator(comm: &str) -> Option<Initiator> {
    Some(Initiator {
        process: ProcessKey {
            pid: 31_337,
            start_ticks: 1,
        },
        comm: comm.into(),
    })
}

pub fn lookup_detail(name: &str) -> LookupDetail {
    LookupDetail {
        name: name.into(),
        types: vec!["A".into(), "AAAA".into()],
        servers: vec![address("10.96.0.10:53")],
        transport: Transport::Udp,
        result: Some(LookupResult::Rcode(0)),
        queries: 2,
        retransmissions: 0,
        unanswered: 0,
        search_names: 0,
        truncated: false,
        addresses: vec!["10.96.41.7".parse().unwrap()],
        backend: Some(address("10.22.0.2:53")),
        initiator: initiator("app"),
        cause: None,
    }
}

pub fn connect_detail(name: &str) -> ConnectDetail {
    ConnectDetail {
        local: address("10.22.0.7:41822"),
        remote: address("10.96.41.7:5432"),
        backend: Some(address("10.22.0.31:5432")),
        name: name.into(),
        retransmits: 0,
        failure: None,
        initiator: initiator("app"),
        cause: None,
    }
}

impl Scene {
    fn event(&mut self, index: usize, ms: u64, name: &str, attributes: &[(&str, &str)]) {
        let at = self.at(ms);
        let attributes = attributes
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()));
        self.trace.spans[index].events.push(SpanEvent {
            at,
            name: name.into(),
            attributes: attributes.collect(),
        });
    }

    fn query(&mut self, index: usize, ms: u64, name: &str, kind: &str) {
        self.event(
            index,
            ms,
            registry::EVENT_QUERY,
            &[
                (registry::DNS_NAME, name),
                (registry::DNS_TYPE, kind),
                (registry::DNS_ID, "4711"),
            ],
        );
    }

    fn answer(&mut self, index: usize, ms: u64, name: &str, kind: &str, rcode: &str) {
        self.event(
            index,
            ms,
            registry::EVENT_ANSWER,
            &[
                (registry::DNS_NAME, name),
                (registry::DNS_TYPE, kind),
                (registry::DNS_RCODE, rcode),
            ],
        );
    }

    fn translated(&mut self, index: usize, ms: u64, backend: &str) {
        self.event(
            index,
            ms,
            registry::EVENT_FLOW,
            &[
                (registry::BACKEND, backend),
                (registry::NAT, "dnat"),
                (registry::FLOW_ID, "2914073"),
            ],
        );
    }

    /// A lookup of [`NAME`] that stalls for five seconds: two queries race, one is dropped, the resolver retries.
    fn stalled_lookup(&mut self, parent: usize, ms: u64) -> usize {
        let mut detail = lookup_detail(NAME);
        detail.queries = 3;
        detail.retransmissions = 1;
        detail.cause = Some(Cause {
            cause: "conntrack_race".into(),
            confidence: Confidence::Likely,
            evidence: vec![
                "two queries left one socket within 38 us of each other, and one was not answered".into(),
                "insert_failed rose by 1 in the node's conntrack table while it waited".into(),
                "the resolver asked again after 5.00 s".into(),
            ],
        });
        let lookup = self.open(Some(parent), ms, Detail::Lookup(Box::new(detail)));
        self.query(lookup, ms, NAME, "A");
        self.query(lookup, ms, NAME, "AAAA");
        self.translated(lookup, ms, "10.22.0.2:53");
        self.event(
            lookup,
            ms,
            registry::EVENT_DROP,
            &[
                (registry::DROP_REASON, "NETFILTER_DROP"),
                (registry::DROP_FUNCTION, "nf_hook_slow"),
                (registry::DNS_TYPE, "AAAA"),
            ],
        );
        self.answer(lookup, ms + 2, NAME, "A", "noerror");
        self.event(
            lookup,
            ms + 5_005,
            registry::EVENT_RETRANSMISSION,
            &[(registry::DNS_NAME, NAME), (registry::DNS_TYPE, "AAAA")],
        );
        self.answer(lookup, ms + 5_007, NAME, "AAAA", "noerror");
        self.end(lookup, ms + 5_007);
        lookup
    }

    fn connects(&mut self, parent: usize, ms: u64, took_ms: u64) -> usize {
        let connect = self.open(Some(parent), ms, Detail::Connect(Box::new(connect_detail(NAME))));
        self.translated(connect, ms, "10.22.0.31:5432");
        self.end(connect, ms + took_ms);
        connect
    }

    fn attempted(&mut self, first_ms: u64, ready_ms: Option<u64>) {
        let (first, ready) = (self.at(first_ms), ready_ms.map(|ms| self.at(ms)));
        if let Detail::Sandbox(sandbox) = &mut self.trace.spans[0].detail {
            sandbox.first_attempt = Some(first);
            sandbox.network_ready = ready;
        }
        if let Some(ms) = ready_ms {
            self.event(0, ms, registry::EVENT_NETWORK_READY, &[]);
        }
    }
}

/// A sandbox whose program resolves a name by way of the search path, and connects through a service address.
pub fn network_ready(namespace: &str, pod: &str, number: u32, start_unix_ns: u64) -> Trace {
    let (mut scene, end) = created(namespace, pod, number, start_unix_ns);
    let begin = end + 140;
    let mut detail = lookup_detail(NAME);
    detail.queries = 6;
    detail.search_names = 2;
    let lookup = scene.open(Some(0), begin, Detail::Lookup(Box::new(detail)));
    for (step, (name, rcode)) in [
        (format!("{NAME}.shop.svc.cluster.local"), "nxdomain"),
        (format!("{NAME}.svc.cluster.local"), "nxdomain"),
        (NAME.to_owned(), "noerror"),
    ]
    .into_iter()
    .enumerate()
    {
        let at = begin + step as u64 * 9;
        scene.query(lookup, at, &name, "A");
        scene.query(lookup, at, &name, "AAAA");
        scene.answer(lookup, at + 7, &name, "A", rcode);
        scene.answer(lookup, at + 8, &name, "AAAA", rcode);
    }
    scene.end(lookup, begin + 26);
    scene.connects(0, begin + 28, 6);
    scene.attempted(begin, Some(begin + 34));
    scene.close(begin + 34)
}

/// One whose first lookup stalls.
pub fn stalled(namespace: &str, pod: &str, number: u32, start_unix_ns: u64) -> Trace {
    let (mut scene, end) = created(namespace, pod, number, start_unix_ns);
    scene.stalled_lookup(0, end + 60);
    scene.connects(0, end + 5_070, 3);
    scene.attempted(end + 60, Some(end + 5_073));
    scene.close(end + 5_073)
}

/// One that is created and has sent nothing yet.
pub fn waiting(namespace: &str, pod: &str, number: u32, start_unix_ns: u64) -> Trace {
    created(namespace, pod, number, start_unix_ns).0.snapshot()
}

/// One whose every attempt fails: the server answers SERVFAIL, and the connection is not answered.
pub fn never_connected(namespace: &str, pod: &str, number: u32, start_unix_ns: u64) -> Trace {
    let (mut scene, end) = created(namespace, pod, number, start_unix_ns);
    let mut detail = lookup_detail("api.example.org");
    detail.result = Some(LookupResult::Rcode(2));
    detail.addresses.clear();
    detail.cause = Some(Cause {
        cause: "dns_server_error".into(),
        confidence: Confidence::Certain,
        evidence: vec!["10.96.0.10:53 answered SERVFAIL".into()],
    });
    let lookup = scene.open(Some(0), end + 30, Detail::Lookup(Box::new(detail)));
    scene.query(lookup, end + 30, "api.example.org", "A");
    scene.answer(lookup, end + 33, "api.example.org", "A", "servfail");
    scene.fail(lookup, "dns_servfail", "10.96.0.10:53 answered SERVFAIL");
    scene.end(lookup, end + 33);
    let mut detail = connect_detail("");
    detail.remote = address("203.0.113.9:443");
    detail.backend = None;
    detail.retransmits = 3;
    detail.failure = Some(ConnectFailure::TimedOut);
    detail.cause = Some(Cause {
        cause: "connect_silent".into(),
        confidence: Confidence::Likely,
        evidence: vec!["4 SYNs to 203.0.113.9:443 were not answered, and no drop was seen on this node".into()],
    });
    let connect = scene.open(Some(0), end + 40, Detail::Connect(Box::new(detail)));
    scene.fail(connect, "connect_timeout", "203.0.113.9:443 did not answer");
    scene.end(connect, end + 15_040);
    scene.attempted(end + 30, None);
    if let Detail::Sandbox(sandbox) = &mut scene.trace.spans[0].detail {
        sandbox.attempts_left_out = 36;
    }
    scene.close(end + 15_040)
}

/// A later lookup of a sandbox that stalls, with the connection it was for; linked to the sandbox.
pub fn stalled_journey(sandbox: &Trace, start_unix_ns: u64) -> Trace {
    let mut scene = Scene::empty("", "", 0, start_unix_ns, "journey");
    scene.trace.sandbox.clone_from(&sandbox.sandbox);
    scene.trace.identity = sandbox.identity.clone();
    let journey = JourneyDetail {
        reason: JourneyReason::Retried,
        target: NAME.into(),
        node: false,
    };
    scene.open(None, 0, Detail::Journey(Box::new(journey)));
    scene.trace.spans[0].links.push(Link {
        trace: sandbox.id,
        span: sandbox.root().id,
        relation: Relation::Sandbox,
    });
    scene.stalled_lookup(0, 0);
    scene.connects(0, 5_009, 2);
    scene.close(5_011)
}

/// A connection of the node itself that is refused.
pub fn refused_journey(start_unix_ns: u64) -> Trace {
    let mut scene = Scene::empty("", "", 0, start_unix_ns, "node journey");
    scene.trace.sandbox = None;
    scene.trace.identity = Default::default();
    let journey = JourneyDetail {
        reason: JourneyReason::Failed,
        target: "10.96.0.80:8080".into(),
        node: true,
    };
    scene.open(None, 0, Detail::Journey(Box::new(journey)));
    let mut detail = connect_detail("");
    detail.remote = address("10.96.0.80:8080");
    detail.failure = Some(ConnectFailure::Refused);
    detail.cause = Some(Cause {
        cause: "connect_refused".into(),
        confidence: Confidence::Certain,
        evidence: vec!["10.96.0.80:8080 answered with a reset".into()],
    });
    let connect = scene.open(Some(0), 0, Detail::Connect(Box::new(detail)));
    scene.fail(connect, "connect_refused", "10.96.0.80:8080 refused");
    scene.fail(0, "connect_refused", "10.96.0.80:8080 refused");
    scene.end(connect, 1);
    scene.close(1)
}

/// Traffic of a node over the last hour, as a wall-clock time and a finding each: mostly good, with a bad quarter of an
/// hour in which lookups time out and conntrack loses entries.
pub fn an_hour(now_unix_ns: u64) -> Vec<(u64, sandglass_correlator::Finding)> {
    use sandglass_correlator::finding::{ConnectEnded, Finding, LookupEnded, Nat, QueryType, Scope};
    use sandglass_model::network::{ConntrackCounts, DroppedPacket, FlowChange};
    const NAMES: [&str; 6] = [
        NAME,
        "cart.shop.svc.cluster.local",
        "api.example.org",
        "metrics.internal",
        "registry.example.com",
        "kafka-0.kafka.data.svc.cluster.local",
    ];
    let mut found = Vec::new();
    for tens in (0..350u64).rev() {
        let at = now_unix_ns - tens * 10_000_000_000;
        let bad = (90..180).contains(&tens);
        // Waves that no random numbers are needed for.
        let lookups = 8 + (tens * 7 % 23) + if tens % 60 < 12 { 30 } else { 0 };
        for number in 0..lookups {
            let name = NAMES[((number + tens) % 6) as usize];
            let mut detail = lookup_detail(name);
            let mut took = (1 + (number * 13 + tens) % 9) * MILLISECOND / 2;
            if number % 7 == 0 {
                detail.result = Some(LookupResult::Rcode(3));
                detail.search_names = 2;
            }
            if bad && number % 9 == 0 {
                detail.result = Some(LookupResult::Unanswered);
                (detail.retransmissions, detail.unanswered) = (1, 1);
                took = 10_000 * MILLISECOND;
            } else if bad && number % 5 == 0 {
                detail.retransmissions = 1;
                took = 5_004 * MILLISECOND;
                detail.cause = Some(Cause {
                    cause: "conntrack_race".into(),
                    confidence: Confidence::Likely,
                    evidence: Vec::new(),
                });
            } else if bad && number % 11 == 0 {
                detail.result = Some(LookupResult::Rcode(2));
            }
            found.push((
                at,
                Finding::Lookup(Box::new(LookupEnded {
                    scope: Scope::Sandbox,
                    owner: 1,
                    start: Timestamp(0),
                    end: Timestamp(took),
                    detail,
                    queries: vec![(QueryType::A, Transport::Udp, 1)],
                    trace: None,
                    journey: false,
                })),
            ));
            let mut detail = connect_detail(name);
            if number % 17 == 3 {
                detail.failure = Some(ConnectFailure::Refused);
            }
            let ended = ConnectEnded {
                scope: Scope::Sandbox,
                start: Timestamp(0),
                end: Timestamp((1 + number % 4) * MILLISECOND),
                detail,
                trace: None,
                journey: false,
            };
            found.push((at, Finding::Connect(Box::new(ended))));
            found.push((
                at,
                Finding::Flow {
                    scope: Scope::Sandbox,
                    change: if number % 3 == 0 {
                        FlowChange::Destroyed
                    } else {
                        FlowChange::New
                    },
                    nat: Some(Nat::Dnat),
                },
            ));
        }
        found.push((
            at,
            Finding::Conntrack {
                scope: Scope::Node,
                counts: ConntrackCounts {
                    netns: 4_026_531_840,
                    entries: 41_000 + (350 - tens) * 120 + if bad { 60_000 } else { 0 },
                    limit: 262_144,
                    insert_failed: if bad { 2 } else { 0 },
                    clash_resolve: u64::from(tens % 9 == 0),
                    ..ConntrackCounts::default()
                },
            },
        ));
        if bad && tens % 4 == 0 {
            found.push((
                at,
                Finding::Dropped {
                    scope: Scope::Sandbox,
                    packet: if tens % 8 == 0 {
                        DroppedPacket::Dns
                    } else {
                        DroppedPacket::TcpSyn
                    },
                    reason: "NETFILTER_DROP".into(),
                },
            ));
        }
    }
    found
}
