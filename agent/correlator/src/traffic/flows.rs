//! Conntrack entries, remembered so that they can be joined to the lookup or connect that they serve.
//!
//! Used by `conntrack.rs`, `dns.rs` and `lifecycle.rs`. Entries come from ctnetlink, messages and connects from BPF
//! probes, so either may come first: entries are remembered, and exchanges that ended wait a moment.
//! Bounded by `max_flows`: the owner with the most entries loses its oldest, which is counted.

use std::net::SocketAddr;

use sandglass_model::Timestamp;
use sandglass_model::network::DnsMessage;
use sandglass_model::time::MILLISECOND;

use crate::collections::bounded::Bounded;
use crate::finding::Nat;
use crate::notes::{self, NoteKind};
use crate::owner::ShareKey;
use crate::traffic::connect::Connect;
use crate::traffic::lookup::Lookup;
use crate::traffic::packet::{TCP, protocol_of};
use crate::traffic::table::ExchangeTable;
use crate::traffic::table_key::TableKey;

/// A conntrack entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowEntry {
    /// The kernel's id of the entry (`CTA_ID`).
    pub(super) id: u32,
    /// Inode of the network namespace whose table it is in.
    pub(super) netns: u64,
    /// When it was confirmed.
    pub(super) at: Timestamp,
    /// What was translated; `None` for nothing.
    pub(super) nat: Option<Nat>,
    /// The other end after destination translation; `None` where it was not translated.
    pub(super) backend: Option<SocketAddr>,
    /// The client's end after source translation; `None` where it was not translated. Dropped packets may show it.
    pub(super) outside: Option<SocketAddr>,
    /// The owner that it counts for while the table is full.
    pub(super) share: ShareKey,
}

/// Entries remembered, by protocol and both ends as the client sees them.
#[derive(Debug)]
pub(crate) struct FlowTable(pub(super) Bounded<(u8, SocketAddr, SocketAddr), FlowEntry>);

impl FlowTable {
    pub(crate) fn new(max: usize) -> FlowTable {
        FlowTable(Bounded::shared(max, |_, entry| entry.share.key()))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Bound on entries joined to one exchange.
const MAX_JOINED: usize = 8;
/// An entry cannot be older than its connect; this much is for the resolution of the two time stamps. What is older
/// served an earlier use of the same ports.
const EARLY_NS: u64 = 100 * MILLISECOND;

impl FlowTable {
    /// Joins the entry of a query that leaves through a socket which conntrack knows already: a resolver that queries
    /// several names from one port has one entry.
    pub(crate) fn join_known(&self, lookups: &mut ExchangeTable<Lookup>, serial: u64, message: &DnsMessage) {
        let protocol = protocol_of(message.transport);
        let known = self.0.get(&(protocol, message.client, message.server));
        if let Some(entry) = known
            .copied()
            .filter(|entry| is_near(*entry, message.client, message.netns))
        {
            join_to_lookup(lookups, serial, protocol, entry);
        }
    }

    /// Joins the entry of a connect, once both of its ends are known.
    pub(crate) fn join_known_to_connect(&self, connects: &mut ExchangeTable<Connect>, serial: u64) {
        let Some(connect) = connects.get_mut(serial) else {
            return;
        };
        let Some(entry) = self.0.get(&(TCP, connect.local, connect.remote)) else {
            return;
        };
        // Ports are reused: an entry from before the connect served another one.
        let fits = is_near(*entry, connect.local, connect.owner.netns) && entry.at.plus(EARLY_NS) >= connect.start;
        if !fits || connect.flows.len() == MAX_JOINED || connect.flows.contains(&entry.id) {
            return;
        }
        connect.flows.push(entry.id);
        connect.backend = entry.backend.or(connect.backend);
        notes::add(&mut connect.notes, entry.at, note_of(*entry));
        if let Some(outside) = entry.outside {
            connects.key(serial, TableKey::client(TCP, outside));
        }
    }
}

/// Joins an entry to a lookup, each at most once.
pub(super) fn join_to_lookup(lookups: &mut ExchangeTable<Lookup>, serial: u64, protocol: u8, entry: FlowEntry) {
    let Some(lookup) = lookups.get_mut(serial) else {
        return;
    };
    if lookup.flows.len() == MAX_JOINED || lookup.flows.contains(&entry.id) {
        return;
    }
    lookup.flows.push(entry.id);
    lookup.backend = entry.backend.or(lookup.backend);
    notes::add(&mut lookup.notes, entry.at, note_of(entry));
    if let Some(outside) = entry.outside {
        lookups.key(serial, TableKey::client(protocol, outside));
    }
}

/// The entry may belong to a client in this namespace. Loopback addresses are the same in every namespace, so there the
/// namespaces must be equal.
pub(super) fn is_near(entry: FlowEntry, client: SocketAddr, netns: u64) -> bool {
    !client.ip().is_loopback() || entry.netns == netns
}

/// The note of a joined entry.
fn note_of(entry: FlowEntry) -> NoteKind {
    NoteKind::Flow {
        id: entry.id,
        nat: entry.nat,
        backend: entry.backend,
    }
}
