//! The standing of a process that is about to execute an image: what the room of plugins knows of it before the exec is
//! handled.
//!
//! The router passes it from the room of plugins to that of Windows, which infers what the exec is. Imports no room.

use crate::keys::SpanRef;

/// The standing of a process, by itself or by its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The process itself is tracked already.
    Known,
    /// Its parent is a plugin or below one; the span is the nearest one above the process.
    Below(SpanRef),
    /// Its parent was below a plugin that ended.
    Detached,
    /// Its parent is the runtime, or not tracked.
    Free,
}
