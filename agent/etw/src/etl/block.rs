//! One buffer of a file, read, decompressed and walked: its wanted records in time order.
//!
//! Used by the reader. Does not: read from the file.

use super::buffer::{BufferHeader, HEADER_SIZE, LARGEST};
use super::filter::Filter;
use super::lz77;
use super::record::{self, Layout, Outcome, Step};
use super::statistics::EtlStatistics;

/// A record in a block.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// When, by the session's clock.
    pub ticks: i64,
    /// Offset in the block.
    at: u32,
    /// Its bytes, header included.
    size: u16,
    /// The header that it has.
    pub layout: Layout,
}

/// A buffer's records.
#[derive(Debug, Default)]
pub struct Block {
    /// The buffer without its header, decompressed. Keeps its allocation from buffer to buffer.
    bytes: Vec<u8>,
    /// How many of these bytes are of this buffer.
    length: usize,
    /// The wanted records in the order of their time.
    entries: Vec<Entry>,
    /// Index of the entry that comes next.
    next: usize,
    /// Processor of the buffer.
    pub cpu: u16,
    /// Index of the buffer in the file.
    pub order: u32,
}

impl Block {
    /// Fills the block from a buffer of the file. `whole` is the buffer with its header, maybe cut off.
    pub fn fill(&mut self, whole: &[u8], header: &BufferHeader, room: usize, walk: &mut Walk<'_>) {
        self.cpu = header.cpu;
        self.entries.clear();
        self.next = 0;
        let body = whole.get(HEADER_SIZE..).unwrap_or_default();
        let filled = (header.filled as usize).saturating_sub(HEADER_SIZE);
        if header.compressed() {
            // The size of the session's buffers bounds it. Merging may join sessions of other sizes, so the size that this
            // buffer states counts too, up to what most sessions use.
            let room = room.max(filled.min(USUAL_LARGEST)).min(LARGEST);
            if self.bytes.len() < room {
                self.bytes.resize(room, 0);
            }
            let inflated = lz77::inflate(body, self.bytes.get_mut(..room).unwrap_or_default());
            self.length = inflated.length;
            if !inflated.complete {
                walk.damaged = true;
            }
        } else {
            let body = body.get(..filled).unwrap_or(body);
            self.bytes.clear();
            self.bytes.extend_from_slice(body);
            self.length = body.len();
        }
        self.walk(walk);
    }

    /// Goes from record to record and keeps the wanted ones. Ends at the first that cannot be one: sizes are all that leads
    /// to the next. Records of one buffer are in order but for those whose time was taken before their room.
    fn walk(&mut self, walk: &mut Walk<'_>) {
        let body = self.bytes.get(..self.length).unwrap_or_default();
        walk.statistics.record_bytes += body.len() as u64;
        let (mut at, mut latest, mut ordered) = (0, i64::MIN, true);
        loop {
            let (layout, size) = match record::step(body, at) {
                Step::Record(layout, size) => (layout, size),
                Step::End => break,
                Step::Bad => {
                    walk.damaged = true;
                    break;
                }
            };
            let bytes = body.get(at..at + size).unwrap_or_default();
            match record::apply(bytes, layout, walk.filter) {
                Outcome::Wanted(ticks) => {
                    ordered &= ticks >= latest;
                    latest = ticks;
                    self.entries.push(Entry {
                        ticks,
                        at: at as u32,
                        size: size as u16,
                        layout,
                    });
                }
                Outcome::KernelOther => walk.statistics.kernel_other += 1,
                Outcome::Filtered => walk.statistics.filtered += 1,
                Outcome::Wpp => walk.statistics.wpp += 1,
                Outcome::Unknown => walk.statistics.unknown_headers += 1,
            }
            at += size.next_multiple_of(8);
        }
        if !ordered {
            self.entries.sort_by_key(|entry| entry.ticks);
        }
        walk.statistics.damaged_buffers += u64::from(walk.damaged);
    }

    /// The record that comes next.
    pub fn peek(&self) -> Option<&Entry> {
        self.entries.get(self.next)
    }

    /// Takes the record that comes next.
    pub fn take(&mut self) -> Option<Entry> {
        let entry = self.entries.get(self.next).copied();
        self.next += 1;
        entry
    }

    /// The bytes of a record.
    pub fn bytes(&self, entry: &Entry) -> &[u8] {
        let at = entry.at as usize;
        self.bytes.get(at..at + usize::from(entry.size)).unwrap_or_default()
    }

    /// Bytes it holds in memory.
    pub const fn memory(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()
    }
}

/// What goes into and out of a walk through a buffer.
pub struct Walk<'a> {
    /// Which records are wanted.
    pub filter: &'a Filter,
    /// Counts of the others.
    pub statistics: &'a mut EtlStatistics,
    /// The buffer could not be read to its end.
    pub damaged: bool,
}

/// Larger buffers are possible since Windows 8, and rare.
const USUAL_LARGEST: usize = 1024 * 1024;
