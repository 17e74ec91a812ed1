//! Handles conntrack's events: entries that were created or removed, and readings of its counters.
//!
//! Used by `correlator.rs`. Every event becomes a finding. An entry is joined to the lookup or connect that it serves, which
//! then shows the backend and the translation. Events come through ctnetlink (`ctnetlink_conntrack_event`,
//! net/netfilter/nf_conntrack_netlink.c), in an order of their own beside the BPF probes.
//! Does not: name causes; `causes.rs` reads the counters' history.

use sandglass_model::Timestamp;
use sandglass_model::network::{ConntrackCounts, Flow, FlowChange};

use crate::context::Context;
use crate::finding::{Finding, Nat};
use crate::output::Output;
use crate::owner::ShareKey;
use crate::traffic::Traffic;
use crate::traffic::flows::{FlowEntry, is_near, join_to_lookup};
use crate::traffic::packet::TCP;
use crate::traffic::table_key::TableKey;

impl Traffic {
    /// A conntrack entry was created (`FlowChange::New` comes when it is confirmed, that is, when its first packet has
    /// passed the last hook) or removed. Addresses are compared in canonical form, since a dual-stack socket reports
    /// IPv4 as mapped IPv6.
    pub(crate) fn on_flow(&mut self, ctx: &mut Context, at: Timestamp, mut flow: Flow) {
        for end in [
            &mut flow.source,
            &mut flow.destination,
            &mut flow.reply_source,
            &mut flow.reply_destination,
        ] {
            end.set_ip(end.ip().to_canonical());
        }
        // Translated where the reply's ends are not those of the original direction, exchanged.
        let nat = match (flow.is_dnat(), flow.is_snat()) {
            (true, true) => Some(Nat::Both),
            (true, false) => Some(Nat::Dnat),
            (false, true) => Some(Nat::Snat),
            (false, false) => None,
        };
        // All pods' entries lie in the node's namespace too, so that the client's address has to name the sandbox.
        let client = flow.source.ip();
        let owner = self.owners.owner_of_packet(flow.netns, [client, client]);
        ctx.effects.outputs.push(Output::Finding(Finding::Flow {
            scope: owner.scope(),
            change: flow.change,
            nat,
        }));
        let key = (flow.protocol, flow.source, flow.destination);
        match flow.change {
            FlowChange::Destroyed => {
                // The same ports may have a new entry already, whose creation was reported first.
                if self.flows.0.get(&key).is_some_and(|entry| entry.id == flow.id) {
                    self.flows.0.remove(&key);
                }
            }
            // Remembered whether or not an exchange is open: its records may come later.
            FlowChange::New => {
                let entry = FlowEntry {
                    id: flow.id,
                    netns: flow.netns,
                    at,
                    nat,
                    backend: flow.is_dnat().then_some(flow.reply_source),
                    outside: flow.is_snat().then_some(flow.reply_destination),
                    share: ShareKey::of_address(&owner, client),
                };
                let counted = &mut ctx.effects.counters.evicted_flows;
                self.flows.0.insert_reporting(key, entry, at, |evicted, is_noisy| {
                    counted.count(evicted.share.scope(), is_noisy);
                });
                self.join_flow(ctx, &flow, entry);
            }
        }
    }

    /// Joins a new entry to the open exchanges with its ends. An entry can come before or after the records of its
    /// exchange; `flows.rs` serves the other order.
    fn join_flow(&mut self, ctx: &mut Context, flow: &Flow, entry: FlowEntry) {
        // Several lookups may share one socket, and so one entry.
        let lookups: Vec<u64> = self
            .lookups
            .newest(TableKey::client(flow.protocol, flow.source))
            .filter(|(_, lookup)| {
                is_near(entry, flow.source, lookup.owner.netns)
                    && lookup
                        .sent
                        .iter()
                        .any(|sent| sent.client == flow.source && sent.server == flow.destination)
            })
            .map(|(serial, _)| serial)
            .collect();
        for serial in lookups {
            join_to_lookup(&mut self.lookups, serial, flow.protocol, entry);
            self.lookup_changed(ctx, serial);
        }
        // Only lookups use UDP here.
        if flow.protocol != TCP {
            return;
        }
        // A connect has no port before its first SYN: then both addresses must do.
        let (by_port, by_address) = (
            TableKey::client(TCP, flow.source),
            TableKey::remote(flow.source, flow.destination),
        );
        let found = [by_port, by_address].into_iter().find_map(|key| {
            let mut open = self.connects.newest(key).filter(|(_, connect)| {
                connect.remote == flow.destination
                    && connect.local.ip() == flow.source.ip()
                    && is_near(entry, flow.source, connect.owner.netns)
                    && (connect.local.port() == flow.source.port()
                        || (connect.local.port() == 0 && connect.outcome.is_none()))
            });
            // Several connects without a known port fit alike; each finds its entry by its port later.
            open.next().filter(|_| open.next().is_none())
        });
        if let Some((serial, _)) = found {
            if let Some(connect) = self.connects.get_mut(serial) {
                // With the port the entry is found in the table of flows, and joined there (`connect_changed`).
                connect.local.set_port(flow.source.port());
            }
            self.connect_changed(ctx, serial);
        }
    }

    /// A reading of the counters of one network namespace: how much each grew since the last.
    pub(crate) fn on_conntrack_counters(&mut self, ctx: &mut Context, at: Timestamp, counts: ConntrackCounts) {
        let owner = self.owners.owner_of_netns(counts.netns);
        self.counters.add(at, counts);
        ctx.effects.outputs.push(Output::Finding(Finding::Conntrack {
            scope: owner.scope(),
            counts,
        }));
    }
}
