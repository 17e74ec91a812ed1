//! The store's promises: bounds, what is evicted first, what a reader receives.

use super::*;
use sandglass_model::time::SECOND;

use crate::samples;
use crate::wall_clock::wall_ns;

fn store(options: StoreOptions) -> Store<()> {
    Store::new(options, NodeInfo::default())
}

fn pods(store: &Store<()>) -> Vec<String> {
    let kept = store.traces().into_iter();
    kept.map(|kept| kept.trace.identity.name.clone()).collect()
}

#[test]
fn the_newest_stay_and_failures_have_a_quarter_to_themselves() {
    let store = store(StoreOptions {
        max_traces: 40,
        ..StoreOptions::live(1_000)
    });
    let now = wall_ns();
    for number in 0..20 {
        let start = now - u64::from(1_000 - number) * SECOND;
        store.update(samples::failed("n", &format!("bad-{number}"), number, start, None));
    }
    for number in 100..300 {
        let start = now - u64::from(900 - number) * SECOND;
        store.update(samples::usual("n", &format!("good-{number}"), number, start));
    }
    let size = store.size();
    assert_eq!((size.traces, size.failed, size.evicted), (40, 10, 180));
    let rest = pods(&store);
    assert!(rest.contains(&"bad-19".to_owned()) && rest.contains(&"bad-10".to_owned()));
    assert!(!rest.contains(&"bad-9".to_owned()));
    assert!(rest.contains(&"good-299".to_owned()) && rest.contains(&"good-270".to_owned()));
    assert!(!rest.contains(&"good-269".to_owned()));
}

/// A pod that is made again and again, and a job that makes pods without end, evict their own traces.
#[test]
fn a_noisy_pod_and_a_noisy_namespace_evict_their_own() {
    let store = store(StoreOptions {
        max_traces: 40,
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
    assert_eq!((count("quiet-"), kept.len()), (10, 40), "{kept:?}");
    assert!(
        count("bad-") >= 8 && count("loops") >= 3 && count("job-") >= 10,
        "{kept:?}"
    );
    assert!(kept.contains(&"job-499".to_owned()) && !kept.contains(&"job-0".to_owned()));
    store.state().traces.assert_consistent();
}

#[test]
fn bytes_are_bounded_and_given_back() {
    let store = store(StoreOptions {
        max_bytes: 200_000,
        ..StoreOptions::live(1_000)
    });
    for number in 0..200 {
        let mut trace = samples::usual("n", "p", number, wall_ns());
        trace.identity.labels = vec![("note".into(), "x".repeat(10_000))];
        store.update(trace);
    }
    let size = store.size();
    assert!(size.bytes <= 200_000, "{size:?}");
    assert!((5..15).contains(&size.traces), "{size:?}");
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
        (kept.trace.root().end, kept.index.outcome),
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
    assert_eq!((size.traces, size.failed, size.evicted), (40, 10, 60));
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

/// The estimate is what keeps the store within the agent's memory budget: it must not be far below what is used.
#[cfg(target_os = "linux")]
#[test]
fn the_estimate_is_near_the_memory_in_use() {
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
