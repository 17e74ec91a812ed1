//! Counts HNS endpoints and sandboxes, for metrics: endpoints that outlive their sandboxes are a known leak of Windows
//! nodes.
//!
//! Used by `nest_end.rs` and `runtime.rs`. Counts begin with the agent: what is older is not included. Does not: tie an
//! endpoint to a sandbox (`keys.rs`).

use crate::context::Context;
use crate::finding::Finding;
use crate::output::Output;
use crate::windows::objects::Objects;

/// Bound on endpoints that are counted.
const MAX_ENDPOINTS: usize = 16_384;

impl Objects {
    /// An endpoint was created (`made`) or deleted.
    pub(super) fn count_endpoint(&mut self, ctx: &mut Context, endpoint: &str, made: bool) {
        if !made {
            self.endpoints.remove(endpoint);
        } else if self.endpoints.len() < MAX_ENDPOINTS {
            self.endpoints.insert(endpoint.to_owned());
        }
        self.report_endpoints(ctx);
    }

    /// Emits both counts when one of them changed.
    pub(super) fn report_endpoints(&mut self, ctx: &mut Context) {
        let (endpoints, sandboxes) = (self.endpoints.len() as u64, self.sandboxes.alive() as u64);
        if (endpoints, sandboxes) != self.reported_endpoints {
            self.reported_endpoints = (endpoints, sandboxes);
            let finding = Finding::Endpoints { endpoints, sandboxes };
            ctx.effects.outputs.push(Output::Finding(finding));
        }
    }
}
