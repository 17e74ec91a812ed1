//! The room of Windows: what plugins are called for is inferred from the runtime's reports, because environments are not
//! visible there.
//!
//! The runtime reports when it begins to create a sandbox and when that is done; programs that it runs in between are
//! plugins. This room stands in front of those of plugins, sandboxes and traffic: it turns the evidence of Windows into
//! the same execs, facts and exchanges. Here is its state; `runtime.rs` handles the runtime's reports, `calls.rs` execs,
//! `activities.rs` and `silos.rs` what HNS, HCS and the kernel log, `service_lookups.rs` the DNS client service's lookups.
//! Does not: guess between sandboxes. What fits several goes to the likeliest and is marked ambiguous.

pub(crate) mod activities;
pub(crate) mod calls;
pub(crate) mod closing;
mod endpoints;
mod keys;
mod learning;
mod library_calls;
mod nest;
mod nest_end;
mod ongoing;
mod operations;
mod placing;
pub(crate) mod restarts;
pub(crate) mod running;
pub(crate) mod runtime;
mod sandbox_table;
mod service_lookup;
pub(crate) mod service_lookups;
pub(crate) mod silos;
mod stage;
pub(crate) mod vnic;

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Config;
use crate::counters::Sizes;
use crate::keys::SpanRef;
use crate::windows::keys::Keys;
use crate::windows::nest::Nests;
use crate::windows::ongoing::Activities;
use crate::windows::restarts::HnsProcesses;
use crate::windows::sandbox_table::SandboxTable;
use crate::windows::service_lookup::ServiceLookups;

/// The room's state.
#[derive(Debug)]
pub(crate) struct Windows {
    sandboxes: SandboxTable,
    /// Open operations, by container id.
    operations: BTreeMap<String, Vec<SpanRef>>,
    activities: Activities,
    hns: HnsProcesses,
    nests: Nests,
    keys: Keys,
    lookups: ServiceLookups,
    /// HNS endpoints that were created and not deleted since.
    endpoints: BTreeSet<String>,
    /// Endpoints and sandboxes as last reported.
    reported_endpoints: (u64, u64),
}

impl Windows {
    pub(crate) fn new(config: &Config) -> Windows {
        Windows {
            sandboxes: SandboxTable::new(config.max_remembered),
            operations: BTreeMap::new(),
            activities: Activities::default(),
            hns: HnsProcesses::default(),
            nests: Nests::default(),
            keys: Keys::new(config.max_remembered),
            lookups: ServiceLookups::new(config.traffic.max_lookups),
            endpoints: BTreeSet::new(),
            reported_endpoints: (0, 0),
        }
    }

    pub(crate) fn fill_sizes(&self, sizes: &mut Sizes) {
        sizes.windows =
            self.sandboxes.len() + self.activities.len() + self.nests.len() + self.keys.len() + self.lookups.len();
    }
}
