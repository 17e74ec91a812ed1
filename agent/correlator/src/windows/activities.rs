//! Handles steps of HNS's and HCS's activities: pairs starts with stops, and puts each activity into the one that
//! caused it.
//!
//! Used by `windows.rs` and `silos.rs`. The services log WIL activities: opcode 1 at the begin, opcode 2 with a result
//! at the end (microsoft/wil, include/wil/Tracelogging.h). Activity ids may be zero or used again, so a stop ends the
//! innermost start of its name on its thread. An activity lies in another by the related id, else by thread. A nest is
//! whole when its outermost activity ends; `nest_end.rs` then finds its owner.
//! Does not: know what an activity means; its name becomes the span's.
//!
//! Example: a plugin requests an endpoint. HNS logs `RequestHandler` (start), `EndpointActivity` (start),
//! `EndpointAttachShared` (start), then their stops from the inside to the outside, all on one thread and often with
//! one activity id or none. The nest is the three activities; it ends with the stop of `RequestHandler`.

use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::trace::{Link, Relation};
use sandglass_model::windows::{ActivityChange, ActivityStep, ObjectKey, RuntimeSpan, Service, is_failure};

use crate::context::Context;
use crate::finding::{ActivityEnded, Finding};
use crate::output::Output;
use crate::windows::Windows;
use crate::windows::nest::Nest;
use crate::windows::ongoing::Activity;

/// Bound on keys of one activity.
const MAX_KEYS: usize = 16;

/// Adds keys that are new, up to the bound.
fn add_keys(activity: &mut Activity, keys: Vec<ObjectKey>) {
    for key in keys {
        if activity.keys.len() < MAX_KEYS && !activity.keys.contains(&key) {
            activity.keys.push(key);
        }
    }
}

impl Windows {
    /// A step of an activity. HNS's own process shows in each of its events, so a restart is noticed first.
    pub(crate) fn on_activity(&mut self, ctx: &mut Context, at: Timestamp, step: ActivityStep) {
        if step.service == Service::Hns {
            self.hns_logged(ctx, at, step.pid);
        }
        match &step.step {
            ActivityChange::Started => self.activity_began(ctx, at, step),
            ActivityChange::Stopped { .. } => self.activity_ended(ctx, at, step),
            ActivityChange::Noted { .. } => self.activity_noted(ctx, at, step),
        }
    }

    /// An activity began: it is open from now on, within the one that caused it.
    fn activity_began(&mut self, ctx: &mut Context, at: Timestamp, step: ActivityStep) {
        // Room is made first: the activity that encloses this one may be among those that are too old.
        ctx.effects.counters.evicted_windows += self.activities.forget(at);
        let parent = self.activities.around(at, &step);
        // Of requests to HNS only: `nest.rs` recognises endpoints that are created or deleted by it.
        let method = step.fields.get("method").unwrap_or_default().to_owned();
        let mut activity = Activity {
            service: step.service,
            name: ctx.names.get(&step.name),
            id: step.activity,
            pid: step.pid,
            tid: step.tid,
            start: at,
            end: None,
            result: None,
            message: String::new(),
            keys: Vec::new(),
            method,
            parent,
            children: Vec::new(),
            link: None,
            unfinished: None,
        };
        add_keys(&mut activity, step.keys);
        self.activities.begin(activity);
    }

    /// An activity ended: a finding for metrics, and the whole nest if it was the outermost. A stop without a start is
    /// an orphan: the start was lost, or is older than the session.
    fn activity_ended(&mut self, ctx: &mut Context, at: Timestamp, step: ActivityStep) {
        let Some(number) = self.activities.ended_by(&step) else {
            ctx.effects.counters.orphan += 1;
            return;
        };
        let ActivityChange::Stopped { result, message } = step.step else {
            return;
        };
        let Some(activity) = self.activities.end(number) else {
            return;
        };
        // Clocks of two processors may differ: an end never lies before its begin.
        let end = at.max(activity.start);
        activity.end = Some(end);
        activity.result = result;
        if !message.is_empty() {
            activity.message = message;
        }
        add_keys(activity, step.keys);
        let ended = ActivityEnded {
            service: activity.service,
            name: Arc::clone(&activity.name),
            start: activity.start,
            end,
            failed: result.is_some_and(is_failure),
        };
        ctx.effects
            .outputs
            .push(Output::Finding(Finding::Activity(Box::new(ended))));
        // Only the outermost activity completes a nest; the inner ones are in it.
        if let Some(activities) = self.activities.take_whole(number) {
            self.objects.nest_ended(ctx, at, Nest::new(activities));
        }
    }

    /// An event within an activity that does not end it (`ActivityError`, `ActivityIntermediateStop`, or a plain
    /// event), or one without any. Its keys join objects either way.
    fn activity_noted(&mut self, ctx: &mut Context, at: Timestamp, step: ActivityStep) {
        let ActivityChange::Noted { result, message } = step.step.clone() else {
            return;
        };
        let activities = &self.activities;
        // An event within an activity carries its id; one without an id belongs to what its thread does.
        let by_id = activities.newest_of(step.service, &step.activity);
        let number = by_id.or_else(|| activities.around(at, &step));
        match number.and_then(|number| self.activities.get_mut(number)) {
            Some(activity) => {
                // The first message explains; later ones are consequences of it.
                if result.is_some_and(is_failure) && activity.message.is_empty() {
                    activity.message = message;
                }
                add_keys(activity, step.keys);
            }
            None => self.objects.join_keys(ctx, at, &step.keys),
        }
    }

    /// A span that the shim made itself (Microsoft.Virtualization.RunHCS, event `Span`; hcsshim,
    /// internal/oc/exporter.go, later internal/ot): it carries begin, end and ids, and is logged when it ends. A link
    /// leads to the shim's own trace.
    pub(crate) fn runtime_span(&mut self, ctx: &mut Context, at: Timestamp, span: RuntimeSpan) {
        let link = match (span.trace.parse(), span.span.parse()) {
            (Ok(trace), Ok(span)) => Some(Link {
                trace,
                span,
                relation: Relation::Runtime,
            }),
            _ => None,
        };
        let mut keys = Vec::new();
        if !span.container.is_empty() {
            keys.push(ObjectKey::Container(span.container));
        }
        // The span has a status message only where it failed (OpenCensus status code other than 0).
        let failed = !span.message.is_empty();
        let activity = Activity {
            service: Service::Hcs,
            name: ctx.names.get(&span.name),
            id: String::new(),
            pid: 0,
            tid: 0,
            // Begin and end are the shim's own; neither may lie after the event that reports them.
            start: span.start.min(span.end).min(at),
            end: Some(span.end.min(at.max(span.start))),
            // E_FAIL (winerror.h): the shim gives a message and no code.
            result: failed.then_some(0x8000_4005),
            message: span.message,
            keys,
            method: String::new(),
            parent: None,
            children: Vec::new(),
            link,
            unfinished: None,
        };
        let ended = ActivityEnded {
            service: activity.service,
            name: Arc::clone(&activity.name),
            start: activity.start,
            end: activity.end.unwrap_or(activity.start),
            failed,
        };
        ctx.effects
            .outputs
            .push(Output::Finding(Finding::Activity(Box::new(ended))));
        self.objects.nest_ended(ctx, at, Nest::new(vec![activity]));
    }
}
