//! Metrics of conntrack: entries created and destroyed, NAT, and the counters of its tables.
//!
//! Used by [`super::traffic`]. Does not: have a gauge for a sandbox's table; only the node's table has one, since there are
//! as many tables as sandboxes.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sandglass_correlator::finding::{Nat, Scope};
use sandglass_model::network::{ConntrackCounts, FlowChange};

use super::series::SeriesList;
use crate::registration::register;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ScopeLabels {
    pub(super) scope: &'static str,
}

/// A counter for sandboxes and one for the node itself.
pub(super) type ScopeCounter = Family<ScopeLabels, Counter>;

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

/// The metrics.
#[derive(Debug)]
pub(super) struct ConntrackMetrics {
    /// Of `flows`: by scope, then as [`CHANGES`].
    flow_series: SeriesList<Counter>,
    /// Of `nat`: by scope, then as [`Nat::ALL`].
    nat_series: SeriesList<Counter>,
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

impl Default for ConntrackMetrics {
    fn default() -> ConntrackMetrics {
        let (flows, nat) = (Family::default(), Family::default());
        let scopes = || Scope::ALL.map(Scope::as_str).into_iter();
        let flow_labels = |scope| CHANGES.map(|change| FlowLabels { scope, change });
        let nat_labels = |scope| Nat::ALL.map(Nat::as_str).map(|nat| NatLabels { scope, nat });
        ConntrackMetrics {
            flow_series: SeriesList::of(&flows, scopes().flat_map(flow_labels)),
            nat_series: SeriesList::of(&nat, scopes().flat_map(nat_labels)),
            flows,
            nat,
            insert_failed: Family::default(),
            drop: Family::default(),
            early_drop: Family::default(),
            clash_resolve: Family::default(),
            search_restart: Family::default(),
            entries: Family::default(),
            limit: Family::default(),
        }
    }
}

impl ConntrackMetrics {
    /// Creates every other series of a scope.
    pub(super) fn begin(&self, scope: &'static str) {
        for counter in [
            &self.insert_failed,
            &self.drop,
            &self.early_drop,
            &self.clash_resolve,
            &self.search_restart,
        ] {
            drop(counter.get_or_create(&ScopeLabels { scope }));
        }
    }

    /// Counts an entry that was created or destroyed. NAT is counted at creation.
    pub(super) fn flow(&self, scope: Scope, change: FlowChange, nat: Option<Nat>) {
        let scope = scope as usize;
        let change = match change {
            FlowChange::New => {
                let series = nat.and_then(|nat| self.nat_series.get(scope * Nat::ALL.len() + nat as usize));
                if let Some(series) = series {
                    series.inc();
                }
                0
            }
            FlowChange::Destroyed => 1,
        };
        if let Some(series) = self.flow_series.get(scope * CHANGES.len() + change) {
            series.inc();
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        register! { registry,
            "conntrack_flows": self.flows, "Conntrack entries created and destroyed";
            "conntrack_nat": self.nat, "Conntrack entries created with NAT of the destination, the source or both";
        }
        register! { registry,
            "conntrack_insert_failed": self.insert_failed, "Conntrack entries that lost a race for a tuple, with their packet dropped";
            "conntrack_drop": self.drop, "Packets dropped because conntrack could not create an entry, mostly for a full table";
            "conntrack_early_drop": self.early_drop, "Conntrack entries evicted early to make room for new ones";
            "conntrack_clash_resolve": self.clash_resolve, "Races for a tuple that conntrack resolved without a drop";
            "conntrack_search_restart": self.search_restart, "Searches of the conntrack table restarted because the table changed";
        }
        register! { registry,
            "conntrack_entries": self.entries, "Entries in the node's conntrack table";
            "conntrack_entries_limit": self.limit, "Maximum number of entries in the node's conntrack table";
        }
    }

    /// Adds the growth of a table's counters.
    pub(super) fn count(&self, scope: Scope, counts: &ConntrackCounts) {
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
        if scope == Scope::Node {
            let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            self.entries.get_or_create(&labels).set(gauge(counts.entries));
            self.limit.get_or_create(&labels).set(gauge(counts.limit));
        }
    }
}

const CHANGES: [&str; 2] = ["new", "destroyed"];
