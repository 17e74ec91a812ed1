//! Outputs: what the correlator emits, namely ended spans, complete traces, findings and requests to the runtime.
//!
//! The pipeline drains them and passes them to the sinks. Traces are shared, not copied: store, OTLP and metrics read
//! the same one. Does not: render anything.

use std::sync::Arc;

use sandglass_model::sampling::CallerSampling;
use sandglass_model::trace::RuntimeStep;
use sandglass_model::{CniCommand, Detail, PodIdentity, SandboxId, Span, SpanId, Timestamp, Trace, TraceId};

use crate::finding::Finding;

/// One output of the correlator. For each sandbox's trace `Created` comes once and before `Closed`; `Ended` comes once
/// for each span that ends in an open trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A span ended, once and for all. Metrics count these.
    Ended(EndedSpan),
    /// The creation of a sandbox is over, with success or not. Its trace stays open until its network has proven
    /// usable, or closes at once. Metrics of the set-up count these.
    Created(Arc<Trace>),
    /// A finding about traffic.
    Finding(Finding),
    /// A trace is complete. Exported and stored.
    Closed(Arc<Trace>),
    /// A sandbox was created whose pod's labels only the runtime knows: resolve them.
    LabelsNeeded(SandboxId),
    /// A sandbox is older than the agent.
    Preexisting {
        /// The sandbox.
        sandbox: SandboxId,
        /// Its pod.
        identity: PodIdentity,
        /// When the runtime says it was created.
        created: Timestamp,
    },
}

/// A span that ended: the fields that metrics need. A full copy of the span dominated the cost of handling an exit
/// (bench: throughput).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedSpan {
    /// Its trace.
    pub trace: TraceId,
    /// What the runtime decided about its trace, if this one continues it.
    pub caller: Option<CallerSampling>,
    /// The trace is incomplete.
    pub incomplete: bool,
    /// Its id.
    pub id: SpanId,
    /// Begin.
    pub start: Timestamp,
    /// End.
    pub end: Timestamp,
    /// Its status is an error.
    pub failed: bool,
    /// What it is.
    pub what: EndedKind,
}

/// What a span that ended is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndedKind {
    /// One exec of a plugin binary.
    Plugin {
        /// Plugin type.
        plugin: Arc<str>,
        /// The verb of the operation.
        command: CniCommand,
    },
    /// A command that a plugin spawned.
    Command {
        /// File name of the executable.
        name: Arc<str>,
        /// The plugin it ran for.
        plugin: Arc<str>,
    },
    /// A step of the runtime.
    RuntimeStep(RuntimeStep),
    /// Anything else. Sinks get sandboxes and operations with their whole trace, lookups and connects as
    /// [`Output::Finding`].
    Other,
}

impl EndedSpan {
    /// Of a span of the trace; one without an end counts as ending when it begins.
    #[must_use]
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "metrics count three kinds by their spans; of any other kind, a new one included, they count the whole trace or a finding"
    )]
    /// The ended span of `trace`. A span without an end counts as ending when it begins.
    pub fn of(trace: &Trace, span: &Span) -> EndedSpan {
        EndedSpan {
            trace: trace.id,
            caller: trace.caller,
            incomplete: trace.incomplete,
            id: span.id,
            start: span.start,
            end: span.end.unwrap_or(span.start),
            failed: span.status.is_error(),
            what: match &span.detail {
                Detail::Plugin(plugin) => EndedKind::Plugin {
                    plugin: Arc::clone(&plugin.plugin),
                    command: plugin.command,
                },
                Detail::Command(command) => EndedKind::Command {
                    name: Arc::clone(&command.name),
                    plugin: Arc::clone(&command.plugin),
                },
                Detail::RuntimeStep(step) => EndedKind::RuntimeStep(step.step),
                _ => EndedKind::Other,
            },
        }
    }
}
