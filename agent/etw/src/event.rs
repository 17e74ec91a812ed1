//! A decoded ETW event: provider, time, and its fields by name.
//!
//! Made by the decoder from live records and from files; read by the Windows source. Names are shared (`Arc<str>`): an event
//! of a known schema allocates for its values only.
//! Does not: interpret an event.

use std::sync::Arc;

use crate::guid::Guid;
use crate::value::find;

pub use crate::value::{Field, FileTime, Value};

/// One event.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EtwEvent {
    /// Which provider logged it. For kernel logger events the GUID of their class ([`crate::guid`]).
    pub provider: Guid,
    /// The provider's name, where the record or the tables have it.
    pub provider_name: Option<Arc<str>>,
    /// `EVENT_DESCRIPTOR.Id` (evntprov.h); 0 for TraceLogging, classic and kernel logger events.
    pub id: u16,
    /// Event version.
    pub version: u8,
    /// Event log channel.
    pub channel: u8,
    /// `TRACE_LEVEL_CRITICAL` (1) to `TRACE_LEVEL_VERBOSE` (5) of evntrace.h.
    pub level: u8,
    /// 1 start, 2 stop; for kernel logger events the event type.
    pub opcode: u8,
    /// Task.
    pub task: u16,
    /// Keyword bits, by which a session chooses events.
    pub keyword: u64,
    /// TraceLogging event name, or the name of a manifest event; for kernel logger events the form `Process/Start`.
    pub name: Option<Arc<str>>,
    /// Logging process; not always the process that the event is about. `u32::MAX`: unknown.
    pub pid: u32,
    /// Logging thread. `u32::MAX`: unknown.
    pub tid: u32,
    /// Processor it was logged on.
    pub cpu: u16,
    /// Nanoseconds since 1970 UTC; all clocks of ETW are converted to it ([`crate::time`]).
    pub at_ns: u64,
    /// Activity id; zero when none.
    pub activity: Guid,
    /// The activity that caused this one.
    pub related_activity: Option<Guid>,
    /// The container (silo) that logged it, when the session enabled `EVENT_ENABLE_PROPERTY_SOURCE_CONTAINER_TRACKING`
    /// (evntcons.h).
    pub container_id: Option<Guid>,
    /// Start key of the logging process, when the session enabled `EVENT_ENABLE_PROPERTY_PROCESS_START_KEY` (evntcons.h).
    /// Unlike a process id it is not reused until a reboot.
    pub process_start_key: Option<u64>,
    /// Event key, when the session enabled `EVENT_ENABLE_PROPERTY_EVENT_KEY` (evntcons.h).
    pub event_key: Option<u64>,
    /// The payload, in its order.
    pub fields: Vec<Field>,
    /// The payload was shorter than its schema: the last fields are missing.
    pub truncated: bool,
}

impl EtwEvent {
    /// The field of that name: at the top, else inside a struct (such as `hresult` of `wilActivity`).
    pub fn get(&self, name: &str) -> Option<&Value> {
        find(&self.fields, name)
    }

    /// A field as text; `None` when it is absent or not text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.text()
    }

    /// A field as a number; `None` when it is absent, negative or not a number.
    pub fn u64(&self, name: &str) -> Option<u64> {
        self.get(name)?.u64()
    }

    /// A field as a number of 32 bits; `None` when it is absent, does not fit or is not a number.
    pub fn u32(&self, name: &str) -> Option<u32> {
        self.u64(name)?.try_into().ok()
    }

    /// A field as the bits of a result code (HRESULT, NTSTATUS, Win32 error), however it was declared.
    pub fn code(&self, name: &str) -> Option<u32> {
        self.get(name)?.code()
    }

    /// A field as a GUID, also when it was logged as text.
    pub fn guid(&self, name: &str) -> Option<Guid> {
        self.get(name)?.guid()
    }

    /// True when this is an activity's start.
    pub const fn is_start(&self) -> bool {
        self.opcode == OPCODE_START
    }

    /// True when this is an activity's stop.
    pub const fn is_stop(&self) -> bool {
        self.opcode == OPCODE_STOP
    }
}

/// Opcode of an activity's start: `EVENT_TRACE_TYPE_START` (evntrace.h).
pub const OPCODE_START: u8 = 1;
/// Opcode of an activity's stop: `EVENT_TRACE_TYPE_END` (evntrace.h).
pub const OPCODE_STOP: u8 = 2;
