//! Where an open trace is taken to end, on its own clock.
//!
//! Used wherever an open trace is rendered. Does not: read a clock; the caller passes the wall-clock time.

use sandglass_model::{Timestamp, Trace};

use crate::sinks::creation;

/// A wall-clock time on the trace's own clock, never before what the trace already holds.
pub(super) fn now_in(trace: &Trace, unix_ns: u64) -> Timestamp {
    let newest = trace.spans.iter().map(|span| span.end.unwrap_or(span.start)).max();
    trace.anchor.boot(unix_ns).max(newest.unwrap_or_default())
}

/// Where an open trace is taken to end: now; or, while the first traffic of a created sandbox is pending, where its creation
/// ended. How long a program sends nothing says nothing about the node.
pub(super) fn end_or_now(trace: &Trace, unix_ns: u64) -> Timestamp {
    match creation::created(trace) {
        Some(created) if !trace.closed => created,
        _ => now_in(trace, unix_ns),
    }
}
