//! Makes the trace that is shown or exported: spans in order of begin, without those that were withdrawn.
//!
//! Used by the room of sandboxes when a trace closes, and for copies of open ones. An open trace keeps its spans in order of
//! insertion, because their indices are keys; readers expect parents before children and begins in order.

use sandglass_model::{Span, Trace};

use crate::open_trace::{OpenTrace, SpanState};

impl OpenTrace {
    /// The complete trace, spans in order of begin, so that parents stand before children. Late records may have put a
    /// span behind younger ones.
    pub(crate) fn into_trace(self: Box<Self>) -> Trace {
        let mut trace = in_order(self.trace, &self.states);
        trace.closed = true;
        // The store keeps it for long.
        trace.spans.shrink_to_fit();
        trace
    }

    /// The trace as it is now, spans in order of begin.
    pub(crate) fn trace_so_far(&self) -> Trace {
        in_order(self.trace.clone(), &self.states)
    }
}

/// Sorts spans by begin and leaves out withdrawn ones; parents' indices follow.
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
