//! One request of a plugin to a daemon: from its first message to its answer.
//!
//! Used by the room of daemons. Does not: choose which request a command belongs to.

use std::sync::Arc;

use sandglass_model::daemons::{DaemonProcess, Goroutine, RequestPoint, RequestStep, RequestTransport};
use sandglass_model::time::MILLISECOND;
use sandglass_model::trace::{DaemonDetail, RequestBegin};
use sandglass_model::{Detail, ProcessKey, Timestamp};

use crate::context::Context;
use crate::daemon_path::{Answered, ThreadAt};
use crate::daemons::time;
use crate::keys::SpanRef;
use crate::open_trace::ending::Cut;

/// The newest request of a connection.
#[derive(Debug)]
pub(super) struct Request {
    /// Who sent it.
    pub(super) client: ProcessKey,
    /// The span of the client, or around it.
    pub(super) owner: SpanRef,
    /// When it was sent.
    pub(super) begin: Timestamp,
    how: RequestBegin,
    transport: RequestTransport,
    /// Who received it; before that who listens, where that is known.
    daemon: Option<DaemonProcess>,
    /// When it arrived, and at which thread.
    pub(super) arrived: Option<(Timestamp, u32)>,
    /// When that thread was created; 0 where that is not known.
    arrived_begin: Timestamp,
    /// Ids of the daemon's goroutines that received it, and of those created by them that have started something for it, at most
    /// [`GOROUTINES_MAX`].
    goroutines: Vec<u64>,
    /// The daemon's threads are followed since it arrived.
    is_followed: bool,
    /// When the daemon sent the answer, by which thread.
    replied: Option<ThreadAt>,
    /// Another request was in flight at its daemon meanwhile, or may have been.
    pub(super) is_shared: bool,
    /// One of its goroutines had to do with such a request: they say nothing about either.
    shares_goroutine: bool,
    /// When it began, a process for another sandbox ran that may have sent one before messages were followed.
    pub(super) has_unseen_beside: bool,
    /// When something came back last.
    pub(super) returned: Option<Timestamp>,
    /// When its answer came.
    pub(super) answered: Option<Timestamp>,
    /// What was started for it and runs, at most [`RUNNING_MAX`].
    running: Vec<ProcessKey>,
    /// When something that was started for it ended last.
    ended_last: Option<Timestamp>,
    /// Its span, once it has one.
    span: Option<SpanRef>,
    is_over: bool,
    /// What it is about.
    pub(super) target: Target,
}

/// The sandbox and the interface that a request is about: those of the operation of its client.
#[derive(Debug, Default)]
pub(super) struct Target {
    pub(super) container: String,
    pub(super) ifname: String,
    /// `CNI_NETNS`.
    pub(super) netns: String,
}

impl Target {
    /// Of the operation around a span.
    pub(super) fn of(ctx: &Context, owner: SpanRef) -> Target {
        let Some(open) = ctx.traces.get(owner.trace) else {
            return Target::default();
        };
        let operation = open.nearest_operation(owner.span).and_then(|span| open.operation(span));
        Target {
            container: open.sandbox().to_owned(),
            ifname: operation.map_or_else(String::new, |operation| operation.ifname.clone()),
            netns: operation.map_or_else(String::new, |operation| operation.netns.clone()),
        }
    }
}

/// Processes that run for one request at the same time; of more it is not known that they do.
const RUNNING_MAX: usize = 64;
/// Goroutines that are known to work for one request; of more it is not known.
const GOROUTINES_MAX: usize = 64;
/// A request of which nothing else is known has a span from this duration on.
pub(super) const SHOWN_NS: u64 = MILLISECOND;
/// Messages up to this length may be acknowledgements of HTTP/2 (RFC 9113: SETTINGS 9 bytes, PING 17, WINDOW_UPDATE 13, together
/// 39), which are neither a request nor an answer. A request of gRPC is preceded and followed by them.
const CONTROL_MAX: u32 = 39;

/// The message may be an acknowledgement.
pub(super) fn is_control(bytes: u32) -> bool {
    bytes <= CONTROL_MAX
}

/// What a client of gRPC sends when it closes a connection: GOAWAY (RFC 9113, section 6.8: 17 bytes) and a text, of 25 bytes in grpc-go
/// (`internal/transport/http2_client.go`, `Close`). A further request over the connection is longer: it has headers and a configuration.
const LAST_MAX: u32 = 64;

/// The message, which comes behind an answer, may be the client's last one and no request.
pub(super) fn may_be_last(bytes: u32) -> bool {
    bytes <= LAST_MAX
}

impl Request {
    pub(super) fn new(
        step: &RequestStep,
        owner: SpanRef,
        begin: Timestamp,
        how: RequestBegin,
        target: Target,
    ) -> Request {
        Request {
            client: step.client,
            owner,
            begin,
            how,
            transport: step.transport,
            daemon: None,
            arrived: None,
            arrived_begin: Timestamp(0),
            goroutines: Vec::new(),
            is_followed: false,
            replied: None,
            is_shared: false,
            shares_goroutine: false,
            has_unseen_beside: false,
            returned: None,
            answered: None,
            running: Vec::new(),
            ended_last: None,
            span: None,
            is_over: false,
            target,
        }
    }

    /// The daemon has started this process for it, by this goroutine where that is known.
    pub(super) fn start(&mut self, process: ProcessKey, goroutine: Option<Goroutine>) {
        if self.running.len() < RUNNING_MAX {
            self.running.push(process);
        }
        let created = goroutine.filter(|goroutine| self.has_goroutine(goroutine.creator));
        self.add_goroutine(created);
    }

    /// A process ended, which may have been started for it.
    pub(super) fn on_exit(&mut self, at: Timestamp, process: ProcessKey) {
        if let Some(index) = self.running.iter().position(|running| *running == process) {
            self.running.swap_remove(index);
            self.ended_last = self.ended_last.max(Some(at));
        }
    }

    /// Something that was started for it runs.
    pub(super) fn has_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// When it arrived, or what was started for it ended last.
    pub(super) fn last_sign(&self) -> Timestamp {
        let arrived = self.arrived.map_or(self.begin, |(at, _)| at);
        self.ended_last.map_or(arrived, |ended| ended.max(arrived))
    }

    /// It comes after this one over the same connection, with the same daemon, which may have received it already.
    pub(super) fn follow(&mut self, before: &Request) {
        self.daemon.clone_from(&before.daemon);
        self.arrived = before
            .arrived
            .filter(|(at, _)| before.returned.is_some_and(|returned| *at > returned));
        self.arrived_begin = before.arrived_begin;
        if self.arrived.is_some() {
            self.goroutines.clone_from(&before.goroutines);
        }
        self.is_followed = before.is_followed && self.arrived.is_some();
        self.begin = self.arrived.map_or(self.begin, |(at, _)| at.min(self.begin));
    }

    /// A message of it.
    pub(super) fn on_step(&mut self, at: Timestamp, step: &RequestStep) {
        if matches!(step.point, RequestPoint::Arrived | RequestPoint::Awaited) {
            // Also of an acknowledgement: the goroutine that reads this connection creates those that handle what comes by it.
            self.add_goroutine(step.daemon.as_ref().and_then(|daemon| daemon.goroutine));
        }
        if self.is_over {
            // It may be of the next one, whose sending is not reported yet.
            let may_be_next = step.point == RequestPoint::Arrived && !may_be_last(step.bytes);
            if let Some(daemon) = step.daemon.as_ref().filter(|_| may_be_next) {
                self.arrive(at, daemon);
            }
            return;
        }
        // Who listens may have handed the connection to another process, which is then seen to receive.
        let is_better = self.daemon.as_ref().is_none_or(|known| known.thread == 0);
        if step.daemon.is_some() && is_better {
            self.daemon.clone_from(&step.daemon);
        }
        match step.point {
            // The daemon may have received before the sending is reported, and then its time is nearer to that.
            RequestPoint::Sent => self.begin = self.begin.min(at),
            RequestPoint::Arrived => {
                self.begin = self.begin.min(at);
                // The last part of it counts: by then the daemon's thread is the one that handles it.
                if let Some(daemon) = step.daemon.as_ref()
                    && (!is_control(step.bytes) || self.arrived.is_none())
                {
                    self.arrive(at, daemon);
                }
            }
            // The first part of the answer ends it.
            RequestPoint::Replied => {
                if let Some(daemon) = step.daemon.as_ref()
                    && self.replied.is_none()
                    && self.daemon_is(daemon.process)
                    && !is_control(step.bytes)
                {
                    self.replied = Some(ThreadAt {
                        at,
                        thread: daemon.thread,
                        begin: daemon.thread_begin,
                    });
                }
            }
            RequestPoint::Returned => {
                self.returned = Some(at);
                if !is_control(step.bytes) {
                    self.answered = Some(at);
                }
            }
            RequestPoint::Awaited => {}
        }
    }

    fn arrive(&mut self, at: Timestamp, daemon: &DaemonProcess) {
        self.arrived = Some((at, daemon.thread));
        self.arrived_begin = daemon.thread_begin;
        self.is_followed = daemon.followed;
        self.replied = None;
    }

    fn add_goroutine(&mut self, goroutine: Option<Goroutine>) {
        if let Some(goroutine) = goroutine
            && !self.has_goroutine(goroutine.id)
            && self.goroutines.len() < GOROUTINES_MAX
        {
            self.goroutines.push(goroutine.id);
        }
    }

    /// Another request is in flight at its daemon.
    pub(super) fn is_beside(&mut self, other: &Request) {
        self.is_shared = true;
        self.shares_goroutine |= self.goroutines.iter().any(|id| other.has_goroutine(*id));
    }

    /// A goroutine with this id works for it.
    pub(super) fn has_goroutine(&self, id: u64) -> bool {
        self.goroutines.contains(&id)
    }

    /// Its daemon, while that has it and its threads are followed.
    pub(super) fn busy_daemon(&self) -> Option<&DaemonProcess> {
        let is_there = self.is_followed && !self.is_over && self.arrived.is_some();
        self.daemon.as_ref().filter(|_| is_there)
    }

    /// Its receipt, if the daemon's threads are followed since then.
    pub(super) fn received(&self) -> Option<ThreadAt> {
        let (at, thread) = self.arrived.filter(|_| self.is_followed)?;
        Some(ThreadAt {
            at,
            thread,
            begin: self.arrived_begin,
        })
    }

    /// From its receipt to its answer, if it has one and the daemon's threads were followed. `connection` is its number.
    pub(super) fn answered(&self, connection: u64) -> Option<Answered> {
        let (received, end) = (self.received()?, self.answered?);
        let daemon = self.daemon.as_ref()?;
        Some(Answered {
            span: self.span?,
            connection,
            daemon: daemon.process,
            client: self.client,
            end,
            received,
            replied: self.replied,
            alone: !self.is_shared,
            goroutines: match self.is_shared && !self.shares_goroutine {
                true => self.goroutines.clone(),
                false => Vec::new(),
            },
        })
    }

    /// This process serves it.
    pub(super) fn daemon_is(&self, process: ProcessKey) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| daemon.process == process)
    }

    /// It was in flight at this time.
    pub(super) fn is_in_flight(&self, at: Timestamp) -> bool {
        let end = self.answered.or(self.returned.filter(|_| self.is_over));
        self.begin <= at && end.map_or(!self.is_over, |end| end > at)
    }

    /// Its span, which begins now if there was none. `None` when its trace is gone or full.
    pub(super) fn show(&mut self, ctx: &mut Context) -> Option<SpanRef> {
        if self.span.is_some() {
            return self.span;
        }
        // As waits, requests never take the room of processes.
        let half = ctx.config.max_spans / 2;
        let detail = self.detail(ctx);
        let open = ctx.traces.get_mut(self.owner.trace)?;
        let parent = open.nearest_open(self.owner.span)?;
        open.nearest_plugin(parent)?;
        if open.trace.spans.len() >= half {
            return None;
        }
        let span = open.begin(Some(parent), self.begin, Detail::Daemon(Box::new(detail)))?;
        open.touch(&mut ctx.effects);
        self.span = Some(open.reference(span));
        self.span
    }

    /// Writes what is known by now into its span.
    pub(super) fn update_span(&self, ctx: &mut Context) {
        let Some(span) = self.span else { return };
        let detail = self.detail(ctx);
        if let Some(open) = ctx.traces.get_mut(span.trace)
            && open.is_open(span.span)
            && let Some(shown) = open.trace.spans[span.span].detail.as_daemon_mut()
            && shown.pid != detail.pid
        {
            *shown = detail;
            open.touch(&mut ctx.effects);
        }
    }

    fn detail(&self, ctx: &mut Context) -> DaemonDetail {
        let daemon = self.daemon.as_ref();
        DaemonDetail {
            name: daemon.map_or_else(Arc::default, |daemon| ctx.names.get(&daemon.name)),
            pid: daemon.map_or(0, |daemon| daemon.process.pid),
            cgroup: daemon.map_or_else(Arc::default, |daemon| ctx.names.get(&daemon.cgroup)),
            transport: self.transport,
            begin: self.how,
            unanswered: false,
            time: None,
            threads: None,
        }
    }

    /// It is over: with its answer, with what came back last, or, without any, at `at`. One that lasted long enough has a span. False when
    /// it was over already.
    pub(super) fn end(&mut self, ctx: &mut Context, at: Timestamp) -> bool {
        if self.is_over {
            return false;
        }
        let came = self.answered.or(self.returned);
        let end = came.unwrap_or(at);
        if self.span.is_none() && end.since(self.begin) >= SHOWN_NS {
            self.show(ctx);
        }
        self.is_over = true;
        if let Some(span) = self.span {
            end_span(ctx, span, end, came.is_none());
        }
        true
    }
}

/// Ends the span of a request.
fn end_span(ctx: &mut Context, span: SpanRef, at: Timestamp, unanswered: bool) {
    let Some(open) = ctx.traces.get_mut(span.trace).filter(|open| open.is_open(span.span)) else {
        return;
    };
    // No span ends before those below it.
    let at = at.max(open.states[span.span].latest);
    let time = time::of_request(&open.trace.spans, span.span, at, None);
    if let Detail::Daemon(detail) = &mut open.trace.spans[span.span].detail {
        detail.unanswered = unanswered;
        detail.time = time.map(Box::new);
    }
    open.end(span.span, at, Cut::Outlived, &mut ctx.effects);
}
