//! Where the creation of a sandbox ends within its trace, and its traffic begins.
//!
//! Used by metrics and store, which keep the two apart: how long a program takes until it uses its network says nothing
//! about the node.

use sandglass_model::{Detail, Timestamp, Trace};

/// When the creation of the trace's sandbox was over: `sandbox.create` ended, or the root did, whichever was first.
/// `None` while it goes on, and of other traces.
#[must_use]
pub fn created(trace: &Trace) -> Option<Timestamp> {
    if !matches!(trace.root().detail, Detail::Sandbox(_)) {
        return None;
    }
    let is_create = |detail: &Detail| matches!(detail, Detail::SandboxCreate(_));
    let create = trace.spans.iter().find(|span| is_create(&span.detail));
    let ends = [create.and_then(|span| span.end), trace.root().end];
    ends.into_iter().flatten().min()
}

/// The creation is over, and the trace waits for the sandbox's first traffic.
#[must_use]
pub fn waits_for_traffic(trace: &Trace) -> bool {
    !trace.closed && created(trace).is_some()
}

/// The trace as far as the creation goes: it ends when that was over, and what traffic there was takes no time.
#[must_use]
pub fn set_up(trace: &Trace, created: Timestamp) -> Trace {
    let mut part = trace.clone();
    for (index, span) in part.spans.iter_mut().enumerate() {
        if index == 0 {
            span.end = Some(created);
        } else if matches!(span.detail, Detail::Lookup(_) | Detail::Connect(_)) {
            span.end = Some(span.start);
        }
    }
    part
}
