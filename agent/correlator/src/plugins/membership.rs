//! Puts a plugin invocation into an operation: an open one of the runtime, a nested one of another plugin, or a new
//! one.
//!
//! Used by `exec.rs` for delegates and by `correlator.rs` for operations of the runtime, after the room of sandboxes
//! has chosen the trace. The runtime executes the plugins of a network's list one after another (CNI spec 1.1.0,
//! section 3); a plugin may execute others for the same interface (delegation, section 4) or, as Multus does, for
//! further interfaces, which are operations of their own.
//! Does not: close operations, except those that a nested one replaces.
//!
//! Example: Multus is executed by containerd for `eth0`, executes `bridge` for `eth0` and `macvlan` for `net1`. Multus
//! is a member of the runtime's chain. `bridge` has the same container and interface: a delegate within that operation.
//! `macvlan` has another interface: a nested operation below Multus, with a chain of its own. Both carry `CNI_*`
//! variables of their own.

use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::cni::NetworkList;
use sandglass_model::trace::{Detail, Link, PluginDetail, Relation};

use crate::chains;
use crate::context::Context;
use crate::facts::Fact;
use crate::invocation::{Image, Invocation, has_attachment};
use crate::keys::{SpanRef, TraceKey};
use crate::open_trace::{CREATE, OpenTrace};
use crate::placement::Placement;
use crate::plugins::Plugins;
use crate::plugins::role::Role;
use crate::plugins::state::{Caller, Operation, TraceState};
use crate::timers::Timer;

/// How a plugin invocation relates to its operation. Decides two attributes: `delegate`, and whether its end can end
/// the operation. A delegate that fails does not: its caller decides what that means, and reports it by its own exit.
#[derive(Clone, Copy, Debug)]
enum Membership {
    /// The runtime executed it: a member of the chain.
    Chain,
    /// Another plugin executed it as a member of a nested operation's chain.
    NestedChain,
    /// Another plugin of the same operation executed it.
    Delegate,
}

impl Plugins {
    /// The runtime begins an operation with this plugin, in the trace that the room of sandboxes chose.
    pub(crate) fn begin_operation(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        image: Image,
        call: &Invocation<'_>,
        placement: Placement,
    ) {
        let process = image.process;
        let caller = Caller::Runtime(image.parent);
        let operation = match placement {
            Placement::Single(trace) => {
                let root = SpanRef { trace, span: 0 };
                self.add_operation(ctx, root, call, caller);
                Some(root)
            }
            Placement::Creation(trace) => self.begin_attachment(ctx, at, trace, &image, call),
        };
        // The trace is full. The plugin stays in the table as a daemon, so that its children and its exit are no
        // orphans.
        let Some(operation) = operation else {
            return self.add_process(ctx, at, process, Role::Detached);
        };
        // From here on a next exec of the runtime with these parameters finds the operation.
        let open = self.open.entry(call.container.into()).or_default();
        open.push(operation);
        ctx.facts.push(Fact::OperationOpened(operation));
        self.begin_member(ctx, at, image, call, operation);
    }

    /// The plugin is the next one of the chain of an open operation: the settle timer stops until this plugin has
    /// ended.
    pub(crate) fn join_operation(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        image: Image,
        call: &Invocation<'_>,
        operation: SpanRef,
    ) {
        if let Some(open) = ctx.traces.get_mut(operation.trace) {
            open.clear_timer(operation.span, &mut ctx.effects);
        }
        self.begin_member(ctx, at, image, call, operation);
    }

    /// Begins a member of the chain and sets its timeout (`correlation.deadline`). Only plugins that the runtime executes
    /// have one: what runs below them is cut with them.
    fn begin_member(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        image: Image,
        call: &Invocation<'_>,
        operation: SpanRef,
    ) {
        let process = image.process;
        // Members of a chain lie side by side below the operation; delegates lie below their caller.
        let span = self.begin_plugin(ctx, at, image, call, operation, operation, Membership::Chain);
        self.add_process(ctx, at, process, span.map_or(Role::Detached, Role::Spanned));
        match span {
            Some(span) => {
                if let Some(open) = ctx.traces.get_mut(span.trace).filter(|open| open.is_open(span.span)) {
                    let deadline = at.plus(ctx.config.deadline_ns);
                    open.set_timer(span.span, Timer::Plugin(process), deadline, &mut ctx.effects);
                }
            }
            // The trace is full: the operation must not stay open for a plugin that is not tracked.
            None => self.close_operation(ctx, operation),
        }
    }

    /// Begins another attachment in the trace of a sandbox that is being created. Returns `None` when the trace is
    /// full.
    fn begin_attachment(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        trace: TraceKey,
        image: &Image,
        call: &Invocation<'_>,
    ) -> Option<SpanRef> {
        let caller = Caller::Runtime(image.parent);
        let open = ctx.traces.get_mut(trace)?;
        // Counted within the trace: a new sandbox for the same pod is an attempt of the sandbox and not of the operation.
        let mut attempt = 1;
        if let Some(state) = self.traces.get_mut(trace) {
            // The same attachment with the same first plugin again is a retry of what failed.
            let plugin = image.file_name();
            let first = |span| open.operation(span).and_then(|detail| detail.plugins.first());
            // An attachment with another first plugin is another network on the same interface name.
            let again = state.operations().iter().filter(|operation| {
                operation.is_for(open, call, caller)
                    && !open.is_open(operation.span)
                    && first(operation.span).is_some_and(|first| **first == *plugin)
            });
            // Every earlier attempt is reported, since each failure must not fail the sandbox.
            let again: Vec<usize> = again.map(|operation| operation.span).collect();
            for span in again {
                ctx.facts.push(Fact::OperationRetried(SpanRef { trace, span }));
                attempt += 1;
            }
        }
        // A late record can be older than everything in the trace; the root must enclose it.
        open.begin_earlier(at);
        let detail = Detail::Operation(Box::new(call.to_operation(attempt)));
        let Some(span) = open.begin(Some(CREATE), at, detail) else {
            open.trace.incomplete = true;
            ctx.effects.counters.evicted_spans += 1;
            return None;
        };
        open.touch(&mut ctx.effects);
        // The sandbox is not complete while an operation is open: the end of this one sets the timer anew.
        ctx.effects.timers.clear(Timer::Trace(trace));
        let operation = SpanRef { trace, span };
        self.add_operation(ctx, operation, call, caller);
        Some(operation)
    }

    /// Keeps the state of an operation beside its trace, in a reused `TraceState` where there is one. Invariant: each open
    /// operation has a state until its trace, or the creation in it, is over.
    fn add_operation(&mut self, ctx: &Context, span: SpanRef, call: &Invocation<'_>, caller: Caller) {
        let Some(open) = ctx.traces.get(span.trace) else {
            return;
        };
        let operation = Operation::new(span.span, call, caller, open);
        match self.traces.get_mut(span.trace) {
            Some(state) => state.add_operation(operation),
            None => {
                let mut state = self.spare.pop().unwrap_or_default();
                state.add_operation(operation);
                self.traces.insert(span.trace, state);
            }
        }
    }

    /// A plugin that the plugin at `caller` executed. For the same container and interface it is a delegate within the
    /// operation; for another interface it begins or continues a nested operation. `None` when the trace is full or the
    /// caller is no member of an operation.
    pub(crate) fn begin_delegate(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        image: Image,
        call: &Invocation<'_>,
        parent: SpanRef,
        caller: usize,
    ) -> Option<SpanRef> {
        let trace = parent.trace;
        let (open, state) = (ctx.traces.get_mut(trace)?, self.traces.get(trace)?);
        // The operation that the caller itself belongs to.
        let around = state.process(caller)?.operation?;
        let same =
            open.operation(around)?.ifname == call.ifname && state.operation(around)?.container(open) == call.container;
        // VERSION, STATUS and GC name no interface (CNI spec 1.1.0, section 2): they cannot be another attachment.
        if same || !has_attachment(call.command) {
            let operation = SpanRef { trace, span: around };
            return self.begin_plugin(ctx, at, image, call, operation, parent, Membership::Delegate);
        }
        let requested_by = Caller::Plugin(caller);
        // The newest first: an older one of the same parameters is over.
        let going_on = state.operations().iter().rev().find(|operation| {
            operation.is_for(open, call, requested_by)
                && chains::can_join(open, operation.span, image.file_name(), &ctx.networks)
        });
        let operation = match going_on {
            Some(operation) => {
                open.clear_timer(operation.span, &mut ctx.effects);
                open.reference(operation.span)
            }
            None => self.begin_nested(ctx, at, call, parent, requested_by)?,
        };
        self.begin_plugin(ctx, at, image, call, operation, operation, Membership::NestedChain)
    }

    /// Begins a nested operation below `parent`, such as that of a further interface of Multus.
    /// Earlier ones of the same caller and parameters that are idle are over;
    /// those that failed make this one the next attempt.
    fn begin_nested(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        call: &Invocation<'_>,
        parent: SpanRef,
        caller: Caller,
    ) -> Option<SpanRef> {
        // All state that is compared lies in this trace: a plugin's operations are its own.
        let trace = parent.trace;
        let (open, state) = (ctx.traces.get(trace)?, self.traces.get(trace)?);
        // Same caller, container, interface and verb.
        let same = || {
            let operations = state.operations().iter();
            operations.filter(|operation| operation.is_for(open, call, caller))
        };
        // Only failures make the next one another attempt: a plugin may repeat a successful operation on purpose.
        let failed = same().filter(|operation| open.has_failed(operation.span)).count();
        let attempt = u32::try_from(1 + failed).unwrap_or(u32::MAX);
        let over: Vec<usize> = same()
            .map(|operation| operation.span)
            .filter(|&span| open.is_idle(span))
            .collect();
        for span in over {
            self.close_operation(ctx, SpanRef { trace, span });
        }
        let open = ctx.traces.get_mut(trace)?;
        let detail = Detail::Operation(Box::new(call.to_operation(attempt)));
        let Some(span) = open.begin(Some(parent.span), at, detail) else {
            open.trace.incomplete = true;
            ctx.effects.counters.evicted_spans += 1;
            return None;
        };
        let operation = SpanRef { trace, span };
        self.add_operation(ctx, operation, call, caller);
        Some(operation)
    }

    /// Begins the span of a plugin below `parent` and enters it into the chain of `operation` where it is a member. A
    /// caller from another trace (`TRACEPARENT`) becomes a link.
    #[expect(clippy::too_many_arguments, reason = "an exec, and its place in the trace")]
    fn begin_plugin(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        image: Image,
        call: &Invocation<'_>,
        operation: SpanRef,
        parent: SpanRef,
        membership: Membership,
    ) -> Option<SpanRef> {
        // One text for all spans of a plugin: nodes run the same few.
        let plugin = ctx.names.get(image.file_name());
        let (delegate, in_chain) = match membership {
            Membership::Chain => (false, true),
            Membership::NestedChain => (true, true),
            Membership::Delegate => (true, false),
        };
        let detail = Detail::Plugin(Box::new(PluginDetail {
            plugin: Arc::clone(&plugin),
            command: call.command,
            delegate,
            spec_version: String::new(),
            error: None,
            process: image.into_detail(&mut ctx.names),
        }));
        let span = self.begin_process(ctx, at, parent, detail)?;
        let (open, state) = (ctx.traces.get_mut(span.trace)?, self.traces.get_mut(span.trace)?);
        if let Some(process) = state.process_mut(span.span) {
            process.operation = Some(operation.span);
            process.in_chain = in_chain;
            process.environment = call.fingerprint;
        }
        if in_chain {
            add_to_chain(state, operation.span, open, plugin, &ctx.networks);
        }
        // A trace that continues the caller's has it as its remote parent already.
        if let Some(caller) = call.caller.filter(|caller| caller.trace != open.trace.id) {
            open.trace.spans[span.span].links.push(Link {
                trace: caller.trace,
                span: caller.span,
                relation: Relation::Caller,
            });
        }
        Some(span)
    }

    /// Begins the span of a plugin or a command. `None` when the trace has no room: it is marked incomplete and the
    /// span is counted as evicted.
    pub(crate) fn begin_process(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        parent: SpanRef,
        detail: Detail,
    ) -> Option<SpanRef> {
        let open = ctx.traces.get_mut(parent.trace)?;
        open.touch(&mut ctx.effects);
        // Its begin is the time at which the agent found it, so that the trace lacks what came before.
        let found_running = detail.process().is_some_and(|process| process.found_running);
        let Some(span) = open.begin(Some(parent.span), at, detail) else {
            open.trace.incomplete = true;
            ctx.effects.counters.evicted_spans += 1;
            return None;
        };
        open.trace.incomplete |= found_running;
        self.traces.get_mut(parent.trace)?.add_process(span, at);
        Some(open.reference(span))
    }
}

/// Appends the plugin to the chain. Infers the network while no plugin has reported it, and only if exactly one
/// configured list begins with the chain: a wrong name would be worse than none.
fn add_to_chain(
    state: &TraceState,
    operation: usize,
    open: &mut OpenTrace,
    plugin: Arc<str>,
    networks: &[NetworkList],
) {
    let reported = state.operation(operation).is_some_and(|state| state.network_reported);
    if let Some(detail) = open.operation_mut(operation) {
        detail.plugins.push(plugin);
        if !reported {
            detail.network = match chains::only_match(networks, detail) {
                Some(list) => list.network.clone(),
                None => String::new(),
            };
        }
    }
}
