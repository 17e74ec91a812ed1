//! What a plugin that still runs waits for now, as this machine's kernel shows it: a lock, an answer over TCP or a unix socket, a
//! processor that it has. And what one that was killed waited for.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use sandglass_correlator::{Correlator, CorrelatorConfig};
use sandglass_model::waits::{ThreadState, TimeReason, Waiting};
use sandglass_model::{Body, Event, Trace, registry};

use crate::waits::{trace_of, watch};
use crate::watch::{Watch, answering, plugin, wait_for};

/// Events of the plugin of a sandbox and of what it started, with those of no process. Others run on this machine too.
fn own_events(events: &[Event], sandbox: &str) -> Vec<Event> {
    let mut own = BTreeSet::new();
    let mut events = events.to_vec();
    events.sort_by_key(|event| event.at);
    events.retain(|event| match &event.body {
        Body::ProcessExecuted(exec) => {
            if exec.env("CNI_CONTAINERID") == Some(sandbox) {
                own.insert(exec.process);
            }
            own.contains(&exec.process)
        }
        Body::ProcessForked(fork) => own.contains(&fork.parent) && own.insert(fork.process),
        Body::ProcessExited(exit) => own.contains(&exit.process),
        Body::ThreadWoken(wake) => own.contains(&wake.times.process),
        Body::ThreadRan(run) => own.contains(&run.times.process),
        Body::ThreadEnded(times) => own.contains(&times.process),
        _ => true,
    });
    events
}

/// What the plugin of a sandbox waits for, by what was sent so far.
fn waiting_now(events: &[Event], sandbox: &str, name: &str) -> Option<Waiting> {
    let mut correlator = Correlator::new(CorrelatorConfig::default());
    for event in own_events(events, sandbox) {
        correlator.handle(event);
    }
    let mut open = correlator.open();
    let trace = open.find(|trace| trace.sandbox.as_ref().is_some_and(|id| id.0 == sandbox))?;
    waiting_of(trace, name)
}

fn waiting_of(trace: &Trace, name: &str) -> Option<Waiting> {
    let span = trace.spans.iter().find(|span| registry::name(span) == name)?;
    registry::waiting_of(trace, span).cloned()
}

/// Waits until the operation and the process of this span wait for the reason.
fn stuck(watch: &Watch, sandbox: &str, name: &str, reason: TimeReason) -> Waiting {
    // Only a look or a lock that was seen changes what is found.
    let counted = Cell::new(0);
    watch.wait(&format!("{sandbox} to wait for {}", reason.as_str()), |events| {
        let tells = |event: &&Event| matches!(event.body, Body::ThreadsSeen(_) | Body::LockBlocked(_));
        let count = events.iter().filter(tells).count();
        if counted.replace(count) == count {
            return None;
        }
        let operation = waiting_now(events, sandbox, "cni ADD")?;
        let waiting = waiting_now(events, sandbox, name)?;
        (waiting.reason == reason && operation.reason == reason).then_some(waiting)
    })
}

#[test]
fn a_lock_that_is_still_held_is_named_with_its_holder() {
    let Some(watch) = watch("a_lock_that_is_still_held_is_named_with_its_holder", 30) else {
        return;
    };
    let path = watch.directory.path().join("held.lock");
    let lock = File::create(&path).unwrap();
    lock.lock().unwrap();
    let script = watch.script("locking", &format!("/usr/bin/flock {} /bin/true", path.display()));
    let child = plugin(&script, "held").spawn().unwrap();
    let asleep = |event: &Event| match &event.body {
        Body::LockBlocked(blocked) if Path::new(&blocked.path) == path => Some(event.at),
        _ => None,
    };
    let seen = watch.wait("the lock", |events| events.iter().find_map(asleep));
    for name in ["command flock", "plugin locking"] {
        let waiting = stuck(&watch, "held", name, TimeReason::FileLock);
        assert_eq!(
            (Path::new(&waiting.what), waiting.who.as_str()),
            (path.as_path(), "flock"),
            "{waiting:?}"
        );
        assert!(
            !waiting.by.is_empty() && waiting.function.contains("lock"),
            "{waiting:?}"
        );
        // The sleep began about when the lock was seen: /proc/locks lists who is blocked before that one sleeps, and on a busy machine
        // the thread waits for a processor in between.
        assert!(
            seen.0.abs_diff(waiting.since.0) < 1_000_000_000,
            "{waiting:?}, seen at {seen:?}"
        );
    }
    lock.unlock().unwrap();
    wait_for(child);
    // What ended by itself waits for nothing.
    let trace = trace_of(watch.finish(), "held");
    for name in ["command flock", "plugin locking", "cni ADD"] {
        assert_eq!(waiting_of(&trace, name), None, "{name}");
    }
}

/// The plugin is killed while its command waits, as a runtime does when its own deadline passes.
#[test]
fn a_killed_plugin_says_what_it_waited_for() {
    let Some(watch) = watch("a_killed_plugin_says_what_it_waited_for", 30) else {
        return;
    };
    let path = watch.directory.path().join("killed.lock");
    let lock = File::create(&path).unwrap();
    lock.lock().unwrap();
    let script = watch.script("killed", &format!("/usr/bin/flock {} /bin/true\n:", path.display()));
    let mut child = plugin(&script, "killed").spawn().unwrap();
    stuck(&watch, "killed", "plugin killed", TimeReason::FileLock);
    child.kill().unwrap();
    let process = watch.exec_of(child.id()).1.process;
    wait_for(child);
    watch.exit_of(process);
    lock.unlock().unwrap();
    let trace = trace_of(watch.finish(), "killed");
    for name in ["plugin killed", "cni ADD"] {
        let waiting = waiting_of(&trace, name);
        let waiting = waiting.unwrap_or_else(|| unreachable!("{name} says nothing: {trace:?}"));
        assert_eq!(
            (waiting.reason, Path::new(&waiting.what)),
            (TimeReason::FileLock, path.as_path())
        );
    }
    let time = trace
        .spans
        .iter()
        .find(|span| registry::name(span) == "plugin killed")
        .unwrap();
    let time = time.process().and_then(|process| process.time.as_deref()).unwrap();
    let locked = time
        .parts
        .iter()
        .find(|part| part.0 == TimeReason::FileLock)
        .map_or(0, |part| part.1);
    assert!(locked * 2 > time.total_ns(), "{time:?}");
}

/// Builds `asks.c`; `None` without a compiler.
fn asks(directory: &Path) -> Option<PathBuf> {
    let path = directory.join("asks");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exec_probe/asks.c");
    let built = Command::new("cc")
        .args(["-O1", "-o"])
        .arg(&path)
        .arg(source)
        .output()
        .ok()?;
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(path)
}

#[test]
fn an_answer_that_does_not_come_names_the_address_or_who_listens() {
    let _turn = answering();
    let test = "an_answer_that_does_not_come_names_the_address_or_who_listens";
    let Some(watch) = watch(test, 30) else {
        return;
    };
    let Some(asks) = asks(watch.directory.path()) else {
        eprintln!("SKIPPED {test}: no C compiler");
        return;
    };
    let path = watch.directory.path().join("daemon.sock");
    let daemon = UnixListener::bind(&path).unwrap();
    let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = server.local_addr().unwrap();
    let own = std::fs::read_to_string("/proc/self/comm").unwrap();
    for (at, how) in ["", "poll"].into_iter().enumerate() {
        let sandbox = format!("unix{at}");
        let child = plugin(&asks, &sandbox)
            .args(["unix", path.to_str().unwrap()])
            .args(Some(how).filter(|how| !how.is_empty()))
            .spawn()
            .unwrap();
        let (mut asked, _) = daemon.accept().unwrap();
        asked.read_exact(&mut [0]).unwrap();
        let waiting = stuck(&watch, &sandbox, "plugin asks", TimeReason::Daemon);
        assert_eq!(
            (Path::new(&waiting.what), waiting.by.as_str()),
            (path.as_path(), own.trim_end()),
            "{how}: {waiting:?}"
        );
        drop(asked);
        wait_for(child);

        let sandbox = format!("tcp{at}");
        let port = address.port().to_string();
        let child = plugin(&asks, &sandbox)
            .args(["tcp", &port])
            .args(Some(how).filter(|how| !how.is_empty()))
            .spawn()
            .unwrap();
        let (mut asked, _) = server.accept().unwrap();
        asked.read_exact(&mut [0]).unwrap();
        let waiting = stuck(&watch, &sandbox, "plugin asks", TimeReason::Network);
        assert_eq!(waiting.what, address.to_string(), "{how}: {waiting:?}");
        drop(asked);
        wait_for(child);
    }
}

/// A plugin that computes is no sleeper, and a look does not disturb it.
#[test]
fn a_plugin_that_computes_runs() {
    let Some(watch) = watch("a_plugin_that_computes_runs", 30) else {
        return;
    };
    let script = watch.script("computing", "i=0; while [ ! -e \"$0.stop\" ]; do i=$((i+1)); done");
    let child = plugin(&script, "computing").spawn().unwrap();
    let pid = child.id();
    let state = watch.wait("a thread that does not sleep", |events| {
        events.iter().find_map(|event| match &event.body {
            Body::ThreadsSeen(seen) => {
                let own = seen.threads.iter().find(|thread| thread.thread == pid);
                own.filter(|own| own.state != ThreadState::Asleep).map(|own| own.state)
            }
            _ => None,
        })
    });
    assert!(matches!(state, ThreadState::Running | ThreadState::Runnable));
    File::create(script.with_file_name("computing.stop")).unwrap();
    wait_for(child);
    // When it has ended no look has it any more.
    watch.wait("a look without it", |events| {
        let last = events.iter().rev().find_map(|event| match &event.body {
            Body::ThreadsSeen(seen) => Some(seen),
            _ => None,
        })?;
        let has = last.unchanged.contains(&pid) || last.threads.iter().any(|thread| thread.thread == pid);
        (!has).then_some(())
    });
}
