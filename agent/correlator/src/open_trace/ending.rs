//! Ends spans of an open trace: by itself, with the span around it, or because nothing more is known of it.
//!
//! Used by every room. Ending keeps the invariants that `open_trace.rs` names: what is open below a span ends first, and no
//! end lies before that of a child. A span is emitted as ended once, when its end is final; exchanges that are shown early
//! may still be withdrawn.
//! Does not: decide when something ends, or set the status of a plugin that ended by itself.

use sandglass_model::event::ExitStatus;
use sandglass_model::time::SECOND;
use sandglass_model::trace::Status;
use sandglass_model::{Span, Timestamp};

use crate::effects::Effects;
use crate::open_trace::OpenTrace;
use crate::output::{EndedSpan, Output};

/// Why a span ends although its process has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The span around it ended; the process runs on as a daemon.
    Outlived,
    /// It, or the span around it, exceeded the timeout.
    Deadline {
        /// The timeout in nanoseconds, for the message.
        deadline_ns: u64,
    },
    /// The trace is evicted, or the input has ended.
    Abandoned,
}

impl Cut {
    /// Error class and message of a plugin that is cut; `None` if being cut is no failure.
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

impl OpenTrace {
    /// Ends a span, after what is still open below it, which `below` explains. Does nothing if it has ended.
    pub(crate) fn end(&mut self, span: usize, at: Timestamp, below: Cut, effects: &mut Effects) {
        if !self.is_open(span) {
            return;
        }
        if self.states[span].open_children > 0 {
            // From the back: children have higher indices than their parents, so that the innermost end first.
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
            // Spans without a process: an activity, a wait or a request is cut here; an operation or the creation ends with the
            // last span in it.
            let Span { start, detail, .. } = &self.trace.spans[span];
            let cut_here =
                detail.as_activity().is_some() || detail.as_vnic_wait().is_some() || detail.as_daemon().is_some();
            let at = if cut_here { at } else { *start };
            return self.end(span, at, cut, effects);
        };
        match cut {
            // No failure: daemons that a plugin leaves behind are usual.
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

    /// Ends a span below which nothing is open: sets its end, not before its children's, and emits it.
    fn end_leaf(&mut self, index: usize, at: Timestamp, effects: &mut Effects) {
        self.clear_timer(index, effects);
        let end = at.max(self.states[index].latest);
        let span = &mut self.trace.spans[index];
        span.end = Some(end);
        if let Some(parent) = span.parent {
            let parent = &mut self.states[parent];
            // The parent cannot end before this, and may be idle from now on.
            parent.open_children = parent.open_children.saturating_sub(1);
            parent.latest = parent.latest.max(end);
        }
        let ended = EndedSpan::of(&self.trace, &self.trace.spans[index]);
        effects.outputs.push(Output::Ended(ended));
        self.touch(effects);
    }

    /// Ends a lookup or connect that was shown, with or without its end, before it was known whether it belongs here.
    pub(crate) fn end_shown(&mut self, span: usize, at: Timestamp, effects: &mut Effects) {
        self.trace.spans[span].end = None;
        self.end_leaf(span, at, effects);
    }

    /// Takes a span back that turned out not to belong here. Only for spans that were not emitted as ended.
    pub(crate) fn withdraw(&mut self, span: usize) {
        let start = self.trace.spans[span].start;
        self.trace.spans[span].end = Some(start);
        self.states[span].withdrawn = true;
        if let Some(parent) = self.trace.spans[span].parent {
            let parent = &mut self.states[parent];
            parent.open_children = parent.open_children.saturating_sub(1);
        }
    }
}
