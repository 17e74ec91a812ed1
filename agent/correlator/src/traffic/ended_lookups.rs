//! What lookups that are over still explain: the addresses that they resolved, and late answers to their queries.
//!
//! Bounded by the number of lookups. Does not: keep open lookups.

use std::net::IpAddr;
use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::time::SECOND;

use crate::collections::bounded::Bounded;
use crate::exchange::Exchange;
use crate::traffic::lookup::Lookup;
use crate::traffic::table_key::TableKey;

/// An address that a lookup resolved.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedAddress {
    /// Serial number of the lookup.
    pub(crate) lookup: u64,
    pub(crate) name: Arc<str>,
    /// The lookup, once it is over.
    pub(crate) exchange: Option<Arc<Exchange>>,
}

/// Both tables.
#[derive(Debug)]
pub(crate) struct EndedLookups {
    /// By network namespace and address.
    addresses: Bounded<(u64, IpAddr), ResolvedAddress>,
    /// Queries of lookups that are over: their late answers are no orphans.
    queries: Bounded<TableKey, ()>,
}

/// A connect belongs to a lookup of its address that is no older than this.
const REACH_NS: u64 = 10 * SECOND;

impl EndedLookups {
    pub(crate) fn new(max: usize) -> EndedLookups {
        EndedLookups {
            addresses: Bounded::new(max),
            queries: Bounded::new(max),
        }
    }

    /// Removes addresses that are too old at `now`.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        self.addresses.expire(now.minus(REACH_NS));
    }

    pub(crate) fn address(&self, netns: u64, address: IpAddr) -> Option<&ResolvedAddress> {
        self.addresses.get(&(netns, address))
    }

    /// An answer has this address.
    pub(crate) fn insert(&mut self, netns: u64, address: IpAddr, resolved: ResolvedAddress, at: Timestamp) {
        self.addresses.insert((netns, address.to_canonical()), resolved, at);
    }

    /// The lookup is over: its addresses lead to it, under the name as it is known now.
    pub(crate) fn complete(
        &mut self,
        netns: u64,
        addresses: &[IpAddr],
        lookup: u64,
        name: &str,
        exchange: &Arc<Exchange>,
    ) {
        for address in addresses {
            if let Some(resolved) = self.addresses.get_mut(&(netns, address.to_canonical()))
                && resolved.lookup == lookup
            {
                if *resolved.name != *name {
                    resolved.name = name.into();
                }
                resolved.exchange = Some(Arc::clone(exchange));
            }
        }
    }

    /// Remembers the queries of a lookup that is over.
    pub(crate) fn remember_queries(&mut self, lookup: &Lookup, now: Timestamp) {
        self.queries.expire(now.minus(REACH_NS));
        for sent in &lookup.sent {
            let key = TableKey::message(sent.client, sent.transport, sent.id);
            self.queries.insert(key, (), now);
        }
    }

    /// The message was a query of a lookup that is over.
    pub(crate) fn has_query(&self, message: TableKey) -> bool {
        self.queries.get(&message).is_some()
    }
}
