//! What Windows says through ETW, as plain data: decodes live records and reads `.etl` files, on any machine.
//!
//! Used by the Windows source (live records and files) and by replay. One decoder serves both, so what is proven on a
//! file holds for a session.
//! Does not: call Windows, know pods or sandboxes, or correlate; an event comes out as it was logged.

#![forbid(unsafe_code)]

mod bytes;
pub mod decoder;
pub mod etl;
pub mod event;
pub mod event_info;
pub mod guid;
pub mod payload;
pub mod raw;
pub mod schema;
pub mod tables;
pub mod time;
pub mod tracelogging;

pub use decoder::{DecodeCounts, Decoded, Decoder, Undecodable};
pub use etl::{EtlError, EtlEvents, EtlReader, EtlStatistics, Filter, ReadOptions};
pub use event::{EtwEvent, Field, FileTime, Value};
pub use guid::Guid;
pub use raw::{ExtendedItem, RawRecord, RecordHeader, RecordView};
pub use tables::Tables;
