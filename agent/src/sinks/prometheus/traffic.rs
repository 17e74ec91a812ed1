//! Metrics of traffic: lookups, connects, dropped packets, causes and journeys.
//!
//! Used by [`super::ProductMetrics`] with every output of the correlator. Counts every lookup and connect, with or without a
//! trace of its own. Labels are from closed sets, whose series all start at 0, except the kernel's reasons of drops, which
//! are bounded. Names, addresses and pods are in traces only.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sandglass_correlator::Output;
use sandglass_correlator::finding::{ConnectEnded, Finding, LookupEnded, QueryType, Scope};
use sandglass_model::network::{ConnectFailure, DroppedPacket, Transport, Unreported};
use sandglass_model::trace::{Cause, JourneyReason, LookupResult};
use sandglass_model::{Detail, registry};

use super::bounded::BoundedLabel;
use super::conntrack::{ConntrackMetrics, ScopeCounter, ScopeLabels};
use super::durations::{Buckets, DurationFamily, DurationSeries, durations, observe_in};
use super::series::SeriesList;
use crate::registration::register;
use crate::sinks::sampling::{Policy, Sampling};

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
struct DropLabels {
    scope: &'static str,
    packet: &'static str,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UnreportedLabels {
    scope: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabels {
    cause: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// All metrics of traffic.
#[derive(Debug)]
pub struct TrafficMetrics {
    lookups: DurationFamily<LookupLabels>,
    queries: Family<QueryLabels, Counter>,
    retransmissions: ScopeCounter,
    unanswered: ScopeCounter,
    search_names: ScopeCounter,
    truncated: ScopeCounter,
    malformed: ScopeCounter,
    unreported: Family<UnreportedLabels, Counter>,
    connects: DurationFamily<ConnectLabels>,
    connect_retransmissions: ScopeCounter,
    conntrack: ConntrackMetrics,
    drops: Family<DropLabels, Counter>,
    reason_label: BoundedLabel,
    causes: Family<CauseLabels, Counter>,
    journeys: Family<ReasonLabels, Counter>,
    held_back: Counter,
    /// Of `lookups`: by scope, then as [`LookupResult::NAMES`].
    lookup_series: SeriesList<DurationSeries>,
    /// Of `queries`: by scope, type and transport.
    query_series: SeriesList<Counter>,
    /// Of `connects`: by scope, then as [`CONNECT_RESULTS`].
    connect_series: SeriesList<DurationSeries>,
    pub(super) sampling: Sampling,
}

impl TrafficMetrics {
    /// Metrics with at most `max_label_values` reasons of drops. Known label sets start at 0.
    #[must_use]
    pub fn new(max_label_values: usize, buckets: Buckets) -> TrafficMetrics {
        let (lookups, queries, connects) = (durations(buckets), Family::default(), durations(buckets));
        let scopes = || Scope::ALL.map(Scope::as_str).into_iter();
        let lookup_labels = |scope| LookupResult::NAMES.map(|rcode| LookupLabels { scope, rcode });
        let connect_labels = |scope| CONNECT_RESULTS.map(|result| ConnectLabels { scope, result });
        let query_labels = |scope| {
            let of_type = move |kind| TRANSPORTS.map(|transport| query_labels(scope, kind, transport));
            QueryType::ALL.into_iter().flat_map(of_type)
        };
        let metrics = TrafficMetrics {
            lookup_series: SeriesList::of(&lookups, scopes().flat_map(lookup_labels)),
            query_series: SeriesList::of(&queries, scopes().flat_map(query_labels)),
            connect_series: SeriesList::of(&connects, scopes().flat_map(connect_labels)),
            lookups,
            queries,
            retransmissions: Family::default(),
            unanswered: Family::default(),
            search_names: Family::default(),
            truncated: Family::default(),
            malformed: Family::default(),
            unreported: Family::default(),
            connects,
            connect_retransmissions: Family::default(),
            conntrack: ConntrackMetrics::default(),
            drops: Family::default(),
            reason_label: BoundedLabel::shared(max_label_values, 2),
            causes: Family::default(),
            journeys: Family::default(),
            held_back: Counter::default(),
            sampling: Sampling::new(Policy::All),
        };
        metrics.begin();
        metrics
    }

    /// Creates every other series of a closed label set.
    fn begin(&self) {
        for scope in Scope::ALL.map(Scope::as_str) {
            for reason in Unreported::ALL.map(Unreported::as_str) {
                drop(self.unreported.get_or_create(&UnreportedLabels { scope, reason }));
            }
            for counter in [
                &self.retransmissions,
                &self.unanswered,
                &self.search_names,
                &self.truncated,
                &self.malformed,
                &self.connect_retransmissions,
            ] {
                drop(counter.get_or_create(&ScopeLabels { scope }));
            }
            self.conntrack.begin(scope);
        }
        for &cause in registry::CAUSES {
            drop(self.causes.get_or_create(&CauseLabels { cause }));
        }
        for reason in JourneyReason::ALL.map(JourneyReason::as_str) {
            drop(self.journeys.get_or_create(&ReasonLabels { reason }));
        }
    }

    /// Registers all of them.
    pub fn register(&self, registry: &mut Registry) {
        register! { registry,
            "dns_lookup_duration_seconds": self.lookups, "DNS lookups of one name, with retries and search path, from the first query to the deciding answer";
            "dns_queries": self.queries, "DNS queries sent, by record type and transport";
            "dns_retransmissions": self.retransmissions, "DNS queries retransmitted";
            "dns_unanswered": self.unanswered, "DNS queries without an answer";
            "dns_search_names": self.search_names, "DNS names queried only because of the search path (ndots)";
            "dns_truncated": self.truncated, "DNS lookups with a truncated answer that were retried over TCP";
            "dns_malformed": self.malformed, "DNS messages that could not be parsed, wholly or in part";
            "dns_unreported": self.unreported, "DNS messages that belong to no lookup, by reason; with questions: questions beyond a message's eighth; with unseen: bytes of TCP streams";
        }
        register! { registry,
            "connect_duration_seconds": self.connects, "TCP connects, from the first SYN until the connection was established or had failed";
            "connect_retransmissions": self.connect_retransmissions, "SYNs retransmitted";
        }
        self.conntrack.register(registry);
        register! { registry,
            "packet_drops": self.drops, "DNS packets and SYNs that the kernel dropped, by its drop reason";
            "root_causes": self.causes, "Failed, slow, retried and dropped lookups and connects, by cause";
            "journeys": self.journeys, "Failed, slow, retried and dropped lookups and connects with a trace of their own";
            "journeys_held_back": self.held_back, "Failed, slow, retried and dropped lookups and connects without a trace, since their rate was above the limit";
        }
    }

    /// Counts one output of the correlator.
    pub fn record(&mut self, output: &Output) {
        match output {
            Output::Finding(traffic) => self.traffic(traffic),
            Output::Closed(trace) => {
                if let Detail::Journey(journey) = &trace.root().detail {
                    let reason = journey.reason.as_str();
                    self.journeys.get_or_create(&ReasonLabels { reason }).inc();
                }
            }
            Output::Created(_) | Output::Ended(_) | Output::LabelsNeeded(_) | Output::Preexisting { .. } => {}
        }
    }

    fn traffic(&mut self, traffic: &Finding) {
        match traffic {
            Finding::Lookup(lookup) => self.lookup(lookup),
            Finding::Connect(connect) => self.connect(connect),
            Finding::Flow { scope, change, nat } => self.conntrack.flow(*scope, *change, *nat),
            Finding::Conntrack { scope, counts } => self.conntrack.count(*scope, counts),
            Finding::Dropped { scope, packet, reason } => self.dropped(*scope, *packet, reason),
            Finding::DnsUnreported { scope, reason, count } => {
                let scope = scope.as_str();
                if matches!(reason, Unreported::Malformed | Unreported::Records) {
                    self.malformed.get_or_create(&ScopeLabels { scope }).inc_by(*count);
                }
                let reason = reason.as_str();
                let labels = UnreportedLabels { scope, reason };
                self.unreported.get_or_create(&labels).inc_by(*count);
            }
            Finding::JourneyHeldBack => {
                self.held_back.inc();
            }
            // Counted in `windows.rs`.
            Finding::Activity(_) | Finding::Endpoints { .. } | Finding::HnsRestarted => {}
        }
    }

    fn lookup(&self, ended: &LookupEnded) {
        let (scope, detail) = (ended.scope.as_str(), &ended.detail);
        let rcode = detail.result.unwrap_or(LookupResult::Unanswered).as_str();
        let series = position(&LookupResult::NAMES, rcode).and_then(|rcode| {
            self.lookup_series
                .get(ended.scope as usize * LookupResult::NAMES.len() + rcode)
        });
        if let Some(series) = series {
            let exemplar = self
                .sampling
                .exemplar_of_exchange(ended.trace, ended.journey, ended.detail.cause.is_some());
            observe_in(series, ended.end.since(ended.start), exemplar);
        }
        for &(kind, transport, count) in &ended.queries {
            let of_type = ended.scope as usize * QueryType::ALL.len() + kind as usize;
            if let Some(series) = self.query_series.get(of_type * TRANSPORTS.len() + transport as usize) {
                series.inc_by(u64::from(count));
            }
        }
        for (counter, count) in [
            (&self.retransmissions, detail.retransmissions),
            (&self.unanswered, detail.unanswered),
            (&self.search_names, detail.search_names),
            (&self.truncated, u32::from(detail.truncated)),
        ] {
            // Most lookups have none of these: skips the search for the series.
            if count == 0 {
                continue;
            }
            counter.get_or_create(&ScopeLabels { scope }).inc_by(u64::from(count));
        }
        self.cause(detail.cause.as_ref());
    }

    fn connect(&self, ended: &ConnectEnded) {
        let result = connect_result(ended.detail.failure);
        let series = position(&CONNECT_RESULTS, result).and_then(|result| {
            self.connect_series
                .get(ended.scope as usize * CONNECT_RESULTS.len() + result)
        });
        if let Some(series) = series {
            let exemplar = self
                .sampling
                .exemplar_of_exchange(ended.trace, ended.journey, ended.detail.cause.is_some());
            observe_in(series, ended.end.since(ended.start), exemplar);
        }
        if ended.detail.retransmits > 0 {
            let scope = ended.scope.as_str();
            let counter = self.connect_retransmissions.get_or_create(&ScopeLabels { scope });
            counter.inc_by(u64::from(ended.detail.retransmits));
        }
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
            // A closed set of the running kernel, of which a pod can cause some by the packets that it makes.
            reason: self.reason_label.admit_of(scope_owner(scope), reason),
        };
        self.drops.get_or_create(&labels).inc();
    }
}

/// The owner of a reason of drops: all sandboxes are one.
fn scope_owner(scope: Scope) -> &'static str {
    match scope {
        Scope::Sandbox => "sandboxes",
        Scope::Node => "",
    }
}

fn position(names: &[&str], name: &str) -> Option<usize> {
    names.iter().position(|known| *known == name)
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
        // The program abandoned it: that says nothing about the network.
        Some(ConnectFailure::Abandoned) => ConnectFailure::Other.as_str(),
        Some(failure) => failure.as_str(),
    }
}

/// In the order of the enumeration.
const TRANSPORTS: [Transport; 2] = [Transport::Udp, Transport::Tcp];
const CONNECT_RESULTS: [&str; 6] = ["established", "refused", "timeout", "unreachable", "reset", "other"];

#[cfg(test)]
mod tests;
