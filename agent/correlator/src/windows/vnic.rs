//! Shows the wait for the sandbox's interface: on Windows the plugin returns before the interface is there.
//!
//! Used by `windows.rs` and `closing.rs`. HNS attaches the endpoint when the container starts, after ADD has returned
//! (containerd/containerd#4851). An interface that appears in the sandbox's compartment ends the wait
//! (Microsoft-Windows-TCPIP 1061); where none is seen, the end of the endpoint's attachment does. A CHECK that runs
//! meanwhile waits for the same and shows it too.
//!
//! The wait is a span of its own, since it is neither the plugin's time nor the runtime's: ADD was fast, and the
//! sandbox still has no network. Antrea and Calico configure the interface only when it appears (antrea-io/antrea#1581,
//! projectcalico/calico#4334).
//! One wait for each sandbox, and one for each CHECK that runs then.

use sandglass_model::trace::{Detail, VnicWaitDetail};
use sandglass_model::windows::{InterfaceStep, ObjectKey};
use sandglass_model::{CniCommand, Timestamp};

use crate::context::Context;
use crate::keys::TraceKey;
use crate::open_trace::CREATE;
use crate::open_trace::OpenTrace;
use crate::open_trace::ending::Cut;
use crate::windows::calls::is_member;
use crate::windows::objects::Objects;
use crate::windows::sandbox_table::RuntimeSandbox;
use crate::windows::stage::Stage;

impl Objects {
    /// An interface was added to a compartment. Without an owner the compartment is that of the only sandbox that waits
    /// for one.
    pub(super) fn interface_seen(&mut self, ctx: &mut Context, at: Timestamp, step: InterfaceStep) {
        // The node's own.
        if !step.added || step.compartment == 1 {
            return;
        }
        let key = ObjectKey::Compartment(step.compartment);
        let number = self.keys.owner(&key).or_else(|| {
            let waits = |sandbox: &RuntimeSandbox| sandbox.called && !sandbox.vnic && sandbox.compartment.is_none();
            let requested = self
                .sandboxes
                .in_stage(Stage::Creating)
                .filter(|(_, sandbox)| waits(sandbox));
            let created = self
                .sandboxes
                .in_stage(Stage::Created)
                .filter(|(_, sandbox)| !sandbox.vnic && sandbox.trace.is_some_and(|key| ctx.traces.get(key).is_some()));
            // Exactly one sandbox may wait: of two the owner would be a guess.
            let mut waiting = requested.chain(created).map(|(number, _)| number);
            waiting.next().filter(|_| waiting.next().is_none())
        });
        let Some(number) = number else {
            return;
        };
        // The compartment is known for good, also where the wait is not shown.
        self.learn(ctx, at, number, key);
        self.vnic_seen(ctx, at, number, "interface added");
    }

    /// The sandbox's interface appeared: shows the time since the end of ADD as a span, once.
    pub(super) fn vnic_seen(&mut self, ctx: &mut Context, at: Timestamp, number: u64, evidence: &str) {
        let Some(sandbox) = self.sandboxes.get_mut(number) else {
            return;
        };
        // Once is enough: interfaces of IPv4 and IPv6 are added one after the other.
        if std::mem::replace(&mut sandbox.vnic, true) {
            return;
        }
        let detail = || {
            Detail::VnicWait(Box::new(VnicWaitDetail {
                endpoint: sandbox.endpoint.clone(),
                evidence: evidence.to_owned(),
            }))
        };
        let detail = detail();
        let Some(sandbox) = self.sandboxes.get(number) else {
            return;
        };
        let trace = sandbox.trace;
        // Plugins whose CHECK polls for the interface run as operations of their own.
        let checks = self.operations_of(ctx, &sandbox.container);
        // CHECKs that run wait for the interface as well, from their own begin.
        let mut waits: Vec<(TraceKey, usize, Timestamp)> = checks
            .filter(|(open, _)| Some(open.key) != trace)
            .filter_map(|(open, _)| {
                let mut spans = 0..open.trace.spans.len();
                let span = spans.find(|&span| is_member(open, span) && open.is_open(span))?;
                Some((open.key, span, open.trace.spans[span].start))
            })
            .collect();
        if let Some(open) = sandbox.trace.and_then(|key| ctx.traces.get(key))
            && let Some(added) = added_at(open).filter(|added| *added < at)
        {
            let holds = |span: usize| open.trace.spans[span].end.is_none_or(|end| at <= end);
            // The wait may outlast the creation; then it lies below the root.
            if let Some(span) = [CREATE, 0].into_iter().find(|&span| holds(span)) {
                waits.push((open.key, span, added));
            }
        }
        for (key, parent, from) in waits {
            let Some(open) = ctx.traces.get_mut(key) else {
                continue;
            };
            match open.begin(Some(parent), from, detail.clone()) {
                Some(span) => open.end(span, at, Cut::Outlived, &mut ctx.effects),
                // The trace is full. It is not marked incomplete: the wait is inferred, and no record is missing.
                None => ctx.effects.counters.evicted_spans += 1,
            }
        }
    }

    /// The trace is about to close: without an interface event the attachment of the endpoint is the evidence.
    pub(super) fn settle_vnic(&mut self, ctx: &mut Context, key: TraceKey) {
        let container = ctx.traces.get(key).map_or("", |open| open.sandbox());
        let Some(number) = self.sandboxes.number_of(container) else {
            return;
        };
        let made = |sandbox: &&RuntimeSandbox| sandbox.trace == Some(key) && !sandbox.vnic;
        let Some(sandbox) = self.sandboxes.get(number).filter(made) else {
            return;
        };
        let added = ctx.traces.get(key).and_then(added_at);
        if let (Some(attached), Some(added)) = (sandbox.attached, added)
            && added < attached
        {
            self.vnic_seen(ctx, attached, number, "endpoint attached");
        }
    }
}

/// End of the last ADD of the trace that succeeded; `None` while one runs, since further attachments are to come, and
/// for a trace without one.
fn added_at(open: &OpenTrace) -> Option<Timestamp> {
    let adds = || {
        let operations = (0..open.trace.spans.len()).filter_map(|span| Some((span, open.operation(span)?)));
        operations
            .filter(|(_, detail)| detail.command == CniCommand::Add)
            .map(|(span, _)| span)
    };
    if adds().any(|span| open.is_open(span) && !open.is_idle(span)) {
        return None;
    }
    let last = adds().rfind(|&span| !open.has_failed(span))?;
    Some(open.states[last].latest)
}
