//! Records in a buffer: their eight header layouts, to one.
//!
//! Used by the reader, first to walk a buffer (size, time, whose), then to give a record out.

use super::filter::Filter;
use crate::bytes::{array_at, u16_at, u32_at};
use crate::guid::Guid;
use crate::raw::{ExtendedItems, RecordHeader, RecordView, flags, packed_length};

/// What stands at one place of a buffer.
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
    // The top byte marks a record; without it these are no record's bytes.
    if first & 0x8000_0000 == 0 {
        return Step::Bad;
    }
    let layout = layout((first >> 16) as u8);
    let size = match layout {
        Layout::System | Layout::Compact | Layout::PerfInfo => u16_at(body, at + 4).unwrap_or_default(),
        _ => first as u16,
    };
    let size = usize::from(size);
    if size < layout.header_size() || size > body.len() - at {
        return Step::Bad;
    }
    Step::Record(layout, size)
}

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
    /// Bytes in front of payload or extended items.
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

/// What is to be done with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sorted {
    /// Give it out at this time of the session's clock.
    Wanted(i64),
    /// A kernel logger class nobody asked for.
    KernelOther,
    /// A provider nobody asked for.
    Filtered,
    /// A WPP message.
    Wpp,
    /// An unknown header.
    Unknown,
}

/// Sorts a record by its header. `record` is exactly its bytes.
pub fn sort(record: &[u8], layout: Layout, filter: &Filter) -> Sorted {
    let wanted = match layout {
        Layout::System | Layout::Compact | Layout::PerfInfo => {
            if !filter.kernel_group(record.get(7).copied().unwrap_or_default()) {
                return Sorted::KernelOther;
            }
            true
        }
        Layout::Event | Layout::Full | Layout::Instance => provider(record).is_some_and(|guid| filter.provider(guid)),
        Layout::Message => return Sorted::Wpp,
        Layout::Other => return Sorted::Unknown,
    };
    match time(record, layout) {
        Some(ticks) if wanted => Sorted::Wanted(ticks),
        _ => Sorted::Filtered,
    }
}

/// When a record was logged, by the session's clock; messages and unknown headers do not tell.
pub fn time(record: &[u8], layout: Layout) -> Option<i64> {
    let at = match layout {
        Layout::PerfInfo => 0x08,
        Layout::Message | Layout::Other => return None,
        _ => 0x10,
    };
    array_at(record, at).map(i64::from_le_bytes)
}

fn provider(record: &[u8]) -> Option<Guid> {
    array_at(record, 0x18).map(Guid::from_bytes_le)
}

/// True when [`view`] will have it: a record that was walked can only fail by its extended items.
pub fn intact(record: &[u8], layout: Layout) -> bool {
    let has_extended = u16_at(record, 0x04).is_some_and(|bits| bits & flags::EXTENDED_INFO != 0);
    if layout != Layout::Event || !has_extended {
        return true;
    }
    let rest = record.get(Layout::Event.header_size()..);
    rest.and_then(packed_length).is_some()
}

/// A record in the form a live session gives it; `None` when its extended items are malformed.
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

/// Half of the layouts are for 32-bit systems or processes.
const fn pointer_size(header_type: u8) -> u8 {
    match header_type {
        0x01 | 0x03 | 0x10 | 0x12 | 0x0a | 0x0b => 4,
        _ => 8,
    }
}

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

/// The class that Windows reports for a group of kernel logger records. Groups without a known one get a GUID that
/// says so: zeros and the group.
fn class_of_group(group: u8) -> Guid {
    let known = CLASSES.iter().find(|(number, _)| *number == group);
    known.map_or(Guid(u128::from(group)), |(_, class)| *class)
}

/// Group of the Process class.
pub const PROCESS_GROUP: u8 = 0x03;
/// Group of the file's own header.
pub const TRACE_GROUP: u8 = 0x00;

const CLASSES: [(u8, Guid); 13] = [
    (TRACE_GROUP, Guid::literal("68fdd900-4a3e-11d1-84f4-0000f80464e3")),
    (0x01, Guid::literal("3d6fa8d4-fe05-11d0-9dda-00c04fd7ba7c")),
    (0x02, Guid::literal("3d6fa8d3-fe05-11d0-9dda-00c04fd7ba7c")),
    (PROCESS_GROUP, Guid::literal("3d6fa8d0-fe05-11d0-9dda-00c04fd7ba7c")),
    (0x04, Guid::literal("90cbdc39-4a3e-11d1-84f4-0000f80464e3")),
    (0x05, Guid::literal("3d6fa8d1-fe05-11d0-9dda-00c04fd7ba7c")),
    (0x06, Guid::literal("9a280ac0-c8e0-11d1-84e2-00c04fb998a2")),
    (0x08, Guid::literal("bf3a50c5-a9c9-4988-a005-2df0b7c80f80")),
    (0x09, Guid::literal("ae53722e-c863-11d2-8659-00c04fa321a1")),
    (0x0b, Guid::literal("01853a65-418f-4f36-aefc-dc0f1d2fd235")),
    (0x0f, Guid::literal("ce1dbfb4-137e-4da6-87b0-3f59aa102cbc")),
    (0x14, Guid::literal("2cb15d1d-5fc1-11d2-abe1-00a0c911f518")),
    (0x1a, Guid::literal("45d8cccd-539f-4b72-a8b7-5c683142609a")),
];
