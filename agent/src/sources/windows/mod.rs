//! The Windows source: what ETW says, from live sessions of this node or from an `.etl` file of any other.
//!
//! `normalize` turns decoded events into facts and runs on every system, as does reading a file; only live sessions need
//! Windows, and tests play that elsewhere (`sandglass-fake-etw`).
//! Does not: interpret facts (the correlator does).

pub mod file;
#[cfg(any(windows, test))]
pub mod live;
pub mod normalize;

/// The network compartment of the node itself, in the place of a network namespace's inode.
const NODE_COMPARTMENT: u64 = 1;
