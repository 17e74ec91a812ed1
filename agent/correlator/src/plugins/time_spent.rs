//! What the time of plugins, commands and operations went to, put into the details of their spans.
//!
//! Used by `correlator.rs`, with what the room of waits found for a process that has ended. An operation's time is that of
//! the plugins of its chain, and the runtime's between them.
//! Invariant: the sum of a time is the duration of its span, to the nanosecond; an operation for which that cannot be
//! has none.
//! Does not: find reasons.

use sandglass_model::event::ExitStatus;
use sandglass_model::waits::{TimeReason, TimeSpent, WaitDetail, Waiting};
use sandglass_model::{Detail, ProcessKey, Span, Timestamp};

use crate::context::Context;
use crate::keys::SpanRef;
use crate::open_trace::OpenTrace;
use crate::open_trace::ending::Cut;
use crate::plugins::Plugins;
use crate::plugins::role::Role;

impl Plugins {
    /// The time of a process whose span has ended.
    pub(crate) fn on_time_spent(&self, ctx: &mut Context, reference: SpanRef, spent: TimeSpent) {
        let Some(open) = ctx.traces.get_mut(reference.trace) else {
            return;
        };
        let spent = through_daemons(&open.trace.spans, reference.span, spent);
        let Some(process) = open.trace.spans[reference.span].process_mut() else {
            return;
        };
        process.time = Some(Box::new(spent));
        let state = self.traces.get(reference.trace);
        let process = state.and_then(|state| state.process(reference.span));
        let operation = process
            .filter(|process| process.in_chain)
            .and_then(|process| process.operation);
        if let Some(operation) = operation {
            sum_up(open, operation);
        }
        open.touch(&mut ctx.effects);
    }

    /// What a process that runs waits for now.
    pub(crate) fn on_waiting(&self, ctx: &mut Context, process: ProcessKey, waiting: Option<Waiting>) {
        let Some(Role::Spanned(reference) | Role::Runtime(Some(reference))) = self.processes.role(process) else {
            return;
        };
        let open = ctx.traces.get_mut(reference.trace);
        let Some(open) = open.filter(|open| open.is_open(reference.span)) else {
            return;
        };
        if let Some(process) = open.trace.spans[reference.span].process_mut() {
            process.waiting = waiting.map(Box::new);
            open.touch(&mut ctx.effects);
        }
    }

    /// The wait that a process ended in, which matters if it did not end by itself. What a look had found knows the kernel's function.
    pub(crate) fn on_last_wait(&self, ctx: &mut Context, reference: SpanRef, last: Option<Waiting>) {
        let (Some(open), Some(last)) = (ctx.traces.get_mut(reference.trace), last) else {
            return;
        };
        let Some(process) = open.trace.spans[reference.span].process_mut() else {
            return;
        };
        if !matches!(process.exit, Some(ExitStatus::Signal(_))) {
            return;
        }
        let looked = process.waiting.as_deref();
        if looked.is_none_or(|looked| (looked.reason, &looked.what) != (last.reason, &last.what)) {
            process.waiting = Some(Box::new(last));
            open.touch(&mut ctx.effects);
        }
    }

    /// The longest waits of a process become spans below its own. They never take the room of a process: a trace that is half full
    /// gets no more of them.
    pub(crate) fn on_waits_shown(
        &self,
        ctx: &mut Context,
        reference: SpanRef,
        shown: Vec<(Timestamp, Timestamp, WaitDetail)>,
    ) {
        let half = ctx.config.max_spans / 2;
        let Some(open) = ctx.traces.get_mut(reference.trace) else {
            return;
        };
        for (from, to, detail) in shown {
            if open.trace.spans.len() >= half {
                return;
            }
            // The request that it waited for has a span already.
            let is_request = |span: &Span| {
                let within = span.start <= to && span.end.is_none_or(|end| end >= from);
                span.parent == Some(reference.span) && span.detail.as_daemon().is_some() && within
            };
            if matches!(detail.reason, TimeReason::Daemon | TimeReason::Network)
                && open.trace.spans[reference.span..].iter().any(is_request)
            {
                continue;
            }
            if let Some(span) = open.begin(Some(reference.span), from, Detail::Wait(Box::new(detail))) {
                open.end(span, to, Cut::Outlived, &mut ctx.effects);
            }
        }
    }

    /// Records were lost since this time: what was found since then may lack waits.
    pub(crate) fn on_waits_lost(&self, ctx: &mut Context, since: Timestamp) {
        let keys: Vec<_> = ctx.traces.keys().collect();
        for key in keys {
            let Some(open) = ctx.traces.get_mut(key) else {
                continue;
            };
            for span in &mut open.trace.spans {
                if span.end.is_some_and(|end| end < since) {
                    continue;
                }
                let detail = &mut span.detail;
                let operation = detail.as_operation_mut().and_then(|operation| operation.time.as_mut());
                if let Some(time) = operation {
                    time.lose_processor(TimeReason::Unknown);
                }
                if let Some(time) = detail.process_mut().and_then(|process| process.time.as_mut()) {
                    time.lose_processor(TimeReason::Unknown);
                }
            }
        }
    }
}

/// What a process waited for a daemon becomes what that time of the request went to, as far as it is known.
fn through_daemons(spans: &[Span], client: usize, mut spent: TimeSpent) -> TimeSpent {
    let requests = spans[client..].iter().filter(|span| span.parent == Some(client));
    for request in requests {
        if let Some(detail) = request.detail.as_daemon()
            && let Some(time) = &detail.time
        {
            spent.go_through(&detail.name, time);
        }
    }
    spent
}

/// An operation that has a time got another member, or a member without a time: its sum is made again.
pub(crate) fn sum_up_again(open: &mut OpenTrace, operation: usize) {
    if open.operation(operation).is_some_and(|detail| detail.time.is_some()) {
        sum_up(open, operation);
    }
}

fn sum_up(open: &mut OpenTrace, operation: usize) {
    let members = open.trace.spans.iter().filter(|span| span.parent == Some(operation));
    let span = &open.trace.spans[operation];
    let time = of_chain(span.start, span.end, members);
    if let Some(detail) = open.operation_mut(operation) {
        detail.time = time.map(Box::new);
    }
}

/// The time from the begin of an operation to the end of the last of its plugins so far. `None` when one of them still runs, or
/// ran beside another, which no runtime does.
fn of_chain<'a>(
    start: Timestamp,
    end: Option<Timestamp>,
    members: impl Iterator<Item = &'a Span>,
) -> Option<TimeSpent> {
    let mut time = TimeSpent::default();
    let mut recorded_from = None;
    let mut at = start;
    for member in members.filter(|span| span.detail.as_plugin().is_some()) {
        let ended = member.end?;
        if member.start < at {
            return None;
        }
        time.add(TimeReason::Runtime, member.start.since(at));
        match member.process().and_then(|process| process.time.as_ref()) {
            Some(spent) => {
                let is_from_begin = at == start && spent.recorded_after_ns == 0;
                let from = member.start.plus(spent.recorded_after_ns);
                recorded_from.get_or_insert(if is_from_begin { start } else { from });
                time.merge(spent);
            }
            None => time.add(TimeReason::Unknown, ended.since(member.start)),
        }
        at = ended;
    }
    time.recorded_after_ns = recorded_from.map_or(0, |from| from.since(start));
    if let Some(end) = end {
        time.add(TimeReason::Runtime, end.since(at));
    }
    Some(time)
}
