//! Decides when a sandbox's network is ready: after its first answered lookup, or its first established connect.
//!
//! Used by `closing.rs` and `first_exchanges.rs`, one tracker per creation. The first success suffices alone. If an
//! exchange of the other kind begins within a grace time after it, the network is ready when that has succeeded too: a
//! program that resolves a name usually connects next. Exchanges that began before are part of the sandbox's trace,
//! failed ones included; those still open then are shown up to there, and go on as traffic of the sandbox. A sandbox
//! that sends nothing ends where its creation did.
//! Bounded: of a sandbox that tries without end the first 64 exchanges are shown, and up to 8 more that succeeded; the
//! others are counted.
//! Does not: decide how an exchange ends.
//!
//! Examples, with a grace time of 1 s:
//! - A lookup is answered at 100 ms and nothing follows: ready at 100 ms, decided at 1,100 ms.
//! - A lookup is answered at 100 ms, a connect begins at 200 ms and is established at 250 ms: ready at 250 ms, decided
//!   at once.
//! - A lookup fails at 5 s, a connect to an address is established at 6 s: ready at 6 s, and the failed lookup is part
//!   of the trace.
//! - Nothing is sent within `ready_deadline_ns`: not ready, and the sandbox counts as silent.

use sandglass_model::trace::Status;
use sandglass_model::{Timestamp, registry};

use crate::config::TrafficBounds;
use crate::context::Context;
use crate::exchange::{EndedExchange, ExchangeId};
use crate::facts::Fact;
use crate::open_trace::OpenTrace;

/// Exchanges of a sandbox until its network is ready.
#[derive(Debug, Default)]
pub(crate) struct ReadinessTracker {
    /// When the creation was over; `None` before. The deadline counts from here.
    pub(crate) created: Option<Timestamp>,
    /// Begin of the first exchange, whether it is shown or not.
    first_attempt: Option<Timestamp>,
    /// Exchanges with a span, in order of insertion.
    shown: Vec<ShownExchange>,
    /// Exchanges that prove something, shown or not.
    successes: Vec<Success>,
    /// Exchanges without a span, with their begin.
    left_out: Vec<(ExchangeId, Timestamp)>,
    /// How many more there are, beyond the bound on `left_out`.
    more_left_out: u32,
}

/// An exchange with a span in the trace.
#[derive(Debug)]
struct ShownExchange {
    id: ExchangeId,
    /// Index of its span in the open trace.
    span: usize,
    start: Timestamp,
    /// When it ended; `None` while it is open.
    end: Option<Timestamp>,
    /// The exchange, while its finding is not emitted: it may turn out to have begun after the network was ready, and
    /// then it is traffic.
    held: Option<EndedExchange>,
}

/// An exchange that proves that the network works for lookups, or for connects.
#[derive(Clone, Copy, Debug)]
struct Success {
    /// It is a connect; otherwise a lookup.
    connect: bool,
    start: Timestamp,
    end: Timestamp,
}

/// Bound on exchanges shown of one sandbox, and on successes kept.
const MAX_ATTEMPTS: usize = 64;
/// Bound on exchanges shown besides because they succeeded: one of them may be what makes the network ready.
const MAX_DECIDING: usize = 8;
/// Bound on exchanges without a span whose begin is kept, so that those that began after readiness are not counted.
const MAX_LEFT_OUT: usize = 1_024;

impl ReadinessTracker {
    /// A further exchange can be shown.
    pub(crate) fn has_room(&self) -> bool {
        self.shown.len() < MAX_ATTEMPTS
    }

    /// At least one exchange succeeded.
    pub(crate) fn works(&self) -> bool {
        !self.successes.is_empty()
    }

    /// An exchange began; `span` where it is shown.
    pub(crate) fn began(&mut self, id: ExchangeId, span: Option<usize>, at: Timestamp) {
        self.first_attempt = Some(self.first_attempt.map_or(at, |first| first.min(at)));
        match span {
            Some(span) => self.show(id, span, at),
            None if self.left_out.len() < MAX_LEFT_OUT => self.left_out.push((id, at)),
            // Which of them began before the network was ready is not known.
            None => self.more_left_out = self.more_left_out.saturating_add(1),
        }
    }

    /// Records that an exchange has a span.
    fn show(&mut self, id: ExchangeId, span: usize, at: Timestamp) {
        self.shown.push(ShownExchange {
            id,
            span,
            start: at,
            end: None,
            held: None,
        });
    }

    /// The exchange is not shown, and must be: it succeeded and may decide.
    pub(crate) fn is_wanted(&self, ended: &EndedExchange) -> bool {
        ended.exchange.works() && self.shown.len() < MAX_ATTEMPTS + MAX_DECIDING && self.span(ended.id).is_none()
    }

    /// The exchange is shown after all.
    pub(crate) fn show_late(&mut self, ended: &EndedExchange, span: usize) {
        match self.left_out.iter().position(|(id, _)| *id == ended.id) {
            Some(index) => {
                self.left_out.swap_remove(index);
            }
            None => self.more_left_out = self.more_left_out.saturating_sub(1),
        }
        self.show(ended.id, span, ended.exchange.start);
    }

    /// How many exchanges without a span began up to `until`. Those beyond the bound all count, since their begin is
    /// not known.
    fn left_out(&self, until: Timestamp) -> u32 {
        let known = self.left_out.iter().filter(|(_, start)| *start <= until).count();
        u32::try_from(known)
            .unwrap_or(u32::MAX)
            .saturating_add(self.more_left_out)
    }

    /// The span of an exchange that is shown.
    pub(crate) fn span(&self, id: ExchangeId) -> Option<usize> {
        let mut shown = self.shown.iter().rev();
        shown.find(|shown| shown.id == id).map(|shown| shown.span)
    }

    /// An exchange ended. Returns whether it is held until it is known where it belongs; it is not if its finding was
    /// `reported`.
    pub(crate) fn ended(&mut self, ended: &EndedExchange, reported: bool) -> bool {
        let exchange = &ended.exchange;
        if exchange.works() && self.successes.len() < MAX_ATTEMPTS {
            self.successes.push(Success {
                connect: exchange.is_connect(),
                start: exchange.start,
                end: exchange.end,
            });
        }
        let mut shown = self.shown.iter_mut();
        let Some(shown) = shown.find(|shown| shown.id == ended.id) else {
            return false;
        };
        shown.end = Some(exchange.end);
        shown.held = (!reported).then(|| ended.clone());
        !reported
    }

    /// The end of an exchange is not known. Returns its span, which then ends at `at`.
    pub(crate) fn lose(&mut self, id: ExchangeId, at: Timestamp) -> Option<usize> {
        let mut shown = self.shown.iter_mut();
        let shown = shown.find(|shown| shown.id == id)?;
        shown.end = Some(at.max(shown.start));
        Some(shown.span)
    }

    /// The success that ended first; of two at the same time the lookup.
    fn first(&self) -> Option<Success> {
        let earliest = self
            .successes
            .iter()
            .min_by_key(|success| (success.end, success.connect));
        earliest.copied()
    }

    /// When the network was proven usable, by what is known so far, and whether nothing can change that any more.
    /// `None` without a success.
    fn ready(&self, config: &TrafficBounds) -> Option<(Timestamp, bool)> {
        let first = self.first()?;
        let until = first.end.plus(config.ready_grace_ns);
        let others = self.successes.iter();
        let other = others.filter(|success| success.connect != first.connect && success.start <= until);
        Some(match other.map(|success| success.end).min() {
            Some(second) => (second.max(first.end), true),
            None => (first.end, false),
        })
    }

    /// When the wait for the network is over if nothing else happens: in the past when it is decided, never before the
    /// creation is over.
    pub(crate) fn due(&self, config: &TrafficBounds) -> Timestamp {
        let Some(created) = self.created else {
            return Timestamp(u64::MAX);
        };
        let deadline = created.plus(config.ready_deadline_ns);
        match (self.first(), self.ready(config)) {
            // The other kind is waited for: until the grace time is over, or until the deadline if such an exchange is
            // open.
            (Some(first), Some((_, false))) => {
                let grace = first.end.plus(config.ready_grace_ns);
                let pending = self.shown.iter().any(|shown| {
                    let connect = matches!(shown.id, ExchangeId::Connect(_));
                    shown.end.is_none() && connect != first.connect && shown.start <= grace
                });
                if pending { deadline.max(grace) } else { grace }
            }
            (_, Some(_)) => Timestamp(0),
            (_, None) => deadline,
        }
    }

    /// The trace closes: ends the exchanges that belong to it, detaches those that go on, and writes readiness into the
    /// root. Returns the exchanges that ended but began after the network was ready, or whose end lies after it.
    pub(crate) fn settle(self, open: &mut OpenTrace, ctx: &mut Context) -> Vec<EndedExchange> {
        let ready = self.ready(&ctx.config.traffic).map(|(at, _)| at);
        let until = ready.unwrap_or(ctx.now);
        let left_out = self.left_out(until);
        let mut released = Vec::new();
        for mut shown in self.shown {
            if shown.end.is_none() {
                ctx.facts.push(Fact::ExchangeDetached(shown.id));
            }
            if shown.start > until {
                open.withdraw(shown.span);
                released.extend(shown.held);
                continue;
            }
            match shown.end.filter(|end| *end <= until) {
                Some(end) => {
                    if let Some(ended) = shown.held.take() {
                        ctx.effects.outputs.push(ended.finding(Some(open.trace.id), false));
                    }
                    open.end_shown(shown.span, end, &mut ctx.effects);
                }
                None => {
                    cut_short(open, &shown, until);
                    open.end_shown(shown.span, until, &mut ctx.effects);
                    released.extend(shown.held);
                }
            }
        }
        if let Some(ready) = ready {
            open.mark(0, ready, registry::EVENT_NETWORK_READY, &[]);
            open.states[0].latest = open.states[0].latest.max(ready);
        }
        if let Some(sandbox) = open.trace.spans[0].detail.as_sandbox_mut() {
            sandbox.network_ready = ready;
            sandbox.first_attempt = self.first_attempt.filter(|first| *first <= until);
            let deadline = |created: Timestamp| created.plus(ctx.config.traffic.ready_deadline_ns);
            let waited = self.created.is_some_and(|created| deadline(created) <= ctx.now);
            sandbox.silent = waited && self.first_attempt.is_none();
            sandbox.attempts_left_out = left_out;
        }
        released
    }
}

/// Shows an exchange as it was at `until`, without the end that it reached later.
fn cut_short(open: &mut OpenTrace, shown: &ShownExchange, until: Timestamp) {
    let span = &mut open.trace.spans[shown.span];
    span.status = Status::Unset;
    span.events.retain(|event| event.at <= until);
    if let Some(lookup) = span.detail.as_lookup_mut() {
        lookup.result = None;
        lookup.cause = None;
    }
    if let Some(connect) = span.detail.as_connect_mut() {
        connect.cause = None;
    }
}
