//! The room of Windows: what plugins are called for is inferred from the runtime's reports, because environments are not
//! visible there.
//!
//! The runtime reports when it begins to create a sandbox and when that is done; programs that it runs in between are
//! plugins. This room stands in front of those of plugins, sandboxes and traffic: it turns the evidence of Windows into
//! the same execs, facts and exchanges. Here is its state; `runtime.rs` handles the runtime's reports, `calls.rs` execs,
//! `activities.rs` and `silos.rs` what HNS, HCS and the kernel log (`objects.rs` attributes that to sandboxes), `dns_client.rs` the DNS client service's lookups.
//! Does not: guess between sandboxes. What fits several goes to the likeliest and is marked ambiguous.

pub(crate) mod activities;
pub(crate) mod calls;
pub(crate) mod closing;
pub(crate) mod dns_client;
mod endpoints;
mod keys;
mod learning;
mod library_calls;
mod nest;
mod nest_end;
mod objects;
mod ongoing;
mod operations;
mod placing;
pub(crate) mod restarts;
pub(crate) mod running;
pub(crate) mod runtime;
mod sandbox_table;
mod service_lookup;
pub(crate) mod silos;
mod stage;
mod vnic;

use sandglass_model::Timestamp;
use sandglass_model::network::ConnectStep;
use sandglass_model::windows::InterfaceStep;

use crate::config::CorrelatorConfig;
use crate::context::Context;
use crate::counters::Sizes;
use crate::keys::SpanRef;
use crate::windows::objects::Objects;
use crate::windows::ongoing::Activities;
use crate::windows::restarts::HnsProcesses;
use crate::windows::service_lookup::ServiceLookups;

/// The room's state.
#[derive(Debug)]
pub(crate) struct Windows {
    objects: Objects,
    activities: Activities,
    hns: HnsProcesses,
    lookups: ServiceLookups,
}

impl Windows {
    pub(crate) fn new(config: &CorrelatorConfig) -> Windows {
        Windows {
            objects: Objects::new(config.max_remembered),
            activities: Activities::default(),
            hns: HnsProcesses::default(),
            lookups: ServiceLookups::new(config.traffic.max_lookups),
        }
    }

    pub(crate) fn fill_sizes(&self, sizes: &mut Sizes) {
        sizes.windows = self.objects.len() + self.activities.len() + self.lookups.len();
    }

    pub(crate) fn on_operation_opened(&mut self, ctx: &Context, operation: SpanRef) {
        self.objects.add_operation(ctx, operation);
    }

    pub(crate) fn on_operation_closed(&mut self, ctx: &Context, operation: SpanRef) {
        self.objects.remove_operation(ctx, operation);
    }

    /// An interface came up or went away.
    pub(crate) fn on_interface(&mut self, ctx: &mut Context, at: Timestamp, step: InterfaceStep) {
        self.objects.interface_seen(ctx, at, step);
    }

    /// A connect names its compartment, and its process may identify the sandbox of that.
    pub(crate) fn on_connect(&mut self, ctx: &mut Context, at: Timestamp, step: &ConnectStep) {
        self.objects.learn_compartment(ctx, at, step);
    }
}
