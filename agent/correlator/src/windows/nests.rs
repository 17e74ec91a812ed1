//! Nests of activities into traces: whose a nest is, and where in the trace it lies.
//!
//! By its keys; else, when only one sandbox is being worked on, it is that one's; else it waits until one of its keys is
//! learnt, or the creation it fell into is over: then the likeliest gets it, marked ambiguous. What is nobody's is only
//! counted. Bounded.

use std::collections::VecDeque;

use sandglass_model::Timestamp;
use sandglass_model::time::SECOND;
use sandglass_model::trace::{ActivityDetail, Detail, Status};
use sandglass_model::windows::{ObjectKey, Service, is_failure, result_text};

use super::activities::endpoint_changes;
use super::keys::{self, tells};
use super::ongoing::Activity;
use crate::correlator::Correlator;
use crate::open::{Cut, OpenTrace, TraceKey};

/// Activities that belong together, the outermost first; `parent` is a place in the list.
#[derive(Debug)]
pub(crate) struct Nest {
    activities: Vec<Activity>,
    keys: Vec<ObjectKey>,
    start: Timestamp,
    end: Timestamp,
}

/// Nests that nobody is known for.
#[derive(Debug, Default)]
pub(crate) struct Nests {
    waiting: VecDeque<Nest>,
}

/// Most nests that wait.
const MAX_WAITING: usize = 1_024;
/// How long one waits.
const WAIT_NS: u64 = 120 * SECOND;
/// Most objects shown of one activity.
const MAX_OBJECTS: usize = 8;

impl Nest {
    pub(crate) fn new(activities: Vec<Activity>) -> Nest {
        let mut keys: Vec<ObjectKey> = activities.iter().flat_map(|activity| activity.keys.clone()).collect();
        keys.retain(tells);
        keys.sort_unstable();
        keys.dedup();
        let start = activities.first().map(|outer| outer.start).unwrap_or_default();
        let end = activities.first().and_then(|outer| outer.end).unwrap_or(start);
        Nest {
            activities,
            keys,
            start,
            end,
        }
    }

    /// Of activities that run on.
    pub(crate) fn running(activities: Vec<Activity>, now: Timestamp) -> Nest {
        let nest = Nest::new(activities);
        let end = nest.start.max(now);
        Nest { end, ..nest }
    }

    /// The innermost span of the trace that it can lie in.
    pub(crate) fn within(&self, open: &OpenTrace) -> Option<usize> {
        enclosing(open, self)
    }

    fn is_of_hns(&self) -> bool {
        self.activities
            .first()
            .is_some_and(|outer| outer.service == Service::Hns)
    }

    /// It names a container: only whose that is may have it.
    fn names_container(&self) -> bool {
        self.keys.iter().any(|key| matches!(key, ObjectKey::Container(_)))
    }
}

impl Nests {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

impl Correlator {
    pub(crate) fn nest_ended(&mut self, at: Timestamp, nest: Nest) {
        if nest.activities.is_empty() {
            return;
        }
        for (endpoint, made) in endpoint_changes(&nest.activities) {
            self.count_endpoint(&endpoint, made);
        }
        if let Some(number) = self.windows.keys.owner_of(&nest.keys) {
            self.place_and_learn(at, nest, number);
            return;
        }
        if !nest.names_container()
            && let Some(key) = self.only_one_for(&nest)
        {
            if let Some(number) = self.number_of_trace(key) {
                self.note_attach(&nest, number);
                for key in nest.keys.clone() {
                    self.learn(at, number, key);
                }
            }
            return self.place_nest(nest, key, false);
        }
        while let Some(oldest) = self.windows.nests.waiting.front()
            && (self.windows.nests.waiting.len() >= MAX_WAITING || oldest.end.plus(WAIT_NS) < at)
        {
            self.effects.counters.evicted_windows += u64::from(oldest.end.plus(WAIT_NS) >= at);
            self.windows.nests.waiting.pop_front();
        }
        self.windows.nests.waiting.push_back(nest);
    }

    /// Places what waited for this key; returns what else is known by that.
    pub(crate) fn place_waiting(&mut self, key: &ObjectKey, number: u64) -> Vec<ObjectKey> {
        let mut learnt = Vec::new();
        let waiting = std::mem::take(&mut self.windows.nests.waiting);
        for nest in waiting {
            if nest.keys.contains(key) {
                learnt.extend(nest.keys.iter().cloned());
                self.place_for(nest, number);
            } else {
                self.windows.nests.waiting.push_back(nest);
            }
        }
        learnt
    }

    fn place_and_learn(&mut self, at: Timestamp, nest: Nest, number: u64) {
        let keys = nest.keys.clone();
        self.place_for(nest, number);
        for key in keys {
            self.learn(at, number, key);
        }
    }

    fn place_for(&mut self, nest: Nest, number: u64) {
        self.note_attach(&nest, number);
        if let Some(key) = self.trace_for(&nest, number) {
            self.place_nest(nest, key, false);
        }
    }

    /// The trace of the sandbox's creation, or of the operation on it that ran then.
    fn trace_for(&self, nest: &Nest, number: u64) -> Option<TraceKey> {
        let sandbox = self.windows.sandboxes.get(&number)?;
        let mut attached = self.attached.get(&sandbox.container).into_iter().flatten();
        let during = attached.find(|reference| {
            let open = self.traces.get(reference.trace);
            open.is_some_and(|open| open.creation.is_none() && open.trace.start() <= nest.start)
        });
        during.map(|reference| reference.trace).or(sandbox.trace)
    }

    /// As far as can be told while it runs: whose it is, and whether others fit too.
    pub(crate) fn likely_home(&self, nest: &Nest) -> Option<(TraceKey, bool)> {
        match self.windows.keys.owner_of(&nest.keys) {
            Some(number) => self.trace_for(nest, number).map(|key| (key, false)),
            None => self.likeliest(nest),
        }
    }

    fn number_of_trace(&self, key: TraceKey) -> Option<u64> {
        self.windows.number_of(self.traces.get(key)?.sandbox())
    }

    /// The only trace in which something was going on then. Of what HNS does, much is for others: a plugin must have run.
    fn only_one_for(&self, nest: &Nest) -> Option<TraceKey> {
        let at = nest.start;
        let mut busy = self.traces.iter().filter(|open| is_busy_at(open, at));
        let only = busy.next().filter(|_| busy.next().is_none())?;
        (!nest.is_of_hns() || plugin_at(only, at).is_some()).then_some(only.key)
    }

    /// A creation, or another trace, is about to be over: nests that fell into it go to whoever is likeliest.
    pub(crate) fn place_likeliest(&mut self, key: TraceKey) {
        let waiting = std::mem::take(&mut self.windows.nests.waiting);
        for nest in waiting {
            match self.likeliest(&nest) {
                Some((likeliest, many)) if likeliest == key => self.place_nest(nest, key, many),
                _ => self.windows.nests.waiting.push_back(nest),
            }
        }
    }

    /// Of the traces in which something was going on when the nest began; and whether there were others.
    fn likeliest(&self, nest: &Nest) -> Option<(TraceKey, bool)> {
        if nest.names_container() {
            return None;
        }
        let hns = nest.is_of_hns();
        let mut fits = 0;
        let mut best = None;
        for open in self.traces.iter().filter(|open| is_busy_at(open, nest.start)) {
            let begun = plugin_at(open, nest.start);
            // What HNS does it does for a plugin; what HCS does, after the plugins.
            if hns && begun.is_none() {
                continue;
            }
            fits += 1;
            best = best.max(Some((begun.is_some() == hns, begun, open.key)));
        }
        best.map(|(_, _, key)| (key, fits > 1))
    }

    /// A creation failed: what HNS had begun for its plugin and not ended is shown up to the plugin's end.
    pub(crate) fn place_unfinished(&mut self, key: TraceKey) {
        let Some(open) = self
            .traces
            .get(key)
            .filter(|open| open.creation.is_some() && !open.is_created())
        else {
            return;
        };
        let failed =
            open.trace.spans.iter().filter(|span| {
                matches!(span.detail, Detail::Plugin(_)) && span.status.is_error() && span.end.is_some()
            });
        let waited: Vec<_> = failed
            .map(|span| (span.start, span.end.unwrap_or(span.start)))
            .collect();
        for (from, to) in waited {
            for activities in self.windows.activities.take_unfinished(from, to) {
                let nest = Nest::new(activities);
                let others = self
                    .traces
                    .iter()
                    .filter(|open| plugin_at(open, nest.start).is_some())
                    .count();
                self.place_nest(nest, key, others > 1);
            }
        }
    }

    fn place_nest(&mut self, nest: Nest, key: TraceKey, ambiguous: bool) {
        let Some(open) = self.traces.get_mut(key) else {
            return;
        };
        let Some(within) = enclosing(open, &nest) else {
            return;
        };
        let mut places: Vec<Option<usize>> = Vec::with_capacity(nest.activities.len());
        for activity in nest.activities {
            let parent = match activity.parent {
                None => Some(within),
                Some(parent) => places.get(parent as usize).copied().flatten(),
            };
            let Some(parent) = parent else {
                places.push(None);
                continue;
            };
            let around = &open.trace.spans[parent];
            let latest = limit(open, parent);
            let start = activity.start.clamp(around.start, latest);
            // One that never ended ends with what it lies in.
            let end = activity.end.unwrap_or(nest.end).clamp(start, latest);
            let (detail, status) = shown(&activity, ambiguous);
            let Some(span) = open.begin(Some(parent), start, detail) else {
                open.trace.incomplete = true;
                self.effects.counters.evicted_spans += 1;
                places.push(None);
                continue;
            };
            open.trace.spans[span].status = status;
            open.trace.spans[span].links.extend(activity.link);
            // Its own children are yet to come: they lie within it, and so may it be told that it has ended.
            open.end(span, end, Cut::Outlived, &mut self.effects);
            places.push(Some(span));
        }
        open.touch(&mut self.effects);
    }

    /// Remembers when an endpoint of the sandbox was attached.
    fn note_attach(&mut self, nest: &Nest, number: u64) {
        let mut attached = nest.activities.iter().filter(|activity| {
            activity.name.contains("Attach")
                && activity.end.is_some()
                && activity.unfinished.is_none()
                && !activity.result.is_some_and(is_failure)
        });
        let Some(end) = attached.next_back().and_then(|activity| activity.end) else {
            return;
        };
        if let Some(sandbox) = self.windows.sandboxes.get_mut(&number) {
            sandbox.attached = sandbox.attached.max(Some(end));
        }
    }
}

/// The activity as a span shows it.
pub(crate) fn shown(activity: &Activity, ambiguous: bool) -> (Detail, Status) {
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

/// `endpoint in invalid state (0x803b0017): the service's words`.
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

/// Something was going on in the trace at that time: its sandbox was being made, or a plugin was running.
fn is_busy_at(open: &OpenTrace, at: Timestamp) -> bool {
    let span = match &open.creation {
        Some(_) => open.trace.spans.get(crate::sandboxes::CREATE),
        None => open.trace.spans.first(),
    };
    span.is_some_and(|span| span.start <= at && span.end.is_none_or(|end| at <= end))
        && (open.creation.as_ref().is_some_and(|creation| creation.told) || plugin_at(open, at).is_some())
}

/// When the plugin began that ran at that time.
fn plugin_at(open: &OpenTrace, at: Timestamp) -> Option<Timestamp> {
    let plugins = open
        .trace
        .spans
        .iter()
        .filter(|span| matches!(span.detail, Detail::Plugin(_)));
    plugins
        .filter(|span| span.start <= at && span.end.is_none_or(|end| at <= end))
        .map(|span| span.start)
        .max()
}

/// The innermost span that the nest can lie in: for HNS a plugin, for HCS what else HCS did.
fn enclosing(open: &OpenTrace, nest: &Nest) -> Option<usize> {
    let hns = nest.is_of_hns();
    let holds = |index: &usize| {
        let span = &open.trace.spans[*index];
        let fits = match &span.detail {
            Detail::Sandbox(_) | Detail::SandboxCreate(_) => true,
            Detail::Operation(_) | Detail::Plugin(_) => hns || open.creation.is_none(),
            Detail::Activity(around) => around.service != Service::Hns && span.end.is_some(),
            Detail::Command(_)
            | Detail::RuntimeStep(_)
            | Detail::Journey(_)
            | Detail::Lookup(_)
            | Detail::Connect(_)
            | Detail::VnicWait(_) => false,
        };
        fits && span.start <= nest.start && nest.end <= limit(open, *index)
    };
    (0..open.trace.spans.len())
        .filter(holds)
        .max_by_key(|&index| (depth(open, index), open.trace.spans[index].start))
        // What goes on beyond its trace is cut where that ends.
        .or_else(|| (!open.trace.spans.is_empty() && open.trace.start() <= nest.end).then_some(0))
}

/// Until when the span can hold something: an operation that waits for its next plugin is over, as far as is known.
fn limit(open: &OpenTrace, index: usize) -> Timestamp {
    let idle = || {
        let mut operations = open.operations.iter();
        operations.any(|operation| operation.span == index && operation.running == 0)
    };
    match open.trace.spans[index].end {
        Some(end) => end,
        None if idle() => open.states[index].latest,
        None => Timestamp(u64::MAX),
    }
}

fn depth(open: &OpenTrace, index: usize) -> usize {
    std::iter::successors(Some(index), |&index| open.trace.spans.get(index)?.parent).count()
}
