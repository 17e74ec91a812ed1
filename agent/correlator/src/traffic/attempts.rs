//! What becomes of lookups and connections: part of their sandbox's trace until its network is ready, then a journey if
//! they went badly, and in every case a finding for metrics.
//!
//! Whose namespace it is may be told only after the first lookup or connection in it has begun. What is open then is
//! asked about again, at once and at its end. What ended before stays the node's: its finding was told.
//! Does not: decide when a network is ready (`sandboxes/readiness.rs`), or what is bad (`causes.rs`).

use std::sync::Arc;

use sandglass_model::network::Transport;
use sandglass_model::trace::{ConnectDetail, Detail, JourneyReason, LookupDetail, SpanEvent, Status};
use sandglass_model::{Timestamp, TraceId};

use crate::correlator::{Correlator, Output};
use crate::open::TraceKey;
use crate::timers::Timer;
use crate::traffic::lookup::Lookup;
use crate::traffic::notes::{self, Note};
use crate::traffic::owners::Party;
use crate::traffic::{ConnectEnded, LookupEnded, QueryType, Traffic};

/// Names an open lookup or connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    Lookup(u64),
    Connect(u64),
}

/// A lookup or connection that is over.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) start: Timestamp,
    pub(crate) end: Timestamp,
    pub(crate) status: Status,
    /// Why it is bad, if it is.
    pub(crate) reason: Option<JourneyReason>,
    pub(crate) detail: PartDetail,
    pub(crate) notes: Vec<Note>,
    /// Records were lost while it was open.
    pub(crate) lost: bool,
    /// Tells it from others that began at the same time.
    pub(crate) seed: u64,
}

/// Which of both it is.
#[derive(Clone, Debug)]
pub(crate) enum PartDetail {
    Lookup {
        detail: Box<LookupDetail>,
        asked: Vec<(QueryType, Transport, u32)>,
    },
    Connect {
        detail: Box<ConnectDetail>,
        /// The lookup that gave the address.
        after: Option<u64>,
    },
}

impl Part {
    /// It shows that the network works.
    pub(crate) fn works(&self) -> bool {
        match &self.detail {
            PartDetail::Lookup { detail, .. } => detail.result.is_some_and(|result| result.is_answer()),
            PartDetail::Connect { detail, .. } => detail.failure.is_none(),
        }
    }

    pub(crate) fn is_connect(&self) -> bool {
        matches!(self.detail, PartDetail::Connect { .. })
    }

    pub(crate) fn to_detail(&self) -> Detail {
        match &self.detail {
            PartDetail::Lookup { detail, .. } => Detail::Lookup(detail.clone()),
            PartDetail::Connect { detail, .. } => Detail::Connect(detail.clone()),
        }
    }

    pub(crate) fn events(&self) -> Vec<SpanEvent> {
        notes::events(&self.notes, self.start, None)
    }
}

/// One that is over, and whose it was.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    pub(crate) party: Party,
    pub(crate) what: Attempt,
    pub(crate) part: Arc<Part>,
}

impl Correlator {
    /// The trace that a sandbox's lookups and connections belong to until its network is ready.
    pub(crate) fn home_of(&self, party: &Party) -> Option<TraceKey> {
        let sandbox = party.sandbox.as_deref()?;
        let key = *self.waiting.get(sandbox).or_else(|| self.creations.get(sandbox))?;
        let creation = self.traces.get(key)?.creation.as_ref()?;
        creation.readiness.watched.then_some(key)
    }

    /// A network namespace was nobody's until now: what is open in it has found its sandbox.
    pub(crate) fn find_owners(&mut self, netns: u64) {
        let lookups = self.watch.lookups.iter();
        let lookups = lookups.filter(|(_, lookup)| lookup.party.is_nobodys(netns));
        for serial in lookups.map(|(serial, _)| serial).collect::<Vec<_>>() {
            self.find_owner(Attempt::Lookup(serial));
            self.lookup_changed(serial);
        }
        let connects = self.watch.connects.iter();
        let connects = connects.filter(|(_, connect)| connect.party.is_nobodys(netns));
        for serial in connects.map(|(serial, _)| serial).collect::<Vec<_>>() {
            self.find_owner(Attempt::Connect(serial));
            self.connect_changed(serial);
        }
    }

    /// Asks again whose an open lookup or connection is that was nobody's when it began.
    pub(crate) fn find_owner(&mut self, what: Attempt) {
        let found = match what {
            Attempt::Lookup(serial) => self.watch.lookups.get(serial).and_then(|lookup| {
                let client = lookup.sent.first().map(|sent| sent.client.ip())?;
                Some((&lookup.party, client, lookup.start))
            }),
            Attempt::Connect(serial) => {
                let connect = self.watch.connects.get(serial);
                connect.map(|connect| (&connect.party, connect.local.ip(), connect.start))
            }
        };
        let Some((party, address, start)) = found.filter(|(party, ..)| party.sandbox.is_none()) else {
            return;
        };
        let netns = party.netns;
        let Some(sandbox) = self.watch.owners.late_owner(netns, address, start) else {
            return;
        };
        self.watch.owners.own_address(address, &sandbox, self.now);
        let party = Party {
            netns,
            sandbox: Some(sandbox),
        };
        let home = self.home_of(&party);
        let detail = match what {
            Attempt::Lookup(serial) => self.watch.lookups.get_mut(serial).map(|lookup| {
                (lookup.party, lookup.home) = (party, home);
                Detail::Lookup(Box::new(lookup.detail(None)))
            }),
            Attempt::Connect(serial) => self.watch.connects.get_mut(serial).map(|connect| {
                (connect.party, connect.home) = (party, home);
                Detail::Connect(Box::new(connect.detail()))
            }),
        };
        if let (Some(key), Some(detail)) = (home, detail) {
            self.attempt_began(key, start, what, detail);
        }
    }

    pub(crate) fn attempt_began(&mut self, key: TraceKey, at: Timestamp, what: Attempt, detail: Detail) {
        let Some(open) = self.traces.get_mut(key) else {
            return;
        };
        let room = open
            .creation
            .as_ref()
            .is_some_and(|creation| creation.readiness.has_room());
        // What is left out is counted, and nothing of it is lost: the trace is no less complete.
        let span = if room { open.begin(Some(0), at, detail) } else { None };
        if room && span.is_none() {
            open.trace.incomplete = true;
            self.effects.counters.evicted_spans += 1;
        }
        if let Some(creation) = &mut open.creation {
            creation.readiness.began(what, span, at);
        }
        open.touch(&mut self.effects);
    }

    /// Shows an open attempt as it is now.
    pub(crate) fn attempt_changed(&mut self, key: TraceKey, what: Attempt, detail: Detail, events: Vec<SpanEvent>) {
        let Some(open) = self.traces.get_mut(key) else {
            return;
        };
        let span = open
            .creation
            .as_ref()
            .and_then(|creation| creation.readiness.span(what));
        if let Some(span) = span {
            open.trace.spans[span].detail = detail;
            open.trace.spans[span].events = events;
            open.touch(&mut self.effects);
        }
    }

    pub(crate) fn attempt_ended(&mut self, finished: Finished, home: Option<TraceKey>) {
        let Some(open) = home.and_then(|key| self.traces.get_mut(key)) else {
            return self.release(finished);
        };
        let key = open.key;
        let Some(creation) = &mut open.creation else {
            return self.release(finished);
        };
        let (id, part) = (open.trace.id, Arc::clone(&finished.part));
        let wanted = creation.readiness.is_wanted(&finished);
        let shown = wanted.then(|| open.begin(Some(0), part.start, part.to_detail()));
        let Some(creation) = &mut open.creation else {
            return;
        };
        if let Some(span) = shown.flatten() {
            creation.readiness.show_late(&finished, span);
        }
        if let Some(span) = creation.readiness.span(finished.what) {
            let span = &mut open.trace.spans[span];
            span.end = Some(part.end.max(span.start));
            span.status = part.status.clone();
            span.detail = part.to_detail();
            span.events = notes::events(&part.notes, span.start, None);
        }
        // Until something works all belongs to the time before; after that it is open what does.
        let first = !creation.readiness.works();
        let held = creation.readiness.ended(&finished, first);
        open.touch(&mut self.effects);
        if !held {
            self.tell(&finished, Some(id));
        }
        self.review_network(key);
    }

    /// Taken out for want of room: nobody knows how it would have ended.
    pub(crate) fn give_up(&mut self, what: Attempt) {
        let (home, after) = match what {
            Attempt::Lookup(serial) => {
                self.effects.timers.clear(Timer::Lookup(serial));
                let lookup = self.watch.take_lookup(serial, self.now);
                (lookup.and_then(|lookup| lookup.home), None)
            }
            Attempt::Connect(serial) => {
                self.effects.timers.clear(Timer::Connect(serial));
                let connect = self.watch.connects.remove(serial);
                let after = connect.as_ref().and_then(|connect| connect.lookup.as_ref());
                let after = after.map(|(lookup, _)| *lookup);
                (connect.and_then(|connect| connect.home), after)
            }
        };
        self.lose_attempt(what, home);
        if let Some(lookup) = after {
            self.review_journey(lookup);
        }
    }

    /// Nothing more will be heard of an attempt that is shown in this trace.
    pub(crate) fn lose_attempt(&mut self, what: Attempt, home: Option<TraceKey>) {
        let now = self.now;
        if let Some(open) = home.and_then(|key| self.traces.get_mut(key)) {
            let key = open.key;
            open.trace.incomplete = true;
            if let Some(creation) = &mut open.creation
                && let Some(span) = creation.readiness.lose(what, now)
            {
                let span = &mut open.trace.spans[span];
                span.end = Some(now.max(span.start));
            }
            open.touch(&mut self.effects);
            self.review_network(key);
        }
    }

    /// Ended outside of a creation's trace: a journey if it went badly, and a finding.
    pub(crate) fn release(&mut self, finished: Finished) {
        let trace = self.journey_of(&finished);
        self.tell(&finished, trace);
        self.journey_told(&finished);
    }

    /// Gives out what is open at the end of the input: what stood or was answered counts, of the rest nobody knows.
    pub(crate) fn finish_traffic(&mut self) {
        let lookups: Vec<u64> = self.watch.lookups.serials().collect();
        for serial in lookups {
            let waits = self.watch.lookups.get(serial).is_some_and(Lookup::is_waiting);
            self.effects.timers.clear(Timer::Lookup(serial));
            if waits {
                self.give_up(Attempt::Lookup(serial));
            } else {
                self.lookup_over(serial);
            }
        }
        let connects: Vec<u64> = self.watch.connects.serials().collect();
        for serial in connects {
            let ended = self
                .watch
                .connects
                .get(serial)
                .is_some_and(|connect| connect.outcome.is_some());
            if ended {
                self.connect_over(serial);
            } else {
                self.give_up(Attempt::Connect(serial));
            }
        }
    }

    /// Gives the finding out.
    pub(crate) fn tell(&mut self, finished: &Finished, trace: Option<TraceId>) {
        let Finished { party, part, .. } = finished;
        let (scope, start, end) = (party.scope(), part.start, part.end);
        let traffic = match &part.detail {
            PartDetail::Lookup { detail, asked } => Traffic::Lookup(Box::new(LookupEnded {
                scope,
                start,
                end,
                detail: LookupDetail::clone(detail),
                asked: asked.clone(),
                trace,
            })),
            PartDetail::Connect { detail, .. } => Traffic::Connect(Box::new(ConnectEnded {
                scope,
                start,
                end,
                detail: ConnectDetail::clone(detail),
                trace,
            })),
        };
        self.effects.outputs.push(Output::Traffic(traffic));
    }
}
