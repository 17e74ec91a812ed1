//! The node's traffic over the last hour: lookups, connections, conntrack and drops in slots of ten seconds, the slowest
//! names, the reasons of drops. Behind `/api/v1/network` and the page's network view.
//!
//! Fed with every [`Traffic`] finding, good or bad; bounded whatever comes: slots by time, names, reasons and causes by
//! number. Names of lookups are here and in traces, and never in a metric. Does not: keep single lookups; bad ones are
//! traces.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_correlator::traffic::{ConnectEnded, LookupEnded, Scope, Traffic};
use sandglass_model::network::{ConntrackCounts, FlowChange};
use sandglass_model::trace::{Cause, LookupResult};
use sandglass_model::{TraceId, registry};
use serde::Serialize;

use super::Entry;
use super::query::quantile;
use super::row::{Row, as_text};
use super::spread::Spread;
use super::traffic::NetworkState;

/// What has been seen, by time.
#[derive(Debug, Default)]
pub(super) struct NetworkBook {
    slots: BTreeMap<u64, Slot>,
    /// Names of the running half hour, and of the one before.
    names: [Names; 2],
    half_hour: u64,
    drops: BTreeMap<(&'static str, &'static str, String), u64>,
    causes: BTreeMap<&'static str, u64>,
    held_back: u64,
    table: Table,
    /// Counts what was taken, so that a reader can tell that something has changed.
    revision: u64,
}

/// Ten seconds.
#[derive(Clone, Debug, Default)]
struct Slot {
    lookups: BTreeMap<&'static str, u32>,
    lookup_times: Spread,
    retransmissions: u32,
    unanswered: u32,
    search_names: u32,
    connects: BTreeMap<&'static str, u32>,
    connect_times: Spread,
    flows_new: u32,
    flows_destroyed: u32,
    translated: u32,
    conntrack: Growth,
    /// Fill of the node's table when it was last counted.
    entries: Option<u64>,
    drops: u32,
}

/// How much conntrack's counters grew, all tables together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Growth {
    insert_failed: u64,
    drop: u64,
    early_drop: u64,
    clash_resolve: u64,
    search_restart: u64,
}

/// The node's conntrack table, as last counted.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Table {
    entries: u64,
    limit: u64,
    known: bool,
}

/// Lookups by name.
#[derive(Debug, Default)]
struct Names {
    by_name: BTreeMap<String, Name>,
    /// No name in a full table has a smaller maximum: what is faster need not be looked for.
    floor_ns: u64,
}

#[derive(Clone, Debug, Default)]
struct Name {
    count: u64,
    failed: u64,
    max_ns: u64,
    times: Spread,
    /// The trace in which the slowest of them can be seen.
    trace: Option<TraceId>,
}

/// The answer of `/api/v1/network`.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkView {
    /// Time of the answer.
    #[serde(serialize_with = "as_text")]
    pub now_unix_ns: u64,
    /// End of the last slot: the present, but for a replay.
    #[serde(serialize_with = "as_text")]
    pub until_unix_ns: u64,
    /// Length of a slot.
    pub slot_ns: u64,
    /// Slots a window has; of those in which nothing happened none is listed.
    pub window_slots: u64,
    /// The slots, oldest first.
    pub slots: Vec<SlotView>,
    /// The names whose lookups took longest within the last half hour to hour, slowest first.
    pub names: Vec<NameView>,
    /// Dropped packets since the start, most first.
    pub drops: Vec<DropView>,
    /// Why lookups and connections went badly, since the start, most first.
    pub causes: Vec<CauseView>,
    /// The node's conntrack table; `null` when it was never counted.
    pub conntrack: Option<TableView>,
    /// How the network of the sandboxes proved usable, of the traces that are kept.
    pub readiness: Readiness,
    /// Journeys that are kept, newest first.
    pub journeys: Vec<Row>,
    /// Bad lookups and connections that became no journey because there were too many, since the start.
    pub journeys_held_back: u64,
}

/// Ten seconds of traffic.
#[derive(Clone, Debug, Serialize)]
pub struct SlotView {
    /// Its begin.
    #[serde(serialize_with = "as_text")]
    pub at_unix_ns: u64,
    /// Lookups that ended, by response code (`timeout`: without an answer).
    pub lookups: BTreeMap<&'static str, u32>,
    /// Median of their times.
    pub lookup_p50_ns: Option<u64>,
    /// 95th percentile of their times.
    pub lookup_p95_ns: Option<u64>,
    /// DNS questions sent again.
    pub retransmissions: u32,
    /// DNS questions that never got an answer.
    pub unanswered: u32,
    /// DNS names asked because of the search path.
    pub search_names: u32,
    /// Connections that stood or had failed, by result.
    pub connects: BTreeMap<&'static str, u32>,
    /// 95th percentile of their times.
    pub connect_p95_ns: Option<u64>,
    /// Conntrack entries that came.
    pub flows_new: u32,
    /// Conntrack entries that went.
    pub flows_destroyed: u32,
    /// Of those that came, translated ones.
    pub translated: u32,
    /// Entries in the node's table; absent when it was not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conntrack_entries: Option<u64>,
    /// Growth of conntrack's counters.
    #[serde(flatten)]
    growth: Growth,
    /// DNS packets and SYNs the kernel dropped.
    pub drops: u32,
}

/// One name.
#[derive(Clone, Debug, Serialize)]
pub struct NameView {
    /// The name, without what the search path added.
    pub name: String,
    /// Lookups.
    pub count: u64,
    /// Of them, failed ones.
    pub failed: u64,
    /// 95th percentile of their times.
    pub p95_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The trace in which that can be seen, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<TraceId>,
}

/// Dropped packets of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DropView {
    /// `sandbox` or `node`.
    pub scope: &'static str,
    /// `dns` or `tcp_syn`.
    pub packet: &'static str,
    /// The kernel's reason.
    pub reason: String,
    /// How many.
    pub count: u64,
}

/// One cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CauseView {
    /// One of the registry's causes.
    pub cause: &'static str,
    /// How many lookups and connections.
    pub count: u64,
}

/// The node's conntrack table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TableView {
    /// Entries in it.
    pub entries: u64,
    /// Most it takes; 0 when not known.
    pub limit: u64,
}

/// How the network of sandboxes proved usable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// Sandboxes whose network proved usable.
    pub ready: usize,
    /// Sandboxes that tried and failed.
    pub failed: usize,
    /// Sandboxes whose first traffic is waited for.
    pub waiting: usize,
    /// Median of the time from the first query or SYN on.
    pub wait_p50_ns: Option<u64>,
    /// 95th percentile of it.
    pub wait_p95_ns: Option<u64>,
}

impl NetworkBook {
    pub(super) fn take(&mut self, traffic: &Traffic, unix_ns: u64) {
        self.revision += 1;
        match traffic {
            Traffic::Lookup(lookup) => self.lookup(lookup, unix_ns),
            Traffic::Connect(connect) => self.connect(connect, unix_ns),
            Traffic::Flow { change, nat, .. } => {
                let slot = self.slot(unix_ns);
                match change {
                    FlowChange::New => {
                        slot.flows_new += 1;
                        slot.translated += u32::from(nat.is_some());
                    }
                    FlowChange::Destroyed => slot.flows_destroyed += 1,
                }
            }
            Traffic::Conntrack { scope, counts } => self.conntrack(*scope, counts, unix_ns),
            Traffic::Dropped { scope, packet, reason } => {
                self.slot(unix_ns).drops += 1;
                let key = (scope.as_str(), packet.as_str(), reason.to_string());
                let room = self.drops.len() < MAX_REASONS;
                let key = if room || self.drops.contains_key(&key) {
                    key
                } else {
                    (key.0, key.1, "other".to_owned())
                };
                *self.drops.entry(key).or_default() += 1;
            }
            Traffic::JourneyHeldBack => self.held_back += 1,
            // Not of a network's traffic: metrics count them.
            Traffic::Activity(_) | Traffic::Endpoints { .. } | Traffic::HnsRestarted => {}
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// What it says of the hour before `until`, or before the newest it knows.
    pub(super) fn view(&self, now_unix_ns: u64, until: Option<u64>) -> NetworkView {
        let newest = self.slots.keys().next_back().copied().unwrap_or_default();
        let last = until.map_or(newest, |until| until / SLOT_NS);
        let window = last.saturating_sub(SLOTS - 1)..=last;
        let mut drops: Vec<DropView> = self.drops.iter().map(drop_view).collect();
        drops.sort_by_key(|drop| std::cmp::Reverse(drop.count));
        let causes = self.causes.iter().map(|(&cause, &count)| CauseView { cause, count });
        let mut causes: Vec<CauseView> = causes.collect();
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.count));
        let Table { entries, limit, known } = self.table;
        NetworkView {
            now_unix_ns,
            until_unix_ns: (last + 1) * SLOT_NS,
            slot_ns: SLOT_NS,
            window_slots: SLOTS,
            slots: self.slots.range(window).map(|(at, slot)| slot.view(*at)).collect(),
            names: self.slowest(),
            drops,
            causes,
            conntrack: known.then_some(TableView { entries, limit }),
            readiness: Readiness::default(),
            journeys: Vec::new(),
            journeys_held_back: self.held_back,
        }
    }

    fn lookup(&mut self, ended: &LookupEnded, unix_ns: u64) {
        let (detail, ns) = (&ended.detail, ended.end.since(ended.start));
        let result = detail.result.unwrap_or(LookupResult::Unanswered);
        let slot = self.slot(unix_ns);
        *slot.lookups.entry(result.as_str()).or_default() += 1;
        slot.lookup_times.add(ns);
        slot.retransmissions = slot.retransmissions.saturating_add(detail.retransmissions);
        slot.unanswered = slot.unanswered.saturating_add(detail.unanswered);
        slot.search_names = slot.search_names.saturating_add(detail.search_names);
        self.cause(detail.cause.as_ref());
        self.turn(unix_ns);
        self.names[0].add(&detail.name, ns, !result.is_answer(), ended.trace);
    }

    fn connect(&mut self, ended: &ConnectEnded, unix_ns: u64) {
        let result = ended.detail.failure.map_or("established", |failure| failure.as_str());
        let slot = self.slot(unix_ns);
        *slot.connects.entry(result).or_default() += 1;
        slot.connect_times.add(ended.end.since(ended.start));
        self.cause(ended.detail.cause.as_ref());
    }

    fn conntrack(&mut self, scope: Scope, counts: &ConntrackCounts, unix_ns: u64) {
        let slot = self.slot(unix_ns);
        let growth = &mut slot.conntrack;
        growth.insert_failed += counts.insert_failed;
        growth.drop += counts.drop;
        growth.early_drop += counts.early_drop;
        growth.clash_resolve += counts.clash_resolve;
        growth.search_restart += counts.search_restart;
        if scope == Scope::Node {
            slot.entries = Some(counts.entries);
            self.table = Table {
                entries: counts.entries,
                limit: counts.limit,
                known: true,
            };
        }
    }

    fn cause(&mut self, cause: Option<&Cause>) {
        let known = |cause: &Cause| registry::CAUSES.iter().find(|known| **known == cause.cause);
        if let Some(&cause) = cause.and_then(known) {
            *self.causes.entry(cause).or_default() += 1;
        }
    }

    /// The slot of a time.
    fn slot(&mut self, unix_ns: u64) -> &mut Slot {
        let at = unix_ns / SLOT_NS;
        if !self.slots.contains_key(&at) {
            let newest = self.slots.keys().next_back().copied().unwrap_or_default().max(at);
            if newest > at + SLOTS {
                // The clock was set back: what lies ahead would stay for ever.
                self.slots.clear();
            } else {
                self.slots = self.slots.split_off(&newest.saturating_sub(SLOTS));
            }
        }
        self.slots.entry(at).or_default()
    }

    /// Begins a new table of names every half hour.
    fn turn(&mut self, unix_ns: u64) {
        let half_hour = unix_ns / (SLOT_NS * SLOTS / 2);
        if half_hour > self.half_hour {
            let next = half_hour == self.half_hour + 1;
            let old = std::mem::take(&mut self.names[0]);
            self.names[1] = if next { old } else { Names::default() };
            self.half_hour = half_hour;
        }
    }

    fn slowest(&self) -> Vec<NameView> {
        let mut merged: BTreeMap<&str, Name> = BTreeMap::new();
        for (name, seen) in self.names.iter().flat_map(|names| &names.by_name) {
            merged.entry(name).or_default().merge(seen);
        }
        let mut views: Vec<NameView> = merged
            .into_iter()
            .map(|(name, seen)| NameView {
                name: name.to_owned(),
                count: seen.count,
                failed: seen.failed,
                p95_ns: seen.times.quantile(95).unwrap_or_default().min(seen.max_ns),
                max_ns: seen.max_ns,
                trace_id: seen.trace,
            })
            .collect();
        views.sort_by(|one, other| (other.p95_ns, other.count, &one.name).cmp(&(one.p95_ns, one.count, &other.name)));
        views.truncate(SHOWN_NAMES);
        views
    }
}

impl Slot {
    fn view(&self, at: u64) -> SlotView {
        SlotView {
            at_unix_ns: at * SLOT_NS,
            lookups: self.lookups.clone(),
            lookup_p50_ns: self.lookup_times.quantile(50),
            lookup_p95_ns: self.lookup_times.quantile(95),
            retransmissions: self.retransmissions,
            unanswered: self.unanswered,
            search_names: self.search_names,
            connects: self.connects.clone(),
            connect_p95_ns: self.connect_times.quantile(95),
            flows_new: self.flows_new,
            flows_destroyed: self.flows_destroyed,
            translated: self.translated,
            conntrack_entries: self.entries,
            growth: self.conntrack,
            drops: self.drops,
        }
    }
}

impl Names {
    fn add(&mut self, name: &str, ns: u64, failed: bool, trace: Option<TraceId>) {
        if let Some(known) = self.by_name.get_mut(name) {
            known.add(ns, failed, trace);
            return;
        }
        if self.by_name.len() >= MAX_NAMES {
            if ns <= self.floor_ns {
                return;
            }
            let fastest = self.by_name.iter().min_by_key(|(_, seen)| seen.max_ns);
            let Some((victim, floor_ns)) = fastest.map(|(name, seen)| (name.clone(), seen.max_ns)) else {
                return;
            };
            self.floor_ns = floor_ns;
            if ns <= floor_ns {
                return;
            }
            self.by_name.remove(&victim);
        }
        let mut seen = Name::default();
        seen.add(ns, failed, trace);
        self.by_name.insert(name.chars().take(MAX_NAME_CHARS).collect(), seen);
    }
}

impl Name {
    fn add(&mut self, ns: u64, failed: bool, trace: Option<TraceId>) {
        self.count += 1;
        self.failed += u64::from(failed);
        self.times.add(ns);
        if ns >= self.max_ns {
            self.max_ns = ns;
            self.trace = trace.or(self.trace);
        }
    }

    fn merge(&mut self, other: &Name) {
        self.count += other.count;
        self.failed += other.failed;
        self.times.merge(&other.times);
        if other.max_ns >= self.max_ns {
            self.max_ns = other.max_ns;
            self.trace = other.trace.or(self.trace);
        }
    }
}

/// How the networks of the kept sandboxes proved usable.
pub(super) fn readiness(entries: &[Arc<Entry>], unix_ns: u64) -> Readiness {
    let mut readiness = Readiness::default();
    let mut waits = Vec::new();
    for network in entries
        .iter()
        .filter_map(|entry| entry.with_row(unix_ns, |row| row.network))
    {
        match network.state {
            NetworkState::Waiting => readiness.waiting += 1,
            NetworkState::Failed => readiness.failed += 1,
            NetworkState::Ready => {
                readiness.ready += 1;
                waits.extend(network.wait_ns);
            }
        }
    }
    waits.sort_unstable();
    readiness.wait_p50_ns = quantile(&waits, 50);
    readiness.wait_p95_ns = quantile(&waits, 95);
    readiness
}

fn drop_view((key, count): (&(&'static str, &'static str, String), &u64)) -> DropView {
    DropView {
        scope: key.0,
        packet: key.1,
        reason: key.2.clone(),
        count: *count,
    }
}

/// Length of a slot.
const SLOT_NS: u64 = 10_000_000_000;
/// An hour.
const SLOTS: u64 = 360;
/// Names kept for each half hour.
const MAX_NAMES: usize = 512;
/// A DNS name has 255 bytes at most; escaped ones may be longer.
const MAX_NAME_CHARS: usize = 255;
/// Names shown.
const SHOWN_NAMES: usize = 20;
/// Reasons of drops kept, each for a scope and a kind of packet.
const MAX_REASONS: usize = 64;

#[cfg(test)]
mod tests;
