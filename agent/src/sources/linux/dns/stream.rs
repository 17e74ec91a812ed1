//! DNS over TCP: puts the segments of each direction of a connection in order and cuts its messages out (RFC 7766).
//!
//! Used by the decoder. Each stream has two stages: [`order`] puts segments in order by sequence number (RFC 9293 3.4) and
//! reports which bytes will never be seen; [`framing`] cuts messages out by their length prefix (RFC 1035 4.2.2) and finds the
//! next message behind bytes that were not seen ([`plausible`]).
//! Invariant: every byte of a stream is part of a message, of a cut message, or of a gap that is reported.
//! Bounded: streams, which owners share, bytes that wait, time that they wait. Does not: parse messages.

mod closed;
mod framing;
mod order;
mod pair;
mod plausible;

use std::collections::HashMap;

use self::closed::Closed;
use self::pair::{Ending, StreamPair};

/// Which way a stream's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the client: queries.
    Out,
    /// To the client: answers.
    In,
}

/// The process that sent bytes, where the kernel side knew it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// Process id; 0 when not known.
    pub pid: u32,
    /// Its start, nanoseconds of the boot clock.
    pub start_ns: u64,
    /// Its name, padded with zeros.
    pub comm: [u8; 16],
}

/// A segment, or a piece of one, as the kernel side captured it.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'s, C> {
    /// When it was seen, nanoseconds of the boot clock.
    pub at_ns: u64,
    /// Cookie of the socket.
    pub socket: u64,
    /// Which of its streams.
    pub direction: Direction,
    /// Sequence number of its first byte.
    pub seq: u32,
    /// Its length.
    pub wire_len: u32,
    /// As many of its first bytes as were captured.
    pub bytes: &'s [u8],
    /// SYN, FIN, RST of its header.
    pub flags: Flags,
    /// How far both streams had come before this segment, as the socket knew it; `None` where the kernel side had no full
    /// socket.
    pub progress: Option<Progress>,
    /// Who sent it.
    pub sender: Sender,
    /// Whose connection it is: owners share the room.
    pub owner: u32,
    /// What the caller wants back with the messages of the stream.
    pub context: C,
}

/// Flags of a segment's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The stream begins.
    pub syn: bool,
    /// The stream ends behind this segment.
    pub fin: bool,
    /// The connection is gone.
    pub rst: bool,
}

/// How far both streams of a socket have come (`struct bpf_tcp_sock`, include/uapi/linux/bpf.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The client has received all bytes before this sequence number.
    pub received: u32,
    /// The server has acknowledged all bytes before this sequence number.
    pub acknowledged: u32,
    /// The client has received no byte of data.
    pub nothing_received: bool,
    /// The server has acknowledged no byte of data.
    pub nothing_acknowledged: bool,
}

/// What comes out of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'m> {
    /// A message.
    Message {
        /// Its bytes without the length prefix, as many as were captured and kept.
        bytes: &'m [u8],
        /// All of it is there.
        complete: bool,
        /// When its last byte could be read by its receiver, nanoseconds of the boot clock.
        at_ns: u64,
        /// Its position among the messages that became readable at this instant.
        nth: u32,
        /// Who sent it.
        sender: Sender,
    },
    /// A message whose rest never came, because the stream ended.
    Cut {
        /// When the stream ended.
        at_ns: u64,
    },
    /// Bytes that no message was read from: not seen, or in front of the first message that was recognized again.
    Gap {
        /// When bytes behind them were seen. What was sent later cannot be answered in them.
        at_ns: u64,
        /// How many.
        bytes: u64,
    },
    /// Bytes in front of others that were seen are missing since this instant. They may still come, since TCP sends them
    /// again; a [`Found::Gap`] follows if not.
    Hole {
        /// When bytes behind them were seen.
        at_ns: u64,
    },
}

/// All streams. `C` is a small value of the caller that comes back with what is found.
#[derive(Debug)]
pub struct Streams<C> {
    /// By the cookie of the socket; at most [`CONNECTIONS_MAX`].
    connections: HashMap<u64, StreamPair<C>>,
    /// How many connections each owner has.
    owners: HashMap<u32, usize>,
    closed: Closed,
    /// Memory of the segments that wait in all streams; the sum over `connections`.
    waiting: usize,
    /// Time of the last sweep, nanoseconds of the boot clock.
    swept_ns: u64,
}

impl<C> Default for Streams<C> {
    fn default() -> Streams<C> {
        Streams {
            connections: HashMap::new(),
            owners: HashMap::new(),
            closed: Closed::default(),
            waiting: 0,
            swept_ns: 0,
        }
    }
}

impl<C: Copy> Streams<C> {
    /// Takes a segment, and hands all that can be read now to `found`.
    pub fn take(&mut self, segment: &Segment<'_, C>, found: &mut impl FnMut(C, Direction, Found<'_>)) {
        self.sweep(segment.at_ns, found);
        if segment.flags.syn && segment.direction == Direction::Out {
            // The same socket connects again: other streams, with numbers of their own.
            self.remove(segment.socket, Ending::Abandoned(segment.at_ns), found);
            self.closed.remove(segment.socket);
        }
        if !self.connections.contains_key(&segment.socket) {
            if segment.wire_len == 0 || self.closed.contains(segment.socket) {
                return;
            }
            if self.connections.len() >= CONNECTIONS_MAX {
                self.evict(segment.at_ns, found);
            }
            let pair = StreamPair::new(segment.owner, segment.context);
            self.connections.insert(segment.socket, pair);
            *self.owners.entry(segment.owner).or_default() += 1;
        }
        let Some(connection) = self.connections.get_mut(&segment.socket) else {
            return;
        };
        let before = connection.waiting();
        let room = WAITING_MAX.saturating_sub(self.waiting - before);
        connection.take(segment, room, found);
        let is_over = connection.is_over();
        self.waiting = self.waiting + connection.waiting() - before;
        if is_over {
            self.closed.insert(segment.socket, segment.at_ns);
        }
        if is_over || segment.flags.rst {
            self.remove(segment.socket, Ending::Closed(segment.at_ns), found);
        }
    }

    /// Bytes that waited for too long in front of a hole go on, and connections without traffic end. To be called about once
    /// a second.
    pub fn sweep(&mut self, now_ns: u64, found: &mut impl FnMut(C, Direction, Found<'_>)) {
        if now_ns.saturating_sub(self.swept_ns) < SWEEP_NS {
            return;
        }
        self.swept_ns = now_ns;
        self.closed.expire(now_ns);
        let mut over = Vec::new();
        for (socket, connection) in &mut self.connections {
            let before = connection.waiting();
            connection.expire(now_ns, found);
            self.waiting = self.waiting + connection.waiting() - before;
            if connection.is_over() {
                self.closed.insert(*socket, now_ns);
            }
            if connection.is_over() || now_ns.saturating_sub(connection.newest_ns()) >= IDLE_NS {
                over.push(*socket);
            }
        }
        for socket in over {
            self.remove(socket, Ending::Abandoned(now_ns), found);
        }
    }

    /// Removes the connection without traffic for longest, of the owner with the most: a pod that opens thousands loses its
    /// own. Searches all of them: it happens only when the table is full, 2,048 DNS connections at once.
    fn evict(&mut self, at_ns: u64, found: &mut impl FnMut(C, Direction, Found<'_>)) {
        let most = self.owners.values().copied().max().unwrap_or(0);
        let of_most = |connection: &StreamPair<C>| self.owners.get(&connection.owner()) == Some(&most);
        let candidates = self.connections.iter().filter(|(_, connection)| of_most(connection));
        let oldest = candidates.min_by_key(|(_, connection)| connection.newest_ns());
        if let Some(socket) = oldest.map(|(socket, _)| *socket) {
            self.remove(socket, Ending::Abandoned(at_ns), found);
        }
    }

    /// Ends both streams of a connection and forgets it. What they still hold is handed to `found`.
    fn remove(&mut self, socket: u64, ending: Ending, found: &mut impl FnMut(C, Direction, Found<'_>)) {
        if let Some(mut connection) = self.connections.remove(&socket) {
            self.waiting -= connection.waiting();
            if let Some(count) = self.owners.get_mut(&connection.owner()) {
                *count -= 1;
                if *count == 0 {
                    self.owners.remove(&connection.owner());
                }
            }
            connection.end(ending, found);
        }
    }
}

/// Connections that are followed; above that the one without traffic for longest is evicted.
const CONNECTIONS_MAX: usize = 2048;
/// Bytes that may wait in all streams together.
const WAITING_MAX: usize = 8 << 20;
/// A connection without traffic for so long leaves the table. Resolvers and servers close idle ones much sooner (RFC 7766
/// 6.2.3: a few seconds).
const IDLE_NS: u64 = 120_000_000_000;
/// Between two sweeps.
const SWEEP_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests;
