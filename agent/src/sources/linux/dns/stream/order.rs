//! Puts the segments of one stream in order by sequence number (RFC 9293 3.4), and reports which bytes will not be seen.
//!
//! Used by `stream.rs`. A segment in front of which bytes are missing waits: TCP sends them again. It waits no longer once
//! the receiver is known to have the missing bytes ([`Order::pass`]), or when a bound of bytes or time is reached.
//! Does not: know what the bytes mean.

use sandglass_model::network::STREAM_WAIT_MAX_NS;

use super::{Segment, Sender};

/// The next bytes of a stream. Chunks come in order and without overlap: their lengths add up to the way from the first to the
/// last sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk<'b> {
    /// Captured bytes.
    Bytes {
        bytes: &'b [u8],
        /// When the receiver could read them, nanoseconds of the boot clock.
        at_ns: u64,
        /// The process that sent them.
        sender: Sender,
    },
    /// So many bytes that were not captured; bytes behind them were seen at `at_ns`.
    Unseen { bytes: u32, at_ns: u64 },
    /// Bytes in front of others that came at `at_ns` are missing: those wait.
    Hole { at_ns: u64 },
}

/// A segment that waits for bytes in front of it.
#[derive(Debug)]
struct WaitingSegment {
    /// Sequence number of its first byte.
    seq: u32,
    /// Its length in the packet.
    wire_len: u32,
    /// As many of its first bytes as were captured.
    bytes: Vec<u8>,
    at_ns: u64,
    sender: Sender,
}

/// The order of one stream.
#[derive(Debug)]
pub struct Order {
    /// Sequence number of the next byte that is handed on.
    next: u32,
    /// Segments behind a hole, by their distance from `next`. A vector: hardly ever more than a few.
    waiting: Vec<WaitingSegment>,
    /// Memory of them, with [`OVERHEAD`] for each.
    waiting_bytes: usize,
}

/// Where a captured piece of the stream lies. Its end may have been captured only in part: `bytes` is then shorter than
/// `wire_len`.
#[derive(Clone, Copy)]
struct Piece<'b> {
    seq: u32,
    wire_len: u32,
    bytes: &'b [u8],
    at_ns: u64,
    sender: Sender,
}

impl Order {
    /// A stream whose next byte has this number.
    pub fn new(next: u32) -> Order {
        Order {
            next,
            waiting: Vec::new(),
            waiting_bytes: 0,
        }
    }

    /// Sequence number of the next byte.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Memory of the segments that wait.
    pub fn waiting(&self) -> usize {
        self.waiting_bytes
    }

    /// Takes a segment; `room` is how many bytes more may wait.
    pub fn push<C>(&mut self, segment: &Segment<'_, C>, room: usize, take: &mut dyn FnMut(Chunk<'_>)) {
        let ahead = distance(segment.seq, self.next);
        if ahead > 0 {
            // A number out of every window is no part of this stream.
            // A close waits as well: it shows that bytes in front of it are missing.
            if ahead.unsigned_abs() <= REACH && (segment.wire_len > 0 || segment.flags.fin) {
                let is_first = self.waiting.is_empty();
                self.wait(segment);
                if is_first {
                    take(Chunk::Hole { at_ns: segment.at_ns });
                }
            }
            while self.waiting_bytes > WAITING_BYTES_MAX.min(room) || self.waiting.len() > WAITING_SEGMENTS_MAX {
                self.skip(take);
            }
            return;
        }
        let piece = Piece {
            seq: segment.seq,
            wire_len: segment.wire_len,
            bytes: segment.bytes,
            at_ns: segment.at_ns,
            sender: segment.sender,
        };
        let before = self.next;
        self.append(piece, take);
        // Until now the receiver could not read what waited.
        self.follow(segment.at_ns, take);
        if self.next != before {
            self.report_hole(segment.at_ns, take);
        }
    }

    /// The receiver has all bytes before `seq`: what of them is missing here was lost between the kernel and the agent.
    pub fn pass(&mut self, seq: u32, at_ns: u64, take: &mut dyn FnMut(Chunk<'_>)) {
        let before = self.next;
        while let missing @ 1.. = distance(seq, self.next)
            && missing.unsigned_abs() <= REACH
        {
            let hole = self.waiting.first().map(|first| distance(first.seq, self.next));
            match hole {
                Some(hole) if hole <= missing => self.skip(take),
                _ => self.lose(
                    missing.unsigned_abs(),
                    self.waiting.first().map_or(at_ns, |first| first.at_ns),
                    take,
                ),
            }
        }
        if self.next != before {
            self.report_hole(at_ns, take);
        }
    }

    /// What has waited for too long waits no longer.
    pub fn expire(&mut self, now_ns: u64, take: &mut dyn FnMut(Chunk<'_>)) {
        let before = self.next;
        while let Some(oldest) = self.waiting.iter().map(|waiting| waiting.at_ns).min()
            && now_ns.saturating_sub(oldest) >= WAIT_NS
        {
            self.skip(take);
        }
        if self.next != before {
            self.report_hole(now_ns, take);
        }
    }

    /// Hands on all that waits.
    pub fn flush(&mut self, take: &mut dyn FnMut(Chunk<'_>)) {
        while !self.waiting.is_empty() {
            self.skip(take);
        }
    }

    /// Keeps a copy of a segment until the bytes in front of it have come.
    fn wait<C>(&mut self, segment: &Segment<'_, C>) {
        let ahead = distance(segment.seq, self.next);
        let place = self
            .waiting
            .partition_point(|waiting| distance(waiting.seq, self.next) <= ahead);
        // A retransmission of what waits already.
        let end = ahead.unsigned_abs() + segment.wire_len;
        let covered = |waiting: &WaitingSegment| {
            distance(waiting.seq, self.next).unsigned_abs() + waiting.wire_len >= end
                && waiting.bytes.len() == waiting.wire_len as usize
        };
        if place
            .checked_sub(1)
            .is_some_and(|before| covered(&self.waiting[before]))
        {
            return;
        }
        self.waiting_bytes += OVERHEAD + segment.bytes.len();
        let waiting = WaitingSegment {
            seq: segment.seq,
            wire_len: segment.wire_len,
            bytes: segment.bytes.to_vec(),
            at_ns: segment.at_ns,
            sender: segment.sender,
        };
        self.waiting.insert(place, waiting);
    }

    /// The hole that was first is no more: what still waits is behind another one.
    fn report_hole(&self, at_ns: u64, take: &mut dyn FnMut(Chunk<'_>)) {
        if !self.waiting.is_empty() {
            take(Chunk::Hole { at_ns });
        }
    }

    /// Gives the first hole up.
    fn skip(&mut self, take: &mut dyn FnMut(Chunk<'_>)) {
        let Some(first) = self.waiting.first() else {
            return;
        };
        let (seq, at_ns) = (first.seq, first.at_ns);
        if let missing @ 1.. = distance(seq, self.next) {
            self.lose(missing.unsigned_abs(), at_ns, take);
        }
        self.follow(0, take);
    }

    /// Reports the next `bytes` bytes as unseen, and hands on what waits behind them.
    fn lose(&mut self, bytes: u32, at_ns: u64, take: &mut dyn FnMut(Chunk<'_>)) {
        self.next = self.next.wrapping_add(bytes);
        take(Chunk::Unseen { bytes, at_ns });
        self.follow(0, take);
    }

    /// Hands on what waits and is next now, not before `at_ns`.
    fn follow(&mut self, at_ns: u64, take: &mut dyn FnMut(Chunk<'_>)) {
        while self
            .waiting
            .first()
            .is_some_and(|first| distance(first.seq, self.next) <= 0)
        {
            let first = self.waiting.remove(0);
            self.waiting_bytes -= OVERHEAD + first.bytes.len();
            let piece = Piece {
                seq: first.seq,
                wire_len: first.wire_len,
                bytes: &first.bytes,
                at_ns: first.at_ns.max(at_ns),
                sender: first.sender,
            };
            self.append(piece, take);
        }
    }

    /// Hands on what of a piece was not handed on before.
    fn append(&mut self, piece: Piece<'_>, take: &mut dyn FnMut(Chunk<'_>)) {
        let old = self.next.wrapping_sub(piece.seq);
        if old >= piece.wire_len {
            return;
        }
        self.next = piece.seq.wrapping_add(piece.wire_len);
        let bytes = piece.bytes.get(old as usize..).unwrap_or_default();
        let unseen = (piece.wire_len - old) as usize - bytes.len().min((piece.wire_len - old) as usize);
        if !bytes.is_empty() {
            take(Chunk::Bytes {
                bytes,
                at_ns: piece.at_ns,
                sender: piece.sender,
            });
        }
        if unseen > 0 {
            let bytes = u32::try_from(unseen).unwrap_or(u32::MAX);
            take(Chunk::Unseen {
                bytes,
                at_ns: piece.at_ns,
            });
        }
    }
}

/// How far `one` lies behind `other`, modulo 2^32 (RFC 9293 3.4).
pub fn distance(one: u32, other: u32) -> i32 {
    one.wrapping_sub(other).cast_signed()
}

/// No window is larger (RFC 7323 2.3).
pub const REACH: u32 = 1 << 30;
/// Bytes that may wait in one stream, segments' overhead included.
const WAITING_BYTES_MAX: usize = 256 << 10;
/// Segments that may wait in one stream.
const WAITING_SEGMENTS_MAX: usize = 512;
/// Memory of a segment beside its bytes.
const OVERHEAD: usize = 96;
/// The longest wait for bytes in front. Four transmissions of one segment in a row are lost before it ends (`TCP_RTO_MIN` of
/// 200 ms, doubled each time: include/net/tcp.h, Linux 6.12), and it is shorter than a lookup's deadline.
const WAIT_NS: u64 = 5_000_000_000;
// The streams are swept once a second, and the decoder looks after them as often.
const _: () = assert!(WAIT_NS + 2 * super::SWEEP_NS <= STREAM_WAIT_MAX_NS);
