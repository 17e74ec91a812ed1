//! What sinks keep on disk between two runs of the agent: a private directory, and logs of traces in it.
//!
//! Used by the spool (`otlp/`), by the journal of open traces (`journal.rs`), and by the store (`store/disk.rs`). A log is a set of traces: one is put, put
//! again or gone. Bytes (`format.rs`), files (`log.rs`) and traces (`content.rs`) know nothing of one another's content. Does not: decide what is kept, or run
//! a thread.

pub(in crate::sinks) mod content;
pub(in crate::sinks) mod directory;
pub(in crate::sinks) mod format;
pub(in crate::sinks) mod log;

#[cfg(test)]
mod tests;
