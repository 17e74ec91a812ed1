//! The segments of one directory: append, take the oldest, mark as done, evict, expire, recover.
//!
//! Used by `spool.rs`, which calls it outside of the runtime's threads. There are two lanes of segments, for bad and for good
//! traces, so that eviction empties whole files. A record is taken from the lane whose head was made first; within a lane the
//! order is that of the appends. The index (about 64 bytes for each waiting request) is in memory, the bodies are not.
//!
//! What holds at any instant at which the process can be killed:
//! - A record is appended with one write, and a segment that an earlier process wrote is never appended to. So only the last
//!   record of a segment can be torn, and no reader confuses it with a whole one.
//! - A record is marked as done, or the file of the last one emptied, only after the collector has answered. A kill between the
//!   two sends that one request again: at least once, with the same ids.
//! - A segment with a bad record is written anew, and emptied after that, so that a loss is counted once. Should both be found,
//!   the sequence numbers tell.
//!
//! A file is emptied as soon as all of its records are done, and used again: while the collector accepts everything, nothing is
//! at rest but a request under way. It is not removed, so that the chart's seccomp profile need not allow unlink(2) or rename(2).
//! Does not: fsync. A process's end loses nothing; a node's may lose what its kernel had not written
//! back (usually the last 30 s), which is then cut off and counted.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::format::{self, DONE_MARK, Moment, RECORD_HEADER, RecordHeader, SEGMENT_HEADER};
use crate::platform::create_private;
use crate::sinks::disk::directory::{Worth, lock, name, parse_name, private_directory};

mod recovery;

use recovery::SeenRecords;

/// Reads both clocks.
pub(super) type Clock = Arc<dyn Fn() -> Moment + Send + Sync>;

/// Bounds of a spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentBounds {
    /// Bytes of all files.
    pub(super) bytes: u64,
    /// Waiting requests.
    pub(super) requests: usize,
    /// Bytes after which a new segment is begun.
    pub(super) segment_bytes: u64,
    /// Age after which a request is dropped.
    pub(super) age: Duration,
}

/// One request to be written.
#[derive(Clone, Debug)]
pub(super) struct NewRecord<'a> {
    pub(super) body: &'a [u8],
    pub(super) gzip: bool,
    pub(super) spans: u32,
    pub(super) worth: Worth,
}

/// One request that was taken, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sinks::otlp) struct TakenRecord {
    pub(in crate::sinks::otlp) body: Bytes,
    pub(super) entry: Entry,
    segment: u64,
    worth: Worth,
}

impl TakenRecord {
    pub(in crate::sinks::otlp) fn spans(&self) -> u64 {
        u64::from(self.entry.header.spans)
    }

    pub(in crate::sinks::otlp) fn gzip(&self) -> bool {
        self.entry.header.gzip
    }

    /// Counts an attempt; returns the number of earlier ones by this process.
    pub(in crate::sinks::otlp) fn begin_attempt(&mut self) -> u32 {
        self.entry.attempts += 1;
        self.entry.attempts - 1
    }
}

/// Spans that were dropped, by reason, since [`Segments::drops`] was called last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sinks::otlp) struct SpoolDrops {
    /// There was no room.
    pub(in crate::sinks::otlp) evicted: u64,
    /// They were too old.
    pub(in crate::sinks::otlp) expired: u64,
    /// Their bytes could not be read, or were not those that were written.
    pub(in crate::sinks::otlp) corrupt: u64,
    /// Bytes of unreadable records. The spans of a torn record at the end of a segment can be unknown.
    pub(in crate::sinks::otlp) cut_bytes: u64,
    /// Spans found at the opening, readable or not: they enter the sink with it.
    pub(in crate::sinks::otlp) recovered: u64,
}

/// What is in the spool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sinks::otlp) struct SpoolDepth {
    /// Spans that wait, without the request under way.
    pub(in crate::sinks::otlp) spans: u64,
    /// Bytes of the segments' files.
    pub(in crate::sinks::otlp) bytes: u64,
    /// Number of segments.
    pub(in crate::sinks::otlp) segments: usize,
    /// When the oldest waiting request was made, in nanoseconds since 1970.
    pub(in crate::sinks::otlp) oldest_unix_ns: Option<u64>,
    /// Segments of a newer format, which are left alone.
    pub(in crate::sinks::otlp) newer: usize,
    /// Segments that could not be read at all (an I/O error); they are left alone too.
    pub(in crate::sinks::otlp) unreadable: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    offset: u64,
    header: RecordHeader,
    attempts: u32,
}

#[derive(Debug)]
struct Segment {
    /// Unique in this process.
    id: u64,
    path: PathBuf,
    /// Length of the whole records and the header.
    len: u64,
    /// Boot in which it was written; 0 if unknown.
    boot: u64,
    /// Spans of all records that were ever in it.
    spans: u32,
    /// Records that wait.
    entries: VecDeque<Entry>,
}

impl Segment {
    fn spans_waiting(&self) -> u64 {
        self.entries.iter().map(|entry| u64::from(entry.header.spans)).sum()
    }
}

/// The open directory.
pub(super) struct Segments {
    directory: PathBuf,
    bounds: SegmentBounds,
    clock: Clock,
    boot: u64,
    /// Oldest first; index by [`Worth`].
    lanes: [VecDeque<Segment>; 2],
    /// The last segment of each lane, if this process began it.
    writers: [Option<File>; 2],
    /// Empty files; index by [`Worth`].
    free: [Vec<PathBuf>; 2],
    /// Number of the next file, and of the next segment: a file is used for several, one after the other.
    next_number: u64,
    next_id: u64,
    next_sequence: u64,
    bytes: u64,
    requests: usize,
    spans: u64,
    newer: usize,
    unreadable: usize,
    /// The segment whose record is under way.
    under_way: Option<u64>,
    drops: SpoolDrops,
    /// Keeps other processes out; released with the process, however it ends.
    _lock: File,
}

impl Segments {
    /// Opens `directory`, creates it if it does not exist, and reads every segment in it. `boot` identifies this boot.
    ///
    /// # Errors
    /// The directory cannot be created, written or locked.
    pub(super) fn open(directory: &Path, bounds: SegmentBounds, boot: u64, clock: Clock) -> io::Result<Segments> {
        private_directory(directory)?;
        let lock = lock(directory)?;
        let mut segments = Segments {
            directory: directory.to_owned(),
            bounds,
            clock,
            boot,
            lanes: Default::default(),
            writers: Default::default(),
            free: Default::default(),
            next_number: 1,
            next_id: 1,
            next_sequence: 1,
            bytes: 0,
            requests: 0,
            spans: 0,
            newer: 0,
            unreadable: 0,
            under_way: None,
            drops: SpoolDrops::default(),
            _lock: lock,
        };
        let mut found = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if let Some((number, worth)) = parse_name(&path) {
                found.push((number, worth, path));
            }
        }
        found.sort();
        let mut seen = SeenRecords::new();
        segments.next_number = found.last().map_or(1, |(number, ..)| number.saturating_add(1));
        for (_, worth, path) in found {
            if let Err(error) = segments.recover(worth, path.clone(), &mut seen) {
                // It is left where it is, and tried again at the next start.
                tracing::warn!(path = %path.display(), %error, "cannot read a segment of the spool");
                segments.unreadable += 1;
            }
        }
        for lane in &mut segments.lanes {
            lane.make_contiguous()
                .sort_by_key(|segment| segment.entries.front().map(|entry| entry.header.sequence));
        }
        segments.drops.recovered += segments.spans;
        segments.expire();
        segments.make_room(0, Worth::Bad);
        Ok(segments)
    }

    /// Writes one request. Evicts what is worth less, or older ones of the same worth, if there is no room; the request itself
    /// if there is nothing of that kind.
    ///
    /// # Errors
    /// It is not written: the disk is full, or the directory cannot be written any more.
    pub(super) fn append(&mut self, record: &NewRecord<'_>) -> io::Result<()> {
        self.expire();
        let size = (SEGMENT_HEADER + RECORD_HEADER + record.body.len()) as u64;
        if !self.make_room(size, record.worth) {
            self.drops.evicted += u64::from(record.spans);
            return Ok(());
        }
        let lane = record.worth as usize;
        let tail_is_full = |tail: &Segment| {
            tail.len + size > self.bounds.segment_bytes || tail.spans.checked_add(record.spans).is_none()
        };
        if self.lanes[lane].back().is_none_or(tail_is_full) {
            self.writers[lane] = None;
        }
        let spans_before = match self.writers[lane] {
            Some(_) => self.lanes[lane].back().map_or(0, |tail| tail.spans),
            None => 0,
        };
        let length = u32::try_from(record.body.len()).map_err(io::Error::other)?;
        let header = RecordHeader {
            length,
            spans: record.spans,
            gzip: record.gzip,
            sequence: self.next_sequence,
            made: (self.clock)(),
            spans_before,
            body_crc: format::checksum(record.body),
        };
        let mut bytes = header.encode();
        bytes.extend_from_slice(record.body);
        if self.writers[lane].is_none() {
            self.begin_segment(record.worth, &bytes)?;
        } else {
            self.extend_segment(lane, &bytes)?;
        }
        let Some(tail) = self.lanes[lane].back_mut() else {
            return Ok(());
        };
        tail.entries.push_back(Entry {
            offset: tail.len - bytes.len() as u64,
            header,
            attempts: 0,
        });
        tail.spans += record.spans;
        self.next_sequence += 1;
        self.requests += 1;
        self.spans += u64::from(record.spans);
        Ok(())
    }

    /// Takes the oldest request. It stays on disk until [`Segments::done`]. One request can be under way.
    pub(super) fn take(&mut self) -> Option<TakenRecord> {
        self.expire();
        loop {
            let worth = self.older_lane()?;
            let segment = self.lanes[worth as usize]
                .iter_mut()
                .find(|segment| !segment.entries.is_empty())?;
            let entry = segment.entries.pop_front()?;
            let (id, body) = (segment.id, read_body(&segment.path, &entry));
            self.requests -= 1;
            self.spans -= u64::from(entry.header.spans);
            match body {
                Ok(body) => {
                    self.under_way = Some(id);
                    return Some(TakenRecord {
                        body,
                        entry,
                        segment: id,
                        worth,
                    });
                }
                Err(error) => {
                    tracing::warn!(spans = entry.header.spans, %error, "cannot read a request of the spool");
                    self.drops.corrupt += u64::from(entry.header.spans);
                    self.drops.cut_bytes += RECORD_HEADER as u64 + u64::from(entry.header.length);
                    self.finish(id, worth, &entry);
                }
            }
        }
    }

    /// The request under way needs no further attempt.
    pub(super) fn done(&mut self, taken: &TakenRecord) {
        self.under_way = None;
        self.finish(taken.segment, taken.worth, &taken.entry);
    }

    /// The request under way has to be sent again. It counts as evicted if its segment was evicted meanwhile.
    pub(super) fn give_back(&mut self, taken: &TakenRecord) {
        self.under_way = None;
        match self.segment(taken.segment, taken.worth) {
            Some(segment) => {
                segment.entries.push_front(taken.entry);
                self.requests += 1;
                self.spans += taken.spans();
            }
            None => self.drops.evicted += taken.spans(),
        }
    }

    /// What was dropped since the last call.
    pub(super) fn drops(&mut self) -> SpoolDrops {
        std::mem::take(&mut self.drops)
    }

    pub(super) fn depth(&self) -> SpoolDepth {
        let heads = self.lanes.iter().flatten().flat_map(|segment| segment.entries.front());
        SpoolDepth {
            spans: self.spans,
            bytes: self.bytes,
            segments: self.lanes.iter().map(VecDeque::len).sum(),
            oldest_unix_ns: heads.map(|entry| entry.header.made.unix_ns).min(),
            newer: self.newer,
            unreadable: self.unreadable,
        }
    }

    /// The lane with the record that was appended first.
    fn older_lane(&self) -> Option<Worth> {
        let head = |worth: Worth| {
            let mut entries = self.lanes[worth as usize]
                .iter()
                .filter_map(|segment| segment.entries.front());
            entries.next().map(|entry| (entry.header.sequence, worth))
        };
        [head(Worth::Bad), head(Worth::Good)]
            .into_iter()
            .flatten()
            .min()
            .map(|(_, worth)| worth)
    }

    fn begin_segment(&mut self, worth: Worth, record: &[u8]) -> io::Result<()> {
        let mut bytes = format::segment_header(self.boot);
        bytes.extend_from_slice(record);
        let (path, file) = self.new_file(worth, &bytes)?;
        self.bytes += bytes.len() as u64;
        self.writers[worth as usize] = Some(file);
        self.lanes[worth as usize].push_back(Segment {
            id: self.next_id,
            path,
            len: bytes.len() as u64,
            boot: self.boot,
            spans: 0,
            entries: VecDeque::new(),
        });
        self.next_id += 1;
        Ok(())
    }

    /// A file with these bytes: an empty one, or else a new one.
    fn new_file(&mut self, worth: Worth, bytes: &[u8]) -> io::Result<(PathBuf, File)> {
        let (path, mut file) = match self.free[worth as usize].pop() {
            Some(path) => (path.clone(), OpenOptions::new().write(true).truncate(true).open(path)?),
            None => {
                let path = self.directory.join(name(self.next_number, worth));
                let file = create_private(&path)?;
                self.next_number += 1;
                (path, file)
            }
        };
        if let Err(error) = file.write_all(bytes) {
            let _ = file.set_len(0);
            self.free[worth as usize].push(path);
            return Err(error);
        }
        Ok((path, file))
    }

    /// Empties a file, to be used again.
    fn clear(&mut self, worth: Worth, path: PathBuf) {
        match OpenOptions::new().write(true).truncate(true).open(&path) {
            Ok(_) => self.free[worth as usize].push(path),
            Err(error) => tracing::warn!(path = %path.display(), %error, "cannot empty a segment of the spool"),
        }
    }

    fn extend_segment(&mut self, lane: usize, record: &[u8]) -> io::Result<()> {
        let (Some(file), Some(tail)) = (self.writers[lane].as_mut(), self.lanes[lane].back_mut()) else {
            return Err(io::Error::other("no segment is open"));
        };
        let written = file
            .seek(SeekFrom::Start(tail.len))
            .and_then(|_| file.write_all(record));
        if let Err(error) = written {
            // Nothing is appended after a torn record: the next one begins a new segment.
            let _ = file.set_len(tail.len);
            self.writers[lane] = None;
            return Err(error);
        }
        tail.len += record.len() as u64;
        self.bytes += record.len() as u64;
        Ok(())
    }

    /// Evicts until `size` bytes fit; false if they do not fit without evicting what is worth more.
    fn make_room(&mut self, size: u64, worth: Worth) -> bool {
        if size > self.bounds.bytes {
            return false;
        }
        while self.bytes + size > self.bounds.bytes || self.requests >= self.bounds.requests {
            let lanes: &[Worth] = match worth {
                Worth::Bad => &[Worth::Good, Worth::Bad],
                Worth::Good => &[Worth::Good],
            };
            let Some(lane) = lanes.iter().find(|lane| !self.lanes[**lane as usize].is_empty()) else {
                return false;
            };
            self.evict_oldest(*lane);
        }
        true
    }

    fn evict_oldest(&mut self, worth: Worth) {
        let lane = worth as usize;
        let Some(segment) = self.lanes[lane].pop_front() else {
            return;
        };
        if self.lanes[lane].is_empty() {
            self.writers[lane] = None;
        }
        let spans = segment.spans_waiting();
        self.drops.evicted += spans;
        self.spans -= spans;
        self.requests -= segment.entries.len();
        self.forget(segment, worth);
    }

    /// Drops requests that are too old.
    fn expire(&mut self) {
        let now = (self.clock)();
        for worth in [Worth::Bad, Worth::Good] {
            while let Some(segment) = self.lanes[worth as usize]
                .iter_mut()
                .find(|segment| !segment.entries.is_empty())
            {
                let Some(entry) = segment.entries.front().copied() else {
                    break;
                };
                // The boot clock does not step; across boots only the wall clock remains.
                let age = match segment.boot == self.boot {
                    true => now.boot_ns.saturating_sub(entry.header.made.boot_ns),
                    false => now.unix_ns.saturating_sub(entry.header.made.unix_ns),
                };
                if Duration::from_nanos(age) <= self.bounds.age {
                    break;
                }
                segment.entries.pop_front();
                let id = segment.id;
                self.requests -= 1;
                self.spans -= u64::from(entry.header.spans);
                self.drops.expired += u64::from(entry.header.spans);
                self.finish(id, worth, &entry);
            }
        }
    }

    /// A record is not needed any more: marks it, or empties the segment of which it was the last.
    fn finish(&mut self, id: u64, worth: Worth, entry: &Entry) {
        let is_under_way = self.under_way == Some(id);
        let Some(segment) = self.segment(id, worth) else {
            return;
        };
        if !segment.entries.is_empty() || is_under_way {
            // Failing that, the request is sent again after a restart.
            let _ = mark_done(&segment.path, entry);
            return;
        }
        let lane = &mut self.lanes[worth as usize];
        let Some(position) = lane.iter().position(|segment| segment.id == id) else {
            return;
        };
        if position + 1 == lane.len() {
            self.writers[worth as usize] = None;
        }
        if let Some(segment) = lane.remove(position) {
            self.forget(segment, worth);
        }
    }

    fn forget(&mut self, segment: Segment, worth: Worth) {
        self.bytes -= segment.len;
        self.clear(worth, segment.path);
    }

    fn segment(&mut self, id: u64, worth: Worth) -> Option<&mut Segment> {
        self.lanes[worth as usize].iter_mut().find(|segment| segment.id == id)
    }
}

fn read_body(path: &Path, entry: &Entry) -> io::Result<Bytes> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(entry.offset + RECORD_HEADER as u64))?;
    let mut body = vec![0; entry.header.length as usize];
    file.read_exact(&mut body)?;
    if format::checksum(&body) != entry.header.body_crc {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its checksum is wrong"));
    }
    Ok(Bytes::from(body))
}

fn mark_done(path: &Path, entry: &Entry) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.seek(SeekFrom::Start(entry.offset + DONE_MARK as u64))?;
    file.write_all(&entry.header.done_mark())
}
