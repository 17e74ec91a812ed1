//! A record before it is decoded: what an ETW callback is given, or what lies in a file's buffer.
//!
//! Filled by the live source (a plain copy of an `EVENT_RECORD`) and, borrowed, by the `.etl` reader.
//! Does not: interpret the payload.

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

/// The fixed part of a record: `EVENT_HEADER`, and what a file's shorter headers can fill of it.
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
    /// When, in nanoseconds since 1970 UTC: [`crate::time`].
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

/// Bits of `EVENT_HEADER.Flags`.
pub mod flags {
    /// Extended data items follow the header.
    pub const EXTENDED_INFO: u16 = 0x0001;
    /// The payload is one UTF-16 string (EventWriteString).
    pub const STRING_ONLY: u16 = 0x0004;
    /// Logged through TraceMessage (WPP).
    pub const TRACE_MESSAGE: u16 = 0x0008;
    /// Logged by a 32-bit process.
    pub const HEADER_32_BIT: u16 = 0x0020;
    /// Logged by a 64-bit process.
    pub const HEADER_64_BIT: u16 = 0x0040;
    /// A MOF-described event: the provider field holds the class GUID.
    pub const CLASSIC_HEADER: u16 = 0x0100;
}

/// Kinds of extended data items.
pub mod extended {
    /// The activity that caused this one: a GUID.
    pub const RELATED_ACTIVITY: u16 = 0x01;
    /// Security id of the logging user.
    pub const SID: u16 = 0x02;
    /// Terminal session.
    pub const TERMINAL_SESSION: u16 = 0x03;
    /// Instance ids of a classic instance event.
    pub const INSTANCE: u16 = 0x04;
    /// Call stack of a 32-bit process.
    pub const STACK_32: u16 = 0x05;
    /// Call stack of a 64-bit process.
    pub const STACK_64: u16 = 0x06;
    /// Key of an event.
    pub const EVENT_KEY: u16 = 0x0a;
    /// TraceLogging metadata: name and fields of the event.
    pub const EVENT_SCHEMA: u16 = 0x0b;
    /// Provider traits: the name of a TraceLogging provider.
    pub const PROVIDER_TRAITS: u16 = 0x0c;
    /// Start key of the logging process: unlike its id never reused until a reboot.
    pub const PROCESS_START_KEY: u16 = 0x0d;
    /// The container (silo) the event comes from: 36 characters of a GUID.
    pub const CONTAINER_ID: u16 = 0x10;
}
