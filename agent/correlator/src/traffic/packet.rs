//! What exchanges and conntrack entries share of packets: protocol numbers, and a packet that the kernel dropped.
//!
//! A leaf of the room of traffic: used by its tables, handlers and causes. Does not: know an exchange.

use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::network::Transport;

use crate::notes::{self, Note, NoteKind};

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

/// Bound on the dropped packets of one exchange. A SYN is sent again six times by default (`tcp_syn_retries`,
/// Documentation/networking/ip-sysctl.rst).
const MAX_DROPS: usize = 8;

impl Dropped {
    /// Adds it to an exchange's list of drops, and to its notes. One drop per instant, since a record may come twice;
    /// beyond the bound it is left out.
    pub(super) fn add_to(self, drops: &mut Vec<Dropped>, notes: &mut Vec<Note>) {
        if drops.len() == MAX_DROPS || drops.iter().any(|known| known.at == self.at) {
            return;
        }
        let note = NoteKind::Drop {
            reason: Arc::clone(&self.reason),
            function: Arc::clone(&self.function),
        };
        notes::add(notes, self.at, note);
        drops.push(self);
    }
}
