//! Pods that wait: for a lock, for a processor.

use sandglass_model::waits::{TimeReason, TimeSpent, WaitGroup};

use super::*;
use crate::networks::{CROWDED_COMMAND, LOCK, LOCK_HOLDER, LOCKED_COMMAND};

/// A pod of which a command waits for a lock, or a processor, during most of its ADD, as the agent reports it.
fn waiting(network: Network, command_name: &str, wait: WaitGroup) -> (Trace, CallRecord) {
    let pod = Pod::new("ledger-0", 9, network);
    let add = CniCommand::Add;
    let mut adding = operation(add, "eth0", network.handler(), 1);
    let time = TimeSpent {
        parts: vec![(TimeReason::Processor, 300 * MILLISECOND), (wait.reason, wait.ns)],
        waits: vec![wait],
        recorded_after_ns: 0,
    };
    if let Detail::Operation(operation) = &mut adding {
        operation.time = Some(Box::new(time));
    }
    let trace = trace(
        1,
        &pod,
        vec![
            span(None, 5, 1_200, root()),
            span(Some(0), 5, 1_200, created()),
            span(Some(1), 100, 1_100, adding),
            span(Some(2), 100, 200, plugin("bridge", add, false)),
            span(Some(2), 200, 1_100, plugin("policy", add, false)),
            span(Some(4), 210, 1_000, command(command_name)),
        ],
    );
    let (_, record) = slow();
    (trace, CallRecord { pod, ..record })
}

fn lock_wait() -> WaitGroup {
    WaitGroup {
        reason: TimeReason::FileLock,
        ns: 700 * MILLISECOND,
        count: 1,
        what: format!("/var/lib/sandglass-demo/1/{LOCK}"),
        who: LOCKED_COMMAND.into(),
        by: LOCK_HOLDER.into(),
        confidence: None,
    }
}

fn queue_wait() -> WaitGroup {
    WaitGroup {
        reason: TimeReason::RunQueue,
        what: String::new(),
        who: CROWDED_COMMAND.into(),
        by: "".into(),
        ..lock_wait()
    }
}

/// What the check of waits says; `None` where it passes with the headline.
fn wrong_wait(network: Network, name: &str, wait: WaitGroup, seen: Seen) -> Option<Wrong> {
    let (trace, record) = waiting(network, name, wait);
    waits::waits(&trace, &record, seen).err()
}

#[test]
fn a_lock_and_a_busy_processor_are_found_by_reason_and_headline() {
    let locked = |wait| wrong_wait(Network::Locked, LOCKED_COMMAND, wait, ALL_SEEN);
    let crowded = |wait| wrong_wait(Network::Crowded, CROWDED_COMMAND, wait, ALL_SEEN);
    assert_eq!(locked(lock_wait()), None);
    assert_eq!(crowded(queue_wait()), None);
    for (fault, wait) in [
        ("of another reason", queue_wait()),
        (
            "too short",
            WaitGroup {
                ns: 100 * MILLISECOND,
                ..lock_wait()
            },
        ),
        (
            "of another process",
            WaitGroup {
                who: "iptables".into(),
                ..lock_wait()
            },
        ),
        (
            "held by another",
            WaitGroup {
                by: "kube-proxy".into(),
                ..lock_wait()
            },
        ),
        (
            "of another file",
            WaitGroup {
                what: "/run/xtables.lock".to_owned(),
                ..lock_wait()
            },
        ),
    ] {
        assert!(locked(wait).is_some(), "a lock {fault}");
    }
    assert!(crowded(lock_wait()).is_some(), "a busy processor");
    // A disk that kept the ADD waiting is an excuse where the kernel says so, and not for a lock.
    let disk_wait = WaitGroup {
        reason: TimeReason::Disk,
        ..queue_wait()
    };
    for (network, percent, is_excused) in [
        (Network::Crowded, 33, true),
        (Network::Crowded, 32, false),
        (Network::Locked, 33, false),
    ] {
        let (trace, mut record) = waiting(network, CROWDED_COMMAND, disk_wait.clone());
        record.run.disks_ns = record.run.duration_ns() * percent / 100 + 1;
        let wrong = waits::waits(&trace, &record, ALL_SEEN).expect_err("another reason");
        assert_eq!(matches!(wrong, Wrong::Busy(_)), is_excused, "{network:?}: {wrong}");
    }
    // Otherwise only a kernel that cannot record waits is one.
    let blind = Seen {
        waits: false,
        ..ALL_SEEN
    };
    assert_eq!(wrong_wait(Network::Locked, LOCKED_COMMAND, queue_wait(), blind), None);
}
