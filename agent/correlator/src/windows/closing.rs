//! A trace is about to close: what is still known only here becomes part of it.

use crate::context::Context;
use crate::keys::TraceKey;
use crate::windows::Windows;

impl Windows {
    pub(crate) fn on_closing(&mut self, ctx: &mut Context, key: TraceKey) {
        self.place_unfinished(ctx, key);
        self.place_likeliest(ctx, key);
        self.settle_vnic(ctx, key);
        if let Some(open) = ctx.traces.get(key) {
            self.forget_operations(open.sandbox(), |operation| operation.trace == key);
        }
    }
}
