//! What this room adds to a trace that is about to close: unfinished and likely activities, and the wait for the
//! interface.
//!
//! Called by `correlator.rs` before the other rooms close the trace. Does not: close it.

use crate::context::Context;
use crate::keys::TraceKey;
use crate::windows::Windows;

impl Windows {
    /// What is not attributed to the trace here stays without an owner.
    pub(crate) fn on_closing(&mut self, ctx: &mut Context, key: TraceKey) {
        // The order is that of certainty: what a failed plugin waited for, then what is likely, then the interface.
        self.objects.place_unfinished(ctx, &mut self.activities, key);
        self.objects.place_likeliest(ctx, key);
        self.objects.settle_vnic(ctx, key);
        if let Some(open) = ctx.traces.get(key) {
            self.objects
                .forget_operations(open.sandbox(), |operation| operation.trace == key);
        }
    }
}
