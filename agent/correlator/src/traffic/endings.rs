//! Ends exchanges: result, status, reason for a journey, cause, and the hand-over to the trace that shows it.
//!
//! Called when a timer of `lifecycle.rs` fires: every answer is there and no next name came, the handshake ended a
//! moment ago, or the timeout passed. Also at the end of the input.
//! Does not: judge (`causes.rs`), or decide which trace shows it (`lifecycle.rs`).

use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::network::ConnectFailure;
use sandglass_model::trace::LookupResult;

use crate::context::Context;
use crate::exchange::{EndedExchange, Exchange, ExchangeDetail, ExchangeId};
use crate::lookup_status;
use crate::timers::Timer;
use crate::traffic::Traffic;
use crate::traffic::causes::{self, ConntrackEvidence};
use crate::traffic::connect;
use crate::traffic::lookup::Lookup;

impl Traffic {
    /// A lookup is over: every answer is there and no next name of the search path came, or the timeout of its
    /// questions passed.
    pub(crate) fn on_lookup_due(&mut self, ctx: &mut Context, serial: u64) {
        self.find_owner(ctx, ExchangeId::Lookup(serial));
        let Some(lookup) = self.take_lookup(serial, ctx.now) else {
            return;
        };
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
        mut lookup: Lookup,
        (result, end): (LookupResult, Timestamp),
    ) {
        let mut detail = Box::new(lookup.detail(Some(result)));
        let reason = causes::reason_of_lookup(&lookup, result, end, &ctx.config.traffic);
        let tables = ConntrackEvidence::new(&self.counters, self.owners.node);
        // A lookup whose result is not known has nothing to explain.
        let explained = reason.filter(|_| result.is_known());
        detail.cause = explained.and_then(|_| tables.cause_of_lookup(&lookup, result, end));
        let exchange = Arc::new(Exchange {
            start: lookup.start,
            end,
            status: lookup_status::of(&detail.name, result),
            reason,
            seed: lookup.seed(),
            detail: ExchangeDetail::Lookup {
                queries: lookup.queries(),
                detail,
            },
            notes: lookup.notes,
            lost: lookup.lost,
        });
        if let ExchangeDetail::Lookup { detail, .. } = &exchange.detail {
            let netns = lookup.owner.netns;
            self.resolved
                .complete(netns, &detail.addresses, serial, &detail.name, &exchange);
        }
        let ended = EndedExchange {
            owner: lookup.owner,
            id: ExchangeId::Lookup(serial),
            exchange,
        };
        self.exchange_ended(ctx, ended, lookup.home);
    }

    /// A connect ended a moment ago, or nothing was reported of it within the deadline.
    pub(crate) fn on_connect_due(&mut self, ctx: &mut Context, serial: u64) {
        self.find_owner(ctx, ExchangeId::Connect(serial));
        let Some(mut connect) = self.take_connect(serial) else {
            return;
        };
        ctx.effects.timers.clear(Timer::Connect(serial));
        // The lookup may have tried further names since the connect began.
        if let Some((lookup, name)) = &mut connect.lookup
            && let Some(resolved) = self.resolved.address(connect.owner.netns, connect.remote.ip())
            && resolved.lookup == *lookup
        {
            *name = Arc::clone(&resolved.name);
        }
        // No kernel waits this long (`tcp_syn_retries`), so the record of its end was lost.
        let unseen = (ctx.now, Some(ConnectFailure::TimedOut));
        connect.lost |= connect.outcome.is_none();
        let (end, _) = *connect.outcome.get_or_insert(unseen);
        let mut detail = Box::new(connect.detail());
        let reason = causes::reason_of_connect(&connect, end, &ctx.config.traffic);
        let tables = ConntrackEvidence::new(&self.counters, self.owners.node);
        detail.cause = reason.and_then(|_| tables.cause_of_connect(&connect, end));
        let exchange = Exchange {
            start: connect.start,
            end,
            status: connect::status(&detail),
            reason,
            seed: connect.socket ^ u64::from(connect.local.port()) << 48 ^ u64::from(connect.remote.port()) << 32,
            detail: ExchangeDetail::Connect {
                detail,
                after: connect.lookup.map(|(lookup, _)| lookup),
            },
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
