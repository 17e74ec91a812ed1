//! What Windows says through ETW, as plain data: decodes live records and reads `.etl` files, on any machine.
//!
//! Used by the Windows source (live records and files) and by replay. One decoder serves both, so what is proven on a
//! file holds for a session.
//! Does not: call Windows, know pods or sandboxes, or correlate; an event comes out as it was logged.

#![forbid(unsafe_code)]

pub mod event;
pub mod guid;
pub mod raw;
pub mod time;

pub use event::{EtwEvent, Field, FileTime, Value};
pub use guid::Guid;
pub use raw::{ExtendedItem, RawRecord, RecordHeader};
