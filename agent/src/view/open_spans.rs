//! What an open trace waits for: its chain of open spans.
//!
//! Used by `running` and `verdict`. A leaf.

use sandglass_model::{Span, Trace};

/// The newest open span below `top`, the newest below that, and so on.
pub(super) fn open_below(trace: &Trace, top: usize) -> Vec<&Span> {
    let mut chain = Vec::new();
    let mut at = top;
    // Parents precede their children, so one pass forward follows the chain down.
    while let Some((index, span)) = trace
        .spans
        .iter()
        .enumerate()
        .skip(at + 1)
        .filter(|(_, span)| span.parent == Some(at) && span.end.is_none())
        .max_by_key(|(_, span)| span.start)
    {
        chain.push(span);
        at = index;
    }
    chain
}
