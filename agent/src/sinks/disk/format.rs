//! The bytes of a log's file: a header, then records, each with its own checksums.
//!
//! Used by `log.rs`. All integers are little-endian; checksums are CRC-32, as in the spool's segments.
//!
//! | file header | bytes | record | bytes |
//! |---|---|---|---|
//! | `SGOPEN\n` and a zero, or `SGSTORE\n` | 8 | `SGJR` | 4 |
//! | version | 4 | kind: 1 = trace, 2 = gone | 4 |
//! | generation | 8 | length of the body | 4 |
//! | checksum of these | 4 | checksum of the body | 4 |
//! | | | checksum of these | 4 |
//! | | | trace id and span id of the root, then for a trace its content | 24 + |
//!
//! A record that is not whole is skipped, and the search for the next one goes on byte by byte. The content is opaque here.
//! Does not: touch files, or panic on any input.

use flate2::Crc;
use sandglass_model::{RootId, SpanId, TraceId};

/// The version that this agent writes.
pub(in crate::sinks) const VERSION: u32 = 1;
/// Length of a file's header.
pub(in crate::sinks) const FILE_HEADER: usize = 24;
/// Length of a record's header.
const RECORD_HEADER: usize = 20;
/// Length of a root's ids.
const ROOT: usize = 24;
const RECORD_MAGIC: [u8; 4] = *b"SGJR";
const TRACE: u32 = 1;
const GONE: u32 = 2;

/// What a record says of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sinks) enum Record<'a> {
    /// It is like this now; its content.
    Trace(RootId, &'a [u8]),
    /// It is not kept any more.
    Gone(RootId),
}

/// The content of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::sinks) struct FileContent<'a> {
    /// Written by a newer version: nothing else is known of it.
    pub(in crate::sinks) newer: bool,
    /// The file's place among those of a directory: a later one has a higher number. 0 where the header is bad.
    pub(in crate::sinks) generation: u64,
    /// Whole records in their order.
    pub(in crate::sinks) records: Vec<Record<'a>>,
    /// Bytes that belong to no whole record.
    pub(in crate::sinks) lost_bytes: u64,
}

/// The header of a file that begins with `magic`.
pub(in crate::sinks) fn file_header(magic: [u8; 8], generation: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FILE_HEADER);
    bytes.extend_from_slice(&magic);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&generation.to_le_bytes());
    let crc = checksum(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

impl Record<'_> {
    /// Appends the record as written.
    pub(in crate::sinks) fn encode(&self, bytes: &mut Vec<u8>) {
        let (kind, root, content) = match self {
            Record::Trace(root, content) => (TRACE, root, *content),
            Record::Gone(root) => (GONE, root, &[][..]),
        };
        let mut body = Vec::with_capacity(ROOT + content.len());
        body.extend_from_slice(&root.trace.0.to_le_bytes());
        body.extend_from_slice(&root.span.0.to_le_bytes());
        body.extend_from_slice(content);
        let begin = bytes.len();
        bytes.extend_from_slice(&RECORD_MAGIC);
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(&checksum(&body).to_le_bytes());
        let crc = checksum(bytes.get(begin..).unwrap_or_default());
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(&body);
    }
}

/// Reads a whole file that begins with `magic`; total for any bytes.
pub(in crate::sinks) fn read_file(magic: [u8; 8], bytes: &[u8]) -> FileContent<'_> {
    let mut content = FileContent::default();
    let mut at = 0;
    let header = bytes
        .get(..FILE_HEADER)
        .filter(|header| header.starts_with(&magic) && u32_at(header, 20) == header.get(..20).map(checksum));
    if let Some(header) = header {
        if u32_at(header, 8) != Some(VERSION) {
            content.newer = true;
            return content;
        }
        content.generation = u64_at(header, 12).unwrap_or(0);
        at = FILE_HEADER;
    }
    while at < bytes.len() {
        let rest = bytes.get(at..).unwrap_or_default();
        match record(rest) {
            Some((found, length)) => {
                content.records.push(found);
                at += length;
            }
            None => {
                let skipped = next_magic(rest);
                content.lost_bytes += skipped as u64;
                at += skipped;
            }
        }
    }
    content
}

/// The whole record at the begin of `bytes`, with its length.
fn record(bytes: &[u8]) -> Option<(Record<'_>, usize)> {
    if bytes.get(..4)? != RECORD_MAGIC || checksum(bytes.get(..16)?) != u32_at(bytes, 16)? {
        return None;
    }
    let end = RECORD_HEADER.checked_add(u32_at(bytes, 8)? as usize)?;
    let body = bytes.get(RECORD_HEADER..end)?;
    if checksum(body) != u32_at(bytes, 12)? {
        return None;
    }
    let root = RootId {
        trace: TraceId(u128::from_le_bytes(body.get(..16)?.try_into().ok()?)),
        span: SpanId(u64_at(body, 16)?),
    };
    let found = match u32_at(bytes, 4)? {
        TRACE => Record::Trace(root, body.get(ROOT..)?),
        GONE => Record::Gone(root),
        _ => return None,
    };
    Some((found, end))
}

/// The distance to the next place, after the first byte, where a record may begin; or to the end.
fn next_magic(bytes: &[u8]) -> usize {
    let rest = bytes.get(1..).unwrap_or_default();
    let found = rest
        .windows(RECORD_MAGIC.len())
        .position(|window| window == RECORD_MAGIC);
    found.map_or(bytes.len(), |position| position + 1)
}

/// CRC-32 of `bytes` (of gzip, RFC 1952 section 8).
pub(in crate::sinks) fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
