//! A record before it is decoded: as an ETW callback gets it (EVENT_RECORD, learn.microsoft.com), or as it lies in a file's
//! buffer.
//!
//! Filled by the live source, which copies, and by the `.etl` reader, which borrows. Does not: interpret the payload.

use crate::bytes::Cursor;
use crate::guid::Guid;

/// One record, owned: what a live callback copies out before it returns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawRecord {
    /// Everything of fixed size.
    pub header: RecordHeader,
    /// Extended data items, in their order.
    pub extended: Vec<ExtendedItem>,
    /// The payload.
    pub user_data: Box<[u8]>,
}

/// One extended data item of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtendedItem {
    /// `EVENT_HEADER_EXT_TYPE_*`; see [`extended`].
    pub kind: u16,
    /// Its bytes.
    pub data: Box<[u8]>,
}

impl RawRecord {
    /// The same, borrowed.
    pub fn view(&self) -> RecordView<'_> {
        RecordView {
            header: self.header,
            extended: ExtendedItems::Owned(&self.extended),
            user_data: &self.user_data,
        }
    }
}

/// One record where it lies.
#[derive(Debug, Clone, Copy)]
pub struct RecordView<'a> {
    /// Everything of fixed size.
    pub header: RecordHeader,
    /// Extended data items.
    pub extended: ExtendedItems<'a>,
    /// The payload.
    pub user_data: &'a [u8],
}

impl RecordView<'_> {
    /// A copy of its own.
    pub fn to_raw(&self) -> RawRecord {
        let item = |(kind, data): (u16, &[u8])| ExtendedItem {
            kind,
            data: data.into(),
        };
        RawRecord {
            header: self.header,
            extended: self.extended.iter().map(item).collect(),
            user_data: self.user_data.into(),
        }
    }
}

/// Extended data items where they lie.
#[derive(Debug, Clone, Copy)]
pub enum ExtendedItems<'a> {
    /// Copied out of a live record.
    Owned(&'a [ExtendedItem]),
    /// One after the other, as in a file: each with its size, kind, a mark that another one follows, and its length.
    Packed(&'a [u8]),
}

impl<'a> ExtendedItems<'a> {
    /// The items, as kind and bytes. Ends where packed ones are malformed.
    pub const fn iter(&self) -> ExtendedIter<'a> {
        ExtendedIter { left: *self }
    }
}

/// Goes through the extended items of a record.
#[derive(Debug, Clone)]
pub struct ExtendedIter<'a> {
    left: ExtendedItems<'a>,
}

impl<'a> Iterator for ExtendedIter<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        match self.left {
            ExtendedItems::Owned(items) => {
                let (first, rest) = items.split_first()?;
                self.left = ExtendedItems::Owned(rest);
                Some((first.kind, &first.data))
            }
            ExtendedItems::Packed(bytes) => {
                let (item, more) = packed_item(bytes)?;
                self.left = ExtendedItems::Packed(more);
                Some(item)
            }
        }
    }
}

/// Kind and bytes.
type PackedItem<'a> = (u16, &'a [u8]);

/// The first of packed items, and what follows if another one does.
fn packed_item(bytes: &[u8]) -> Option<(PackedItem<'_>, &[u8])> {
    let mut cursor = Cursor::new(bytes);
    let (size, kind, linkage, length) = (cursor.u16()?, cursor.u16()?, cursor.u16()?, cursor.u16()?);
    let data = cursor.take(usize::from(length))?;
    let more = if linkage & 1 != 0 {
        bytes
            .get(usize::from(size).max(PACKED_ITEM_HEADER)..)
            .unwrap_or_default()
    } else {
        &[]
    };
    Some(((kind, data), more))
}

/// Bytes of packed items in front of a payload; `None` when they are malformed.
pub(crate) fn packed_length(bytes: &[u8]) -> Option<usize> {
    let mut at = 0_usize;
    loop {
        let item = bytes.get(at..)?;
        let mut cursor = Cursor::new(item);
        let (size, _, linkage) = (usize::from(cursor.u16()?), cursor.u16()?, cursor.u16()?);
        if size < PACKED_ITEM_HEADER || size > item.len() {
            return None;
        }
        at += size;
        if linkage & 1 == 0 {
            return Some(at);
        }
    }
}

/// Size, kind, linkage and length of a packed item.
const PACKED_ITEM_HEADER: usize = 8;

/// The fixed part of a record: `EVENT_HEADER` (evntcons.h), and what a file's shorter headers can fill of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordHeader {
    /// Which provider logged it. For kernel logger records: the GUID of their class.
    pub provider: Guid,
    /// Event id; 0 for TraceLogging and classic events.
    pub id: u16,
    /// Event version.
    pub version: u8,
    /// Event log channel.
    pub channel: u8,
    /// 1 critical to 5 verbose.
    pub level: u8,
    /// Opcode; for classic and kernel logger events the event type.
    pub opcode: u8,
    /// Task.
    pub task: u16,
    /// Keyword bits.
    pub keyword: u64,
    /// `EVENT_HEADER.Flags`; see [`flags`].
    pub flags: u16,
    /// Logging process; 0 and `u32::MAX` when the header has none.
    pub pid: u32,
    /// Logging thread; 0 and `u32::MAX` when the header has none.
    pub tid: u32,
    /// Processor it was logged on.
    pub cpu: u16,
    /// Nanoseconds since 1970 UTC: [`crate::time`].
    pub at_ns: u64,
    /// Activity id; zero when none.
    pub activity: Guid,
    /// Bytes of a pointer in the payload: 4 or 8. 0 reads as 8.
    pub pointer_size: u8,
}

impl RecordHeader {
    /// Bytes of a pointer in this record's payload.
    pub const fn pointer_bytes(&self) -> usize {
        if self.pointer_size == 4 || self.flags & flags::HEADER_32_BIT != 0 {
            4
        } else {
            8
        }
    }
}

/// Bits of `EVENT_HEADER.Flags` (evntcons.h).
pub mod flags {
    /// Extended data items follow the header.
    /// `EVENT_HEADER_FLAG_EXTENDED_INFO`.
    pub const EXTENDED_INFO: u16 = 0x0001;
    /// The payload is one UTF-16 string (EventWriteString).
    /// `EVENT_HEADER_FLAG_STRING_ONLY`.
    pub const STRING_ONLY: u16 = 0x0004;
    /// Logged through TraceMessage (WPP).
    /// `EVENT_HEADER_FLAG_TRACE_MESSAGE`.
    pub const TRACE_MESSAGE: u16 = 0x0008;
    /// Logged by a 32-bit process.
    /// `EVENT_HEADER_FLAG_32_BIT_HEADER`.
    pub const HEADER_32_BIT: u16 = 0x0020;
    /// Logged by a 64-bit process.
    /// `EVENT_HEADER_FLAG_64_BIT_HEADER`.
    pub const HEADER_64_BIT: u16 = 0x0040;
    /// A MOF-described event: the provider field holds the class GUID.
    /// `EVENT_HEADER_FLAG_CLASSIC_HEADER`.
    pub const CLASSIC_HEADER: u16 = 0x0100;
}

/// Kinds of extended data items: `EVENT_HEADER_EXTENDED_DATA_ITEM.ExtType` (evntcons.h).
pub mod extended {
    /// The activity that caused this one: a GUID.
    /// `EVENT_HEADER_EXT_TYPE_RELATED_ACTIVITYID`.
    pub const RELATED_ACTIVITY: u16 = 0x01;
    /// Security id of the logging user.
    /// `EVENT_HEADER_EXT_TYPE_SID`.
    pub const SID: u16 = 0x02;
    /// Terminal session.
    /// `EVENT_HEADER_EXT_TYPE_TS_ID`.
    pub const TERMINAL_SESSION: u16 = 0x03;
    /// Instance ids of a classic instance event.
    /// `EVENT_HEADER_EXT_TYPE_INSTANCE_INFO`.
    pub const INSTANCE: u16 = 0x04;
    /// Call stack of a 32-bit process.
    /// `EVENT_HEADER_EXT_TYPE_STACK_TRACE32`.
    pub const STACK_32: u16 = 0x05;
    /// Call stack of a 64-bit process.
    /// `EVENT_HEADER_EXT_TYPE_STACK_TRACE64`.
    pub const STACK_64: u16 = 0x06;
    /// Key of an event.
    /// `EVENT_HEADER_EXT_TYPE_EVENT_KEY`.
    pub const EVENT_KEY: u16 = 0x0a;
    /// TraceLogging metadata: name and fields of the event.
    /// `EVENT_HEADER_EXT_TYPE_EVENT_SCHEMA_TL`.
    pub const EVENT_SCHEMA: u16 = 0x0b;
    /// Provider traits: the name of a TraceLogging provider.
    /// `EVENT_HEADER_EXT_TYPE_PROV_TRAITS`.
    pub const PROVIDER_TRAITS: u16 = 0x0c;
    /// Start key of the logging process: unlike its id never reused until a reboot.
    /// `EVENT_HEADER_EXT_TYPE_PROCESS_START_KEY`.
    pub const PROCESS_START_KEY: u16 = 0x0d;
    /// The container (silo) the event comes from: 36 characters of a GUID.
    /// `EVENT_HEADER_EXT_TYPE_CONTAINER_ID`.
    pub const CONTAINER_ID: u16 = 0x10;
}
