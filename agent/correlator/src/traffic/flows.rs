//! Conntrack entries, remembered to be joined to the lookup or connect that they serve.
//!
//! The record of an entry may come before or after the records of what it serves: entries are remembered, and exchanges
//! that ended wait a moment. Bounded: the oldest entry is evicted.

use std::net::SocketAddr;

use sandglass_model::Timestamp;
use sandglass_model::network::{DnsMessage, Transport};
use sandglass_model::time::MILLISECOND;

use crate::collections::bounded::Bounded;
use crate::finding::Nat;
use crate::notes::{self, NoteKind};
use crate::traffic::connect::Connect;
use crate::traffic::lookup::Lookup;
use crate::traffic::table::ExchangeTable;
use crate::traffic::table_key::TableKey;

/// IP protocol numbers (RFC 9293 and RFC 768, as assigned by IANA).
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

/// A conntrack entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowEntry {
    pub(super) id: u32,
    pub(super) netns: u64,
    pub(super) at: Timestamp,
    pub(super) nat: Option<Nat>,
    pub(super) backend: Option<SocketAddr>,
    /// The client's end as the other side sees it, where it was translated.
    pub(super) outside: Option<SocketAddr>,
}

/// Entries remembered, by protocol and both ends as the client sees them.
#[derive(Debug)]
pub(crate) struct FlowTable(pub(super) Bounded<(u8, SocketAddr, SocketAddr), FlowEntry>);

impl FlowTable {
    pub(crate) fn new(max: usize) -> FlowTable {
        FlowTable(Bounded::new(max))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Most entries joined to one lookup or connection.
const MAX_JOINED: usize = 8;
/// A connection's entry is not older than the connection, but for the clocks that told of both.
const EARLY_NS: u64 = 100 * MILLISECOND;

impl FlowTable {
    /// A message leaves by a socket that conntrack may know already.
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

    pub(crate) fn join_known_to_connect(&self, connects: &mut ExchangeTable<Connect>, serial: u64) {
        let Some(connect) = connects.get_mut(serial) else {
            return;
        };
        let Some(entry) = self.0.get(&(TCP, connect.local, connect.remote)) else {
            return;
        };
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

/// Addresses of the machine itself are the same in every network namespace.
pub(super) fn is_near(entry: FlowEntry, client: SocketAddr, netns: u64) -> bool {
    !client.ip().is_loopback() || entry.netns == netns
}

fn note_of(entry: FlowEntry) -> NoteKind {
    NoteKind::Flow {
        id: entry.id,
        nat: entry.nat,
        backend: entry.backend,
    }
}

/// IP protocol number of a transport of DNS.
pub(crate) fn protocol_of(transport: Transport) -> u8 {
    match transport {
        Transport::Udp => UDP,
        Transport::Tcp => TCP,
    }
}
