//! Handles lookups of the DNS client service: joins its steps by silo, process and name, and reports them as exchanges.
//!
//! Used by `correlator.rs`. ETW has no DNS messages but whole lookups (`service_lookup.rs` names the events), so
//! matching by message id is replaced by matching by name. A and AAAA of one name are one lookup. Serial numbers,
//! timers and facts are those of every other lookup.
//! One lookup takes these steps: `Called` (the program calls getaddrinfo; in its own process), `Started` (the service gets the
//! request; logged in the program's process too), `Sent`, `Answered`, `TimedOut` (in the service's process), `Finished`, and
//! `Returned` to the program. Any of them may be missing: cached names are never sent, and a session may lose events.
//! Does not: parse names beyond comparing them; the source has lowered their case.

use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::network::Transport;
use sandglass_model::trace::{Detail, LookupResult};
use sandglass_model::windows::{LookupChange, LookupStep, ObjectKey};

use crate::context::Context;
use crate::exchange::{EndedExchange, Exchange, ExchangeDetail, ExchangeId};
use crate::facts::{Fact, ResolvedAddresses};
use crate::finding::QueryType;
use crate::keys::TraceKey;
use crate::lookup_status;
use crate::notes;
use crate::owner::Owner;
use crate::timers::Timer;
use crate::windows::Windows;
use crate::windows::service_lookup::{NODE, ServiceLookup};

impl Windows {
    /// The owner of lookups of a silo, by the GUID that the event carries (ETW extended data type 16).
    /// Without a silo the process is the node's own; an unknown silo has an owner
    /// without a sandbox.
    pub(crate) fn owner_of_silo(&self, silo: &str) -> Owner {
        if silo.is_empty() {
            return Owner {
                netns: NODE,
                sandbox: None,
            };
        }
        let number = self.objects.keys.owner(&ObjectKey::Silo(silo.to_owned()));
        let sandbox = number.and_then(|number| self.objects.sandboxes.get(number));
        Owner {
            netns: sandbox.and_then(|sandbox| sandbox.compartment).map_or(0, u64::from),
            sandbox: sandbox.map(|sandbox| sandbox.container.as_str().into()),
        }
    }

    /// The DNS client service or the socket library logged a step of a lookup. `owner` and `home` are for a lookup that
    /// begins now; an open one keeps those that it has. A step that fits no open lookup and cannot begin one is an orphan.
    pub(crate) fn on_lookup(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        step: &LookupStep,
        owner: Owner,
        home: Option<TraceKey>,
    ) {
        // A call of the library is kept apart until the service begins a lookup for it; a lookup that is open takes it
        // as another step.
        let place = self.lookups.place(step);
        if let (LookupChange::Called, None) = (&step.step, place) {
            return self.lookups.calls.begin(at, step);
        }
        if let LookupChange::Returned { .. } = step.step {
            self.lookups.calls.end(step);
        }
        let place = match (place, &step.step) {
            (Some(place), _) => place,
            // The library found the result without the service: in the hosts file, or because the name was an address.
            (None, LookupChange::Called | LookupChange::Returned { .. }) => return,
            (None, LookupChange::Started | LookupChange::Sent { .. }) => self.open_lookup(ctx, at, step, owner, home),
            (None, LookupChange::Answered { .. } | LookupChange::TimedOut { .. } | LookupChange::Finished { .. }) => {
                ctx.effects.counters.orphan += 1;
                return;
            }
        };
        // Only this event is logged in the process that resolves: it identifies what else the process does.
        if let LookupChange::Started = step.step {
            self.objects.process_of_silo(at, step.process.pid, &step.silo);
        }
        // The place is an index that is valid until a lookup is removed.
        let Some(lookup) = self.lookups.open.get_mut(place) else {
            return;
        };
        if let LookupChange::Started | LookupChange::Sent { .. } = step.step {
            lookup.add_type(step.kind);
        }
        // The types that a lookup waits for are known before the step is taken, which may remove one.
        lookup.take(at, step);
        let config = &ctx.config.traffic;
        let finished = lookup.result.is_some() && lookup.waiting.is_empty();
        let due = if finished {
            // The other type may be resolved next.
            at.plus(config.search_gap_ns)
        // The service retries by itself, with other servers too; a lookup that is silent for longer has lost its end.
        } else {
            lookup.start.plus(config.lookup_deadline_ns.saturating_mul(3))
        };
        // Set anew with each step; a lookup that is over waits for the other record type or the next name.
        ctx.effects.timers.set(Timer::ServiceLookup(lookup.serial), due);
        if let Some(home) = lookup.home {
            ctx.facts.push(Fact::ExchangeChanged {
                home,
                id: ExchangeId::Lookup(lookup.serial),
                detail: Detail::Lookup(Box::new(lookup.detail(None))),
                events: notes::events(&lookup.notes, lookup.start, None),
            });
        }
    }

    /// Opens a lookup that begins with the program's call, where that was seen, but not before its trace. Evicts the
    /// oldest if there are too many. Returns its place.
    fn open_lookup(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        step: &LookupStep,
        owner: Owner,
        home: Option<TraceKey>,
    ) -> usize {
        while self.lookups.open.len() >= self.lookups.max {
            // In order of begin: the first is the oldest.
            let oldest = &self.lookups.open[0];
            ctx.effects.counters.evicted_lookups.count(oldest.owner.scope(), false);
            let oldest = oldest.serial;
            self.give_up_lookup(ctx, oldest);
        }
        // Of the sequence that traffic numbers its exchanges by, since facts name both alike.
        let serial = ctx.next_serial();
        // The span must lie within its trace: a call that began before the trace counts from the service's first event.
        let begun = home
            .and_then(|home| ctx.traces.get(home))
            .map(|open| open.trace.start());
        // The library's call may have come a while before, when the service was busy: that wait is the program's too.
        let called = self.lookups.calls.begun(at, step);
        let start = called
            .filter(|called| begun.is_none_or(|begun| begun <= *called))
            .unwrap_or(at);
        let lookup = ServiceLookup {
            serial,
            silo: step.silo.clone(),
            process: step.process,
            name: step.name.clone(),
            owner,
            home,
            start,
            waiting: Vec::new(),
            types: vec![step.kind],
            servers: Vec::new(),
            addresses: Vec::new(),
            queries: 0,
            retransmissions: 0,
            timeouts: 0,
            error: None,
            result: None,
            end: at,
            notes: Vec::new(),
            lost: ctx.losses.traffic_at(at),
        };
        if let Some(home) = home {
            ctx.facts.push(Fact::ExchangeBegan {
                home,
                id: ExchangeId::Lookup(serial),
                at: start,
                detail: Detail::Lookup(Box::new(lookup.detail(None))),
            });
        }
        self.lookups.open.push(lookup);
        self.lookups.open.len() - 1
    }

    /// A lookup is over: it finished a moment ago, or nothing more was logged of it, and then records were lost. Passes it
    /// to the room of sandboxes if a trace shows it, else to the room of traffic.
    pub(crate) fn on_lookup_due(&mut self, ctx: &mut Context, serial: u64) {
        let mut open = self.lookups.open.iter();
        let Some(place) = open.position(|lookup| lookup.serial == serial) else {
            return;
        };
        let mut lookup = self.lookups.open.remove(place);
        let result = lookup.result.unwrap_or(LookupResult::Unanswered);
        // Nothing was logged for three timeouts: the end was lost.
        if lookup.result.is_none() {
            lookup.end = lookup.end.max(ctx.now);
            lookup.lost = true;
        }
        let mut detail = Box::new(lookup.detail(Some(result)));
        let reason = lookup.reason(result, ctx.config.traffic.slow_lookup_ns);
        // Only what went badly is explained.
        detail.cause = reason.and_then(|_| lookup.cause(result));
        let types = lookup.types.iter();
        // One query for each type: the service's own count includes retries, which have a metric of their own.
        let queries = types.map(|kind| (QueryType::of(*kind), Transport::Udp, 1)).collect();
        let addresses = detail.addresses.clone();
        let exchange = Arc::new(Exchange {
            start: lookup.start,
            end: lookup.end,
            status: lookup_status::of(&detail.name, result),
            reason,
            detail: ExchangeDetail::Lookup { detail, queries },
            notes: lookup.notes,
            lost: lookup.lost,
            seed: serial,
        });
        // Without a compartment a connect cannot be joined to the lookup.
        if lookup.owner.netns != 0 {
            ctx.facts.push(Fact::AddressesResolved(Box::new(ResolvedAddresses {
                netns: lookup.owner.netns,
                addresses,
                lookup: serial,
                name: lookup.name.as_str().into(),
                exchange: Arc::clone(&exchange),
            })));
        }
        let ended = EndedExchange {
            owner: lookup.owner,
            id: ExchangeId::Lookup(serial),
            exchange,
        };
        ctx.facts.push(match lookup.home {
            Some(home) => Fact::ExchangeEnded { home, ended },
            None => Fact::ExchangeReleased(ended),
        });
    }

    /// The end of the input: lookups with a result end with it; of the others the end is not known.
    pub(crate) fn finish(&mut self, ctx: &mut Context) {
        while let Some(lookup) = self.lookups.open.first() {
            let serial = lookup.serial;
            if lookup.result.is_some() {
                ctx.effects.timers.clear(Timer::ServiceLookup(serial));
                self.on_lookup_due(ctx, serial);
            } else {
                self.give_up_lookup(ctx, serial);
            }
        }
    }

    /// Removes a lookup without a finding: its end is not known, so that it must not count as answered or as failed.
    fn give_up_lookup(&mut self, ctx: &mut Context, serial: u64) {
        ctx.effects.timers.clear(Timer::ServiceLookup(serial));
        let open = &mut self.lookups.open;
        if let Some(place) = open.iter().position(|lookup| lookup.serial == serial)
            && let Some(home) = open.remove(place).home
        {
            let id = ExchangeId::Lookup(serial);
            ctx.facts.push(Fact::ExchangeLost { home, id });
        }
    }
}
