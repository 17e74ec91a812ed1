//! What HNS and HCS do now, in the traces of the sandboxes they likely do it for.
//!
//! Whose an activity is, is decided when it has ended (`nests.rs`): what is shown of a running one is an opinion, made anew
//! each time it is asked for. So it stands in copies of the open traces and changes nothing.

use std::collections::BTreeMap;

use sandglass_model::{Span, SpanId, Trace};

use super::nests::{Nest, shown};
use super::ongoing::Activity;
use crate::correlator::Correlator;
use crate::open::{OpenTrace, TraceKey};

/// Most nests looked at, the newest first: older ones were hardly seen to end.
const MAX_SHOWN: usize = 256;

impl Correlator {
    /// The open traces of a Windows node for whose sandboxes HNS or HCS is at work, with those activities as spans that
    /// run. All others are as [`open`](Correlator::open) gives them.
    #[must_use]
    pub fn with_running(&self) -> Vec<Trace> {
        let mut found: BTreeMap<TraceKey, Trace> = BTreeMap::new();
        let activities = &self.windows.activities;
        for root in activities.roots().take(MAX_SHOWN) {
            let members = activities.nest_of(root);
            let all = members.iter().map(|(_, activity)| (*activity).clone()).collect();
            let nest = Nest::running(all, self.now);
            if let Some((key, ambiguous)) = self.likely_home(&nest)
                && let Some(open) = self.traces.get(key)
                && let Some(within) = nest.within(open).and_then(|within| open.nearest_open(within))
            {
                let trace = found.entry(key).or_insert_with(|| open.trace.clone());
                self.show(open, trace, within, &members, ambiguous);
            }
        }
        found.into_values().collect()
    }

    /// Adds a nest to a copy of the trace, below a span that is open.
    fn show(&self, open: &OpenTrace, trace: &mut Trace, within: usize, members: &[(u64, &Activity)], ambiguous: bool) {
        let mut places: BTreeMap<u64, usize> = BTreeMap::new();
        for (number, activity) in members {
            if trace.spans.len() >= self.config.max_spans {
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
}
