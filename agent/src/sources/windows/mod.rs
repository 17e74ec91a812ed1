//! The Windows source: ETW events of live sessions on this node, or of an `.etl` file from any node.
//!
//! Reading a file and `normalize` run on every operating system. Live sessions need Windows; tests elsewhere run them on
//! `sandglass-fake-etw`. Does not: interpret events (the correlator does).

pub mod file;
#[cfg(any(windows, test))]
pub mod live;
pub mod normalize;

/// Id of the node's own network compartment, in place of a network namespace's inode. Compartment 1 is the default one
/// (documentation of `GetCurrentThreadCompartmentId`).
const NODE_COMPARTMENT: u64 = 1;
