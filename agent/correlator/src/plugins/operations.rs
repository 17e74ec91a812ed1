//! CNI operations: which plugin invocations are one chain, and when the chain is over.
//!
//! Used by the other files of this room and by `correlator.rs`. The runtime runs the plugins of a chain one after
//! another with the same verb, container and interface (CNI spec 1.1.0, section 3). Nothing in the environment says
//! that a plugin is the last one. An operation is over when a plugin of its chain fails (the runtime stops there), when
//! every plugin of the configured list has run, when the runtime goes on to something else, or when no next plugin came
//! within the settle time.
//! Invariant: the span ends with its last plugin in every case, so that the settle time never counts as time of the
//! operation.
//! Does not: decide anything about the sandbox.
//!
//! Example: containerd runs `bridge` and then `portmap` for an ADD of `eth0`. The exec of `bridge` opens the operation;
//! its exit makes it idle and starts the settle timer; the exec of `portmap` joins it and stops the timer; its exit
//! completes the configured list, so the operation closes at once and ends at that exit. With an unknown list it closes
//! when the settle timer fires, and ends at the same exit.

use std::sync::Arc;

use sandglass_model::event::SandboxDescription;
use sandglass_model::trace::Status;
use sandglass_model::{ProcessKey, Timestamp};

use crate::chains;
use crate::collections::HashMap;
use crate::context::Context;
use crate::facts::Fact;
use crate::invocation::Invocation;
use crate::keys::{SpanRef, TraceKey};
use crate::open_trace::OpenTrace;
use crate::open_trace::ending::Cut;
use crate::plugins::Plugins;
use crate::plugins::state::Caller;
use crate::plugins::time_spent::sum_up_again;
use crate::timers::Timer;

impl Plugins {
    /// The open operation of the runtime process `caller` whose chain `plugin` continues; `None` if the plugin begins a
    /// new operation.
    pub(crate) fn joinable(
        &self,
        ctx: &Context,
        call: &Invocation<'_>,
        caller: ProcessKey,
        plugin: &str,
    ) -> Option<SpanRef> {
        let fits = |operation: &&SpanRef| {
            let (Some(open), Some(state)) = (ctx.traces.get(operation.trace), self.traces.get(operation.trace)) else {
                return false;
            };
            state.operation(operation.span).is_some_and(|state| {
                state.is_for(open, call, Caller::Runtime(caller))
                    && chains::can_join(open, operation.span, plugin, &ctx.networks)
            })
        };
        let ended = |operation: &&SpanRef| {
            let open = ctx.traces.get(operation.trace);
            open.map(|open| open.states[operation.span].latest)
        };
        let open = self.open.get(call.container)?.iter().filter(fits);
        // Of several that run at once, the next plugin now belongs to the one whose plugin ended last.
        open.max_by_key(ended).copied()
    }

    /// The container that an operation of an open trace is for: the trace's sandbox, unless a plugin requested it for another.
    pub(crate) fn container_of<'a>(&'a self, open: &'a OpenTrace, operation: SpanRef) -> &'a str {
        let state = self.traces.get(operation.trace);
        let state = state.and_then(|state| state.operation(operation.span));
        state.map_or_else(|| open.sandbox(), |state| state.container(open))
    }

    /// Another operation for the same attachment begins: those that only wait for a next plugin are over. A DEL ends all
    /// operations of the sandbox that do.
    /// A runtime that retries after a crash never ends the first operation in any other way.
    pub(crate) fn supersede(&mut self, ctx: &mut Context, call: &Invocation<'_>) {
        let open = self.open.get(call.container).into_iter().flatten();
        let over = open.filter(|operation| {
            let (Some(open), Some(state)) = (ctx.traces.get(operation.trace), self.traces.get(operation.trace)) else {
                return false;
            };
            let state = state.operation(operation.span);
            state.is_some_and(|state| state.is_superseded_by(open, call))
        });
        for operation in over.copied().collect::<Vec<_>>() {
            self.close_operation(ctx, operation);
        }
    }

    /// The runtime goes on with this container, for example with `runc create`: operations that only wait for a next
    /// plugin are over. `trace` limits that to the operations of one trace.
    pub(crate) fn close_idle(&mut self, ctx: &mut Context, container: &str, trace: Option<TraceKey>) {
        let open = self.open.get(container).into_iter().flatten();
        let over = open.filter(|operation| {
            let open = ctx.traces.get(operation.trace);
            trace.is_none_or(|trace| trace == operation.trace) && open.is_some_and(|open| open.is_idle(operation.span))
        });
        for operation in over.copied().collect::<Vec<_>>() {
            self.close_operation(ctx, operation);
        }
    }

    /// A plugin of the operation's chain ended.
    /// A failure ends the operation at once, since a runtime does not run the rest of the list (libcni,
    /// `addNetworkList`). Otherwise the settle timer runs from the latest end in the chain, not from `at`: a late
    /// record must not lengthen it.
    pub(crate) fn on_member_end(
        &mut self,
        ctx: &mut Context,
        operation: SpanRef,
        at: Timestamp,
        failure: Option<(String, String)>,
    ) {
        let Some(open) = ctx.traces.get_mut(operation.trace) else {
            return;
        };
        let failed = failure.is_some();
        if let Some((class, message)) = failure {
            open.trace.spans[operation.span].status = Status::Error { class, message };
        }
        if !open.is_idle(operation.span) {
            return;
        }
        if failed || chains::is_complete(open, operation.span, &ctx.networks) {
            self.close_operation(ctx, operation);
        } else {
            // A plugin that the list names is the runtime's next step, which a busy node executes late.
            let wait_ns = match chains::has_next(open, operation.span, &ctx.networks) {
                true => ctx.config.runtime_wait_ns.max(ctx.config.settle_ns),
                false => ctx.config.settle_ns,
            };
            let settled = open.states[operation.span].latest.max(at).plus(wait_ns);
            open.set_timer(operation.span, Timer::Settle(operation), settled, &mut ctx.effects);
        }
    }

    /// No further plugin belongs to the operation. Nested operations end without a fact: they concern only their
    /// caller's trace.
    pub(crate) fn close_operation(&mut self, ctx: &mut Context, operation: SpanRef) {
        let Some(open) = ctx.traces.get_mut(operation.trace) else {
            return;
        };
        if !open.is_open(operation.span) {
            return;
        }
        // It ends with its last plugin, not now.
        let start = open.trace.spans[operation.span].start;
        open.end(operation.span, start, Cut::Outlived, &mut ctx.effects);
        sum_up_again(open, operation.span);
        let state = self.traces.get(operation.trace);
        let Some(state) = state.and_then(|state| state.operation(operation.span)) else {
            return;
        };
        if let Caller::Plugin(_) = state.caller {
            return;
        }
        forget(&mut self.open, state.container(open), operation);
        ctx.facts.push(Fact::OperationClosed(operation));
    }

    /// The trace, or the creation in it, is about to be over: ends its operations and processes.
    /// Order matters: no operation must be left in `open` when the trace's key becomes invalid.
    pub(crate) fn on_closing(&mut self, ctx: &mut Context, trace: TraceKey, cut: Cut) {
        let Some(open) = ctx.traces.get_mut(trace) else {
            return;
        };
        if let Some(mut state) = self.traces.remove(trace) {
            for operation in state.operations() {
                let reference = SpanRef {
                    trace,
                    span: operation.span,
                };
                open.clear_timer(operation.span, &mut ctx.effects);
                forget(&mut self.open, operation.container(open), reference);
            }
            state.clear();
            self.spare.push(state);
        }
        // Processes first, so that what encloses them can end with the last of them.
        for span in (0..open.trace.spans.len()).rev() {
            if open.trace.spans[span].process().is_some() {
                open.cut(span, ctx.now, cut, &mut ctx.effects);
            }
        }
        for span in 0..open.trace.spans.len() {
            sum_up_again(open, span);
        }
    }

    /// The runtime reported the labels of a sandbox: open operations on it carry them too. Returns whether there are any.
    pub(crate) fn on_described(&mut self, ctx: &mut Context, described: &SandboxDescription) -> bool {
        let mut known = false;
        for operation in self.open.get(described.sandbox.0.as_str()).into_iter().flatten() {
            if let Some(open) = ctx.traces.get_mut(operation.trace) {
                known = true;
                open.trace.identity.merge(&described.identity);
                open.touch(&mut ctx.effects);
            }
        }
        known
    }

    /// The sandbox has another id now (Windows: the runtime reported it).
    pub(crate) fn on_renamed(&mut self, before: &str, id: &str) {
        if let Some(open) = self.open.remove(before) {
            self.open.insert(id.into(), open);
        }
    }
}

/// The operation is none that a next plugin could join.
fn forget(open: &mut HashMap<Arc<str>, Vec<SpanRef>>, container: &str, operation: SpanRef) {
    if let Some(operations) = open.get_mut(container) {
        operations.retain(|other| *other != operation);
        if operations.is_empty() {
            open.remove(container);
        }
    }
}
