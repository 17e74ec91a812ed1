//! The bytes of a segment: a header, then records, each with its own checksums.
//!
//! Used by `segments.rs`. All integers are little-endian; checksums are CRC-32 (of gzip, RFC 1952 section 8, by `flate2`).
//!
//! | segment header | bytes | record header | bytes |
//! |---|---|---|---|
//! | `SGSPOOL\n` | 8 | `SGRC` | 4 |
//! | version | 4 | length of the body | 4 |
//! | boot: hash of the boot id | 8 | spans in it | 4 |
//! | checksum of these | 4 | flags: 1 = the body is compressed | 4 |
//! | | | sequence number | 8 |
//! | | | when it was made: boot clock, wall clock | 16 |
//! | | | spans in earlier records of the segment | 4 |
//! | | | checksum of the body | 4 |
//! | | | checksum of these | 4 |
//! | | | done mark: 0, or the complement of that checksum | 4 |
//!
//! Every version keeps the segment header, so that each can recognise a newer one. A record that is not whole is skipped, and
//! the search for the next one goes on byte by byte: one bad byte costs one record. Its spans are known from its header or, if
//! that is bad, from the next record's count of earlier spans. Only at the end of a segment they can remain unknown.
//! Does not: touch files, or panic on any input.

pub(super) use crate::sinks::disk::format::checksum;

/// The version that this agent writes.
pub(super) const VERSION: u32 = 1;
/// Length of a segment's header.
pub(super) const SEGMENT_HEADER: usize = 24;
/// Length of a record's header.
pub(super) const RECORD_HEADER: usize = 56;
/// Where the done mark is in a record.
pub(super) const DONE_MARK: usize = 52;

const SEGMENT_MAGIC: [u8; 8] = *b"SGSPOOL\n";
const RECORD_MAGIC: [u8; 4] = *b"SGRC";
const GZIP: u32 = 1;

/// An instant on both clocks, in nanoseconds since the boot and since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) boot_ns: u64,
    pub(super) unix_ns: u64,
}

/// What a record's header says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) length: u32,
    pub(super) spans: u32,
    pub(super) gzip: bool,
    pub(super) sequence: u64,
    pub(super) made: Moment,
    pub(super) spans_before: u32,
    pub(super) body_crc: u32,
}

/// A whole record that is not done, and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundRecord {
    pub(super) offset: usize,
    pub(super) header: RecordHeader,
}

/// The content of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SegmentContent {
    /// Written by a newer version: nothing else is known of it.
    pub(super) newer: bool,
    /// The boot in which it was written; 0 if unknown.
    pub(super) boot: u64,
    /// Whole records that are not done, in order.
    pub(super) records: Vec<FoundRecord>,
    /// Spans of all records, done and lost ones included, as far as they are known.
    pub(super) spans: u32,
    /// Spans of records that are not whole, as far as they are known.
    pub(super) lost_spans: u64,
    /// Bytes that belong to no whole record.
    pub(super) lost_bytes: u64,
}

/// The header of a segment that is written during `boot`.
pub(super) fn segment_header(boot: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SEGMENT_HEADER);
    bytes.extend_from_slice(&SEGMENT_MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&boot.to_le_bytes());
    let crc = checksum(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

impl RecordHeader {
    /// The header as written, with an empty done mark.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RECORD_HEADER);
        bytes.extend_from_slice(&RECORD_MAGIC);
        bytes.extend_from_slice(&self.length.to_le_bytes());
        bytes.extend_from_slice(&self.spans.to_le_bytes());
        bytes.extend_from_slice(&if self.gzip { GZIP } else { 0 }.to_le_bytes());
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&self.made.boot_ns.to_le_bytes());
        bytes.extend_from_slice(&self.made.unix_ns.to_le_bytes());
        bytes.extend_from_slice(&self.spans_before.to_le_bytes());
        bytes.extend_from_slice(&self.body_crc.to_le_bytes());
        let crc = checksum(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes
    }

    /// The done mark of this record.
    pub(super) fn done_mark(&self) -> [u8; 4] {
        let bytes = self.encode();
        (!checksum(bytes.get(..DONE_MARK - 4).unwrap_or_default())).to_le_bytes()
    }

    /// Reads a header with a correct checksum, and whether the record is done.
    fn decode(bytes: &[u8]) -> Option<(RecordHeader, bool)> {
        if bytes.get(..4)? != RECORD_MAGIC {
            return None;
        }
        let crc = u32_at(bytes, DONE_MARK - 4)?;
        if checksum(bytes.get(..DONE_MARK - 4)?) != crc {
            return None;
        }
        let header = RecordHeader {
            length: u32_at(bytes, 4)?,
            spans: u32_at(bytes, 8)?,
            gzip: u32_at(bytes, 12)? & GZIP != 0,
            sequence: u64_at(bytes, 16)?,
            made: Moment {
                boot_ns: u64_at(bytes, 24)?,
                unix_ns: u64_at(bytes, 32)?,
            },
            spans_before: u32_at(bytes, 40)?,
            body_crc: u32_at(bytes, 44)?,
        };
        Some((header, u32_at(bytes, DONE_MARK)? == !crc))
    }
}

/// Reads a whole segment; total for any bytes.
pub(super) fn read_segment(bytes: &[u8]) -> SegmentContent {
    let mut content = SegmentContent::default();
    let mut at = 0;
    let header = bytes
        .get(..SEGMENT_HEADER)
        .filter(|header| header.starts_with(&SEGMENT_MAGIC) && u32_at(header, 20) == header.get(..20).map(checksum));
    if let Some(header) = header {
        if u32_at(header, 8) != Some(VERSION) {
            content.newer = true;
            return content;
        }
        content.boot = u64_at(header, 12).unwrap_or(0);
        at = SEGMENT_HEADER;
    }
    while at < bytes.len() {
        let rest = bytes.get(at..).unwrap_or_default();
        let Some((header, done)) = RecordHeader::decode(rest) else {
            let skipped = next_magic(rest);
            content.lost_bytes += skipped as u64;
            at += skipped;
            continue;
        };
        // Records between the last one and this one were not found: their headers are bad.
        content.lost_spans += u64::from(header.spans_before.saturating_sub(content.spans));
        content.spans = header.spans_before.saturating_add(header.spans);
        let end = RECORD_HEADER + header.length as usize;
        match rest.get(RECORD_HEADER..end) {
            Some(_) if done => at += end,
            Some(body) if checksum(body) == header.body_crc => {
                content.records.push(FoundRecord { offset: at, header });
                at += end;
            }
            // Its length cannot be relied on if bytes are missing within it: another record may begin before its end.
            _ => {
                content.lost_spans += if done { 0 } else { u64::from(header.spans) };
                let skipped = next_magic(rest);
                content.lost_bytes += skipped as u64;
                at += skipped;
            }
        }
    }
    content
}

/// The distance to the next place, after the first byte, where a record may begin; or to the end.
fn next_magic(bytes: &[u8]) -> usize {
    let rest = bytes.get(1..).unwrap_or_default();
    rest.windows(RECORD_MAGIC.len())
        .position(|window| window == RECORD_MAGIC)
        .map_or(bytes.len(), |position| position + 1)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?.try_into().ok()?;
    Some(u64::from_le_bytes(bytes))
}
