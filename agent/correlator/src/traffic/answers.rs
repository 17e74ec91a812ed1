//! Handles DNS answers: finds the query that an answer belongs to.
//!
//! Called by `dns.rs`. A resolver accepts an answer whose id, addresses, ports and question match a query that is
//! pending (RFC 5452, section 9.1); this file looks for the same match and also recognises answers that the resolver
//! will not accept. An answer that matches no query is noted at the lookup that comes nearest, or counted as an orphan.
//! Does not: decide whether the lookup is over.

use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::network::{Answer, DnsMessage};

use crate::context::Context;
use crate::notes::{self, NoteKind};
use crate::traffic::Traffic;
use crate::traffic::ended_lookups::{EndedLookup, ResolvedAddress};
use crate::traffic::lookup::Lookup;
use crate::traffic::lookup::matching::AnswerMatch;
use crate::traffic::table::{ExchangeTable, MAX_LOOK};
use crate::traffic::table_key::TableKey;

impl Traffic {
    /// An answer came: it belongs to every open lookup with a query that it matches, since clients that share a socket
    /// may use one id for several.
    pub(crate) fn on_answer(&mut self, ctx: &mut Context, at: Timestamp, message: &DnsMessage, answer: &Answer) {
        let key = TableKey::message(message.client, message.transport, message.id);
        let mut serials = Serials::default();
        serials.extend(self.lookups.newest(key));
        if message.socket != 0 {
            // Behind a socket that is not connected, packets may be translated: a query goes out with other addresses
            // than its answer comes in with.
            let by_socket = TableKey::message_by(message.socket, message.transport, message.id);
            serials.extend(self.lookups.newest(by_socket));
        }
        let (mut answers, mut stray, mut late) = (false, None, None);
        for &serial in serials.list() {
            let Some(lookup) = self.lookups.get_mut(serial) else {
                continue;
            };
            // Loopback and private addresses repeat in every namespace; a namespace that is not known excludes nothing.
            if lookup.owner.netns != message.netns && lookup.owner.netns != 0 && message.netns != 0 {
                continue;
            }
            let mut took = false;
            // One answer may match several queries of a lookup that were sent under one id: it answers all of them.
            let taken = loop {
                match lookup.match_answer(at, message) {
                    (AnswerMatch::Answer, Some(index)) => {
                        lookup.answer(at, index, message, answer, false);
                        took = true;
                    }
                    (AnswerMatch::OtherAddress, Some(index)) => {
                        lookup.answer(at, index, message, answer, false);
                        notes::add(&mut lookup.notes, at, stray_note(message));
                        took = true;
                    }
                    (taken, index) => break (taken, index),
                }
            };
            answers |= took || taken.0 == AnswerMatch::Duplicate;
            match taken {
                (AnswerMatch::Late, Some(index)) => late = late.or(Some((serial, index))),
                (AnswerMatch::Stray, _) => stray = stray.or(Some(serial)),
                _ => {}
            }
            if took {
                self.on_addresses_resolved(ctx, at, serial, answer);
                self.lookup_changed(ctx, serial);
            }
        }
        if answers {
            return;
        }
        // Only an answer that no lookup is waiting for is late.
        if let Some((serial, index)) = late {
            if let Some(lookup) = self.lookups.get_mut(serial) {
                lookup.answer(at, index, message, answer, true);
            }
            return self.lookup_changed(ctx, serial);
        }
        match stray.or_else(|| pending_at_socket(&self.lookups, message)) {
            Some(serial) => {
                if let Some(lookup) = self.lookups.get_mut(serial) {
                    notes::add(&mut lookup.notes, at, stray_note(message));
                }
                self.lookup_changed(ctx, serial);
            }
            None if self.resolved.has_query(key) => {}
            None => ctx.effects.counters.orphan += 1,
        }
    }

    /// Remembers the addresses of an answer, so that a connect to one of them finds its lookup.
    fn on_addresses_resolved(&mut self, ctx: &mut Context, at: Timestamp, serial: u64, answer: &Answer) {
        let Some(lookup) = self.lookups.get(serial).filter(|_| !answer.addresses.is_empty()) else {
            return;
        };
        self.resolved.expire(ctx.now);
        let (netns, name, share) = (lookup.owner.netns, lookup.name(), lookup.owner.share());
        for address in &answer.addresses {
            let resolved = ResolvedAddress {
                lookup: serial,
                name: name.clone(),
                ended: None,
                share,
            };
            if let Some(EndedLookup::Unshown(unshown)) = self.resolved.insert(netns, *address, resolved, at)
                && let Some(unshown) = Arc::into_inner(unshown)
            {
                self.recycle(unshown.lookup);
            }
        }
    }
}

/// Serial numbers of the lookups that an answer may belong to, each once.
#[derive(Debug, Default)]
struct Serials {
    list: [u64; 2 * MAX_LOOK],
    count: usize,
}

impl Serials {
    fn extend<'t>(&mut self, found: impl Iterator<Item = (u64, &'t Lookup)>) {
        for (serial, _) in found {
            if !self.list().contains(&serial)
                && let Some(place) = self.list.get_mut(self.count)
            {
                *place = serial;
                self.count += 1;
            }
        }
    }

    fn list(&self) -> &[u64] {
        &self.list[..self.count]
    }
}

/// The note of an answer that matches no query by id or by address.
fn stray_note(message: &DnsMessage) -> NoteKind {
    NoteKind::Stray {
        id: message.id,
        from: message.server,
    }
}

/// The newest lookup that has a pending query for the same question at the same socket, under another id: an answer to
/// an earlier use of the port, or a forged one.
fn pending_at_socket(lookups: &ExchangeTable<Lookup>, message: &DnsMessage) -> Option<u64> {
    let question = message.questions.first()?;
    let mut open = lookups.newest(TableKey::name_from(message.client, &question.name));
    let found = open.find(|(_, lookup)| lookup.question(question).is_some() && lookup.is_pending());
    found.map(|(serial, _)| serial)
}
