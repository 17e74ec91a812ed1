//! The trace that an operation goes to.

use crate::keys::TraceKey;

/// Which trace, and what the operation is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// An attachment of a sandbox that is being created.
    Creation(TraceKey),
    /// A trace of its own, whose root is the operation.
    Single(TraceKey),
}
