use sandglass_model::time::{MILLISECOND, SECOND};

use super::*;
use crate::samples;

fn book(findings: &[(u64, Traffic)]) -> NetworkBook {
    let mut book = NetworkBook::default();
    for (at, traffic) in findings {
        book.take(traffic, *at);
    }
    book
}

fn lookup(name: &str, ns: u64) -> Traffic {
    Traffic::Lookup(Box::new(LookupEnded {
        scope: Scope::Sandbox,
        start: sandglass_model::Timestamp(0),
        end: sandglass_model::Timestamp(ns),
        detail: samples::lookup_detail(name),
        asked: Vec::new(),
        trace: None,
    }))
}

const NOW: u64 = 1_800_000_000 * SECOND;

#[test]
fn an_hour_in_slots_adds_up() {
    let findings = samples::an_hour(NOW);
    let book = book(&findings);
    let view = book.view(NOW, Some(NOW));
    let seen: u32 = view.slots.iter().flat_map(|slot| slot.lookups.values()).sum();
    let given = findings
        .iter()
        .filter(|(_, traffic)| matches!(traffic, Traffic::Lookup(_)))
        .count();
    assert_eq!(seen as usize, given);
    assert_eq!(view.slots.len(), 350);
    let last = view.slots.last().unwrap();
    assert_eq!(last.at_unix_ns + view.slot_ns, view.until_unix_ns);
    assert!(last.lookup_p95_ns < Some(6 * MILLISECOND), "{last:?}");
    let bad = view
        .slots
        .iter()
        .find(|slot| slot.lookups.contains_key("timeout"))
        .unwrap();
    assert!(bad.lookup_p95_ns > Some(4 * SECOND), "{bad:?}");
    assert_eq!(
        view.conntrack,
        Some(TableView {
            entries: 83_000,
            limit: 262_144
        })
    );
    assert_eq!(view.causes[0].cause, "conntrack_race");
    assert_eq!(view.drops.iter().map(|drop| drop.count).sum::<u64>(), 22);
    // The slowest name stands first, and its longest lookup is the one that was given up.
    assert_eq!(view.names[0].max_ns, 10 * SECOND);
    assert!(view.names.is_sorted_by_key(|name| std::cmp::Reverse(name.p95_ns)));
}

#[test]
fn nothing_grows_without_bound() {
    let mut book = NetworkBook::default();
    for number in 0..5_000u64 {
        book.take(&lookup(&format!("{number}.example.org"), number * 1_000), NOW);
        let reason: Arc<str> = format!("REASON_{number}").into();
        let packet = sandglass_model::network::DroppedPacket::Dns;
        book.take(
            &Traffic::Dropped {
                scope: Scope::Node,
                packet,
                reason,
            },
            NOW,
        );
    }
    assert_eq!(book.names[0].by_name.len(), MAX_NAMES);
    assert!(book.names[0].by_name.contains_key("4999.example.org"));
    assert!(!book.names[0].by_name.contains_key("7.example.org"));
    assert!(book.drops.len() <= MAX_REASONS + 4);
    assert_eq!(
        book.view(NOW, Some(NOW))
            .drops
            .iter()
            .map(|drop| drop.count)
            .sum::<u64>(),
        5_000
    );
    for slot in 0..5_000 {
        book.take(&lookup("a", 1), NOW + slot * SLOT_NS);
    }
    assert!(book.slots.len() as u64 <= SLOTS + 2, "{}", book.slots.len());
}

#[test]
fn names_are_forgotten_after_an_hour_and_a_clock_may_be_set_back() {
    let mut book = NetworkBook::default();
    book.take(&lookup("old.example.org", 9), NOW);
    book.take(&lookup("new.example.org", 9), NOW + 1_900 * SECOND);
    assert_eq!(book.slowest().len(), 2);
    book.take(&lookup("newest.example.org", 9), NOW + 3_700 * SECOND);
    let names: Vec<String> = book.slowest().into_iter().map(|name| name.name).collect();
    assert!(!names.contains(&"old.example.org".to_owned()), "{names:?}");
    book.take(&lookup("a", 9), NOW - 90_000 * SECOND);
    let view = book.view(0, Some(NOW - 90_000 * SECOND));
    assert_eq!(view.slots.len(), 1);
    // A replay ends where its recording does.
    assert_eq!(book.view(NOW, None).until_unix_ns, NOW - 90_000 * SECOND + SLOT_NS);
}
