//! What becomes of a trace whose agent was killed while it was open.
//!
//! Used by the journal. A trace says what was seen, and fails only if nobody knows how it went on:
//! - A sandbox that had been created keeps its success: only its network's readiness was not seen any more.
//! - A sandbox that the runtime has now has been created: it keeps no failure either.
//! - A sandbox for which this process found a plugin running goes on in a trace of its own, which says how it ended: the earlier one keeps no failure.
//! - Everything else fails with `interrupted` at its root. What was open in it has no failure of its own: a plugin that was
//!   running may have succeeded.
//!
//! Each open span ends where it was last seen open. Does not: count, or send.

use sandglass_model::event::ExitStatus;
use sandglass_model::trace::Status;
use sandglass_model::{Timestamp, Trace};

use crate::sinks::creation;

/// Closes a trace that was open when it was last seen, at `seen`. `exists`: the runtime has its sandbox now, or it goes on in another trace.
///
/// # Errors
/// It is no trace that the correlator makes, with the reason.
pub(super) fn close(mut trace: Trace, seen: Timestamp, exists: bool) -> Result<Trace, String> {
    if trace.spans.is_empty() {
        return Err("no root".to_owned());
    }
    let created = creation::created(&trace);
    let is_sandbox = trace.root().detail.as_sandbox().is_some();
    // From the back: children stand after their parents.
    let mut latest: Vec<Timestamp> = trace.spans.iter().map(|span| span.start).collect();
    for index in (0..trace.spans.len()).rev() {
        let span = &mut trace.spans[index];
        if span.end.is_none() {
            // What waited for a sandbox's first traffic had nothing open in it.
            let at = if index == 0 && created.is_some() {
                span.start
            } else {
                seen
            };
            span.end = Some(at.max(latest[index]));
            if let Some(process) = span.process_mut() {
                process.exit = Some(ExitStatus::Unknown);
            }
        }
        if let (Some(parent), Some(end)) = (span.parent, span.end)
            && let Some(latest) = latest.get_mut(parent)
        {
            *latest = end.max(*latest);
        }
    }
    (trace.closed, trace.incomplete) = (true, true);
    if !trace.root().status.is_error() && created.is_none() && !(is_sandbox && exists) {
        trace.spans[0].status = Status::Error {
            class: CLASS.to_owned(),
            message: "the agent ended while this went on: how it went on is not known".to_owned(),
        };
    }
    trace.check()?;
    Ok(trace)
}

/// Class of the failure.
pub(super) const CLASS: &str = "interrupted";
