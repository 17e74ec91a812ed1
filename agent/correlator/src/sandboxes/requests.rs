//! Joins requests to the runtime to make a sandbox with the traces of the sandboxes: a trace then begins when the runtime received
//! the request and its creation ends when the runtime responded.
//!
//! Used by `correlator.rs`. A request names a pod and not yet a sandbox; the first plugin of the sandbox names both. It is joined
//! with the one request of that pod that the process which executed the plugin has open. Where a pod has several, the response
//! decides, which has the sandbox's id. Without requests (older kernels) everything here does nothing.
//! The state is in `open_requests.rs`. Does not: know sandboxes without a plugin, which have no trace.

use sandglass_model::cri::{SandboxOutcome, SandboxRequest, SandboxResponse};
use sandglass_model::trace::{Detail, RuntimePart, RuntimeWorkDetail};
use sandglass_model::waits::{TimeReason, TimeSpent};
use sandglass_model::{PodIdentity, ProcessKey, Timestamp};

use crate::context::Context;
use crate::finding::Scope;
use crate::keys::{SpanRef, TraceKey};
use crate::open_trace::ending::Cut;
use crate::open_trace::{CREATE, OpenTrace};
use crate::sandboxes::Sandboxes;
use crate::sandboxes::open_requests::{OwnRequest, REQUEST_AGE_DEADLINES, REQUESTS_MAX, Request};

impl Sandboxes {
    /// The runtime received a request.
    pub(crate) fn on_requested(&mut self, ctx: &mut Context, at: Timestamp, request: SandboxRequest) {
        let requests = &mut self.requests.0;
        let max_age = ctx.config.deadline_ns.saturating_mul(REQUEST_AGE_DEADLINES);
        while requests
            .front()
            .is_some_and(|oldest| ctx.now.since(oldest.at) > max_age)
        {
            requests.pop_front();
        }
        if requests.len() >= REQUESTS_MAX {
            requests.pop_front();
            ctx.effects.counters.evicted_remembered.count(Scope::Sandbox, false);
        }
        requests.push_back(Request {
            at,
            stream: request.stream,
            runtime: request.runtime,
            pod: request.pod,
            trace: None,
        });
    }

    /// The first plugin of a sandbox was executed by `runtime`, which opened `trace`: it begins with its request.
    pub(crate) fn join_request(&mut self, ctx: &mut Context, trace: TraceKey, runtime: ProcessKey) {
        let (Some(open), Some(creation)) = (ctx.traces.get_mut(trace), self.creations.get_mut(trace)) else {
            return;
        };
        let first = open.trace.start();
        let identity = &open.trace.identity;
        let fits = |request: &&mut Request| {
            request.trace.is_none()
                && request.runtime == runtime
                && request.at <= first
                && is_same_pod(&request.pod, identity)
        };
        let mut fitting = self.requests.0.iter_mut().filter(fits);
        let (Some(request), None) = (fitting.next(), fitting.next()) else {
            return;
        };
        request.trace = Some(trace);
        creation.request.pending = true;
        begin_with(open, &mut creation.request, request.at);
        open.touch(&mut ctx.effects);
    }

    /// The runtime responded, or the request was withdrawn. Returns the trace of the sandbox that it was for, to be reviewed.
    pub(crate) fn on_responded(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        response: &SandboxResponse,
    ) -> Option<TraceKey> {
        let is_same = |request: &Request| {
            (request.at, request.stream, request.runtime) == (response.requested, response.stream, response.runtime)
        };
        let place = self.requests.0.iter().position(is_same)?;
        let request = self.requests.0.remove(place)?;
        let named = response.sandbox.as_ref().map(|id| id.0.as_str());
        let joined = request.trace.filter(|trace| {
            let is_named = |open: &&OpenTrace| named.is_none_or(|id| open.sandbox() == id);
            ctx.traces.get(*trace).is_some_and(|open| is_named(&open))
        });
        if let Some(other) = request.trace.filter(|trace| joined != Some(*trace))
            && let Some(creation) = self.creations.get_mut(other)
        {
            // It was another one's: nothing is waited for any more.
            creation.request.pending = false;
        }
        let trace = joined.or_else(|| self.creation_of(ctx, named?))?;
        let (open, creation) = (ctx.traces.get_mut(trace)?, self.creations.get_mut(trace)?);
        creation.request.pending = false;
        if open.is_created() {
            return None;
        }
        if response.outcome != SandboxOutcome::Withdrawn {
            begin_with(open, &mut creation.request, request.at);
            creation.request.responded = Some(at);
            creation.request.failed = response.outcome == SandboxOutcome::Failed;
            creation.ready |= response.outcome == SandboxOutcome::Made;
        }
        open.touch(&mut ctx.effects);
        Some(trace)
    }

    /// The creation is to be closed: what the runtime did before and after everything that is seen of it becomes spans. Returns them.
    pub(crate) fn show_runtime_work(&mut self, ctx: &mut Context, trace: TraceKey) -> Vec<SpanRef> {
        let (Some(open), Some(creation)) = (ctx.traces.get_mut(trace), self.creations.get_mut(trace)) else {
            return Vec::new();
        };
        let Some(requested) = creation.request.at else {
            return Vec::new();
        };
        let (until, seen) = (creation.netns_begin, first_below(open));
        let prepared = until.filter(|until| *until >= requested).or(seen);
        let mut shown = Vec::new();
        let mut show = |open: &mut OpenTrace, part, from: Timestamp, to: Timestamp| {
            let detail = Detail::RuntimeWork(Box::new(RuntimeWorkDetail { part, time: None }));
            if to <= from {
                return;
            }
            match open.begin(Some(CREATE), from, detail) {
                Some(span) => {
                    open.end(span, to, Cut::Outlived, &mut ctx.effects);
                    shown.push(open.reference(span));
                }
                None => {
                    open.trace.incomplete = true;
                    ctx.effects.counters.evicted_spans += 1;
                }
            }
        };
        if let Some(prepared) = prepared {
            show(open, RuntimePart::Prepare, requested, prepared);
        }
        if let Some(responded) = creation.request.responded {
            let last = open.states[CREATE].latest;
            show(open, RuntimePart::Finish, last, responded);
            // It ends with the response also where no room is left for the span.
            open.states[CREATE].latest = last.max(responded);
        }
        if let Some(create) = open.trace.spans[CREATE].detail.as_create_mut() {
            create.response_seen = creation.request.responded.is_some();
        }
        shown
    }

    /// What the runtime's daemon did in one of these spans; nothing where none of it was measured.
    pub(crate) fn on_runtime_work_time(&self, ctx: &mut Context, span: SpanRef, time: TimeSpent) {
        let is_known = |(reason, _): &(TimeReason, u64)| *reason != TimeReason::Unknown;
        if time.parts.iter().any(is_known)
            && let Some(open) = ctx.traces.get_mut(span.trace)
            && let Some(work) = open.trace.spans[span.span].detail.as_runtime_work_mut()
        {
            work.time = Some(Box::new(time));
        }
    }

    /// The process that a creation was requested of by the caller, and that executed its first plugin.
    pub(crate) fn runtime_of(&self, trace: TraceKey) -> Option<ProcessKey> {
        self.creations.get(trace)?.runtime
    }
}

/// The trace begins with its request.
fn begin_with(open: &mut OpenTrace, own: &mut OwnRequest, at: Timestamp) {
    own.at = Some(at);
    open.begin_earlier(at);
    if let Some(create) = open.trace.spans[CREATE].detail.as_create_mut() {
        create.request_seen = true;
    }
}

/// When the first operation or step began.
fn first_below(open: &OpenTrace) -> Option<Timestamp> {
    let below = open.trace.spans.iter().filter(|span| span.parent == Some(CREATE));
    below.map(|span| span.start).min()
}

/// Old runtimes pass no uid to plugins.
fn is_same_pod(requested: &PodIdentity, of_plugin: &PodIdentity) -> bool {
    !requested.name.is_empty()
        && requested.name == of_plugin.name
        && requested.namespace == of_plugin.namespace
        && (of_plugin.uid.is_empty() || requested.uid == of_plugin.uid)
}
