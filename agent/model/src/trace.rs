//! Traces and spans: what the correlator makes of events, and what sinks export, store and show.
//!
//! A trace is one attempt to create a sandbox (until its network has proven usable), or one CNI operation apart from
//! that (DEL, CHECK, GC, STATUS, VERSION, and an ADD to a sandbox that exists), or the journey of a lookup or connect
//! that went badly. `spans[0]` is the root. Invariants, checked by [`Trace::check`]: a span's parent stands before it,
//! and an ended span lies within its ended parent.
//! Names and attributes of spans in OTLP, JSON and text are in [`crate::registry`].

mod daemons;
mod detail;
mod setup;
mod traffic;
mod windows;

use serde::{Deserialize, Serialize};

use crate::cni::PodIdentity;
use crate::id::{RootId, SandboxId, SpanId, TraceId};
use crate::sampling::CallerSampling;
use crate::time::{ClockAnchor, Timestamp};

pub use daemons::{Attribution, CgroupOwner, DaemonDetail, RequestBegin, ThreadsAttribution};
pub use detail::Detail;
pub use setup::{
    CommandDetail, CreateDetail, OperationDetail, PluginDetail, ProcessDetail, RuntimePart, RuntimeStep,
    RuntimeStepDetail, RuntimeWorkDetail, SandboxDetail,
};
pub use traffic::{Cause, Confidence, ConnectDetail, JourneyDetail, JourneyReason, LookupDetail, LookupResult};
pub use windows::{ActivityDetail, VnicWaitDetail};

/// One trace, open or closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Its id. A runtime's own id where it passed one on, which other traces may then share: see [`Trace::root_id`].
    pub id: TraceId,
    /// The sandbox; `None` for GC, STATUS and VERSION.
    pub sandbox: Option<SandboxId>,
    /// The pod, as far as known.
    pub identity: PodIdentity,
    /// Maps the spans' times to the wall clock.
    pub anchor: ClockAnchor,
    /// Records were lost while it was open, or its begin was not seen: durations may be wrong and children missing.
    pub incomplete: bool,
    /// It will not change any more.
    pub closed: bool,
    /// The remote parent when the runtime or plugin passed `TRACEPARENT`: the root's parent span, in the trace `id`.
    pub remote_parent: Option<SpanId>,
    /// What the owner of the remote parent decided about its own trace; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<CallerSampling>,
    /// `spans[0]` is the root.
    pub spans: Vec<Span>,
}

/// One interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Its id.
    pub id: SpanId,
    /// Index of the parent in [`Trace::spans`]; `None` for the root.
    pub parent: Option<usize>,
    /// Begin.
    pub start: Timestamp,
    /// End; `None` while it runs.
    pub end: Option<Timestamp>,
    /// Unset for success: OpenTelemetry reserves `Ok` for the application (Trace API, "Set Status").
    pub status: Status,
    /// What it is.
    pub detail: Detail,
    /// Instants in it, in time order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<SpanEvent>,
    /// Other traces it belongs with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
}

/// Success or failure of a span.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Not failed.
    #[default]
    Unset,
    /// Failed.
    Error {
        /// Low-cardinality class: `error.type` and the metrics' `error` label. One of [`crate::registry::ERROR_TYPES`].
        class: String,
        /// Short description for people.
        message: String,
    },
}

impl Status {
    /// True for `Error`.
    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self, Status::Error { .. })
    }
}

/// An instant in a span.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanEvent {
    /// When.
    pub at: Timestamp,
    /// Name from the registry.
    pub name: String,
    /// Attributes: key from the registry, value.
    pub attributes: Vec<(String, String)>,
}

/// Another trace this one belongs with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its trace id.
    pub trace: TraceId,
    /// The root's span id; for [`Relation::Caller`] the requesting span.
    pub span: SpanId,
    /// Why.
    pub relation: Relation,
}

/// Why two traces are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// The previous attempt of the same pod or operation.
    PreviousAttempt,
    /// The creation of the sandbox this operation or journey is for.
    Sandbox,
    /// The span that requested this operation, in the runtime's own trace.
    Caller,
    /// The same work as a span that the runtime made itself (Windows: the shim's own tracing).
    Runtime,
}

impl Link {
    /// The root of the trace that is linked to; of a [`Relation::Caller`], the requesting span.
    #[must_use]
    pub fn to(&self) -> RootId {
        RootId {
            trace: self.trace,
            span: self.span,
        }
    }
}

impl RootId {
    /// A link to this trace.
    #[must_use]
    pub fn link(self, relation: Relation) -> Link {
        Link {
            trace: self.trace,
            span: self.span,
            relation,
        }
    }
}

impl Trace {
    /// The root span. A trace always has one.
    #[must_use]
    pub fn root(&self) -> &Span {
        &self.spans[0]
    }

    /// What identifies it among all traces.
    #[must_use]
    pub fn root_id(&self) -> RootId {
        RootId {
            trace: self.id,
            span: self.root().id,
        }
    }

    /// Begin of the root.
    #[must_use]
    pub fn start(&self) -> Timestamp {
        self.root().start
    }

    /// The failed span that explains a failed trace: from the root (of an open trace: from an operation that failed)
    /// down through what failed last, as far as the failure was passed on. A command that failed below a plugin
    /// explains nothing if the plugin reported an error itself, or if it was not the last thing that the plugin did:
    /// `iptables -C` fails by design.
    #[must_use]
    pub fn culprit(&self) -> Option<&Span> {
        let failed = |index: usize| self.spans[index].status.is_error();
        let is_operation = |index: usize| self.spans[index].detail.as_operation().is_some();
        let mut culprit = (0..self.spans.len().min(1)).find(|&root| failed(root)).or_else(|| {
            let mut operations =
                (0..self.spans.len()).filter(|&index| !self.closed && failed(index) && is_operation(index));
            operations.rfind(|&index| self.spans[index].parent.is_none_or(|parent| parent <= 1))
        })?;
        loop {
            let has_message = self.spans[culprit]
                .detail
                .as_plugin()
                .is_some_and(|plugin| plugin.error.is_some());
            let below = (culprit + 1..self.spans.len())
                .filter(|&index| self.spans[index].parent == Some(culprit) && failed(index))
                .filter(|&index| {
                    self.spans[index].detail.as_command().is_none() || (!has_message && self.is_last_child(index))
                })
                .max_by_key(|&index| self.spans[index].end);
            match below {
                Some(below) => culprit = below,
                None => return self.spans.get(culprit),
            }
        }
    }

    /// No sibling of this span ended later.
    fn is_last_child(&self, index: usize) -> bool {
        let siblings = self.spans.iter().filter(|span| span.parent == self.spans[index].parent);
        siblings.map(|span| span.end).max() == Some(self.spans[index].end)
    }

    /// Indices of the spans with their depths, each below its parent, siblings in order of begin.
    #[must_use]
    pub fn in_tree_order(&self) -> Vec<(usize, usize)> {
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); self.spans.len()];
        let mut stack = Vec::new();
        for (index, span) in self.spans.iter().enumerate() {
            match span.parent {
                Some(parent) if parent < index => children[parent].push(index),
                Some(_) | None => stack.push((index, 0)),
            }
        }
        stack.reverse();
        let mut order = Vec::with_capacity(self.spans.len());
        while let Some((index, depth)) = stack.pop() {
            order.push((index, depth));
            let below = &mut children[index];
            below.sort_by_key(|&child| self.spans[child].start);
            stack.extend(below.drain(..).rev().map(|child| (child, depth + 1)));
        }
        order
    }

    /// Checks the invariants that every closed trace keeps; the error says which one is broken.
    pub fn check(&self) -> Result<(), String> {
        if self.spans.is_empty() {
            return Err("no root".to_owned());
        }
        for (index, span) in self.spans.iter().enumerate() {
            let Some(end) = span.end else {
                if self.closed {
                    return Err(format!("span {index} of a closed trace is open"));
                }
                continue;
            };
            if end < span.start {
                return Err(format!("span {index} ends before it begins"));
            }
            match span.parent {
                None if index == 0 => {}
                None => return Err(format!("span {index} has no parent")),
                Some(parent) if parent >= index => {
                    return Err(format!("span {index} stands before its parent {parent}"));
                }
                Some(parent) => {
                    let parent_span = &self.spans[parent];
                    if span.start < parent_span.start || parent_span.end.is_some_and(|parent_end| end > parent_end) {
                        return Err(format!("span {index} does not lie within its parent {parent}"));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Span {
    /// Nanoseconds from begin to end; to `now` while it runs.
    #[must_use]
    pub fn duration_ns(&self, now: Timestamp) -> u64 {
        self.end.unwrap_or(now).since(self.start)
    }

    /// The process behind it, if it is one.
    #[must_use]
    pub fn process(&self) -> Option<&ProcessDetail> {
        self.detail.process()
    }

    /// The process behind it, if it is one, mutable.
    #[must_use]
    pub fn process_mut(&mut self) -> Option<&mut ProcessDetail> {
        self.detail.process_mut()
    }
}
