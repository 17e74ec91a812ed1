//! What an earlier process left in the directory: read at the opening, cut where it is damaged.
//!
//! Used by `segments.rs`. Does not: touch a segment of a newer format, or delete a record that is whole.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use super::super::format::{self, RECORD_HEADER, RecordHeader};
use super::{Entry, Segment, Segments, Worth};

/// Records by sequence number, time and checksum: a process that ended while it rewrote a segment left some twice.
pub(super) type SeenRecords = HashSet<(u64, u64, u32)>;

impl Segments {
    /// Reads a segment that an earlier process left. `seen` holds the records found so far.
    pub(super) fn recover(&mut self, worth: Worth, path: PathBuf, seen: &mut SeenRecords) -> io::Result<()> {
        let mut bytes = Vec::new();
        File::open(&path)?.take(MAX_SEGMENT).read_to_end(&mut bytes)?;
        let content = format::read_segment(&bytes);
        if content.newer {
            self.newer += 1;
            return Ok(());
        }
        self.drops.recovered += content.lost_spans;
        self.drops.corrupt += content.lost_spans;
        self.drops.cut_bytes += content.lost_bytes;
        let records = content.records.iter().filter(|record| {
            seen.insert((
                record.header.sequence,
                record.header.made.unix_ns,
                record.header.body_crc,
            ))
        });
        let entries: VecDeque<Entry> = records
            .map(|record| Entry {
                offset: record.offset as u64,
                header: record.header,
                attempts: 0,
            })
            .collect();
        let Some(last) = entries.back() else {
            self.clear(worth, path);
            return Ok(());
        };
        self.next_sequence = self.next_sequence.max(last.header.sequence.saturating_add(1));
        let mut segment = Segment {
            id: self.next_id,
            path,
            len: bytes.len() as u64,
            boot: content.boot,
            spans: content.spans,
            entries,
        };
        self.next_id += 1;
        if content.lost_bytes > 0 || content.lost_spans > 0 {
            match self.rewrite(&mut segment, worth, &bytes) {
                Ok(damaged) => self.clear(worth, damaged),
                // The same loss will be counted again at the next start.
                Err(error) => {
                    tracing::warn!(path = %segment.path.display(), %error, "cannot cut unreadable records off a segment");
                }
            }
        }
        self.requests += segment.entries.len();
        self.spans += segment.spans_waiting();
        self.bytes += segment.len;
        self.lanes[worth as usize].push_back(segment);
        Ok(())
    }

    /// Writes the waiting records of a segment to another file; returns the path of the old one.
    fn rewrite(&mut self, segment: &mut Segment, worth: Worth, bytes: &[u8]) -> io::Result<PathBuf> {
        let mut whole = format::segment_header(segment.boot);
        let mut entries = VecDeque::new();
        let mut spans = 0;
        for entry in &segment.entries {
            let at = usize::try_from(entry.offset).map_err(io::Error::other)? + RECORD_HEADER;
            let body = bytes.get(at..at + entry.header.length as usize).unwrap_or_default();
            let header = RecordHeader {
                spans_before: spans,
                ..entry.header
            };
            entries.push_back(Entry {
                offset: whole.len() as u64,
                header,
                attempts: 0,
            });
            whole.extend_from_slice(&header.encode());
            whole.extend_from_slice(body);
            spans += header.spans;
        }
        let (path, _) = self.new_file(worth, &whole)?;
        segment.len = whole.len() as u64;
        segment.spans = spans;
        segment.entries = entries;
        Ok(std::mem::replace(&mut segment.path, path))
    }
}

/// Bytes of a segment that are read: more than any that this agent writes, whose largest holds one request of 64 MiB.
const MAX_SEGMENT: u64 = 80 << 20;
