//! What the room of sandboxes keeps beside the trace of a creation, and when that creation is over.
//!
//! Used by the files of this room. A creation is over when the runtime has started the pause container, when the
//! sandbox is being removed, when a step failed, or when nothing more comes within a time that depends on how much of
//! the runtime's work is visible. All times are from the configuration. Does not: change the trace.
//!
//! How long a creation stays open when no operation runs:
//! - the runtime's response is waited for: until it comes, with the runtime started at most `runtime_wait_ns`, else at most the
//!   timeout of a plugin. It decides before everything else.
//! - started, being removed, reported as ready by its runtime, or a step failed: complete.
//! - an operation failed: the settle time, in which the runtime may attempt it again.
//! - a runtime whose steps are not known: the settle time, for a further attachment.
//! - a runtime step runs: until the timeout of a plugin after the step's begin.
//! - between two steps: `runtime_wait_ns`. Where the runtime may start no process at all, it is asked meanwhile.
//! - reported by the runtime itself (Windows): until it reports the end, at most the timeout of a plugin;
//!   after a failed operation at most `runtime_wait_ns`.

use sandglass_model::cni::ConfigProblem;
use sandglass_model::registry;
use sandglass_model::trace::{Cause, RuntimeStep, Status};
use sandglass_model::{ProcessKey, Timestamp};

use crate::config::CorrelatorConfig;
use crate::open_trace::{CREATE, OpenTrace};
use crate::sandboxes::config_cause;
use crate::sandboxes::open_requests::OwnRequest;
use crate::sandboxes::readiness::ReadinessTracker;
use crate::stand_in::is_stand_in;

/// State beside the trace of a creation.
#[derive(Debug, Default)]
pub(crate) struct Creation {
    /// Runtime steps that run, oldest first: span and begin.
    pub(crate) running_steps: Vec<(usize, Timestamp)>,
    /// A runtime step was seen, or the runtime is one whose steps are known: the end of the last operation is then not
    /// the end of the creation.
    pub(crate) awaits_runtime: bool,
    /// The runtime may start no process for the sandbox: then its own word is all that ends the creation in time.
    pub(crate) may_start_nothing: bool,
    /// That word was requested.
    pub(crate) asked: bool,
    /// It came: the runtime reports the sandbox as ready.
    pub(crate) ready: bool,
    /// `start` of the OCI runtime succeeded: the pause process runs (OCI runtime specification, "Lifecycle").
    pub(crate) started: bool,
    /// The runtime itself reports the end of the creation (Windows).
    pub(crate) reported: bool,
    /// A DEL for the sandbox began while it was being created.
    pub(crate) removed: bool,
    /// Message of the first runtime step that failed.
    pub(crate) failed_step: Option<String>,
    /// Why it failed, as far as the CNI configuration shows, where nothing that ran failed.
    pub(crate) cause: Option<Box<Cause>>,
    /// The runtime has reported the pod's labels.
    pub(crate) described: bool,
    /// The network namespace or an address is known: its traffic can be attributed.
    pub(crate) network_known: bool,
    /// Spans of operations that failed and were attempted again: their failure does not fail the sandbox.
    pub(crate) retried: Vec<usize>,
    pub(crate) readiness: ReadinessTracker,
    /// The runtime's daemon: the process that executed the first plugin.
    pub(crate) runtime: Option<ProcessKey>,
    /// When the network namespace began to be made, where that was seen.
    pub(crate) netns_begin: Option<Timestamp>,
    /// The request to the runtime, where that was seen.
    pub(crate) request: OwnRequest,
}

/// What can still complete an open trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlook {
    /// It stays open: an operation runs, whose end will lead to the next review.
    Open,
    /// It is complete at this time if nothing else happens.
    OpenUntil(Timestamp),
    /// Nothing more belongs to it.
    Complete,
}

/// What can still complete the trace at `now`. A trace without a creation is complete as soon as its operation is
/// closed.
pub(crate) fn outlook(
    open: &OpenTrace,
    creation: Option<&Creation>,
    now: Timestamp,
    config: &CorrelatorConfig,
) -> Outlook {
    if open.runtime_operations().any(|(span, _)| open.is_open(span)) {
        return Outlook::Open;
    }
    let Some(creation) = creation else {
        return Outlook::Complete;
    };
    let last = open.states[CREATE].latest;
    if creation.request.pending {
        // The response follows in milliseconds, unless it was lost; after a failure the runtime cleans up first, which runs plugins.
        let is_up = creation.started || creation.ready;
        let wait_ns = if is_up {
            config.runtime_wait_ns
        } else {
            config.deadline_ns
        };
        return match last.plus(wait_ns) {
            until if until <= now => Outlook::Complete,
            until => Outlook::OpenUntil(until),
        };
    }
    let is_over = creation.started || creation.ready || creation.removed || creation.request.failed;
    if is_over || creation.failed_step.is_some() {
        return Outlook::Complete;
    }
    let failed = creation.failed_operation(open).is_some();
    // Of these the first that holds decides. After a failure the runtime either attempts again at once or removes the
    // sandbox, so the settle time is enough; with a runtime whose steps are known the next step is waited for, and a
    // step that runs has the timeout of a plugin.
    let until = if creation.reported && failed {
        last.plus(config.runtime_wait_ns)
    } else if creation.reported {
        open.trace.start().plus(config.deadline_ns)
    } else if failed || !creation.awaits_runtime {
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

impl Creation {
    /// When to ask the runtime for the sandbox: it may start no process for it, and none came within the settle time.
    pub(crate) fn ask_at(&self, open: &OpenTrace, config: &CorrelatorConfig) -> Option<Timestamp> {
        let waits = self.may_start_nothing && !self.asked && self.needs_labels(open);
        let quiet = !has_step(open, |_| true) && self.failed_operation(open).is_none();
        (waits && quiet).then(|| open.states[CREATE].latest.plus(config.settle_ns))
    }

    /// Span of the first operation that failed and was not attempted again.
    fn failed_operation(&self, open: &OpenTrace) -> Option<usize> {
        let failed = |span: &usize| open.has_failed(*span) && !self.retried.contains(span);
        open.runtime_operations().map(|(span, _)| span).find(failed)
    }

    /// The message of the creation's failure, from the most specific evidence; `None` if it did not fail. `overdue`
    /// when a runtime step exceeded the timeout.
    pub(crate) fn failure(&self, open: &OpenTrace, overdue: bool) -> Option<String> {
        let mut message = self.failed_operation(open).map(|span| failure_message(open, span));
        if self.reported {
            // The runtime's message holds what the plugin wrote, which is not visible on Windows.
            message = self.failed_step.clone().or(message);
        }
        message = message.or_else(|| self.failed_step.clone());
        if self.was_abandoned(open) {
            let given_up = "the runtime gave the sandbox up before it started it";
            message = message.or_else(|| Some(config_cause::because(given_up, self.cause.as_deref())));
        }
        if self.request.failed {
            // Its text is in a compressed header.
            message = message.or_else(|| Some("the runtime responded with an error".to_owned()));
        }
        if overdue {
            message = message.or_else(|| Some("a step of the runtime did not end".to_owned()));
        }
        message
    }

    /// Where nothing that ran failed and the runtime gave up all the same, the CNI configuration may show why.
    pub(crate) fn infer_cause(&mut self, open: &OpenTrace, problems: &[ConfigProblem]) {
        let unexplained = self.failed_operation(open).is_none() && self.failed_step.is_none();
        if unexplained && self.cause.is_none() {
            self.cause = config_cause::cause(problems);
            if !self.was_abandoned(open) {
                self.cause = None;
            }
        }
    }

    /// The runtime removes what it has not started, although nothing that it ran failed: a step that runs no program did,
    /// such as the search for a plugin that is missing. Where only a shim was seen, the runtime may start without `runc`.
    fn was_abandoned(&self, open: &OpenTrace) -> bool {
        let seen = |wanted| has_step(open, |step| step == wanted);
        let removed = self.removed && self.awaits_runtime && !self.started && !self.ready && !self.reported;
        // A sandbox without a process may have been created and removed again.
        let expected = !self.may_start_nothing || self.cause.is_some();
        let unstarted = seen(RuntimeStep::Create) || (!seen(RuntimeStep::Shim) && expected);
        removed && !open.trace.incomplete && unstarted
    }

    /// It succeeded, and its traffic can be attributed: readiness is pending.
    pub(crate) fn awaits_network(&self, open: &OpenTrace) -> bool {
        self.network_known && !self.removed && !open.has_failed(0)
    }

    /// It is a pod's sandbox that the runtime knows and whose labels it has not reported. A sandbox without a pod's
    /// name (podman, cnitool) has none, and one that failed is not in the runtime's list.
    pub(crate) fn needs_labels(&self, open: &OpenTrace) -> bool {
        let named = open.trace.sandbox.as_ref().is_some_and(|id| !is_stand_in(&id.0));
        named && !self.described && !self.removed && !open.trace.identity.name.is_empty() && !open.has_failed(0)
    }

    /// A runtime step has run for longer than `deadline_ns`.
    pub(crate) fn is_overdue(&self, now: Timestamp, deadline_ns: u64) -> bool {
        let oldest = self.running_steps.first();
        oldest.is_some_and(|(_, begun)| begun.plus(deadline_ns) <= now)
    }
}

/// A step of the runtime was seen that is `wanted`.
fn has_step(open: &OpenTrace, wanted: impl Fn(RuntimeStep) -> bool) -> bool {
    let mut steps = open.trace.spans.iter().filter_map(|span| span.detail.as_step());
    steps.any(|step| wanted(step.step))
}

/// The failure of an operation, as the failure of its sandbox.
fn failure_message(open: &OpenTrace, operation: usize) -> String {
    let span = &open.trace.spans[operation];
    let why = match &span.status {
        Status::Error { message, .. } => message.as_str(),
        Status::Unset => "",
    };
    let ifname = open.operation(operation).map_or("", |detail| &detail.ifname);
    format!("{} {ifname}: {why}", registry::name(span))
}
