//! What is known of a process that executes an image, before the exec is handled.

use crate::keys::SpanRef;

/// Its own standing, and that of its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The process itself is tracked already.
    Known,
    /// Its parent is a plugin or below one, whose nearest span this is.
    Below(SpanRef),
    /// Its parent was below a plugin that ended.
    Detached,
    /// Its parent is the runtime, or not tracked.
    Free,
}
