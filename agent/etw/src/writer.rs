//! Writes synthetic `.etl` files, and the records that go into them.
//!
//! Used by tests and demos, also of other crates, through the feature `writer`; [`Record::build`] alone makes what a live
//! callback receives. Other readers of the format can read its files; a test holds that.
//! Does not: imitate Windows in more than the format; names and values are the caller's.

pub(crate) mod deflate;
mod encode;
mod event_info;
mod file;
mod layout;
mod record;
mod tracelogging;
mod wil;

pub use event_info::event_info;
pub use file::{EtlWriter, Session};
pub use record::Record;
pub use wil::Failure;
