//! The stage of a Windows sandbox, as its runtime reports it.
//!
//! Used to infer which CNI command the runtime executes a plugin for. Does not: follow readiness.

/// The stage of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The runtime creates it.
    Creating,
    /// It exists.
    Created,
    /// The runtime removes it.
    Stopping,
    /// The runtime removed it, or its creation failed.
    Over,
}
