//! Sockets whose connection both ends have closed: what comes of them later was sent again, and was read before.
//!
//! Used by [`Streams`](super::Streams). A server sends its last segment again when the acknowledgement of it was lost or late
//! (RFC 9293 3.10.7.4, CLOSING, LAST-ACK). Bounded in number and time. Does not: remember sequence numbers.

use std::collections::{HashMap, VecDeque};

/// Closed sockets, and when each was closed.
#[derive(Debug, Default)]
pub(super) struct Closed {
    /// By cookie: when it was closed, nanoseconds of the boot clock.
    sockets: HashMap<u64, u64>,
    /// The same, oldest first. May name one that has been opened again.
    order: VecDeque<(u64, u64)>,
}

impl Closed {
    /// Remembers a socket; forgets the one that was closed first when there are too many.
    pub(super) fn insert(&mut self, socket: u64, at_ns: u64) {
        if self.order.len() >= CLOSED_MAX {
            self.pop();
        }
        self.sockets.insert(socket, at_ns);
        self.order.push_back((socket, at_ns));
    }

    /// Whether a segment of this socket was sent again.
    pub(super) fn contains(&self, socket: u64) -> bool {
        self.sockets.contains_key(&socket)
    }

    /// The socket connects again.
    pub(super) fn remove(&mut self, socket: u64) {
        self.sockets.remove(&socket);
    }

    /// Forgets the sockets that were closed [`LINGER_NS`] ago or longer.
    pub(super) fn expire(&mut self, now_ns: u64) {
        while self
            .order
            .front()
            .is_some_and(|(_, at)| now_ns.saturating_sub(*at) >= LINGER_NS)
        {
            self.pop();
        }
    }

    /// Forgets the oldest entry. A socket that was closed again since has a newer one, which stays.
    fn pop(&mut self) {
        if let Some((socket, at_ns)) = self.order.pop_front()
            && self.sockets.get(&socket) == Some(&at_ns)
        {
            self.sockets.remove(&socket);
        }
    }
}

/// So many closed sockets are remembered.
const CLOSED_MAX: usize = 4096;
/// TCP_TIMEWAIT_LEN (`include/net/tcp.h`, as in Linux 6.12): what a closed socket still answers, it answers within this time.
const LINGER_NS: u64 = 60_000_000_000;
