//! Records in a buffer: their eight header layouts, made into one.
//!
//! Headers: learn.microsoft.com, EVENT_HEADER, EVENT_TRACE_HEADER, EVENT_INSTANCE_GUID_HEADER; those of the kernel logger
//! (SYSTEM_TRACE_HEADER, PERFINFO_TRACE_HEADER) and the header types: ntwmi.h of the phnt headers.
//! Used by the reader, first to walk a buffer (size, time, provider), then to return a record. Does not: decode a payload.

use super::filter::Filter;
use super::kernel_class::class_of_group;
use crate::bytes::{array_at, u16_at, u32_at};
use crate::guid::Guid;
use crate::raw::{ExtendedItems, RecordHeader, RecordView, flags, packed_length};

/// What is at one place of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A record of that many bytes.
    Record(Layout, usize),
    /// Nothing more in this buffer.
    End,
    /// No record: the rest of the buffer cannot be walked.
    Bad,
}

/// A header layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Kernel logger, 32 bytes.
    System,
    /// Kernel logger, 24 bytes.
    Compact,
    /// Kernel logger, 16 bytes.
    PerfInfo,
    /// `EVENT_HEADER`: manifest and TraceLogging events.
    Event,
    /// `EVENT_TRACE_HEADER`: classic events.
    Full,
    /// `EVENT_INSTANCE_GUID_HEADER`: classic events with instance ids.
    Instance,
    /// WPP messages.
    Message,
    /// Anything else.
    Other,
}

/// Looks at the record at `at`.
pub fn step(body: &[u8], at: usize) -> Step {
    let Some(first) = u32_at(body, at) else {
        return Step::End;
    };
    if first == 0 || first == u32::MAX {
        return Step::End;
    }
    // The top bit marks a record (TRACE_HEADER_FLAG).
    if first & 0x8000_0000 == 0 {
        return Step::Bad;
    }
    let layout = layout((first >> 16) as u8);
    let size = match layout {
        // Kernel logger headers begin with a version; their size follows the first four bytes.
        Layout::System | Layout::Compact | Layout::PerfInfo => u16_at(body, at + 4).unwrap_or_default(),
        // The others begin with their size: `EVENT_HEADER.Size` (evntcons.h), `EVENT_TRACE_HEADER.Size` (evntrace.h).
        _ => first as u16,
    };
    let size = usize::from(size);
    // A size below the header's, or beyond the buffer, would make the walk stand still or leave the buffer.
    if size < layout.header_size() || size > body.len() - at {
        return Step::Bad;
    }
    Step::Record(layout, size)
}

/// `TRACE_HEADER_TYPE_*` (ntwmi.h of the phnt headers), in pairs: the first for 32-bit, the second for 64-bit.
const fn layout(header_type: u8) -> Layout {
    match header_type {
        0x01 | 0x02 => Layout::System,
        0x03 | 0x04 => Layout::Compact,
        0x10 | 0x11 => Layout::PerfInfo,
        0x12 | 0x13 => Layout::Event,
        0x0a | 0x14 => Layout::Full,
        0x0b | 0x15 => Layout::Instance,
        0x0f => Layout::Message,
        _ => Layout::Other,
    }
}

impl Layout {
    /// Bytes before payload or extended items.
    pub const fn header_size(self) -> usize {
        match self {
            Self::System => 0x20,
            Self::Compact => 0x18,
            Self::PerfInfo => 0x10,
            Self::Event => 0x50,
            Self::Full => 0x30,
            Self::Instance => 0x48,
            Self::Message | Self::Other => 0x08,
        }
    }
}

/// What the reader does with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Returns it, at this time of the session's clock.
    Wanted(i64),
    /// Leaves out a class of the kernel logger.
    KernelOther,
    /// Leaves out a provider.
    Filtered,
    /// A WPP message.
    Wpp,
    /// An unknown header.
    Unknown,
}

/// Applies the filter to a record by its header. `record` is exactly its bytes.
pub fn apply(record: &[u8], layout: Layout, filter: &Filter) -> Outcome {
    let wanted = match layout {
        Layout::System | Layout::Compact | Layout::PerfInfo => {
            // `SYSTEM_TRACE_HEADER.Packet.Group`, the high byte of the hook id; `PERFINFO_TRACE_HEADER` has it at the same
            // place.
            if !filter.kernel_group(record.get(7).copied().unwrap_or_default()) {
                return Outcome::KernelOther;
            }
            true
        }
        Layout::Event | Layout::Full | Layout::Instance => provider(record).is_some_and(|guid| filter.provider(guid)),
        Layout::Message => return Outcome::Wpp,
        Layout::Other => return Outcome::Unknown,
    };
    match time(record, layout) {
        Some(ticks) if wanted => Outcome::Wanted(ticks),
        _ => Outcome::Filtered,
    }
}

/// When a record was logged, by the session's clock; messages and unknown headers have no time.
pub fn time(record: &[u8], layout: Layout) -> Option<i64> {
    let at = match layout {
        // `PERFINFO_TRACE_HEADER` has no thread and no process before its time.
        Layout::PerfInfo => 0x08,
        Layout::Message | Layout::Other => return None,
        _ => 0x10,
    };
    array_at(record, at).map(i64::from_le_bytes)
}

/// `ProviderId` of `EVENT_HEADER`, `Guid` of `EVENT_TRACE_HEADER`: at the same offset.
fn provider(record: &[u8]) -> Option<Guid> {
    array_at(record, 0x18).map(Guid::from_bytes_le)
}

/// Whether [`view`] will succeed: a record that was walked can only fail for its extended items.
pub fn intact(record: &[u8], layout: Layout) -> bool {
    let has_extended = u16_at(record, 0x04).is_some_and(|bits| bits & flags::EXTENDED_INFO != 0);
    if layout != Layout::Event || !has_extended {
        return true;
    }
    let rest = record.get(Layout::Event.header_size()..);
    rest.and_then(packed_length).is_some()
}

/// A record in the form of a live session's; `None` when its extended items are malformed.
pub fn view(record: &[u8], layout: Layout, cpu: u16, at_ns: u64) -> Option<RecordView<'_>> {
    let common = RecordHeader {
        cpu,
        at_ns,
        pointer_size: pointer_size(*record.get(2)?),
        ..RecordHeader::default()
    };
    match layout {
        Layout::System | Layout::Compact | Layout::PerfInfo => kernel(record, layout, common),
        Layout::Event => event(record, common),
        Layout::Full | Layout::Instance => classic(record, layout, common),
        Layout::Message | Layout::Other => None,
    }
}

/// Half of the header types are of 32-bit systems or processes.
const fn pointer_size(header_type: u8) -> u8 {
    match header_type {
        0x01 | 0x03 | 0x10 | 0x12 | 0x0a | 0x0b => 4,
        _ => 8,
    }
}

/// A kernel logger record names its class by a group number; events of a class have the class's GUID in a live session, and
/// here too.
fn kernel(record: &[u8], layout: Layout, common: RecordHeader) -> Option<RecordView<'_>> {
    let [version, _, _, _, _, _, opcode, group] = array_at(record, 0)?;
    let (tid, pid) = match layout {
        Layout::PerfInfo => (u32::MAX, u32::MAX),
        _ => (u32_at(record, 0x08)?, u32_at(record, 0x0c)?),
    };
    let header = RecordHeader {
        provider: class_of_group(group),
        version,
        opcode,
        flags: flags::CLASSIC_HEADER,
        tid,
        pid,
        ..common
    };
    Some(RecordView {
        header,
        extended: ExtendedItems::Owned(&[]),
        user_data: record.get(layout.header_size()..)?,
    })
}

/// Offsets are those of `EVENT_HEADER` (evntcons.h); its `EventDescriptor` begins at 0x28.
fn event(record: &[u8], common: RecordHeader) -> Option<RecordView<'_>> {
    let flags = u16_at(record, 0x04)?;
    let [version, channel, level, opcode] = array_at(record, 0x2a)?;
    let header = RecordHeader {
        provider: provider(record)?,
        id: u16_at(record, 0x28)?,
        version,
        channel,
        level,
        opcode,
        task: u16_at(record, 0x2e)?,
        keyword: u64::from_le_bytes(array_at(record, 0x30)?),
        flags,
        tid: u32_at(record, 0x08)?,
        pid: u32_at(record, 0x0c)?,
        activity: Guid::from_bytes_le(array_at(record, 0x40)?),
        // The flags are of the process that logged it, the header type of the system: a 32-bit process logs 4-byte pointers.
        pointer_size: match flags & (flags::HEADER_32_BIT | flags::HEADER_64_BIT) {
            flags::HEADER_32_BIT => 4,
            flags::HEADER_64_BIT => 8,
            _ => common.pointer_size,
        },
        ..common
    };
    let rest = record.get(Layout::Event.header_size()..)?;
    let length = if flags & flags::EXTENDED_INFO != 0 {
        packed_length(rest)?
    } else {
        0
    };
    let (extended, user_data) = rest.split_at_checked(length)?;
    Some(RecordView {
        header,
        extended: ExtendedItems::Packed(extended),
        user_data,
    })
}

/// Offsets are those of `EVENT_TRACE_HEADER` (evntrace.h), whose `Class` has type, level and version.
fn classic(record: &[u8], layout: Layout, common: RecordHeader) -> Option<RecordView<'_>> {
    let [opcode, level, version, _] = array_at(record, 0x04)?;
    let header = RecordHeader {
        provider: provider(record)?,
        version,
        level,
        opcode,
        flags: flags::CLASSIC_HEADER,
        tid: u32_at(record, 0x08)?,
        pid: u32_at(record, 0x0c)?,
        ..common
    };
    Some(RecordView {
        header,
        extended: ExtendedItems::Owned(&[]),
        user_data: record.get(layout.header_size()..)?,
    })
}
