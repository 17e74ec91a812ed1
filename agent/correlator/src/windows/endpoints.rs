//! HNS endpoints and sandboxes, counted.

use crate::context::Context;
use crate::finding::Finding;
use crate::output::Output;
use crate::windows::objects::Objects;

/// Bound on endpoints counted.
const MAX_ENDPOINTS: usize = 16_384;

impl Objects {
    /// An endpoint was made, or deleted.
    pub(super) fn count_endpoint(&mut self, ctx: &mut Context, endpoint: &str, made: bool) {
        if !made {
            self.endpoints.remove(endpoint);
        } else if self.endpoints.len() < MAX_ENDPOINTS {
            self.endpoints.insert(endpoint.to_owned());
        }
        self.report_endpoints(ctx);
    }

    pub(super) fn report_endpoints(&mut self, ctx: &mut Context) {
        let (endpoints, sandboxes) = (self.endpoints.len() as u64, self.sandboxes.alive() as u64);
        if (endpoints, sandboxes) != self.reported_endpoints {
            self.reported_endpoints = (endpoints, sandboxes);
            let finding = Finding::Endpoints { endpoints, sandboxes };
            ctx.effects.outputs.push(Output::Finding(finding));
        }
    }
}
