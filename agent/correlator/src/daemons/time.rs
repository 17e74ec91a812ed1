//! What the time of a request went to: what the daemon ran for it, and the daemon itself.
//!
//! Used by the room of daemons when a request ends. The sum is the request's duration. Does not: know what the daemon's own threads
//! waited for; they serve several requests, and programs with goroutines move work between them.

use sandglass_model::waits::{TimeReason, TimeSpent, WaitGroup};
use sandglass_model::{SmolStr, Span, Timestamp, registry};

/// The time of the request at `request`, which ends at `end`. `None` when of nothing that it ran a time is known.
pub(super) fn of_request(spans: &[Span], request: usize, end: Timestamp) -> Option<TimeSpent> {
    let span = spans.get(request)?;
    let below = spans[request..].iter().filter(|span| span.parent == Some(request));
    let mut below: Vec<&Span> = below.filter(|span| span.process().is_some()).collect();
    if !below.iter().any(|span| span.detail.time().is_some()) {
        return None;
    }
    below.sort_by_key(|span| span.start);
    let mut time = TimeSpent::default();
    let mut own = 0;
    let mut at = span.start;
    for child in below {
        let (from, to) = (child.start.max(at).min(end), child.end.unwrap_or(end).min(end));
        if to <= from {
            continue;
        }
        own += from.since(at);
        let ns = to.since(from);
        match child.detail.time() {
            Some(spent) if spent.total_ns() == ns => time.merge(spent),
            Some(spent) => time.merge(&spent.in_proportion(ns)),
            None => time.add(TimeReason::Unknown, ns),
        }
        at = to;
    }
    own += end.since(at);
    time.add(TimeReason::Daemon, own);
    if own > 0 {
        time.add_wait(&WaitGroup {
            reason: TimeReason::Daemon,
            ns: own,
            count: 1,
            what: String::new(),
            who: span
                .parent
                .and_then(|parent| spans.get(parent)?.process())
                .map_or_else(SmolStr::default, |process| {
                    SmolStr::new(process.path.rsplit('/').next().unwrap_or_default())
                }),
            by: span
                .detail
                .as_daemon()
                .map_or_else(SmolStr::default, |daemon| SmolStr::new(registry::daemon_name(daemon))),
            confidence: None,
        });
    }
    time.keep_longest();
    Some(time)
}
