//! Closes traces: decides whether one is complete, writes its outcome into it, and emits it.
//!
//! Used by `correlator.rs`, which reviews a trace after everything that can complete it. A creation is closed in two
//! steps: first the creation itself, when the runtime has started the sandbox; then the trace, when the network has
//! proven usable or the wait for that is over.
//! Invariant: a trace leaves the table of open traces and is emitted in the same call, exactly once.
//! Does not: end operations or plugins; the room of plugins has done that before (`Plugins::on_closing`).
//!
//! A sandbox's trace passes these states; each review looks which one holds:
//! 1. In creation: operations and runtime steps begin and end. `creation.rs` says when that is over.
//! 2. Created: the span `sandbox.create` has ended, `Output::Created` is emitted, and first exchanges are shown.
//!    `readiness.rs` says when that is over. A creation that failed, or whose traffic cannot be attributed, skips this
//!    state.
//! 3. Complete: the trace leaves the table. Without its pod's labels it is held back.
//! 4. Emitted: `Output::Closed`.

use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::trace::Status;

use crate::context::Context;
use crate::facts::Fact;
use crate::keys::TraceKey;
use crate::open_trace::ending::Cut;
use crate::open_trace::{CREATE, OpenTrace};
use crate::output::Output;
use crate::sandboxes::Sandboxes;
use crate::sandboxes::creation::{Creation, Outlook, outlook};
use crate::sandboxes::labels;
use crate::stand_in;
use crate::timers::Timer;

/// The result of closing a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseOutcome {
    /// It was emitted or is held back for labels; or it had been closed before.
    Closed,
    /// Only the creation in it is over: it stays open until the network is ready. The caller reviews it again, since
    /// the network may be ready already.
    AwaitsNetwork,
}

impl Sandboxes {
    /// Returns how to close the trace if it is complete. Otherwise returns `None` and sets the timer for the next look,
    /// or clears it where an event must come first.
    pub(crate) fn review(&mut self, ctx: &mut Context, trace: TraceKey) -> Option<Cut> {
        let open = ctx.traces.get(trace)?;
        let creation = self.creations.get(trace);
        if let Some(creation) = creation.filter(|_| open.is_created()) {
            let until = creation.readiness.due(&ctx.config.traffic);
            if until <= ctx.now {
                return Some(Cut::Outlived);
            }
            ctx.effects.timers.set(Timer::Ready(trace), until);
            return None;
        }
        match outlook(open, creation, ctx.now, &ctx.config) {
            Outlook::Open => ctx.effects.timers.clear(Timer::Trace(trace)),
            Outlook::OpenUntil(until) => {
                let ask_at = creation.and_then(|creation| creation.ask_at(open, &ctx.config));
                if let Some(at) = ask_at.filter(|at| *at > ctx.now) {
                    ctx.effects.timers.set(Timer::Trace(trace), at.min(until));
                    return None;
                }
                ctx.effects.timers.set(Timer::Trace(trace), until);
                if ask_at.is_some()
                    && let Some(creation) = self.creations.get_mut(trace)
                {
                    creation.asked = true;
                    let sandbox = open.trace.sandbox.clone();
                    ctx.effects.outputs.extend(sandbox.map(Output::LabelsNeeded));
                }
            }
            Outlook::Complete => {
                let deadline_ns = ctx.config.deadline_ns;
                let overdue = creation.is_some_and(|creation| creation.is_overdue(ctx.now, deadline_ns));
                return Some(if overdue {
                    Cut::Deadline { deadline_ns }
                } else {
                    Cut::Outlived
                });
            }
        }
        None
    }

    /// Ends what is open in a trace and emits it. The trace of a creation that succeeded stays open for its network,
    /// and is closed when this is called again.
    pub(crate) fn close(&mut self, ctx: &mut Context, trace: TraceKey, cut: Cut) -> CloseOutcome {
        let now = ctx.now;
        let Some(open) = ctx.traces.get_mut(trace) else {
            return CloseOutcome::Closed;
        };
        let was_created = open.is_created();
        if !was_created {
            ctx.effects.timers.clear(Timer::Trace(trace));
            if let Some(creation) = self.creations.get_mut(trace) {
                creation.infer_cause(open, &ctx.problems);
                let failure = creation.failure(open, matches!(cut, Cut::Deadline { .. }));
                conclude(open, creation, failure.as_deref());
                // An ADD from now on is a further attachment if the creation succeeded, and the next attempt if it
                // failed.
                if let Some(sandbox) = self.memory.sandboxes.get_mut(open.sandbox()) {
                    sandbox.created = failure.is_none();
                    sandbox.failed = failure.is_some();
                    sandbox.pod.merge(&open.trace.identity);
                }
                if cut == Cut::Outlived && self.watched && creation.awaits_network(open) {
                    open.cut(CREATE, now, Cut::Outlived, &mut ctx.effects);
                    creation.readiness.created = open.trace.spans[CREATE].end.or(Some(now));
                    let unlabelled = creation.needs_labels(open);
                    labels::give_out_created(Arc::new(open.trace_so_far()), unlabelled, &mut ctx.effects);
                    open.touch(&mut ctx.effects);
                    return CloseOutcome::AwaitsNetwork;
                }
            }
        }
        let Some(mut open) = ctx.traces.remove(trace) else {
            return CloseOutcome::Closed;
        };
        let mut creation = self.creations.remove(trace);
        let released = match &mut creation {
            Some(creation) => settle_network(ctx, &mut open, creation),
            None => Vec::new(),
        };
        // Children lie behind their parents, so that going backwards ends each before what encloses it.
        for span in (0..open.trace.spans.len()).rev() {
            open.cut(span, now, cut, &mut ctx.effects);
        }
        let give_out_created = creation.is_some() && !was_created;
        let unlabelled = creation.is_some_and(|creation| creation.needs_labels(&open));
        let mut closed = open.into_trace();
        stand_in::remove_from(&mut closed);
        let closed = Arc::new(closed);
        if give_out_created {
            labels::give_out_created(Arc::clone(&closed), unlabelled, &mut ctx.effects);
        }
        // An evicted trace, or one at the end of the input, goes out at once: its memory is needed, or no answer can
        // come.
        if unlabelled && cut == Cut::Outlived {
            self.held_back.push(closed, now, &ctx.config, &mut ctx.effects);
        } else {
            ctx.effects.outputs.push(Output::Closed(closed));
        }
        for ended in released {
            ctx.facts.push(Fact::ExchangeReleased(ended));
        }
        CloseOutcome::Closed
    }

    /// The wait for labels of the oldest trace that is held back may be over.
    pub(crate) fn on_labels_due(&mut self, ctx: &mut Context, now: Timestamp) {
        self.held_back.release(now, &mut ctx.effects);
    }
}

/// Writes the outcome of a creation into the spans `sandbox` and `sandbox.create`.
fn conclude(open: &mut OpenTrace, creation: &Creation, failure: Option<&str>) {
    for span in open.trace.spans.iter_mut().take(CREATE + 1) {
        if let Some(message) = failure {
            span.status = Status::Error {
                class: "sandbox_failed".to_owned(),
                message: message.to_owned(),
            };
        }
        if let Some(create) = span.detail.as_create_mut() {
            create.runtime_seen = creation.started;
            create.cause = creation.cause.clone().filter(|_| failure.is_some());
        }
    }
}

/// Ends the exchanges of a sandbox from the time before its network was ready. Returns those that turned out to have
/// begun later.
fn settle_network(
    ctx: &mut Context,
    open: &mut OpenTrace,
    creation: &mut Creation,
) -> Vec<crate::exchange::EndedExchange> {
    ctx.effects.timers.clear(Timer::Ready(open.key));
    let readiness = std::mem::take(&mut creation.readiness);
    readiness.settle(open, ctx)
}
