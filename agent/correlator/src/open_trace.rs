//! An open trace: its spans, and what keeps them consistent while it is open.
//!
//! Used by every room through the [`Context`](crate::context::Context). Keeps the invariants of [`Trace::check`] by
//! construction: a span only begins below an open span, everything open below a span ends with it, and a parent never ends
//! before a child. Does not: decide when something ends.

use sandglass_model::event::ExitStatus;
use sandglass_model::time::SECOND;
use sandglass_model::trace::{Detail, OperationDetail, SpanEvent, Status};
use sandglass_model::{ClockAnchor, PodIdentity, SandboxId, Span, SpanId, Timestamp, Trace, TraceId};

use crate::effects::Effects;
use crate::keys::{SpanRef, TraceKey};
use crate::output::{EndedSpan, Output};
use crate::timers::Timer;

/// State of a span besides what it exports.
#[derive(Debug, Default)]
pub(crate) struct SpanState {
    /// Open spans directly below it.
    open_children: u32,
    /// The latest end of a span directly below it, and at least its own begin.
    pub(crate) latest: Timestamp,
    /// Cancelled when the span ends.
    pub(crate) timer: Option<Timer>,
    /// It turned out not to belong to the trace.
    withdrawn: bool,
}

/// Index of the span `sandbox.create` in the trace of a sandbox's creation, whose root is span 0.
pub(crate) const CREATE: usize = 1;

/// An open trace.
#[derive(Debug)]
pub(crate) struct OpenTrace {
    pub(crate) key: TraceKey,
    pub(crate) trace: Trace,
    /// One per span.
    pub(crate) states: Vec<SpanState>,
    /// Our own trace id, also where the trace goes by the runtime's id, which two sandboxes may share. Span ids are made of
    /// it.
    seed: TraceId,
    max_spans: usize,
    /// It is in [`Effects::changed`].
    dirty: bool,
}

/// Why spans end without their process having ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// What they ran under has ended; they run on.
    Outlived,
    /// They, or what they ran under, ran too long.
    Deadline { deadline_ns: u64 },
    /// The trace is given up, or the input has ended.
    Abandoned,
}

impl Cut {
    /// Error class and message that it means for a plugin.
    pub(crate) fn failure(self) -> Option<(String, String)> {
        match self {
            Cut::Deadline { deadline_ns } => Some((
                "deadline".to_owned(),
                format!("still running after {} s", deadline_ns / SECOND),
            )),
            Cut::Outlived | Cut::Abandoned => None,
        }
    }
}

/// Most events in one span: an endless loop of exec must not grow it without bound.
const MAX_SPAN_EVENTS: usize = 32;

impl OpenTrace {
    pub(crate) fn new(
        key: TraceKey,
        seed: TraceId,
        caller: Option<(TraceId, SpanId)>,
        anchor: ClockAnchor,
        max_spans: usize,
    ) -> OpenTrace {
        OpenTrace {
            key,
            trace: Trace {
                id: caller.map_or(seed, |(trace, _)| trace),
                sandbox: None,
                identity: PodIdentity::default(),
                anchor,
                incomplete: false,
                closed: false,
                remote_parent: caller.map(|(_, span)| span),
                spans: Vec::new(),
            },
            states: Vec::new(),
            seed,
            max_spans: max_spans.max(8),
            dirty: false,
        }
    }

    /// Makes room for a usual sandbox's spans: growing step by step would copy most of them twice.
    pub(crate) fn expect_sandbox(&mut self) {
        self.trace.spans.reserve(16);
        self.states.reserve(16);
    }

    /// Begins a span below an open span. `None` when the trace is full; commands are refused first, so that a plugin
    /// that runs hundreds of them does not hide the next plugin.
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

    pub(crate) fn is_open(&self, span: usize) -> bool {
        self.trace.spans.get(span).is_some_and(|span| span.end.is_none())
    }

    /// The span itself, or its nearest ancestor that is open.
    pub(crate) fn nearest_open(&self, span: usize) -> Option<usize> {
        self.ancestors(span).find(|&index| self.is_open(index))
    }

    /// The plugin span that `span` is, or lies below.
    pub(crate) fn nearest_plugin(&self, span: usize) -> Option<usize> {
        self.ancestors(span)
            .find(|&index| self.trace.spans[index].detail.as_plugin().is_some())
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

    /// It is the trace of a sandbox's creation, and that is over: only readiness is pending.
    pub(crate) fn is_created(&self) -> bool {
        self.is_creation() && !self.is_open(CREATE)
    }

    /// Operations that the runtime requested, in order of begin: an operation that a plugin requests lies below a plugin.
    pub(crate) fn runtime_operations(&self) -> impl Iterator<Item = (usize, &OperationDetail)> {
        let parent = self.is_creation().then_some(CREATE);
        let spans = self.trace.spans.iter().enumerate();
        spans
            .filter(move |(_, span)| span.parent == parent)
            .filter_map(|(index, span)| Some((index, span.detail.as_operation()?)))
    }

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

    /// Moves the begin of the root and of `sandbox.create`, never forward.
    pub(crate) fn begin_earlier(&mut self, at: Timestamp) {
        for span in self.trace.spans.iter_mut().take(CREATE + 1) {
            span.start = span.start.min(at);
        }
    }

    pub(crate) fn reference(&self, span: usize) -> SpanRef {
        SpanRef { trace: self.key, span }
    }

    /// Sets a timer that is cancelled when the span ends.
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

    /// `span`, its parent, and so on to the root.
    fn ancestors(&self, span: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(span), |&index| self.trace.spans.get(index)?.parent)
    }

    /// Ends a span, what is still open below it first.
    pub(crate) fn end(&mut self, span: usize, at: Timestamp, below: Cut, effects: &mut Effects) {
        if !self.is_open(span) {
            return;
        }
        if self.states[span].open_children > 0 {
            for index in (span + 1..self.trace.spans.len()).rev() {
                if self.is_open(index) && self.ancestors(index).any(|ancestor| ancestor == span) {
                    self.cut(index, at, below, effects);
                }
            }
        }
        self.end_leaf(span, at, effects);
    }

    /// Ends a span that did not end by itself, and what is open below it.
    pub(crate) fn cut(&mut self, span: usize, at: Timestamp, cut: Cut, effects: &mut Effects) {
        if !self.is_open(span) {
            return;
        }
        let Some(process) = self.trace.spans[span].process_mut() else {
            // An activity or a wait is cut here; anything else ends with the last span in it.
            let Span { start, detail, .. } = &self.trace.spans[span];
            let cut_here = detail.as_activity().is_some() || detail.as_vnic_wait().is_some();
            let at = if cut_here { at } else { *start };
            return self.end(span, at, cut, effects);
        };
        match cut {
            Cut::Outlived => process.outlived_parent = true,
            Cut::Deadline { .. } => {
                if let Some((class, message)) = cut.failure() {
                    self.trace.spans[span].status = Status::Error { class, message };
                }
            }
            Cut::Abandoned => {
                process.exit = Some(ExitStatus::Unknown);
                self.trace.incomplete = true;
            }
        }
        self.end(span, at, cut, effects);
    }

    fn end_leaf(&mut self, index: usize, at: Timestamp, effects: &mut Effects) {
        self.clear_timer(index, effects);
        let end = at.max(self.states[index].latest);
        let span = &mut self.trace.spans[index];
        span.end = Some(end);
        if let Some(parent) = span.parent {
            let parent = &mut self.states[parent];
            parent.open_children = parent.open_children.saturating_sub(1);
            parent.latest = parent.latest.max(end);
        }
        let ended = EndedSpan::of(&self.trace, &self.trace.spans[index]);
        effects.outputs.push(Output::Ended(ended));
        self.touch(effects);
    }

    /// Ends a lookup or connection that was shown, with or without its end, before it was known to belong here.
    pub(crate) fn end_shown(&mut self, span: usize, at: Timestamp, effects: &mut Effects) {
        self.trace.spans[span].end = None;
        self.end_leaf(span, at, effects);
    }

    /// The span does not belong here; it was never told to have ended.
    pub(crate) fn withdraw(&mut self, span: usize) {
        let start = self.trace.spans[span].start;
        self.trace.spans[span].end = Some(start);
        self.states[span].withdrawn = true;
        if let Some(parent) = self.trace.spans[span].parent {
            let parent = &mut self.states[parent];
            parent.open_children = parent.open_children.saturating_sub(1);
        }
    }

    /// Adds an instant, in time order.
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

    /// The trace changed.
    pub(crate) fn touch(&mut self, effects: &mut Effects) {
        if !self.dirty {
            self.dirty = true;
            effects.changed.push(self.key);
        }
    }

    /// The change was told.
    pub(crate) fn clean(&mut self) {
        self.dirty = false;
    }

    /// The sandbox's id as text; empty for none.
    pub(crate) fn sandbox(&self) -> &str {
        self.trace.sandbox.as_ref().map_or("", |SandboxId(id)| id)
    }

    /// The finished trace, spans in order of begin. Late records may have put a span behind younger ones.
    pub(crate) fn into_trace(self: Box<Self>) -> Trace {
        let mut trace = in_order(self.trace, &self.states);
        trace.closed = true;
        // It is kept for long.
        trace.spans.shrink_to_fit();
        trace
    }

    /// The trace as it is now, spans in order of begin.
    pub(crate) fn trace_so_far(&self) -> Trace {
        in_order(self.trace.clone(), &self.states)
    }
}

fn in_order(mut trace: Trace, states: &[SpanState]) -> Trace {
    let stays = |index: &usize| !states[*index].withdrawn;
    if trace.spans.is_sorted_by_key(|span| span.start) && (0..trace.spans.len()).all(|index| stays(&index)) {
        return trace;
    }
    // Stable, and no child begins before its parent: parents stay before their children. What is withdrawn has none.
    let mut order: Vec<usize> = (0..trace.spans.len()).filter(stays).collect();
    order.sort_by_key(|&index| trace.spans[index].start);
    let mut places = vec![0; trace.spans.len()];
    for (place, &index) in order.iter().enumerate() {
        places[index] = place;
    }
    let mut spans: Vec<Option<Span>> = trace.spans.into_iter().map(Some).collect();
    trace.spans = order.iter().filter_map(|&index| spans[index].take()).collect();
    for span in &mut trace.spans {
        span.parent = span.parent.map(|parent| places[parent]);
    }
    trace
}
