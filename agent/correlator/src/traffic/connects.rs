//! Steps of TCP connections into connections: from the first SYN to the end of the handshake, joined by socket.
//!
//! Connections of a machine with itself are passed over: they say nothing of a network. What ended is told on by
//! `attempts.rs`, a moment later: conntrack's records of it may still come.

use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::network::{ConnectFailure, ConnectStep, Step};
use sandglass_model::time::MILLISECOND;
use sandglass_model::trace::Detail;

use crate::correlator::Correlator;
use crate::timers::Timer;
use crate::traffic::attempts::{Attempt, Finished, Part, PartDetail};
use crate::traffic::connect::{self, Connect};
use crate::traffic::lookups::TCP;
use crate::traffic::notes;
use crate::traffic::table::Key;
use crate::traffic::watch::REACH_NS;

/// How long what ended waits for conntrack's records.
pub(crate) const LINGER_NS: u64 = 100 * MILLISECOND;

impl Correlator {
    pub(crate) fn connect_seen(&mut self, at: Timestamp, mut step: ConnectStep) {
        for end in [&mut step.local, &mut step.remote] {
            end.set_ip(end.ip().to_canonical());
        }
        if step.remote.ip().is_loopback() || step.remote.ip() == step.local.ip() {
            return;
        }
        let known = self.connect_of(&step);
        let twice = |serial| {
            self.watch
                .connects
                .get(serial)
                .is_some_and(|connect| connect.start == at)
        };
        match (step.step, known) {
            // A record that came twice.
            (Step::Started, Some((serial, true))) if twice(serial) => {}
            (Step::Established | Step::Failed(_), Some((_, true))) => {}
            (Step::Started, Some((serial, true))) => {
                // The socket tries again.
                self.connect_over(serial);
                self.open_connect(at, &step);
            }
            (Step::Started, None) => self.open_connect(at, &step),
            (Step::Started, Some((serial, false))) => self.update_connect(at, serial, &step, None),
            (Step::Established, Some((serial, false))) => self.update_connect(at, serial, &step, Some(None)),
            (Step::Failed(failure), Some((serial, false))) => {
                self.update_connect(at, serial, &step, Some(Some(failure)));
            }
            // Begun before the agent was.
            (Step::Established | Step::Failed(_), None) => self.effects.counters.orphan += 1,
        }
    }

    /// The connection of a socket, and whether it has ended.
    fn connect_of(&self, step: &ConnectStep) -> Option<(u64, bool)> {
        let key = match step.socket {
            0 => Key::client(TCP, step.local),
            cookie => Key::socket(cookie),
        };
        let mut open = self.watch.connects.newest(key);
        let found = open.find(|(_, connect)| {
            connect.socket == step.socket && connect.party.netns == step.netns && connect.remote == step.remote
        });
        found.map(|(serial, connect)| (serial, connect.outcome.is_some()))
    }

    fn open_connect(&mut self, at: Timestamp, step: &ConnectStep) {
        while self.watch.connects.len() >= self.config.traffic.max_connects.max(1)
            && let Some(oldest) = self.watch.connects.oldest()
        {
            self.effects.counters.evicted_connects += 1;
            self.give_up(Attempt::Connect(oldest));
        }
        let party = self.watch.party(step.netns, step.local.ip(), self.now);
        let serial = self.watch.next_serial();
        let mut connect = Connect::new(at, party, step);
        connect.lost = self.watch.is_lossy(at);
        connect.home = self.home_of(&connect.party);
        self.watch.given.expire(self.now.minus(REACH_NS));
        let given = self.watch.given.get(&(step.netns, step.remote.ip()));
        connect.lookup = given.map(|given| (given.lookup, Arc::clone(&given.name)));
        let (home, lookup) = (connect.home, connect.lookup.clone());
        let detail = home.map(|_| connect.detail());
        self.watch.connects.insert(serial, connect);
        if let (Some(key), Some(detail)) = (home, detail) {
            self.attempt_began(key, at, Attempt::Connect(serial), Detail::Connect(Box::new(detail)));
        }
        if let Some((lookup, _)) = lookup {
            self.watch.connects.key(serial, Key::after(lookup));
        }
        if step.socket != 0 {
            self.watch.connects.key(serial, Key::socket(step.socket));
        }
        self.watch.connects.key(serial, Key::remote(step.local, step.remote));
        self.connect_changed(serial);
    }

    fn update_connect(
        &mut self,
        at: Timestamp,
        serial: u64,
        step: &ConnectStep,
        outcome: Option<Option<ConnectFailure>>,
    ) {
        if let Some(connect) = self.watch.connects.get_mut(serial) {
            connect.update(step);
            connect.outcome = outcome.map(|failure| (at.max(connect.start), failure));
        }
        self.connect_changed(serial);
    }

    /// Joins what the connection's addresses lead to, sets the time at which it is over, and shows it as it is.
    pub(crate) fn connect_changed(&mut self, serial: u64) {
        let Some(connect) = self.watch.connects.get(serial) else {
            return;
        };
        let due = match connect.outcome {
            Some((ended, _)) => ended.plus(LINGER_NS),
            None => connect.start.plus(self.config.deadline_ns),
        };
        self.effects.timers.set(Timer::Connect(serial), due);
        if connect.local.port() != 0 {
            self.watch.connects.key(serial, Key::client(TCP, connect.local));
            self.join_known_flow_of_connect(serial);
        }
        let Some(connect) = self.watch.connects.get(serial) else {
            return;
        };
        if let Some(key) = connect.home {
            let detail = Detail::Connect(Box::new(connect.detail()));
            let events = notes::events(&connect.notes, connect.start, None);
            self.attempt_changed(key, Attempt::Connect(serial), detail, events);
        }
    }

    /// A connection has ended a moment ago, or was never heard of again.
    pub(crate) fn connect_over(&mut self, serial: u64) {
        self.find_owner(Attempt::Connect(serial));
        let Some(mut connect) = self.watch.connects.remove(serial) else {
            return;
        };
        self.effects.timers.clear(Timer::Connect(serial));
        if let Some((lookup, name)) = &mut connect.lookup
            && let Some(given) = self.watch.given.get(&(connect.party.netns, connect.remote.ip()))
            && given.lookup == *lookup
        {
            *name = Arc::clone(&given.name);
        }
        // No kernel waits so long: its end was not seen.
        let unseen = (self.now, Some(ConnectFailure::TimedOut));
        connect.lost |= connect.outcome.is_none();
        let (end, _) = *connect.outcome.get_or_insert(unseen);
        let mut detail = Box::new(connect.detail());
        let reason = self.reason_of_connect(&connect, end);
        detail.cause = reason.and_then(|_| self.cause_of_connect(&connect, end));
        let part = Part {
            start: connect.start,
            end,
            status: connect::status(&detail),
            reason,
            seed: connect.socket ^ u64::from(connect.local.port()) << 48 ^ u64::from(connect.remote.port()) << 32,
            detail: PartDetail::Connect {
                detail,
                after: connect.lookup.map(|(lookup, _)| lookup),
            },
            notes: connect.notes,
            lost: connect.lost,
        };
        let finished = Finished {
            party: connect.party,
            what: Attempt::Connect(serial),
            part: Arc::new(part),
        };
        self.attempt_ended(finished, connect.home);
    }
}
