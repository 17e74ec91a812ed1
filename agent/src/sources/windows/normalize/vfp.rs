//! Flows of the virtual switch (Microsoft-Windows-Hyper-V-VfpExt): the connection tracking of l2bridge and overlay networks.
//!
//! Event 600 is a new unified flow, 608 a removed one. Both have the same fields, known from decoded events of Windows Server
//! 2022 and 2025 (AppMana/cloud-provisioning, `harness/e2e/observe`). The manifest defines the types of addresses and ports, so
//! layouts come from the file or from TDH only. No public event shows a translation in `Transposition`: its addresses are
//! assigned by the names of their keys. Does not: know flows of IPv6, whose fields are unknown.

use std::net::{IpAddr, SocketAddr};

use sandglass_etw::{EtwEvent, Value};
use sandglass_model::Body;
use sandglass_model::network::{Flow, FlowChange};

use crate::sources::windows::NODE_COMPARTMENT;

/// A new or removed flow. Mirror and secondary records repeat the main one. A switch has no compartments: the flow counts as
/// the node's. A record without `IsMain`, a protocol or an address yields nothing.
pub(super) fn flow(event: &EtwEvent) -> Option<Body> {
    let change = match event.id {
        600 => FlowChange::New,
        608 => FlowChange::Destroyed,
        _ => return None,
    };
    let is = |field: &str| {
        event
            .get(field)
            .is_some_and(|value| value.u64().unwrap_or(0) != 0 || *value == Value::Bool(true))
    };
    if !is("IsMain") || is("IsMirror") || is("IsSecondary") {
        return None;
    }
    let protocol: u8 = event.u32("IpProtocol").and_then(|number| number.try_into().ok())?;
    // A record about encapsulation: its ports are selectors.
    if protocol == ENCAPSULATION {
        return None;
    }
    let end = |address: &str, port: &str| {
        let port = event.u32(port).and_then(|number| number.try_into().ok()).unwrap_or(0);
        ip(event.get(address)?).map(|ip| SocketAddr::new(ip, port))
    };
    let source = end("SrcIpv4Addr", "SrcPort")?;
    let destination = end("DstIpv4Addr", "DstPort")?;
    let mut after = Translated { source, destination };
    after.parse(event.text("Transposition").unwrap_or_default());
    let id = event.u64("UnifiedFlow").unwrap_or(0);
    Some(Body::FlowSeen(Box::new(Flow {
        netns: NODE_COMPARTMENT,
        // A kernel address, folded to 32 bits: unique enough together with the addresses, and it does not leave the node whole.
        id: (id ^ (id >> 32)) as u32,
        change,
        protocol,
        source,
        destination,
        reply_source: after.destination,
        reply_destination: after.source,
        replied: false,
    })))
}

/// An address; without a type in the layout it is a number whose bytes stand in network order, which a little-endian read
/// reverses.
fn ip(value: &Value) -> Option<IpAddr> {
    let number = || {
        let number: u32 = value.u64()?.try_into().ok()?;
        Some(IpAddr::from(number.to_le_bytes()))
    };
    value.ip().or_else(number)
}

/// Both ends of a flow as the other side sees them. Equal to the flow's own where nothing was translated.
struct Translated {
    source: SocketAddr,
    destination: SocketAddr,
}

impl Translated {
    /// Replaces the ends that a transposition names. Pairs of other keys are ignored, and so is a value that is no address or
    /// port.
    ///
    /// Parses texts such as `IpHeaderAction=Ignore, TransportHeaderAction=Modify (DstPort=8080)`.
    fn parse(&mut self, transposition: &str) {
        let pairs = transposition
            .split([',', '(', ')', ' ', ';'])
            .filter_map(|part| part.split_once('='));
        for (key, value) in pairs {
            let key = key.to_ascii_lowercase();
            let end = if key.starts_with("src") || key.starts_with("source") {
                &mut self.source
            } else if key.starts_with("dst") || key.starts_with("dest") {
                &mut self.destination
            } else {
                continue;
            };
            if let Ok(ip) = value.parse() {
                end.set_ip(ip);
            } else if key.ends_with("port")
                && let Ok(port) = value.parse()
            {
                end.set_port(port);
            }
        }
    }
}

/// `IpProtocol` of records about encapsulation (AppMana/cloud-provisioning, `harness/e2e/observe`); unassigned at IANA.
const ENCAPSULATION: u8 = 252;
