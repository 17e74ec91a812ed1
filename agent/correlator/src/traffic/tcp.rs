//! Handles steps of TCP connects: from the first SYN to the end of the handshake, joined by socket.
//!
//! Used by `correlator.rs`. The probe reports state changes of sockets (tracepoint `inet_sock_set_state`): a socket
//! that leaves the closed state sends its SYN next. Connects of a machine to itself are ignored, since they prove
//! nothing about a network. A connect that ended stays open for a moment, because conntrack's records of it may come
//! later.
//! Does not: follow an established connection, or judge (`causes.rs`).

use sandglass_model::Timestamp;
use sandglass_model::network::{ConnectFailure, ConnectStep, Step};
use sandglass_model::trace::Detail;

use crate::context::Context;
use crate::exchange::ExchangeId;
use crate::facts::Fact;
use crate::finding::Scope;
use crate::traffic::Traffic;
use crate::traffic::connect::Connect;
use crate::traffic::table::ExchangeTable;
use crate::traffic::table_key::TableKey;

impl Traffic {
    /// A step of a connect, as the socket's state changes show it (tracepoint `sock:inet_sock_set_state`: from TCP_CLOSE to
    /// TCP_SYN_SENT, and from there on; include/net/tcp_states.h). A socket that begins again after it ended is a new
    /// connect; records that come twice change nothing.
    pub(crate) fn on_connect(&mut self, ctx: &mut Context, at: Timestamp, mut step: ConnectStep) {
        for end in [&mut step.local, &mut step.remote] {
            end.set_ip(end.ip().to_canonical());
        }
        // Nothing between the two ends can fail that has to do with a sandbox's network.
        if step.remote.ip().is_loopback() || step.remote.ip() == step.local.ip() {
            return;
        }
        if self.ended_connects.has_step(&step, at) {
            return;
        }
        let known = connect_of(&self.connects, &step);
        let twice = |serial| self.connects.get(serial).is_some_and(|connect| connect.start == at);
        match (step.step, known) {
            // A record that came twice.
            (Step::Started, Some((serial, true))) if twice(serial) => {}
            (Step::Established | Step::Failed(_), Some((_, true))) => {}
            (Step::Started, Some((serial, true))) => {
                // The socket tries again.
                self.on_connect_due(ctx, serial);
                self.open_connect(ctx, at, &step);
            }
            (Step::Started, None) => self.open_connect(ctx, at, &step),
            (Step::Started, Some((serial, false))) => self.update_connect(ctx, at, serial, &step, None),
            (Step::Established, Some((serial, false))) => self.update_connect(ctx, at, serial, &step, Some(None)),
            (Step::Failed(failure), Some((serial, false))) => {
                self.update_connect(ctx, at, serial, &step, Some(Some(failure)));
            }
            // Begun before the agent was.
            (Step::Established | Step::Failed(_), None) => ctx.effects.counters.orphan += 1,
        }
    }

    /// Opens a connect, joined to the lookup of its address. The oldest are evicted if there are too many.
    fn open_connect(&mut self, ctx: &mut Context, at: Timestamp, step: &ConnectStep) {
        while self.connects.len() >= ctx.config.traffic.max_connects.max(1)
            && let Some((victim, is_noisy)) = self.connects.next_victim()
        {
            let scope = self
                .connects
                .get(victim)
                .map_or(Scope::Node, |connect| connect.owner.scope());
            ctx.effects.counters.evicted_connects.count(scope, is_noisy);
            self.give_up(ctx, ExchangeId::Connect(victim));
        }
        let owner = self.owners.attribute(step.netns, step.local.ip(), ctx.now);
        let serial = ctx.next_serial();
        let mut connect = Connect::new(at, owner, step);
        connect.lost = ctx.losses.traffic_at(at);
        connect.home = self.home_of(ctx, &connect.owner);
        // What is too old to be the reason of this connect must not be found.
        self.resolved.expire(ctx.now);
        // The newest lookup of this address in the same namespace, at most 10 s old.
        let resolved = self.resolved.address(step.netns, step.remote.ip());
        connect.lookup = resolved.map(|resolved| (resolved.lookup, resolved.name.clone()));
        let (home, lookup) = (connect.home, connect.lookup.clone());
        let detail = home.map(|_| connect.detail());
        self.connects.insert(serial, Box::new(connect));
        if let (Some(home), Some(detail)) = (home, detail) {
            let id = ExchangeId::Connect(serial);
            let detail = Detail::Connect(Box::new(detail));
            ctx.facts.push(Fact::ExchangeBegan { home, id, at, detail });
        }
        if let Some((lookup, _)) = lookup {
            self.connects.key(serial, TableKey::after(lookup));
        }
        // Windows has no cookies: there the ends identify the socket.
        if step.socket != 0 {
            self.connects.key(serial, TableKey::socket(step.socket));
        }
        self.connects.key(serial, TableKey::remote(step.local, step.remote));
        self.connect_changed(ctx, serial);
    }

    /// Takes over a step. `outcome` is `None` for a step within the handshake, `Some(None)` for success.
    fn update_connect(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        serial: u64,
        step: &ConnectStep,
        outcome: Option<Option<ConnectFailure>>,
    ) {
        if let Some(connect) = self.connects.get_mut(serial) {
            connect.update(step);
            connect.outcome = outcome.map(|failure| (at.max(connect.start), failure));
        }
        self.connect_changed(ctx, serial);
    }
}

/// The connect of the step's socket, and whether it has ended. Without a cookie the local end identifies it.
fn connect_of(connects: &ExchangeTable<Connect>, step: &ConnectStep) -> Option<(u64, bool)> {
    let mut open = connects.newest(TableKey::connecting_socket(step.socket, step.local));
    let found = open.find(|(_, connect)| {
        connect.socket == step.socket && connect.owner.netns == step.netns && connect.remote == step.remote
    });
    found.map(|(serial, connect)| (serial, connect.outcome.is_some()))
}
