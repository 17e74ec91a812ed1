//! The first exchanges of a sandbox, until its network is ready: shown as spans of its trace and passed to
//! `readiness.rs`.
//!
//! Used by `correlator.rs` with facts of the rooms of traffic and of Windows. Also completes journeys, since only this
//! room remembers the pod's labels and the root of the sandbox's trace.
//! An exchange is shown when it begins, since a lookup that hangs is what a reader of an open trace looks for; whether it
//! belongs to the time before readiness is known later, and `readiness.rs` then keeps or withdraws the span.
//! Does not: match messages to exchanges or decide how one ended.

use std::sync::Arc;

use sandglass_model::trace::{Detail, Relation, SpanEvent};
use sandglass_model::{SandboxId, Timestamp, Trace};

use crate::context::Context;
use crate::exchange::{EndedExchange, ExchangeId};
use crate::facts::Fact;
use crate::keys::TraceKey;
use crate::output::{EndedSpan, Output};
use crate::sandboxes::Sandboxes;

impl Sandboxes {
    /// The agent observes traffic from now on. A sandbox that is being created has missed nothing: its programs start
    /// after its creation.
    pub(crate) fn on_traffic_watched(&mut self) {
        self.watched = true;
    }

    /// An exchange began in a sandbox whose network is not ready: shows it as a span below the root, if there is room.
    pub(crate) fn on_exchange_began(
        &mut self,
        ctx: &mut Context,
        home: TraceKey,
        id: ExchangeId,
        at: Timestamp,
        detail: Detail,
    ) {
        let (Some(open), Some(creation)) = (ctx.traces.get_mut(home), self.creations.get_mut(home)) else {
            return;
        };
        // Exchanges that are left out on purpose are counted; only a span that a full trace refuses makes it incomplete.
        let room = creation.readiness.has_room();
        let span = if room { open.begin(Some(0), at, detail) } else { None };
        if room && span.is_none() {
            open.trace.incomplete = true;
            ctx.effects.counters.evicted_spans += 1;
        }
        creation.readiness.began(id, span, at);
        open.touch(&mut ctx.effects);
    }

    /// Takes over detail and span events of an exchange that is shown. One that is left out is ignored.
    pub(crate) fn on_exchange_changed(
        &mut self,
        ctx: &mut Context,
        home: TraceKey,
        id: ExchangeId,
        detail: Detail,
        events: Vec<SpanEvent>,
    ) {
        let (Some(open), Some(creation)) = (ctx.traces.get_mut(home), self.creations.get(home)) else {
            return;
        };
        // The whole detail is replaced: it is small, and differences would have to be merged.
        if let Some(span) = creation.readiness.span(id) {
            open.trace.spans[span].detail = detail;
            open.trace.spans[span].events = events;
            open.touch(&mut ctx.effects);
        }
    }

    /// An exchange ended. Goes back to the room of traffic when its trace has closed meanwhile; otherwise its finding
    /// is emitted, or held until it is known whether it began before the network was ready.
    pub(crate) fn on_exchange_ended(&mut self, ctx: &mut Context, home: TraceKey, ended: EndedExchange) {
        let (Some(open), Some(creation)) = (ctx.traces.get_mut(home), self.creations.get_mut(home)) else {
            ctx.facts.push(Fact::ExchangeReleased(ended));
            return;
        };
        let readiness = &mut creation.readiness;
        let exchange = Arc::clone(&ended.exchange);
        // It was left out at its begin for want of room, and is the one that makes the network ready.
        if readiness.is_wanted(&ended)
            && let Some(span) = open.begin(Some(0), exchange.start, exchange.to_detail())
        {
            readiness.show_late(&ended, span);
        }
        // The span keeps its end open for `settle`, which decides whether it belongs here.
        if let Some(span) = readiness.span(ended.id) {
            let span = &mut open.trace.spans[span];
            span.end = Some(exchange.end.max(span.start));
            span.status = exchange.status.clone();
            span.detail = exchange.to_detail();
            span.events = crate::notes::events(&exchange.notes, span.start, None);
        }
        // Until something works every exchange belongs to the time before readiness; after that it is open which do.
        let reported = !readiness.works();
        let held = readiness.ended(&ended, reported);
        open.touch(&mut ctx.effects);
        if !held {
            ctx.effects.outputs.push(ended.finding(Some(open.trace.id), false));
        }
    }

    /// An exchange was evicted or cut off by the end of the input: how it ends is not known, and the trace is
    /// incomplete.
    pub(crate) fn on_exchange_lost(&mut self, ctx: &mut Context, home: TraceKey, id: ExchangeId) {
        let now = ctx.now;
        let Some(open) = ctx.traces.get_mut(home) else {
            return;
        };
        open.trace.incomplete = true;
        let creation = self.creations.get_mut(home);
        if let Some(span) = creation.and_then(|creation| creation.readiness.lose(id, now)) {
            let span = &mut open.trace.spans[span];
            span.end = Some(now.max(span.start));
        }
        open.touch(&mut ctx.effects);
    }

    /// A journey is complete: adds the pod's labels and the link to its sandbox's trace, and emits it. Spans are
    /// emitted children first, as they are for every other trace.
    pub(crate) fn on_journey_closed(&mut self, ctx: &mut Context, mut trace: Trace) {
        let sandbox = trace.sandbox.as_ref();
        let remembered = sandbox.and_then(|SandboxId(sandbox)| self.memory.sandboxes.get(sandbox));
        if let Some(remembered) = remembered {
            // A sandbox that was evicted from memory has neither labels nor a link; its journey is emitted all the same.
            trace.identity = remembered.pod.identity();
            let link = remembered.root.map(|root| root.link(Relation::Sandbox));
            trace.spans[0].links.extend(link);
        }
        for span in trace.spans.iter().rev() {
            ctx.effects.outputs.push(Output::Ended(EndedSpan::of(&trace, span)));
        }
        ctx.effects.outputs.push(Output::Closed(Arc::new(trace)));
    }
}
