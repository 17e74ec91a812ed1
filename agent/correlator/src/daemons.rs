//! The room of daemons: requests that plugins send to daemons, as spans, and which of them a command of a daemon belongs to.
//!
//! `correlator.rs` passes it the messages between plugins and daemons, what daemons fork and execute, and the ends of processes.
//! `daemons/request.rs` is one request, `daemons/attribution.rs` chooses among those in flight, `daemons/time.rs` says what the time
//! of a request went to, `daemons/threads.rs` whether what the daemon's threads did belongs to it.
//!
//! A request begins with the first message that its client sends and ends with the first one that comes back and is no
//! acknowledgement of HTTP/2. It has a span once it lasts for a millisecond, or once the daemon executes something for it.
//! Bounded: [`CONNECTIONS_MAX`] connections, [`CHILDREN_MAX`] processes and [`DAEMONS_MAX`] daemons; what is used least goes.
//! Does not: read what a message says, or know which process has which span (the room of plugins does).

mod attribution;
mod handled;
mod request;
mod threads;
mod time;

use std::collections::{BTreeMap, VecDeque};

use sandglass_model::daemons::{DaemonProcess, RequestPoint, RequestStep};
use sandglass_model::event::{Fork, Netns};
use sandglass_model::trace::{Attribution, Confidence, RequestBegin};
use sandglass_model::{ProcessKey, TextPairs, Timestamp};

use crate::context::Context;
use crate::daemon_path::{DaemonPath, PathLink, ThreadAt};
use crate::daemons::attribution::{Started, choose, received_last};
use crate::daemons::handled::Handled;
use crate::daemons::request::{Request, SHOWN_NS, Target, is_control, may_be_last};
use crate::facts::Fact;
use crate::invocation::Image;
use crate::keys::{SpanRef, TraceKey};
use crate::open_trace::OpenTrace;
use crate::timers::Timer;

/// The room's state.
#[derive(Debug, Default)]
pub(crate) struct Daemons {
    /// Since when requests are followed; `None` while they are not.
    since: Option<Timestamp>,
    /// The newest request of each connection whose client runs, by the connection's number.
    requests: BTreeMap<u64, Request>,
    /// Processes that have received requests, the newest last.
    daemons: VecDeque<Daemon>,
    /// What daemons have forked and is not attributed.
    children: BTreeMap<ProcessKey, Started>,
    /// Inodes of sandboxes' network namespaces, by the sandbox, the newest last.
    namespaces: VecDeque<(String, u64)>,
    /// Those that have a request and whose threads are followed.
    busy: Vec<ProcessKey>,
    /// What threads of daemons received and sent, the newest last.
    handled: Handled,
}

#[derive(Debug)]
struct Daemon {
    process: ProcessKey,
    /// Its threads say nothing about the request that they work for: it has goroutines, or a thread that had received one request last
    /// started something whose content speaks for another one.
    moves_work: bool,
}

/// Connections: a shim has one or two, and a node creates some tens of sandboxes at once.
const CONNECTIONS_MAX: usize = 1_024;
/// Processes of daemons that run.
const CHILDREN_MAX: usize = 4_096;
/// A node has a few daemons for its network.
const DAEMONS_MAX: usize = 64;
/// Sandboxes of which the namespace is remembered: those whose operations may run.
const NAMESPACES_MAX: usize = 512;

// === messages ===

impl Daemons {
    /// Requests are followed from now on, or not any more.
    pub(crate) fn on_followed(&mut self, at: Timestamp, on: bool) {
        self.since = on.then_some(at);
    }

    /// A network namespace of a sandbox is known.
    pub(crate) fn on_netns(&mut self, netns: &Netns) {
        if self.namespaces.len() >= NAMESPACES_MAX {
            self.namespaces.pop_front();
        }
        self.namespaces.push_back((netns.sandbox.0.clone(), netns.inode));
    }

    /// Since when messages were followed, if this message is part of a request that was sent before.
    pub(crate) fn missed(&self, step: &RequestStep) -> Option<Timestamp> {
        let is_answer = matches!(step.point, RequestPoint::Replied | RequestPoint::Returned);
        let is_new = self
            .requests
            .get(&step.connection)
            .is_none_or(|request| request.client != step.client);
        self.since.filter(|_| is_answer && is_new)
    }

    /// A message. `owner` is the span of its client or around it, `slept_from` the begin of a request that was sent before messages
    /// were followed, if it is known.
    pub(crate) fn on_step(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        step: &RequestStep,
        owner: Option<SpanRef>,
        slept_from: Option<Timestamp>,
    ) {
        let number = step.connection;
        let known = self
            .requests
            .get(&number)
            .filter(|request| request.client == step.client);
        let begins = match (known, step.point) {
            (None, RequestPoint::Awaited) => return,
            (None, _) => true,
            // Acknowledgements come behind an answer too.
            (Some(_), RequestPoint::Sent | RequestPoint::Arrived) if is_control(step.bytes) => false,
            (Some(request), RequestPoint::Sent | RequestPoint::Arrived)
                if request.answered.is_some() && may_be_last(step.bytes) =>
            {
                false
            }
            // What came back before was gRPC's exchange of settings, or a short answer.
            (Some(request), RequestPoint::Sent) => request.returned.is_some_and(|returned| returned < at),
            // The daemon may have received before the sending is reported.
            (Some(request), RequestPoint::Arrived) => request.answered.is_some_and(|answered| answered < at),
            (Some(_), RequestPoint::Replied | RequestPoint::Returned | RequestPoint::Awaited) => false,
        };
        if begins {
            let Some(owner) = owner.filter(|owner| ctx.traces.get(owner.trace).is_some()) else {
                return;
            };
            self.end(ctx, number, at);
            let (begin, how) = match (step.point, slept_from, self.since) {
                (RequestPoint::Sent | RequestPoint::Arrived, ..) | (_, None, None) => (at, RequestBegin::Sent),
                (_, Some(slept_from), _) => (slept_from, RequestBegin::Recovered),
                (_, None, Some(since)) => (since.min(at), RequestBegin::Followed),
            };
            let mut request = Request::new(step, owner, begin, how, Target::of(ctx, owner));
            if let Some(before) = self.requests.get(&number).filter(|before| before.client == step.client) {
                request.follow(before);
            }
            request.has_unseen_beside = self.may_miss_one(ctx, owner.trace);
            request.is_shared |= request.has_unseen_beside;
            self.begin(ctx, number, request);
        }
        if let Some(daemon) = step.daemon.as_ref().filter(|_| step.point == RequestPoint::Arrived) {
            self.add_daemon(daemon);
        }
        let Some(request) = self.requests.get_mut(&number) else {
            return;
        };
        request.on_step(at, step);
        request.update_span(ctx);
        let is_answered = request.answered.is_some();
        self.handled.add(at, step);
        self.share(number, at);
        if is_answered {
            self.end(ctx, number, at);
        }
        self.report_busy(ctx);
    }

    /// Whether a process for another sandbox runs that began before messages were followed, and no request of that sandbox is known.
    fn may_miss_one(&self, ctx: &Context, trace: TraceKey) -> bool {
        let Some(since) = self.since else { return false };
        let is_older = |open: &OpenTrace| {
            let mut running = open.trace.spans.iter().filter(|span| span.end.is_none());
            running.any(|span| span.process().is_some() && span.start < since)
        };
        let others = ctx.traces.keys().filter(|key| *key != trace);
        let mut unknown = others.filter(|key| self.requests.values().all(|request| request.owner.trace != *key));
        unknown.any(|key| ctx.traces.get(key).is_some_and(is_older))
    }

    fn begin(&mut self, ctx: &mut Context, number: u64, request: Request) {
        if self.requests.len() >= CONNECTIONS_MAX && !self.requests.contains_key(&number) {
            // Connections are numbered in order: the first one is the oldest.
            if let Some((oldest, mut evicted)) = self.requests.pop_first() {
                ctx.effects.timers.clear(Timer::Request(oldest));
                let now = ctx.now;
                evicted.end(ctx, now);
            }
        }
        ctx.effects
            .timers
            .set(Timer::Request(number), request.begin.plus(SHOWN_NS));
        self.requests.insert(number, request);
    }

    /// The request of a connection is over, at `at` if it had no answer. It stays, so that what comes late is not taken for
    /// another one.
    fn end(&mut self, ctx: &mut Context, number: u64, at: Timestamp) {
        if let Some(request) = self.requests.get_mut(&number) {
            ctx.effects.timers.clear(Timer::Request(number));
            if request.end(ctx, at)
                && let Some(answered) = request.answered(number)
            {
                ctx.facts.push(Fact::RequestAnswered(Box::new(answered)));
            }
        }
    }

    /// A request lasts long enough for a span.
    pub(crate) fn on_request_due(&mut self, ctx: &mut Context, number: u64) {
        if let Some(request) = self.requests.get_mut(&number) {
            request.show(ctx);
        }
    }

    /// A trace closes, and with it what is open in it.
    pub(crate) fn on_closing(&mut self, ctx: &mut Context, trace: TraceKey) {
        self.requests.retain(|number, request| {
            let goes = request.owner.trace == trace;
            if goes {
                ctx.effects.timers.clear(Timer::Request(*number));
            }
            !goes
        });
        self.report_busy(ctx);
    }

    /// The input has ended: what is still open ends with its trace.
    pub(crate) fn finish(&mut self, ctx: &mut Context) {
        for (number, mut request) in std::mem::take(&mut self.requests) {
            ctx.effects.timers.clear(Timer::Request(number));
            if request.is_in_flight(ctx.now) && ctx.now.since(request.begin) >= SHOWN_NS {
                request.show(ctx);
            }
        }
    }

    /// A process ended: with it its requests, and what is known of it as a child of a daemon.
    pub(crate) fn on_exit(&mut self, ctx: &mut Context, at: Timestamp, process: ProcessKey) -> bool {
        let of_it = self.requests.iter().filter(|(_, request)| request.client == process);
        let numbers: Vec<u64> = of_it.map(|(number, _)| *number).collect();
        for number in numbers {
            self.end(ctx, number, at);
            self.requests.remove(&number);
        }
        self.report_busy(ctx);
        for request in self.requests.values_mut() {
            request.on_exit(at, process);
        }
        self.children.remove(&process).is_some()
    }
}

// === what daemons run ===

impl Daemons {
    fn add_daemon(&mut self, daemon: &DaemonProcess) {
        let process = daemon.process;
        let known = self.daemons.iter().position(|daemon| daemon.process == process);
        let known = known.and_then(|at| self.daemons.remove(at));
        if self.daemons.len() >= DAEMONS_MAX {
            self.daemons.pop_front();
        }
        let moves_work = daemon.goroutines || known.is_some_and(|known| known.moves_work);
        self.daemons.push_back(Daemon { process, moves_work });
    }

    /// A daemon forked, or what it started and is not attributed. False when it was another process.
    pub(crate) fn on_fork(&mut self, at: Timestamp, fork: &Fork) -> bool {
        let started = match self.children.get(&fork.parent) {
            Some(parent) => *parent,
            None if self.daemons.iter().any(|daemon| daemon.process == fork.parent) => Started {
                daemon: fork.parent,
                thread: fork.thread.map_or(0, |thread| thread.id),
                goroutine: fork.goroutine,
                at,
            },
            None => return false,
        };
        if self.children.len() >= CHILDREN_MAX {
            self.children.pop_first();
        }
        self.children.insert(fork.process, started);
        true
    }

    /// A daemon has forked this process, and it is not attributed.
    pub(crate) fn has_started(&self, process: ProcessKey) -> bool {
        self.children.contains_key(&process)
    }

    /// The request that an exec below a daemon belongs to, by its span, and why. `path` finds what threads of a daemon did from the receipt
    /// of a request to something else. `None` when it belongs to none: the daemon does
    /// work of its own too.
    pub(crate) fn attribute(
        &mut self,
        ctx: &mut Context,
        image: &Image,
        env: &TextPairs,
        path: impl Fn(ProcessKey, ThreadAt, ThreadAt) -> Option<DaemonPath>,
    ) -> Option<(SpanRef, Attribution)> {
        let started = *self.children.get(&image.process)?;
        let of_daemon = self
            .requests
            .iter()
            .filter(|(_, request)| request.daemon_is(started.daemon));
        let requests: Vec<(u64, &Request)> = of_daemon.map(|(number, request)| (*number, request)).collect();
        let inode = |sandbox: &str| {
            let newest = self.namespaces.iter().rev().find(|(of, _)| of == sandbox);
            newest.map_or(0, |(_, inode)| *inode)
        };
        let forked = ThreadAt {
            at: started.at,
            thread: started.thread,
            begin: Timestamp(0),
        };
        let leads = |number: u64, request: &Request| {
            let path = request
                .received()
                .and_then(|received| path(started.daemon, received, forked));
            path.is_some_and(|path| {
                path.link == PathLink::WakeUps && !self.handled.crosses(started.daemon, number, &path)
            })
        };
        let moves_work = self.moves_work(started.daemon);
        let received = received_last(&requests, started);
        let by_thread = received.filter(|_| !moves_work);
        let leads = |number: u64, request: &Request| !moves_work && leads(number, request);
        let (number, attribution) = choose(&requests, started, by_thread, image, env, inode, leads)?;
        let is_moved = attribution.is_by_content() && received.is_some_and(|other| other != number);
        let daemon = self.daemons.iter_mut().find(|daemon| daemon.process == started.daemon);
        if let Some(daemon) = daemon {
            daemon.moves_work |= is_moved;
        }
        let request = self.requests.get_mut(&number)?;
        request.start(image.process, started.goroutine);
        let span = request.show(ctx)?;
        self.children.remove(&image.process);
        Some((span, attribution))
    }

    /// This daemon's threads say nothing about the request that they work for.
    fn moves_work(&self, daemon: ProcessKey) -> bool {
        let known = self.daemons.iter().find(|known| known.process == daemon);
        known.is_some_and(|known| known.moves_work)
    }

    /// Notes at a process why it is attributed to a request.
    pub(crate) fn annotate(&self, ctx: &mut Context, span: SpanRef, attribution: Attribution) {
        let open = ctx.traces.get_mut(span.trace);
        if let Some(process) = open.and_then(|open| open.trace.spans[span.span].process_mut()) {
            process.attribution = Some(attribution);
            process.ambiguous = attribution.confidence() == Confidence::Possible;
        }
    }
}
