//! What is known of a kept trace without looking at every span again: how it stands, and what filters compare.
//!
//! The store builds one [`TraceIndex`] for each trace that comes in, on the pipeline's thread; eviction and the filters of
//! lists read it. Does not: render anything, or measure how long things took.

use sandglass_model::trace::{Cause, JourneyReason, Relation};
use sandglass_model::waits::{TimeReason, TimeSpent};
use sandglass_model::{CniCommand, Detail, RootId, SandboxId, Span, Status, Trace};
use serde::Serialize;

use crate::sinks::creation;

/// State of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceOutcome {
    /// Open.
    Running,
    /// Open: the sandbox is created, and its first traffic is pending.
    Waiting,
    /// Closed, not failed.
    Ok,
    /// Closed, failed.
    Failed,
}

/// What a trace is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceKind {
    /// The creation of a sandbox.
    Sandbox,
    /// One CNI operation outside of a creation.
    Operation,
    /// A failed, slow, retried or dropped lookup or connection.
    Journey,
}

/// What eviction and filters compare; built once when a trace comes in.
#[derive(Clone, Debug)]
pub struct TraceIndex {
    /// Its key.
    pub root: RootId,
    /// The sandbox.
    pub sandbox: Option<SandboxId>,
    /// Kubernetes namespace; empty when not known.
    pub namespace: String,
    /// Pod name; empty when not known.
    pub pod: String,
    /// What its spans are linked to.
    pub links: Vec<(RootId, Relation)>,
    /// State of the trace.
    pub outcome: TraceOutcome,
    /// What it is about.
    pub kind: TraceKind,
    /// The verb, for an operation.
    pub command: Option<CniCommand>,
    /// Plugin types in order of first appearance.
    pub plugins: Vec<String>,
    /// Why it is a journey, if it is one.
    pub reason: Option<JourneyReason>,
    /// Causes of failed and slow lookups and connections in the trace, each once.
    pub causes: Vec<String>,
    /// What an operation, a step of the runtime or the creation waited for during a tenth of its time or more, or waits for now;
    /// each once, in the order of [`TimeReason::ALL`].
    pub waits: Vec<TimeReason>,
    /// Lower-case text that the text filter searches, at most [`MAX_TEXT`] bytes.
    pub text: Box<str>,
    /// Begin of the root, nanoseconds since 1970.
    pub start_unix_ns: u64,
}

impl TraceIndex {
    /// The index of `trace`; reads every span once.
    #[must_use]
    pub fn of(trace: &Trace) -> TraceIndex {
        let root = trace.root();
        let detail = &root.detail;
        let kind = if detail.as_sandbox().is_some() {
            TraceKind::Sandbox
        } else if detail.as_journey().is_some() {
            TraceKind::Journey
        } else {
            TraceKind::Operation
        };
        let command = detail.as_operation().map(|operation| operation.command);
        let mut plugins: Vec<String> = Vec::new();
        for span in &trace.spans {
            if let Detail::Plugin(plugin) = &span.detail
                && !plugins.iter().any(|known| **known == *plugin.plugin)
            {
                plugins.push(plugin.plugin.to_string());
            }
        }
        let links = trace.spans.iter().flat_map(|span| &span.links);
        TraceIndex {
            root: trace.root_id(),
            sandbox: trace.sandbox.clone(),
            namespace: trace.identity.namespace.clone(),
            pod: trace.identity.name.clone(),
            links: links.map(|link| (link.to(), link.relation)).collect(),
            outcome: match (trace.closed, root.status.is_error()) {
                (false, false) if creation::waits_for_traffic(trace) => TraceOutcome::Waiting,
                (false, _) => TraceOutcome::Running,
                (true, false) => TraceOutcome::Ok,
                (true, true) => TraceOutcome::Failed,
            },
            kind,
            command,
            plugins,
            reason: detail.as_journey().map(|journey| journey.reason),
            causes: causes(trace),
            waits: waits(trace),
            text: searched_text(trace),
            start_unix_ns: trace.anchor.unix_ns(root.start),
        }
    }
}

/// Every cause in the trace, once each.
fn causes(trace: &Trace) -> Vec<String> {
    let mut causes: Vec<String> = Vec::new();
    for cause in trace.spans.iter().filter_map(cause) {
        if !causes.contains(&cause.cause) {
            causes.push(cause.cause.clone());
        }
    }
    causes
}

/// Every reason for which a considerable part of the trace waited. Plugins and commands are within their operation.
fn waits(trace: &Trace) -> Vec<TimeReason> {
    let counts = |time: &TimeSpent, reason: TimeReason| {
        let part = time.parts.iter().find(|part| part.0 == reason).map_or(0, |part| part.1);
        part > 0 && u128::from(part) * CONSIDERABLE_PART >= u128::from(time.total_ns())
    };
    let explains = |span: &Span, reason: TimeReason| {
        let is_part = span.detail.as_plugin().is_none() && span.detail.as_command().is_none();
        let time = span.detail.time().filter(|_| is_part);
        let waiting = span.process().and_then(|process| process.waiting.as_deref());
        time.is_some_and(|time| counts(time, reason)) || waiting.is_some_and(|waiting| waiting.reason == reason)
    };
    let reasons = TimeReason::ALL.iter().copied().filter(|reason| reason.is_wait());
    reasons
        .filter(|reason| trace.spans.iter().any(|span| explains(span, *reason)))
        .collect()
}

/// A reason is one of a trace if this part (1/10) of the time is due to it.
const CONSIDERABLE_PART: u128 = 10;

/// The cause of a failed or slow lookup or connection.
#[must_use]
pub fn cause(span: &Span) -> Option<&Cause> {
    span.detail.cause()
}

/// Every text by which a person may search for the trace, cut at [`MAX_TEXT`] bytes.
fn searched_text(trace: &Trace) -> Box<str> {
    let mut text = SearchedText::default();
    text.add(&trace.identity.namespace);
    text.add(&trace.identity.name);
    text.add(&trace.identity.uid);
    if let Some(sandbox) = &trace.sandbox {
        text.add(&sandbox.0);
    }
    text.add(&trace.id.to_string());
    for span in &trace.spans {
        match &span.detail {
            Detail::Operation(operation) => {
                text.add(operation.command.as_str());
                text.add(&operation.network);
                text.add(&operation.ifname);
                operation.addresses.iter().for_each(|address| text.add(address));
            }
            Detail::Plugin(plugin) => text.add(&plugin.plugin),
            Detail::Command(command) => text.add(&command.name),
            Detail::Sandbox(sandbox) => text.add(&sandbox.runtime),
            Detail::Lookup(lookup) => text.add(&lookup.name),
            Detail::Connect(connect) => text.add(&connect.remote.to_string()),
            Detail::Journey(journey) => text.add(&journey.target),
            Detail::Activity(activity) => text.add(&activity.name),
            Detail::Daemon(daemon) => text.add(&daemon.name),
            _ => {}
        }
        if let Status::Error { class, message } = &span.status {
            text.add(class);
            text.add(message);
        }
    }
    for (key, value) in &trace.identity.labels {
        text.add(&format!("{key}={value}"));
    }
    // A copy: shrunk in place it would leave a hole behind it.
    Box::from(text.0.as_str())
}

#[derive(Default)]
struct SearchedText(String);

impl SearchedText {
    fn add(&mut self, word: &str) {
        if !word.is_empty() && self.0.len() + word.len() < MAX_TEXT {
            self.0.push_str(&word.to_lowercase());
            self.0.push('\n');
        }
    }
}

/// Bound on the searched text of one trace, in bytes.
const MAX_TEXT: usize = 4_096;
