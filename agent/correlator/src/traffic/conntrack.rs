//! Conntrack's entries and counters, and dropped packets: joined to the lookup or connection they are about.
//!
//! An entry's record may come before or after the records of what it serves: entries are remembered, and what ended
//! waits a moment. Packets are seen with addresses that may be translated already; a DNS packet's id is not. Does not:
//! decide what it means; see `causes.rs`.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::network::{ConntrackCounts, DroppedPacket, Flow, FlowChange, PacketDrop};
use sandglass_model::time::{MILLISECOND, SECOND};

use crate::collections::bounded::Bounded;
use crate::correlator::{Correlator, Output};
use crate::traffic::lookup::{Dropped, Lookup};
use crate::traffic::lookups::{TCP, UDP};
use crate::traffic::notes::{self, What};
use crate::traffic::table::Key;
use crate::traffic::{Nat, Traffic};

/// A conntrack entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    id: u32,
    netns: u64,
    at: Timestamp,
    nat: Option<Nat>,
    backend: Option<SocketAddr>,
    /// The client's end as the other side sees it, where it was translated.
    outside: Option<SocketAddr>,
}

/// Entries remembered, by protocol and both ends as the client sees them.
#[derive(Debug)]
pub(crate) struct Flows(Bounded<(u8, SocketAddr, SocketAddr), Entry>);

impl Flows {
    pub(crate) fn new(max: usize) -> Flows {
        Flows(Bounded::new(max))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Most entries joined to one lookup or connection.
const MAX_JOINED: usize = 8;
/// A connection's entry is not older than the connection, but for the clocks that told of both.
const EARLY_NS: u64 = 100 * MILLISECOND;
/// A packet that is known by its id alone was sent no longer ago.
const FLIGHT_NS: u64 = 5 * MILLISECOND;

// === counters ===

/// What the counters of each network namespace said of late.
#[derive(Debug)]
pub(crate) struct Counts(Bounded<u64, VecDeque<Counted>>);

#[derive(Debug)]
struct Counted {
    /// When they were read before.
    from: Option<Timestamp>,
    at: Timestamp,
    counts: ConntrackCounts,
}

/// How much counters grew around an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rise {
    /// The counters are read at all.
    pub(crate) counted: bool,
    pub(crate) insert_failed: u64,
    pub(crate) drop: u64,
    pub(crate) clash_resolve: u64,
    /// The fill of a table that was about full: entries and limit.
    pub(crate) full: Option<(u64, u64)>,
}

/// Counters are read at least so often while they grow.
const COUNT_REACH_NS: u64 = 2_500 * MILLISECOND;
const COUNTS_KEPT: usize = 64;
/// Nothing asks for older ones: lookups and SYNs do not wait longer for an answer, mostly.
const COUNTS_AGE_NS: u64 = 150 * SECOND;

impl Counts {
    pub(crate) fn new(max: usize) -> Counts {
        Counts(Bounded::new(max))
    }

    fn add(&mut self, at: Timestamp, counts: ConntrackCounts) {
        let mut history = self.0.remove(&counts.netns).unwrap_or_default();
        let from = history.back().map(|counted| counted.at);
        if from == Some(at) {
            self.0.insert(counts.netns, history, at);
            return;
        }
        while history.front().is_some_and(|first| first.at.plus(COUNTS_AGE_NS) < at) || history.len() >= COUNTS_KEPT {
            history.pop_front();
        }
        history.push_back(Counted { from, at, counts });
        self.0.insert(counts.netns, history, at);
    }

    /// What grew while a packet was on its way that was sent at `at`.
    pub(crate) fn around(&self, tables: [u64; 2], at: Timestamp) -> Rise {
        let mut rise = Rise::default();
        let twice = tables[0] == tables[1];
        for netns in tables.iter().skip(usize::from(twice)) {
            let Some(history) = self.0.get(netns) else { continue };
            rise.counted = true;
            for counted in history {
                let after = counted.at.plus(MILLISECOND) >= at && counted.at.since(at) <= COUNT_REACH_NS;
                if !after || counted.from.is_some_and(|from| from > at.plus(MILLISECOND)) {
                    continue;
                }
                let counts = &counted.counts;
                rise.insert_failed += counts.insert_failed;
                rise.drop += counts.drop;
                rise.clash_resolve += counts.clash_resolve;
                if counts.limit > 0 && u128::from(counts.entries) * 20 >= u128::from(counts.limit) * 19 {
                    rise.full = Some((counts.entries, counts.limit));
                }
            }
        }
        rise
    }
}

// === records ===

impl Correlator {
    pub(crate) fn flow_seen(&mut self, at: Timestamp, mut flow: Flow) {
        for end in [
            &mut flow.source,
            &mut flow.destination,
            &mut flow.reply_source,
            &mut flow.reply_destination,
        ] {
            end.set_ip(end.ip().to_canonical());
        }
        let nat = match (flow.is_dnat(), flow.is_snat()) {
            (true, true) => Some(Nat::Both),
            (true, false) => Some(Nat::Dnat),
            (false, true) => Some(Nat::Snat),
            (false, false) => None,
        };
        let client = flow.source.ip();
        let party = self.watch.owners.party_of_packet(flow.netns, [client, client]);
        self.effects.outputs.push(Output::Traffic(Traffic::Flow {
            scope: party.scope(),
            change: flow.change,
            nat,
        }));
        let key = (flow.protocol, flow.source, flow.destination);
        match flow.change {
            FlowChange::Destroyed => {
                if self.watch.flows.0.get(&key).is_some_and(|entry| entry.id == flow.id) {
                    self.watch.flows.0.remove(&key);
                }
            }
            FlowChange::New => {
                let entry = Entry {
                    id: flow.id,
                    netns: flow.netns,
                    at,
                    nat,
                    backend: flow.is_dnat().then_some(flow.reply_source),
                    outside: flow.is_snat().then_some(flow.reply_destination),
                };
                self.effects.counters.evicted_flows += self.watch.flows.0.insert(key, entry, at);
                self.join_flow(&flow, entry);
            }
        }
    }

    fn join_flow(&mut self, flow: &Flow, entry: Entry) {
        let lookups: Vec<u64> = self
            .watch
            .lookups
            .newest(Key::client(flow.protocol, flow.source))
            .filter(|(_, lookup)| {
                is_near(entry, flow.source, lookup.party.netns)
                    && lookup
                        .sent
                        .iter()
                        .any(|sent| sent.client == flow.source && sent.server == flow.destination)
            })
            .map(|(serial, _)| serial)
            .collect();
        for serial in lookups {
            self.join_to_lookup(serial, flow.protocol, entry);
            self.lookup_changed(serial);
        }
        if flow.protocol != TCP {
            return;
        }
        let (by_port, by_address) = (
            Key::client(TCP, flow.source),
            Key::remote(flow.source, flow.destination),
        );
        let found = [by_port, by_address].into_iter().find_map(|key| {
            let mut open = self.watch.connects.newest(key).filter(|(_, connect)| {
                connect.remote == flow.destination
                    && connect.local.ip() == flow.source.ip()
                    && is_near(entry, flow.source, connect.party.netns)
                    && (connect.local.port() == flow.source.port()
                        || (connect.local.port() == 0 && connect.outcome.is_none()))
            });
            // Of several whose ports are not known yet no one can tell; each finds its entry by its port later.
            open.next().filter(|_| open.next().is_none())
        });
        if let Some((serial, _)) = found {
            if let Some(connect) = self.watch.connects.get_mut(serial) {
                connect.local.set_port(flow.source.port());
            }
            self.connect_changed(serial);
        }
    }

    /// A message leaves by a socket that conntrack may know already.
    pub(crate) fn join_known_flow(&mut self, serial: u64, message: &sandglass_model::network::DnsMessage) {
        let protocol = match message.transport {
            sandglass_model::network::Transport::Udp => UDP,
            sandglass_model::network::Transport::Tcp => TCP,
        };
        let known = self.watch.flows.0.get(&(protocol, message.client, message.server));
        if let Some(entry) = known
            .copied()
            .filter(|entry| is_near(*entry, message.client, message.netns))
        {
            self.join_to_lookup(serial, protocol, entry);
        }
    }

    fn join_to_lookup(&mut self, serial: u64, protocol: u8, entry: Entry) {
        let Some(lookup) = self.watch.lookups.get_mut(serial) else {
            return;
        };
        if lookup.flows.len() == MAX_JOINED || lookup.flows.contains(&entry.id) {
            return;
        }
        lookup.flows.push(entry.id);
        lookup.backend = entry.backend.or(lookup.backend);
        notes::add(&mut lookup.notes, entry.at, note_of(entry));
        if let Some(outside) = entry.outside {
            self.watch.lookups.key(serial, Key::client(protocol, outside));
        }
    }

    pub(crate) fn join_known_flow_of_connect(&mut self, serial: u64) {
        let Some(connect) = self.watch.connects.get_mut(serial) else {
            return;
        };
        let Some(entry) = self.watch.flows.0.get(&(TCP, connect.local, connect.remote)) else {
            return;
        };
        let fits = is_near(*entry, connect.local, connect.party.netns) && entry.at.plus(EARLY_NS) >= connect.start;
        if !fits || connect.flows.len() == MAX_JOINED || connect.flows.contains(&entry.id) {
            return;
        }
        connect.flows.push(entry.id);
        connect.backend = entry.backend.or(connect.backend);
        notes::add(&mut connect.notes, entry.at, note_of(*entry));
        if let Some(outside) = entry.outside {
            self.watch.connects.key(serial, Key::client(TCP, outside));
        }
    }

    pub(crate) fn conntrack_counted(&mut self, at: Timestamp, counts: ConntrackCounts) {
        let party = self.watch.owners.party_of_netns(counts.netns);
        self.watch.counts.add(at, counts);
        self.effects.outputs.push(Output::Traffic(Traffic::Conntrack {
            scope: party.scope(),
            counts,
        }));
    }

    pub(crate) fn packet_dropped(&mut self, at: Timestamp, mut packet: PacketDrop) {
        for end in [&mut packet.source, &mut packet.destination] {
            end.set_ip(end.ip().to_canonical());
        }
        let ends = [packet.source.ip(), packet.destination.ip()];
        let party = self.watch.owners.party_of_packet(packet.netns, ends);
        let reason = self.names.get(&packet.reason);
        let function = self.names.get(&packet.function);
        self.effects.outputs.push(Output::Traffic(Traffic::Dropped {
            scope: party.scope(),
            packet: packet.packet,
            reason: Arc::clone(&reason),
        }));
        let dropped = |inbound| Dropped {
            at,
            reason: Arc::clone(&reason),
            function: Arc::clone(&function),
            inbound,
        };
        match packet.packet {
            DroppedPacket::Dns => {
                if let Some((serial, inbound)) = self.lookup_of_packet(at, &packet) {
                    if let Some(lookup) = self.watch.lookups.get_mut(serial) {
                        lookup.drop_packet(dropped(inbound));
                    }
                    self.lookup_changed(serial);
                }
            }
            DroppedPacket::TcpSyn => {
                if let Some((serial, inbound)) = self.connect_of_packet(&packet) {
                    if let Some(connect) = self.watch.connects.get_mut(serial) {
                        connect.drop_packet(dropped(inbound));
                    }
                    self.connect_changed(serial);
                }
            }
        }
    }

    /// The lookup that a packet belongs to, and whether it was on its way to the client.
    fn lookup_of_packet(&self, at: Timestamp, packet: &PacketDrop) -> Option<(u64, bool)> {
        let has_id = |lookup: &Lookup| {
            packet
                .dns_id
                .is_none_or(|id| lookup.sent.iter().any(|sent| sent.id == id))
        };
        for (client, inbound) in [(packet.source, false), (packet.destination, true)] {
            let mut open = self.watch.lookups.newest(Key::client(UDP, client));
            if let Some((serial, _)) = open.find(|(_, lookup)| has_id(lookup)) {
                return Some((serial, inbound));
            }
        }
        // Translated beyond recognition: the id is left.
        let id = packet.dns_id?;
        let mut open = self.watch.lookups.newest(Key::id(id)).filter(|(_, lookup)| {
            lookup.is_waiting()
                && lookup
                    .sent
                    .iter()
                    .any(|sent| sent.id == id && sent.answered.is_none() && at.since(sent.at) <= FLIGHT_NS)
        });
        let (serial, _) = open.next().filter(|_| open.next().is_none())?;
        Some((serial, false))
    }

    fn connect_of_packet(&self, packet: &PacketDrop) -> Option<(u64, bool)> {
        let ways = [
            (packet.source, packet.destination, false),
            (packet.destination, packet.source, true),
        ];
        ways.into_iter().find_map(|(client, remote, inbound)| {
            let mut by_port = self.watch.connects.newest(Key::client(TCP, client));
            let mut by_address = self.watch.connects.newest(Key::remote(client, remote));
            let (serial, _) = by_port
                .find(|(_, connect)| connect.outcome.is_none())
                .or_else(|| by_address.find(|(_, connect)| connect.outcome.is_none() && connect.local.port() == 0))?;
            Some((serial, inbound))
        })
    }
}

/// Addresses of the machine itself are the same in every network namespace.
fn is_near(entry: Entry, client: SocketAddr, netns: u64) -> bool {
    !client.ip().is_loopback() || entry.netns == netns
}

fn note_of(entry: Entry) -> What {
    What::Flow {
        id: entry.id,
        nat: entry.nat,
        backend: entry.backend,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_speak_for_what_was_sent_just_before_they_were_read() {
        let mut counts = Counts::new(4);
        let at = |ms: u64| Timestamp(ms * MILLISECOND);
        let grown = |insert_failed| ConntrackCounts {
            netns: 1,
            insert_failed,
            ..ConntrackCounts::default()
        };
        assert!(!counts.around([1, 1], at(5_000)).counted);
        counts.add(at(1_000), grown(0));
        counts.add(at(6_000), grown(2));
        counts.add(at(7_000), grown(3));
        let failed = |tables, ms| counts.around(tables, at(ms)).insert_failed;
        assert_eq!(failed([9, 1], 5_900), 2);
        assert_eq!(failed([1, 1], 6_500), 3);
        assert_eq!(failed([1, 1], 3_000), 0);
        assert_eq!(failed([1, 1], 7_500), 0);
        assert_eq!(failed([9, 9], 6_500), 0);
        for ms in 0..200 {
            counts.add(at(8_000 + ms), grown(1));
        }
        assert!(counts.0.get(&1).is_some_and(|history| history.len() <= COUNTS_KEPT));
    }
}
