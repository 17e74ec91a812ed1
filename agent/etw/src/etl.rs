//! `.etl` files: the records of an ETW session in time order.
//!
//! Used by replay, through [`EtlEvents`], and by tests through [`EtlReader`]. Reads each buffer at most twice: its begin for
//! the index, then whole, when its time has come. So memory is bounded by what overlaps in time, not by the file. A file that
//! is cut off, damaged or hostile gives what is readable; the rest is counted in [`EtlStatistics`]. The format is not
//! documented; learn.microsoft.com documents the parts it shares with live sessions (WNODE_HEADER, TRACE_LOGFILE_HEADER,
//! EVENT_HEADER), the others were found with the samples (`agent/etw/samples/README.md`).
//! Does not: write files (that is the `writer` feature), or repair them.

mod block;
mod buffer;
mod error;
mod events;
mod filter;
mod index;
mod kernel_class;
mod lz77;
mod reader;
mod record;
mod session;
mod statistics;

pub use error::EtlError;
pub use events::{EtlEvents, learn_schemas};
pub use filter::Filter;
pub use reader::{EtlReader, ReadOptions};
pub use session::{ClockKind, SessionHeader};
pub use statistics::EtlStatistics;

#[cfg(test)]
mod tests;
