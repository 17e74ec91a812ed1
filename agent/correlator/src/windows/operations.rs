//! Open operations of the runtime, by container: which plugin runs for which sandbox now.
//!
//! Kept from the facts of the room of plugins. Used to infer for whom the runtime executes the next plugin. Does not:
//! know nested operations.

use crate::chains;
use crate::context::Context;
use crate::keys::SpanRef;
use crate::open_trace::OpenTrace;
use crate::windows::objects::Objects;

impl Objects {
    /// An operation opened.
    pub(super) fn add_operation(&mut self, ctx: &Context, operation: SpanRef) {
        if let Some(open) = ctx.traces.get(operation.trace) {
            let open = self.operations.entry(open.sandbox().to_owned()).or_default();
            open.push(operation);
        }
    }

    /// An operation closed.
    pub(super) fn remove_operation(&mut self, ctx: &Context, operation: SpanRef) {
        if let Some(open) = ctx.traces.get(operation.trace) {
            self.forget_operations(open.sandbox(), |other| other == operation);
        }
    }

    /// Removes the operations of a container for which `over` holds.
    pub(super) fn forget_operations(&mut self, container: &str, over: impl Fn(SpanRef) -> bool) {
        if let Some(operations) = self.operations.get_mut(container) {
            operations.retain(|operation| !over(*operation));
            if operations.is_empty() {
                self.operations.remove(container);
            }
        }
    }

    /// Open operations on this container, with their traces and spans.
    pub(super) fn operations_of<'a>(
        &'a self,
        ctx: &'a Context,
        container: &str,
    ) -> impl Iterator<Item = (&'a OpenTrace, usize)> {
        let operations = self.operations.get(container).into_iter().flatten();
        operations.filter_map(|operation| Some((ctx.traces.get(operation.trace)?, operation.span)))
    }

    /// A plugin runs for the sandbox now.
    pub(super) fn is_busy(&self, ctx: &Context, container: &str) -> bool {
        self.operations_of(ctx, container)
            .any(|(open, operation)| open.is_open(operation) && !open.is_idle(operation))
    }

    /// An open operation on the container can continue with this plugin.
    pub(super) fn goes_on(&self, ctx: &Context, container: &str, plugin: &str) -> bool {
        self.operations_of(ctx, container)
            .any(|(open, operation)| chains::can_join(open, operation, plugin, &ctx.networks))
    }
}
