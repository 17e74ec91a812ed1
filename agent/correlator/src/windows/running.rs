//! What HNS and HCS do now, in the traces of the sandboxes they likely do it for.
//!
//! Whose an activity is, is decided when it has ended (`nest_end.rs`): what is shown of a running one is an opinion, made anew
//! each time it is asked for. So it stands in copies of the open traces and changes nothing.

use std::collections::BTreeMap;

use sandglass_model::{Span, SpanId, Trace};

use crate::context::Context;
use crate::keys::TraceKey;
use crate::open_trace::OpenTrace;
use crate::windows::Windows;
use crate::windows::nest::Nest;
use crate::windows::ongoing::Activity;
use crate::windows::placing::{shown, within};

/// Most nests looked at, the newest first: older ones were hardly seen to end.
const MAX_SHOWN: usize = 256;

impl Windows {
    /// The open traces of a Windows node for whose sandboxes HNS or HCS is at work, with those activities as spans that
    /// run. All others are as [`open`](crate::Correlator::open) gives them.
    #[must_use]
    pub(crate) fn with_running(&self, ctx: &Context) -> Vec<Trace> {
        let mut found: BTreeMap<TraceKey, Trace> = BTreeMap::new();
        let activities = &self.activities;
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

/// Adds a nest to a copy of the trace, below a span that is open.
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
        if trace.spans.len() >= ctx.config.max_spans {
            return;
        }
        let mut parent = activity.parent.and_then(|parent| places.get(&parent).copied());
        // Its caller may have ended before it.
        while let Some(place) = parent.filter(|&place| activity.end.is_none() && trace.spans[place].end.is_some()) {
            parent = trace.spans[place].parent;
        }
        let parent = parent.unwrap_or(within);
        let around = &trace.spans[parent];
        let start = activity.start.max(around.start);
        let latest = |end| around.end.map_or(end, |around| around.min(end));
        let end = activity.end.map(|end| latest(end.max(start)));
        let (detail, status) = shown(activity, ambiguous);
        places.insert(*number, trace.spans.len());
        trace.spans.push(Span {
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
