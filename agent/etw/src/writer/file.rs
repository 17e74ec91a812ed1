//! Lays records out in buffers, one sequence for each processor, as a session does.
//!
//! Used by tests and demos. Does not: write to disk.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::deflate::deflate;
use super::event_info::event_info;
use super::layout::lay_out;
use crate::decoder::{SCHEMA_OPCODE, SCHEMA_RECORDS};
use crate::etl::ClockKind;
use crate::guid::Guid;
use crate::raw::{RawRecord, RecordHeader, flags};
use crate::tables::Tables;
use crate::time::filetime_of_unix_ns;

/// The session that the file's header states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its name.
    pub name: String,
    /// Its start, in nanoseconds since 1970; records of before are stamped with it.
    pub started_ns: u64,
    /// What stamps the records.
    pub clock: ClockKind,
    /// Ticks a second of a clock that is not system time.
    pub frequency: u64,
    /// What a counter stood at when the session started.
    pub first_tick: i64,
    /// Size of its buffers.
    pub buffer_bytes: u32,
    /// Processors of the machine.
    pub processors: u32,
    /// Compresses its buffers.
    pub compressed: bool,
    /// Windows build.
    pub os_build: u32,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            name: "sandglass".to_owned(),
            started_ns: 1_760_000_000_000_000_000,
            clock: ClockKind::PerformanceCounter,
            frequency: 10_000_000,
            first_tick: 5_000_000_000,
            buffer_bytes: 64 * 1024,
            processors: 4,
            compressed: false,
            os_build: 20_348,
        }
    }
}

/// Collects records and writes them as one file.
#[derive(Debug, Clone, Default)]
pub struct EtlWriter {
    session: Session,
    /// In any order; sorted by time when the file is made.
    records: Vec<Timed>,
    losses: Vec<Loss>,
    /// The schemas to write before the events that have them.
    schemas: Option<Arc<Tables>>,
}

/// A record with what places it in the file.
#[derive(Debug, Clone)]
struct Timed {
    at_ns: u64,
    cpu: u16,
    content: Content,
}

/// A record, laid out or not.
#[derive(Debug, Clone)]
enum Content {
    Record(RawRecord),
    /// A finished record; the time goes to that place in it.
    Bytes(Vec<u8>, usize),
}

/// Events and buffers that the session lost at a time.
#[derive(Debug, Clone, Copy)]
struct Loss {
    at_ns: u64,
    cpu: u16,
    events: u32,
    buffers: u32,
}

impl EtlWriter {
    /// For that session.
    pub fn new(session: Session) -> Self {
        Self {
            session,
            ..Self::default()
        }
    }

    /// Puts a schema record in front of the first event of each kind that the tables know, as merging does.
    #[must_use]
    pub fn with_schemas(mut self, tables: Arc<Tables>) -> Self {
        self.schemas = Some(tables);
        self
    }

    /// Adds a record; the order of adding does not matter, but for records of the same time.
    pub fn push(&mut self, record: RawRecord) {
        self.records.push(Timed {
            at_ns: record.header.at_ns,
            cpu: record.header.cpu,
            content: Content::Record(record),
        });
    }

    /// Adds the bytes of a record of any layout; its time is put at `time_at` in it.
    pub fn push_bytes(&mut self, at_ns: u64, cpu: u16, bytes: Vec<u8>, time_at: usize) {
        self.records.push(Timed {
            at_ns,
            cpu,
            content: Content::Bytes(bytes, time_at),
        });
    }

    /// The session lost that many events and buffers: the next buffer of this processor is marked, the header counts.
    pub fn lose(&mut self, at_ns: u64, cpu: u16, events: u32, buffers: u32) {
        self.losses.push(Loss {
            at_ns,
            cpu,
            events,
            buffers,
        });
    }

    /// The file.
    pub fn finish(mut self) -> Vec<u8> {
        self.records.sort_by_key(|record| record.at_ns);
        let mut file = Vec::new();
        let mut known = HashSet::new();
        let mut open: BTreeMap<u16, Open> = BTreeMap::new();
        let mut sequence = 1;
        let room = (self.session.buffer_bytes as usize).saturating_sub(HEADER_SIZE);
        for record in std::mem::take(&mut self.records) {
            let ticks = self.ticks(record.at_ns);
            let mut parts = Vec::new();
            if let Content::Record(raw) = &record.content {
                parts.extend(self.schema_record(raw, ticks, &mut known));
            }
            parts.push(match record.content {
                Content::Record(raw) => lay_out(&raw, ticks),
                Content::Bytes(mut bytes, at) => {
                    if let Some(place) = bytes.get_mut(at..at + 8) {
                        place.copy_from_slice(&ticks.to_le_bytes());
                    }
                    bytes
                }
            });
            for part in parts {
                let buffer = open.entry(record.cpu).or_default();
                if buffer.bytes.len() + part.len() > room && !buffer.bytes.is_empty() {
                    let full = std::mem::take(buffer);
                    file.extend(self.buffer(&full, record.cpu, sequence, 0));
                    sequence += 1;
                }
                let buffer = open.entry(record.cpu).or_default();
                buffer.flags |= self.take_losses(record.at_ns, record.cpu);
                buffer.last_ticks = ticks;
                buffer.bytes.extend(&part);
                buffer.bytes.resize(buffer.bytes.len().next_multiple_of(8), 0);
            }
        }
        for (cpu, buffer) in open {
            file.extend(self.buffer(&buffer, cpu, sequence, FLUSHED));
            sequence += 1;
        }
        let mut whole = self.first_buffer(sequence as u32);
        whole.extend(file);
        whole
    }

    /// Marks of the losses before that time; the counts stay for the header.
    fn take_losses(&mut self, at_ns: u64, cpu: u16) -> u16 {
        let mut marks = 0;
        for loss in &mut self.losses {
            if loss.cpu == cpu && loss.at_ns <= at_ns {
                // `ETW_BUFFER_FLAG_EVENTS_LOST` and `_BUFFER_LOST` (ntwmi.h of the phnt headers).
                marks |= if loss.events > 0 { 0x02 } else { 0 };
                marks |= if loss.buffers > 0 { 0x04 } else { 0 };
                // Marked once.
                loss.at_ns = u64::MAX;
            }
        }
        marks
    }

    /// The schema record that merging would put before the first event of this kind.
    fn schema_record(&self, raw: &RawRecord, ticks: i64, known: &mut HashSet<(Guid, u16, u8)>) -> Option<Vec<u8>> {
        let RecordHeader {
            provider, id, version, ..
        } = raw.header;
        let schema = self.schemas.as_ref()?.event(provider, id, version)?;
        if id == 0 || raw.header.flags & flags::CLASSIC_HEADER != 0 || !known.insert((provider, id, version)) {
            return None;
        }
        let header = RecordHeader {
            provider: SCHEMA_RECORDS,
            opcode: SCHEMA_OPCODE,
            flags: flags::CLASSIC_HEADER,
            pointer_size: 8,
            ..raw.header
        };
        let record = RawRecord {
            header,
            extended: Vec::new(),
            user_data: event_info(provider, id, version, schema).into(),
        };
        Some(lay_out(&record, ticks))
    }

    /// The time as the session's clock stamps it.
    fn ticks(&self, at_ns: u64) -> i64 {
        let session = &self.session;
        let at_ns = at_ns.max(session.started_ns);
        if session.clock == ClockKind::SystemTime {
            return filetime_of_unix_ns(at_ns);
        }
        let passed = u128::from(at_ns - session.started_ns) * u128::from(session.frequency) / 1_000_000_000;
        session.first_tick.saturating_add(passed as i64)
    }

    /// A buffer with its header, in the size of the session's buffers or compressed.
    fn buffer(&self, open: &Open, cpu: u16, sequence: i64, flags: u16) -> Vec<u8> {
        let filled = open.bytes.len() + HEADER_SIZE;
        // 0x20: the header states the processor.
        let mut mark = 0x20 | flags | open.flags;
        let mut body = open.bytes.clone();
        let size = if self.session.compressed {
            // 0x40: compressed with LZXPRESS plain LZ77 (MS-XCA, section 2.3).
            mark |= 0x40;
            body = deflate(&body);
            body.len() + HEADER_SIZE
        } else {
            let size = (self.session.buffer_bytes as usize).max(filled);
            // A session fills the rest of a buffer with 0xff, which ends the walk.
            body.resize(size - HEADER_SIZE, 0xff);
            size
        };
        let mut buffer = buffer_header(size, filled, cpu, mark, 0, open.last_ticks, sequence);
        buffer.extend(body);
        buffer
    }

    /// The file's header, in a buffer of its own.
    fn first_buffer(&self, buffers: u32) -> Vec<u8> {
        let session = &self.session;
        let ticks = self.ticks(session.started_ns);
        let payload = self.logfile_header(buffers);
        let size = payload.len() + 0x20;
        // `SYSTEM_TRACE_HEADER` of 64-bit: version 2, header type 2; group and type 0 (`EventTraceGuid`, header event).
        let mut record = vec![2, 0, 0x02, 0xc0];
        record.extend((size as u16).to_le_bytes());
        record.extend([0, 0]);
        record.extend([0; 8]);
        record.extend(ticks.to_le_bytes());
        record.extend([0; 8]);
        record.extend(payload);
        record.resize(size.next_multiple_of(8), 0);
        let filled = record.len() + HEADER_SIZE;
        // A session in compressed mode leaves this buffer as it is, but small.
        let size = if session.compressed {
            filled.next_multiple_of(512)
        } else {
            (session.buffer_bytes as usize).max(filled)
        };
        record.resize(size - HEADER_SIZE, 0xff);
        let mut buffer = buffer_header(size, filled, 0, 0x21, 4, 0, 0);
        buffer.extend(record);
        buffer
    }

    /// `TRACE_LOGFILE_HEADER` (evntrace.h), then the names of session and file.
    fn logfile_header(&self, buffers: u32) -> Vec<u8> {
        let session = &self.session;
        let last = self.records.iter().map(|record| record.at_ns).max();
        let ended = last.unwrap_or(session.started_ns) + 1_000_000_000;
        let clock = match session.clock {
            ClockKind::PerformanceCounter => 1_u32,
            ClockKind::SystemTime => 2,
            ClockKind::CpuCycles => 3,
        };
        let lost: u32 = self.losses.iter().map(|loss| loss.events).sum();
        let lost_buffers: u32 = self.losses.iter().map(|loss| loss.buffers).sum();
        let mut bytes = Vec::with_capacity(512);
        bytes.extend(session.buffer_bytes.to_le_bytes());
        // `VersionDetail`: major 10, minor 0, sub-version 1.5 of the format.
        bytes.extend([10, 0, 1, 5]);
        bytes.extend(session.os_build.to_le_bytes());
        bytes.extend(session.processors.to_le_bytes());
        bytes.extend(filetime_of_unix_ns(ended).to_le_bytes());
        // `TimerResolution` (100 ns), `MaximumFileSize`, `LogFileMode` (sequential), `BuffersWritten`, `StartBuffers`,
        // `PointerSize`, `EventsLost`, `CpuSpeedInMHz`.
        for number in [
            156_250,
            0,
            1,
            buffers,
            1,
            8,
            lost,
            (session.frequency / 1_000_000) as u32,
        ] {
            bytes.extend(number.to_le_bytes());
        }
        // Two pointers, `TIME_ZONE_INFORMATION`, and its alignment.
        bytes.extend([0; 16 + 172 + 4]);
        // `BootTime`: an hour before the session.
        let boot = session.started_ns.saturating_sub(3_600_000_000_000);
        bytes.extend(filetime_of_unix_ns(boot).to_le_bytes());
        bytes.extend((session.frequency as i64).to_le_bytes());
        bytes.extend(filetime_of_unix_ns(session.started_ns).to_le_bytes());
        bytes.extend(clock.to_le_bytes());
        bytes.extend(lost_buffers.to_le_bytes());
        for name in [session.name.as_str(), "sandglass.etl"] {
            bytes.extend(name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes));
        }
        bytes
    }
}

/// A buffer that is being filled.
#[derive(Debug, Clone, Default)]
struct Open {
    bytes: Vec<u8>,
    flags: u16,
    last_ticks: i64,
}

/// `WMI_BUFFER_HEADER` (ntwmi.h of the phnt headers): BufferSize, SavedOffset, CurrentOffset, ReferenceCount, TimeStamp,
/// SequenceNumber, clock, processor and alignment, logger id, state, Offset, flags, type.
fn buffer_header(size: usize, filled: usize, cpu: u16, flags: u16, kind: u16, ticks: i64, sequence: i64) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_SIZE);
    for number in [size as u32, filled as u32, filled as u32, 0] {
        header.extend(number.to_le_bytes());
    }
    header.extend(ticks.to_le_bytes());
    header.extend(sequence.to_le_bytes());
    header.extend([0; 8]);
    header.extend(cpu.to_le_bytes());
    header.extend(2_u16.to_le_bytes());
    header.extend([0; 4]);
    header.extend((filled as u32).to_le_bytes());
    header.extend(flags.to_le_bytes());
    header.extend(kind.to_le_bytes());
    header.resize(HEADER_SIZE, 0);
    header
}

/// Bytes of a buffer's header: `WMI_BUFFER_HEADER` (ntwmi.h of the phnt headers).
const HEADER_SIZE: usize = 0x48;
/// The buffer was written because the session ended.
const FLUSHED: u16 = 0x01;
