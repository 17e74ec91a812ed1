//! Ends of processes: their spans, what a plugin read and wrote until then, and the bound on the process table.

use sandglass_model::event::{Exit, ExitStatus, PluginIo};
use sandglass_model::trace::Status;
use sandglass_model::{ProcessKey, Timestamp};

use crate::context::Context;
use crate::facts::Fact;
use crate::invocation::failure_of;
use crate::keys::SpanRef;
use crate::open_trace::Cut;
use crate::plugins::Plugins;
use crate::plugins::role::{PidMatch, Role};

impl Plugins {
    pub(crate) fn on_exit(&mut self, ctx: &mut Context, at: Timestamp, exit: &Exit) {
        match self.processes.exit(exit.process, ctx.now) {
            Some(Role::Spanned(span)) => self.end_process(ctx, at, span, exit.how),
            Some(Role::Runtime(Some(span))) => {
                let how = exit.how;
                ctx.facts.push(Fact::StepEnded { at, span, how });
            }
            Some(Role::Forked(_) | Role::Runtime(None) | Role::Detached | Role::Gone { .. }) => {}
            None => ctx.effects.counters.orphan += 1,
        }
        self.bound_processes(ctx, at);
    }

    /// What a plugin read from its standard input and wrote to its standard output.
    pub(crate) fn on_plugin_io(&mut self, ctx: &mut Context, io: &PluginIo) {
        let span = match self.processes.role(io.process) {
            Some(Role::Spanned(span)) => span,
            Some(Role::Forked(_) | Role::Runtime(_) | Role::Detached | Role::Gone { .. }) => return,
            None => {
                ctx.effects.counters.orphan += 1;
                return;
            }
        };
        let (Some(open), Some(state)) = (ctx.traces.get_mut(span.trace), self.traces.get_mut(span.trace)) else {
            return;
        };
        if !open.is_open(span.span) {
            return;
        }
        let Some(plugin) = open.trace.spans[span.span].detail.as_plugin_mut() else {
            return;
        };
        if let Some(netconf) = &io.netconf {
            plugin.spec_version.clone_from(&netconf.version);
        }
        if io.error.is_some() {
            plugin.error.clone_from(&io.error);
        }
        let member = state.process(span.span).filter(|process| process.in_chain);
        if let Some(operation) = member.and_then(|process| process.operation) {
            let network = io.netconf.as_ref().map_or("", |netconf| netconf.network.as_str());
            if let Some(state) = state.operation_mut(operation) {
                state.network_reported |= !network.is_empty();
            }
            if let Some(detail) = open.operation_mut(operation) {
                if !network.is_empty() {
                    network.clone_into(&mut detail.network);
                }
                if !io.addresses.is_empty() {
                    detail.addresses.clone_from(&io.addresses);
                    let reported = Fact::AddressesReported(open.reference(operation));
                    ctx.facts.push(reported);
                }
            }
        }
        open.touch(&mut ctx.effects);
    }

    /// The timeout of a plugin passed: it ends, and with it what runs below it.
    pub(crate) fn on_plugin_due(&mut self, ctx: &mut Context, at: Timestamp, process: ProcessKey) {
        let Some(Role::Spanned(reference)) = self.processes.role(process) else {
            return;
        };
        let deadline_ns = ctx.config.deadline_ns;
        let cut = Cut::Deadline { deadline_ns };
        let failure = cut.failure();
        let open = ctx.traces.get_mut(reference.trace);
        let Some(open) = open.filter(|open| open.is_open(reference.span)) else {
            return;
        };
        if let Some((class, message)) = failure.clone() {
            open.trace.spans[reference.span].status = Status::Error { class, message };
        }
        self.end_span(ctx, at, reference, cut, failure);
    }

    /// The process of a plugin or a command ended.
    fn end_process(&mut self, ctx: &mut Context, at: Timestamp, reference: SpanRef, how: ExitStatus) {
        let open = ctx.traces.get_mut(reference.trace);
        let Some(open) = open.filter(|open| open.is_open(reference.span)) else {
            return;
        };
        let span = &mut open.trace.spans[reference.span];
        let reported = span.detail.as_plugin().and_then(|plugin| plugin.error.as_ref());
        let reported = reported.filter(|_| matches!(how, ExitStatus::Code(_)));
        let failure = failure_of(span, how).map(|(class, message)| match reported {
            Some(error) => (error.class().to_owned(), error.msg.clone()),
            None => (class.to_owned(), message),
        });
        if let Some(process) = span.process_mut() {
            process.exit = Some(how);
        }
        if let Some((class, message)) = failure.clone() {
            span.status = Status::Error { class, message };
        }
        open.trace.incomplete |= how == ExitStatus::Unknown;
        self.end_span(ctx, at, reference, Cut::Outlived, failure);
    }

    fn end_span(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        reference: SpanRef,
        below: Cut,
        failure: Option<(String, String)>,
    ) {
        let SpanRef { trace, span } = reference;
        let Some(open) = ctx.traces.get_mut(trace) else {
            return;
        };
        open.end(span, at, below, &mut ctx.effects);
        let state = self.traces.get(trace).and_then(|state| state.process(span));
        let member = state.filter(|process| process.in_chain);
        if let Some(operation) = member.and_then(|process| process.operation) {
            let operation = SpanRef { trace, span: operation };
            self.on_member_end(ctx, operation, at, failure);
        }
    }
}

// === the process table ===

impl Plugins {
    /// A new process has this pid: the one that had it before is gone. `false` when the record is older than the process
    /// that has the pid now.
    pub(crate) fn take_pid(&mut self, ctx: &mut Context, at: Timestamp, process: ProcessKey, seen: PidMatch) -> bool {
        let PidMatch::Namesake(before, role) = seen else {
            return true;
        };
        if before.start_ticks > process.start_ticks {
            ctx.effects.counters.orphan += 1;
            return false;
        }
        self.processes.remove(before);
        self.lose_process(ctx, at, role);
        true
    }

    pub(crate) fn add_process(&mut self, ctx: &mut Context, at: Timestamp, process: ProcessKey, role: Role) {
        self.processes.set(process, role);
        self.bound_processes(ctx, at);
    }

    /// Time passed: forgets processes that ended a while ago.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        self.processes.expire(now);
    }

    fn bound_processes(&mut self, ctx: &mut Context, at: Timestamp) {
        let traces = &ctx.traces;
        if let Some((_, role)) = self.processes.evict(|span| traces.is_open(span)) {
            ctx.effects.counters.evicted_processes += 1;
            self.lose_process(ctx, at, role);
        }
    }

    /// The process was removed from the table: its end will not be seen.
    fn lose_process(&mut self, ctx: &mut Context, at: Timestamp, role: Role) {
        let how = ExitStatus::Unknown;
        match role {
            Role::Spanned(span) => self.end_process(ctx, at, span, how),
            Role::Runtime(Some(span)) => ctx.facts.push(Fact::StepEnded { at, span, how }),
            Role::Forked(_) | Role::Runtime(None) | Role::Detached | Role::Gone { .. } => {}
        }
    }
}
