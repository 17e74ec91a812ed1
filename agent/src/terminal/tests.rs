//! Waterfalls of hand-made traces, as text.

use super::*;

use crate::samples;

#[test]
fn a_slow_sandbox_as_a_waterfall() {
    let trace = samples::slow("shop", "checkout-0", 40, 1_000_000_000_000_000_000);
    let text = render_waterfall(&trace, 100, false);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("shop/checkout-0  4.45 s  ok  sandbox "), "{text}");
    assert_eq!(
        lines[1],
        "command sleep of plugin slow-firewall took 4.20 s of 4.45 s (94 %)"
    );
    assert_eq!(lines.len(), 2 + trace.spans.len());
    let sleep = lines.iter().find(|line| line.contains("command sleep 4.2")).unwrap();
    assert!(
        sleep.starts_with("│  │  │     └─ command sleep 4.2") || sleep.contains("└─ command sleep 4.2"),
        "{sleep}"
    );
    assert!(sleep.matches('▒').count() > 30, "{sleep}");
    assert!(sleep.ends_with("4.20 s"), "{sleep}");
    assert!(lines[2..].iter().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn failures_say_how_they_ended_and_open_spans_that_they_run() {
    let failed = render_waterfall(&samples::failed("n", "p", 1, 1, None), 90, false);
    assert!(
        failed.lines().skip(2).all(|line| line.chars().count() <= 90),
        "{failed}"
    );
    assert!(
        failed.contains("✕ exit 1") && failed.contains(samples::NO_ADDRESS),
        "{failed}"
    );
    let killed = render_waterfall(&samples::killed("n", "p", 1, 1), 90, false);
    assert!(killed.contains("✕ signal 9"), "{killed}");
    let stuck = render_waterfall(&samples::stuck("n", "p", 1, 1), 90, false);
    assert!(
        stuck.contains(" ...") && stuck.contains("waits for plugin bridge › command iptables"),
        "{stuck}"
    );
}

#[test]
fn lookups_and_connections_say_what_went_badly_and_when_the_network_was_usable() {
    let ready = render_waterfall(&samples::network_ready("shop", "web-0", 1, 1), 110, false);
    assert!(
        ready.contains("first packet 140 ms later; network usable 34.0 ms after that"),
        "{ready}"
    );
    assert!(
        ready.contains("lookup db.shop.svc") && ready.contains("connect 10.96.41.7:5432"),
        "{ready}"
    );
    let stalled = render_waterfall(&samples::stalled("shop", "web-1", 2, 1), 110, false);
    let lookup = stalled.lines().find(|line| line.contains("─ lookup ")).unwrap();
    assert!(lookup.ends_with("5.01 s ↻1 conntrack race"), "{stalled}");
    let failed = render_waterfall(&samples::never_connected("shop", "web-2", 3, 1), 110, false);
    assert!(failed.contains("✕ connect_timeout ↻3 connect silent"), "{failed}");
    assert!(
        failed.contains("network not usable 15.0 s after that; 36 more attempts are not shown"),
        "{failed}"
    );
    let waiting = render_waterfall(&samples::waiting("shop", "web-3", 4, 1), 110, false);
    assert!(waiting.contains("its network is not used yet"), "{waiting}");
    for text in [ready, stalled, failed] {
        assert!(text.lines().skip(3).all(|line| line.chars().count() <= 110), "{text}");
    }
}

#[test]
fn no_text_reaches_the_terminal_as_control() {
    let text = render_waterfall(&samples::hostile(1, 1), 100, false);
    assert!(text.chars().all(|char| char == '\n' || !char.is_control()), "{text:?}");
    assert!(!text.contains('\u{202e}'));
}

#[test]
fn bars_fill_exactly_and_colours_only_when_enabled() {
    let phases = BTreeMap::from([(Phase::Runtime, 1), (Phase::Plugin, 1), (Phase::Command, 1)]);
    assert_eq!(phase_bar(&phases, 10, false), "░░░████▒▒▒");
    assert!(phase_bar(&phases, 10, true).contains("\u{1b}[38;5;67m"));
    assert_eq!(phase_bar(&BTreeMap::new(), 10, true), "");
    let narrow = render_waterfall(&samples::usual("n", "p", 1, 1), 1, true);
    assert!(narrow.contains('█'));
}
