//! Opens traces: for the creation of a sandbox, or for an operation of its own.
//!
//! Used by `correlator.rs` when the runtime begins an operation or, on Windows, reports a creation. Trace ids are made
//! of the boot id and of what identifies the operation, so that a replay makes the same ones; `TRACEPARENT` in the
//! plugin's environment takes precedence (`OpenTrace::new`).
//! Attempts are counted here, because a retry is known at its begin only: kubelet makes a new sandbox for each attempt of a
//! pod, other runtimes repeat the operation for the same container id.
//! Does not: begin operations (`plugins` does, in the trace chosen here), or bound the open traces.

use std::sync::Arc;

use sandglass_model::trace::{CreateDetail, Detail, Relation, SandboxDetail};
use sandglass_model::{CniCommand, PodIdentity, RootId, SandboxId, Timestamp, Trace, TraceId};

use crate::collections::recent::Evicted;
use crate::context::Context;
use crate::finding::Scope;
use crate::invocation::{Image, Invocation, has_known_steps, may_start_nothing, runtime_name};
use crate::keys::TraceKey;
use crate::open_trace::OpenTrace;
use crate::owner::namespace_key;
use crate::placement::Placement;
use crate::sandboxes::Sandboxes;
use crate::sandboxes::creation::Creation;
use crate::sandboxes::memory::{self, PodAttempt, RememberedSandbox};
use crate::sandboxes::packed_pod::PackedPod;

impl Sandboxes {
    /// The runtime begins an operation: returns the trace that it goes to, opened if there is none. An ADD for a
    /// sandbox that is not known to exist creates it; any other operation is a trace of its own, but for a CHECK by which a
    /// runtime creates a sandbox.
    pub(crate) fn on_operation_begin(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        image: &Image,
        call: &Invocation<'_>,
    ) -> Placement {
        // A VERSION or STATUS has no container (CNI spec 1.1.0, section 2).
        let of_creation = call.command == CniCommand::Add && !call.container.is_empty();
        // CRI-O checks what it has just attached before it goes on (`networkStart` of server/sandbox_network.go).
        if call.command == CniCommand::Check
            && let Some(trace) = self.creation_of(ctx, call.container)
            && let Some(creation) = self.creations.get(trace)
            && creation.runtime == Some(image.parent)
        {
            return Placement::Creation(trace);
        }
        if !of_creation {
            return Placement::Single(self.open_single(ctx, at, image, call));
        }
        // An ADD for a sandbox that runs is a further attachment, such as that of a hot-plug, and no creation.
        let exists = |sandboxes: &Sandboxes| {
            let remembered = sandboxes.memory.sandboxes.get(call.container);
            remembered.is_some_and(|sandbox| sandbox.created)
        };
        match self.creation_of(ctx, call.container) {
            Some(trace) => Placement::Creation(trace),
            None if exists(self) => Placement::Single(self.open_single(ctx, at, image, call)),
            None => {
                let runtime = runtime_name(&image.parent_comm);
                let trace = self.open_creation(ctx, at, runtime, call, false);
                // Of others the caller is no daemon: its time is not measured.
                if let Some(creation) = self.creations.get_mut(trace).filter(|_| has_known_steps(runtime)) {
                    creation.runtime = Some(image.parent);
                    self.join_request(ctx, trace, image.parent);
                }
                Placement::Creation(trace)
            }
        }
    }

    /// The open trace of a sandbox whose creation is not over. One that only waits for its network does not count: an
    /// ADD then is another attachment.
    pub(crate) fn creation_of(&self, ctx: &Context, sandbox: &str) -> Option<TraceKey> {
        let trace = ctx.traces.creation_of(sandbox)?;
        ctx.traces.get(trace).filter(|open| !open.is_created()).map(|_| trace)
    }

    /// The runtime begins to remove a sandbox: its creation is over, or its network cannot become ready any more.
    /// Returns what that means for the trace.
    pub(crate) fn on_removal(&mut self, ctx: &Context, sandbox: &str) -> Removal {
        let Some(open) = ctx.traces.creation_of(sandbox).and_then(|trace| ctx.traces.get(trace)) else {
            return Removal::Nothing;
        };
        if open.is_created() {
            return Removal::Close(open.key);
        }
        match self.creations.get_mut(open.key) {
            // Where the runtime itself reports the end, a DEL may clean up between two attempts.
            Some(creation) if !creation.reported => {
                creation.removed = true;
                Removal::Review(open.key)
            }
            Some(_) | None => Removal::Nothing,
        }
    }

    /// Opens the trace of a sandbox's creation, with the spans `sandbox` and `sandbox.create`. `reported` where the
    /// runtime itself reports the end of the creation (Windows).
    pub(crate) fn open_creation(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        runtime: &str,
        call: &Invocation<'_>,
        reported: bool,
    ) -> TraceKey {
        let seed = TraceId::of(&[
            ctx.config.boot_id.as_bytes(),
            b"sandbox",
            call.container.as_bytes(),
            &at.0.to_le_bytes(),
        ]);
        let mut open = new_trace(ctx, seed, call);
        open.expect_sandbox();
        // The begin is that of the first plugin until the namespace is observed (`on_netns`).
        let root = open.begin(None, at, Detail::Sandbox(Box::default()));
        open.begin(root, at, Detail::SandboxCreate(CreateDetail::default()));
        let (attempt, previous) = self.count_attempt(ctx, call.container, &open.trace);
        open.trace.spans[0].detail = Detail::Sandbox(Box::new(SandboxDetail {
            attempt,
            runtime: runtime.to_owned(),
            ..SandboxDetail::default()
        }));
        open.trace.spans[0]
            .links
            .extend(previous.map(|root| root.link(Relation::PreviousAttempt)));
        // The trace closes by what is seen of the runtime; where its steps are not known, by settle time.
        let creation = Creation {
            awaits_runtime: has_known_steps(runtime),
            may_start_nothing: may_start_nothing(runtime),
            reported,
            ..Creation::default()
        };
        // Beside the trace lies what decides when it is complete.
        self.creations.insert(open.key, creation);
        insert(ctx, open)
    }

    /// The number of this attempt, and the root of the attempt before it. Another sandbox for the same pod is the pod's
    /// next attempt; the same sandbox is one only if its creation failed.
    fn count_attempt(&mut self, ctx: &mut Context, container: &str, trace: &Trace) -> (u32, Option<RootId>) {
        let root = trace.root_id();
        let pod = memory::pod_key(&trace.identity);
        let of_pod = pod.as_deref().and_then(|pod| self.memory.pods.get(pod));
        // A sandbox that was created before and is gone begins again at 1.
        let of_sandbox = self.memory.sandboxes.get(container).filter(|sandbox| sandbox.failed);
        let (attempt, previous) = match (of_pod, of_sandbox) {
            (Some(before), _) if *before.sandbox != *container => (before.number.saturating_add(1), Some(before.root)),
            (_, Some(before)) => (before.attempt.saturating_add(1), before.root),
            (Some(_) | None, None) => (1, None),
        };
        let remembered = RememberedSandbox {
            pod: PackedPod::of(&trace.identity),
            root: Some(root),
            attempt,
            ..RememberedSandbox::default()
        };
        let container = self.remember(ctx, container, remembered);
        // Pods without labels in CNI_ARGS have no key; their attempts are counted by sandbox alone.
        if let Some(pod) = pod {
            let newest = PodAttempt {
                sandbox: container,
                number: attempt,
                root,
                namespace: namespace_key(&trace.identity.namespace),
            };
            let (_, evicted) = self.memory.pods.insert(&pod, newest);
            count_evicted(ctx, evicted);
        }
        (attempt, previous)
    }

    /// Opens the trace of an operation of its own, whose root is the operation.
    fn open_single(&mut self, ctx: &mut Context, at: Timestamp, image: &Image, call: &Invocation<'_>) -> TraceKey {
        // Pid and start time of the plugin distinguish operations that begin at the same time.
        let seed = TraceId::of(&[
            ctx.config.boot_id.as_bytes(),
            call.command.as_str().as_bytes(),
            call.container.as_bytes(),
            call.ifname.as_bytes(),
            &at.0.to_le_bytes(),
            &image.process.pid.to_le_bytes(),
            &image.process.start_ticks.to_le_bytes(),
        ]);
        let mut open = new_trace(ctx, seed, call);
        open.begin(None, at, Detail::Operation(Box::new(call.to_operation(1))));
        if !call.container.is_empty() {
            let attempt = self.link_single(ctx, call, &mut open.trace);
            if let Some(detail) = open.operation_mut(0) {
                detail.attempt = attempt;
            }
        }
        insert(ctx, open)
    }

    /// Links an operation to its sandbox and to its previous attempt. Returns its attempt number, from 1.
    fn link_single(&mut self, ctx: &mut Context, call: &Invocation<'_>, trace: &mut Trace) -> u32 {
        let root = trace.root_id();
        if self.memory.sandboxes.get(call.container).is_none() {
            self.remember(ctx, call.container, RememberedSandbox::default());
        }
        let Some(sandbox) = self.memory.sandboxes.get_mut(call.container) else {
            return 1;
        };
        sandbox.pod.complete(&mut trace.identity);
        let links = &mut trace.spans[0].links;
        links.extend(sandbox.root.map(|root| root.link(Relation::Sandbox)));
        let (attempt, previous) = match call.command {
            CniCommand::Add | CniCommand::Del => sandbox.count(call.command, call.ifname, root),
            // A CHECK that comes again is the next check, not another attempt at the last one.
            CniCommand::Check | CniCommand::Gc | CniCommand::Status | CniCommand::Version => (1, None),
        };
        links.extend(previous.map(|root| root.link(Relation::PreviousAttempt)));
        attempt
    }

    /// Remembers a sandbox; an eviction for it is counted. Returns its id, shared with the entry.
    pub(crate) fn remember(&mut self, ctx: &mut Context, container: &str, sandbox: RememberedSandbox) -> Arc<str> {
        let (id, evicted) = self.memory.sandboxes.insert(container, sandbox);
        count_evicted(ctx, evicted);
        id
    }
}

fn count_evicted(ctx: &mut Context, evicted: Option<Evicted>) {
    if let Some(evicted) = evicted {
        ctx.effects
            .counters
            .evicted_remembered
            .count(Scope::Sandbox, evicted.is_noisy);
    }
}

/// What the begin of a removal means for the trace of the sandbox's creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    /// There is no such trace, or it stays as it is.
    Nothing,
    /// The creation in it may be complete.
    Review(TraceKey),
    /// The network cannot become ready any more: the trace is complete.
    Close(TraceKey),
}

/// An open trace without spans, with the labels that `CNI_ARGS` carries. Incomplete from the start when records of
/// processes were lost shortly before.
fn new_trace(ctx: &mut Context, seed: TraceId, call: &Invocation<'_>) -> OpenTrace {
    let key = ctx.traces.reserve();
    let mut open = OpenTrace::new(key, seed, call.caller, ctx.anchor, ctx.config.max_spans);
    open.trace.sandbox = (!call.container.is_empty()).then(|| SandboxId(call.container.to_owned()));
    open.trace.identity = PodIdentity::from_cni_args(call.args);
    // A record that was lost just before may have been one of this operation's.
    open.trace.incomplete = ctx.losses.processes_at(ctx.now);
    open
}

/// Enters the trace and reports it as changed.
fn insert(ctx: &mut Context, mut open: OpenTrace) -> TraceKey {
    let key = open.key;
    open.touch(&mut ctx.effects);
    ctx.traces.insert(open);
    key
}
