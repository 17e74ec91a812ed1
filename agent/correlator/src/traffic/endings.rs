//! Ends exchanges: result, status, reason for a journey, cause, and the hand-over to the trace that shows it.
//!
//! Called when a timer of `lifecycle.rs` fires: every answer is there and no next name came, the handshake ended a
//! moment ago, or the timeout passed. Also when the sandbox is removed, and at the end of the input.
//! Does not: judge (`causes.rs`), or decide which trace shows it (`lifecycle.rs`).

use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::network::ConnectFailure;
use sandglass_model::trace::{JourneyReason, LookupDetail, LookupResult};

use crate::context::Context;
use crate::exchange::{EndedExchange, Exchange, ExchangeDetail, ExchangeId};
use crate::finding::{ConnectEnded, Finding, LookupEnded};
use crate::keys::TraceKey;
use crate::lookup_status;
use crate::output::Output;
use crate::timers::Timer;
use crate::traffic::causes::{self, ConntrackEvidence};
use crate::traffic::connect;
use crate::traffic::ended_lookups::{EndedLookup, UnshownLookup};
use crate::traffic::lookup::Lookup;
use crate::traffic::{SPARE_LOOKUPS, Traffic};

/// A lookup with more messages has large lists; their memory is given back.
const SPARE_MESSAGES: usize = 8;

impl Traffic {
    /// A lookup is over: every answer is there and no next name of the search path came, or the timeout of its
    /// questions passed.
    pub(crate) fn on_lookup_due(&mut self, ctx: &mut Context, serial: u64) {
        self.find_owner(ctx, ExchangeId::Lookup(serial));
        let Some(mut lookup) = self.take_lookup(serial, ctx.now) else {
            return;
        };
        lookup.give_up_holes(ctx.now);
        let ending = lookup.ending(ctx.now);
        self.end_lookup(ctx, serial, lookup, ending);
    }

    /// The input ends while a lookup of the node is pending: its result is `Open`, not `Unanswered`, since an answer
    /// may have been on its way.
    fn leave_lookup_open(&mut self, ctx: &mut Context, serial: u64) {
        self.find_owner(ctx, ExchangeId::Lookup(serial));
        if let Some(mut lookup) = self.take_lookup(serial, ctx.now) {
            lookup.lost = true;
            let now = ctx.now;
            self.end_lookup(ctx, serial, lookup, (LookupResult::Open, now));
        }
    }

    /// Makes the exchange of a lookup, with a cause where it went badly and its result is known.
    fn end_lookup(
        &mut self,
        ctx: &mut Context,
        serial: u64,
        lookup: Box<Lookup>,
        (result, end): (LookupResult, Timestamp),
    ) {
        let reason = causes::reason_of_lookup(&lookup, result, end, &ctx.config.traffic);
        if reason.is_none() && lookup.home.is_none() {
            self.end_unshown(ctx, serial, UnshownLookup { lookup, result, end });
            return;
        }
        let mut detail = Box::new(lookup.detail(Some(result)));
        let tables = ConntrackEvidence::new(&self.counters, self.owners.node);
        // A lookup whose result is not known has nothing to explain.
        let explained = reason.filter(|_| result.is_known());
        detail.cause = explained.and_then(|_| tables.cause_of_lookup(&lookup, result, end));
        let exchange = Arc::new(Exchange::of_lookup(&lookup, detail, result, end, reason));
        let shown = EndedLookup::Shown(Arc::clone(&exchange));
        let netns = lookup.owner.netns;
        self.resolved
            .complete(netns, &lookup.addresses, serial, &lookup.name(), &shown);
        let ended = EndedExchange {
            owner: lookup.owner.clone(),
            id: ExchangeId::Lookup(serial),
            exchange,
        };
        let home = lookup.home;
        self.recycle(lookup);
        self.exchange_ended(ctx, ended, home);
    }

    /// A lookup that went well, in no sandbox's trace: a finding is all that comes of it, unless a connect to one of its
    /// addresses goes badly.
    fn end_unshown(&mut self, ctx: &mut Context, serial: u64, unshown: UnshownLookup) {
        let lookup = &unshown.lookup;
        let mut ended = ctx
            .effects
            .spare_ended()
            .unwrap_or_else(|| Box::new(LookupEnded::blank()));
        (ended.scope, ended.owner) = (lookup.owner.scope(), lookup.owner.share().key());
        (ended.start, ended.end, ended.trace) = (lookup.start, unshown.end, None);
        lookup.fill_detail(&mut ended.detail, Some(unshown.result));
        ended.queries.clear();
        ended.queries.extend_from_slice(lookup.queries());
        ctx.effects.outputs.push(Output::Finding(Finding::Lookup(ended)));
        let netns = lookup.owner.netns;
        if !self.resolved.lead_to(netns, &lookup.addresses, serial) {
            self.recycle(unshown.lookup);
            return;
        }
        let name = lookup.name();
        let unshown = Arc::new(unshown);
        let ended = EndedLookup::Unshown(Arc::clone(&unshown));
        self.resolved
            .complete(netns, &unshown.lookup.addresses, serial, &name, &ended);
    }

    /// Keeps the memory of a lookup that is over for the next one.
    pub(crate) fn recycle(&mut self, lookup: Box<Lookup>) {
        if self.spare.len() < SPARE_LOOKUPS && lookup.sent.capacity() <= SPARE_MESSAGES {
            self.spare.push(lookup);
        }
    }

    /// A connect ended a moment ago, or nothing was reported of it within the deadline.
    pub(crate) fn on_connect_due(&mut self, ctx: &mut Context, serial: u64) {
        self.find_owner(ctx, ExchangeId::Connect(serial));
        let Some(mut connect) = self.take_connect(serial, ctx.now) else {
            return;
        };
        ctx.effects.timers.clear(Timer::Connect(serial));
        // The lookup may have tried further names since the connect began.
        if let Some((lookup, name)) = &mut connect.lookup
            && let Some(resolved) = self.resolved.address(connect.owner.netns, connect.remote.ip())
            && resolved.lookup == *lookup
        {
            *name = resolved.name.clone();
        }
        // No kernel waits this long (`tcp_syn_retries`), so the record of its end was lost.
        let unseen = (ctx.now, Some(ConnectFailure::TimedOut));
        connect.lost |= connect.outcome.is_none();
        let (end, _) = *connect.outcome.get_or_insert(unseen);
        let reason = causes::reason_of_connect(&connect, end, &ctx.config.traffic);
        let after = connect.lookup.as_ref().map(|(lookup, _)| *lookup);
        let follows = after.is_some_and(|lookup| self.journeys.is_open(lookup));
        if reason.is_none() && connect.home.is_none() && !follows {
            // It went well and is in no trace: a finding is all that comes of it.
            ctx.effects
                .outputs
                .push(Output::Finding(Finding::Connect(Box::new(ConnectEnded {
                    scope: connect.owner.scope(),
                    start: connect.start,
                    end,
                    detail: connect.detail(),
                    trace: None,
                    journey: false,
                }))));
            return;
        }
        let mut detail = Box::new(connect.detail());
        let tables = ConntrackEvidence::new(&self.counters, self.owners.node);
        detail.cause = reason.and_then(|_| tables.cause_of_connect(&connect, end));
        let exchange = Exchange {
            start: connect.start,
            end,
            status: connect::status(&detail),
            reason,
            seed: connect.socket ^ u64::from(connect.local.port()) << 48 ^ u64::from(connect.remote.port()) << 32,
            detail: ExchangeDetail::Connect { detail, after },
            notes: connect.notes,
            lost: connect.lost,
        };
        let ended = EndedExchange {
            owner: connect.owner,
            id: ExchangeId::Connect(serial),
            exchange: Arc::new(exchange),
        };
        self.exchange_ended(ctx, ended, connect.home);
    }

    /// The sandbox of this trace is being removed: of its exchanges those that have a result end with it, since nothing follows them.
    pub(crate) fn end_decided(&mut self, ctx: &mut Context, home: TraceKey) {
        let lookups: Vec<u64> = self.lookups.serials().collect();
        for serial in lookups {
            let lookup = self.lookups.get(serial);
            if lookup.is_some_and(|lookup| lookup.home == Some(home) && lookup.is_answered()) {
                ctx.effects.timers.clear(Timer::Lookup(serial));
                self.on_lookup_due(ctx, serial);
            }
        }
        let connects: Vec<u64> = self.connects.serials().collect();
        for serial in connects {
            let connect = self.connects.get(serial);
            if connect.is_some_and(|connect| connect.home == Some(home) && connect.outcome.is_some()) {
                self.on_connect_due(ctx, serial);
            }
        }
    }

    /// The end of the input: exchanges that have a result end with it, a pending lookup is reported as open, of a
    /// pending connect the end is not known.
    pub(crate) fn finish(&mut self, ctx: &mut Context) {
        let lookups: Vec<u64> = self.lookups.serials().collect();
        for serial in lookups {
            // A lookup of a sandbox in creation is shown by its trace; any other becomes an exchange with the result
            // `Open`.
            let pending = self.lookups.get(serial).is_some_and(Lookup::is_pending);
            ctx.effects.timers.clear(Timer::Lookup(serial));
            let has_home = self.lookups.get(serial).is_some_and(|lookup| lookup.home.is_some());
            if pending && !has_home {
                self.leave_lookup_open(ctx, serial);
            } else if pending {
                // Its trace shows it as open, and is incomplete.
                self.give_up(ctx, ExchangeId::Lookup(serial));
            } else {
                self.on_lookup_due(ctx, serial);
            }
        }
        let connects: Vec<u64> = self.connects.serials().collect();
        for serial in connects {
            let connect = self.connects.get(serial);
            if connect.is_some_and(|connect| connect.outcome.is_some()) {
                self.on_connect_due(ctx, serial);
            } else {
                self.give_up(ctx, ExchangeId::Connect(serial));
            }
        }
    }
}

impl Exchange {
    /// A lookup that is over, as a trace shows it.
    pub(crate) fn of_lookup(
        lookup: &Lookup,
        detail: Box<LookupDetail>,
        result: LookupResult,
        end: Timestamp,
        reason: Option<JourneyReason>,
    ) -> Exchange {
        Exchange {
            start: lookup.start,
            end,
            status: lookup_status::of(&detail.name, result),
            reason,
            seed: lookup.seed(),
            detail: ExchangeDetail::Lookup {
                queries: lookup.queries().to_vec(),
                detail,
            },
            notes: lookup.notes.clone(),
            lost: lookup.lost,
        }
    }
}
