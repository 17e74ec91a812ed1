//! DNS messages into lookups: which message asks what was asked before, which answer answers it.
//!
//! One lookup joins A and AAAA of one name, what is sent again (same or other server, UDP or TCP), and the names of the
//! search path. A resolver for others asks many names from one socket: only equal names are ever joined there. What
//! ended is told on by `attempts.rs`. Does not: guess; an answer that fits no message is noted or an orphan.

use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::network::{Answer, DnsMessage, Question};
use sandglass_model::trace::Detail;

use crate::correlator::Correlator;
use crate::timers::Timer;
use crate::traffic::attempts::{Attempt, Finished, Part, PartDetail};
use crate::traffic::lookup::matching::{Manner, Taken};
use crate::traffic::lookup::{self, Lookup, MAX_NAMES, base};
use crate::traffic::notes::{self, What};
use crate::traffic::owners::Party;
use crate::traffic::table::{Key, Who};
use crate::traffic::watch::{Given, REACH_NS};

/// How a question goes with an open lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The name is the lookup's own.
    Name(Manner),
    /// The name is the search path's next.
    NextName,
}

// === messages ===

impl Correlator {
    pub(crate) fn dns_seen(&mut self, at: Timestamp, mut message: DnsMessage) {
        for end in [&mut message.client, &mut message.server] {
            end.set_ip(end.ip().to_canonical());
        }
        let message = &message;
        let party = self.watch.party(message.netns, message.client.ip(), self.now);
        match &message.answer {
            Some(answer) => self.answered(at, message, answer),
            None => {
                for question in &message.questions {
                    self.asked(at, &party, message, question);
                }
            }
        }
    }

    fn asked(&mut self, at: Timestamp, party: &Party, message: &DnsMessage, question: &Question) {
        let process = message.asker.as_ref().map(|asker| asker.process);
        let who = Who::of(message.netns, process, message.client);
        let (serial, manner) = match self.place(at, message, question, who) {
            Some((serial, Place::Name(manner))) => (serial, manner),
            Some((serial, Place::NextName)) => {
                if let Some(lookup) = self.watch.lookups.get_mut(serial) {
                    lookup.names.push(question.name.as_str().into());
                }
                (serial, Manner::First)
            }
            None => (self.open_lookup(at, party, message, question), Manner::First),
        };
        let Some(lookup) = self.watch.lookups.get_mut(serial) else {
            return;
        };
        if !lookup.ask(at, message, question, manner) {
            return;
        }
        for key in [
            Key::message(message.client, message.transport, message.id),
            Key::message_by(message.socket, message.transport, message.id),
            Key::client(protocol_of(message), message.client),
            Key::id(message.id),
            Key::name_from(message.client, &question.name),
            Key::name_by(who, &question.name),
            Key::label_by(who, &question.name),
            Key::by(who),
        ] {
            self.watch.lookups.key(serial, key);
        }
        self.join_known_flow(serial, message);
        self.lookup_changed(serial);
    }

    /// The open lookup that a question belongs to.
    fn place(&self, at: Timestamp, message: &DnsMessage, question: &Question, who: Who) -> Option<(u64, Place)> {
        let (lookups, config) = (&self.watch.lookups, &self.config.traffic);
        let name = question.name.as_str();
        for key in [Key::name_from(message.client, name), Key::name_by(who, name)] {
            for (serial, lookup) in lookups.newest(key) {
                if lookup.party.netns != message.netns || !lookup.names.iter().any(|tried| **tried == *name) {
                    continue;
                }
                let manner = match lookup.question(question) {
                    Some(index) => lookup.manner(at, message, index, config),
                    None => {
                        let goes_on = *lookup.names[lookup.current()] == *name
                            && at.since(lookup.last_sign()) <= config.search_gap_ns;
                        goes_on.then_some(Manner::First)
                    }
                };
                if let Some(manner) = manner {
                    return Some((serial, Place::Name(manner)));
                }
            }
        }
        let mut candidates = lookups.newest(Key::label_by(who, name));
        let next = candidates.find(|(serial, lookup)| {
            lookup.party.netns == message.netns
                && lookup.came_to_nothing()
                && at.since(lookup.last_answer()) <= config.search_gap_ns
                && self.is_next_name(*serial, lookup, message, name, who)
        });
        next.map(|(serial, _)| (serial, Place::NextName))
    }

    /// `name` is what the search path makes next of the name that `lookup` is about. Two names with the same beginning
    /// may also be two clients' of one resolver: the less the names say, the less else may be going on.
    fn is_next_name(&self, serial: u64, lookup: &Lookup, message: &DnsMessage, name: &str, who: Who) -> bool {
        let tried = || lookup.names.iter().map(AsRef::as_ref);
        let base = base(tried().chain([name]));
        if base.is_empty() || lookup.names.len() >= MAX_NAMES || tried().any(|before| before == name) {
            return false;
        }
        let behind = |name: &str| name.get(base.len() + 1..).unwrap_or_default().to_owned();
        let (before, after) = (behind(&lookup.names[lookup.current()]), behind(name));
        let nested = |longer: &str, shorter: &str| {
            longer
                .strip_suffix(shorter)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        // Only names with dots are tried as they are before the search path is.
        let as_it_is = base.contains('.') && tried().any(|before| before == base);
        if name == base || as_it_is || nested(&before, &after) || nested(&after, &before) {
            return true;
        }
        let mut others = self.watch.lookups.newest(Key::by(who));
        let alone = !others.any(|(other, lookup)| other != serial && lookup.is_waiting());
        let same_socket = lookup.sent.iter().any(|sent| sent.client == message.client);
        alone && (!same_socket || lookup.names.len() > 1)
    }

    fn open_lookup(&mut self, at: Timestamp, party: &Party, message: &DnsMessage, question: &Question) -> u64 {
        while self.watch.lookups.len() >= self.config.traffic.max_lookups.max(1)
            && let Some(oldest) = self.watch.lookups.oldest()
        {
            self.effects.counters.evicted_lookups += 1;
            self.give_up(Attempt::Lookup(oldest));
        }
        let serial = self.watch.next_serial();
        let mut lookup = Lookup::new(at, party.clone(), message, &question.name);
        lookup.lost = self.watch.is_lossy(at);
        lookup.home = self.home_of(party);
        let home = lookup.home;
        let detail = home.map(|_| lookup.detail(None));
        self.watch.lookups.insert(serial, lookup);
        if let (Some(key), Some(detail)) = (home, detail) {
            self.attempt_began(key, at, Attempt::Lookup(serial), Detail::Lookup(Box::new(detail)));
        }
        serial
    }

    fn answered(&mut self, at: Timestamp, message: &DnsMessage, answer: &Answer) {
        let key = Key::message(message.client, message.transport, message.id);
        let mut serials: Vec<u64> = self.watch.lookups.newest(key).map(|(serial, _)| serial).collect();
        if message.socket != 0 {
            // Behind a socket that is not connected, packets may be translated: a query goes out with other addresses
            // than its answer comes in with.
            let by_socket = Key::message_by(message.socket, message.transport, message.id);
            let more = self.watch.lookups.newest(by_socket).map(|(serial, _)| serial);
            let more: Vec<u64> = more.filter(|serial| !serials.contains(serial)).collect();
            serials.extend(more);
        }
        let (mut answers, mut stray, mut late) = (false, None, None);
        for serial in serials {
            let Some(lookup) = self.watch.lookups.get_mut(serial) else {
                continue;
            };
            if lookup.party.netns != message.netns && lookup.party.netns != 0 && message.netns != 0 {
                continue;
            }
            let mut took = false;
            let taken = loop {
                match lookup.judge(at, message) {
                    (Taken::Answer, Some(index)) => {
                        lookup.answer(at, index, message, answer, false);
                        took = true;
                    }
                    (Taken::Elsewhere, Some(index)) => {
                        lookup.answer(at, index, message, answer, false);
                        notes::add(&mut lookup.notes, at, stray_note(message));
                        took = true;
                    }
                    (taken, index) => break (taken, index),
                }
            };
            answers |= took || taken.0 == Taken::Twice;
            match taken {
                (Taken::Late, Some(index)) => late = late.or(Some((serial, index))),
                (Taken::Stray, _) => stray = stray.or(Some(serial)),
                _ => {}
            }
            if took {
                self.addresses_given(at, serial, answer);
                self.lookup_changed(serial);
            }
        }
        if answers {
            return;
        }
        if let Some((serial, index)) = late {
            if let Some(lookup) = self.watch.lookups.get_mut(serial) {
                lookup.answer(at, index, message, answer, true);
            }
            return self.lookup_changed(serial);
        }
        match stray.or_else(|| self.waiting_for(message)) {
            Some(serial) => {
                if let Some(lookup) = self.watch.lookups.get_mut(serial) {
                    notes::add(&mut lookup.notes, at, stray_note(message));
                }
                self.lookup_changed(serial);
            }
            None if self.watch.was_asked(key) => {}
            None => self.effects.counters.orphan += 1,
        }
    }

    /// The open lookup that waits at the same socket for an answer to the same question, under another id.
    fn waiting_for(&self, message: &DnsMessage) -> Option<u64> {
        let question = message.questions.first()?;
        let mut open = self
            .watch
            .lookups
            .newest(Key::name_from(message.client, &question.name));
        let found = open.find(|(_, lookup)| lookup.question(question).is_some() && lookup.is_waiting());
        found.map(|(serial, _)| serial)
    }

    fn addresses_given(&mut self, at: Timestamp, serial: u64, answer: &Answer) {
        let Some(lookup) = self.watch.lookups.get(serial).filter(|_| !answer.addresses.is_empty()) else {
            return;
        };
        self.watch.given.expire(self.now.minus(REACH_NS));
        let (netns, name): (u64, Arc<str>) = (lookup.party.netns, lookup.name().into());
        for address in &answer.addresses {
            let given = Given {
                lookup: serial,
                name: Arc::clone(&name),
                part: None,
            };
            self.watch.given.insert((netns, address.to_canonical()), given, at);
        }
    }
}

fn stray_note(message: &DnsMessage) -> What {
    What::Stray {
        id: message.id,
        from: message.server,
    }
}

fn protocol_of(message: &DnsMessage) -> u8 {
    match message.transport {
        sandglass_model::network::Transport::Udp => UDP,
        sandglass_model::network::Transport::Tcp => TCP,
    }
}

/// IP protocol numbers.
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

// === end ===

impl Correlator {
    /// Sets the time at which a lookup is over, and shows it as it is.
    pub(crate) fn lookup_changed(&mut self, serial: u64) {
        let Some(lookup) = self.watch.lookups.get(serial) else {
            return;
        };
        let due = lookup.due(&self.config.traffic);
        self.effects.timers.set(Timer::Lookup(serial), due);
        if let Some(key) = lookup.home {
            let detail = Detail::Lookup(Box::new(lookup.detail(None)));
            let events = notes::events(&lookup.notes, lookup.start, None);
            self.attempt_changed(key, Attempt::Lookup(serial), detail, events);
        }
    }

    /// A lookup is over: every answer is there and no next name came, or it was waited for long enough.
    pub(crate) fn lookup_over(&mut self, serial: u64) {
        if self.windows_lookup_over(serial) {
            return;
        }
        self.find_owner(Attempt::Lookup(serial));
        let Some(mut lookup) = self.watch.take_lookup(serial, self.now) else {
            return;
        };
        let (result, end) = lookup.ending(self.now);
        let mut detail = Box::new(lookup.detail(Some(result)));
        let reason = self.reason_of_lookup(&lookup, result, end);
        detail.cause = reason.and_then(|_| self.cause_of_lookup(&lookup, result, end));
        let part = Arc::new(Part {
            start: lookup.start,
            end,
            status: lookup::status(&detail.name, result),
            reason,
            seed: lookup.seed(),
            detail: PartDetail::Lookup {
                asked: lookup.asked(),
                detail,
            },
            notes: lookup.notes,
            lost: lookup.lost,
        });
        if let PartDetail::Lookup { detail, .. } = &part.detail {
            let netns = lookup.party.netns;
            self.watch
                .remember_given(netns, &detail.addresses, serial, &detail.name, &part);
        }
        let finished = Finished {
            party: lookup.party,
            what: Attempt::Lookup(serial),
            part,
        };
        self.attempt_ended(finished, lookup.home);
    }
}
