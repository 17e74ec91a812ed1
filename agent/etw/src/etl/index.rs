//! Finds the buffers of a file and when each begins, reading only their first bytes.
//!
//! Used by the reader once, at opening. Continues behind damage: at the next multiple of the buffer size, or byte by byte
//! until the bytes look like a buffer of the same session.
//! Does not: keep more than [`MOST_BUFFERS`] buffers; the others are counted.

use std::io::{self, Read, Seek, SeekFrom};

use super::buffer::{BUFFER_LOST, BufferHeader, EVENTS_LOST, HEADER_SIZE};
use super::error::EtlError;
use super::kernel_class::TRACE_GROUP;
use super::lz77;
use super::record::{self, Layout, Step};
use super::session::{Clock, SessionHeader};
use super::statistics::EtlStatistics;

/// A buffer in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BufferRef {
    /// Time of its first record; the smallest value when the record has none.
    pub first_ticks: i64,
    /// Index in the file, in buffers.
    pub order: u32,
    /// Offset in the file.
    pub offset: u64,
    /// Its bytes.
    pub size: u32,
}

/// The result of the first pass.
#[derive(Debug, Default)]
pub struct Index {
    /// Buffers, the latest first: the reader takes them from the end.
    pub buffers: Vec<BufferRef>,
    pub session: SessionHeader,
    pub clock: Option<Clock>,
}

/// Goes through the whole file.
pub fn build<R: Read + Seek>(input: &mut R, statistics: &mut EtlStatistics) -> Result<Index, EtlError> {
    let end = input
        .seek(SeekFrom::End(0))
        .map_err(|source| EtlError::Read { offset: 0, source })?;
    statistics.file_bytes = end;
    let mut scan = Scan {
        input,
        end,
        head: Vec::new(),
        scratch: vec![0; HEAD_BYTES],
        logger: None,
        fixed_size: None,
        index: Index::default(),
    };
    let mut offset = 0;
    while offset + HEADER_SIZE as u64 <= end {
        offset = scan.buffer_at(offset, statistics)?;
    }
    statistics.skipped_bytes += end.saturating_sub(offset);
    if statistics.buffers == 0 {
        return Err(EtlError::NotEtl { bytes: end });
    }
    statistics.clock_unknown = scan.index.clock.is_none();
    statistics.events_lost = u64::from(scan.index.session.events_lost);
    statistics.buffers_lost = u64::from(scan.index.session.buffers_lost);
    let mut index = scan.index;
    index.buffers.sort_unstable_by(|one, other| other.cmp(one));
    Ok(index)
}

/// State of the first pass.
struct Scan<'a, R> {
    input: &'a mut R,
    /// Size of the file.
    end: u64,
    /// First bytes of the present buffer.
    head: Vec<u8>,
    /// Room for the begin of a decompressed buffer.
    scratch: Vec<u8>,
    /// Session number of the first buffer, which all others have too.
    logger: Option<u16>,
    /// Size of all buffers so far, when it is the same; the first buffer of a compressed session is smaller.
    fixed_size: Option<u64>,
    index: Index,
}

impl<R: Read + Seek> Scan<'_, R> {
    /// Indexes the buffer at `offset`; returns the offset to look at next.
    fn buffer_at(&mut self, offset: u64, statistics: &mut EtlStatistics) -> Result<u64, EtlError> {
        self.read_head(offset)?;
        let Some(header) = BufferHeader::read(&self.head) else {
            let next = self.search(offset)?;
            statistics.skipped_bytes += next - offset;
            return Ok(next);
        };
        if self.logger.is_none() {
            self.logger = Some(header.logger);
            self.fixed_size = (!header.compressed()).then_some(u64::from(header.size));
        }
        if self.fixed_size != Some(u64::from(header.size)) {
            self.fixed_size = None;
        }
        statistics.buffers += 1;
        statistics.compressed_buffers += u64::from(header.compressed());
        statistics.buffers_after_lost_events += u64::from(header.flags & EVENTS_LOST != 0);
        statistics.buffers_after_lost_buffers += u64::from(header.flags & BUFFER_LOST != 0);
        let next = offset + u64::from(header.size);
        statistics.cut_off |= next > self.end && offset + u64::from(header.filled) > self.end;
        if let Some(first_ticks) = self.first_record(&header) {
            if self.index.buffers.len() < MOST_BUFFERS {
                self.index.buffers.push(BufferRef {
                    first_ticks,
                    order: self.index.buffers.len() as u32,
                    offset,
                    size: header.size,
                });
            } else {
                statistics.unindexed_buffers += 1;
            }
        }
        Ok(next.min(self.end))
    }

    /// Reads the first [`HEAD_BYTES`] of the buffer at `offset`: all that the index needs of it.
    fn read_head(&mut self, offset: u64) -> Result<(), EtlError> {
        read_at(self.input, offset, HEAD_BYTES, &mut self.head).map_err(|source| EtlError::Read { offset, source })
    }

    /// Time of the first record; `None` for a buffer without any. Reads the file's header on the way.
    fn first_record(&mut self, header: &BufferHeader) -> Option<i64> {
        let stored = (header.size as usize).min(self.head.len());
        let body = self.head.get(HEADER_SIZE..stored).unwrap_or_default();
        let filled = (header.filled as usize).saturating_sub(HEADER_SIZE);
        let body = if header.compressed() {
            let length = lz77::inflate(body, &mut self.scratch).length;
            self.scratch.get(..length)?
        } else {
            body.get(..filled).unwrap_or(body)
        };
        let (layout, size) = match record::step(body, 0) {
            Step::Record(layout, size) => (layout, size),
            // Filled but empty: damaged compression, or cut off. The reader counts it.
            Step::End => return (body.is_empty() && filled > 0).then_some(i64::MIN),
            // Longer than the bytes that were read, or damaged: the reader counts it.
            Step::Bad => return Some(time_of_any(body).unwrap_or(i64::MIN)),
        };
        let first = body.get(..size)?;
        let ticks = record::time(first, layout);
        if self.index.clock.is_none()
            && layout == Layout::System
            && first.get(6..8) == Some(&[0, TRACE_GROUP])
            && let Some((session, clock)) =
                SessionHeader::read(first.get(layout.header_size()..)?, ticks.unwrap_or_default())
        {
            self.index.session = session;
            self.index.clock = Some(clock);
        }
        Some(ticks.unwrap_or(i64::MIN))
    }

    /// The offset of the next buffer after `offset`, where there is none.
    fn search(&mut self, offset: u64) -> Result<u64, EtlError> {
        let stated = u64::from(self.index.session.buffer_bytes);
        if let Some(size) = self.fixed_size.filter(|&size| stated == 0 || size == stated) {
            return Ok((offset / size + 1).saturating_mul(size).min(self.end));
        }
        let mut window = Vec::new();
        let mut at = offset + 1;
        while at + HEADER_SIZE as u64 <= self.end {
            read_at(self.input, at, SEARCH_BYTES, &mut window)
                .map_err(|source| EtlError::Read { offset: at, source })?;
            if let Some(found) = self.find(&window) {
                return Ok(at + found as u64);
            }
            at += (SEARCH_BYTES - HEADER_SIZE) as u64;
        }
        Ok(self.end)
    }

    /// The first place in `window` that looks like the begin of a buffer of this session.
    fn find(&mut self, window: &[u8]) -> Option<usize> {
        let places = window.len().checked_sub(HEADER_SIZE)?;
        (0..=places).find(|&place| {
            let header = window.get(place..).and_then(BufferHeader::read);
            header.is_some_and(|header| {
                header.plausible(self.logger.unwrap_or(header.logger))
                    && self.begins_with_record(window, place, &header)
            })
        })
    }

    /// Whether a record follows the header there: bytes of a payload may look like a header, but hardly like both.
    fn begins_with_record(&mut self, window: &[u8], place: usize, header: &BufferHeader) -> bool {
        let body = window.get(place + HEADER_SIZE..).unwrap_or_default();
        let body = body.get(..HEAD_BYTES).unwrap_or(body);
        if !header.compressed() {
            return body.is_empty() || time_of_any(body).is_some();
        }
        let length = lz77::inflate(body, &mut self.scratch).length;
        time_of_any(self.scratch.get(..length).unwrap_or_default()).is_some()
    }
}

/// Time of a record that may be cut.
fn time_of_any(body: &[u8]) -> Option<i64> {
    let marked = body.get(3).is_some_and(|mark| mark & 0x80 != 0);
    let layout = match body.get(2)? {
        0x01..=0x04 => Layout::System,
        0x10 | 0x11 => Layout::PerfInfo,
        0x0a | 0x0b | 0x12..=0x15 => Layout::Event,
        _ => return None,
    };
    marked.then(|| record::time(body, layout)).flatten()
}

/// Reads up to `length` bytes into `into`; fewer at the end of the file.
pub fn read_at<R: Read + Seek>(input: &mut R, offset: u64, length: usize, into: &mut Vec<u8>) -> io::Result<()> {
    input.seek(SeekFrom::Start(offset))?;
    into.clear();
    input.take(length as u64).read_to_end(into)?;
    Ok(())
}

/// Bytes of each buffer that the index reads: its header and the begin of its first record, which in the first buffer is the
/// file's header with two names.
const HEAD_BYTES: usize = 2048;
/// Bytes read at once in search of a buffer.
const SEARCH_BYTES: usize = 1024 * 1024;
/// Buffers in the index: 128 MiB of memory. Sessions write buffers of 4 KiB or more, so these are 16 GiB of file.
const MOST_BUFFERS: usize = 4 * 1024 * 1024;
