//! The room of traffic: lookups, connects, conntrack entries and dropped packets, each attributed to its owner.
//!
//! Gets the events of traffic from `correlator.rs`; reports exchanges of sandboxes whose network is not ready, and
//! journeys, as facts. Here is its state; the events are handled in `dns.rs`, `answers.rs`, `tcp.rs`, `conntrack.rs` and
//! `drops.rs`, what becomes of an exchange in `lifecycle.rs`. Every table is bounded, and evictions are counted.
//! Does not: decide when a network is ready, or touch an open trace.

pub(crate) mod answers;
pub(crate) mod attribution;
pub(crate) mod causes;
pub(crate) mod connect;
pub(crate) mod conntrack;
pub(crate) mod counters;
pub(crate) mod dns;
pub(crate) mod drops;
pub(crate) mod ended_lookups;
pub(crate) mod endings;
pub(crate) mod flows;
pub(crate) mod journeys;
pub(crate) mod lifecycle;
pub(crate) mod lookup;
pub(crate) mod rate;
pub(crate) mod table;
pub(crate) mod table_index;
pub(crate) mod table_key;
pub(crate) mod tcp;

use crate::config::CorrelatorConfig;
use crate::counters::Sizes;
use crate::traffic::attribution::Owners;
use crate::traffic::connect::Connect;
use crate::traffic::counters::CounterHistory;
use crate::traffic::ended_lookups::EndedLookups;
use crate::traffic::flows::FlowTable;
use crate::traffic::journeys::Journeys;
use crate::traffic::lookup::Lookup;
use crate::traffic::table::ExchangeTable;

/// The room's state.
#[derive(Debug)]
pub(crate) struct Traffic {
    owners: Owners,
    lookups: ExchangeTable<Lookup>,
    connects: ExchangeTable<Connect>,
    flows: FlowTable,
    counters: CounterHistory,
    resolved: EndedLookups,
    journeys: Journeys,
}

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
            journeys: Journeys::new(traffic.journeys_per_minute),
        }
    }

    pub(crate) fn fill_sizes(&self, sizes: &mut Sizes) {
        sizes.lookups = self.lookups.len();
        sizes.connects = self.connects.len();
        sizes.flows = self.flows.len();
        sizes.owners = self.owners.len();
        sizes.journeys = self.journeys.len();
    }
}
