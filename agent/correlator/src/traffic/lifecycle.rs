//! The life of an exchange: attributed to its owner, shown in its sandbox's trace until the network is ready, then a
//! journey if it went badly, and in every case a finding.
//!
//! Used by the handlers of events in this room and by `correlator.rs`. The owner of a namespace may be reported only
//! after the first exchange in it began: open exchanges without an owner are attributed again then, and once more at
//! their end. Findings of exchanges that ended before stay the node's.
//! Does not: decide when a network is ready, or what went badly (`causes.rs`).
//!
//! An exchange passes these states:
//! - open without a home: its sandbox's network is ready, or it is the node's. It changes no trace.
//! - open with a home: the trace of its sandbox's creation shows it, and gets a fact with each change.
//! - detached: that trace closed, or its network became ready, while it was open. It goes on without a home.
//! - ended: with a home the room of sandboxes gets it, and may release it back; without one it is released at once.
//! - released: a finding, and a journey if it went badly.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::trace::{Detail, OperationDetail};

use crate::context::Context;
use crate::exchange::{EndedExchange, ExchangeDetail, ExchangeId};
use crate::facts::{Fact, ResolvedAddresses};
use crate::keys::TraceKey;
use crate::notes;
use crate::owner::Owner;
use crate::timers::Timer;
use crate::traffic::Traffic;
use crate::traffic::connect::{Connect, LINGER_NS};
use crate::traffic::ended_lookups::{EndedLookup, ResolvedAddress};
use crate::traffic::journeys::Journey;
use crate::traffic::lookup::Lookup;
use crate::traffic::table_key::TableKey;

// === owners ===

impl Traffic {
    /// The agent observes traffic from now on; `node_netns` is the network namespace of the node.
    pub(crate) fn on_traffic_watched(&mut self, node_netns: u64) {
        self.owners.node = Some(node_netns);
    }

    /// A network namespace belongs to a sandbox. Open exchanges in it that have no owner get it.
    pub(crate) fn on_netns(&mut self, ctx: &mut Context, netns: u64, sandbox: &str, created: Option<Timestamp>) {
        // Only a new owner makes a walk over open exchanges worth it.
        if self.owners.assign_netns(netns, sandbox, created, ctx.now) {
            self.find_owners(ctx, netns);
        }
    }

    /// A compartment belongs to a sandbox (Windows).
    pub(crate) fn on_compartment(&mut self, ctx: &Context, compartment: u32, sandbox: &str) {
        self.owners.assign_netns(u64::from(compartment), sandbox, None, ctx.now);
    }

    /// An ADD reported the addresses of an interface. Returns whether one of them identifies the sandbox's traffic.
    pub(crate) fn on_addresses(&mut self, ctx: &Context, sandbox: &str, operation: &OperationDetail) -> bool {
        self.owners.assign_addresses(sandbox, operation, ctx.now)
    }

    /// A lookup of the DNS client service resolved addresses (Windows).
    pub(crate) fn on_addresses_reported(&mut self, ctx: &Context, resolved: ResolvedAddresses) {
        let share = self.owners.owner_of_netns(resolved.netns).share();
        for address in resolved.addresses {
            let entry = ResolvedAddress {
                lookup: resolved.lookup,
                name: resolved.name.clone(),
                ended: Some(EndedLookup::Shown(Arc::clone(&resolved.exchange))),
                share,
            };
            self.resolved.insert(resolved.netns, address, entry, ctx.now);
        }
    }

    /// The last interface of the sandbox was removed: its namespace and addresses may soon be another's.
    pub(crate) fn on_detached(&mut self, sandbox: &str) {
        self.owners.release(sandbox);
    }

    /// The trace that shows the owner's exchanges: its sandbox's, as long as that is open. `None` while no source
    /// observes traffic.
    pub(crate) fn home_of(&self, ctx: &Context, owner: &Owner) -> Option<TraceKey> {
        let sandbox = owner.sandbox.as_deref()?;
        // Without a source of traffic no exchange can be one of a creation.
        self.owners.node?;
        ctx.traces.creation_of(sandbox)
    }

    /// Attributes all open exchanges of a namespace whose owner was reported now. A walk over the open exchanges, once
    /// for each sandbox.
    fn find_owners(&mut self, ctx: &mut Context, netns: u64) {
        let lookups = self.lookups.iter();
        let lookups = lookups.filter(|(_, lookup)| lookup.owner.is_unknown_in(netns));
        for serial in lookups.map(|(serial, _)| serial).collect::<Vec<_>>() {
            self.find_owner(ctx, ExchangeId::Lookup(serial));
            self.lookup_changed(ctx, serial);
        }
        let connects = self.connects.iter();
        let connects = connects.filter(|(_, connect)| connect.owner.is_unknown_in(netns));
        for serial in connects.map(|(serial, _)| serial).collect::<Vec<_>>() {
            self.find_owner(ctx, ExchangeId::Connect(serial));
            self.connect_changed(ctx, serial);
        }
    }

    /// Attributes an open exchange again that had no owner when it began. With an owner it may also get a home, and
    /// begins there with its own time.
    pub(crate) fn find_owner(&mut self, ctx: &mut Context, id: ExchangeId) {
        let found = match id {
            ExchangeId::Lookup(serial) => self.lookups.get(serial).and_then(|lookup| {
                let client = lookup.sent.first().map(|sent| sent.client.ip())?;
                Some((&lookup.owner, client, lookup.start))
            }),
            ExchangeId::Connect(serial) => {
                let connect = self.connects.get(serial);
                connect.map(|connect| (&connect.owner, connect.local.ip(), connect.start))
            }
        };
        let Some((owner, address, start)) = found.filter(|(owner, ..)| owner.sandbox.is_none()) else {
            return;
        };
        let netns = owner.netns;
        let Some(sandbox) = self.owners.late_owner(netns, address, start) else {
            return;
        };
        self.owners.assign_address(address, &sandbox, ctx.now);
        let owner = Owner {
            netns,
            sandbox: Some(sandbox),
        };
        let home = self.home_of(ctx, &owner);
        let detail = match id {
            ExchangeId::Lookup(serial) => self.lookups.get_mut(serial).map(|lookup| {
                (lookup.owner, lookup.home) = (owner, home);
                Detail::Lookup(Box::new(lookup.detail(None)))
            }),
            ExchangeId::Connect(serial) => self.connects.get_mut(serial).map(|connect| {
                (connect.owner, connect.home) = (owner, home);
                Detail::Connect(Box::new(connect.detail()))
            }),
        };
        if let (Some(home), Some(detail)) = (home, detail) {
            let began = Fact::ExchangeBegan {
                home,
                id,
                at: start,
                detail,
            };
            ctx.facts.push(began);
        }
    }
}

// === while it is open ===

impl Traffic {
    /// Sets the timer of a lookup that changed, and reports how it looks now where a trace shows it.
    pub(crate) fn lookup_changed(&mut self, ctx: &mut Context, serial: u64) {
        let Some(lookup) = self.lookups.get(serial) else {
            return;
        };
        let due = lookup.due(&ctx.config.traffic);
        ctx.effects.timers.set(Timer::Lookup(serial), due);
        let brief = lookup.brief();
        if let Some(home) = lookup.home {
            ctx.facts.push(Fact::ExchangeChanged {
                home,
                id: ExchangeId::Lookup(serial),
                detail: Detail::Lookup(Box::new(lookup.detail(None))),
                events: notes::events(&lookup.notes, lookup.start, None),
            });
        }
        self.lookups.set_brief(serial, brief);
    }

    /// Joins the conntrack entry of the connect, sets its timer, and reports how it looks now where a trace shows it.
    pub(crate) fn connect_changed(&mut self, ctx: &mut Context, serial: u64) {
        let Some(connect) = self.connects.get(serial) else {
            return;
        };
        // A connect without an end is given the timeout of a plugin, longer than the kernel tries.
        let due = match connect.outcome {
            Some((ended, _)) => ended.plus(LINGER_NS),
            None => connect.start.plus(ctx.config.deadline_ns),
        };
        ctx.effects.timers.set(Timer::Connect(serial), due);
        if connect.local.port() != 0 {
            let local = connect.local;
            self.connects
                .key(serial, TableKey::client(crate::traffic::packet::TCP, local));
            self.flows.join_known_to_connect(&mut self.connects, serial);
        }
        let Some(connect) = self.connects.get(serial) else {
            return;
        };
        if let Some(home) = connect.home {
            ctx.facts.push(Fact::ExchangeChanged {
                home,
                id: ExchangeId::Connect(serial),
                detail: Detail::Connect(Box::new(connect.detail())),
                events: notes::events(&connect.notes, connect.start, None),
            });
        }
    }

    /// The trace that shows the exchange closed, or its network is ready: the exchange goes on as traffic.
    pub(crate) fn on_exchange_detached(&mut self, id: ExchangeId) {
        match id {
            ExchangeId::Lookup(serial) => {
                if let Some(lookup) = self.lookups.get_mut(serial) {
                    lookup.home = None;
                }
            }
            ExchangeId::Connect(serial) => {
                if let Some(connect) = self.connects.get_mut(serial) {
                    connect.home = None;
                }
            }
        }
    }

    /// The owner of the drops that a probe left out above its limit.
    pub(crate) fn owner_of_limited(&self, netns: u64, source: Option<IpAddr>) -> Owner {
        match source {
            Some(source) => self.owners.owner_of_packet(netns, [source.to_canonical(); 2]),
            None => self.owners.owner_of_netns(netns),
        }
    }

    /// Records of this owner, or of any, were left out: its open exchanges may miss some.
    pub(crate) fn on_limited(&mut self, owner: Option<&Owner>) {
        let is_concerned = |of: &Owner| owner.is_none_or(|owner| owner.is_same(of));
        for lookup in self.lookups.values_mut().filter(|lookup| is_concerned(&lookup.owner)) {
            lookup.lost = true;
        }
        for connect in self
            .connects
            .values_mut()
            .filter(|connect| is_concerned(&connect.owner))
        {
            connect.lost = true;
        }
    }

    /// Records of traffic were lost: every open exchange may miss some, so that silence is weaker evidence for it.
    pub(crate) fn on_loss(&mut self) {
        for lookup in self.lookups.values_mut() {
            lookup.lost = true;
        }
        for connect in self.connects.values_mut() {
            connect.lost = true;
        }
    }

    /// Records of DNS messages were lost up to `at`: an answer that was not seen may have come.
    pub(crate) fn on_dns_loss(&mut self, at: Timestamp) {
        for lookup in self.lookups.values_mut() {
            lookup.lose_answers(at);
        }
    }
}

// === when it is over ===

impl Traffic {
    /// Takes a lookup out of the open ones.
    pub(crate) fn take_lookup(&mut self, serial: u64, now: Timestamp) -> Option<Box<Lookup>> {
        let lookup = self.lookups.remove(serial)?;
        self.resolved.remember_queries(&lookup, now);
        Some(lookup)
    }

    /// Takes a connect out of the open ones.
    pub(crate) fn take_connect(&mut self, serial: u64, now: Timestamp) -> Option<Box<Connect>> {
        let connect = self.connects.remove(serial)?;
        self.ended_connects.remember(&connect, now);
        Some(connect)
    }

    /// The exchange ended: the trace that shows it gets it; without one it is released at once.
    pub(crate) fn exchange_ended(&mut self, ctx: &mut Context, ended: EndedExchange, home: Option<TraceKey>) {
        match home {
            Some(home) => ctx.facts.push(Fact::ExchangeEnded { home, ended }),
            None => self.on_exchange_released(ctx, &ended),
        }
    }

    /// The exchange was evicted, or the input ended: how it would have ended is not known, so it has no finding.
    pub(crate) fn give_up(&mut self, ctx: &mut Context, id: ExchangeId) {
        let (home, after) = match id {
            ExchangeId::Lookup(serial) => {
                ctx.effects.timers.clear(Timer::Lookup(serial));
                let lookup = self.take_lookup(serial, ctx.now);
                (lookup.and_then(|lookup| lookup.home), None)
            }
            ExchangeId::Connect(serial) => {
                ctx.effects.timers.clear(Timer::Connect(serial));
                let connect = self.take_connect(serial, ctx.now);
                let after = connect.as_ref().and_then(|connect| connect.lookup.as_ref());
                let after = after.map(|(lookup, _)| *lookup);
                (connect.and_then(|connect| connect.home), after)
            }
        };
        if let Some(home) = home {
            ctx.facts.push(Fact::ExchangeLost { home, id });
        }
        if let Some(lookup) = after {
            self.on_journey_due(ctx, lookup);
        }
    }

    /// The exchange ended outside of a sandbox's trace: a journey if it went badly, and a finding that names its trace.
    pub(crate) fn on_exchange_released(&mut self, ctx: &mut Context, ended: &EndedExchange) {
        let before = self.lookup_before(ended);
        let trace = self.journeys.join_or_open(ctx, ended, before);
        ctx.effects.outputs.push(ended.finding(trace, trace.is_some()));
        for journey in self.journeys.take_complete() {
            self.close_journey(ctx, journey);
        }
        if let ExchangeDetail::Connect {
            after: Some(lookup), ..
        } = &ended.exchange.detail
        {
            self.on_journey_due(ctx, *lookup);
        }
    }

    /// The lookup that resolved a connect's address, if the connect went badly and the lookup has ended and is still
    /// remembered.
    fn lookup_before(&self, ended: &EndedExchange) -> Option<Arc<crate::exchange::Exchange>> {
        ended.exchange.reason?;
        let ExchangeDetail::Connect {
            detail,
            after: Some(lookup),
        } = &ended.exchange.detail
        else {
            return None;
        };
        let resolved = self.resolved.address(ended.owner.netns, detail.remote.ip())?;
        let ended = resolved.ended.as_ref().filter(|_| resolved.lookup == *lookup)?;
        Some(ended.exchange())
    }

    /// Closes the journey that begins with this lookup if its time is over and no connect of it is open.
    pub(crate) fn on_journey_due(&mut self, ctx: &mut Context, lookup: u64) {
        let goes_on = self.connects.newest(TableKey::after(lookup)).next().is_some();
        if let Some(journey) = self.journeys.take_if_over(ctx, lookup, goes_on) {
            self.close_journey(ctx, journey);
        }
    }

    /// Reports a complete journey.
    fn close_journey(&mut self, ctx: &mut Context, mut journey: Journey) {
        if journey.owner.sandbox.is_none() {
            // The owner of its namespace may have been reported while it was open.
            let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
            journey.owner.sandbox = self.owners.late_owner(journey.owner.netns, nowhere, journey.begin());
        }
        let trace = journey.into_trace(ctx.anchor);
        ctx.facts.push(Fact::JourneyClosed(Box::new(trace)));
    }

    /// Closes every journey, at the end of the input.
    pub(crate) fn finish_journeys(&mut self, ctx: &mut Context) {
        while let Some(journey) = self.journeys.take_oldest(ctx) {
            self.close_journey(ctx, journey);
        }
    }
}
