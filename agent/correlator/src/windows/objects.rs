//! Whose an object of Windows is: sandboxes, their objects by key, what runs for them, and activities without an owner.
//!
//! `learning.rs` adds keys, `nest_end.rs` and `placing.rs` attribute activities, `vnic.rs` interfaces.

use std::collections::{BTreeMap, BTreeSet};

use crate::keys::SpanRef;
use crate::windows::keys::Keys;
use crate::windows::nest::Nests;
use crate::windows::sandbox_table::SandboxTable;

/// Everything that attribution needs.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(super) sandboxes: SandboxTable,
    /// Open operations, by container id.
    pub(super) operations: BTreeMap<String, Vec<SpanRef>>,
    pub(super) nests: Nests,
    pub(super) keys: Keys,
    /// HNS endpoints that were created and not deleted since.
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

    /// Sandboxes, keys and waiting activities.
    pub(super) fn len(&self) -> usize {
        self.sandboxes.len() + self.nests.len() + self.keys.len()
    }
}
