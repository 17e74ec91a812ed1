//! The node's network as JSON: the last hour of traffic, readiness and journeys, behind `/api/v1/network`.
//!
//! Reads the store's [`TrafficHour`]. Does not: count anything.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use sandglass_model::TraceId;
use serde::Serialize;

use super::json::as_text;
use super::readiness::ReadinessCounts;
use super::row::Row;
use crate::sinks::store::hour::{ConntrackGrowth, ConntrackTable, SLOT_NS, SLOTS, Slot, TrafficHour};

/// The answer of `/api/v1/network`.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkView {
    /// Time of the answer.
    #[serde(serialize_with = "as_text")]
    pub now_unix_ns: u64,
    /// End of the last slot: now, or the end of a recording.
    #[serde(serialize_with = "as_text")]
    pub until_unix_ns: u64,
    /// Length of a slot.
    pub slot_ns: u64,
    /// Slots of the window; `slots` leaves out those without traffic.
    pub window_slots: u64,
    /// The slots, oldest first.
    pub slots: Vec<SlotView>,
    /// The names whose lookups took longest in the current half hour and the one before, slowest first.
    pub names: Vec<NameView>,
    /// Dropped packets since the start, most first.
    pub drops: Vec<DropView>,
    /// Failed, slow, retried and dropped lookups and connects since the start by cause, most first.
    pub causes: Vec<CauseView>,
    /// The node's conntrack table; `null` until it was read.
    pub conntrack: Option<ConntrackTable>,
    /// Readiness of the sandboxes whose traces are kept.
    pub readiness: ReadinessCounts,
    /// Journeys that are kept, newest first.
    pub journeys: Vec<Row>,
    /// Journeys beyond the limit of rate since the start, of which no trace was kept.
    pub journeys_held_back: u64,
}

/// Ten seconds of traffic.
#[derive(Clone, Debug, Serialize)]
pub struct SlotView {
    /// Begin of the slot.
    #[serde(serialize_with = "as_text")]
    pub at_unix_ns: u64,
    /// Lookups that ended, by response code (`timeout`: without an answer).
    pub lookups: BTreeMap<&'static str, u32>,
    /// Median of their times.
    pub lookup_p50_ns: Option<u64>,
    /// 95th percentile of their times.
    pub lookup_p95_ns: Option<u64>,
    /// DNS queries that were retransmitted.
    pub retransmissions: u32,
    /// DNS queries without an answer.
    pub unanswered: u32,
    /// Names queried because of the search path.
    pub search_names: u32,
    /// Connects that were established or failed, by result.
    pub connects: BTreeMap<&'static str, u32>,
    /// 95th percentile of their times.
    pub connect_p95_ns: Option<u64>,
    /// Conntrack entries that were created.
    pub flows_new: u32,
    /// Conntrack entries that were destroyed.
    pub flows_destroyed: u32,
    /// Created conntrack entries with NAT.
    pub translated: u32,
    /// Entries in the node's table; absent if it was not read in this slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conntrack_entries: Option<u64>,
    /// Growth of conntrack's counters.
    #[serde(flatten)]
    growth: ConntrackGrowth,
    /// DNS packets and SYNs the kernel dropped.
    pub drops: u32,
}

/// Lookups of one name.
#[derive(Clone, Debug, Serialize)]
pub struct NameView {
    /// The name, without what the search path added.
    pub name: String,
    /// Lookups.
    pub count: u64,
    /// Failed ones among them.
    pub failed: u64,
    /// 95th percentile of their times.
    pub p95_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The trace that shows the longest, if there is one.
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
    /// Number of packets.
    pub count: u64,
}

/// Lookups and connects of one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CauseView {
    /// One of the registry's causes.
    pub cause: &'static str,
    /// Number of lookups and connects.
    pub count: u64,
}

impl NetworkView {
    /// The hour before `until`, or without it the hour before the newest traffic; without readiness and journeys.
    pub(super) fn of(hour: &TrafficHour, now_unix_ns: u64, until: Option<u64>) -> NetworkView {
        let newest = hour.slots.keys().next_back().copied().unwrap_or_default();
        let last = until.map_or(newest, |until| until / SLOT_NS);
        let window = last.saturating_sub(SLOTS - 1)..=last;
        let drops = hour.drops.iter().map(|(key, &count)| DropView {
            scope: key.scope,
            packet: key.packet,
            reason: key.reason.clone(),
            count,
        });
        let mut drops: Vec<DropView> = drops.collect();
        drops.sort_by_key(|drop| Reverse(drop.count));
        let causes = hour.causes.iter().map(|(&cause, &count)| CauseView { cause, count });
        let mut causes: Vec<CauseView> = causes.collect();
        causes.sort_by_key(|cause| Reverse(cause.count));
        let slots = hour.slots.range(window).map(|(at, slot)| SlotView::of(*at, slot));
        NetworkView {
            now_unix_ns,
            until_unix_ns: (last + 1) * SLOT_NS,
            slot_ns: SLOT_NS,
            window_slots: SLOTS,
            slots: slots.collect(),
            names: slowest_names(hour),
            drops,
            causes,
            conntrack: hour.conntrack,
            readiness: ReadinessCounts::default(),
            journeys: Vec::new(),
            journeys_held_back: hour.journeys_held_back,
        }
    }
}

impl SlotView {
    fn of(at: u64, slot: &Slot) -> SlotView {
        SlotView {
            at_unix_ns: at * SLOT_NS,
            lookups: slot.lookups.clone(),
            lookup_p50_ns: slot.lookup_times.quantile(50),
            lookup_p95_ns: slot.lookup_times.quantile(95),
            retransmissions: slot.retransmissions,
            unanswered: slot.unanswered,
            search_names: slot.search_names,
            connects: slot.connects.clone(),
            connect_p95_ns: slot.connect_times.quantile(95),
            flows_new: slot.flows_new,
            flows_destroyed: slot.flows_destroyed,
            translated: slot.translated,
            conntrack_entries: slot.entries,
            growth: slot.conntrack,
            drops: slot.drops,
        }
    }
}

fn slowest_names(hour: &TrafficHour) -> Vec<NameView> {
    let merged = hour.names.merged().into_iter();
    let mut names: Vec<NameView> = merged
        .map(|(name, stats)| NameView {
            name: name.to_owned(),
            count: stats.count,
            failed: stats.failed,
            p95_ns: stats.times.quantile(95).unwrap_or_default().min(stats.max_ns),
            max_ns: stats.max_ns,
            trace_id: stats.trace,
        })
        .collect();
    names.sort_by(|one, other| (other.p95_ns, other.count, &one.name).cmp(&(one.p95_ns, one.count, &other.name)));
    names.truncate(SHOWN_NAMES);
    names
}

/// Names shown.
const SHOWN_NAMES: usize = 20;
