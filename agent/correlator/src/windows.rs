//! The room of Windows: infers what Windows does not report, namely which plugin a program is and for which sandbox
//! HNS, HCS and the kernel work.
//!
//! On Linux an exec carries the CNI parameters in its environment. On Windows environments are not visible to ETW, but
//! containerd reports in its log when it begins to create a sandbox and when that is done; programs that it runs in
//! between are plugins. This room stands in front of the other three: it turns the evidence of Windows into the same
//! execs, facts and exchanges, so that they see no difference.
//! `correlator.rs` passes it the events of ETW, execs before the room of plugins gets them, and opened and closed
//! operations. This file holds its state; `runtime.rs` handles the runtime's reports, `calls.rs` execs, `activities.rs`
//! and `silos.rs` what HNS, HCS and the kernel log (`objects.rs` attributes that to sandboxes), `dns_client.rs` lookups
//! of the DNS client service, `vnic.rs` the sandbox's interface.
//!
//! It may touch its own tables, activity and wait spans in open traces, and timers of kind `ServiceLookup`. Facts and
//! event ids: `docs/` and the manifests of the providers that each file names.
//! Does not: guess between sandboxes. What fits several goes to the likeliest and is marked ambiguous.
//!
//! What a pod's creation looks like on Windows, in order, and the key that each step adds (`keys.rs`):
//! 1. containerd logs `RunPodSandbox`: pod name, namespace, uid and attempt. The sandbox gets a stand-in, and its trace
//!    opens.
//! 2. containerd creates the HCN namespace and executes the plugins: ADD. HNS logs the endpoint and its port.
//! 3. containerd starts the shim, whose command line has the sandbox's id; the shim logs namespace and endpoint with
//!    it.
//! 4. HCS creates the compute system with that id; the kernel logs its silo and job.
//! 5. The endpoint is attached and the interface appears in a compartment, after ADD has returned (`vnic.rs`).
//! 6. containerd logs that `RunPodSandbox` returned, with the id.

pub(crate) mod activities;
pub(crate) mod calls;
pub(crate) mod closing;
pub(crate) mod dns_client;
mod endpoints;
mod hns_processes;
mod keys;
mod learning;
mod library_calls;
mod nest;
mod nest_end;
mod objects;
mod ongoing;
mod open_index;
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
use crate::windows::hns_processes::HnsProcesses;
use crate::windows::objects::Objects;
use crate::windows::ongoing::Activities;
use crate::windows::service_lookup::ServiceLookups;

/// The room's state. Empty on Linux.
#[derive(Debug)]
pub(crate) struct Windows {
    /// Sandboxes and their objects, by every key that an event can name.
    objects: Objects,
    /// HNS and HCS activities that have not ended.
    activities: Activities,
    /// Processes that log as HNS, to notice a restart.
    hns: HnsProcesses,
    /// Open lookups of the DNS client service.
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

    /// Adds the number of entries for the metric of table sizes.
    pub(crate) fn fill_sizes(&self, sizes: &mut Sizes) {
        sizes.windows = self.objects.len() + self.activities.len() + self.lookups.len();
    }

    /// Open operations show which plugin runs for which sandbox.
    pub(crate) fn on_operation_opened(&mut self, ctx: &Context, operation: SpanRef) {
        self.objects.add_operation(ctx, operation);
    }

    /// A closed operation leaves the sandbox free for the next one.
    pub(crate) fn on_operation_closed(&mut self, ctx: &Context, operation: SpanRef) {
        self.objects.remove_operation(ctx, operation);
    }

    /// A network interface was added to a compartment or removed from it.
    pub(crate) fn on_interface(&mut self, ctx: &mut Context, at: Timestamp, step: InterfaceStep) {
        self.objects.interface_seen(ctx, at, step);
    }

    /// A connect names its compartment and its process, so a process of a known sandbox identifies the compartment.
    pub(crate) fn on_connect(&mut self, ctx: &mut Context, at: Timestamp, step: &ConnectStep) {
        self.objects.learn_compartment(ctx, at, step);
    }
}
