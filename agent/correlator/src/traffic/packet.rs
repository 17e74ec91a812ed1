//! What exchanges and conntrack entries share of packets: protocol numbers, and a packet that the kernel dropped.
//!
//! A leaf of the room of traffic: used by its tables, handlers and causes. Does not: know an exchange.

use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::network::Transport;

/// IP protocol numbers (IANA, "Assigned Internet Protocol Numbers").
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

/// IP protocol number of a transport of DNS.
pub(crate) fn protocol_of(transport: Transport) -> u8 {
    match transport {
        Transport::Udp => UDP,
        Transport::Tcp => TCP,
    }
}

/// A packet of a lookup or a connect that the kernel dropped.
#[derive(Clone, Debug)]
pub(crate) struct Dropped {
    pub(crate) at: Timestamp,
    /// The kernel's drop reason without its prefix; `NOT_SPECIFIED` for none.
    pub(crate) reason: Arc<str>,
    /// Kernel function that dropped it; empty when not known.
    pub(crate) function: Arc<str>,
    /// It was on its way to the client.
    pub(crate) inbound: bool,
}
