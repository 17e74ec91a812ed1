//! Handles DNS queries: finds the open lookup that a query belongs to, or opens one.
//!
//! Used by `correlator.rs` for every DNS message; answers go on to `answers.rs`. One lookup joins the A and AAAA
//! questions of one name, what is sent again (to the same or another server, over UDP or TCP), and the names of the
//! search path. A resolver that serves others, such as a node-local cache, queries many names from one socket: there
//! only equal names are joined.
//! Does not: guess. A query that fits nothing opens a lookup of its own.
//!
//! Example: a pod resolves `web` with the search list `a.svc.cluster.local svc.cluster.local` and glibc:
//! - `web.a.svc.cluster.local` A and AAAA, answered NXDOMAIN twice: nothing is pending, and the lookup stays open for
//!   `search_gap_ns`.
//! - `web.svc.cluster.local` A and AAAA: the same first label, and the rest is a suffix of the rest before. That is the
//!   next name of the same lookup. A is answered with an address, AAAA with no records.
//!
//! The result is one lookup named `web`, with four questions, one further name, and the result of the second name.

use sandglass_model::network::{DnsMessage, DnsUnreported, Question, Unreported};
use sandglass_model::trace::Detail;
use sandglass_model::{SmolStr, Timestamp};

use crate::config::TrafficBounds;
use crate::context::Context;
use crate::exchange::ExchangeId;
use crate::facts::Fact;
use crate::finding::{Finding, Scope};
use crate::output::Output;
use crate::owner::Owner;
use crate::traffic::Traffic;
use crate::traffic::lookup::question::QueryKind;
use crate::traffic::lookup::{Lookup, MAX_NAMES, base};
use crate::traffic::packet::protocol_of;
use crate::traffic::table::{ExchangeTable, Way};
use crate::traffic::table_key::{Client, TableKey};

/// The keys of a query's name: by who asks and from where, and of its first label.
#[derive(Clone, Copy, Debug)]
struct NameKeys {
    from: TableKey,
    by: TableKey,
    label: TableKey,
}

impl NameKeys {
    fn of(message: &DnsMessage, question: &Question, client: Client) -> NameKeys {
        NameKeys {
            from: TableKey::name_from(message.client, &question.name),
            by: TableKey::name_by(client, &question.name),
            label: TableKey::label_by(client, &question.name),
        }
    }
}

/// How a query belongs to an open lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueryMatch {
    /// By a name that the lookup has tried.
    Name(QueryKind),
    /// As the next name of the search path.
    NextName,
}

impl Traffic {
    /// A DNS query or answer was seen at the client's socket. Addresses are made canonical first, since a dual-stack
    /// socket reports IPv4 as mapped IPv6.
    pub(crate) fn on_dns(&mut self, ctx: &mut Context, at: Timestamp, message: &mut DnsMessage) {
        for end in [&mut message.client, &mut message.server] {
            end.set_ip(end.ip().to_canonical());
        }
        let message = &*message;
        let owner = self.owners.attribute(message.netns, message.client.ip(), ctx.now);
        match &message.answer {
            Some(answer) => self.on_answer(ctx, at, message, answer),
            None => {
                for question in &message.questions {
                    self.on_query(ctx, at, &owner, message, question);
                }
            }
        }
    }

    /// DNS traffic was not reported as messages. If bytes to a client were not seen, answers may have been among them:
    /// the lookups of that connection then have no cause that blames a server. The same holds as long as bytes are
    /// missing that may still come.
    pub(crate) fn on_dns_unreported(&mut self, ctx: &mut Context, at: Timestamp, unreported: &DnsUnreported) {
        let mut client = unreported.client;
        client.set_ip(client.ip().to_canonical());
        if unreported.reason == Unreported::Unseen && unreported.inbound {
            // All lookups that were sent from this end of the connection.
            let key = TableKey::client(protocol_of(unreported.transport), client);
            let serials: Vec<u64> = self.lookups.all(key).map(|(serial, _)| serial).collect();
            for serial in serials {
                let Some(lookup) = self.lookups.get_mut(serial) else {
                    continue;
                };
                match unreported.count {
                    0 => lookup.await_answers(at, unreported.socket, client),
                    _ => lookup.miss_answers(at, unreported.socket, client),
                }
            }
        }
        if unreported.count == 0 {
            return;
        }
        let owner = self.owners.attribute(unreported.netns, client.ip(), ctx.now);
        ctx.effects.outputs.push(Output::Finding(Finding::DnsUnreported {
            scope: owner.scope(),
            reason: unreported.reason,
            count: unreported.count,
        }));
    }

    /// A query with this question was sent.
    fn on_query(&mut self, ctx: &mut Context, at: Timestamp, owner: &Owner, message: &DnsMessage, question: &Question) {
        let process = message.initiator.as_ref().map(|initiator| initiator.process);
        let client = Client::of(message.netns, process, message.client);
        let names = NameKeys::of(message, question, client);
        let message_key = TableKey::message(message.client, message.transport, message.id);
        let (serial, kind) = match place(
            &self.lookups,
            &ctx.config.traffic,
            at,
            message,
            question,
            (client, names),
        ) {
            Some((serial, QueryMatch::Name(kind))) => (serial, kind),
            Some((serial, QueryMatch::NextName)) => {
                if let Some(lookup) = self.lookups.get_mut(serial) {
                    lookup.names.push(question.name.clone());
                }
                (serial, QueryKind::First)
            }
            None if self.resolved.has_query_sent_at(message_key, at) => return,
            None => (self.open_lookup(ctx, at, owner, message, question), QueryKind::First),
        };
        let Some(lookup) = self.lookups.get_mut(serial) else {
            return;
        };
        // The record came twice, or the lookup is full.
        if !lookup.add_query(at, message, question, kind) {
            return;
        }
        let keys = [
            message_key,
            TableKey::message_by(message.socket, message.transport, message.id),
            TableKey::client(protocol_of(message.transport), message.client),
            TableKey::id(message.id),
            names.from,
            names.by,
            names.label,
            TableKey::by(client),
        ];
        self.lookups.keys(serial, &keys);
        // Conntrack may know the socket from an earlier query.
        self.flows.join_known(&mut self.lookups, serial, message);
        self.lookup_changed(ctx, serial);
    }

    /// Opens a lookup; the oldest are evicted if there are too many. Returns the serial number.
    fn open_lookup(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        owner: &Owner,
        message: &DnsMessage,
        question: &Question,
    ) -> u64 {
        // Room is made before the insertion, so that the bound holds at every moment.
        while self.lookups.len() >= ctx.config.traffic.max_lookups.max(1)
            && let Some((victim, is_noisy)) = self.lookups.next_victim()
        {
            let scope = self
                .lookups
                .get(victim)
                .map_or(Scope::Node, |lookup| lookup.owner.scope());
            ctx.effects.counters.evicted_lookups.count(scope, is_noisy);
            self.give_up(ctx, ExchangeId::Lookup(victim));
        }
        let serial = ctx.next_serial();
        let mut lookup = match self.spare.pop() {
            Some(mut spare) => {
                spare.begin_again(at, owner.clone(), message, &question.name);
                spare
            }
            None => Box::new(Lookup::new(at, owner.clone(), message, &question.name)),
        };
        lookup.lost = ctx.losses.traffic_at(at);
        lookup.home = self.home_of(ctx, owner);
        let home = lookup.home;
        let detail = home.map(|_| lookup.detail(None));
        self.lookups.insert(serial, lookup);
        if let (Some(home), Some(detail)) = (home, detail) {
            let id = ExchangeId::Lookup(serial);
            let detail = Detail::Lookup(Box::new(detail));
            ctx.facts.push(Fact::ExchangeBegan { home, id, at, detail });
        }
        serial
    }
}

/// The open lookup that a question belongs to. First by its name, tried from the same socket or by the same client;
/// then as the next name of a search path whose last name found nothing.
fn place(
    lookups: &ExchangeTable<Lookup>,
    config: &TrafficBounds,
    at: Timestamp,
    message: &DnsMessage,
    question: &Question,
    (client, keys): (Client, NameKeys),
) -> Option<(u64, QueryMatch)> {
    let name = question.name.as_str();
    let way = Way::new(message.client, message.server, message.transport);
    for key in [keys.from, keys.by] {
        for (serial, lookup) in lookups.newest_but(key, |brief| brief.is_apart(question.kind, way, at)) {
            // The key is a hash: namespace and name are compared.
            if lookup.owner.netns != message.netns || !lookup.names.iter().any(|tried| *tried == *name) {
                continue;
            }
            let kind = match lookup.question(question) {
                Some(index) => lookup.query_kind(at, message, index, config),
                None => {
                    let goes_on =
                        lookup.names[lookup.current()] == *name && at.since(lookup.last_sign()) <= config.search_gap_ns;
                    goes_on.then_some(QueryKind::First)
                }
            };
            if let Some(kind) = kind {
                return Some((serial, QueryMatch::Name(kind)));
            }
        }
    }
    // Of what has a brief, a name came to something: no next one is tried.
    let mut candidates = lookups.newest_but(keys.label, |_| true);
    let next = candidates.find(|(serial, lookup)| {
        lookup.owner.netns == message.netns
            && lookup.found_nothing()
            && at.since(lookup.last_answer()) <= config.search_gap_ns
            && is_next_name(lookups, *serial, lookup, message, name, client)
    });
    next.map(|(serial, _)| (serial, QueryMatch::NextName))
}

/// Whether `name` is what the search path makes next of the name that `lookup` is about (resolv.conf(5), `search` and
/// `ndots`). Two names with the same beginning may also come from two clients of one resolver, so the less the names
/// say, the less else may be pending.
fn is_next_name(
    lookups: &ExchangeTable<Lookup>,
    serial: u64,
    lookup: &Lookup,
    message: &DnsMessage,
    name: &str,
    client: Client,
) -> bool {
    let tried = || lookup.names.iter().map(SmolStr::as_str);
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
    // A name with fewer dots than `ndots` is tried as it is only after the search path; with dots it may have been
    // tried first.
    let as_it_is = base.contains('.') && tried().any(|before| before == base);
    if name == base || as_it_is || nested(&before, &after) || nested(&after, &before) {
        return true;
    }
    let mut others = lookups.newest(TableKey::by(client));
    let alone = !others.any(|(other, lookup)| other != serial && lookup.is_pending());
    let same_socket = lookup.sent.iter().any(|sent| sent.client == message.client);
    alone && (!same_socket || lookup.names.len() > 1)
}
