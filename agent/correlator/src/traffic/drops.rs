//! Handles dropped packets: joins each to the lookup or connect that it belongs to.
//!
//! Every drop becomes a finding, whether or not an exchange is found. A packet is seen with the addresses that it has
//! when it is dropped, perhaps translated already; the id of a DNS message is never translated. Reasons: `enum
//! skb_drop_reason`, include/net/dropreason-core.h, as in Linux 6.12.
//! Does not: decide what a drop means; see `causes.rs`.

use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::network::{DroppedPacket, PacketDrop};
use sandglass_model::time::MILLISECOND;

use crate::context::Context;
use crate::finding::Finding;
use crate::output::Output;
use crate::traffic::Traffic;
use crate::traffic::connect::Connect;
use crate::traffic::lookup::Lookup;
use crate::traffic::packet::{Dropped, TCP, UDP};
use crate::traffic::table::ExchangeTable;
use crate::traffic::table_key::TableKey;

/// A packet that is recognised by its DNS id alone was sent no longer ago than this: ids are 16 bits and come again.
const FLIGHT_NS: u64 = 5 * MILLISECOND;

impl Traffic {
    /// The kernel dropped a DNS packet over UDP, a SYN or a SYN-ACK (tracepoint `skb:kfree_skb`, which has a reason since Linux
    /// 5.17). Always a finding; evidence too, where it belongs to an open exchange.
    pub(crate) fn on_packet_drop(&mut self, ctx: &mut Context, at: Timestamp, mut packet: PacketDrop) {
        for end in [&mut packet.source, &mut packet.destination] {
            end.set_ip(end.ip().to_canonical());
        }
        // The packet may be dropped in the sandbox, on the node or in between: any of its addresses names the sandbox.
        let ends = [packet.source.ip(), packet.destination.ip()];
        let owner = self.owners.owner_of_packet(packet.netns, ends);
        // Reasons and functions are few and repeat: shared texts.
        let reason = ctx.names.get(&packet.reason);
        let function = ctx.names.get(&packet.function);
        ctx.effects.outputs.push(Output::Finding(Finding::Dropped {
            scope: owner.scope(),
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
                if let Some((serial, inbound)) = lookup_of_packet(&self.lookups, at, &packet) {
                    if let Some(lookup) = self.lookups.get_mut(serial) {
                        lookup.drop_packet(dropped(inbound));
                    }
                    self.lookup_changed(ctx, serial);
                }
            }
            // A dropped SYN-ACK is inbound; both delay the handshake by a retransmission.
            DroppedPacket::TcpSyn => {
                if let Some((serial, inbound)) = connect_of_packet(&self.connects, &packet) {
                    if let Some(connect) = self.connects.get_mut(serial) {
                        connect.drop_packet(dropped(inbound));
                    }
                    self.connect_changed(ctx, serial);
                }
            }
        }
    }
}

/// The open lookup that a packet belongs to, and whether the packet was on its way to the client.
fn lookup_of_packet(lookups: &ExchangeTable<Lookup>, at: Timestamp, packet: &PacketDrop) -> Option<(u64, bool)> {
    let has_id = |lookup: &Lookup| {
        packet
            .dns_id
            .is_none_or(|id| lookup.sent.iter().any(|sent| sent.id == id))
    };
    // The client is the sender of a query, or the receiver of an answer.
    for (client, inbound) in [(packet.source, false), (packet.destination, true)] {
        let mut open = lookups.newest(TableKey::client(UDP, client));
        if let Some((serial, _)) = open.find(|(_, lookup)| has_id(lookup)) {
            return Some((serial, inbound));
        }
    }
    // Translated beyond recognition: the id is left.
    let id = packet.dns_id?;
    let mut open = lookups.newest(TableKey::id(id)).filter(|(_, lookup)| {
        lookup.is_pending()
            && lookup
                .sent
                .iter()
                .any(|sent| sent.id == id && sent.answered.is_none() && at.since(sent.at) <= FLIGHT_NS)
    });
    let (serial, _) = open.next().filter(|_| open.next().is_none())?;
    Some((serial, false))
}

/// The open connect that a packet belongs to, and whether the packet was on its way to the client.
fn connect_of_packet(connects: &ExchangeTable<Connect>, packet: &PacketDrop) -> Option<(u64, bool)> {
    let ways = [
        (packet.source, packet.destination, false),
        (packet.destination, packet.source, true),
    ];
    ways.into_iter().find_map(|(client, remote, inbound)| {
        let mut by_port = connects.newest(TableKey::client(TCP, client));
        let mut by_address = connects.newest(TableKey::remote(client, remote));
        // Only an open connect lost something by it.
        let (serial, _) = by_port
            .find(|(_, connect)| connect.outcome.is_none())
            .or_else(|| by_address.find(|(_, connect)| connect.outcome.is_none() && connect.local.port() == 0))?;
        Some((serial, inbound))
    })
}
