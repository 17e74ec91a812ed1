//! The node's traffic over the last hour, in slots of ten seconds: lookups, connects, conntrack and drops, with the slowest
//! names; and counts since the start of causes and reasons of drops.
//!
//! [`super::Store`] records every [`Traffic`] finding here; `view::network` renders it. Bounded whatever comes: slots by
//! time; names, reasons and causes by number. Names of lookups are kept here and in traces, and never in a metric.
//! Does not: keep single lookups (failed and slow ones are traces), or know about pods.

use std::collections::BTreeMap;

use sandglass_correlator::finding::{ConnectEnded, Finding, LookupEnded, Scope};
use sandglass_model::network::{ConntrackCounts, FlowChange};
use sandglass_model::registry;
use sandglass_model::trace::{Cause, LookupResult};
use serde::Serialize;

use super::names::{EndedLookup, SlowNames};
use crate::sinks::histogram::Histogram;

/// Traffic by time.
#[derive(Debug, Default)]
pub struct TrafficHour {
    /// Slots with traffic, by number since 1970 ([`SLOT_NS`] each).
    pub slots: BTreeMap<u64, Slot>,
    /// Lookups by name.
    pub names: SlowNames,
    /// Dropped packets since the start.
    pub drops: BTreeMap<DropKey, u64>,
    /// Failed, slow, retried and dropped lookups and connects since the start, by cause.
    pub causes: BTreeMap<&'static str, u64>,
    /// Journeys beyond the limit of rate since the start: they kept no trace.
    pub journeys_held_back: u64,
    /// The node's conntrack table when it was last read.
    pub conntrack: Option<ConntrackTable>,
    revision: u64,
}

/// What dropped packets are counted by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DropKey {
    /// `sandbox` or `node`.
    pub scope: &'static str,
    /// `dns` or `tcp_syn`.
    pub packet: &'static str,
    /// The kernel's reason, or `other` beyond [`MAX_REASONS`].
    pub reason: String,
}

/// Ten seconds of traffic.
#[derive(Clone, Debug, Default)]
pub struct Slot {
    /// Lookups that ended, by response code (`timeout`: without an answer).
    pub lookups: BTreeMap<&'static str, u32>,
    /// How long they took.
    pub lookup_times: Histogram,
    /// DNS queries that were retransmitted.
    pub retransmissions: u32,
    /// DNS queries without an answer.
    pub unanswered: u32,
    /// Names queried because of the search path.
    pub search_names: u32,
    /// Connects that were established or failed, by result.
    pub connects: BTreeMap<&'static str, u32>,
    /// How long they took.
    pub connect_times: Histogram,
    /// Conntrack entries that were created.
    pub flows_new: u32,
    /// Conntrack entries that were destroyed.
    pub flows_destroyed: u32,
    /// Created conntrack entries with NAT.
    pub translated: u32,
    /// Growth of conntrack's counters.
    pub conntrack: ConntrackGrowth,
    /// Entries in the node's conntrack table when it was last read.
    pub entries: Option<u64>,
    /// DNS packets and SYNs that the kernel dropped.
    pub drops: u32,
}

/// Growth of conntrack's counters, all tables together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConntrackGrowth {
    insert_failed: u64,
    drop: u64,
    early_drop: u64,
    clash_resolve: u64,
    search_restart: u64,
}

/// The node's conntrack table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ConntrackTable {
    /// Entries in it.
    pub entries: u64,
    /// Most it takes; 0 if unknown.
    pub limit: u64,
}

impl TrafficHour {
    /// Records one finding at a wall-clock time.
    pub(super) fn record(&mut self, traffic: &Finding, unix_ns: u64) {
        self.revision += 1;
        match traffic {
            Finding::Lookup(lookup) => self.record_lookup(lookup, unix_ns),
            Finding::Connect(connect) => self.record_connect(connect, unix_ns),
            Finding::Flow { change, nat, .. } => {
                let slot = self.slot(unix_ns);
                match change {
                    FlowChange::New => {
                        slot.flows_new += 1;
                        slot.translated += u32::from(nat.is_some());
                    }
                    FlowChange::Destroyed => slot.flows_destroyed += 1,
                }
            }
            Finding::Conntrack { scope, counts } => self.record_conntrack(*scope, counts, unix_ns),
            Finding::Dropped { scope, packet, reason } => {
                self.slot(unix_ns).drops += 1;
                let mut key = DropKey {
                    scope: scope.as_str(),
                    packet: packet.as_str(),
                    reason: reason.to_string(),
                };
                if self.drops.len() >= MAX_REASONS && !self.drops.contains_key(&key) {
                    key.reason = "other".to_owned();
                }
                *self.drops.entry(key).or_default() += 1;
            }
            Finding::JourneyHeldBack => self.journeys_held_back += 1,
            // Not network traffic: only metrics count these.
            Finding::DnsUnreported { .. }
            | Finding::Activity(_)
            | Finding::Endpoints { .. }
            | Finding::HnsRestarted => {}
        }
    }

    /// Number of findings recorded.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    fn record_lookup(&mut self, ended: &LookupEnded, unix_ns: u64) {
        let (detail, ns) = (&ended.detail, ended.end.since(ended.start));
        let result = detail.result.unwrap_or(LookupResult::Unanswered);
        let slot = self.slot(unix_ns);
        *slot.lookups.entry(result.as_str()).or_default() += 1;
        slot.lookup_times.record(ns);
        slot.retransmissions = slot.retransmissions.saturating_add(detail.retransmissions);
        slot.unanswered = slot.unanswered.saturating_add(detail.unanswered);
        slot.search_names = slot.search_names.saturating_add(detail.search_names);
        self.record_cause(detail.cause.as_ref());
        let lookup = EndedLookup {
            name: &detail.name,
            owner: ended.owner,
            ns,
            failed: !result.is_answer(),
            trace: ended.trace,
        };
        self.names.record(unix_ns, lookup);
    }

    fn record_connect(&mut self, ended: &ConnectEnded, unix_ns: u64) {
        let result = ended.detail.failure.map_or("established", |failure| failure.as_str());
        let slot = self.slot(unix_ns);
        *slot.connects.entry(result).or_default() += 1;
        slot.connect_times.record(ended.end.since(ended.start));
        self.record_cause(ended.detail.cause.as_ref());
    }

    fn record_conntrack(&mut self, scope: Scope, counts: &ConntrackCounts, unix_ns: u64) {
        let slot = self.slot(unix_ns);
        let growth = &mut slot.conntrack;
        growth.insert_failed += counts.insert_failed;
        growth.drop += counts.drop;
        growth.early_drop += counts.early_drop;
        growth.clash_resolve += counts.clash_resolve;
        growth.search_restart += counts.search_restart;
        if scope == Scope::Node {
            slot.entries = Some(counts.entries);
            self.conntrack = Some(ConntrackTable {
                entries: counts.entries,
                limit: counts.limit,
            });
        }
    }

    fn record_cause(&mut self, cause: Option<&Cause>) {
        let known = |cause: &Cause| registry::CAUSES.iter().find(|known| **known == cause.cause);
        if let Some(&cause) = cause.and_then(known) {
            *self.causes.entry(cause).or_default() += 1;
        }
    }

    /// The slot of a time; a new one evicts those older than an hour.
    fn slot(&mut self, unix_ns: u64) -> &mut Slot {
        let at = unix_ns / SLOT_NS;
        if !self.slots.contains_key(&at) {
            let newest = self.slots.keys().next_back().copied().unwrap_or_default().max(at);
            if newest > at + SLOTS {
                // The clock was set back: slots ahead of it would never be evicted.
                self.slots.clear();
            } else {
                self.slots = self.slots.split_off(&newest.saturating_sub(SLOTS));
            }
        }
        self.slots.entry(at).or_default()
    }
}

/// Length of a slot.
pub const SLOT_NS: u64 = 10_000_000_000;
/// Slots in an hour.
pub const SLOTS: u64 = 360;
/// Reasons of drops kept, each with its scope and kind of packet.
const MAX_REASONS: usize = 64;

#[cfg(test)]
mod tests;
