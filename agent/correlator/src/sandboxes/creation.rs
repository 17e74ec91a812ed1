//! What the room of sandboxes keeps beside the trace of a creation, and when that creation is over.

use sandglass_model::Timestamp;
use sandglass_model::registry;
use sandglass_model::trace::{RuntimeStep, Status};

use crate::config::CorrelatorConfig;
use crate::open_trace::{CREATE, OpenTrace};
use crate::sandboxes::readiness::ReadinessTracker;
use crate::stand_in::is_stand_in;

/// State beside the trace of a creation.
#[derive(Debug, Default)]
pub(crate) struct Creation {
    /// Runtime steps that run: span and begin.
    pub(crate) running_steps: Vec<(usize, Timestamp)>,
    /// Runtime steps were seen, or the runtime's steps are known.
    pub(crate) awaits_runtime: bool,
    /// The pause process runs.
    pub(crate) started: bool,
    /// The runtime itself reports when the creation is over (Windows).
    pub(crate) reported: bool,
    /// The sandbox is being removed.
    pub(crate) removed: bool,
    /// Why a runtime step failed.
    pub(crate) failed_step: Option<String>,
    /// The runtime has reported the pod's labels.
    pub(crate) described: bool,
    /// The network namespace or an address is known: its traffic can be attributed.
    pub(crate) network_known: bool,
    /// Spans of operations that failed and were then attempted again.
    pub(crate) retried: Vec<usize>,
    pub(crate) readiness: ReadinessTracker,
}

/// What is to become of an open trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlook {
    /// It stays open, and an event will end it.
    Open,
    /// It is complete at this time if nothing else happens.
    OpenUntil(Timestamp),
    Complete,
}

/// When a trace is complete: one without a sandbox's creation as soon as its operation is closed.
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
    if creation.started || creation.removed || creation.failed_step.is_some() {
        return Outlook::Complete;
    }
    let last = open.states[CREATE].latest;
    let failed = creation.failed_operation(open).is_some();
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
    /// Span of the operation that failed the sandbox.
    fn failed_operation(&self, open: &OpenTrace) -> Option<usize> {
        let failed = |span: &usize| open.has_failed(*span) && !self.retried.contains(span);
        open.runtime_operations().map(|(span, _)| span).find(failed)
    }

    /// Why the creation failed; `None` when it did not.
    pub(crate) fn failure(&self, open: &OpenTrace, overdue: bool) -> Option<String> {
        let mut message = self.failed_operation(open).map(|span| failure_message(open, span));
        if self.reported {
            // The runtime's message holds what the plugin wrote, which is not visible on Windows.
            message = self.failed_step.clone().or(message);
        }
        message = message.or_else(|| self.failed_step.clone());
        if self.was_abandoned(open) {
            message = message.or_else(|| Some("the runtime gave the sandbox up before it started it".to_owned()));
        }
        if overdue {
            message = message.or_else(|| Some("a step of the runtime did not end".to_owned()));
        }
        message
    }

    /// The runtime removes what it has not started, although nothing that it ran failed: a step that runs no program did,
    /// such as the search for a plugin that is missing. Where only a shim was seen, the runtime may start without `runc`.
    fn was_abandoned(&self, open: &OpenTrace) -> bool {
        let seen = |wanted| {
            let mut steps = open.trace.spans.iter().filter_map(|span| span.detail.as_step());
            steps.any(|step| step.step == wanted)
        };
        let removed = self.removed && self.awaits_runtime && !self.started && !self.reported;
        removed && !open.trace.incomplete && (seen(RuntimeStep::Create) || !seen(RuntimeStep::Shim))
    }

    /// It went well, and its traffic can be observed: readiness is pending.
    pub(crate) fn awaits_network(&self, open: &OpenTrace) -> bool {
        self.network_known && !self.removed && !open.has_failed(0)
    }

    /// A pod's sandbox that the runtime made and whose labels it has not reported.
    pub(crate) fn needs_labels(&self, open: &OpenTrace) -> bool {
        let named = open.trace.sandbox.as_ref().is_some_and(|id| !is_stand_in(&id.0));
        named && !self.described && !self.removed && !open.trace.identity.name.is_empty() && !open.has_failed(0)
    }

    /// A runtime step has run for longer than the deadline.
    pub(crate) fn is_overdue(&self, now: Timestamp, deadline_ns: u64) -> bool {
        let oldest = self.running_steps.first();
        oldest.is_some_and(|(_, begun)| begun.plus(deadline_ns) <= now)
    }
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
