//! DNS over TCP: puts the segments of each direction of a connection in order and cuts its messages out (RFC 7766).
//!
//! Used by the decoder. A message may lie in several segments, and a segment may hold several messages. What was not
//! captured of a message is known by length only; the message is then handed on incomplete.
//! Bounded: so many streams, so much of one message, so many segments waiting for one that is missing. A stream whose
//! place is lost is passed over until its connection ends. Does not: parse messages.

use std::collections::HashMap;

/// One direction of one connection: cookie of the socket, direction.
pub type Key = (u64, u8);

/// A piece of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'s> {
    /// When it was seen, nanoseconds of the boot clock.
    pub at_ns: u64,
    /// Sequence number of its first byte.
    pub seq: u32,
    /// How long it is.
    pub wire_len: u32,
    /// As many of its first bytes as were captured.
    pub bytes: &'s [u8],
}

/// All streams.
#[derive(Debug, Default)]
pub struct Streams {
    streams: HashMap<Key, Stream>,
    swept_ns: u64,
}

impl Streams {
    /// Takes a segment, and hands each message that ends in it to `seen`, with whether all of it was captured.
    pub fn take(&mut self, key: Key, segment: Segment<'_>, seen: &mut impl FnMut(&[u8], bool)) {
        self.sweep(segment.at_ns);
        if self.streams.len() >= STREAMS_MAX && !self.streams.contains_key(&key) {
            self.forget_oldest();
        }
        let stream = self.streams.entry(key).or_insert_with(|| Stream::new(segment.seq));
        stream.newest_ns = segment.at_ns;
        stream.take(segment, seen);
    }

    /// Connections are not seen to end: what was silent for long has.
    fn sweep(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.swept_ns) < IDLE_NS {
            return;
        }
        self.swept_ns = now_ns;
        self.streams
            .retain(|_, stream| now_ns.saturating_sub(stream.newest_ns) < IDLE_NS);
    }

    fn forget_oldest(&mut self) {
        let oldest = self.streams.iter().min_by_key(|(_, stream)| stream.newest_ns);
        if let Some(key) = oldest.map(|(key, _)| *key) {
            self.streams.remove(&key);
        }
    }
}

/// One of them.
#[derive(Debug)]
struct Stream {
    newest_ns: u64,
    /// Sequence number of the next byte.
    next: u32,
    /// Length prefix and as much as is kept of the message that begins there.
    message: Vec<u8>,
    /// Bytes of it that came, prefix included, kept or not.
    came: usize,
    /// Bytes of it that were not captured.
    holes: bool,
    /// Segments that came before one that lies before them.
    waiting: Vec<(u32, u32, Vec<u8>)>,
    /// Where messages begin is not known any more.
    lost: bool,
}

impl Stream {
    fn new(first: u32) -> Stream {
        Stream {
            newest_ns: 0,
            next: first,
            message: Vec::new(),
            came: 0,
            holes: false,
            waiting: Vec::new(),
            lost: false,
        }
    }

    fn take(&mut self, segment: Segment<'_>, seen: &mut impl FnMut(&[u8], bool)) {
        if self.lost {
            return;
        }
        if self.is_ahead(segment.seq) {
            if self.waiting.len() >= WAITING_MAX {
                self.lose();
                return;
            }
            let waiting = (segment.seq, segment.wire_len, segment.bytes.to_vec());
            self.waiting.push(waiting);
            return;
        }
        self.append(segment.seq, segment.wire_len, segment.bytes, seen);
        while let Some(place) = self.waiting.iter().position(|(seq, ..)| !self.is_ahead(*seq)) {
            let (seq, wire_len, bytes) = self.waiting.swap_remove(place);
            self.append(seq, wire_len, &bytes, seen);
        }
    }

    fn is_ahead(&self, seq: u32) -> bool {
        seq.wrapping_sub(self.next).cast_signed() > 0
    }

    /// Takes what of a segment was not there before.
    fn append(&mut self, seq: u32, wire_len: u32, bytes: &[u8], seen: &mut impl FnMut(&[u8], bool)) {
        let old = self.next.wrapping_sub(seq);
        if old >= wire_len {
            return;
        }
        self.next = seq.wrapping_add(wire_len);
        let bytes = bytes.get(old as usize..).unwrap_or_default();
        self.consume(bytes, (wire_len - old) as usize - bytes.len(), seen);
    }

    /// Takes captured bytes, then so many unknown ones.
    fn consume(&mut self, mut bytes: &[u8], mut unknown: usize, seen: &mut impl FnMut(&[u8], bool)) {
        while !self.lost && (!bytes.is_empty() || unknown > 0) {
            let want = self.wanted();
            if bytes.is_empty() {
                if self.came < PREFIX {
                    self.lose();
                    return;
                }
                let skipped = want.min(unknown);
                unknown -= skipped;
                self.came += skipped;
                self.holes |= skipped > 0;
            } else {
                let (now, later) = bytes.split_at(want.min(bytes.len()));
                let room = MESSAGE_MAX.saturating_sub(self.message.len());
                // Behind a hole nothing fits.
                let kept = if self.holes { 0 } else { room.min(now.len()) };
                self.message.extend_from_slice(&now[..kept]);
                self.holes |= kept < now.len();
                self.came += now.len();
                bytes = later;
            }
            if self.came >= PREFIX && self.wanted() == 0 {
                seen(self.message.get(PREFIX..).unwrap_or_default(), !self.holes);
                self.begin();
            }
        }
    }

    /// Bytes that are missing, of the prefix or of the message.
    fn wanted(&self) -> usize {
        match (self.message.first(), self.message.get(1)) {
            (Some(high), Some(low)) => {
                (PREFIX + usize::from(u16::from_be_bytes([*high, *low]))).saturating_sub(self.came)
            }
            _ => PREFIX - self.came.min(PREFIX),
        }
    }

    fn begin(&mut self) {
        self.message.clear();
        self.came = 0;
        self.holes = false;
    }

    fn lose(&mut self) {
        self.lost = true;
        self.message = Vec::new();
        self.waiting = Vec::new();
    }
}

/// The length prefix.
const PREFIX: usize = 2;
const MESSAGE_MAX: usize = 4096;
const STREAMS_MAX: usize = 512;
const WAITING_MAX: usize = 4;
const IDLE_NS: u64 = 30_000_000_000;

#[cfg(test)]
mod tests;
