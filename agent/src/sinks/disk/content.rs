//! A trace as a log's record holds it: when it was like this, and the trace as compressed JSON.
//!
//! Used by the journal of open traces and by the store. What a newer version adds to a trace is left out when it is read; a trace that needs it
//! is not read at all. Does not: touch files, or panic on any input.

use std::io::Read as _;

use flate2::{Compress, Compression, FlushCompress, Status};
use sandglass_model::{Timestamp, Trace};

/// Encodes one trace after the other, in the same memory: a compressor of a quarter of a MiB, and two buffers ([`KEPT_BYTES`]).
/// The journal's thread drops it after each write; the store keeps it.
#[derive(Debug)]
pub(in crate::sinks) struct Encoder {
    compress: Compress,
    json: Vec<u8>,
    content: Vec<u8>,
}

impl Encoder {
    pub(in crate::sinks) fn new() -> Encoder {
        Encoder {
            compress: Compress::new(Compression::fast(), true),
            json: Vec::new(),
            content: Vec::new(),
        }
    }

    /// The bytes of a trace that was like this at `seen`. `None` for one that is too large to be read again.
    pub(in crate::sinks) fn encode(&mut self, trace: &Trace, seen: Timestamp) -> Option<&[u8]> {
        self.json.clear();
        self.json.shrink_to(KEPT_BYTES);
        self.content.clear();
        self.content.shrink_to(KEPT_BYTES);
        serde_json::to_writer(&mut self.json, trace).ok()?;
        if self.json.len() as u64 > MAX_TRACE {
            return None;
        }
        self.content.reserve(SEEN + self.json.len() / 4 + 64);
        self.content.extend_from_slice(&seen.0.to_le_bytes());
        self.compress.reset();
        loop {
            let done = usize::try_from(self.compress.total_in()).ok()?;
            let rest = self.json.get(done..)?;
            let status = self
                .compress
                .compress_vec(rest, &mut self.content, FlushCompress::Finish);
            match status.ok()? {
                Status::StreamEnd => return Some(&self.content),
                Status::Ok | Status::BufError => self.content.reserve(self.json.len() / 4 + 64),
            }
        }
    }
}

/// The trace, with at least its root, and when it was like this. `None` if that cannot be read.
pub(in crate::sinks) fn decode(content: &[u8]) -> Option<(Timestamp, Trace)> {
    let seen = u64::from_le_bytes(content.get(..SEEN)?.try_into().ok()?);
    let mut json = Vec::new();
    let compressed = content.get(SEEN..)?;
    let mut plain = flate2::read::ZlibDecoder::new(compressed).take(MAX_TRACE);
    plain.read_to_end(&mut json).ok()?;
    let trace: Trace = serde_json::from_slice(&json).ok()?;
    (!trace.spans.is_empty()).then_some((Timestamp(seen), trace))
}

/// An [`Encoder`]'s buffers keep so many bytes from one trace to the next; most traces are smaller.
const KEPT_BYTES: usize = 64 << 10;
/// Largest trace, as JSON.
const MAX_TRACE: u64 = 8 << 20;
/// Bytes of the time in front of a trace.
pub(in crate::sinks) const SEEN: usize = 8;
