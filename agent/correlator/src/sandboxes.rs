//! Traces of sandboxes: when one begins, what the runtime is seen to do for it, when it is complete.
//!
//! A sandbox's creation is one trace; every other operation is a trace of its own, linked to it. Here stands the only
//! code that opens and closes traces. Does not: look into operations; see `plugins/operations.rs`.

pub(crate) mod evidence;
pub(crate) mod labels;
pub(crate) mod memory;
pub(crate) mod readiness;

use std::sync::Arc;

use sandglass_model::trace::{CreateDetail, Detail, Relation, RuntimeStep, SandboxDetail, Status, Trace};
use sandglass_model::{CniCommand, PodIdentity, RootId, SandboxId, Timestamp, TraceId, registry};

use crate::correlator::{Config, Correlator, Output};
use crate::open::{Cut, OpenTrace, TraceKey};
use crate::plugins::invocation::{Image, Invocation, has_known_steps, runtime_name};
use crate::plugins::operations::{Caller, Operation, OperationRef, forget_attached, operation_detail};
use crate::sandboxes::memory::Attempt;
use crate::sandboxes::readiness::Readiness;
use crate::timers::Timer;
use crate::windows;

/// What is kept of a sandbox's creation while its trace is open. The root is span 0, `sandbox.create` span 1.
#[derive(Debug, Default)]
pub(crate) struct Creation {
    /// Steps of the runtime that run: span and begin.
    pub(crate) running_steps: Vec<(usize, Timestamp)>,
    /// Steps of the runtime were seen, or its steps are known.
    pub(crate) awaits_runtime: bool,
    /// The pause process runs.
    pub(crate) started: bool,
    /// The runtime tells by itself when it is over (Windows).
    pub(crate) told: bool,
    /// The sandbox is being removed.
    pub(crate) removed: bool,
    /// Why a step of the runtime failed.
    pub(crate) failed_step: Option<String>,
    /// The runtime has told whose it is.
    pub(crate) described: bool,
    /// What is known of its network once it was created.
    pub(crate) readiness: Readiness,
}

/// Index of the `sandbox.create` span.
pub(crate) const CREATE: usize = 1;
/// What is to become of an open trace.
enum Outlook {
    Open,
    OpenUntil(Timestamp),
    Complete,
}

impl OpenTrace {
    fn outlook(&self, now: Timestamp, config: &Config) -> Outlook {
        let mut asked = self
            .operations
            .iter()
            .filter(|operation| matches!(operation.caller, Caller::Runtime(_)));
        if asked.any(|operation| !operation.closed) {
            return Outlook::Open;
        }
        let Some(creation) = &self.creation else {
            return Outlook::Complete;
        };
        if creation.started || creation.removed || creation.failed_step.is_some() {
            return Outlook::Complete;
        }
        let last = self.states[CREATE].latest;
        let until = if creation.told && self.failed_operation().is_some() {
            last.plus(config.runtime_wait_ns)
        } else if creation.told {
            self.trace.start().plus(config.deadline_ns)
        } else if self.failed_operation().is_some() || !creation.awaits_runtime {
            last.plus(config.settle_ns)
        } else if let Some((_, begun)) = creation.running_steps.first() {
            begun.plus(config.deadline_ns)
        } else {
            last.plus(config.runtime_wait_ns)
        };
        if until <= now {
            Outlook::Complete
        } else {
            Outlook::OpenUntil(until)
        }
    }

    /// Its creation is over; only its network is waited for.
    pub(crate) fn is_created(&self) -> bool {
        let creation = self.creation.as_ref();
        creation.is_some_and(|creation| creation.readiness.created.is_some())
    }

    /// Its creation went well, and what its network does can be seen.
    fn awaits_network(&self) -> bool {
        self.creation.as_ref().is_some_and(|creation| {
            creation.readiness.watched
                && creation.readiness.known
                && !creation.removed
                && !self.trace.spans[0].status.is_error()
        })
    }

    /// The runtime removes what it has not started, although nothing that it ran failed: a step that runs no program did,
    /// such as looking for a plugin that is not there. Where only a shim was seen, the runtime may start without `runc`.
    fn was_given_up(&self) -> bool {
        let seen = |wanted| {
            let mut details = self.trace.spans.iter().map(|span| &span.detail);
            details.any(|detail| matches!(detail, Detail::RuntimeStep(step) if step.step == wanted))
        };
        let removed = self
            .creation
            .as_ref()
            .is_some_and(|creation| creation.removed && creation.awaits_runtime && !creation.started && !creation.told);
        removed && !self.trace.incomplete && (seen(RuntimeStep::Create) || !seen(RuntimeStep::Shim))
    }

    /// The operation because of which the sandbox failed.
    fn failed_operation(&self) -> Option<usize> {
        self.operations.iter().position(|operation| {
            operation.failed && !operation.retried && matches!(operation.caller, Caller::Runtime(_))
        })
    }

    /// What a failed operation says for its sandbox.
    fn failure_message(&self, operation: usize) -> String {
        let span = &self.trace.spans[self.operations[operation].span];
        let why = match &span.status {
            Status::Error { message, .. } => message.as_str(),
            Status::Unset => "",
        };
        let ifname = &self.operations[operation].ifname;
        format!("{} {ifname}: {why}", registry::name(span))
    }

    /// Lost records may be missing in it: of processes, or of traffic.
    pub(crate) fn loses(&self, of_traffic: bool) -> bool {
        match &self.creation {
            Some(creation) if creation.readiness.created.is_some() => of_traffic,
            Some(creation) => !of_traffic || creation.readiness.watched,
            None => !of_traffic,
        }
    }

    /// Moves the begin of root and `sandbox.create`, never forward.
    pub(crate) fn begin_earlier(&mut self, at: Timestamp) {
        for span in self.trace.spans.iter_mut().take(CREATE + 1) {
            span.start = span.start.min(at);
        }
    }
}

// === opening ===

impl Correlator {
    /// Opens an operation that the runtime asked for, and its trace if it has none.
    pub(crate) fn open_operation(
        &mut self,
        at: Timestamp,
        image: &Image,
        call: &Invocation<'_>,
    ) -> Option<OperationRef> {
        self.supersede(call);
        let of_creation = call.command == CniCommand::Add && !call.container.is_empty();
        let opened = self.creations.get(call.container).copied();
        if call.command == CniCommand::Del {
            if let Some(key) = opened {
                if !self.is_told(key) {
                    self.remove_sandbox(key);
                }
            } else if let Some(key) = self.waiting.get(call.container).copied() {
                self.close(key, Cut::Outlived);
            }
        }
        let reference = match opened.filter(|_| of_creation) {
            Some(key) => self.add_operation(key, at, image, call)?,
            None if of_creation && !self.is_created(call.container) => {
                let key = self.open_creation(at, runtime_name(&image.parent_comm), call);
                self.add_operation(key, at, image, call)?
            }
            None => self.open_single(at, image, call),
        };
        match self.attached.get_mut(call.container) {
            Some(attached) => attached.push(reference),
            None => self.attached.insert(call.container, vec![reference]),
        }
        Some(reference)
    }

    fn is_created(&self, container: &str) -> bool {
        self.memory
            .sandboxes
            .get(container)
            .is_some_and(|sandbox| sandbox.created)
    }

    /// Another attachment of a sandbox that is being created.
    fn add_operation(
        &mut self,
        key: TraceKey,
        at: Timestamp,
        image: &Image,
        call: &Invocation<'_>,
    ) -> Option<OperationRef> {
        let open = self.traces.get_mut(key)?;
        // The same attachment again: what failed before is being tried again.
        let plugin = image.file_name();
        let mut attempt = 1;
        for index in 0..open.operations.len() {
            let again = open.operations[index].is_for(call, Caller::Runtime(image.parent))
                && open.operations[index].closed
                && open
                    .operation_detail(index)
                    .is_some_and(|detail| detail.plugins.first().is_some_and(|first| **first == *plugin));
            if again {
                open.operations[index].retried = true;
                attempt += 1;
            }
        }
        open.begin_earlier(at);
        let detail = Detail::Operation(Box::new(operation_detail(call, attempt)));
        let Some(span) = open.begin(Some(CREATE), at, detail) else {
            open.trace.incomplete = true;
            self.effects.counters.evicted_spans += 1;
            return None;
        };
        open.operations
            .push(Operation::new(span, call, Caller::Runtime(image.parent)));
        open.touch(&mut self.effects);
        let operation = open.operations.len() - 1;
        self.effects.timers.clear(Timer::Trace(key));
        Some(OperationRef { trace: key, operation })
    }

    /// The runtime will tell when the sandbox's creation is over.
    fn is_told(&self, key: TraceKey) -> bool {
        let creation = self.traces.get(key).and_then(|open| open.creation.as_ref());
        creation.is_some_and(|creation| creation.told)
    }

    pub(crate) fn open_creation(&mut self, at: Timestamp, runtime: &str, call: &Invocation<'_>) -> TraceKey {
        let seed = TraceId::of(&[
            self.config.boot_id.as_bytes(),
            b"sandbox",
            call.container.as_bytes(),
            &at.0.to_le_bytes(),
        ]);
        let mut open = self.new_trace(seed, call);
        open.expect_sandbox();
        let root = open.begin(None, at, Detail::Sandbox(Box::default()));
        open.begin(root, at, Detail::SandboxCreate(CreateDetail::default()));
        let (attempt, previous) = self.count_attempt(call.container, &open.trace);
        open.trace.spans[0].detail = Detail::Sandbox(Box::new(SandboxDetail {
            attempt,
            runtime: runtime.to_owned(),
            ..SandboxDetail::default()
        }));
        open.trace.spans[0]
            .links
            .extend(previous.map(|root| root.link(Relation::PreviousAttempt)));
        open.creation = Some(Creation {
            awaits_runtime: has_known_steps(runtime),
            readiness: Readiness::new(self.watch.owners.node.is_some()),
            ..Creation::default()
        });
        let key = self.enter(open);
        self.creations.insert(call.container, key);
        key
    }

    /// The attempt's number and the attempt before it: of the same pod, or of the same sandbox if that failed.
    fn count_attempt(&mut self, container: &str, trace: &Trace) -> (u32, Option<RootId>) {
        let root = trace.root_id();
        let pod = memory::pod_key(&trace.identity);
        let of_pod = pod.as_deref().and_then(|pod| self.memory.pods.get(pod));
        let of_sandbox = self.memory.sandboxes.get(container).filter(|sandbox| sandbox.failed);
        let (attempt, previous) = match (of_pod, of_sandbox) {
            (Some(before), _) if before.sandbox != container => (before.number.saturating_add(1), Some(before.root)),
            (_, Some(before)) => (before.attempt.saturating_add(1), before.root),
            (Some(_) | None, None) => (1, None),
        };
        if let Some(pod) = pod {
            self.effects.counters.evicted_remembered += self.memory.pods.insert(
                &pod,
                Attempt {
                    sandbox: container.to_owned(),
                    number: attempt,
                    root,
                },
            );
        }
        let remembered = memory::Sandbox {
            identity: trace.identity.clone(),
            root: Some(root),
            attempt,
            ..memory::Sandbox::default()
        };
        self.remember(container, remembered);
        (attempt, previous)
    }

    /// An operation that is a trace of its own.
    fn open_single(&mut self, at: Timestamp, image: &Image, call: &Invocation<'_>) -> OperationRef {
        let seed = TraceId::of(&[
            self.config.boot_id.as_bytes(),
            call.command.as_str().as_bytes(),
            call.container.as_bytes(),
            call.ifname.as_bytes(),
            &at.0.to_le_bytes(),
            &image.process.pid.to_le_bytes(),
            &image.process.start_ticks.to_le_bytes(),
        ]);
        let mut open = self.new_trace(seed, call);
        let span = open
            .begin(None, at, Detail::Operation(Box::new(operation_detail(call, 1))))
            .unwrap_or_default();
        open.operations
            .push(Operation::new(span, call, Caller::Runtime(image.parent)));
        if !call.container.is_empty() {
            let attempt = self.link_single(call, &mut open.trace);
            if let Some(detail) = open.operation_detail_mut(0) {
                detail.attempt = attempt;
            }
        }
        OperationRef {
            trace: self.enter(open),
            operation: 0,
        }
    }

    /// Links an operation to its sandbox and to its previous attempt; returns the attempt's number.
    fn link_single(&mut self, call: &Invocation<'_>, trace: &mut Trace) -> u32 {
        let root = trace.root_id();
        if self.memory.sandboxes.get(call.container).is_none() {
            self.remember(call.container, memory::Sandbox::default());
        }
        let Some(sandbox) = self.memory.sandboxes.get_mut(call.container) else {
            return 1;
        };
        trace.identity.merge(&sandbox.identity);
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

    fn new_trace(&mut self, seed: TraceId, call: &Invocation<'_>) -> OpenTrace {
        self.serial += 1;
        let mut open = OpenTrace::new(
            self.traces.reserve(self.serial),
            seed,
            call.caller,
            self.anchor,
            self.config.max_spans,
        );
        open.trace.sandbox = (!call.container.is_empty()).then(|| SandboxId(call.container.to_owned()));
        open.trace.identity = PodIdentity::from_cni_args(call.args);
        open.trace.incomplete = self.lost_until.is_some_and(|until| self.now <= until);
        open
    }

    fn enter(&mut self, mut open: OpenTrace) -> TraceKey {
        while self.traces.len() >= self.config.max_traces.clamp(1, TraceKey::MAX_OPEN)
            && let Some(oldest) = self.traces.oldest()
        {
            self.effects.counters.evicted_traces += 1;
            if let Some(oldest) = self.traces.get_mut(oldest) {
                oldest.trace.incomplete = true;
            }
            self.close(oldest, Cut::Abandoned);
        }
        let key = open.key;
        open.touch(&mut self.effects);
        self.by_id.insert((open.trace.id, key));
        self.traces.insert(open);
        key
    }

    pub(crate) fn remember(&mut self, container: &str, sandbox: memory::Sandbox) {
        self.effects.counters.evicted_remembered += self.memory.sandboxes.insert(container, sandbox);
    }
}

// === closing ===

impl Correlator {
    /// Closes a trace that is complete, or sets the timer by which it will be.
    pub(crate) fn review(&mut self, key: TraceKey) {
        let Some(open) = self.traces.get(key) else {
            return;
        };
        if open.is_created() {
            return;
        }
        match open.outlook(self.now, &self.config) {
            Outlook::Open => self.effects.timers.clear(Timer::Trace(key)),
            Outlook::OpenUntil(until) => self.effects.timers.set(Timer::Trace(key), until),
            Outlook::Complete => {
                let deadline_ns = self.config.deadline_ns;
                let overdue = open.creation.as_ref().is_some_and(|creation| {
                    let oldest = creation.running_steps.first();
                    oldest.is_some_and(|(_, begun)| begun.plus(deadline_ns) <= self.now)
                });
                self.close(
                    key,
                    if overdue {
                        Cut::Deadline { deadline_ns }
                    } else {
                        Cut::Outlived
                    },
                );
            }
        }
    }

    /// Ends what is open in a trace and gives the trace out. A sandbox whose creation went well stays open for its
    /// network, and is closed when this is called again.
    pub(crate) fn close(&mut self, key: TraceKey, cut: Cut) {
        self.windows_closing(key);
        let Some(mut open) = self.traces.lend(key) else {
            return;
        };
        let was_created = open.is_created();
        if !was_created {
            self.end_processes(&mut open, cut);
            if open.creation.is_some() {
                self.conclude(&mut open, matches!(cut, Cut::Deadline { .. }));
            }
            if cut == Cut::Outlived && open.awaits_network() {
                self.await_network(&mut open);
                self.traces.give_back(open);
                return self.review_network(key);
            }
        }
        self.traces.remove(key);
        self.by_id.remove(&(open.trace.id, key));
        let released = self.settle_network(&mut open);
        for span in (0..open.trace.spans.len()).rev() {
            open.cut(span, self.now, cut, &mut self.effects);
        }
        let told = open.creation.is_some() && !was_created;
        windows::unname(&mut open.trace);
        let unlabelled = open.wants_labels();
        let trace = Arc::new(open.into_trace());
        if told {
            self.tell_created(Arc::clone(&trace), unlabelled);
        }
        if unlabelled && cut == Cut::Outlived {
            self.hold_back(trace);
        } else {
            self.effects.outputs.push(Output::Closed(trace));
        }
        for finished in released {
            self.release(finished);
        }
    }

    /// Ends the operations and processes of a trace.
    fn end_processes(&mut self, open: &mut OpenTrace, cut: Cut) {
        let key = open.key;
        self.effects.timers.clear(Timer::Trace(key));
        for operation in 0..open.operations.len() {
            if !open.operations[operation].closed {
                self.effects.timers.clear(Timer::Settle(key, operation));
                let container = &open.operations[operation].container;
                forget_attached(&mut self.attached, container, OperationRef { trace: key, operation });
            }
        }
        // Processes first, so that what encloses them can end with the last of them.
        for span in (0..open.trace.spans.len()).rev() {
            if open.trace.spans[span].process().is_some() {
                open.cut(span, self.now, cut, &mut self.effects);
            }
        }
    }

    /// Writes the outcome of a sandbox's creation into its root and its memory.
    fn conclude(&mut self, open: &mut OpenTrace, overdue: bool) {
        let failed = open.failed_operation();
        let mut message = failed.map(|operation| open.failure_message(operation));
        let Some(creation) = &open.creation else {
            return;
        };
        if creation.told {
            // The runtime's own words hold what the plugin wrote, which cannot be seen.
            message = creation.failed_step.clone().or(message);
        }
        message = message.or_else(|| creation.failed_step.clone());
        if open.was_given_up() {
            message = message.or_else(|| Some("the runtime gave the sandbox up before it started it".to_owned()));
        }
        if overdue {
            message = message.or_else(|| Some("a step of the runtime did not end".to_owned()));
        }
        let started = creation.started;
        for span in open.trace.spans.iter_mut().take(CREATE + 1) {
            if let Some(message) = &message {
                span.status = Status::Error {
                    class: "sandbox_failed".to_owned(),
                    message: message.clone(),
                };
            }
            if let Detail::SandboxCreate(create) = &mut span.detail {
                create.runtime_seen = started;
            }
        }
        let container = open.sandbox();
        if self.creations.get(container) == Some(&open.key) {
            self.creations.remove(container);
        }
        if let Some(sandbox) = self.memory.sandboxes.get_mut(container) {
            sandbox.created = message.is_none();
            sandbox.failed = message.is_some();
            sandbox.identity.merge(&open.trace.identity);
        }
    }

    /// The open trace with this id, the oldest if there are several.
    pub(crate) fn find(&self, id: TraceId) -> Option<&OpenTrace> {
        let (_, key) = self
            .by_id
            .range((id, TraceKey::FIRST)..)
            .next()
            .filter(|(found, _)| *found == id)?;
        self.traces.get(*key)
    }
}
