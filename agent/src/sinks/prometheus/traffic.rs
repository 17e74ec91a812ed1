//! Metrics of traffic: lookups, connections, conntrack, dropped packets; and when a sandbox's network proved usable.
//!
//! Fed with every output of the correlator, by [`super::ProductMetrics`]. Every lookup and connection counts, good or
//! bad, with a trace of its own or without. Labels come from closed sets, all of which start at 0, but for the kernel's
//! reasons of drops, which are bounded. Names asked, addresses and pods are in the traces only.

use std::collections::BTreeSet;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sandglass_correlator::Output;
use sandglass_correlator::traffic::{ConnectEnded, LookupEnded, Nat, QueryType, Scope, Traffic};
use sandglass_model::network::{ConnectFailure, ConntrackCounts, DroppedPacket, FlowChange, Transport};
use sandglass_model::trace::{Cause, JourneyReason, LookupResult, SandboxDetail};
use sandglass_model::{Detail, RootId, Timestamp, Trace, registry};

use super::bounded::BoundedLabel;
use super::durations::{DurationFamily, durations, observe};
use crate::sinks::creation;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ScopeLabels {
    scope: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LookupLabels {
    scope: &'static str,
    rcode: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueryLabels {
    scope: &'static str,
    r#type: &'static str,
    transport: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConnectLabels {
    scope: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FlowLabels {
    scope: &'static str,
    change: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NatLabels {
    scope: &'static str,
    nat: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DropLabels {
    scope: &'static str,
    packet: &'static str,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabels {
    cause: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

type ScopeCounter = Family<ScopeLabels, Counter>;

/// All metrics of traffic.
#[derive(Debug)]
pub struct TrafficMetrics {
    ready: DurationFamily<ResultLabels>,
    wait: DurationFamily<ResultLabels>,
    silent: Counter,
    /// Sandboxes that are created and whose traces are open: those whose traffic is waited for.
    waiting: BTreeSet<RootId>,
    lookups: DurationFamily<LookupLabels>,
    queries: Family<QueryLabels, Counter>,
    retransmissions: ScopeCounter,
    unanswered: ScopeCounter,
    search_names: ScopeCounter,
    truncated: ScopeCounter,
    connects: DurationFamily<ConnectLabels>,
    connect_retransmissions: ScopeCounter,
    conntrack: ConntrackMetrics,
    drops: Family<DropLabels, Counter>,
    reason_label: BoundedLabel,
    causes: Family<CauseLabels, Counter>,
    journeys: Family<ReasonLabels, Counter>,
    held_back: Counter,
}

#[derive(Debug, Default)]
struct ConntrackMetrics {
    flows: Family<FlowLabels, Counter>,
    nat: Family<NatLabels, Counter>,
    insert_failed: ScopeCounter,
    drop: ScopeCounter,
    early_drop: ScopeCounter,
    clash_resolve: ScopeCounter,
    search_restart: ScopeCounter,
    entries: Family<ScopeLabels, Gauge>,
    limit: Family<ScopeLabels, Gauge>,
}

impl TrafficMetrics {
    /// Metrics with at most `max_label_values` reasons of drops. Known label sets start at 0.
    #[must_use]
    pub fn new(max_label_values: usize) -> TrafficMetrics {
        let metrics = TrafficMetrics {
            ready: durations(),
            wait: durations(),
            silent: Counter::default(),
            waiting: BTreeSet::new(),
            lookups: durations(),
            queries: Family::default(),
            retransmissions: Family::default(),
            unanswered: Family::default(),
            search_names: Family::default(),
            truncated: Family::default(),
            connects: durations(),
            connect_retransmissions: Family::default(),
            conntrack: ConntrackMetrics::default(),
            drops: Family::default(),
            reason_label: BoundedLabel::new(max_label_values),
            causes: Family::default(),
            journeys: Family::default(),
            held_back: Counter::default(),
        };
        metrics.begin();
        metrics
    }

    /// Makes every series of a closed label set.
    fn begin(&self) {
        for result in ["ready", "failed"] {
            drop(self.ready.get_or_create(&ResultLabels { result }));
            drop(self.wait.get_or_create(&ResultLabels { result }));
        }
        for scope in Scope::ALL.map(Scope::as_str) {
            for rcode in LookupResult::NAMES {
                drop(self.lookups.get_or_create(&LookupLabels { scope, rcode }));
            }
            for result in CONNECT_RESULTS {
                drop(self.connects.get_or_create(&ConnectLabels { scope, result }));
            }
            for kind in QueryType::ALL {
                for transport in [Transport::Udp, Transport::Tcp] {
                    drop(self.queries.get_or_create(&query_labels(scope, kind, transport)));
                }
            }
            for counter in self.per_scope() {
                drop(counter.get_or_create(&ScopeLabels { scope }));
            }
            for change in ["new", "destroyed"] {
                drop(self.conntrack.flows.get_or_create(&FlowLabels { scope, change }));
            }
            for nat in Nat::ALL.map(Nat::as_str) {
                drop(self.conntrack.nat.get_or_create(&NatLabels { scope, nat }));
            }
        }
        for &cause in registry::CAUSES {
            drop(self.causes.get_or_create(&CauseLabels { cause }));
        }
        for reason in JourneyReason::ALL.map(JourneyReason::as_str) {
            drop(self.journeys.get_or_create(&ReasonLabels { reason }));
        }
    }

    fn per_scope(&self) -> [&ScopeCounter; 10] {
        let conntrack = &self.conntrack;
        [
            &self.retransmissions,
            &self.unanswered,
            &self.search_names,
            &self.truncated,
            &self.connect_retransmissions,
            &conntrack.insert_failed,
            &conntrack.drop,
            &conntrack.early_drop,
            &conntrack.clash_resolve,
            &conntrack.search_restart,
        ]
    }

    /// Registers all of them.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "network_ready_duration_seconds",
            "From a sandbox's end of creation until its first lookup was answered and its first connection stood, or until it had failed to",
            self.ready.clone(),
        );
        registry.register(
            "network_wait_duration_seconds",
            "The network's part of that: from the sandbox's first query or SYN on",
            self.wait.clone(),
        );
        registry.register(
            "network_silent",
            "Sandboxes that sent nothing within the deadline",
            self.silent.clone(),
        );
        registry.register(
            "dns_lookup_duration_seconds",
            "One DNS name asked, with its retries and search path, from the first query to the deciding answer",
            self.lookups.clone(),
        );
        registry.register(
            "dns_queries",
            "DNS questions sent, by record type and transport",
            self.queries.clone(),
        );
        registry.register(
            "dns_retransmissions",
            "DNS questions sent again",
            self.retransmissions.clone(),
        );
        registry.register(
            "dns_unanswered",
            "DNS questions that never got an answer",
            self.unanswered.clone(),
        );
        registry.register(
            "dns_search_names",
            "DNS names asked only because of the search path (ndots)",
            self.search_names.clone(),
        );
        registry.register(
            "dns_truncated",
            "Lookups of which an answer was cut and asked for again over TCP",
            self.truncated.clone(),
        );
        registry.register(
            "connect_duration_seconds",
            "Set-up of one TCP connection, from its first SYN until it stood or had failed",
            self.connects.clone(),
        );
        registry.register(
            "connect_retransmissions",
            "SYNs sent again",
            self.connect_retransmissions.clone(),
        );
        self.conntrack.register(registry);
        registry.register(
            "packet_drops",
            "DNS packets and SYNs that the kernel dropped, by its reason",
            self.drops.clone(),
        );
        registry.register(
            "root_causes",
            "Lookups and connections that went badly, by cause",
            self.causes.clone(),
        );
        registry.register(
            "journeys",
            "Lookups and connections that went badly and became traces of their own",
            self.journeys.clone(),
        );
        registry.register(
            "journeys_held_back",
            "Lookups and connections that went badly and got no trace of their own, because there were too many",
            self.held_back.clone(),
        );
    }

    /// Counts one output of the correlator.
    pub fn record(&mut self, output: &Output) {
        match output {
            Output::Created(trace) if !trace.closed => {
                self.waiting.insert(trace.root_id());
            }
            Output::Traffic(traffic) => self.traffic(traffic),
            Output::Closed(trace) => match &trace.root().detail {
                Detail::Journey(journey) => {
                    let reason = journey.reason.as_str();
                    self.journeys.get_or_create(&ReasonLabels { reason }).inc();
                }
                Detail::Sandbox(sandbox) => self.sandbox(trace, sandbox),
                _ => {}
            },
            Output::Created(_) | Output::Ended(_) | Output::Asked(_) | Output::Known { .. } => {}
        }
    }

    /// How a sandbox's wait for its first traffic ended. One that nobody waited for says nothing.
    fn sandbox(&mut self, trace: &Trace, sandbox: &SandboxDetail) {
        if !self.waiting.remove(&trace.root_id()) {
            return;
        }
        let (Some(created), Some(ended)) = (creation::created(trace), trace.root().end) else {
            return;
        };
        let Some(first) = sandbox.first_attempt else {
            // One that was removed, or whose agent stopped, while it was waited for was not silent.
            self.silent.inc_by(u64::from(sandbox.silent));
            return;
        };
        let (result, usable): (_, Timestamp) = match sandbox.network_ready {
            Some(ready) => ("ready", ready),
            None => ("failed", ended),
        };
        let labels = ResultLabels { result };
        observe(&self.ready, &labels, usable.since(created), Some(trace.id));
        observe(&self.wait, &labels, usable.since(first), Some(trace.id));
    }

    fn traffic(&mut self, traffic: &Traffic) {
        match traffic {
            Traffic::Lookup(lookup) => self.lookup(lookup),
            Traffic::Connect(connect) => self.connect(connect),
            Traffic::Flow { scope, change, nat } => {
                let scope = scope.as_str();
                let change = match change {
                    FlowChange::New => "new",
                    FlowChange::Destroyed => "destroyed",
                };
                self.conntrack.flows.get_or_create(&FlowLabels { scope, change }).inc();
                // An entry that goes was translated when it came.
                if let (Some(nat), "new") = (nat, change) {
                    let nat = nat.as_str();
                    self.conntrack.nat.get_or_create(&NatLabels { scope, nat }).inc();
                }
            }
            Traffic::Conntrack { scope, counts } => self.conntrack.count(*scope, counts),
            Traffic::Dropped { scope, packet, reason } => self.dropped(*scope, *packet, reason),
            Traffic::JourneyHeldBack => {
                self.held_back.inc();
            }
            // Counted in `windows.rs`.
            Traffic::Activity(_) | Traffic::Endpoints { .. } | Traffic::HnsRestarted => {}
        }
    }

    fn lookup(&self, ended: &LookupEnded) {
        let (scope, detail) = (ended.scope.as_str(), &ended.detail);
        let rcode = detail.result.unwrap_or(LookupResult::Unanswered).as_str();
        let labels = LookupLabels { scope, rcode };
        observe(&self.lookups, &labels, ended.end.since(ended.start), ended.trace);
        for &(kind, transport, count) in &ended.asked {
            let labels = query_labels(scope, kind, transport);
            self.queries.get_or_create(&labels).inc_by(u64::from(count));
        }
        for (counter, count) in [
            (&self.retransmissions, detail.retransmissions),
            (&self.unanswered, detail.unanswered),
            (&self.search_names, detail.search_names),
            (&self.truncated, u32::from(detail.truncated)),
        ] {
            // Most lookups have none of these: nothing to look up.
            if count == 0 {
                continue;
            }
            counter.get_or_create(&ScopeLabels { scope }).inc_by(u64::from(count));
        }
        self.cause(detail.cause.as_ref());
    }

    fn connect(&self, ended: &ConnectEnded) {
        let scope = ended.scope.as_str();
        let labels = ConnectLabels {
            scope,
            result: connect_result(ended.detail.failure),
        };
        observe(&self.connects, &labels, ended.end.since(ended.start), ended.trace);
        let counter = self.connect_retransmissions.get_or_create(&ScopeLabels { scope });
        counter.inc_by(u64::from(ended.detail.retransmits));
        drop(counter);
        self.cause(ended.detail.cause.as_ref());
    }

    fn cause(&self, cause: Option<&Cause>) {
        let known = |cause: &Cause| registry::CAUSES.iter().find(|known| **known == cause.cause);
        if let Some(&cause) = cause.and_then(known) {
            self.causes.get_or_create(&CauseLabels { cause }).inc();
        }
    }

    fn dropped(&mut self, scope: Scope, packet: DroppedPacket, reason: &str) {
        let labels = DropLabels {
            scope: scope.as_str(),
            packet: packet.as_str(),
            reason: self.reason_label.admit(reason),
        };
        self.drops.get_or_create(&labels).inc();
    }
}

impl ConntrackMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register(
            "conntrack_flows",
            "Conntrack entries that came or went",
            self.flows.clone(),
        );
        registry.register(
            "conntrack_nat",
            "Conntrack entries that came and were translated: destination, source or both",
            self.nat.clone(),
        );
        registry.register(
            "conntrack_insert_failed",
            "Conntrack entries that lost a race for one tuple: their packet was dropped",
            self.insert_failed.clone(),
        );
        registry.register(
            "conntrack_drop",
            "Packets dropped because conntrack could make no entry: the table was full, mostly",
            self.drop.clone(),
        );
        registry.register(
            "conntrack_early_drop",
            "Conntrack entries thrown out early to make room",
            self.early_drop.clone(),
        );
        registry.register(
            "conntrack_clash_resolve",
            "Races for one tuple that conntrack resolved without a drop",
            self.clash_resolve.clone(),
        );
        registry.register(
            "conntrack_search_restart",
            "Searches of the conntrack table begun again because it changed under them",
            self.search_restart.clone(),
        );
        registry.register(
            "conntrack_entries",
            "Entries in the node's conntrack table",
            self.entries.clone(),
        );
        registry.register(
            "conntrack_entries_limit",
            "Most entries the node's conntrack table takes",
            self.limit.clone(),
        );
    }

    fn count(&self, scope: Scope, counts: &ConntrackCounts) {
        let labels = ScopeLabels { scope: scope.as_str() };
        for (counter, count) in [
            (&self.insert_failed, counts.insert_failed),
            (&self.drop, counts.drop),
            (&self.early_drop, counts.early_drop),
            (&self.clash_resolve, counts.clash_resolve),
            (&self.search_restart, counts.search_restart),
        ] {
            if count == 0 {
                continue;
            }
            counter.get_or_create(&labels).inc_by(count);
        }
        // There are as many tables as sandboxes: only the node's has a gauge.
        if scope == Scope::Node {
            let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            self.entries.get_or_create(&labels).set(gauge(counts.entries));
            self.limit.get_or_create(&labels).set(gauge(counts.limit));
        }
    }
}

fn query_labels(scope: &'static str, kind: QueryType, transport: Transport) -> QueryLabels {
    QueryLabels {
        scope,
        r#type: kind.as_str(),
        transport: transport.as_str(),
    }
}

fn connect_result(failure: Option<ConnectFailure>) -> &'static str {
    match failure {
        None => "established",
        // The program's own doing says nothing of the network.
        Some(ConnectFailure::Abandoned) => ConnectFailure::Other.as_str(),
        Some(failure) => failure.as_str(),
    }
}

const CONNECT_RESULTS: [&str; 6] = ["established", "refused", "timeout", "unreachable", "reset", "other"];

#[cfg(test)]
mod tests;
