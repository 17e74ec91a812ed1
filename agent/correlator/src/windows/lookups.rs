//! Lookups as the DNS client service tells them: whole ones, without messages, joined by silo and name.
//!
//! A and AAAA of one name are one lookup. What ended goes the way of every lookup (`traffic/attempts.rs`): part of its sandbox's
//! trace until the network is ready, then a journey if it went badly. Bounded.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use sandglass_model::network::{Asker, Transport};
use sandglass_model::trace::{Cause, Confidence, Detail, JourneyReason, LookupDetail, LookupResult};
use sandglass_model::windows::{LookupChange, LookupStep, ObjectKey};
use sandglass_model::{ProcessKey, Timestamp};

use super::library_calls::Calls;
use crate::correlator::Correlator;
use crate::open::TraceKey;
use crate::timers::Timer;
use crate::traffic::QueryType;
use crate::traffic::attempts::{Attempt, Finished, Part, PartDetail};
use crate::traffic::lookup;
use crate::traffic::notes::{self, Note, What, type_name};
use crate::traffic::owners::Party;
use crate::traffic::watch::Given;

/// Open lookups, oldest first.
#[derive(Debug)]
pub(crate) struct Lookups {
    open: Vec<Lookup>,
    max: usize,
    calls: Calls,
}

#[derive(Debug)]
struct Lookup {
    serial: u64,
    silo: String,
    process: ProcessKey,
    name: String,
    party: Party,
    home: Option<TraceKey>,
    start: Timestamp,
    /// Types asked that have no answer yet.
    waiting: Vec<u16>,
    types: Vec<u16>,
    servers: Vec<SocketAddr>,
    addresses: Vec<IpAddr>,
    queries: u32,
    retransmissions: u32,
    timeouts: u32,
    error: Option<u16>,
    result: Option<LookupResult>,
    end: Timestamp,
    notes: Vec<Note>,
    lost: bool,
}

/// Most servers and addresses of one lookup.
const MAX_LISTED: usize = 8;
/// Most types asked in one lookup.
const MAX_TYPES: usize = 8;
const DNS_PORT: u16 = 53;
/// The node's own compartment.
const NODE: u64 = 1;

impl Lookups {
    pub(crate) fn new(max: usize) -> Lookups {
        Lookups {
            open: Vec::new(),
            max: max.clamp(1, 1_024),
            calls: Calls::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len() + self.calls.len()
    }

    /// The open lookup that a step is of. The service logs some of its steps under its own process.
    fn place(&self, step: &LookupStep) -> Option<usize> {
        let same = |lookup: &Lookup| lookup.silo == step.silo && lookup.name == step.name;
        let by_process = |lookup: &Lookup| same(lookup) && lookup.process.pid == step.process.pid;
        let found = self.open.iter().rposition(by_process);
        match step.step {
            LookupChange::Started | LookupChange::Called | LookupChange::Returned { .. } => found,
            LookupChange::Sent { .. }
            | LookupChange::Answered { .. }
            | LookupChange::TimedOut { .. }
            | LookupChange::Finished { .. } => found.or_else(|| self.open.iter().rposition(same)),
        }
    }
}

impl Lookup {
    fn detail(&self, result: Option<LookupResult>) -> LookupDetail {
        LookupDetail {
            name: self.name.clone(),
            types: self.types.iter().map(|kind| type_name(*kind)).collect(),
            servers: self.servers.clone(),
            transport: Transport::Udp,
            result,
            queries: self.queries,
            retransmissions: self.retransmissions,
            unanswered: self.timeouts,
            search_names: 0,
            truncated: false,
            addresses: self.addresses.clone(),
            backend: None,
            asker: Some(Asker {
                process: self.process,
                comm: String::new(),
            }),
            cause: None,
        }
    }

    fn asks(&mut self, kind: u16) {
        if self.types.len() < MAX_TYPES && !self.types.contains(&kind) {
            self.types.push(kind);
        }
        if self.waiting.len() < MAX_TYPES && !self.waiting.contains(&kind) {
            self.waiting.push(kind);
        }
    }

    fn take(&mut self, at: Timestamp, step: &LookupStep) {
        self.end = self.end.max(at);
        match &step.step {
            LookupChange::Started | LookupChange::Called => {}
            LookupChange::Sent { server } => {
                let again = self.queries > 0 && self.timeouts > 0;
                self.queries = self.queries.saturating_add(1);
                self.retransmissions = self.retransmissions.saturating_add(u32::from(again));
                let Ok(ip) = server.parse::<IpAddr>() else {
                    return;
                };
                let server = SocketAddr::new(ip, DNS_PORT);
                if self.servers.len() < MAX_LISTED && !self.servers.contains(&server) {
                    self.servers.push(server);
                }
                let what = What::Query {
                    name: self.name.as_str().into(),
                    kind: step.kind,
                    id: 0,
                    server,
                    transport: Transport::Udp,
                    again,
                };
                notes::add(&mut self.notes, at, what);
            }
            LookupChange::Answered { status, .. } => {
                let rcode = match result_of(*status) {
                    LookupResult::Rcode(rcode) => rcode,
                    LookupResult::Unanswered => return,
                };
                if !LookupResult::Rcode(rcode).is_answer() {
                    self.error = Some(rcode);
                }
                let what = What::Answer {
                    kind: step.kind,
                    id: 0,
                    rcode,
                    truncated: false,
                    late: false,
                };
                notes::add(&mut self.notes, at, what);
            }
            LookupChange::TimedOut { .. } => self.timeouts = self.timeouts.saturating_add(1),
            // The end of all that was asked, should the service not have said so.
            LookupChange::Returned { .. } if self.result.is_some() && self.waiting.is_empty() => {}
            LookupChange::Finished { status, addresses } | LookupChange::Returned { status, addresses } => {
                self.waiting.retain(|kind| *kind != step.kind && step.kind != 0);
                for address in addresses {
                    if self.addresses.len() < MAX_LISTED && !self.addresses.contains(address) {
                        self.addresses.push(*address);
                    }
                }
                let result = result_of(*status);
                // What named something stands before what did not.
                if self.result != Some(LookupResult::Rcode(0)) {
                    self.result = Some(result);
                }
            }
        }
    }

    fn reason(&self, result: LookupResult, slow_ns: u64) -> Option<JourneyReason> {
        if !result.is_answer() {
            Some(JourneyReason::Failed)
        } else if self.timeouts > 0 || self.retransmissions > 0 {
            Some(JourneyReason::Retried)
        } else {
            (self.end.since(self.start) > slow_ns).then_some(JourneyReason::Slow)
        }
    }

    fn cause(&self, result: LookupResult) -> Option<Cause> {
        let (cause, confidence, evidence) = if self.timeouts > 0 || result == LookupResult::Unanswered {
            let times = self.timeouts.max(1);
            let evidence = format!("the DNS client gave up waiting for a server, {times} times");
            ("dns_server_silent", Confidence::Likely, evidence)
        } else if let (Some(rcode), false) = (self.error, result.is_answer()) {
            let evidence = format!("a server answered with {}", LookupResult::Rcode(rcode).as_str());
            ("dns_server_error", Confidence::Certain, evidence)
        } else if result.is_answer() && self.queries > 0 {
            (
                "dns_server_slow",
                Confidence::Possible,
                "nothing was asked twice".to_owned(),
            )
        } else {
            return None;
        };
        Some(Cause {
            cause: cause.to_owned(),
            confidence,
            evidence: vec![evidence],
        })
    }
}

/// Of a Win32, Winsock or DNS status (winerror.h): `DNS_ERROR_RCODE_*` begin at 9001.
fn result_of(status: u32) -> LookupResult {
    match status {
        // No records of the type: there is such a name.
        0 | 9_501 | 11_004 => LookupResult::Rcode(0),
        9_001..=9_005 => LookupResult::Rcode((status - 9_000) as u16),
        11_001 => LookupResult::Rcode(3),
        // Timeout, cancelled, try again.
        1_460 | 1_223 | 9_560 | 10_060 | 11_002 => LookupResult::Unanswered,
        _ => LookupResult::Rcode(OTHER),
    }
}

/// A response code that nobody gives: any other status.
const OTHER: u16 = 0xfff;

impl Correlator {
    pub(crate) fn windows_lookup_seen(&mut self, at: Timestamp, step: LookupStep) {
        let place = self.windows.lookups.place(&step);
        if let (LookupChange::Called, None) = (&step.step, place) {
            return self.windows.lookups.calls.begin(at, &step);
        }
        if let LookupChange::Returned { .. } = step.step {
            self.windows.lookups.calls.end(&step);
        }
        let place = match (place, &step.step) {
            (Some(place), _) => place,
            // It found the answer without the service: in a file, or the name was an address.
            (None, LookupChange::Called | LookupChange::Returned { .. }) => return,
            (None, LookupChange::Started | LookupChange::Sent { .. }) => self.open_windows_lookup(at, &step),
            (None, LookupChange::Answered { .. } | LookupChange::TimedOut { .. } | LookupChange::Finished { .. }) => {
                self.effects.counters.orphan += 1;
                return;
            }
        };
        if let LookupChange::Started = step.step {
            self.process_of_silo(at, step.process.pid, &step.silo);
        }
        let Some(lookup) = self.windows.lookups.open.get_mut(place) else {
            return;
        };
        if let LookupChange::Started | LookupChange::Sent { .. } = step.step {
            lookup.asks(step.kind);
        }
        lookup.take(at, &step);
        let (serial, home) = (lookup.serial, lookup.home);
        let finished = lookup.result.is_some() && lookup.waiting.is_empty();
        let due = if finished {
            // The other type may be asked next.
            at.plus(self.config.traffic.search_gap_ns)
        } else {
            lookup
                .start
                .plus(self.config.traffic.lookup_deadline_ns.saturating_mul(3))
        };
        self.effects.timers.set(Timer::Lookup(serial), due);
        if let Some(key) = home {
            let detail = Detail::Lookup(Box::new(lookup.detail(None)));
            let events = notes::events(&lookup.notes, lookup.start, None);
            self.attempt_changed(key, Attempt::Lookup(serial), detail, events);
        }
    }

    fn open_windows_lookup(&mut self, at: Timestamp, step: &LookupStep) -> usize {
        while self.windows.lookups.open.len() >= self.windows.lookups.max {
            self.effects.counters.evicted_lookups += 1;
            let oldest = self.windows.lookups.open[0].serial;
            self.give_up_windows_lookup(oldest);
        }
        let party = self.party_of_silo(&step.silo);
        let serial = self.watch.next_serial();
        let home = self.home_of(&party);
        let begun = home.and_then(|key| self.traces.get(key)).map(|open| open.trace.start());
        let called = self.windows.lookups.calls.begun(at, step);
        let start = called
            .filter(|called| begun.is_none_or(|begun| begun <= *called))
            .unwrap_or(at);
        let lookup = Lookup {
            serial,
            silo: step.silo.clone(),
            process: step.process,
            name: step.name.clone(),
            party,
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
            lost: self.watch.is_lossy(at),
        };
        let detail = lookup.detail(None);
        self.windows.lookups.open.push(lookup);
        if let Some(key) = home {
            self.attempt_began(key, start, Attempt::Lookup(serial), Detail::Lookup(Box::new(detail)));
        }
        self.windows.lookups.open.len() - 1
    }

    /// Whose lookups a silo's are; without a silo they are the node's.
    fn party_of_silo(&self, silo: &str) -> Party {
        if silo.is_empty() {
            return Party {
                netns: NODE,
                sandbox: None,
            };
        }
        let number = self.windows.keys.owner(&ObjectKey::Silo(silo.to_owned()));
        let sandbox = number.and_then(|number| self.windows.sandboxes.get(&number));
        Party {
            netns: sandbox.and_then(|sandbox| sandbox.compartment).map_or(0, u64::from),
            sandbox: sandbox.map(|sandbox| sandbox.container.as_str().into()),
        }
    }

    /// A lookup is over, if it is one of these.
    pub(crate) fn windows_lookup_over(&mut self, serial: u64) -> bool {
        let Some(place) = self
            .windows
            .lookups
            .open
            .iter()
            .position(|lookup| lookup.serial == serial)
        else {
            return false;
        };
        let mut lookup = self.windows.lookups.open.remove(place);
        let result = lookup.result.unwrap_or(LookupResult::Unanswered);
        if lookup.result.is_none() {
            lookup.end = lookup.end.max(self.now);
            lookup.lost = true;
        }
        let mut detail = Box::new(lookup.detail(Some(result)));
        let reason = lookup.reason(result, self.config.traffic.slow_lookup_ns);
        detail.cause = reason.and_then(|_| lookup.cause(result));
        let asked = lookup
            .types
            .iter()
            .map(|kind| (QueryType::of(*kind), Transport::Udp, 1))
            .collect();
        let addresses = detail.addresses.clone();
        let part = Arc::new(Part {
            start: lookup.start,
            end: lookup.end,
            status: lookup::status(&detail.name, result),
            reason,
            detail: PartDetail::Lookup { detail, asked },
            notes: lookup.notes,
            lost: lookup.lost,
            seed: serial,
        });
        if lookup.party.netns != 0 {
            for address in addresses {
                let given = Given {
                    lookup: serial,
                    name: lookup.name.as_str().into(),
                    part: Some(Arc::clone(&part)),
                };
                self.watch
                    .given
                    .insert((lookup.party.netns, address.to_canonical()), given, self.now);
            }
        }
        let finished = Finished {
            party: lookup.party,
            what: Attempt::Lookup(serial),
            part,
        };
        self.attempt_ended(finished, lookup.home);
        true
    }

    /// The end of the input.
    pub(crate) fn finish_lookups(&mut self) {
        while let Some(lookup) = self.windows.lookups.open.first() {
            let serial = lookup.serial;
            if lookup.result.is_some() {
                self.effects.timers.clear(Timer::Lookup(serial));
                self.windows_lookup_over(serial);
            } else {
                self.give_up_windows_lookup(serial);
            }
        }
    }

    /// Nobody knows how it would have ended.
    fn give_up_windows_lookup(&mut self, serial: u64) {
        self.effects.timers.clear(Timer::Lookup(serial));
        let open = &mut self.windows.lookups.open;
        if let Some(place) = open.iter().position(|lookup| lookup.serial == serial) {
            let lookup = open.remove(place);
            self.lose_attempt(Attempt::Lookup(serial), lookup.home);
        }
    }
}
