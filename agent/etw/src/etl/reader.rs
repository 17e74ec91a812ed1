//! The records of a file in time order, whichever processor's buffer they are in.
//!
//! Used by `events` and by tests. Opens a buffer when the time of its first record has come, and merges the open ones. Ties
//! keep the order of the file: merging writes a schema record right before its event, with the same time.
//! Does not: decode, or keep more buffers open than [`ReadOptions::memory_bytes`] allows, one excepted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{Read, Seek};

use super::block::{Block, Walk};
use super::buffer::BufferHeader;
use super::error::EtlError;
use super::filter::Filter;
use super::index::{self, BufferRef, Index, read_at};
use super::record;
use super::session::{Clock, SessionHeader};
use super::statistics::EtlStatistics;
use crate::raw::RecordView;
use crate::time::unix_ns_of_filetime;

/// How to read a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOptions {
    /// Which records are wanted.
    pub filter: Filter,
    /// Bytes that buffers open at the same time may take. When they do not suffice, records come out late.
    pub memory_bytes: usize,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            filter: Filter::default(),
            memory_bytes: 256 * 1024 * 1024,
        }
    }
}

/// The records of a file.
#[derive(Debug)]
pub struct EtlReader<R> {
    input: R,
    options: ReadOptions,
    /// Buffers not opened yet, the earliest last.
    pending: Vec<BufferRef>,
    session: SessionHeader,
    clock: Clock,
    /// Opened buffers; those in `free` are read to their end and are used again with their memory.
    blocks: Vec<Block>,
    free: Vec<usize>,
    /// (time, order in the file, block) of the next record of each open block but the current one.
    heap: BinaryHeap<Reverse<(i64, u32, usize)>>,
    /// The block that records are taken from.
    current: Option<usize>,
    /// Memory of the open blocks, held below [`ReadOptions::memory_bytes`].
    open_bytes: usize,
    /// A buffer as it is in the file, before decompression; kept for its memory.
    whole: Vec<u8>,
    /// Latest time that was returned: an earlier one after it is counted as late.
    latest: i64,
    statistics: EtlStatistics,
}

impl<R: Read + Seek> EtlReader<R> {
    /// Finds the buffers; reads no record yet.
    ///
    /// # Errors
    /// When the input cannot be read, or has no trace buffer.
    pub fn new(mut input: R, options: ReadOptions) -> Result<Self, EtlError> {
        let mut statistics = EtlStatistics::default();
        let Index {
            buffers,
            session,
            clock,
        } = index::build(&mut input, &mut statistics)?;
        Ok(Self {
            input,
            options,
            clock: clock.unwrap_or_else(|| guess_clock(&buffers)),
            pending: buffers,
            session,
            blocks: Vec::new(),
            free: Vec::new(),
            heap: BinaryHeap::new(),
            current: None,
            open_bytes: 0,
            whole: Vec::new(),
            latest: i64::MIN,
            statistics,
        })
    }

    /// The header that the session wrote.
    pub const fn session(&self) -> &SessionHeader {
        &self.session
    }

    /// Counts of what was read so far, and of what was not.
    pub const fn statistics(&self) -> &EtlStatistics {
        &self.statistics
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// When a buffer cannot be read. The next call skips it and continues.
    pub fn next_record(&mut self) -> Result<Option<RecordView<'_>>, EtlError> {
        while let Some(slot) = self.next_block()? {
            let block = &mut self.blocks[slot];
            let Some(entry) = block.take() else { continue };
            // Checked before, since a view that is returned from inside the loop would borrow `self` for the whole loop.
            if !record::intact(block.bytes(&entry), entry.layout) {
                self.statistics.bad_records += 1;
                continue;
            }
            self.statistics.records += 1;
            self.statistics.late += u64::from(entry.ticks < self.latest);
            self.latest = self.latest.max(entry.ticks);
            let at_ns = self.clock.unix_ns(entry.ticks);
            let block = &self.blocks[slot];
            return Ok(record::view(block.bytes(&entry), entry.layout, block.cpu, at_ns));
        }
        Ok(None)
    }

    /// The block with the earliest record, after opening whatever may hold an earlier one.
    fn next_block(&mut self) -> Result<Option<usize>, EtlError> {
        loop {
            let best = self.best();
            let due = self.pending.last().is_some_and(|buffer| match best {
                Some((ticks, order, _)) => {
                    (buffer.first_ticks, buffer.order) < (ticks, order) && self.open_bytes < self.options.memory_bytes
                }
                None => true,
            });
            if !due {
                return Ok(best.map(|(_, _, slot)| self.make_current(slot)));
            }
            if let Some(buffer) = self.pending.pop() {
                self.open(buffer)?;
            }
        }
    }

    /// (time, order, block) of the earliest record in an open block. The current block is not in the heap: runs of records of
    /// one buffer are common, and cost one comparison each this way.
    fn best(&mut self) -> Option<(i64, u32, usize)> {
        let own = self.current.and_then(|slot| {
            let block = self.blocks.get(slot)?;
            block.peek().map(|entry| (entry.ticks, block.order, slot))
        });
        if own.is_none()
            && let Some(slot) = self.current.take()
        {
            self.open_bytes -= self.blocks[slot].memory();
            self.free.push(slot);
        }
        let others = self.heap.peek().map(|Reverse(key)| *key);
        match (own, others) {
            (Some(own), Some(other)) => Some(own.min(other)),
            (own, other) => own.or(other),
        }
    }

    /// Takes a block out of the heap to read from it; the one before goes back.
    fn make_current(&mut self, slot: usize) -> usize {
        if self.current != Some(slot) {
            self.heap.pop();
            if let Some(before) = self.current.replace(slot) {
                self.push(before);
            }
        }
        slot
    }

    /// Puts a block into the heap by its next record, or frees it at its end.
    fn push(&mut self, slot: usize) {
        let block = &self.blocks[slot];
        match block.peek() {
            Some(entry) => self.heap.push(Reverse((entry.ticks, block.order, slot))),
            None => {
                self.open_bytes -= block.memory();
                self.free.push(slot);
            }
        }
    }

    /// Reads a buffer into a block and decompresses it.
    fn open(&mut self, buffer: BufferRef) -> Result<(), EtlError> {
        let size = buffer.size as usize;
        read_at(&mut self.input, buffer.offset, size, &mut self.whole).map_err(|source| EtlError::Read {
            offset: buffer.offset,
            source,
        })?;
        let Some(header) = BufferHeader::read(&self.whole) else {
            // The file has changed since it was indexed.
            self.statistics.damaged_buffers += 1;
            return Ok(());
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.blocks.push(Block::default());
            self.blocks.len() - 1
        });
        let mut walk = Walk {
            filter: &self.options.filter,
            statistics: &mut self.statistics,
            damaged: false,
        };
        let block = &mut self.blocks[slot];
        block.order = buffer.order;
        block.fill(&self.whole, &header, self.session.buffer_bytes as usize, &mut walk);
        self.open_bytes += block.memory();
        self.statistics.peak_open_bytes = self.statistics.peak_open_bytes.max(self.open_bytes as u64);
        self.push(slot);
        Ok(())
    }
}

/// The clock of a file without a readable header: FILETIME where the times can be that, else the usual performance counter
/// since boot, so that at least durations are right.
fn guess_clock(buffers: &[BufferRef]) -> Clock {
    let mut known = buffers
        .iter()
        .map(|buffer| buffer.first_ticks)
        .filter(|&ticks| ticks > 0);
    if known.next_back().is_some_and(|ticks| unix_ns_of_filetime(ticks) > 0) {
        Clock::FileTime
    } else {
        Clock::counter(0, 0, 0)
    }
}
