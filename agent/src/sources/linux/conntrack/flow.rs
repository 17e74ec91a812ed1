//! Decodes a ctnetlink message into a flow. Pure; any bytes give a flow, nothing or an error, never a panic.
//!
//! Used by the feeds of `conntrack` and by tests. Does not: decode flows other than TCP and UDP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sandglass_model::network::{Flow, FlowChange};

use super::netlink::{NFGENMSG, NetlinkMessage, attributes, take};

/// A flow, and the time of the event where the message has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowEvent {
    /// The flow, both directions.
    pub flow: Flow,
    /// Nanoseconds since 1970; only with net.netfilter.nf_conntrack_timestamp, which is off by default.
    pub unix_ns: Option<u64>,
}

/// A message that lacks an attribute that every flow has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ctnetlink message of {bytes} bytes has no {lacks}")]
pub struct FlowError {
    /// What is missing.
    lacks: &'static str,
    /// How long it is.
    bytes: usize,
}

/// Decodes a message. `None` when it is about another protocol, or no event of a flow. `netns` is the inode number of the
/// network namespace that the socket belongs to: no message names its own.
///
/// Attributes may come in any order, and those that are not known are skipped: newer kernels add some. Numbers in them are in
/// network order.
///
/// # Errors
/// When an attribute of the flow is missing.
pub fn decode(message: &NetlinkMessage<'_>, netns: u64) -> Result<Option<FlowEvent>, FlowError> {
    let change = match message.kind {
        NEW => FlowChange::New,
        DELETE => FlowChange::Destroyed,
        _ => return Ok(None),
    };
    let lacks = |lacks| FlowError {
        lacks,
        bytes: message.payload.len(),
    };
    let mut original = None;
    let mut reply = None;
    let mut id = None;
    let mut status = 0;
    let mut unix_ns = None;
    for (kind, value) in attributes(message.payload.get(NFGENMSG..).ok_or(lacks("header"))?) {
        match kind {
            TUPLE_ORIGINAL => original = Some(tuple(value).ok_or(lacks("addresses"))?),
            TUPLE_REPLY => reply = Some(tuple(value).ok_or(lacks("addresses"))?),
            STATUS => status = take(value, 0).map_or(0, u32::from_be_bytes),
            ID => id = take(value, 0).map(u32::from_be_bytes),
            // The time of the event, where there is one, is better than that of the flow: the two may come in either order.
            TIMESTAMP => unix_ns = unix_ns.or(timestamp(value, change)),
            TIMESTAMP_EVENT => unix_ns = take(value, 0).map(u64::from_be_bytes),
            _ => {}
        }
    }
    let original: Tuple = original.ok_or(lacks("addresses"))?;
    let reply: Tuple = reply.ok_or(lacks("addresses of the reply"))?;
    if !matches!(original.protocol, TCP | UDP) {
        return Ok(None);
    }
    Ok(Some(FlowEvent {
        flow: Flow {
            netns,
            id: id.ok_or(lacks("id"))?,
            change,
            protocol: original.protocol,
            source: original.source,
            destination: original.destination,
            reply_source: reply.source,
            reply_destination: reply.destination,
            replied: status & IPS_SEEN_REPLY != 0,
        },
        unix_ns,
    }))
}

/// One direction of a flow, as the kernel expects its packets: the reply's differs from the mirrored original where NAT changed
/// it.
struct Tuple {
    /// IP protocol number.
    protocol: u8,
    /// Port 0 for a protocol without ports.
    source: SocketAddr,
    destination: SocketAddr,
}

/// One direction: addresses and ports. ICMP has no ports; its flows are left out later, by protocol.
fn tuple(bytes: &[u8]) -> Option<Tuple> {
    let mut addresses = (None, None);
    let mut protocol = None;
    let mut ports = (0, 0);
    for (kind, value) in attributes(bytes) {
        match kind {
            TUPLE_IP => addresses = both_addresses(value),
            TUPLE_PROTOCOL => {
                for (kind, value) in attributes(value) {
                    match kind {
                        PROTOCOL_NUMBER => protocol = value.first().copied(),
                        SOURCE_PORT => ports.0 = u16::from_be_bytes(take(value, 0)?),
                        DESTINATION_PORT => ports.1 = u16::from_be_bytes(take(value, 0)?),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some(Tuple {
        protocol: protocol?,
        source: SocketAddr::new(addresses.0?, ports.0),
        destination: SocketAddr::new(addresses.1?, ports.1),
    })
}

/// Source and destination; a family that is neither IPv4 nor IPv6 gives none.
fn both_addresses(bytes: &[u8]) -> (Option<IpAddr>, Option<IpAddr>) {
    let mut addresses = (None, None);
    for (kind, value) in attributes(bytes) {
        match kind {
            V4_SOURCE => addresses.0 = four(value),
            V4_DESTINATION => addresses.1 = four(value),
            V6_SOURCE => addresses.0 = sixteen(value),
            V6_DESTINATION => addresses.1 = sixteen(value),
            _ => {}
        }
    }
    addresses
}

/// An IPv4 address in network order; `None` when there are fewer bytes.
fn four(value: &[u8]) -> Option<IpAddr> {
    take::<4>(value, 0).map(|bytes| IpAddr::V4(Ipv4Addr::from(bytes)))
}

/// An IPv6 address, likewise.
fn sixteen(value: &[u8]) -> Option<IpAddr> {
    take::<16>(value, 0).map(|bytes| IpAddr::V6(Ipv6Addr::from(bytes)))
}

/// The start of a new flow, the stop of a destroyed one (net/netfilter/nf_conntrack_netlink.c, ctnetlink_dump_timestamp). The
/// stop is set when the flow leaves the table, which for one that timed out is later than its last packet by the timeout.
fn timestamp(bytes: &[u8], change: FlowChange) -> Option<u64> {
    let wanted = match change {
        FlowChange::New => TIMESTAMP_START,
        FlowChange::Destroyed => TIMESTAMP_STOP,
    };
    let (_, value) = attributes(bytes).find(|(kind, _)| *kind == wanted)?;
    take(value, 0).map(u64::from_be_bytes)
}

// include/uapi/linux/netfilter/nfnetlink.h and nfnetlink_conntrack.h: NFNL_SUBSYS_CTNETLINK << 8, and the message.
const NEW: u16 = 0x100;
const DELETE: u16 = 0x102;
// enum ctattr_type
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
const ID: u16 = 12;
const TIMESTAMP: u16 = 20;
// Since Linux 6.14, where net.netfilter.nf_conntrack_timestamp is 1.
const TIMESTAMP_EVENT: u16 = 27;
// enum ctattr_tuple, ctattr_ip, ctattr_l4proto, ctattr_tstamp
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const V4_SOURCE: u16 = 1;
const V4_DESTINATION: u16 = 2;
const V6_SOURCE: u16 = 3;
const V6_DESTINATION: u16 = 4;
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
const TIMESTAMP_START: u16 = 1;
const TIMESTAMP_STOP: u16 = 2;
// include/uapi/linux/netfilter/nf_conntrack_common.h
const IPS_SEEN_REPLY: u32 = 1 << 1;
// Protocol Numbers (IANA).
const TCP: u8 = 6;
const UDP: u8 = 17;

#[cfg(test)]
mod tests;
