//! Both streams of one TCP connection, and each of them: from a segment to what can be read of it.
//!
//! Used by [`Streams`](super::Streams), which holds one pair for each socket. A segment shows something of both directions: its
//! own by its bytes, the other one by what the socket had received or had acknowledged.
//! Does not: bound the number of connections, or know the time but from segments and from its caller.

use super::framing::Framing;
use super::order::{self, Order};
use super::{Direction, Found, Progress, Segment};

/// Both streams of one connection.
#[derive(Debug)]
pub struct StreamPair<C> {
    /// Owners share the room of all connections.
    owner: u32,
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

impl<C: Copy> StreamPair<C> {
    /// A connection of which nothing is known yet.
    pub fn new(owner: u32, context: C) -> StreamPair<C> {
        StreamPair {
            owner,
            context,
            newest_ns: 0,
            streams: [StreamState::Unknown, StreamState::Unknown],
        }
    }

    /// Whose connection it is.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Time of the newest segment, nanoseconds of the boot clock.
    pub fn newest_ns(&self) -> u64 {
        self.newest_ns
    }

    /// Takes a segment. Its own stream gets its bytes; the other one learns from its progress that bytes will not come any
    /// more.
    pub fn take(&mut self, segment: &Segment<'_, C>, room: usize, found: &mut impl FnMut(C, Direction, Found<'_>)) {
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

    /// Gives up holes that have been waited for for too long.
    pub fn expire(&mut self, now_ns: u64, found: &mut impl FnMut(C, Direction, Found<'_>)) {
        self.each(found, |stream, found| stream.expire(now_ns, found));
    }

    /// Ends both streams; what they still hold is handed to `found`.
    pub fn end(&mut self, ending: Ending, found: &mut impl FnMut(C, Direction, Found<'_>)) {
        self.each(found, |stream, found| stream.end(ending, found));
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
    pub fn waiting(&self) -> usize {
        let waiting = self.streams.iter().map(|place| match place {
            StreamState::Open(stream) => stream.order.waiting(),
            StreamState::Unknown | StreamState::Closed => 0,
        });
        waiting.sum()
    }

    /// Both senders have closed, and all of both streams was taken.
    pub fn is_over(&self) -> bool {
        self.streams.iter().all(|place| matches!(place, StreamState::Closed))
    }
}

/// How a stream leaves the table, and when.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
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
    /// The stream of this direction as a segment shows it: where its next byte is, and whether a length prefix stands there.
    /// `None` when the segment shows nothing of this direction.
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

    /// Hands on what is left. An unfinished message of a closed stream is cut; of an abandoned one it is a gap, since its
    /// rest may have come.
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
