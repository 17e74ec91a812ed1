//! Handles ends of processes, the input and output that a plugin had until then, timeouts, and the bound on the process
//! table.
//!
//! Used by `correlator.rs` and, for processes that are added, by the other files of this room. An exit without a known
//! process is counted as an orphan. Error class and message of a plugin come from the error object that it wrote to
//! standard output (CNI spec 1.1.0, section 5, "Error"), else from its exit code or signal.
//! A span ends once: by exit, timeout, eviction of its process, or with the span around it, whichever comes first. Later
//! evidence finds it closed and changes nothing.
//! Does not: decide whether the operation is over (`operations.rs`).

use sandglass_model::event::{Exit, ExitStatus, NetlinkRemark, PluginIo};
use sandglass_model::trace::Status;
use sandglass_model::{ProcessKey, Timestamp};

use crate::context::Context;
use crate::facts::Fact;
use crate::finding::Scope;
use crate::invocation::{failure_of, is_answer};
use crate::keys::SpanRef;
use crate::open_trace::ending::Cut;
use crate::plugins::Plugins;
use crate::plugins::role::{PidMatch, Role};

impl Plugins {
    /// A process ended, all threads included. The role stays in the table as `Gone` for a second: with per-processor
    /// ring buffers a child's exec may be released after its parent's exit.
    pub(crate) fn on_exit(&mut self, ctx: &mut Context, at: Timestamp, exit: &Exit) {
        match self.processes.exit(exit.process, ctx.now) {
            Some(Role::Spanned(span)) => {
                // A span that ended before, by its timeout, keeps the end that it has.
                if ctx.traces.is_open(span) {
                    ctx.facts.push(Fact::ProcessEnded(exit.process, span));
                }
                self.end_process(ctx, at, span, exit.how);
            }
            Some(Role::Runtime(Some(span))) => {
                let how = exit.how;
                let process = Some(exit.process);
                ctx.facts.push(Fact::StepEnded { process, at, span, how });
            }
            Some(Role::Forked(_) | Role::Runtime(None) | Role::Detached | Role::Gone { .. }) => {}
            None => ctx.effects.counters.orphan += 1,
        }
        self.bound_processes(ctx, at);
    }

    /// What a plugin read from standard input (its network configuration) and wrote to standard output (result or
    /// error, CNI spec 1.1.0, section 2, "Parameters"). The probe reads both at the exit of the process, so this event
    /// comes just before that. Only members of a chain name the network and the addresses: a delegate's result is
    /// an intermediate one.
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
        // The timeout ended the span before; what the plugin wrote afterwards was not waited for.
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
        // The configuration's own `name` is certain, unlike the inference from the chain.
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

    /// The kernel remarked on a netlink request of a process. The newest remark replaces those before: what a program tried first
    /// and did without explains less. What a subshell sends belongs to the process that forked it.
    pub(crate) fn on_netlink_remark(&mut self, ctx: &mut Context, remark: &NetlinkRemark) {
        let reference = match self.processes.role(remark.process) {
            Some(Role::Spanned(span) | Role::Forked(span)) => span,
            Some(Role::Runtime(_) | Role::Detached | Role::Gone { .. }) => return,
            None => {
                ctx.effects.counters.orphan += 1;
                return;
            }
        };
        let open = ctx.traces.get_mut(reference.trace);
        let Some(open) = open.filter(|open| open.is_open(reference.span)) else {
            return;
        };
        if let Some(process) = open.trace.spans[reference.span].process_mut() {
            process.netlink.clone_from(&remark.message);
            open.touch(&mut ctx.effects);
        }
    }

    /// The timeout of a plugin passed (`correlation.deadline`, 300 s by default): its span ends with the error class
    /// `deadline`, and with it what runs below it. The process may still run; its later records find a closed span and
    /// change nothing.
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
        // What it waited for until now, although it still does.
        ctx.facts.push(Fact::ProcessEnded(process, reference));
        self.end_span(ctx, at, reference, cut, failure);
    }

    /// The process of a plugin or a command ended: sets status, exit and end of its span.
    fn end_process(&mut self, ctx: &mut Context, at: Timestamp, reference: SpanRef, how: ExitStatus) {
        let open = ctx.traces.get_mut(reference.trace);
        let Some(open) = open.filter(|open| open.is_open(reference.span)) else {
            return;
        };
        // What a daemon may have run for another sandbox is no failure of this one.
        let is_certain = open.is_certain(reference.span);
        let span = &mut open.trace.spans[reference.span];
        let reported = span.detail.as_plugin().and_then(|plugin| plugin.error.as_ref());
        // A plugin that a signal killed has written no complete error; half a one must not hide the signal.
        let reported = reported.filter(|_| matches!(how, ExitStatus::Code(_)));
        // A plugin that exits with 0 succeeded, whatever it wrote (CNI spec 1.1.0, section 5).
        // An answer is no failure. The exit code stays, and a plugin that fails because of it has an error of its own.
        let failure = failure_of(span, how).filter(|_| is_certain && !is_answer(span, how));
        let failure = failure.map(|(class, message)| match reported {
            Some(error) => (error.class().to_owned(), error.msg.clone()),
            None => (class.to_owned(), message),
        });
        if let Some(process) = span.process_mut() {
            process.exit = Some(how);
            // What ended by itself waits for nothing; what was killed, or whose end was not seen, may have.
            if matches!(how, ExitStatus::Code(_)) {
                process.waiting = None;
            }
        }
        if let Some((class, message)) = failure.clone() {
            span.status = Status::Error { class, message };
        }
        // A lost exit record leaves the end of the span unknown, which the trace has to show.
        open.trace.incomplete |= how == ExitStatus::Unknown;
        self.end_span(ctx, at, reference, Cut::Outlived, failure);
    }

    /// Ends a span, what is open below it according to `below`, and reports the end of a chain's member to its
    /// operation.
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
        // Delegates and commands end with their caller's knowledge only; the operation counts members of its chain.
        let member = state.filter(|process| process.in_chain);
        if let Some(operation) = member.and_then(|process| process.operation) {
            let operation = SpanRef { trace, span: operation };
            self.on_member_end(ctx, operation, at, failure);
        }
    }
}

// === the process table ===

impl Plugins {
    /// Gives a pid to a new process: the kernel reuses pids (kernel/pid.c, `alloc_pid`, cyclic up to `pid_max`), so a
    /// process that is still in the table under that pid is gone although its exit was not seen. Returns `false` for a
    /// record that is older than the process that has the pid now, which is counted as an orphan.
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

    /// Inserts a process or changes its role, then evicts if the table is over its bound.
    pub(crate) fn add_process(&mut self, ctx: &mut Context, at: Timestamp, process: ProcessKey, role: Role) {
        self.processes.set(process, role);
        self.bound_processes(ctx, at);
    }

    /// Time passed: forgets processes that ended a while ago.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        self.processes.expire(now);
    }

    /// At most one process is over the bound after each insertion, so one eviction is enough.
    fn bound_processes(&mut self, ctx: &mut Context, at: Timestamp) {
        let traces = &ctx.traces;
        if let Some((_, role)) = self.processes.evict(|span| traces.is_open(span)) {
            let scope = match role {
                Role::Spanned(_) | Role::Forked(_) | Role::Runtime(Some(_)) => Scope::Sandbox,
                Role::Runtime(None) | Role::Detached | Role::Gone { .. } => Scope::Node,
            };
            // Processes are a trusted plugin's: one that starts too many is a defect and no flood to be expected.
            ctx.effects.counters.evicted_processes.count(scope, false);
            self.lose_process(ctx, at, role);
        }
    }

    /// The process was removed from the table, so its exit will find nothing: its span ends now with an unknown exit
    /// rather than never.
    fn lose_process(&mut self, ctx: &mut Context, at: Timestamp, role: Role) {
        let how = ExitStatus::Unknown;
        match role {
            Role::Spanned(span) => self.end_process(ctx, at, span, how),
            Role::Runtime(Some(span)) => ctx.facts.push(Fact::StepEnded {
                process: None,
                at,
                span,
                how,
            }),
            Role::Forked(_) | Role::Runtime(None) | Role::Detached | Role::Gone { .. } => {}
        }
    }
}
