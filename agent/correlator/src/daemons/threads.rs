//! Threads of daemons in the room of daemons: which daemons are busy, and whether what their threads did belongs to a request.
//!
//! A path through the threads of a daemon belongs to the request that was the only one in flight; or else to one at whose receipt the path
//! begins and whose answer it ends with, if no thread on it had to do with another request meanwhile and the daemon does not move work
//! between its threads. Of a daemon that does, what goroutines of the request waited for belongs to it. None of this is certain: a daemon
//! also works by itself. Any other path is ambiguous.
//! Does not: find paths (the room of waits does).

use sandglass_model::Timestamp;
use sandglass_model::trace::{Detail, ThreadsAttribution};
use sandglass_model::waits::TimeReason;

use crate::context::Context;
use crate::daemon_path::{Answered, DaemonPath, PathLink};
use crate::daemons::request::Request;
use crate::daemons::{Daemons, time};
use crate::facts::Fact;
use crate::open_trace::ending::Cut;

impl Daemons {
    /// Notes requests that are in flight at the same daemon at the same time.
    pub(super) fn share(&mut self, number: u64, at: Timestamp) {
        let Some(mut request) = self.requests.remove(&number) else {
            return;
        };
        if let Some(process) = request.busy_daemon().map(|daemon| daemon.process) {
            let others = self.requests.values_mut();
            for other in others.filter(|other| other.daemon_is(process) && other.is_in_flight(at)) {
                request.is_beside(other);
                other.is_beside(&request);
            }
        }
        self.requests.insert(number, request);
    }

    /// Reports which daemons have requests by now, of those whose threads are followed.
    pub(super) fn report_busy(&mut self, ctx: &mut Context) {
        let busy = || self.requests.values().filter_map(Request::busy_daemon);
        for daemon in busy() {
            if !self.busy.contains(&daemon.process) {
                self.busy.push(daemon.process);
                ctx.facts.push(Fact::DaemonBusy(Box::new(daemon.clone())));
            }
        }
        self.busy.retain(|process| {
            let is_busy = busy().any(|daemon| daemon.process == *process);
            if !is_busy {
                ctx.facts.push(Fact::DaemonIdle(*process));
            }
            is_busy
        });
    }

    /// What the threads of its daemon did while a request was in flight becomes part of its time, and of its spans.
    pub(crate) fn on_path(&self, ctx: &mut Context, request: &Answered, path: &DaemonPath) {
        if path.pieces.iter().all(|piece| piece.what.is_none()) {
            return;
        }
        let is_its_own =
            || !self.handled.crosses(request.daemon, request.connection, path) && !self.moves_work(request.daemon);
        let attribution = match path.link {
            _ if request.alone => ThreadsAttribution::OnlyRequest,
            PathLink::Goroutines => ThreadsAttribution::Goroutines,
            PathLink::WakeUps if is_its_own() => ThreadsAttribution::WakeUps,
            PathLink::WakeUps | PathLink::Nothing => ThreadsAttribution::Ambiguous,
        };
        let through = (path, attribution.confidence());
        let half = ctx.config.max_spans / 2;
        let span = request.span.span;
        let Some(open) = ctx.traces.get_mut(request.span.trace) else {
            return;
        };
        let Some((start, end)) = open.trace.spans.get(span).map(|span| (span.start, span.end)) else {
            return;
        };
        let Some(end) = end else { return };
        let spent = time::of_request(&open.trace.spans, span, end, Some(through));
        if let Some(detail) = open.trace.spans[span].detail.as_daemon_mut() {
            detail.time = spent.map(Box::new);
            detail.threads = Some(attribution);
        }
        let shown = time::shown(through, end.since(start)).into_iter();
        for (from, to, detail) in shown.filter(|(from, ..)| *from < end) {
            if open.trace.spans.len() >= half {
                break;
            }
            if let Some(wait) = open.begin(Some(span), from, Detail::Wait(Box::new(detail))) {
                open.end(wait, to.min(end), Cut::Outlived, &mut ctx.effects);
            }
        }
        open.touch(&mut ctx.effects);
    }

    /// Waits of daemons' threads since this time are not all known: that one of them ran is not known any more. Of what waited for it
    /// neither.
    pub(crate) fn on_threads_lost(&self, ctx: &mut Context, since: Timestamp) {
        let keys: Vec<_> = ctx.traces.keys().collect();
        for key in keys {
            let Some(open) = ctx.traces.get_mut(key) else {
                continue;
            };
            for index in 0..open.trace.spans.len() {
                if open.trace.spans[index].end.is_none_or(|end| end < since) {
                    continue;
                }
                let daemon = open.trace.spans[index].detail.as_daemon_mut();
                let Some(daemon) = daemon.filter(|daemon| daemon.threads.is_some()) else {
                    continue;
                };
                if let Some(time) = &mut daemon.time {
                    time.lose_processor(TimeReason::Daemon);
                }
                let mut above = open.trace.spans[index].parent;
                while let Some(at) = above {
                    let detail = &mut open.trace.spans[at].detail;
                    let operation = detail.as_operation_mut().and_then(|operation| operation.time.as_mut());
                    if let Some(time) = operation {
                        time.lose_processor(TimeReason::Unknown);
                    }
                    if let Some(time) = detail.process_mut().and_then(|process| process.time.as_mut()) {
                        time.lose_processor(TimeReason::Unknown);
                    }
                    above = open.trace.spans[at].parent;
                }
            }
        }
    }
}
