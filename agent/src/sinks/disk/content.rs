//! A trace as a log's record holds it: when it was like this, and the trace as compressed JSON.
//!
//! Used by the journal of open traces and by the store. What a newer version adds to a trace is left out when it is read; a trace that needs it
//! is not read at all. Does not: touch files, or panic on any input.

use std::io::Read as _;

use flate2::{Compress, Compression, FlushCompress, Status};
use sandglass_model::{Timestamp, Trace};

/// A compressor for [`encode`]: a quarter of a MiB, not to be kept while nothing is written.
pub(in crate::sinks) fn compressor() -> Compress {
    Compress::new(Compression::fast(), true)
}

/// The bytes of a trace that was like this at `seen`. `None` for one that is too large to be read again.
pub(in crate::sinks) fn encode(trace: &Trace, seen: Timestamp, compress: &mut Compress) -> Option<Vec<u8>> {
    let json = serde_json::to_vec(trace).ok()?;
    if json.len() as u64 > MAX_TRACE {
        return None;
    }
    let mut content = Vec::with_capacity(SEEN + json.len() / 4 + 64);
    content.extend_from_slice(&seen.0.to_le_bytes());
    compress.reset();
    loop {
        let done = usize::try_from(compress.total_in()).ok()?;
        let status = compress.compress_vec(json.get(done..)?, &mut content, FlushCompress::Finish);
        match status.ok()? {
            Status::StreamEnd => return Some(content),
            Status::Ok | Status::BufError => content.reserve(json.len() / 4 + 64),
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

/// Largest trace, as JSON.
const MAX_TRACE: u64 = 8 << 20;
/// Bytes of the time in front of a trace.
pub(in crate::sinks) const SEEN: usize = 8;
