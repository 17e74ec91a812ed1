//! What the threads of a daemon wait for while it has a request, as this machine's kernel shows it: a thread that receives, a worker that
//! waits for a lock which another process has, and answers. What comes out is compared with the daemon's own log.

use std::fs::File;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use sandglass_lab::built;
use sandglass_lab::pressure::Pressure;
use sandglass_lab::skip::has;
use sandglass_model::text::tree;
use sandglass_model::trace::{Confidence, ThreadsAttribution};
use sandglass_model::waits::{TimeReason, TimeSpent};
use sandglass_model::{Body, Event, phases};
use serde_json::Value;

use crate::daemons::{Daemon, ended, id, is_seen, request, trace_of, traces_of, watch_after};
use crate::locks::holder;
use crate::watch::{Watch, plugin, wait_for};

/// A source that records from the begin: what is not seen then is not seen at all.
fn watch_threads(test: &str) -> Option<Watch> {
    if !has(test, "flock") {
        return None;
    }
    let watch = watch_after(test, Some(Duration::ZERO))?;
    watch.wait("waits and messages to be recorded", |events| {
        let on = |body: &Body| {
            matches!(
                body,
                Body::WaitsRecorded { on: true } | Body::RequestsFollowed { on: true }
            )
        };
        (events.iter().filter(|event| on(&event.body)).count() >= 2).then_some(())
    });
    Some(watch)
}

fn lock_file(watch: &Watch, number: usize) -> PathBuf {
    let path = watch.directory.path().join(format!("lock-{number}"));
    File::create(&path).unwrap();
    path
}

/// For how long the daemon has waited for its lock, by its own log.
fn logged_wait(line: &Value) -> u64 {
    let lock = &line["locked"][0];
    lock[2].as_u64().unwrap() - lock[1].as_u64().unwrap()
}

fn file_locks(time: &TimeSpent) -> Vec<(&str, u64)> {
    let locks = time.waits.iter().filter(|wait| wait.reason == TimeReason::FileLock);
    locks.map(|wait| (wait.what.as_str(), wait.ns)).collect()
}

/// The wait in the daemon's log and ours agree within 2 % or 1 ms, unless tasks of this node waited for that long.
fn agrees(test: &str, ours: u64, logged: u64, pressure: &Pressure) {
    let (difference, tolerance) = (ours.abs_diff(logged), (logged / 50).max(1_000_000));
    eprintln!("{test}: {ours} ns, the daemon logged {logged} ns");
    let waited = pressure.ns_since();
    if difference > tolerance && difference <= tolerance + waited {
        eprintln!("NOT JUDGED {test}::lock: {difference} ns apart, tasks waited for {waited} ns");
        return;
    }
    assert!(difference <= tolerance, "{ours} ns and {logged} ns");
}

/// One thread receives the request and hands it to a worker through a condition; that one waits for a lock on a file that another process
/// holds, and answers.
#[test]
fn the_lock_that_a_daemons_worker_waits_for_is_the_headline() {
    const TEST: &str = "the_lock_that_a_daemons_worker_waits_for_is_the_headline";
    let Some(watch) = watch_threads(TEST) else { return };
    let daemon = Daemon::start(watch.directory.path(), true);
    let path = lock_file(&watch, 0);
    let steps = serde_json::json!({"hand_over": true, "steps": [{"lock": path}, 0.1]});
    let shim = daemon.shim(&watch, "cilium-cni", &steps);
    let held = holder(&watch, &path, 3.0);
    let pressure = Pressure::now();
    wait_for(plugin(&shim, "worker").spawn().unwrap());
    wait_for(held);
    let traces = ended(&watch, "worker");
    let trace = trace_of(&traces, "worker");
    let now = trace.root().end.unwrap();
    eprintln!("{}", tree(trace, now));
    let (span, detail) = request(trace);
    if !is_seen(TEST, detail, &pressure) {
        return;
    }
    assert_eq!(detail.threads, Some(ThreadsAttribution::OnlyRequest));
    let time = detail.time.as_deref().unwrap();
    assert_eq!(time.total_ns(), span.duration_ns(span.start));
    let logged = logged_wait(&daemon.logged(1)[0]);
    assert!(logged > 500_000_000, "the lock was free too early: {logged} ns");
    let locks = file_locks(time);
    let [(what, ns)] = locks[..] else {
        unreachable!("{time:?}")
    };
    assert_eq!(what, path.display().to_string());
    agrees(TEST, ns, logged, &pressure);
    let wait = time
        .waits
        .iter()
        .find(|wait| wait.reason == TimeReason::FileLock)
        .unwrap();
    assert_eq!((wait.who.as_str(), wait.by.as_str()), ("python3", "lock-holder"));
    assert_eq!(wait.confidence, Some(Confidence::Likely));
    let verdict = phases::verdict(trace, now);
    eprintln!("{TEST}: {verdict}");
    if verdict.contains("processors were busy") {
        eprintln!("NOT JUDGED {TEST}::verdict: {verdict}");
        return;
    }
    assert!(
        verdict.starts_with("plugin cilium-cni waited")
            && verdict.contains("for python3")
            && verdict.contains(", which waited")
            && verdict.ends_with(&format!(
                "for a lock on a file ({}, held by lock-holder, likely)",
                path.display()
            )),
        "{verdict}"
    );
}

/// To how many of eight requests at once the waits of their daemon's threads were attributed, and how.
#[derive(Debug, Default)]
struct Attributed {
    wake_ups: usize,
    goroutines: usize,
    ambiguous: usize,
    /// None were.
    whole: usize,
    /// Waits were left out, since the ring buffer was too full for them.
    is_limited: bool,
}

/// Eight requests at once, each with a lock of its own: what is said to be likely is right, and nothing is certain. `steps` makes those of a
/// request from the steps.
fn eight_locks(
    test: &str,
    watch: &Watch,
    daemon: &Daemon,
    name: &str,
    first: usize,
    steps: impl Fn(Value) -> Value,
) -> (Attributed, Pressure) {
    let paths: Vec<PathBuf> = (0..8).map(|number| lock_file(watch, first + number)).collect();
    let held: Vec<Child> = (0..8u8)
        .map(|number| holder(watch, &paths[usize::from(number)], 3.0 + 0.2 * f64::from(number)))
        .collect();
    let pressure = Pressure::now();
    let shims: Vec<Child> = (0..8)
        .map(|number| {
            let steps = steps(serde_json::json!([0.01, {"lock": paths[number]}, 0.02]));
            let own = format!("{name}.d/{number}");
            std::fs::create_dir_all(watch.directory.path().join(&own)).unwrap();
            let shim = daemon.shim(watch, &format!("{own}/{name}"), &steps);
            plugin(&shim, &id(first + number)).spawn().unwrap()
        })
        .collect();
    shims.into_iter().for_each(wait_for);
    held.into_iter().for_each(wait_for);
    let lines = daemon.logged(8);
    let mut traces = traces_of(Vec::new());
    for number in 0..8 {
        traces = ended(watch, &id(first + number));
    }
    let is_limited = |event: &Event| matches!(event.body, Body::Limited { .. });
    let limited = watch.wait("the events", |events| Some(events.iter().any(is_limited)));
    let mut found = Attributed {
        is_limited: limited,
        ..Attributed::default()
    };
    for (number, path) in paths.iter().enumerate() {
        let sandbox = id(first + number);
        let line = lines.iter().find(|line| line["id"] == sandbox.as_str()).unwrap();
        let trace = trace_of(&traces, &sandbox);
        let (span, detail) = request(trace);
        if !is_seen(test, detail, &pressure) {
            continue;
        }
        let Some(threads) = detail.threads else {
            found.whole += 1;
            continue;
        };
        let time = detail.time.as_deref().unwrap();
        assert_eq!(time.total_ns(), span.duration_ns(span.start));
        assert!(
            time.waits
                .iter()
                .all(|wait| wait.confidence != Some(Confidence::Certain)),
            "{time:?}"
        );
        let locks = file_locks(time);
        let logged = logged_wait(line);
        eprintln!("{test}: {number} {threads:?} {locks:?}, logged {logged} ns");
        match threads {
            ThreadsAttribution::Ambiguous => {
                found.ambiguous += 1;
                continue;
            }
            ThreadsAttribution::Goroutines => found.goroutines += 1,
            ThreadsAttribution::WakeUps | ThreadsAttribution::OnlyRequest => found.wake_ups += 1,
        }
        let own = path.display().to_string();
        assert!(locks.iter().all(|(what, _)| *what == own), "{number} {time:?}");
        agrees(test, locks.iter().map(|(_, ns)| ns).sum(), logged, &pressure);
    }
    eprintln!("{test}: {found:?}");
    (found, pressure)
}

/// Four workers with a thread each.
#[test]
fn what_is_likely_of_a_daemons_workers_is_right() {
    const TEST: &str = "what_is_likely_of_a_daemons_workers_is_right";
    let Some(watch) = watch_threads(TEST) else { return };
    let daemon = Daemon::start(watch.directory.path(), true);
    let steps = |steps| serde_json::json!({"hand_over": true, "steps": steps});
    let (found, pressure) = eight_locks(TEST, &watch, &daemon, "cilium-cni", 0, steps);
    assert_eq!(found.goroutines, 0, "{found:?}");
    // Four workers take one each before any of them takes a second.
    if found.wake_ups == 0 {
        let waited = pressure.ns_since();
        assert!(waited > 100_000_000, "no request could be told from the others");
        eprintln!("NOT JUDGED {TEST}::likely: none of the requests, tasks waited for {waited} ns");
    }
}

/// A daemon in Go, whose goroutines have no thread of their own, but while they wait in a system call.
#[test]
fn what_a_daemons_goroutines_wait_for_is_their_requests() {
    const TEST: &str = "what_a_daemons_goroutines_wait_for_is_their_requests";
    let Some(program) = built::peer("SANDGLASS_GO_DAEMON", "godaemon") else {
        eprintln!("SKIPPED {TEST}: scripts/peer.sh godaemon builds it");
        return;
    };
    let Some(watch) = watch_threads(TEST) else { return };
    for (name, unix) in [("multus-shim", true), ("aws-cni", false)] {
        let directory = watch.directory.path().join(format!("{name}.d"));
        std::fs::create_dir(&directory).unwrap();
        let daemon = Daemon::start_go(&program, &directory, unix);
        let first = if unix { 0 } else { 8 };
        let (found, _) = eight_locks(TEST, &watch, &daemon, name, first, |steps| steps);
        // One is alone in flight where its daemon had answered all others, which the times of the locks exclude.
        let others = found.ambiguous + found.whole + found.wake_ups;
        if found.is_limited && others > 0 {
            eprintln!("NOT JUDGED {TEST}::goroutines: {others} requests without, waits were left out");
            continue;
        }
        assert_eq!(others, 0, "{found:?}");
    }
}
