//! What is kept of the node's traffic: open lookups and connections, conntrack's entries and counters, who is who.
//!
//! Bounded everywhere; what goes for want of room is counted. Does not: touch the traces.

use std::net::IpAddr;
use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::time::SECOND;

use crate::collections::bounded::Bounded;
use crate::config::Config;
use crate::traffic::exchanges::Exchange;
use crate::traffic::connect::Connect;
use crate::traffic::conntrack::{CounterHistory, FlowTable};
use crate::traffic::journeys::Journeys;
use crate::traffic::lookup::Lookup;
use crate::traffic::owners::{Owners, Owner};
use crate::traffic::table::{Key, ExchangeTable};

/// An address that a lookup gave.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    /// Serial number of the lookup.
    pub(crate) lookup: u64,
    pub(crate) name: Arc<str>,
    /// The lookup, once it is over.
    pub(crate) part: Option<Arc<Exchange>>,
}

/// Everything kept.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) owners: Owners,
    pub(crate) lookups: ExchangeTable<Lookup>,
    pub(crate) connects: ExchangeTable<Connect>,
    pub(crate) flows: FlowTable,
    pub(crate) counts: CounterHistory,
    /// By network namespace and address.
    pub(crate) given: Bounded<(u64, IpAddr), Resolved>,
    pub(crate) journeys: Journeys,
    /// Messages of lookups that are over: their late answers are no orphans.
    past_queries: Bounded<Key, ()>,
    /// Lookups and connections that begin up to here may miss records that were lost.
    lost_until: Option<Timestamp>,
    serial: u64,
}

/// A connection belongs with a lookup of its address that is not older than this.
pub(crate) const REACH_NS: u64 = 10 * SECOND;

impl Watch {
    pub(crate) fn new(config: &Config) -> Watch {
        let traffic = &config.traffic;
        Watch {
            owners: Owners::new(config.max_remembered),
            lookups: ExchangeTable::default(),
            connects: ExchangeTable::default(),
            flows: FlowTable::new(traffic.max_flows),
            counts: CounterHistory::new(config.max_traces),
            given: Bounded::new(traffic.max_lookups),
            journeys: Journeys::new(traffic.journeys_per_minute),
            past_queries: Bounded::new(traffic.max_lookups),
            lost_until: None,
            serial: 0,
        }
    }

    /// A number for the next thing that is opened.
    pub(crate) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Whose a socket's traffic is; what it shows of addresses is learnt.
    pub(crate) fn owner(&mut self, netns: u64, address: IpAddr, now: Timestamp) -> Owner {
        let owner = self.owners.owner(netns, address);
        if let Some(sandbox) = &owner.sandbox {
            self.owners.own_address(address, sandbox, now);
        }
        owner
    }

    /// Takes a lookup out of the open ones.
    pub(crate) fn take_lookup(&mut self, serial: u64, now: Timestamp) -> Option<Lookup> {
        let lookup = *self.lookups.remove(serial)?;
        self.past_queries.expire(now.minus(REACH_NS));
        for sent in &lookup.sent {
            let key = Key::message(sent.client, sent.transport, sent.id);
            self.past_queries.insert(key, (), now);
        }
        Some(lookup)
    }

    /// The message was one of a lookup that is over.
    pub(crate) fn is_past_query(&self, message: Key) -> bool {
        self.past_queries.get(&message).is_some()
    }

    /// What a lookup that is over gave can still be joined.
    pub(crate) fn remember_given(
        &mut self,
        netns: u64,
        addresses: &[IpAddr],
        lookup: u64,
        name: &str,
        part: &Arc<Exchange>,
    ) {
        for address in addresses {
            if let Some(given) = self.given.get_mut(&(netns, address.to_canonical()))
                && given.lookup == lookup
            {
                if *given.name != *name {
                    given.name = name.into();
                }
                given.part = Some(Arc::clone(part));
            }
        }
    }

    /// Records of traffic were lost.
    pub(crate) fn lose(&mut self, until: Timestamp) {
        self.lost_until = self.lost_until.max(Some(until));
        for lookup in self.lookups.values_mut() {
            lookup.lost = true;
        }
        for connect in self.connects.values_mut() {
            connect.lost = true;
        }
    }

    /// Records of DNS messages were lost up to `at`.
    pub(crate) fn lose_answers(&mut self, at: Timestamp) {
        for lookup in self.lookups.values_mut() {
            lookup.lose_answers(at);
        }
    }

    pub(crate) fn is_lossy(&self, at: Timestamp) -> bool {
        self.lost_until.is_some_and(|until| at <= until)
    }
}
