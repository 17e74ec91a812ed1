//! What ended lookups still explain: the addresses that they resolved, late answers to their queries, and queries that are reported again.
//!
//! Used by `tcp.rs` and `lifecycle.rs`, which join a connect to the lookup of its address, by `answers.rs` and by `dns.rs`. Each
//! table is bounded by `max_lookups`, the owner with the most entries loses its oldest, and entries expire after 10 s.
//! Does not: keep open lookups.

use std::net::IpAddr;
use std::sync::Arc;

use sandglass_model::time::SECOND;
use sandglass_model::trace::LookupResult;
use sandglass_model::{SmolStr, Timestamp};

use crate::collections::bounded::Bounded;
use crate::exchange::Exchange;
use crate::owner::ShareKey;
use crate::traffic::lookup::Lookup;
use crate::traffic::table_key::TableKey;

/// An address that a lookup resolved.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedAddress {
    /// Serial number of the lookup.
    pub(crate) lookup: u64,
    /// The name as the program meant it.
    pub(crate) name: SmolStr,
    /// The ended lookup; `None` while it is open.
    pub(crate) ended: Option<EndedLookup>,
    /// The owner that it counts for while the table is full.
    pub(crate) share: ShareKey,
}

/// A lookup that ended, for a connect to one of its addresses that goes badly.
#[derive(Clone, Debug)]
pub(crate) enum EndedLookup {
    /// As a trace shows it.
    Shown(Arc<Exchange>),
    /// One that went well and is in no trace: it is rendered when a journey needs it, which is seldom.
    Unshown(Arc<UnshownLookup>),
}

/// What was known of a lookup when it was over, and how it ended.
#[derive(Debug)]
pub(crate) struct UnshownLookup {
    pub(crate) lookup: Box<Lookup>,
    pub(crate) result: LookupResult,
    pub(crate) end: Timestamp,
}

impl EndedLookup {
    /// As a trace shows it.
    pub(crate) fn exchange(&self) -> Arc<Exchange> {
        match self {
            EndedLookup::Shown(exchange) => Arc::clone(exchange),
            EndedLookup::Unshown(unshown) => {
                let UnshownLookup { lookup, result, end } = &**unshown;
                let detail = Box::new(lookup.detail(Some(*result)));
                Arc::new(Exchange::of_lookup(lookup, detail, *result, *end, None))
            }
        }
    }
}

/// A query of an ended lookup.
#[derive(Clone, Copy, Debug)]
struct EndedQuery {
    /// When it was sent.
    at: Timestamp,
    share: ShareKey,
}

/// Both tables.
#[derive(Debug)]
pub(crate) struct EndedLookups {
    /// By network namespace and address.
    addresses: Bounded<(u64, IpAddr), ResolvedAddress>,
    /// Queries of ended lookups: their late answers are no orphans, and the queries themselves no new lookups if their records come twice.
    queries: Bounded<TableKey, EndedQuery>,
}

/// A connect belongs to a lookup of its address that is no older than this. Programs connect at once; a longer reach
/// would join connects from caches to lookups that they did not need.
const REACH_NS: u64 = 10 * SECOND;

impl EndedLookups {
    pub(crate) fn new(max: usize) -> EndedLookups {
        EndedLookups {
            addresses: Bounded::shared(max, |_, resolved| resolved.share.key()),
            queries: Bounded::shared(max, |_, query| query.share.key()),
        }
    }

    /// Removes addresses that were resolved more than `REACH_NS` before `now`.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        self.addresses.expire(now.minus(REACH_NS));
    }

    /// The newest lookup in this namespace that resolved the address.
    pub(crate) fn address(&self, netns: u64, address: IpAddr) -> Option<&ResolvedAddress> {
        self.addresses.get(&(netns, address))
    }

    /// An answer contains this address. A later lookup replaces an earlier one, which is returned if it ended.
    pub(crate) fn insert(
        &mut self,
        netns: u64,
        address: IpAddr,
        resolved: ResolvedAddress,
        at: Timestamp,
    ) -> Option<EndedLookup> {
        let key = (netns, address.to_canonical());
        let before = self.addresses.get_mut(&key).and_then(|before| before.ended.take());
        self.addresses.insert(key, resolved, at);
        before
    }

    /// One of the addresses was last resolved by this lookup.
    pub(crate) fn lead_to(&self, netns: u64, addresses: &[IpAddr], lookup: u64) -> bool {
        let mut known = addresses
            .iter()
            .filter_map(|address| self.address(netns, address.to_canonical()));
        known.any(|resolved| resolved.lookup == lookup)
    }

    /// The lookup ended: its addresses lead to it, under the name as it is known now. The name of an open lookup can
    /// change with each name of the search path.
    pub(crate) fn complete(&mut self, netns: u64, addresses: &[IpAddr], lookup: u64, name: &str, ended: &EndedLookup) {
        for address in addresses {
            if let Some(resolved) = self.addresses.get_mut(&(netns, address.to_canonical()))
                && resolved.lookup == lookup
            {
                if resolved.name != *name {
                    resolved.name = name.into();
                }
                resolved.ended = Some(ended.clone());
            }
        }
    }

    /// Remembers the queries of an ended lookup.
    pub(crate) fn remember_queries(&mut self, lookup: &Lookup, now: Timestamp) {
        self.queries.expire(now.minus(REACH_NS));
        let share = lookup.owner.share();
        for sent in &lookup.sent {
            let key = TableKey::message(sent.client, sent.transport, sent.id);
            self.queries.insert(key, EndedQuery { at: sent.at, share }, now);
        }
    }

    /// The message is the answer to a query of an ended lookup.
    pub(crate) fn has_query(&self, message: TableKey) -> bool {
        self.queries.get(&message).is_some()
    }

    /// The message that was sent at `at` is a query of an ended lookup: its record came twice.
    pub(crate) fn has_query_sent_at(&self, message: TableKey, at: Timestamp) -> bool {
        self.queries.get(&message).is_some_and(|query| query.at == at)
    }
}
