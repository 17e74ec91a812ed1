//! Places nests in traces: which trace a nest belongs to, and which span it lies in.
//!
//! Used by `nest_end.rs`, `closing.rs`, `learning.rs` and, for what still runs, `running.rs`. HNS works for plugins, so
//! its activities lie in a plugin's time; HCS works after the plugins, between them and the end of the creation.
//! A trace by key is certain. Without a key the trace is the likeliest of those in which something ran at the time; where
//! several fit, the spans are marked ambiguous (`sandglass.ambiguous`).
//! Does not: pair starts and stops (`activities.rs`).

use sandglass_model::Timestamp;
use sandglass_model::trace::{ActivityDetail, Detail, Status};
use sandglass_model::windows::{ObjectKey, Service, is_failure, result_text};

use crate::context::Context;
use crate::keys::TraceKey;
use crate::open_trace::ending::Cut;
use crate::open_trace::{CREATE, OpenTrace};
use crate::windows::keys;
use crate::windows::nest::Nest;
use crate::windows::objects::Objects;
use crate::windows::ongoing::{Activities, Activity};

/// Bound on the object keys that a span of an activity shows.
const MAX_OBJECTS: usize = 8;

impl Objects {
    /// Places the nests that waited for this key. Returns their other keys, which belong to the same sandbox.
    pub(super) fn place_waiting(&mut self, ctx: &mut Context, key: &ObjectKey, number: u64) -> Vec<ObjectKey> {
        let mut learnt = Vec::new();
        let waiting = std::mem::take(&mut self.nests.waiting);
        for nest in waiting {
            if nest.keys.contains(key) {
                learnt.extend(nest.keys.iter().cloned());
                self.place_for(ctx, nest, number);
            } else {
                self.nests.waiting.push_back(nest);
            }
        }
        learnt
    }

    /// Places a nest in the trace of this sandbox that was open then. Without one it goes into none: its findings were
    /// emitted when its activities ended.
    pub(super) fn place_for(&mut self, ctx: &mut Context, nest: Nest, number: u64) {
        self.note_attach(&nest, number);
        if let Some(key) = self.trace_for(ctx, &nest, number) {
            self.place_nest(ctx, nest, key, false);
        }
    }

    /// The trace of an operation on the sandbox that ran when the nest began, else the trace of its creation.
    pub(super) fn trace_for(&self, ctx: &Context, nest: &Nest, number: u64) -> Option<TraceKey> {
        let sandbox = self.sandboxes.get(number)?;
        let mut operations = self.operations_of(ctx, &sandbox.container);
        // A DEL or CHECK that runs is preferred to the creation, which is over by then.
        let during = operations.find(|(open, _)| !open.is_creation() && open.trace.start() <= nest.start);
        during.map(|(open, _)| open.key).or(sandbox.trace)
    }

    /// The trace that a nest which still runs likely belongs to, and whether others fit too.
    pub(super) fn likely_home(&self, ctx: &Context, nest: &Nest) -> Option<(TraceKey, bool)> {
        match self.keys.owner_of(&nest.keys) {
            Some(number) => self.trace_for(ctx, nest, number).map(|key| (key, false)),
            None => self.likeliest(ctx, nest),
        }
    }

    /// The sandbox that a trace is about.
    pub(super) fn number_of_trace(&self, ctx: &Context, key: TraceKey) -> Option<u64> {
        self.sandboxes.number_of(ctx.traces.get(key)?.sandbox())
    }

    /// The only trace in which something ran when the nest began. Much of what HNS does is for others, so for a nest of
    /// HNS a plugin must have run too.
    pub(super) fn only_one_for(&self, ctx: &Context, nest: &Nest) -> Option<TraceKey> {
        let at = nest.start;
        let mut busy = ctx.traces.iter().filter(|open| self.is_active_at(open, at));
        let only = busy.next().filter(|_| busy.next().is_none())?;
        (!nest.is_of_hns() || plugin_at(only, at).is_some()).then_some(only.key)
    }

    /// A creation, or another trace, is about to close: nests that began during it go to whichever trace is likeliest.
    pub(super) fn place_likeliest(&mut self, ctx: &mut Context, key: TraceKey) {
        let waiting = std::mem::take(&mut self.nests.waiting);
        for nest in waiting {
            match self.likeliest(ctx, &nest) {
                Some((likeliest, many)) if likeliest == key => self.place_nest(ctx, nest, key, many),
                _ => self.nests.waiting.push_back(nest),
            }
        }
    }

    /// The likeliest of the traces in which something ran when the nest began, and whether there were others.
    pub(super) fn likeliest(&self, ctx: &Context, nest: &Nest) -> Option<(TraceKey, bool)> {
        if nest.names_container() {
            return None;
        }
        let hns = nest.is_of_hns();
        let mut fits = 0;
        let mut best = None;
        for open in ctx.traces.iter().filter(|open| self.is_active_at(open, nest.start)) {
            let begun = plugin_at(open, nest.start);
            // HNS works for a plugin, HCS after the plugins.
            if hns && begun.is_none() {
                continue;
            }
            // More than one that fits makes the choice ambiguous, however good the best is.
            fits += 1;
            // A plugin for HNS, or none for HCS, comes first; then the plugin that began last; then the newest trace.
            best = best.max(Some((begun.is_some() == hns, begun, open.key)));
        }
        best.map(|(_, _, key)| (key, fits > 1))
    }

    /// Something ran in the trace at that time: its sandbox was being created, or a plugin ran. A trace in which nothing ran
    /// cannot be the reason of an activity.
    pub(super) fn is_active_at(&self, open: &OpenTrace, at: Timestamp) -> bool {
        let span = open.trace.spans.get(if open.is_creation() { CREATE } else { 0 });
        let number = self.sandboxes.number_of(open.sandbox());
        let sandbox = number.and_then(|number| self.sandboxes.get(number));
        // A creation that the runtime reported is active from its begin; other traces only while a plugin runs.
        let reported = sandbox.is_some_and(|sandbox| sandbox.trace == Some(open.key));
        span.is_some_and(|span| span.start <= at && span.end.is_none_or(|end| at <= end))
            && (reported || plugin_at(open, at).is_some())
    }

    /// A creation failed: what HNS had begun for its plugin and not ended is shown up to the plugin's end, since that
    /// is where the time went.
    pub(super) fn place_unfinished(&mut self, ctx: &mut Context, activities: &mut Activities, key: TraceKey) {
        let Some(open) = ctx
            .traces
            .get(key)
            .filter(|open| open.is_creation() && !open.is_created())
        else {
            return;
        };
        let failed = open
            .trace
            .spans
            .iter()
            .filter(|span| span.detail.as_plugin().is_some() && span.status.is_error() && span.end.is_some());
        // A failed plugin waited for HNS until it gave up.
        let waited: Vec<_> = failed
            .map(|span| (span.start, span.end.unwrap_or(span.start)))
            .collect();
        for (from, to) in waited {
            for unfinished in activities.take_unfinished(from, to) {
                let nest = Nest::new(unfinished);
                let others = ctx
                    .traces
                    .iter()
                    .filter(|open| plugin_at(open, nest.start).is_some())
                    .count();
                self.place_nest(ctx, nest, key, others > 1);
            }
        }
    }

    /// Makes spans of a nest, below the innermost span that can hold it. A trace that is full is marked incomplete, and
    /// the spans are counted as evicted.
    pub(super) fn place_nest(&mut self, ctx: &mut Context, nest: Nest, key: TraceKey, ambiguous: bool) {
        let Some(open) = ctx.traces.get_mut(key) else {
            return;
        };
        let Some(within) = within(open, &nest) else {
            return;
        };
        // By index in the nest: the spans that its activities became, which are the parents of those within them.
        let mut places: Vec<Option<usize>> = Vec::with_capacity(nest.activities.len());
        for activity in nest.activities {
            // An activity whose parent found no room has none either.
            let parent = match activity.parent {
                None => Some(within),
                Some(parent) => places.get(parent as usize).copied().flatten(),
            };
            let Some(parent) = parent else {
                places.push(None);
                continue;
            };
            let around = &open.trace.spans[parent];
            // ETW stamps each event on the processor that logs it, so that a child may seem to begin before its parent.
            let latest = limit(open, parent);
            let start = activity.start.clamp(around.start, latest);
            // An activity without an end ends with the nest.
            let end = activity.end.unwrap_or(nest.end).clamp(start, latest);
            let (detail, status) = shown(&activity, ambiguous);
            let Some(span) = open.begin(Some(parent), start, detail) else {
                open.trace.incomplete = true;
                ctx.effects.counters.evicted_spans += 1;
                places.push(None);
                continue;
            };
            open.trace.spans[span].status = status;
            open.trace.spans[span].links.extend(activity.link);
            // Children follow and lie within it, so it can be ended, and reported as ended, before they begin.
            open.end(span, end, Cut::Outlived, &mut ctx.effects);
            places.push(Some(span));
        }
        open.touch(&mut ctx.effects);
    }

    /// Remembers when an endpoint of the sandbox was attached: without an interface event that is the end of the wait
    /// for it (`vnic.rs`).
    pub(super) fn note_attach(&mut self, nest: &Nest, number: u64) {
        let mut attached = nest.activities.iter().filter(|activity| {
            activity.name.contains("Attach")
                && activity.end.is_some()
                && activity.unfinished.is_none()
                && !activity.result.is_some_and(is_failure)
        });
        let Some(end) = attached.next_back().and_then(|activity| activity.end) else {
            return;
        };
        if let Some(sandbox) = self.sandboxes.get_mut(number) {
            sandbox.attached = sandbox.attached.max(Some(end));
        }
    }
}

/// Detail and status of an activity's span. `windows_result` is the error class of a failing HRESULT or NTSTATUS, and of an
/// activity that was cut off.
pub(super) fn shown(activity: &Activity, ambiguous: bool) -> (Detail, Status) {
    let status = match activity.result {
        _ if let Some(why) = activity.unfinished => Status::Error {
            class: "windows_result".to_owned(),
            message: why.to_owned(),
        },
        Some(code) if is_failure(code) => Status::Error {
            class: "windows_result".to_owned(),
            message: failure_text(code, &activity.message),
        },
        Some(_) | None => Status::Unset,
    };
    let detail = Detail::Activity(Box::new(ActivityDetail {
        service: activity.service,
        name: activity.name.clone(),
        result: activity.result,
        objects: activity.keys.iter().take(MAX_OBJECTS).map(keys::text).collect(),
        ambiguous,
    }));
    (detail, status)
}

/// `endpoint in invalid state (0x803b0017): MESSAGE OF THE SERVICE`: a known name first, the code for a search, then what the
/// service logged.
fn failure_text(code: u32, message: &str) -> String {
    let mut text = match result_text(code) {
        Some(known) => format!("{known} ({code:#010x})"),
        None => format!("{code:#010x}"),
    };
    if !message.is_empty() {
        text.push_str(": ");
        text.push_str(message);
    }
    text
}

/// Begin of the plugin that ran at that time; of several the one that began last.
fn plugin_at(open: &OpenTrace, at: Timestamp) -> Option<Timestamp> {
    let plugins = open.trace.spans.iter().filter(|span| span.detail.as_plugin().is_some());
    plugins
        .filter(|span| span.start <= at && span.end.is_none_or(|end| at <= end))
        .map(|span| span.start)
        .max()
}

/// The innermost span that the nest can lie in: for HNS a plugin, for HCS another activity of HCS or the creation.
pub(super) fn within(open: &OpenTrace, nest: &Nest) -> Option<usize> {
    let hns = nest.is_of_hns();
    let holds = |index: &usize| {
        let span = &open.trace.spans[*index];
        let detail = &span.detail;
        let around = detail.as_activity();
        let fits = detail.as_sandbox().is_some()
            || detail.as_create().is_some()
            || ((detail.as_operation().is_some() || detail.as_plugin().is_some()) && (hns || !open.is_creation()))
            || around.is_some_and(|around| around.service != Service::Hns && span.end.is_some());
        fits && span.start <= nest.start && nest.end <= limit(open, *index)
    };
    (0..open.trace.spans.len())
        .filter(holds)
        // Innermost first, and of several the one that began last.
        // Depth decides before time: a plugin holds it more closely than the operation around it.
        .max_by_key(|&index| (depth(open, index), open.trace.spans[index].start))
        // What goes on beyond its trace is cut at the root's end.
        .or_else(|| (!open.trace.spans.is_empty() && open.trace.start() <= nest.end).then_some(0))
}

/// Until when the span can hold something; the end of time for one that is open.
/// An operation that waits for its next plugin is over as far as is known.
fn limit(open: &OpenTrace, index: usize) -> Timestamp {
    let idle = || open.operation(index).is_some() && open.is_idle(index);
    match open.trace.spans[index].end {
        Some(end) => end,
        None if idle() => open.states[index].latest,
        None => Timestamp(u64::MAX),
    }
}

/// The number of spans from this one to the root. Traces are shallow, so it is counted each time.
fn depth(open: &OpenTrace, index: usize) -> usize {
    std::iter::successors(Some(index), |&index| open.trace.spans.get(index)?.parent).count()
}
