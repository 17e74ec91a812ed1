//! What the time of a request went to: what the daemon ran for it, what the daemon's own threads did, as far as that is known, and the
//! daemon itself.
//!
//! Used by the room of daemons when a request ends. The sum is the request's duration. Does not: find the path through the threads (the
//! room of waits does).

use sandglass_model::time::MILLISECOND;
use sandglass_model::trace::Confidence;
use sandglass_model::waits::{TimeReason, TimeSpent, WaitDetail, WaitGroup};
use sandglass_model::{SmolStr, Span, Timestamp, registry};

use crate::daemon_path::DaemonPath;

/// What the daemon's threads did, and how sure it is that they did it for the request.
pub(super) type Through<'p> = (&'p DaemonPath, Confidence);

/// A wait has a span from this duration on, and from this part of its request's time on (1/50): as those of a process.
const SHOWN_NS: u64 = MILLISECOND;
/// See [`SHOWN_NS`].
const SHOWN_PART: u64 = 50;
/// Waits of a request that have a span.
const SHOWN_MAX: usize = 8;

/// The time of the request at `request`, which ends at `end`. `None` when of nothing that it ran a time is known, and nothing of its
/// threads.
pub(super) fn of_request(
    spans: &[Span],
    request: usize,
    end: Timestamp,
    through: Option<Through<'_>>,
) -> Option<TimeSpent> {
    let span = spans.get(request)?;
    let below = spans[request..].iter().filter(|span| span.parent == Some(request));
    let mut below: Vec<&Span> = below.filter(|span| span.process().is_some()).collect();
    if through.is_none() && !below.iter().any(|span| span.detail.time().is_some()) {
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
        own += own_part(&mut time, through, at, from);
        let ns = to.since(from);
        match child.detail.time() {
            Some(spent) if spent.total_ns() == ns => time.merge(spent),
            Some(spent) => time.merge(&spent.in_proportion(ns)),
            None => time.add(TimeReason::Unknown, ns),
        }
        at = to;
    }
    own += own_part(&mut time, through, at, end);
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

/// Adds what the daemon's threads did between `from` and `to`. Returns for how much of that nothing is known of them.
fn own_part(time: &mut TimeSpent, through: Option<Through<'_>>, from: Timestamp, to: Timestamp) -> u64 {
    let mut unknown = to.since(from);
    let Some((path, confidence)) = through else {
        return unknown;
    };
    for piece in &path.pieces {
        let ns = piece.to.min(to).since(piece.from.max(from));
        let Some((reason, wait)) = piece.what.as_ref().filter(|_| ns > 0) else {
            continue;
        };
        unknown -= ns;
        time.add(*reason, ns);
        if let Some(wait) = wait {
            time.add_wait(&WaitGroup {
                ns,
                confidence: Some(confidence),
                ..wait.clone()
            });
        }
    }
    unknown
}

/// The longest waits of the daemon's threads that are worth a span, in order. One for a child has the child's span.
pub(super) fn shown((path, confidence): Through<'_>, request_ns: u64) -> Vec<(Timestamp, Timestamp, WaitDetail)> {
    let least = (request_ns / SHOWN_PART).max(SHOWN_NS);
    let mut shown: Vec<(Timestamp, Timestamp, WaitDetail)> = path
        .pieces
        .iter()
        .filter(|piece| piece.to.since(piece.from) >= least)
        .filter_map(|piece| {
            let (_, wait) = piece.what.as_ref()?;
            let wait = wait.as_ref().filter(|wait| wait.reason != TimeReason::Child)?;
            let detail = WaitDetail {
                reason: wait.reason,
                what: wait.what.clone(),
                by: wait.by.clone(),
                confidence: Some(confidence),
            };
            Some((piece.from, piece.to, detail))
        })
        .collect();
    shown.sort_by_key(|(from, to, _)| std::cmp::Reverse(to.since(*from)));
    shown.truncate(SHOWN_MAX);
    shown.sort_by_key(|(from, ..)| *from);
    shown
}
