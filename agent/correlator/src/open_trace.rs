//! An open trace: its spans, and what keeps them consistent while it is open.
//!
//! Used by every room through the [`Context`](crate::context::Context). Keeps the invariants of [`Trace::check`] by
//! construction: a span only begins below an open span, everything open below a span ends with it, and a parent never
//! ends before a child. Spans are named by their index, which does not change while the trace is open. Bounded by
//! `max_spans` spans and 32 events of each.
//! This file holds the state, begins spans and answers questions about them; `open_trace/ending.rs` ends spans,
//! `open_trace/in_order.rs` makes the trace that is shown and exported.
//! Does not: decide when something ends.
//!
//! Indices: 0 is the root. In the trace of a creation 1 is `sandbox.create` (`CREATE`), below which runtime steps and
//! the runtime's operations lie; first exchanges lie below the root, since they come after the creation. In any other
//! trace the root is the operation.

pub(crate) mod ending;
mod in_order;

use sandglass_model::trace::{Confidence, Detail, OperationDetail, SpanEvent, Status};
use sandglass_model::{ClockAnchor, PodIdentity, SandboxId, Span, SpanId, Timestamp, Trace, TraceId};

use crate::effects::Effects;
use crate::invocation::CallerSpan;
use crate::keys::{SpanRef, TraceKey};
use crate::timers::Timer;

/// What an open trace knows of a span besides what is exported.
#[derive(Debug, Default)]
pub(crate) struct SpanState {
    /// How many spans directly below it are open.
    open_children: u32,
    /// The latest end of a span directly below it, or its own begin: it cannot end before that.
    pub(crate) latest: Timestamp,
    /// Cancelled when the span ends.
    pub(crate) timer: Option<Timer>,
    /// It turned out not to belong to the trace, and is left out when the trace closes.
    withdrawn: bool,
}

/// Index of the span `sandbox.create` in the trace of a sandbox's creation, whose root is span 0.
pub(crate) const CREATE: usize = 1;

/// An open trace.
#[derive(Debug)]
pub(crate) struct OpenTrace {
    /// Its key in the table of open traces.
    pub(crate) key: TraceKey,
    /// What is exported, spans in order of insertion.
    pub(crate) trace: Trace,
    /// One for each span of `trace`, by the same index.
    pub(crate) states: Vec<SpanState>,
    /// The trace's own id, from which span ids are made. Differs from `trace.id` where a runtime passed `TRACEPARENT`:
    /// two sandboxes may then share `trace.id`, and their span ids must differ.
    seed: TraceId,
    /// Bound on spans, at least 8.
    max_spans: usize,
    /// Its key is in [`Effects::changed`].
    dirty: bool,
}

/// Bound on events of one span: a process that executes images in an endless loop must not grow it.
const MAX_SPAN_EVENTS: usize = 32;

impl OpenTrace {
    /// An open trace without spans. `caller` is the span that the runtime passed in `TRACEPARENT`: the trace then
    /// continues the runtime's.
    pub(crate) fn new(
        key: TraceKey,
        seed: TraceId,
        caller: Option<CallerSpan>,
        anchor: ClockAnchor,
        max_spans: usize,
    ) -> OpenTrace {
        OpenTrace {
            key,
            trace: Trace {
                id: caller.map_or(seed, |caller| caller.trace),
                sandbox: None,
                identity: PodIdentity::default(),
                anchor,
                incomplete: false,
                closed: false,
                remote_parent: caller.map(|caller| caller.span),
                caller: caller.map(|caller| caller.sampling),
                spans: Vec::new(),
            },
            states: Vec::new(),
            seed,
            max_spans: max_spans.max(8),
            dirty: false,
        }
    }

    /// Makes room for the spans of a usual sandbox: growing step by step copies most of them twice.
    pub(crate) fn expect_sandbox(&mut self) {
        self.trace.spans.reserve(16);
        self.states.reserve(16);
    }

    /// Begins a span below `parent`, not before it. Returns its index, or `None` when the trace is full. An eighth of
    /// the room is kept from commands, so that a plugin that runs hundreds of them does not hide the next plugin.
    pub(crate) fn begin(&mut self, parent: Option<usize>, at: Timestamp, detail: Detail) -> Option<usize> {
        let index = self.trace.spans.len();
        let room = match detail.as_command() {
            Some(_) => self.max_spans - self.max_spans / 8,
            None => self.max_spans,
        };
        if index >= room {
            return None;
        }
        let start = parent.map_or(at, |parent| at.max(self.trace.spans[parent].start));
        if let Some(parent) = parent {
            self.states[parent].open_children += 1;
        }
        self.trace.spans.push(Span {
            id: SpanId::of(&[&self.seed.0.to_le_bytes(), &(index as u64).to_le_bytes()]),
            parent,
            start,
            end: None,
            status: Status::Unset,
            detail,
            events: Vec::new(),
            links: Vec::new(),
        });
        self.states.push(SpanState {
            latest: start,
            ..SpanState::default()
        });
        Some(index)
    }

    /// The span exists and has no end.
    pub(crate) fn is_open(&self, span: usize) -> bool {
        self.trace.spans.get(span).is_some_and(|span| span.end.is_none())
    }

    /// The span itself if it is open, else its nearest open ancestor.
    pub(crate) fn nearest_open(&self, span: usize) -> Option<usize> {
        self.ancestors(span).find(|&index| self.is_open(index))
    }

    /// The plugin span that `span` is, or lies below.
    pub(crate) fn nearest_plugin(&self, span: usize) -> Option<usize> {
        self.ancestors(span)
            .find(|&index| self.trace.spans[index].detail.as_plugin().is_some())
    }

    /// What `span` is lies below no process of a daemon that is only likely to belong here, and is none itself.
    pub(crate) fn is_certain(&self, span: usize) -> bool {
        let processes = self
            .ancestors(span)
            .filter_map(|index| self.trace.spans[index].process());
        let mut attributions = processes.filter_map(|process| process.attribution);
        attributions.all(|attribution| attribution.confidence() == Confidence::Certain)
    }

    /// The operation span that `span` is, or lies below.
    pub(crate) fn nearest_operation(&self, span: usize) -> Option<usize> {
        self.ancestors(span)
            .find(|&index| self.trace.spans[index].detail.as_operation().is_some())
    }

    /// The operation is open, and no plugin of its chain runs.
    pub(crate) fn is_idle(&self, operation: usize) -> bool {
        let runs =
            |span: &Span| span.parent == Some(operation) && span.end.is_none() && span.detail.as_plugin().is_some();
        self.is_open(operation)
            && (self.states[operation].open_children == 0 || !self.trace.spans[operation..].iter().any(runs))
    }

    /// It is the trace of a sandbox's creation.
    pub(crate) fn is_creation(&self) -> bool {
        self.trace
            .spans
            .first()
            .is_some_and(|root| root.detail.as_sandbox().is_some())
    }

    /// It is the trace of a sandbox's creation, and the creation is over: only readiness is pending.
    pub(crate) fn is_created(&self) -> bool {
        self.is_creation() && !self.is_open(CREATE)
    }

    /// Operations that the runtime requested, in order of begin. An operation that a plugin requested lies below that
    /// plugin and is not among them.
    pub(crate) fn runtime_operations(&self) -> impl Iterator<Item = (usize, &OperationDetail)> {
        let parent = self.is_creation().then_some(CREATE);
        let spans = self.trace.spans.iter().enumerate();
        spans
            .filter(move |(_, span)| span.parent == parent)
            .filter_map(|(index, span)| Some((index, span.detail.as_operation()?)))
    }

    /// The detail of the operation at `span`; `None` if that is no operation.
    pub(crate) fn operation(&self, span: usize) -> Option<&OperationDetail> {
        self.trace.spans.get(span)?.detail.as_operation()
    }

    pub(crate) fn operation_mut(&mut self, span: usize) -> Option<&mut OperationDetail> {
        self.trace.spans.get_mut(span)?.detail.as_operation_mut()
    }

    /// The operation failed.
    pub(crate) fn has_failed(&self, span: usize) -> bool {
        self.trace.spans.get(span).is_some_and(|span| span.status.is_error())
    }

    /// Moves the begin of the first two spans, root and `sandbox.create`, to an earlier time, never to a later one.
    pub(crate) fn begin_earlier(&mut self, at: Timestamp) {
        for span in self.trace.spans.iter_mut().take(CREATE + 1) {
            span.start = span.start.min(at);
        }
    }

    /// The span's key, for use outside of the trace.
    pub(crate) fn reference(&self, span: usize) -> SpanRef {
        SpanRef { trace: self.key, span }
    }

    /// Sets a timer that is cancelled when the span ends. A span has at most one.
    pub(crate) fn set_timer(&mut self, span: usize, timer: Timer, at: Timestamp, effects: &mut Effects) {
        self.states[span].timer = Some(timer);
        effects.timers.set(timer, at);
    }

    /// Cancels the span's timer.
    pub(crate) fn clear_timer(&mut self, span: usize, effects: &mut Effects) {
        if let Some(timer) = self.states[span].timer.take() {
            effects.timers.clear(timer);
        }
    }

    /// The span, its parent, and so on to the root.
    fn ancestors(&self, span: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(span), |&index| self.trace.spans.get(index)?.parent)
    }

    /// Adds a span event, in order of time and not before the span's begin. Beyond the bound it is left out.
    pub(crate) fn mark(&mut self, span: usize, at: Timestamp, name: &str, attributes: &[(&str, String)]) {
        let span = &mut self.trace.spans[span];
        if span.events.len() >= MAX_SPAN_EVENTS {
            return;
        }
        let at = at.max(span.start);
        let place = span.events.partition_point(|event| event.at <= at);
        span.events.insert(
            place,
            SpanEvent {
                at,
                name: name.to_owned(),
                attributes: attributes
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), value.clone()))
                    .collect(),
            },
        );
    }

    /// Notes that the trace changed, once until `clean`.
    pub(crate) fn touch(&mut self, effects: &mut Effects) {
        if !self.dirty {
            self.dirty = true;
            effects.changed.push(self.key);
        }
    }

    /// The change was reported.
    pub(crate) fn clean(&mut self) {
        self.dirty = false;
    }

    /// The sandbox's id as text; empty for none.
    pub(crate) fn sandbox(&self) -> &str {
        self.trace.sandbox.as_ref().map_or("", |SandboxId(id)| id)
    }
}
