//! Locks on files and of the kernel, as this machine's kernel shows them. What comes out is compared with what the test itself
//! did, and with the kernel's own events in tracefs.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use sandglass::sources::clock;
use sandglass_lab::netns;
use sandglass_lab::pressure::Pressure;
use sandglass_lab::skip::{has, skipped};
use sandglass_model::locks::{FileLockTry, KernelLockWait, LockOutcome};
use sandglass_model::waits::{TimeReason, TimeSpent, WaitGroup};
use sandglass_model::{Body, Event, Timestamp, registry};

use crate::tracefs::{Line, Tracefs};
use crate::waits::{ns_of, time_of, trace_of, watch};
use crate::watch::{Watch, converse, plugin, wait_for};

/// A source that records all waits and locks; `None` where this machine cannot.
fn watch_locks(test: &str) -> Option<Watch> {
    let watch = watch(test, 0)?;
    let status = watch
        .health
        .probes()
        .into_iter()
        .find(|probe| probe.probe == "locks")
        .unwrap();
    if !status.attached || !status.consequence.is_empty() {
        skipped(test, &status.consequence);
        return None;
    }
    watch.wait("waits to be recorded", |events| {
        let on = events
            .iter()
            .find(|event| event.body == Body::WaitsRecorded { on: true });
        on.map(|_| ())
    });
    Some(watch)
}

/// Tries of files below this path: plugins of other tests run at the same time.
fn tries<'e>(events: &'e [Event], path: &Path) -> Vec<(Timestamp, &'e FileLockTry)> {
    let tries = events.iter().filter_map(|event| match &event.body {
        Body::FileLockTried(tried) => Some((event.at, &**tried)),
        _ => None,
    });
    tries
        .filter(|(_, tried)| Path::new(&tried.path).starts_with(path))
        .collect()
}

fn kernel_waits(events: &[Event]) -> impl Iterator<Item = (Timestamp, &KernelLockWait)> {
    events.iter().filter_map(|event| match &event.body {
        Body::KernelLockWaited(wait) => Some((event.at, &**wait)),
        _ => None,
    })
}

fn waits_of(time: &TimeSpent, reason: TimeReason) -> Vec<&WaitGroup> {
    time.waits.iter().filter(|wait| wait.reason == reason).collect()
}

/// Two figures agree within 2 %, or 0.2 ms. On a machine where tasks waited for longer than the difference, nothing is judged.
fn agree(what: &str, ours: u64, theirs: u64, pressure: &Pressure) {
    let (difference, tolerance) = (ours.abs_diff(theirs), (theirs / 50).max(200_000));
    eprintln!("{what}: {ours} ns, the kernel's own events {theirs} ns");
    if difference > tolerance && difference <= pressure.ns_since() {
        eprintln!(
            "NOT JUDGED {what}: {difference} ns apart, tasks waited for {} ns",
            pressure.ns_since()
        );
        return;
    }
    assert!(difference <= tolerance, "{what}: {ours} ns and {theirs} ns");
}

/// A process named `lock-holder` that has the file locked for so long, from when this returns.
pub fn holder(watch: &Watch, path: &Path, seconds: f64) -> std::process::Child {
    let program = watch.directory.path().join("lock-holder");
    if !program.exists() {
        std::fs::copy("/usr/bin/flock", &program).unwrap();
    }
    let ready = watch.directory.path().join("ready");
    let _ = std::fs::remove_file(&ready);
    let hold = format!("echo > {}; exec sleep {seconds}", ready.display());
    let child = Command::new(&program)
        .arg(path)
        .args(["sh", "-c", &hold])
        .spawn()
        .unwrap();
    while !ready.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

/// What iptables does before 1.8.9 where `-w` has a limit (iptables/xshared.c, xtables_lock): it tries, and sleeps in select(2). With a
/// copy of Perl as `old-iptables`, since no distribution of today has that version.
#[test]
fn a_program_that_only_tries_again_waits_for_the_lock() {
    let test = "a_program_that_only_tries_again_waits_for_the_lock";
    if !has(test, "perl") || !has(test, "flock") {
        return;
    }
    let Some(watch) = watch_locks(test) else {
        return;
    };
    let path = watch.directory.path().join("xtables.lock");
    File::create(&path).unwrap();
    let old = watch.directory.path().join("old-iptables");
    std::fs::copy("/usr/bin/perl", &old).unwrap();
    let poll = "use Fcntl ':flock'; open(my $f, '>', $ARGV[0]) or die; for (1..50) { exit 0 if flock($f, LOCK_EX|LOCK_NB); select(undef, undef, undef, 0.1); } exit 4;";
    let script = watch.script(
        "portmap",
        &format!(
            "{} -e \"{}\" {}",
            old.display(),
            poll.replace('$', "\\$"),
            path.display()
        ),
    );
    let held = holder(&watch, &path, 2.0);
    let begin = clock::now();
    wait_for(plugin(&script, "poller").spawn().unwrap());
    let waited = clock::now().since(begin);
    wait_for(held);
    let events = watch.finish();
    let outcomes: Vec<LockOutcome> = tries(&events, &path)
        .into_iter()
        .map(|(_, tried)| tried.outcome)
        .collect();
    assert!(outcomes.len() > 10, "{outcomes:?}");
    assert_eq!(outcomes.last(), Some(&LockOutcome::Taken), "{outcomes:?}");
    assert!(
        outcomes[..outcomes.len() - 1]
            .iter()
            .all(|outcome| *outcome == LockOutcome::Busy)
    );
    let slept = (outcomes.len() as u64 - 1) * 99_000_000;
    let trace = trace_of(events, "poller");
    for name in ["command old-iptables", "plugin portmap", "cni ADD"] {
        let time = time_of(&trace, name);
        let locked = ns_of(time, TimeReason::FileLock);
        // Each sleep lasts a tenth of a second at least, however busy the node is.
        assert!(
            locked >= slept && locked <= waited,
            "{name}: {time:?}, {slept} to {waited}"
        );
        assert_eq!(ns_of(time, TimeReason::Timer), 0, "{name}: {time:?}");
        let group = waits_of(time, TimeReason::FileLock)[0];
        assert_eq!(
            (Path::new(&group.what), group.who.as_str(), group.by.as_str()),
            (path.as_path(), "old-iptables", "lock-holder")
        );
    }
}

/// iptables with its own lock file and a limit. 1.8.9 and newer block, with an alarm; the lock file is one of the test's own
/// (`XTABLES_LOCKFILE`), since the machine's is for everybody. The variant on nf_tables takes no lock: it must show none.
#[test]
fn iptables_waits_for_its_lock_and_says_who_has_it() {
    let test = "iptables_waits_for_its_lock_and_says_who_has_it";
    if !has(test, "iptables-legacy") || !has(test, "flock") {
        return;
    }
    let Some(watch) = watch_locks(test) else {
        return;
    };
    let path = watch.directory.path().join("own.lock");
    File::create(&path).unwrap();
    let body = |variant: &str| {
        let lock = path.display();
        format!(
            "export PATH=/usr/sbin:/sbin:$PATH XTABLES_LOCKFILE={lock}\nunshare -n sh -c '{variant} -w 5 -S >/dev/null; true'"
        )
    };
    let legacy = watch.script("legacy", &body("iptables-legacy"));
    let nft = watch.script("nft", &body("iptables-nft"));
    let tracefs = Tracefs::start(test, &["filelock/flock_lock_inode"]);
    let pressure = Pressure::now();
    let held = holder(&watch, &path, 2.0);
    wait_for(plugin(&legacy, "legacy").spawn().unwrap());
    wait_for(plugin(&nft, "nft").spawn().unwrap());
    wait_for(held);
    let events = watch.finish();
    let trace = trace_of(events.clone(), "legacy");
    let name = ["command iptables-legacy", "command xtables-legacy-multi"]
        .into_iter()
        .find(|name| trace.spans.iter().any(|span| registry::name(span) == *name))
        .unwrap();
    let command = trace.spans.iter().find(|span| registry::name(span) == name).unwrap();
    let tid = command.process().unwrap().pid;
    for name in [name, "plugin legacy", "cni ADD"] {
        let time = time_of(&trace, name);
        assert!(ns_of(time, TimeReason::FileLock) >= 1_500_000_000, "{name}: {time:?}");
        let group = waits_of(time, TimeReason::FileLock)[0];
        assert_eq!(
            (Path::new(&group.what), group.by.as_str()),
            (path.as_path(), "lock-holder"),
            "{name}"
        );
    }
    if let Some(tracefs) = tracefs {
        let lines = tracefs.lines();
        let of_it = |ret: &str| {
            lines
                .iter()
                .find(|line| line.tid == tid && line.field("ret") == Some(ret))
        };
        let (blocked, taken) = (of_it("1").unwrap(), of_it("0").unwrap());
        let ours = ns_of(time_of(&trace, name), TimeReason::FileLock);
        agree(
            &format!("{test}::file_lock"),
            ours,
            taken.at.since(blocked.at),
            &pressure,
        );
        let reported = tries(&events, &path)
            .into_iter()
            .find(|(_, tried)| tried.thread == tid)
            .unwrap()
            .0;
        agree(&format!("{test}::blocked_at"), reported.0, blocked.at.0, &pressure);
    }
    let other = trace_of(events, "nft");
    let plugin = time_of(&other, "plugin nft");
    assert_eq!(ns_of(plugin, TimeReason::FileLock), 0, "{plugin:?}");
}

fn host_local() -> Option<PathBuf> {
    let found = ["/usr/lib/cni/host-local", "/opt/cni/bin/host-local"].map(PathBuf::from);
    found.into_iter().find(|path| path.exists())
}

/// host-local locks the folder of its network with flock(2) and waits (plugins/ipam/host-local/backend/disk). Each holder is a plugin
/// too, of another sandbox.
#[test]
fn plugins_that_wait_for_one_another_are_named() {
    let test = "plugins_that_wait_for_one_another_are_named";
    let Some(program) = host_local() else {
        skipped(test, "host-local is not installed");
        return;
    };
    let Some(watch) = watch_locks(test) else {
        return;
    };
    let data = watch.directory.path().join("networks");
    let conf = format!(
        r#"{{"cniVersion":"0.4.0","name":"pods","type":"bridge","ipam":{{"type":"host-local","subnet":"10.77.0.0/24","dataDir":"{}"}}}}"#,
        data.display()
    );
    let answers: Vec<String> = std::thread::scope(|scope| {
        let run = |number: usize| {
            let mut command = plugin(&program, &format!("local-{number}"));
            command.env("CNI_PATH", program.parent().unwrap());
            converse(command, &conf).1
        };
        let threads: Vec<_> = (0..20).map(|number| scope.spawn(move || run(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let addresses: BTreeSet<&str> = answers
        .iter()
        .filter_map(|answer| answer.split("10.77.0.").nth(1)?.split('/').next())
        .collect();
    assert_eq!(addresses.len(), 20, "{answers:?}");
    let events = watch.finish();
    let blocked: Vec<&FileLockTry> = tries(&events, &data)
        .into_iter()
        .map(|(_, tried)| tried)
        .filter(|tried| tried.outcome == LockOutcome::Blocked)
        .collect();
    assert!(!blocked.is_empty(), "twenty at once, and nobody waited: {events:?}");
    let named = blocked.iter().filter(|tried| tried.holder_name == "host-local").count();
    eprintln!(
        "{} of {} waits have a holder's name at their begin",
        named,
        blocked.len()
    );
    // Tries that were left out, on a node too busy for their reader, leave waits without a path.
    let is_limited = |event: &Event| matches!(&event.body, Body::Limited { probe, .. } if probe == "waits");
    let limited = events.iter().any(is_limited);
    let mut found = 0;
    for number in 0..20 {
        let trace = trace_of(events.clone(), &format!("local-{number}"));
        let time = time_of(&trace, "plugin host-local");
        for group in waits_of(time, TimeReason::FileLock) {
            assert_eq!(group.by, "host-local", "{group:?}");
            if group.what.is_empty() && limited {
                eprintln!("NOT JUDGED {test}::path: records were left out");
                continue;
            }
            assert!(Path::new(&group.what).starts_with(&data), "{group:?}");
            found += 1;
        }
    }
    assert!(found > 0, "no wait of 0.2 ms");
}

/// Stops what it runs when the test ends, also by a panic.
struct Bulk(Vec<std::process::Child>);

impl Drop for Bulk {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Others make and remove links in bulk, in a namespace of the test's own; the RTNL is one for all namespaces.
#[test]
fn the_rtnl_has_a_holder() {
    let test = "the_rtnl_has_a_holder";
    if !has(test, "ip") {
        return;
    }
    let Some(watch) = watch_locks(test) else {
        return;
    };
    let namespace = format!("sglock{}", std::process::id());
    if let Err(error) = netns::add(&namespace) {
        skipped(test, &error);
        return;
    }
    // Who removes several links at once waits for RCU while it has the lock (net/core/dev.c, unregister_netdevice_many_notify): then
    // others sleep for it. For an owner that runs they only spin (kernel/locking/mutex.c, mutex_optimistic_spin).
    let batch = |(name, group): (&str, u32)| {
        let path = watch.directory.path().join(name);
        let make = |number: u32| format!("link add {name}{number} group {group} type veth\n");
        let round = (0..8).map(make).collect::<String>() + &format!("link del group {group}\n");
        std::fs::write(&path, round.repeat(5_000)).unwrap();
        path
    };
    // Of two, each may wait for RCU, without the lock, whenever the plugin wants it: so it was in one run of many.
    let files = [("a", 71), ("b", 72), ("c", 73), ("d", 74)].map(batch);
    let tracefs = Tracefs::start(test, &["lock/contention_begin", "lock/contention_end"]);
    let pressure = Pressure::now();
    let body = format!(
        "export PATH=/usr/sbin:/sbin:$PATH\nfor i in $(seq 40); do ip -n {namespace} link add own$i type veth; ip -n {namespace} link del own$i; done"
    );
    let script = watch.script("macvlan", &body);
    {
        let start = |path: &PathBuf| {
            Command::new("ip")
                .args(["-n", &namespace, "-force", "-batch"])
                .arg(path)
                .stderr(Stdio::null())
                .spawn()
        };
        let _bulk = Bulk(files.iter().map(|path| start(path).unwrap()).collect());
        std::thread::sleep(Duration::from_millis(100));
        wait_for(plugin(&script, "rtnl").spawn().unwrap());
    }
    let _ = netns::ip(&["netns", "del", &namespace]);
    let events = watch.finish();
    let trace = trace_of(events.clone(), "rtnl");
    let time = time_of(&trace, "cni ADD");
    let groups = waits_of(time, TimeReason::KernelLock);
    assert!(
        groups
            .iter()
            .any(|group| (group.what.as_str(), group.who.as_str(), group.by.as_str()) == ("rtnl", "ip", "ip")),
        "{time:?}"
    );
    let Some(tracefs) = tracefs else {
        return;
    };
    // Each wait as this kernel's own events have it: from the first begin at a lock to its end.
    let theirs = contentions(&tracefs.lines());
    let (mut ours, mut same, mut total) = (0, 0, 0);
    for (at, wait) in kernel_waits(&events) {
        let found = theirs.iter().find(|(tid, from, to)| {
            *tid == wait.thread && from.0.abs_diff(wait.from.0) <= 200_000 && to.0.abs_diff(at.0) <= 200_000
        });
        total += 1;
        if let Some((_, from, to)) = found {
            same += to.since(*from);
            ours += at.since(wait.from);
        }
    }
    eprintln!("{total} waits, {ours} ns in those that the kernel's own events have");
    assert!(total > 0);
    agree(&format!("{test}::contention"), ours, same, &pressure);
    assert!(ours > 0, "no wait is in tracefs: {theirs:?}");
}

/// Thread, begin and end of each wait for one lock.
fn contentions(lines: &[Line]) -> Vec<(u32, Timestamp, Timestamp)> {
    let mut open: Vec<(u32, String, Timestamp)> = Vec::new();
    let mut found = Vec::new();
    for line in lines {
        let lock = line.rest.split(' ').next().unwrap_or_default().to_owned();
        let known = open.iter().position(|(tid, of, _)| *tid == line.tid && *of == lock);
        match (line.event.as_str(), known) {
            ("contention_begin", None) => open.push((line.tid, lock, line.at)),
            ("contention_end", Some(known)) => {
                let (tid, _, from) = open.swap_remove(known);
                found.push((tid, from, line.at));
            }
            _ => {}
        }
    }
    found
}

/// The programs are attached only while a plugin is slow.
#[test]
fn locks_are_not_reported_of_fast_plugins() {
    let test = "locks_are_not_reported_of_fast_plugins";
    if !has(test, "flock") {
        return;
    }
    let Some(watch) = watch(test, 600_000) else {
        return;
    };
    let path = watch.directory.path().join("lock");
    File::create(&path).unwrap();
    let held = holder(&watch, &path, 0.2);
    let script = watch.script("fast", &format!("flock {} true", path.display()));
    wait_for(plugin(&script, "fast").spawn().unwrap());
    wait_for(held);
    let events = watch.finish();
    assert_eq!(tries(&events, Path::new("/")).len() + kernel_waits(&events).count(), 0);
}
