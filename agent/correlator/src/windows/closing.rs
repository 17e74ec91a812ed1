//! A trace is about to close: what is still known only here becomes part of it.

use crate::context::Context;
use crate::keys::TraceKey;
use crate::windows::Windows;

impl Windows {
    pub(crate) fn on_closing(&mut self, ctx: &mut Context, key: TraceKey) {
        self.objects.place_unfinished(ctx, &mut self.activities, key);
        self.objects.place_likeliest(ctx, key);
        self.objects.settle_vnic(ctx, key);
        if let Some(open) = ctx.traces.get(key) {
            self.objects
                .forget_operations(open.sandbox(), |operation| operation.trace == key);
        }
    }
}
