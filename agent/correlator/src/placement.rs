//! A placement: the trace that an operation of the runtime goes to, and what it is there.
//!
//! The room of sandboxes chooses it, the room of plugins begins the operation with it. Imports no room.

use crate::keys::TraceKey;

/// The trace, and the place of the operation in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// An attachment of a sandbox that is being created.
    Creation(TraceKey),
    /// A trace of its own, whose root is the operation.
    Single(TraceKey),
}
