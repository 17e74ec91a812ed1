//! One trace in one line: the list row that the page, the stream and the terminal view share.
//!
//! 64-bit wall-clock times are decimal strings, as in OTLP's JSON, because a JavaScript number cannot hold them;
//! durations are numbers. Does not: decide which rows are shown (`query`), or list spans (`view`).

use std::collections::BTreeMap;

use sandglass_model::network::Asker;
use sandglass_model::phases::{self, Breakdown, Phase};
use sandglass_model::registry;
use sandglass_model::trace::{Cause, JourneyReason, SpanEvent};
use sandglass_model::{CniCommand, Detail, RootId, SandboxId, Span, Status, Timestamp, Trace};
use serde::{Serialize, Serializer};

use super::traffic::{self, Network};
use crate::sinks::creation;

/// How a trace stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Open.
    Running,
    /// Open: the sandbox is created, and its first traffic is waited for.
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
    /// One CNI operation apart from that.
    Operation,
    /// A lookup or connection that went badly.
    Journey,
}

/// What filters look at; made once when a trace comes in.
#[derive(Clone, Debug)]
pub struct Subject {
    /// How it stands.
    pub outcome: Outcome,
    /// What it is about.
    pub kind: TraceKind,
    /// The verb, for an operation.
    pub command: Option<CniCommand>,
    /// Plugin types in order of first appearance.
    pub plugins: Vec<String>,
    /// Why it is a journey, if it is one.
    pub reason: Option<JourneyReason>,
    /// Causes of the lookups and connections in it that went badly, each once.
    pub causes: Vec<String>,
    /// Lower-case text that the text filter searches.
    pub haystack: String,
    /// Begin, nanoseconds since 1970.
    pub start_unix_ns: u64,
}

impl Subject {
    /// Looks at every span once.
    #[must_use]
    pub fn of(trace: &Trace) -> Subject {
        let root = trace.root();
        let (kind, command) = match &root.detail {
            Detail::Operation(operation) => (TraceKind::Operation, Some(operation.command)),
            Detail::Plugin(plugin) => (TraceKind::Operation, Some(plugin.command)),
            Detail::Journey(_) | Detail::Lookup(_) | Detail::Connect(_) => (TraceKind::Journey, None),
            Detail::Activity(_) | Detail::VnicWait(_) => (TraceKind::Operation, None),
            Detail::Sandbox(_) | Detail::SandboxCreate(_) | Detail::Command(_) | Detail::RuntimeStep(_) => {
                (TraceKind::Sandbox, None)
            }
        };
        let mut plugins: Vec<String> = Vec::new();
        for span in &trace.spans {
            if let Detail::Plugin(plugin) = &span.detail
                && !plugins.iter().any(|known| **known == *plugin.plugin)
            {
                plugins.push(plugin.plugin.to_string());
            }
        }
        Subject {
            outcome: match (trace.closed, root.status.is_error()) {
                (false, false) if creation::waits_for_traffic(trace) => Outcome::Waiting,
                (false, _) => Outcome::Running,
                (true, false) => Outcome::Ok,
                (true, true) => Outcome::Failed,
            },
            kind,
            command,
            plugins,
            reason: match &root.detail {
                Detail::Journey(journey) => Some(journey.reason),
                _ => None,
            },
            causes: traffic::causes(trace),
            haystack: haystack(trace),
            start_unix_ns: trace.anchor.unix_ns(root.start),
        }
    }
}

/// Everything a person may type to find a trace, cut at [`MAX_HAYSTACK`] bytes.
fn haystack(trace: &Trace) -> String {
    let mut text = Haystack::default();
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
            Detail::SandboxCreate(_) | Detail::RuntimeStep(_) | Detail::VnicWait(_) => {}
        }
        if let Status::Error { class, message } = &span.status {
            text.add(class);
            text.add(message);
        }
    }
    for (key, value) in &trace.identity.labels {
        text.add(&format!("{key}={value}"));
    }
    text.0
}

#[derive(Default)]
struct Haystack(String);

impl Haystack {
    fn add(&mut self, word: &str) {
        if !word.is_empty() && self.0.len() + word.len() < MAX_HAYSTACK {
            self.0.push_str(&word.to_lowercase());
            self.0.push('\n');
        }
    }
}

/// One trace in one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Its id, and what tells it from others with that id: `trace_id` and `root_span_id`.
    #[serde(flatten)]
    pub root: RootId,
    /// What it is about.
    pub kind: TraceKind,
    /// The verb, for an operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<CniCommand>,
    /// The sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// Kubernetes namespace; empty when not known.
    pub namespace: String,
    /// Pod name; empty when not known.
    pub pod: String,
    /// Begin.
    #[serde(serialize_with = "as_text")]
    pub start_unix_ns: u64,
    /// To the end, or to now; while a created sandbox waits for its first traffic, to the end of its creation.
    pub duration_ns: u64,
    /// The same without the time in which the sandbox's programs did not use the network: what the node answers for.
    pub busy_ns: u64,
    /// How it stands.
    pub result: Outcome,
    /// It is open.
    pub running: bool,
    /// Class of the failure that explains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_class: Option<String>,
    /// One sentence: what took the time, what failed, or what is waited for.
    pub verdict: String,
    /// Nanoseconds by phase; they add up to `duration_ns`.
    pub phases: BTreeMap<Phase, u64>,
    /// Which attempt for this pod, or of this verb for this attachment.
    pub attempt: u32,
    /// Something may be missing.
    pub incomplete: bool,
    /// Plugin types in order of first appearance.
    pub plugins: Vec<String>,
    /// Number of spans.
    pub spans: usize,
    /// How a sandbox's network proved usable; absent when it sent nothing, or nobody watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// What a journey was to: a name, or an address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Why it is a journey.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<JourneyReason>,
    /// Causes of the lookups and connections in it that went badly.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
}

impl Row {
    /// The row of `trace` at a wall-clock time.
    #[must_use]
    pub fn of(trace: &Trace, subject: &Subject, unix_ns: u64) -> Row {
        let now = end_or_now(trace, unix_ns);
        let breakdown = Breakdown::of(trace, now);
        let root = trace.root();
        let duration_ns = root.duration_ns(now);
        let idle_ns = breakdown.phases.get(&Phase::Application).copied().unwrap_or_default();
        Row {
            root: trace.root_id(),
            kind: subject.kind,
            operation: subject.command,
            sandbox: trace.sandbox.clone(),
            namespace: trace.identity.namespace.clone(),
            pod: trace.identity.name.clone(),
            start_unix_ns: subject.start_unix_ns,
            duration_ns,
            busy_ns: duration_ns.saturating_sub(idle_ns),
            result: subject.outcome,
            running: subject.outcome == Outcome::Running,
            error_class: trace.culprit().and_then(error_class),
            verdict: verdict(trace, now),
            phases: breakdown.phases,
            attempt: attempt(root),
            incomplete: trace.incomplete,
            plugins: subject.plugins.clone(),
            spans: trace.spans.len(),
            network: Network::of(trace),
            target: match &root.detail {
                Detail::Journey(journey) => Some(journey.target.clone()),
                _ => None,
            },
            reason: subject.reason,
            causes: subject.causes.clone(),
        }
    }
}

/// One sentence: what took the time or what failed; of an open trace that has not failed yet, the processes that it
/// waits for, outermost first.
#[must_use]
pub fn verdict(trace: &Trace, now: Timestamp) -> String {
    if trace.culprit().is_some() {
        return phases::verdict(trace, now);
    }
    let open: Vec<String> = super::view::open_below(trace, 0)
        .into_iter()
        .filter(|span| span.process().is_some())
        .map(registry::name)
        .collect();
    if trace.closed || open.is_empty() {
        traffic::verdict(trace, now)
    } else {
        format!("waits for {}", open.join(" › "))
    }
}

fn error_class(span: &Span) -> Option<String> {
    match &span.status {
        Status::Error { class, .. } => Some(class.clone()),
        Status::Unset => None,
    }
}

/// The attempt number a root span carries.
#[must_use]
pub fn attempt(root: &Span) -> u32 {
    match &root.detail {
        Detail::Sandbox(sandbox) => sandbox.attempt,
        Detail::Operation(operation) => operation.attempt,
        Detail::SandboxCreate(_)
        | Detail::Plugin(_)
        | Detail::Command(_)
        | Detail::RuntimeStep(_)
        | Detail::Journey(_)
        | Detail::Lookup(_)
        | Detail::Connect(_)
        | Detail::Activity(_)
        | Detail::VnicWait(_) => 1,
    }
}

/// A wall-clock time on the trace's own clock, never before what the trace already holds.
#[must_use]
pub fn now_in(trace: &Trace, unix_ns: u64) -> Timestamp {
    let newest = trace.spans.iter().map(|span| span.end.unwrap_or(span.start)).max();
    trace.anchor.boot(unix_ns).max(newest.unwrap_or_default())
}

/// Where an open trace is taken to end: now; or, while a created sandbox waits for its first traffic, where its creation
/// ended, since that it sends nothing is nobody's time.
#[must_use]
pub fn end_or_now(trace: &Trace, unix_ns: u64) -> Timestamp {
    match creation::created(trace) {
        Some(created) if !trace.closed => created,
        _ => now_in(trace, unix_ns),
    }
}

/// Bytes a trace takes in the store, by estimate: the structures, the texts in them, and what the allocator and the
/// store add.
#[must_use]
pub fn estimate_bytes(trace: &Trace) -> usize {
    let labels: usize = trace
        .identity
        .labels
        .iter()
        .map(|(key, value)| text_bytes(key) + text_bytes(value))
        .sum();
    // The usual haystack, row and index entries.
    size_of_val(trace) + 2_048 + labels + trace.spans.iter().map(span_bytes).sum::<usize>()
}

/// Paths of programs and cgroups are shared with other traces.
fn span_bytes(span: &Span) -> usize {
    let process = span
        .process()
        .map_or(0, |process| 2 * size_of_val(process) + process.args.bytes() + 16);
    let own = match &span.detail {
        Detail::Operation(operation) => {
            size_of_val(&**operation)
                + text_bytes(&operation.network)
                + text_bytes(&operation.netns)
                + texts_bytes(&operation.plugins)
                + texts_bytes(&operation.addresses)
        }
        Detail::Plugin(plugin) => plugin
            .error
            .as_ref()
            .map_or(0, |error| text_bytes(&error.msg) + text_bytes(&error.details)),
        Detail::Lookup(lookup) => {
            size_of_val(&**lookup)
                + text_bytes(&lookup.name)
                + texts_bytes(&lookup.types)
                + size_of_val(lookup.servers.as_slice())
                + size_of_val(lookup.addresses.as_slice())
                + traffic_bytes(lookup.asker.as_ref(), lookup.cause.as_ref())
        }
        Detail::Connect(connect) => {
            size_of_val(&**connect)
                + text_bytes(&connect.name)
                + traffic_bytes(connect.asker.as_ref(), connect.cause.as_ref())
        }
        Detail::Activity(activity) => size_of_val(&**activity) + texts_bytes(&activity.objects),
        Detail::VnicWait(wait) => size_of_val(&**wait) + text_bytes(&wait.endpoint),
        Detail::Journey(journey) => size_of_val(&**journey) + text_bytes(&journey.target),
        Detail::Sandbox(sandbox) => size_of_val(&**sandbox) + text_bytes(&sandbox.runtime),
        Detail::SandboxCreate(_) | Detail::Command(_) | Detail::RuntimeStep(_) => 0,
    };
    let status = match &span.status {
        Status::Error { class, message } => text_bytes(class) + text_bytes(message),
        Status::Unset => 0,
    };
    let event_bytes = |event: &SpanEvent| {
        let attributes = event
            .attributes
            .iter()
            .map(|(key, value)| text_bytes(key) + text_bytes(value));
        size_of_val(event) + text_bytes(&event.name) + attributes.sum::<usize>()
    };
    let events: usize = span.events.iter().map(event_bytes).sum();
    size_of_val(span) + process + own + status + events + size_of_val(span.links.as_slice())
}

fn traffic_bytes(asker: Option<&Asker>, cause: Option<&Cause>) -> usize {
    let cause = cause.map_or(0, |cause| text_bytes(&cause.cause) + texts_bytes(&cause.evidence));
    asker.map_or(0, |asker| text_bytes(&asker.comm)) + cause
}

fn texts_bytes(list: &[impl AsRef<str>]) -> usize {
    list.iter().map(|text| text_bytes(text.as_ref())).sum()
}

/// A text's own bytes, its handle, and what the allocator rounds up by.
fn text_bytes(text: &str) -> usize {
    text.len() + size_of::<String>() + 16
}

/// A 64-bit number as decimal text.
pub fn as_text<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

const MAX_HAYSTACK: usize = 4_096;
