//! Adds what others report of a sandbox to its trace: runtime steps, the network namespace, labels from the CRI, ended
//! operations, and losses.
//!
//! Used by `correlator.rs`, which reviews the trace afterwards where the evidence may complete it. Everything here adds to
//! traces that are open or to what is remembered; nothing opens a trace.
//! Evidence may come late or twice, and for sandboxes that are older than the agent or were evicted: then it changes
//! nothing, and is an orphan only where somebody should have known the sandbox.
//! Does not: decide when a creation is over (`creation.rs`).

use sandglass_model::event::{ExitStatus, Netns, SandboxDescription};
use sandglass_model::time::SECOND;
use sandglass_model::trace::{Detail, RuntimeStep, RuntimeStepDetail, Status};
use sandglass_model::{CniCommand, Timestamp, registry};

use crate::context::Context;
use crate::invocation::{Image, failure_of};
use crate::keys::{SpanRef, TraceKey};
use crate::open_trace::CREATE;
use crate::open_trace::ending::Cut;
use crate::output::Output;
use crate::owner::Owner;
use crate::sandboxes::Sandboxes;
use crate::sandboxes::memory::RememberedSandbox;
use crate::sandboxes::packed_pod::PackedPod;

/// Most time between the begin of a namespace and the first plugin. An older namespace was not made for this creation:
/// cnitool and `ip netns` use one for many operations.
const NETNS_REACH_NS: u64 = 60 * SECOND;

impl Sandboxes {
    /// The runtime executes a step for a sandbox in creation. Returns its span; `None` when the trace is gone or full.
    pub(crate) fn on_step_begin(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        image: Image,
        step: RuntimeStep,
        trace: TraceKey,
    ) -> Option<SpanRef> {
        let running = image.running;
        let open = ctx.traces.get_mut(trace)?;
        let detail = Detail::RuntimeStep(Box::new(RuntimeStepDetail {
            step,
            process: image.into_detail(&mut ctx.names),
        }));
        let Some(span) = open.begin(Some(CREATE), at, detail) else {
            open.trace.incomplete = true;
            ctx.effects.counters.evicted_spans += 1;
            return None;
        };
        // A process that ran when the agent started began earlier than its span.
        open.trace.incomplete |= running;
        if let Some(creation) = self.creations.get_mut(trace) {
            // While a step runs the creation is not over; after its end the next one is waited for.
            creation.running_steps.push((span, at));
            creation.awaits_runtime = true;
        }
        open.touch(&mut ctx.effects);
        Some(open.reference(span))
    }

    /// The process of a runtime step ended. A successful `start` completes the creation; a failed step fails it.
    pub(crate) fn on_step_end(&mut self, ctx: &mut Context, at: Timestamp, reference: SpanRef, how: ExitStatus) {
        let SpanRef { trace, span } = reference;
        let Some(open) = ctx.traces.get_mut(trace).filter(|open| open.is_open(span)) else {
            return;
        };
        let Some(step) = open.trace.spans[span].detail.as_step_mut() else {
            return;
        };
        step.process.exit = Some(how);
        // The pause process runs once `start` has succeeded.
        let starts = step.step == RuntimeStep::Start && how.is_success();
        // Exit code or signal is all that is known of a failed step: the runtime's log is not read.
        let failure = failure_of(&open.trace.spans[span], how);
        open.trace.incomplete |= how == ExitStatus::Unknown;
        if let Some((class, message)) = &failure {
            open.trace.spans[span].status = Status::Error {
                class: (*class).to_owned(),
                message: message.clone(),
            };
        }
        open.end(span, at, Cut::Outlived, &mut ctx.effects);
        if let Some(creation) = self.creations.get_mut(trace) {
            creation.running_steps.retain(|(running, _)| *running != span);
            creation.started |= starts;
            // The first failure explains the others.
            creation.failed_step = creation.failed_step.take().or(failure.map(|(_, message)| message));
        }
    }

    /// An operation closed: a successful one adds or removes an interface. Returns whether the sandbox lost its last
    /// interface by it, after which its namespace and addresses may belong to another.
    pub(crate) fn on_operation_closed(&mut self, ctx: &Context, operation: SpanRef) -> bool {
        let Some(open) = ctx.traces.get(operation.trace) else {
            return false;
        };
        let Some(detail) = open
            .operation(operation.span)
            .filter(|_| !open.has_failed(operation.span))
        else {
            return false;
        };
        let Some(sandbox) = self.memory.sandboxes.get_mut(open.sandbox()) else {
            return false;
        };
        match detail.command {
            // What is attached decides whether a later ADD is another attachment, and when the last interface is gone.
            CniCommand::Add => sandbox.attach(&detail.ifname),
            CniCommand::Del => {
                sandbox.detach(&detail.ifname);
                return sandbox.attached.is_empty();
            }
            CniCommand::Check | CniCommand::Gc | CniCommand::Status | CniCommand::Version => {}
        }
        false
    }

    /// An operation that failed is attempted again: its failure does not decide the creation.
    pub(crate) fn on_operation_retried(&mut self, operation: SpanRef) {
        if let Some(creation) = self.creations.get_mut(operation.trace) {
            creation.retried.push(operation.span);
        }
    }

    /// The network namespace of a sandbox was observed. The sandbox's trace begins with it, since a runtime makes the
    /// namespace before it runs the first plugin: containerd binds it into /run/netns, and the time is that of the
    /// file's appearance or of the namespace's inode.
    pub(crate) fn on_netns(&mut self, ctx: &mut Context, netns: &Netns) {
        let Some(trace) = self.creation_of(ctx, &netns.sandbox.0) else {
            // Operations on a sandbox that exists have a namespace too, and its begin is of no use.
            if self.memory.sandboxes.get(&netns.sandbox.0).is_none() {
                ctx.effects.counters.orphan += 1;
            }
            return;
        };
        let (Some(open), Some(creation)) = (ctx.traces.get_mut(trace), self.creations.get_mut(trace)) else {
            return;
        };
        // Traffic is attributed by inode; without it no exchange can be this sandbox's.
        creation.network_known |= netns.inode != 0;
        let Some(created) = netns.created else {
            return;
        };
        // The namespace explains the begin only if it is older than the first plugin. With the request seen the trace begins before.
        let begin = open.trace.start();
        let first = match creation.request.at {
            Some(_) => open
                .runtime_operations()
                .map(|(span, _)| open.trace.spans[span].start)
                .min(),
            None => Some(begin),
        };
        let first = first.unwrap_or(begin);
        let by_request = creation.request.at.is_some();
        if let Some(create) = open.trace.spans[CREATE].detail.as_create_mut()
            && !create.netns_seen
            && created < first
            && first.since(created) <= NETNS_REACH_NS
        {
            create.netns_seen = true;
            creation.netns_begin = Some(created);
            if !by_request {
                open.begin_earlier(created);
            }
            // The kernel makes the namespace between the two instants; the mark shows when it was there.
            if let Some(there) = netns.there {
                open.mark(CREATE, there, registry::EVENT_NETNS, &[]);
            }
            open.touch(&mut ctx.effects);
        }
    }

    /// The runtime reported a sandbox and its pod's labels. `known` when an open operation on it carries them already.
    /// A sandbox that is older than the agent is remembered and reported, so that its traffic has an owner.
    pub(crate) fn on_described(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        described: &SandboxDescription,
        mut known: bool,
    ) {
        // Looked for in three places: open traces, traces that are held back, and what is remembered of closed ones.
        let id = &described.sandbox.0;
        if let Some(trace) = ctx.traces.creation_of(id)
            && let (Some(open), Some(creation)) = (ctx.traces.get_mut(trace), self.creations.get_mut(trace))
        {
            known = true;
            open.trace.identity.merge(&described.identity);
            creation.described = true;
            creation.ready |= creation.may_start_nothing && described.ready;
            open.touch(&mut ctx.effects);
        }
        // A trace that is complete may wait for just these labels.
        self.held_back.on_described(described, &mut ctx.effects);
        if let Some(sandbox) = self.memory.sandboxes.get_mut(id) {
            known = true;
            sandbox.pod.merge(&described.identity);
        }
        // A response about a sandbox that was evicted meanwhile is of no use.
        if known || !described.preexisting || id.is_empty() {
            return;
        }
        let sandbox = RememberedSandbox {
            pod: PackedPod::of(&described.identity),
            created: true,
            ..RememberedSandbox::default()
        };
        self.remember(ctx, id, sandbox);
        // The runtime reports wall-clock time; the anchor maps it to the boot clock.
        let created = match described.created_unix_ns {
            0 => at,
            unix_ns => ctx.anchor.boot(unix_ns),
        };
        ctx.effects.outputs.push(Output::Preexisting {
            sandbox: described.sandbox.clone(),
            identity: described.identity.clone(),
            created,
        });
    }

    /// Records of traffic of this owner, or of any, were left out: its sandbox's trace is incomplete if its network is not ready.
    pub(crate) fn on_limited(
        &self,
        ctx: &mut Context,
        at: Timestamp,
        owner: Option<&Owner>,
        attributes: &[(&str, String)],
    ) {
        let traces: Vec<TraceKey> = match owner.map(|owner| owner.sandbox.as_deref()) {
            // The node's own traffic is in no sandbox's trace.
            Some(None) => Vec::new(),
            Some(Some(sandbox)) => ctx.traces.creation_of(sandbox).into_iter().collect(),
            None => ctx.traces.keys().collect(),
        };
        for trace in traces {
            if let Some(open) = ctx.traces.get_mut(trace)
                && open.is_creation()
                // Before the network is ready its exchanges are in the trace, so that a missing record may be missed there.
                && (open.is_created() || self.watched)
            {
                open.trace.incomplete = true;
                open.mark(0, at, registry::EVENT_LIMITED, attributes);
                open.touch(&mut ctx.effects);
            }
        }
    }

    /// Records were lost at this time. Marks every open trace that may miss them, with a span event: a creation misses
    /// process records, once created only traffic; operations of their own miss process records only.
    pub(crate) fn on_loss(&self, ctx: &mut Context, at: Timestamp, of_traffic: bool, attributes: &[(&str, String)]) {
        // Losses are rare, so that a walk over all open traces costs nothing that matters.
        let traces: Vec<TraceKey> = ctx.traces.keys().collect();
        for trace in traces {
            let Some(open) = ctx.traces.get_mut(trace) else {
                continue;
            };
            let concerned = match (open.is_creation(), open.is_created()) {
                (true, true) => of_traffic,
                (true, false) => !of_traffic || self.watched,
                (false, _) => !of_traffic,
            };
            if concerned {
                open.trace.incomplete = true;
                open.mark(0, at, registry::EVENT_LOST, attributes);
                open.touch(&mut ctx.effects);
            }
        }
    }
}
