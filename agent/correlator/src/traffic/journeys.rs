//! Journeys: traces about exchanges that went badly after their sandbox's network was ready, or that are the node's
//! own.
//!
//! Used by `lifecycle.rs` for every exchange that is released. A lookup and the connects to its addresses are one
//! journey, since the program experienced them as one. A broken cluster makes thousands of them: a rate limit holds
//! back the excess, and the node's own may take at most half of it, so that a broken node agent does not hide broken
//! pods. Those of one sandbox may take at most two thirds, so that it does not hide others. Bounded to 256 open
//! journeys of 16 exchanges.
//! Does not: hold back findings; metrics count everything.
//!
//! Example: a lookup of `web` needs a retry (2.5 s) and resolves 10.0.0.1; 20 ms later a connect to 10.0.0.1:80
//! succeeds. The lookup opens a journey, which stays open for a second; the connect joins it although it went well; a
//! second later the trace is complete with a root and two spans.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use sandglass_model::time::SECOND;
use sandglass_model::trace::{JourneyDetail, JourneyReason, Status};
use sandglass_model::{ClockAnchor, Detail, PodIdentity, SandboxId, Span, SpanId, Timestamp, Trace, TraceId};

use crate::collections::bounded::Bounded;
use crate::context::Context;
use crate::exchange::{EndedExchange, Exchange, ExchangeDetail, ExchangeId};
use crate::finding::{Finding, Scope};
use crate::output::Output;
use crate::owner::Owner;
use crate::timers::Timer;
use crate::traffic::rate::RateLimit;

/// Open and complete journeys, and the rate limit.
#[derive(Debug)]
pub(crate) struct Journeys {
    /// By the serial number of the lookup that they begin with, so oldest first.
    open: BTreeMap<u64, Journey>,
    /// Complete journeys: each is emitted after the finding of its last exchange, which names it.
    complete: Vec<Journey>,
    /// Trace ids of the last journeys, at most [`RECENT_IDS`].
    recent: VecDeque<TraceId>,
    /// How many may still be opened.
    limit: RateLimit,
    /// Of each sandbox, by network namespace.
    limits: Bounded<u64, RateLimit>,
    per_sandbox: u32,
}

/// A journey.
#[derive(Debug)]
pub(crate) struct Journey {
    /// Id of its trace, made when it opens, so that findings can name it before it is complete.
    id: TraceId,
    /// The owner of its first exchange.
    pub(crate) owner: Owner,
    /// In the order in which they ended; at most `MAX_EXCHANGES`.
    exchanges: Vec<Arc<Exchange>>,
    /// A connect that begins until then can join.
    until: Timestamp,
}

/// A connect to an address of a lookup belongs to its journey if it begins within this time after the lookup ended.
/// Programs connect at once; the trace waits for it.
const HOLD_NS: u64 = SECOND;
/// Bound on open journeys: the oldest is emitted as it is.
const MAX_OPEN: usize = 256;
/// Sandboxes whose rate is known.
const MAX_LIMITS: usize = 1_024;
/// Bound on the ids that a new one is compared with. Lookups that began at the same instant end within seconds of each other.
const RECENT_IDS: usize = 256;
/// Bound on exchanges of one journey; further ones have a finding only.
const MAX_EXCHANGES: usize = 16;

impl Journeys {
    pub(crate) fn new(per_minute: u32) -> Journeys {
        Journeys {
            open: BTreeMap::new(),
            complete: Vec::new(),
            recent: VecDeque::new(),
            limit: RateLimit::new(per_minute),
            limits: Bounded::new(MAX_LIMITS),
            per_sandbox: (per_minute - per_minute / 3).max(per_minute.min(1)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Connects of this lookup are part of a journey that is open.
    pub(crate) fn is_open(&self, lookup: u64) -> bool {
        self.open.contains_key(&lookup)
    }

    /// The journey of an exchange that ended: an open one, or a new one if the exchange went badly. `before` is the
    /// lookup that a connect follows. `None` if it went well, or if the rate limit holds it back, which is a finding
    /// too.
    pub(crate) fn join_or_open(
        &mut self,
        ctx: &mut Context,
        ended: &EndedExchange,
        before: Option<Arc<Exchange>>,
    ) -> Option<TraceId> {
        if let ExchangeDetail::Connect {
            after: Some(lookup), ..
        } = &ended.exchange.detail
            && let Some(journey) = self.open.get_mut(lookup)
        {
            // Beyond the bound the finding still names this trace.
            if journey.exchanges.len() < MAX_EXCHANGES {
                journey.exchanges.push(Arc::clone(&ended.exchange));
            }
            return Some(journey.id);
        }
        ended.exchange.reason?;
        if !self.is_within_limits(ctx.now, &ended.owner) {
            ctx.effects.outputs.push(Output::Finding(Finding::JourneyHeldBack));
            return None;
        }
        Some(self.open(ctx, ended, before))
    }

    /// Takes a token of the owner, if there is one.
    fn is_within_limits(&mut self, now: Timestamp, owner: &Owner) -> bool {
        if owner.scope() == Scope::Node {
            return self.limit.take(now, self.limit.half());
        }
        if self.limits.get(&owner.netns).is_none() {
            self.limits.insert(owner.netns, RateLimit::new(self.per_sandbox), now);
        }
        let own = self.limits.get_mut(&owner.netns);
        own.is_some_and(|own| own.has(now, 0) && self.limit.take(now, 0) && own.take(now, 0))
    }

    /// Opens a journey. Without a lookup that resolved something no connect can join, so it is complete at once.
    fn open(&mut self, ctx: &mut Context, ended: &EndedExchange, before: Option<Arc<Exchange>>) -> TraceId {
        let mut exchanges = Vec::with_capacity(2);
        exchanges.extend(before);
        exchanges.push(Arc::clone(&ended.exchange));
        let id = self.new_id(TraceId::of(&[
            ctx.config.boot_id.as_bytes(),
            b"journey",
            &ended.owner.netns.to_le_bytes(),
            &ended.exchange.start.0.to_le_bytes(),
            &ended.exchange.seed.to_le_bytes(),
        ]));
        let journey = Journey {
            id,
            owner: ended.owner.clone(),
            exchanges,
            until: ctx.now.plus(HOLD_NS),
        };
        // Only a lookup with addresses can be followed by a connect.
        let serial = match (&ended.exchange.detail, ended.id) {
            (ExchangeDetail::Lookup { detail, .. }, ExchangeId::Lookup(serial)) if !detail.addresses.is_empty() => {
                serial
            }
            (ExchangeDetail::Lookup { .. } | ExchangeDetail::Connect { .. }, _) => {
                self.complete.push(journey);
                return id;
            }
        };
        ctx.effects.timers.set(Timer::Journey(serial), journey.until);
        self.open.insert(serial, journey);
        while self.open.len() > MAX_OPEN
            && let Some(oldest) = self.take_oldest(ctx)
        {
            self.complete.push(oldest);
        }
        id
    }

    /// The id, or one made of it if a journey has it already: one socket can begin two lookups of one name at the same
    /// instant, in one segment or as questions of one message.
    fn new_id(&mut self, mut id: TraceId) -> TraceId {
        while self.recent.contains(&id) {
            id = TraceId::of(&[&id.0.to_le_bytes()]);
        }
        if self.recent.len() >= RECENT_IDS {
            self.recent.pop_front();
        }
        self.recent.push_back(id);
        id
    }

    /// Journeys that are complete. Call this after the finding of their last exchange was emitted.
    pub(crate) fn take_complete(&mut self) -> Vec<Journey> {
        std::mem::take(&mut self.complete)
    }

    /// The journey that begins with this lookup, if its time is over and no connect of it is open (`goes_on`).
    pub(crate) fn take_if_over(&mut self, ctx: &mut Context, lookup: u64, goes_on: bool) -> Option<Journey> {
        let journey = self.open.get(&lookup)?;
        if goes_on || journey.until > ctx.now {
            return None;
        }
        self.take(ctx, lookup)
    }

    /// Takes the journey that was opened first, complete or not.
    pub(crate) fn take_oldest(&mut self, ctx: &mut Context) -> Option<Journey> {
        let oldest = *self.open.first_key_value()?.0;
        self.take(ctx, oldest)
    }

    /// Takes a journey out and cancels its timer.
    fn take(&mut self, ctx: &mut Context, lookup: u64) -> Option<Journey> {
        ctx.effects.timers.clear(Timer::Journey(lookup));
        self.open.remove(&lookup)
    }
}

impl Journey {
    /// Begin of its first exchange.
    pub(crate) fn begin(&self) -> Timestamp {
        let begins = self.exchanges.iter().map(|exchange| exchange.start);
        begins.min().unwrap_or_default()
    }

    /// The trace. The room of sandboxes adds the pod's labels and the link to the sandbox's trace.
    pub(crate) fn into_trace(mut self, anchor: ClockAnchor) -> Trace {
        self.exchanges.sort_by_key(|exchange| exchange.start);
        Trace {
            id: self.id,
            sandbox: self
                .owner
                .sandbox
                .as_deref()
                .map(|sandbox| SandboxId(sandbox.to_owned())),
            identity: PodIdentity::default(),
            anchor,
            incomplete: self.exchanges.iter().any(|exchange| exchange.lost),
            closed: true,
            remote_parent: None,
            caller: None,
            spans: spans_of(&self),
        }
    }
}

/// The root, from the first begin to the last end, and one span for each exchange. The root's status is that of the
/// last exchange that failed.
fn spans_of(journey: &Journey) -> Vec<Span> {
    let exchanges = &journey.exchanges;
    let start = exchanges
        .iter()
        .map(|exchange| exchange.start)
        .min()
        .unwrap_or_default();
    let end = exchanges.iter().map(|exchange| exchange.end).max().unwrap_or_default();
    let reason = exchanges
        .iter()
        .filter_map(|exchange| exchange.reason)
        .min()
        .unwrap_or(JourneyReason::Slow);
    let failed = exchanges
        .iter()
        .rev()
        .find(|exchange| exchange.reason == Some(JourneyReason::Failed));
    let id = |index: usize| SpanId::of(&[&journey.id.0.to_le_bytes(), &(index as u64).to_le_bytes()]);
    let mut spans = Vec::with_capacity(exchanges.len() + 1);
    spans.push(Span {
        id: id(0),
        parent: None,
        start,
        end: Some(end),
        status: failed.map_or(Status::Unset, |exchange| exchange.status.clone()),
        detail: Detail::Journey(Box::new(JourneyDetail {
            reason,
            target: exchanges
                .first()
                .map_or_else(String::new, |exchange| target_of(exchange)),
            node: journey.owner.sandbox.is_none(),
        })),
        events: Vec::new(),
        links: Vec::new(),
    });
    spans.extend(exchanges.iter().enumerate().map(|(index, exchange)| Span {
        id: id(index + 1),
        parent: Some(0),
        start: exchange.start,
        end: Some(exchange.end),
        status: exchange.status.clone(),
        detail: exchange.to_detail(),
        events: exchange.events(),
        links: Vec::new(),
    }));
    spans
}

/// Name or address of the first exchange, as the root shows it.
fn target_of(exchange: &Exchange) -> String {
    match &exchange.detail {
        ExchangeDetail::Lookup { detail, .. } => detail.name.clone(),
        ExchangeDetail::Connect { detail, .. } if detail.name.is_empty() => detail.remote.to_string(),
        ExchangeDetail::Connect { detail, .. } => detail.name.clone(),
    }
}
