//! What the time of a creation went to: its operations, the runtime's steps, and the runtime's daemon between them.
//!
//! Used by `correlator.rs` when a creation is over; what the daemon did meanwhile is in the room of waits.
//! Invariant: the sum of a time is the duration of `sandbox.create`, to the nanosecond.
//! Does not: find reasons.

use sandglass_model::waits::{TimeReason, TimeSpent};
use sandglass_model::{ProcessKey, Timestamp};

use crate::context::Context;
use crate::keys::{SpanRef, TraceKey};
use crate::open_trace::{CREATE, OpenTrace};
use crate::sandboxes::Sandboxes;

/// A creation, cut into what its operations and steps took and what lies between them.
#[derive(Debug)]
pub(crate) struct CreationParts {
    /// The runtime's daemon.
    pub(crate) runtime: ProcessKey,
    /// Time in which no operation and no step was open, in order.
    gaps: Vec<(Timestamp, Timestamp)>,
    /// What operations and steps took.
    inside: TimeSpent,
}

impl CreationParts {
    /// Time in which no operation and no step was open, in order.
    pub(crate) fn gaps(&self) -> impl Iterator<Item = (Timestamp, Timestamp)> {
        self.gaps.iter().copied()
    }

    /// The whole, with the time of the gaps. `None` where nothing of it was recorded.
    pub(crate) fn time(&self, gaps: impl Iterator<Item = TimeSpent>) -> Option<TimeSpent> {
        let mut time = self.inside.clone();
        for gap in gaps {
            time.merge(&gap);
        }
        time.parts
            .iter()
            .any(|(reason, _)| *reason != TimeReason::Unknown)
            .then_some(time)
    }
}

impl Sandboxes {
    /// The time of a runtime step that has ended.
    pub(crate) fn on_step_time(&self, ctx: &mut Context, step: SpanRef, spent: TimeSpent) {
        if let Some(open) = ctx.traces.get_mut(step.trace)
            && let Some(detail) = open.trace.spans[step.span].detail.as_step_mut()
        {
            detail.process.time = Some(Box::new(spent));
            open.touch(&mut ctx.effects);
        }
    }

    /// The parts of a creation that is to be closed now. `None` where its runtime is not known, or it is no creation.
    pub(crate) fn creation_parts(&self, ctx: &Context, trace: TraceKey) -> Option<CreationParts> {
        let runtime = self.creations.get(trace)?.runtime?;
        let open = ctx.traces.get(trace)?;
        let (gaps, inside) = divide(open);
        Some(CreationParts { runtime, gaps, inside })
    }

    /// What the time of a creation went to, just before it is closed.
    pub(crate) fn on_creation_time(&self, ctx: &mut Context, trace: TraceKey, time: Option<TimeSpent>) {
        if let Some(open) = ctx.traces.get_mut(trace)
            && let Some(create) = open.trace.spans[CREATE].detail.as_create_mut()
        {
            create.time = time.map(Box::new);
        }
    }
}

/// Divides the time of `sandbox.create`, which ends with the last span in it, or later where the runtime reported so. Where
/// several are open at once (a runtime attaches `lo` and `eth0` side by side) the time is that of the one that ends last, since
/// the runtime waits for it, as in [`Breakdown`](sandglass_model::phases::Breakdown).
fn divide(open: &OpenTrace) -> (Vec<(Timestamp, Timestamp)>, TimeSpent) {
    let spans = &open.trace.spans;
    let start = spans[CREATE].start;
    // An operation that is open when its trace is closed ends with the last span in it (`OpenTrace::cut`); processes, which are
    // cut at that moment, have ended.
    let end_of = |index: usize| {
        let latest = open.states[index].latest;
        spans[index].end.unwrap_or(latest).max(spans[index].start)
    };
    let children: Vec<usize> = (0..spans.len())
        .filter(|index| spans[*index].parent == Some(CREATE))
        .collect();
    let end = children
        .iter()
        .map(|child| end_of(*child))
        .fold(end_of(CREATE), Timestamp::max);
    let mut edges: Vec<Timestamp> = children
        .iter()
        .flat_map(|child| [spans[*child].start, end_of(*child)])
        .collect();
    edges.extend([start, end]);
    edges.sort_unstable();
    edges.dedup();
    let mut gaps: Vec<(Timestamp, Timestamp)> = Vec::new();
    let mut on_path = vec![0; children.len()];
    for slice in edges.windows(2) {
        let (from, to) = (slice[0], slice[1]);
        let is_open = |place: &usize| spans[children[*place]].start <= from && end_of(children[*place]) >= to;
        let owner = (0..children.len())
            .filter(is_open)
            .max_by_key(|place| end_of(children[*place]));
        match (owner, gaps.last_mut()) {
            (Some(owner), _) => on_path[owner] += to.since(from),
            (None, Some(gap)) if gap.1 == from => gap.1 = to,
            (None, _) => gaps.push((from, to)),
        }
    }
    let mut inside = TimeSpent::default();
    for (child, ns) in children.into_iter().zip(on_path) {
        match spans[child].detail.time() {
            _ if ns == 0 => {}
            Some(time) if time.total_ns() == ns => inside.merge(time),
            Some(time) => inside.merge(&time.in_proportion(ns)),
            None => inside.add(TimeReason::Unknown, ns),
        }
    }
    (gaps, inside)
}
