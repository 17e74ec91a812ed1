//! ETW records as plain data: decodes live records and reads `.etl` files, on any machine.
//!
//! Used by the Windows source (live records and files) and by replay. One decoder serves both, so what is proven on a
//! file holds for a session.
//!
//! ```
//! use sandglass_etw::{Decoder, EtlEvents, ReadOptions};
//!
//! # fn main() -> Result<(), sandglass_etw::EtlError> {
//! let path = concat!(env!("CARGO_MANIFEST_DIR"), "/samples/s4_WindowsUpdate.20251008.etl");
//! let mut events = EtlEvents::open(path.as_ref(), ReadOptions::default(), Decoder::default())?;
//! while let Some(event) = events.next_event()? {
//!     let _ = (event.at_ns, event.name.as_deref(), event.text("info"));
//! }
//! assert_eq!((events.counts().events, events.statistics().events_lost), (80, 41));
//! # Ok(())
//! # }
//! ```
//!
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
mod value;

pub use decoder::{DecodeCounts, Decoded, Decoder, Undecodable};
pub use etl::{EtlError, EtlEvents, EtlReader, EtlStatistics, Filter, ReadOptions};
pub use event::{EtwEvent, Field, FileTime, Value};
pub use guid::Guid;
pub use raw::{ExtendedItem, RawRecord, RecordHeader, RecordView};
pub use tables::Tables;

#[cfg(feature = "writer")]
pub mod writer;
