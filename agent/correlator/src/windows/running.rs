//! Shows the HNS and HCS activities that run now, in copies of the traces that they likely belong to.
//!
//! Used by `snapshots.rs` for page, API and terminal. An activity is attributed when it has ended (`nest_end.rs`);
//! where a running one belongs is an opinion that is made anew for each snapshot. Does not: change the open traces, or
//! get into an export.

use std::collections::BTreeMap;

use sandglass_model::{Span, SpanId, Trace};

use crate::context::Context;
use crate::keys::TraceKey;
use crate::open_trace::OpenTrace;
use crate::windows::Windows;
use crate::windows::nest::Nest;
use crate::windows::ongoing::Activity;
use crate::windows::placing::{shown, within};

/// Bound on nests shown, newest first: the stops of older ones were most likely lost. Each is attributed anew for each
/// snapshot, which is the cost that this bounds.
const MAX_SHOWN: usize = 256;

impl Windows {
    /// Copies of the open traces of a Windows node whose sandboxes HNS or HCS works for, with those activities as spans
    /// without an end. For all other traces use [`open`](crate::Correlator::open).
    #[must_use]
    pub(crate) fn with_running(&self, ctx: &Context) -> Vec<Trace> {
        let mut found: BTreeMap<TraceKey, Trace> = BTreeMap::new();
        let activities = &self.activities;
        // Each nest is attributed by itself; several may lie in one trace.
        for root in activities.roots().take(MAX_SHOWN) {
            let members = activities.nest_of(root);
            let all = members.iter().map(|(_, activity)| (*activity).clone()).collect();
            let nest = Nest::running(all, ctx.now);
            if let Some((key, ambiguous)) = self.objects.likely_home(ctx, &nest)
                && let Some(open) = ctx.traces.get(key)
                && let Some(around) = within(open, &nest).and_then(|around| open.nearest_open(around))
            {
                let trace = found.entry(key).or_insert_with(|| open.trace.clone());
                show(ctx, open, trace, around, &members, ambiguous);
            }
        }
        found.into_values().collect()
    }
}

/// Adds a nest to a copy of the trace, below the open span `within`.
fn show(
    ctx: &Context,
    open: &OpenTrace,
    trace: &mut Trace,
    within: usize,
    members: &[(u64, &Activity)],
    ambiguous: bool,
) {
    let mut places: BTreeMap<u64, usize> = BTreeMap::new();
    for (number, activity) in members {
        // The copy has the bound of every trace; nothing is counted, since the next copy may have room.
        if trace.spans.len() >= ctx.config.max_spans {
            return;
        }
        let mut parent = activity.parent.and_then(|parent| places.get(&parent).copied());
        // An activity may outlast the one that caused it.
        while let Some(place) = parent.filter(|&place| activity.end.is_none() && trace.spans[place].end.is_some()) {
            parent = trace.spans[place].parent;
        }
        let parent = parent.unwrap_or(within);
        let around = &trace.spans[parent];
        let start = activity.start.max(around.start);
        // The copy keeps the invariants of a trace: a child ends within its parent.
        let latest = |end| around.end.map_or(end, |around| around.min(end));
        let end = activity.end.map(|end| latest(end.max(start)));
        let (detail, status) = shown(activity, ambiguous);
        places.insert(*number, trace.spans.len());
        trace.spans.push(Span {
            // An id of its own, the same in each copy: a page that redraws must find the span again.
            id: SpanId::of(&[&open.trace.id.0.to_le_bytes(), b"running", &number.to_le_bytes()]),
            parent: Some(parent),
            start: end.map_or(start, |end| start.min(end)),
            end,
            status,
            detail,
            events: Vec::new(),
            links: Vec::new(),
        });
    }
}
