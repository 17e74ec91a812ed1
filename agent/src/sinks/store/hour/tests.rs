use std::sync::Arc;

use sandglass_model::network::DroppedPacket;
use sandglass_model::time::SECOND;

use super::*;
use crate::samples;

fn lookup(name: &str, ns: u64) -> Finding {
    Finding::Lookup(Box::new(LookupEnded {
        scope: Scope::Sandbox,
        owner: 1,
        start: sandglass_model::Timestamp(0),
        end: sandglass_model::Timestamp(ns),
        detail: samples::lookup_detail(name),
        queries: Vec::new(),
        trace: None,
        journey: false,
    }))
}

const NOW: u64 = 1_800_000_000 * SECOND;

#[test]
fn nothing_grows_without_bound() {
    let mut hour = TrafficHour::default();
    for number in 0..5_000 {
        let reason: Arc<str> = format!("REASON_{number}").into();
        let dropped = Finding::Dropped {
            scope: Scope::Node,
            packet: DroppedPacket::Dns,
            reason,
        };
        hour.record(&dropped, NOW);
    }
    assert!(hour.drops.len() <= MAX_REASONS + 4);
    assert_eq!(hour.drops.values().sum::<u64>(), 5_000);
    for slot in 0..5_000 {
        hour.record(&lookup("a", 1), NOW + slot * SLOT_NS);
    }
    assert!(hour.slots.len() as u64 <= SLOTS + 2, "{}", hour.slots.len());
}

#[test]
fn names_expire_after_an_hour_and_the_clock_may_be_set_back() {
    let mut hour = TrafficHour::default();
    hour.record(&lookup("old.example.org", 9), NOW);
    hour.record(&lookup("new.example.org", 9), NOW + 1_900 * SECOND);
    assert_eq!(hour.names.merged().len(), 2);
    hour.record(&lookup("newest.example.org", 9), NOW + 3_700 * SECOND);
    assert!(!hour.names.merged().contains_key("old.example.org"));
    hour.record(&lookup("a", 9), NOW - 90_000 * SECOND);
    assert_eq!(hour.slots.len(), 1);
}
