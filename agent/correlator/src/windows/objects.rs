//! Objects of Windows and their owners: sandboxes, their objects by key, operations that run for them, and nests
//! without an owner.
//!
//! Used by every handler of this room; the methods lie with their subject. `learning.rs` adds keys, `nest_end.rs` and
//! `placing.rs` attribute activities, `vnic.rs` interfaces, `operations.rs` knows what runs. Bounded by
//! `max_remembered` sandboxes. Does not: open or close traces.

use std::collections::{BTreeMap, BTreeSet};

use crate::keys::SpanRef;
use crate::windows::keys::Keys;
use crate::windows::nest::Nests;
use crate::windows::sandbox_table::SandboxTable;

/// The tables that attribution needs.
#[derive(Debug)]
pub(crate) struct Objects {
    /// Sandboxes as the runtime reports them.
    pub(super) sandboxes: SandboxTable,
    /// Open operations that the runtime requested, by container id.
    pub(super) operations: BTreeMap<String, Vec<SpanRef>>,
    /// Nests without an owner.
    pub(super) nests: Nests,
    /// Owners of keys.
    pub(super) keys: Keys,
    /// HNS endpoints that were created while the agent ran and not deleted since.
    pub(super) endpoints: BTreeSet<String>,
    /// Endpoints and sandboxes as last reported.
    pub(super) reported_endpoints: (u64, u64),
}

impl Objects {
    pub(super) fn new(max: usize) -> Objects {
        Objects {
            sandboxes: SandboxTable::new(max),
            operations: BTreeMap::new(),
            nests: Nests::default(),
            keys: Keys::new(max),
            endpoints: BTreeSet::new(),
            reported_endpoints: (0, 0),
        }
    }

    /// Entries of all its tables, for `Sizes::windows`.
    pub(super) fn len(&self) -> usize {
        self.sandboxes.len() + self.nests.len() + self.keys.len()
    }
}
