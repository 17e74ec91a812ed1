//! Journeys: the traces of lookups and connections that went badly once their sandbox's network was ready, or that are
//! the node's own.
//!
//! A lookup and the connections to what it gave are one journey. A broken cluster makes thousands of them: a bucket of
//! tokens, filled in the events' own time, holds back what is too much, and the node's own may take no more than half.
//! Does not: hold back findings; metrics count all.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use sandglass_model::time::SECOND;
use sandglass_model::trace::{JourneyDetail, JourneyReason, Link, Relation, Status};
use sandglass_model::{Detail, PodIdentity, SandboxId, Span, SpanId, Timestamp, Trace, TraceId};

use crate::correlator::{Correlator, EndedSpan, Output};
use crate::timers::Timer;
use crate::traffic::attempts::{Attempt, Finished, Part, PartDetail};
use crate::traffic::owners::Party;
use crate::traffic::table::Key;
use crate::traffic::{Scope, Traffic};

/// Open journeys, and how many more there may be.
#[derive(Debug)]
pub(crate) struct Journeys {
    /// By the serial number of the lookup they begin with.
    open: BTreeMap<u64, Journey>,
    /// Complete, but what they are made of is not told yet.
    ready: Vec<Journey>,
    bucket: Bucket,
}

/// A journey that may go on.
#[derive(Debug)]
pub(crate) struct Journey {
    id: TraceId,
    party: Party,
    parts: Vec<Arc<Part>>,
    until: Timestamp,
}

/// A connection to what a lookup gave begins within this.
const HOLD_NS: u64 = SECOND;
const MAX_OPEN: usize = 256;
const MAX_PARTS: usize = 16;

#[derive(Debug)]
struct Bucket {
    /// Nanoseconds of filling that are left; a token is `each` of them.
    left: u64,
    each: u64,
    most: u64,
    filled: Timestamp,
}

impl Bucket {
    fn new(per_minute: u32) -> Bucket {
        let most = 60 * SECOND;
        Bucket {
            left: if per_minute == 0 { 0 } else { most },
            each: most / u64::from(per_minute.max(1)),
            most: if per_minute == 0 { 0 } else { most },
            filled: Timestamp(0),
        }
    }

    fn take(&mut self, now: Timestamp, keep: u64) -> bool {
        self.left = self.left.saturating_add(now.since(self.filled)).min(self.most);
        self.filled = self.filled.max(now);
        if self.left < keep.saturating_add(self.each) {
            return false;
        }
        self.left -= self.each;
        true
    }
}

impl Journeys {
    pub(crate) fn new(per_minute: u32) -> Journeys {
        Journeys {
            open: BTreeMap::new(),
            ready: Vec::new(),
            bucket: Bucket::new(per_minute),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }
}

impl Correlator {
    /// The journey that something that ended is part of: one that goes on, or, if it went badly, a new one.
    pub(crate) fn journey_of(&mut self, finished: &Finished) -> Option<TraceId> {
        if let PartDetail::Connect {
            after: Some(lookup), ..
        } = &finished.part.detail
            && let Some(journey) = self.watch.journeys.open.get_mut(lookup)
        {
            if journey.parts.len() < MAX_PARTS {
                journey.parts.push(Arc::clone(&finished.part));
            }
            return Some(journey.id);
        }
        finished.part.reason?;
        let node_keeps = match finished.party.scope() {
            Scope::Sandbox => 0,
            Scope::Node => self.watch.journeys.bucket.most / 2,
        };
        if !self.watch.journeys.bucket.take(self.now, node_keeps) {
            self.effects.outputs.push(Output::Traffic(Traffic::JourneyHeldBack));
            return None;
        }
        Some(self.open_journey(finished))
    }

    fn open_journey(&mut self, finished: &Finished) -> TraceId {
        let mut parts = Vec::with_capacity(2);
        let serial = match (&finished.part.detail, finished.what) {
            (PartDetail::Connect { after, .. }, _) => {
                parts.extend(after.and_then(|lookup| self.lookup_before(finished, lookup)));
                None
            }
            (PartDetail::Lookup { detail, .. }, Attempt::Lookup(serial)) => {
                (!detail.addresses.is_empty()).then_some(serial)
            }
            (PartDetail::Lookup { .. }, Attempt::Connect(_)) => None,
        };
        parts.push(Arc::clone(&finished.part));
        let id = TraceId::of(&[
            self.config.boot_id.as_bytes(),
            b"journey",
            &finished.party.netns.to_le_bytes(),
            &finished.part.start.0.to_le_bytes(),
            &finished.part.seed.to_le_bytes(),
        ]);
        let journey = Journey {
            id,
            party: finished.party.clone(),
            parts,
            until: self.now.plus(HOLD_NS),
        };
        let Some(serial) = serial else {
            self.watch.journeys.ready.push(journey);
            return id;
        };
        self.effects.timers.set(Timer::Journey(serial), journey.until);
        self.watch.journeys.open.insert(serial, journey);
        while self.watch.journeys.open.len() > MAX_OPEN
            && let Some((&oldest, _)) = self.watch.journeys.open.first_key_value()
        {
            self.close_journey(oldest);
        }
        id
    }

    /// The lookup that gave a connection's address, if it is over and still known.
    fn lookup_before(&self, finished: &Finished, lookup: u64) -> Option<Arc<Part>> {
        let PartDetail::Connect { detail, .. } = &finished.part.detail else {
            return None;
        };
        let given = self.watch.given.get(&(finished.party.netns, detail.remote.ip()))?;
        given.part.clone().filter(|_| given.lookup == lookup)
    }

    /// What ended was told: journeys that are complete follow.
    pub(crate) fn journey_told(&mut self, finished: &Finished) {
        for journey in std::mem::take(&mut self.watch.journeys.ready) {
            self.give_out(journey);
        }
        if let PartDetail::Connect {
            after: Some(lookup), ..
        } = &finished.part.detail
        {
            self.review_journey(*lookup);
        }
    }

    /// Closes a journey that nothing more can belong to.
    pub(crate) fn review_journey(&mut self, lookup: u64) {
        let Some(journey) = self.watch.journeys.open.get(&lookup) else {
            return;
        };
        let goes_on = self.watch.connects.newest(Key::after(lookup)).next().is_some();
        if !goes_on && journey.until <= self.now {
            self.close_journey(lookup);
        }
    }

    fn close_journey(&mut self, lookup: u64) {
        self.effects.timers.clear(Timer::Journey(lookup));
        if let Some(journey) = self.watch.journeys.open.remove(&lookup) {
            self.give_out(journey);
        }
    }

    /// Closes every journey: for the end of the input.
    pub(crate) fn close_journeys(&mut self) {
        while let Some((&oldest, _)) = self.watch.journeys.open.first_key_value() {
            self.close_journey(oldest);
        }
    }

    fn give_out(&mut self, mut journey: Journey) {
        journey.parts.sort_by_key(|part| part.start);
        let begin = journey.parts.first().map_or(self.now, |part| part.start);
        if journey.party.sandbox.is_none() {
            // Who owns its namespace may have been told while it was open.
            let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
            journey.party.sandbox = self.watch.owners.late_owner(journey.party.netns, nowhere, begin);
        }
        let sandbox = journey.party.sandbox.as_deref();
        let remembered = sandbox.and_then(|sandbox| self.memory.sandboxes.get(sandbox));
        let link = remembered
            .and_then(|sandbox| sandbox.root)
            .map(|root| root.link(Relation::Sandbox));
        let trace = Trace {
            id: journey.id,
            sandbox: sandbox.map(|sandbox| SandboxId(sandbox.to_owned())),
            identity: remembered.map_or_else(PodIdentity::default, |sandbox| sandbox.identity.clone()),
            anchor: self.anchor,
            incomplete: journey.parts.iter().any(|part| part.lost),
            closed: true,
            remote_parent: None,
            spans: spans_of(&journey, link),
        };
        for span in trace.spans.iter().rev() {
            let ended = EndedSpan::of(&trace, span);
            self.effects.outputs.push(Output::Ended(ended));
        }
        self.effects.outputs.push(Output::Closed(Arc::new(trace)));
    }
}

fn spans_of(journey: &Journey, link: Option<Link>) -> Vec<Span> {
    let parts = &journey.parts;
    let start = parts.iter().map(|part| part.start).min().unwrap_or_default();
    let end = parts.iter().map(|part| part.end).max().unwrap_or_default();
    let reason = parts
        .iter()
        .filter_map(|part| part.reason)
        .min()
        .unwrap_or(JourneyReason::Slow);
    let failed = parts
        .iter()
        .rev()
        .find(|part| part.reason == Some(JourneyReason::Failed));
    let id = |index: usize| SpanId::of(&[&journey.id.0.to_le_bytes(), &(index as u64).to_le_bytes()]);
    let mut spans = Vec::with_capacity(parts.len() + 1);
    spans.push(Span {
        id: id(0),
        parent: None,
        start,
        end: Some(end),
        status: failed.map_or(Status::Unset, |part| part.status.clone()),
        detail: Detail::Journey(Box::new(JourneyDetail {
            reason,
            target: parts.first().map_or_else(String::new, |part| target_of(part)),
            node: journey.party.sandbox.is_none(),
        })),
        events: Vec::new(),
        links: link.into_iter().collect(),
    });
    spans.extend(parts.iter().enumerate().map(|(index, part)| Span {
        id: id(index + 1),
        parent: Some(0),
        start: part.start,
        end: Some(part.end),
        status: part.status.clone(),
        detail: part.to_detail(),
        events: part.events(),
        links: Vec::new(),
    }));
    spans
}

fn target_of(part: &Part) -> String {
    match &part.detail {
        PartDetail::Lookup { detail, .. } => detail.name.clone(),
        PartDetail::Connect { detail, .. } if detail.name.is_empty() => detail.remote.to_string(),
        PartDetail::Connect { detail, .. } => detail.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_fills_in_the_events_time() {
        let mut bucket = Bucket::new(2);
        let at = |s: u64| Timestamp(s * SECOND);
        assert!(bucket.take(at(100), 0) && bucket.take(at(100), 0));
        assert!(!bucket.take(at(100), 0) && !bucket.take(at(129), 0));
        assert!(bucket.take(at(130), 0) && !bucket.take(at(130), 0));
        // Half is kept: a token fits only beside it.
        assert!(!bucket.take(at(189), 30 * SECOND) && bucket.take(at(190), 30 * SECOND));
        assert!(!bucket.take(at(190), 30 * SECOND) && bucket.take(at(190), 0));
        assert!(!Bucket::new(0).take(at(1_000), 0));
    }
}
