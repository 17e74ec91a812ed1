//! DNS over TCP: puts the segments of each direction of a connection in order and cuts its messages out (RFC 7766).
//!
//! Used by the decoder. Each stream has two stages: [`order`] puts segments in order by sequence number (RFC 9293 3.4) and
//! reports which bytes will never be seen; [`framing`] cuts messages out by their length prefix (RFC 1035 4.2.2) and finds the
//! next message behind bytes that were not seen ([`plausible`]).
//! Invariant: every byte of a stream is part of a message, of a cut message, or of a gap that is reported.
//! Bounded: streams, bytes that wait, time that they wait. Does not: parse messages.

mod closed;
mod framing;
mod order;
mod plausible;

use std::collections::HashMap;

use self::closed::Closed;
use self::framing::Framing;
use self::order::Order;

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
    /// How far both streams had come before this segment, as the socket knew it; `None` where the kernel side had no full socket.
    pub progress: Option<Progress>,
    /// Who sent it.
    pub sender: Sender,
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
}

/// All streams. `C` is a small value of the caller that comes back with what is found.
#[derive(Debug)]
pub struct Streams<C> {
    /// By the cookie of the socket; at most [`CONNECTIONS_MAX`].
    connections: HashMap<u64, StreamPair<C>>,
    closed: Closed,
    /// Memory of the segments that wait in all streams; the sum over `connections`.
    waiting: usize,
    /// Time of the last sweep, nanoseconds of the boot clock.
    swept_ns: u64,
}

/// Both streams of one connection.
#[derive(Debug)]
struct StreamPair<C> {
    /// That of the newest segment.
    context: C,
    /// Time of the newest segment, nanoseconds of the boot clock.
    newest_ns: u64,
    /// From the client, to the client.
    streams: [StreamState; 2],
}

/// What is known of one direction of a connection.
#[derive(Debug)]
enum StreamState {
    /// Nothing yet.
    Unknown,
    Open(Box<Stream>),
    /// Its sender has closed, and all of it was taken.
    Closed,
}

impl<C> Default for Streams<C> {
    fn default() -> Streams<C> {
        Streams {
            connections: HashMap::new(),
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
                self.evict_oldest(segment.at_ns, found);
            }
            let connection = StreamPair {
                context: segment.context,
                newest_ns: 0,
                streams: [StreamState::Unknown, StreamState::Unknown],
            };
            self.connections.insert(segment.socket, connection);
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
            connection.each(found, |stream, found| stream.expire(now_ns, found));
            self.waiting = self.waiting + connection.waiting() - before;
            if connection.is_over() {
                self.closed.insert(*socket, now_ns);
            }
            if connection.is_over() || now_ns.saturating_sub(connection.newest_ns) >= IDLE_NS {
                over.push(*socket);
            }
        }
        for socket in over {
            self.remove(socket, Ending::Abandoned(now_ns), found);
        }
    }

    /// Removes the connection that has been without traffic for longest. Searches all of them: it happens only when the table is
    /// full, 2,048 DNS connections at once.
    fn evict_oldest(&mut self, at_ns: u64, found: &mut impl FnMut(C, Direction, Found<'_>)) {
        let oldest = self
            .connections
            .iter()
            .min_by_key(|(_, connection)| connection.newest_ns);
        if let Some(socket) = oldest.map(|(socket, _)| *socket) {
            self.remove(socket, Ending::Abandoned(at_ns), found);
        }
    }

    /// Ends both streams of a connection and forgets it. What they still hold is handed to `found`.
    fn remove(&mut self, socket: u64, ending: Ending, found: &mut impl FnMut(C, Direction, Found<'_>)) {
        if let Some(mut connection) = self.connections.remove(&socket) {
            self.waiting -= connection.waiting();
            connection.each(found, |stream, found| stream.end(ending, found));
        }
    }
}

impl<C: Copy> StreamPair<C> {
    /// Takes a segment. Its own stream gets its bytes; the other one learns from its progress that bytes will not come any more.
    fn take(&mut self, segment: &Segment<'_, C>, room: usize, found: &mut impl FnMut(C, Direction, Found<'_>)) {
        self.context = segment.context;
        self.newest_ns = self.newest_ns.max(segment.at_ns);
        for direction in [Direction::Out, Direction::In] {
            let place = &mut self.streams[direction as usize];
            if matches!(place, StreamState::Unknown)
                && let Some(stream) = Stream::begin(segment, direction)
            {
                *place = StreamState::Open(Box::new(stream));
            }
        }
        if let Some(progress) = segment.progress.filter(|_| !segment.flags.syn) {
            let at_ns = segment.at_ns;
            self.each(found, |stream, found| stream.pass(progress, at_ns, found));
        }
        let context = self.context;
        if let StreamState::Open(stream) = &mut self.streams[segment.direction as usize] {
            stream.take(segment, room, &mut |one| found(context, segment.direction, one));
        }
        self.each(found, |stream, found| {
            if stream.is_over() {
                stream.end(Ending::Closed(segment.at_ns), found);
            }
        });
        for place in &mut self.streams {
            if matches!(place, StreamState::Open(stream) if stream.is_over()) {
                *place = StreamState::Closed;
            }
        }
    }

    /// Calls `work` for each open stream, the client's first: so a query comes out before its answer.
    fn each(
        &mut self,
        found: &mut impl FnMut(C, Direction, Found<'_>),
        mut work: impl FnMut(&mut Stream, &mut dyn FnMut(Found<'_>)),
    ) {
        let context = self.context;
        for direction in [Direction::Out, Direction::In] {
            if let StreamState::Open(stream) = &mut self.streams[direction as usize] {
                work(stream, &mut |one| found(context, direction, one));
            }
        }
    }

    /// Memory of the segments that wait in both streams.
    fn waiting(&self) -> usize {
        let waiting = self.streams.iter().map(|place| match place {
            StreamState::Open(stream) => stream.order.waiting(),
            StreamState::Unknown | StreamState::Closed => 0,
        });
        waiting.sum()
    }

    /// Both senders have closed, and all of both streams was taken.
    fn is_over(&self) -> bool {
        self.streams.iter().all(|place| matches!(place, StreamState::Closed))
    }
}

/// How a stream leaves the table, and when.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// Its connection was closed.
    Closed(u64),
    /// It was evicted, idle or replaced: it may go on unseen.
    Abandoned(u64),
}

/// One stream.
#[derive(Debug)]
struct Stream {
    direction: Direction,
    order: Order,
    framing: Framing,
    /// Sequence number behind the last byte, once the sender has closed.
    end: Option<u32>,
}

impl Stream {
    /// The stream of this direction as a segment shows it: where its next byte is, and whether a length prefix stands there. `None`
    /// when the segment shows nothing of this direction.
    fn begin<C>(segment: &Segment<'_, C>, direction: Direction) -> Option<Stream> {
        let is_own = segment.direction == direction;
        let known = match (segment.progress, direction) {
            _ if segment.flags.syn => is_own.then_some((segment.seq, true)),
            // The client has these numbers in order: nothing before them is missing.
            (Some(progress), Direction::In) => Some((progress.received, progress.nothing_received)),
            // What was sent before the agent looked and is not acknowledged is not this agent's loss.
            (Some(progress), Direction::Out) if progress.nothing_acknowledged => Some((progress.acknowledged, true)),
            _ => None,
        };
        let near = |next: u32| !is_own || order::distance(next, segment.seq).unsigned_abs() <= order::REACH;
        let known = known.filter(|(next, _)| near(*next));
        let (next, framed) = known.or((is_own && segment.wire_len > 0).then_some((segment.seq, false)))?;
        Some(Stream {
            direction,
            order: Order::new(next),
            framing: Framing::new(direction, framed),
            end: None,
        })
    }

    /// Takes a segment of this stream; `room` is how many bytes more may wait.
    fn take<C>(&mut self, segment: &Segment<'_, C>, room: usize, found: &mut dyn FnMut(Found<'_>)) {
        if segment.flags.fin {
            self.end = Some(segment.seq.wrapping_add(segment.wire_len));
        }
        let framing = &mut self.framing;
        self.order.push(segment, room, &mut |chunk| framing.take(chunk, found));
    }

    /// The receiver is known to have this much: bytes before that are missing here will not be seen.
    fn pass(&mut self, progress: Progress, at_ns: u64, found: &mut dyn FnMut(Found<'_>)) {
        let seq = match self.direction {
            Direction::In => progress.received,
            Direction::Out => progress.acknowledged,
        };
        // The FIN has a number of its own behind the last byte.
        let seq = self.end.filter(|end| order::distance(*end, seq) < 0).unwrap_or(seq);
        let framing = &mut self.framing;
        self.order.pass(seq, at_ns, &mut |chunk| framing.take(chunk, found));
    }

    /// Gives up holes that have been waited for for too long.
    fn expire(&mut self, now_ns: u64, found: &mut dyn FnMut(Found<'_>)) {
        let framing = &mut self.framing;
        self.order.expire(now_ns, &mut |chunk| framing.take(chunk, found));
    }

    /// Hands on what is left. An unfinished message of a closed stream is cut; of an abandoned one it is a gap, since its rest may
    /// have come.
    fn end(&mut self, ending: Ending, found: &mut dyn FnMut(Found<'_>)) {
        let framing = &mut self.framing;
        self.order.flush(&mut |chunk| framing.take(chunk, found));
        match ending {
            Ending::Closed(at_ns) => self.framing.close(at_ns, found),
            Ending::Abandoned(at_ns) => self.framing.give_up(at_ns, found),
        }
    }

    /// The sender has closed, and all bytes before that were handed on.
    fn is_over(&self) -> bool {
        self.end.is_some_and(|end| order::distance(self.order.next(), end) >= 0)
    }
}

/// Connections that are followed; above that the one without traffic for longest is evicted.
const CONNECTIONS_MAX: usize = 2048;
/// Bytes that may wait in all streams together.
const WAITING_MAX: usize = 8 << 20;
/// A connection without traffic for so long leaves the table.
/// Resolvers and servers close idle ones much sooner (RFC 7766 6.2.3: a few seconds).
const IDLE_NS: u64 = 120_000_000_000;
/// Between two sweeps.
const SWEEP_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests;
