//! Where a Windows sandbox is in its life, as its runtime reports it.

/// The stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The runtime creates it.
    Creating,
    /// It exists.
    Created,
    /// The runtime removes it.
    Stopping,
    /// It is gone, or its creation failed.
    Over,
}
