//! The store's promises: bounds, what is evicted first, what a reader receives.

use super::*;
use proptest::prelude::*;
use sandglass_model::time::SECOND;

use crate::samples;
use crate::wall_clock::wall_ns;

fn store(options: StoreOptions) -> Store<()> {
    Store::new(options, NodeInfo::default())
}

fn pods(store: &Store<()>) -> Vec<String> {
    let kept = store.traces().into_iter();
    kept.map(|kept| kept.index.pod.clone()).collect()
}

#[test]
fn bad_sandboxes_stay_and_the_newest_good_ones_with_them() {
    let store = store(StoreOptions {
        max_traces: 40,
        ..StoreOptions::live(1_000)
    });
    let now = wall_ns();
    for number in 0..60 {
        let start = now - u64::from(1_000 - number) * SECOND;
        store.update(samples::failed("n", &format!("bad-{number}"), number, start, None));
    }
    for number in 100..300 {
        let start = now - u64::from(900 - number) * SECOND;
        store.update(samples::usual("n", &format!("good-{number}"), number, start));
    }
    // An eighth of the room is not for sandboxes; of the rest three quarters are for bad ones.
    let size = store.size();
    assert_eq!((size.traces, size.failed, size.evicted), (35, 27, 225));
    assert_eq!(size.evicted_kinds.bad_sandboxes, 33);
    assert_eq!(size.evicted_kinds.good_sandboxes, 192);
    let rest = pods(&store);
    assert!(rest.contains(&"bad-59".to_owned()) && rest.contains(&"bad-33".to_owned()));
    assert!(!rest.contains(&"bad-32".to_owned()));
    assert!(rest.contains(&"good-299".to_owned()) && rest.contains(&"good-292".to_owned()));
    assert!(!rest.contains(&"good-291".to_owned()));
}

/// A day on a node: every tenth sandbox is bad, each is deleted with a handful of operations.
fn day(store: &Store<()>) -> (Vec<String>, Vec<String>) {
    let now = wall_ns();
    let (mut bad, mut good) = (Vec::new(), Vec::new());
    let mut deletions = 0;
    for number in 0..200 {
        let start = now - u64::from(10_000 - number * 10) * SECOND;
        let namespace = ["shop", "batch", "edge"][number as usize % 3];
        let pod = format!("pod-{number}");
        let make = match number % 10 {
            3 if number % 4 == 3 => samples::slow,
            3 => samples::stalled,
            7 => |namespace: &str, pod: &str, number, start| samples::failed(namespace, pod, number, start, None),
            _ => samples::usual,
        };
        let sandbox = make(namespace, &pod, number, start);
        store.update(sandbox.clone());
        let of_this = if number % 5 == 0 { 5 } else { 6 };
        for repeated in 0..of_this {
            if deletions < 1_158 {
                store.update(samples::third_del(&sandbox, start + (1 + repeated) * SECOND));
                deletions += 1;
            }
        }
        match number % 10 {
            3 | 7 => bad.push(pod),
            _ => good.push(pod),
        }
    }
    assert_eq!((bad.len(), deletions), (40, 1_158));
    (bad, good)
}

fn sandboxes(store: &Store<()>) -> Vec<String> {
    let kept = store.traces().into_iter();
    kept.filter(|kept| kept.index.kind == TraceKind::Sandbox)
        .map(|kept| kept.index.pod.clone())
        .collect()
}

#[test]
fn deletions_push_out_no_sandbox() {
    let store = store(StoreOptions::live(1_000));
    let (bad, good) = day(&store);
    let size = store.size();
    assert_eq!((size.traces, sandboxes(&store).len()), (1_000, bad.len() + good.len()));
    assert_eq!((size.evicted, size.evicted_kinds.good_operations), (358, 358));
    store.state().traces.assert_consistent();
}

#[test]
fn in_a_tenth_of_the_room_the_bad_and_the_newest_good_sandboxes_stay() {
    let store = store(StoreOptions::live(100));
    let (bad, good) = day(&store);
    let kept = sandboxes(&store);
    assert!(bad.iter().all(|pod| kept.contains(pod)), "{kept:?}");
    // The others of the 88 places for sandboxes; namespaces share them.
    assert_eq!(kept.len(), 88, "{kept:?}");
    assert!(good.iter().rev().take(30).all(|pod| kept.contains(pod)), "{kept:?}");
    let size = store.size();
    assert_eq!((size.traces, size.evicted_kinds.bad_sandboxes), (100, 0));
    assert_eq!(size.evicted, size.evicted_kinds.total());
    store.state().traces.assert_consistent();
}

#[test]
fn in_little_memory_the_bad_sandboxes_stay_too() {
    let room = StoreOptions {
        max_bytes: 1 << 19,
        ..StoreOptions::live(1_000)
    };
    let store = store(room.clone());
    let (bad, _) = day(&store);
    let kept = sandboxes(&store);
    assert!(bad.iter().all(|pod| kept.contains(pod)), "{kept:?}");
    assert!(
        kept.contains(&"pod-199".to_owned()) && kept.len() < 200,
        "{}",
        kept.len()
    );
    let size = store.size();
    assert!(size.bytes <= room.max_bytes && size.traces < 1_000, "{size:?}");
    store.state().traces.assert_consistent();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever comes in which order: both bounds hold, the counts agree, and what came is kept or counted as evicted.
    #[test]
    fn bounds_hold_whatever_comes(
        coming in proptest::collection::vec((0..7_usize, 0..40_u32, 0..20_000_usize), 1..120),
        max_traces in 1..40_usize,
        max_bytes in 20_000..400_000_usize,
    ) {
        let store = store(StoreOptions { max_traces, max_bytes, ..StoreOptions::live(1_000) });
        let mut roots = std::collections::BTreeSet::new();
        for (kind, number, filling) in coming {
            let pod = format!("pod-{}", number % 9);
            let start = wall_ns() - u64::from(number) * SECOND;
            let mut trace = match kind {
                0 => samples::usual("a", &pod, number, start),
                1 => samples::slow("b", &pod, number, start),
                2 => samples::failed("a", &pod, number, start, None),
                3 => samples::stuck("b", &pod, number, start),
                4 => samples::unstuck(samples::stuck("b", &pod, number, start), 40),
                5 => samples::stalled("c", &pod, number, start),
                _ => samples::third_del(&samples::usual("a", &pod, number, start), start),
            };
            trace.identity.labels = vec![("note".into(), "x".repeat(filling))];
            let before: Vec<String> = sandboxes(&store);
            let (root, is_sandbox) = (trace.root_id(), trace.root().detail.as_sandbox().is_some());
            let known = store.get(root).is_some();
            store.update(trace);
            if !known {
                roots.insert((root, roots.len()));
            }
            let size = store.size();
            prop_assert!(size.traces == 1 || size.bytes <= max_bytes, "{size:?}");
            prop_assert!(size.traces <= max_traces.max(1), "{size:?}");
            prop_assert_eq!(roots.len() as u64, size.traces as u64 + size.evicted);
            prop_assert!(is_sandbox || sandboxes(&store) == before, "an operation evicted a sandbox");
            store.state().traces.assert_consistent();
        }
    }
}

/// A pod that is made again and again, and a job that makes pods without end, evict their own traces.
#[test]
fn a_noisy_pod_and_a_noisy_namespace_evict_their_own() {
    let store = store(StoreOptions {
        max_traces: 45,
        ..StoreOptions::live(1_000)
    });
    let start = |number: u64| wall_ns() - (10_000 - number) * SECOND;
    for number in 0..10 {
        let name = format!("quiet-{number}");
        store.update(samples::usual("shop", &name, number, start(1)));
        let failed = samples::failed("shop", &format!("bad-{number}"), 100 + number, start(10), None);
        store.update(failed);
    }
    for number in 0..500 {
        let loops = samples::usual("shop", "loops", 1_000 + number, start(1_000));
        let crashes = samples::failed("shop", "loops", 2_000 + number, start(1_000), None);
        let job = samples::usual("batch", &format!("job-{number}"), 3_000 + number, start(1_000));
        for trace in [loops, crashes, job] {
            store.update(trace);
        }
    }
    let kept = pods(&store);
    let count = |prefix: &str| kept.iter().filter(|name| name.starts_with(prefix)).count();
    // Up to a quarter of a namespace's traces a pod is not noisy.
    // Of 45 places 40 are for sandboxes.
    assert_eq!((count("quiet-"), kept.len()), (10, 40), "{kept:?}");
    assert!(
        count("bad-") >= 8 && count("loops") >= 3 && count("job-") >= 10,
        "{kept:?}"
    );
    assert!(kept.contains(&"job-499".to_owned()) && !kept.contains(&"job-0".to_owned()));
    store.state().traces.assert_consistent();
}

/// Text that does not compress well.
fn noise(length: usize, seed: u32) -> String {
    let mut state = seed | 1;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b' ' + ((state >> 16) % 95) as u8)
    };
    std::iter::repeat_with(next).take(length).collect()
}

#[test]
fn a_closed_trace_is_packed_and_comes_back_whole() {
    let live = store(StoreOptions::live(1_000));
    let replay = store(StoreOptions::replay());
    let closed = samples::stalled("n", "p", 1, wall_ns());
    let open = samples::stuck("n", "q", 2, wall_ns());
    for trace in [&closed, &open] {
        live.update(trace.clone());
        replay.update(trace.clone());
    }
    for (store, packs) in [(&live, true), (&replay, false)] {
        let kept = |trace: &Trace| store.get(trace.root_id()).unwrap();
        assert_eq!(kept(&closed).packed().is_some(), packs);
        assert!(kept(&open).packed().is_none());
        for trace in [&closed, &open] {
            assert_eq!(*kept(trace).trace().unwrap(), *trace);
        }
    }
    let (packed, plain) = (live.size().bytes, replay.size().bytes);
    assert!(packed < plain, "{packed} and {plain} bytes");
    // By a span that is not its root.
    let found = live.find(closed.id, Some(closed.spans[3].id)).unwrap();
    assert_eq!(found.index.root, closed.root_id());
}

#[test]
fn bytes_are_bounded_and_given_back() {
    let store = store(StoreOptions {
        max_bytes: 200_000,
        ..StoreOptions::live(1_000)
    });
    for number in 0..200 {
        let mut trace = samples::usual("n", "p", number, wall_ns());
        trace.identity.labels = vec![("note".into(), noise(10_000, number))];
        store.update(trace);
    }
    let size = store.size();
    assert!(size.bytes <= 200_000, "{size:?}");
    assert!((10..25).contains(&size.traces), "{size:?}");
    store.state().traces.assert_consistent();
}

#[test]
fn one_trace_larger_than_the_bound_is_still_kept() {
    let store = store(StoreOptions {
        max_bytes: 10,
        ..StoreOptions::live(1_000)
    });
    store.update(samples::usual("n", "first", 1, wall_ns()));
    store.update(samples::usual("n", "second", 2, wall_ns()));
    assert_eq!(pods(&store), ["second"]);
}

#[test]
fn a_stale_snapshot_does_not_open_a_closed_trace_again() {
    let store = store(StoreOptions::live(1_000));
    let mut trace = samples::stuck("n", "p", 1, wall_ns() - 5 * SECOND);
    store.update(trace.clone());
    assert_eq!(store.size().running, 1);
    let open = trace.clone();
    let end = trace.spans[0].start.plus(SECOND);
    for span in &mut trace.spans {
        span.end.get_or_insert(end);
    }
    trace.closed = true;
    store.update(trace);
    store.update(open);
    let size = store.size();
    assert_eq!((size.traces, size.running), (1, 0));
    let kept = store.traces().remove(0);
    assert_eq!(
        (kept.trace().unwrap().root().end, kept.index.outcome),
        (Some(end), TraceOutcome::Ok)
    );
}

#[test]
fn what_shares_a_trace_id_is_counted_and_evicted_each_by_itself() {
    let store = store(StoreOptions {
        max_traces: 40,
        ..StoreOptions::live(1_000)
    });
    let sandbox = samples::usual("shop", "web-0", 1, wall_ns());
    let id = sandbox.id;
    for number in 0..50 {
        for mut del in samples::dels_of_one_trace(&sandbox, wall_ns() - (600 - number * 10) * SECOND) {
            del.id = id;
            store.update(del);
        }
    }
    let size = store.size();
    // All are of one pod: its failed ones have no more than a quarter.
    assert_eq!((size.traces, size.failed, size.evicted), (40, 10, 60));
    assert_eq!(size.evicted_kinds.good_sandboxes + size.evicted_kinds.bad_sandboxes, 0);
    store.state().traces.assert_consistent();
}

#[test]
fn a_trace_without_a_root_is_none() {
    let store = store(StoreOptions::live(1_000));
    let mut trace = samples::usual("n", "p", 1, wall_ns());
    trace.spans.clear();
    store.update(trace);
    assert_eq!(store.size().traces, 0);
}

#[test]
fn readers_hear_of_changes_and_of_their_lag() {
    let store = store(StoreOptions {
        max_lag: 4,
        ..StoreOptions::live(1_000)
    });
    let mut reader = store.subscribe();
    let trace = samples::usual("n", "p", 1, wall_ns());
    store.update(trace.clone());
    assert_eq!(reader.try_recv(), Ok(trace.root_id()));
    for number in 0..10 {
        store.update(samples::usual("n", "p", number, wall_ns()));
    }
    assert!(matches!(
        reader.try_recv(),
        Err(broadcast::error::TryRecvError::Lagged(6))
    ));
}

#[test]
fn known_sandboxes_are_bounded_and_go_with_their_del() {
    let store = store(StoreOptions {
        max_known: 3,
        ..StoreOptions::live(1_000)
    });
    for number in 0..10 {
        store.known(samples::sandbox_id(number), PodIdentity::default(), Timestamp(1));
    }
    assert_eq!(store.known_sandboxes().len(), 3);
    assert_eq!(store.size().known_dropped, 7);
    let mut sandbox = samples::usual("n", "p", 1, wall_ns());
    sandbox.sandbox = Some(store.known_sandboxes().into_keys().next().unwrap());
    store.update(samples::third_del(&sandbox, wall_ns()));
    assert_eq!(store.size().known, 2);
}

/// The estimate is what keeps the store within the agent's memory budget: it must not be far below what is used. In a process
/// of its own, whose memory no other test changes.
#[cfg(target_os = "linux")]
#[test]
fn the_estimate_is_near_the_memory_in_use() {
    const ALONE: &str = "SANDGLASS_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let test = "sinks::store::tests::the_estimate_is_near_the_memory_in_use";
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let output = alone.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output();
        let output = output.unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && printed.contains("1 passed"),
            "{printed}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    }
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4_096
    };
    let store = store(StoreOptions {
        max_traces: 20_000,
        max_bytes: 1 << 30,
        ..StoreOptions::live(1_000)
    });
    let before = resident();
    let begin = std::time::Instant::now();
    for number in 0..10_000 {
        let make = [samples::usual, samples::network_ready, samples::stalled][number as usize % 3];
        store.update(make("namespace", "pod-7d4b9c6f5-x2k8p", number, wall_ns()));
    }
    let took = begin.elapsed() / 10_000;
    let used = resident() - before;
    let estimated = store.size().bytes;
    println!("estimated {estimated}, used {used}, {took:?} per update with its making");
    assert!(
        estimated > used / 2 && estimated < used * 3,
        "estimated {estimated}, used {used}"
    );
}
