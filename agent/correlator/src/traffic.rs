//! The room of traffic: lookups, connects, conntrack entries and dropped packets, each attributed to its owner.
//!
//! `correlator.rs` passes it the events of traffic, and the facts that name owners (network namespaces, addresses,
//! compartments). It reports exchanges of sandboxes whose network is not ready, and journeys, as facts; everything that
//! ends is a finding for metrics. This file holds its state. Events are handled in `dns.rs` (queries), `answers.rs`,
//! `tcp.rs`, `conntrack.rs` and `drops.rs`; `lookup.rs` and `connect.rs` are one exchange each; `lifecycle.rs` moves an
//! exchange from begin to end, `endings.rs` ends it, `causes.rs` explains what went badly: a further cause is a
//! function there.
//!
//! It may touch its own tables and timers of kind `Lookup`, `Connect` and `Journey`. Every table is bounded, and
//! evictions are counted.
//! Does not: decide when a network is ready, or touch an open trace.

pub(crate) mod answers;
pub(crate) mod attribution;
pub(crate) mod causes;
pub(crate) mod connect;
pub(crate) mod conntrack;
pub(crate) mod counters;
pub(crate) mod dns;
pub(crate) mod drops;
pub(crate) mod ended_connects;
pub(crate) mod ended_lookups;
pub(crate) mod endings;
pub(crate) mod flows;
pub(crate) mod journeys;
pub(crate) mod lifecycle;
pub(crate) mod lookup;
pub(crate) mod packet;
pub(crate) mod rate;
pub(crate) mod table;
pub(crate) mod table_index;
pub(crate) mod table_key;
pub(crate) mod tcp;

use crate::config::CorrelatorConfig;
use crate::counters::{Evictions, Sizes};
use crate::traffic::attribution::Owners;
use crate::traffic::connect::Connect;
use crate::traffic::counters::CounterHistory;
use crate::traffic::ended_connects::EndedConnects;
use crate::traffic::ended_lookups::EndedLookups;
use crate::traffic::flows::FlowTable;
use crate::traffic::journeys::Journeys;
use crate::traffic::lookup::Lookup;
use crate::traffic::table::ExchangeTable;

/// The room's state.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// Which sandbox a network namespace or an address belongs to.
    owners: Owners,
    /// Open lookups, at most `max_lookups`.
    lookups: ExchangeTable<Lookup>,
    /// Open connects, at most `max_connects`.
    connects: ExchangeTable<Connect>,
    /// Conntrack entries, at most `max_flows`.
    flows: FlowTable,
    /// Readings of conntrack's counters, by network namespace.
    counters: CounterHistory,
    /// What ended lookups still explain.
    resolved: EndedLookups,
    /// Connects whose records may still come twice.
    ended_connects: EndedConnects,
    /// Open journeys, and the rate limit.
    journeys: Journeys,
    /// Lookups that are over, for the memory that they have: at most [`SPARE_LOOKUPS`].
    #[allow(clippy::vec_box, reason = "the table takes the box as it is")]
    spare: Vec<Box<Lookup>>,
}

/// As many as end within a moment when programs look names up in bursts.
const SPARE_LOOKUPS: usize = 1_024;

impl Traffic {
    pub(crate) fn new(config: &CorrelatorConfig) -> Traffic {
        let traffic = &config.traffic;
        Traffic {
            owners: Owners::new(config.max_remembered),
            lookups: ExchangeTable::default(),
            connects: ExchangeTable::default(),
            flows: FlowTable::new(traffic.max_flows),
            counters: CounterHistory::new(config.max_traces),
            resolved: EndedLookups::new(traffic.max_lookups),
            ended_connects: EndedConnects::new(traffic.max_connects),
            journeys: Journeys::new(traffic.journeys_per_minute),
            spare: Vec::new(),
        }
    }

    /// Network namespaces and addresses whose owner is no longer known.
    pub(crate) fn evicted_owners(&self) -> Evictions {
        self.owners.evicted()
    }

    /// Adds the number of entries for the metric of table sizes.
    pub(crate) fn fill_sizes(&self, sizes: &mut Sizes) {
        sizes.lookups = self.lookups.len();
        sizes.connects = self.connects.len();
        sizes.flows = self.flows.len();
        sizes.owners = self.owners.len();
        sizes.journeys = self.journeys.len();
    }
}
