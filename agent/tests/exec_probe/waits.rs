//! What plugins wait for, as this machine's kernel shows it: locks, timers, pipes, children, and processors. What comes out is
//! compared with what the test itself did, and with the scheduler's own counter.

use std::collections::BTreeSet;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use sandglass::app::settings::default_source;
use sandglass::sources::clock;
use sandglass::sources::linux::{LinuxOptions, Rung};
use sandglass_correlator::{Correlator, CorrelatorConfig, Output};
use sandglass_model::waits::{ThreadRun, TimeReason, TimeSpent};
use sandglass_model::{Body, Event, Timestamp, Trace, registry};

use crate::tracefs::Tracefs;
use crate::watch::{Watch, plugin, wait_for};

/// A source that records waits of plugins that run for longer than this; `None` where this machine cannot.
pub fn watch(test: &str, after_ms: u64) -> Option<Watch> {
    let watch = Watch::with(
        test,
        LinuxOptions {
            waits_after: Some(Duration::from_millis(after_ms)),
            ..default_source().unwrap()
        },
    )?;
    let status = watch
        .health
        .probes()
        .into_iter()
        .find(|probe| probe.probe == "waits")
        .unwrap();
    if !status.attached {
        eprintln!("SKIPPED {test}: {}", status.consequence);
        return None;
    }
    Some(watch)
}

/// The trace of a sandbox, made of all that was sent.
pub fn trace_of(mut events: Vec<Event>, sandbox: &str) -> Trace {
    events.sort_by_key(|event| event.at);
    let mut correlator = Correlator::new(CorrelatorConfig::default());
    for event in events {
        // Records of other probes are lost where another test floods them.
        assert!(
            !matches!(&event.body, Body::Lost { probe, .. } if ["exec", "waits"].contains(&probe.as_str())),
            "{event:?}"
        );
        correlator.handle(event);
    }
    correlator.finish();
    let traces = correlator.drain().into_iter().filter_map(|output| match output {
        Output::Closed(trace) => Some(trace),
        _ => None,
    });
    let mut traces = traces.filter(|trace| trace.sandbox.as_ref().is_some_and(|id| id.0 == sandbox));
    Trace::clone(&traces.next().unwrap())
}

/// What the time of the first span of this name went to; it adds up to the duration.
pub fn time_of<'t>(trace: &'t Trace, name: &str) -> &'t TimeSpent {
    let span = trace.spans.iter().find(|span| registry::name(span) == name).unwrap();
    let operation = span
        .detail
        .as_operation()
        .and_then(|operation| operation.time.as_deref());
    let time = operation.or_else(|| span.process().and_then(|process| process.time.as_deref()));
    assert!(time.is_some(), "{name} has no time: {trace:?}");
    let time = time.unwrap();
    assert_eq!(time.total_ns(), span.duration_ns(span.start), "{name}: {time:?}");
    time
}

pub fn ns_of(time: &TimeSpent, reason: TimeReason) -> u64 {
    time.parts.iter().find(|part| part.0 == reason).map_or(0, |part| part.1)
}

/// This process holds a lock that `flock` below a plugin waits for.
#[test]
fn a_lock_of_another_process_is_named_with_its_holder() {
    let Some(watch) = watch("a_lock_of_another_process_is_named_with_its_holder", 30) else {
        return;
    };
    let path = watch.directory.path().join("xtables.lock");
    let lock = File::create(&path).unwrap();
    lock.lock().unwrap();
    let script = watch.script("locking", &format!("/usr/bin/flock {} /bin/true", path.display()));
    let child = plugin(&script, "lock").spawn().unwrap();
    // From `/proc/locks` where the wait began before the programs were attached, else from them.
    let blocked = watch.wait("a process that waits for the lock", |events| {
        events.iter().find_map(|event| match &event.body {
            Body::LockBlocked(blocked) if Path::new(&blocked.path) == path => {
                Some((event.at, (blocked.holder, blocked.holder_name.clone())))
            }
            Body::FileLockTried(tried) if Path::new(&tried.path) == path => {
                Some((event.at, (tried.holder, tried.holder_name.clone())))
            }
            _ => None,
        })
    });
    assert_eq!(blocked.1.0, std::process::id());
    // Long enough to be most of the operation.
    std::thread::sleep(Duration::from_millis(300));
    let waited = clock::now().since(blocked.0);
    lock.unlock().unwrap();
    wait_for(child);
    let trace = trace_of(watch.finish(), "lock");
    for name in ["command flock", "plugin locking", "cni ADD"] {
        let time = time_of(&trace, name);
        assert!(
            ns_of(time, TimeReason::FileLock) >= waited,
            "{name}: {time:?}, at least {waited}"
        );
        let longest = &time.waits[0];
        assert_eq!(longest.reason, TimeReason::FileLock);
        assert_eq!(
            (Path::new(&longest.what), longest.who.as_str()),
            (path.as_path(), "flock")
        );
        assert_eq!(longest.by, blocked.1.1);
    }
}

/// Processes that are woken and sleep again while the programs are being attached, one after the other: no sleep is taken for time on
/// a processor.
#[test]
fn sleeps_that_begin_while_the_programs_are_attached_are_seen() {
    const SLEEPERS: usize = 60;
    let Some(watch) = watch("sleeps_that_begin_while_the_programs_are_attached_are_seen", 50) else {
        return;
    };
    let unseen = Tracefs::of_init("sleeps_at_attachment", "sched/sched_waking", "comm == \"sleep\"");
    let sleeper = "sh -c 'sleep 0.02; exec sleep 1' &";
    let script = watch.script("sleepers", &format!("{}\nwait", [sleeper; SLEEPERS].join("\n")));
    wait_for(plugin(&script, "sleepers").spawn().unwrap());
    let slept = |event: &Event| match &event.body {
        Body::ThreadWoken(wake) if event.at.since(wake.slept_from) >= 900_000_000 => Some(wake.times.process),
        _ => None,
    };
    let slept: BTreeSet<_> = watch.finish().iter().filter_map(slept).collect();
    let unseen = unseen.map_or(0, |tracefs| tracefs.lines().len());
    assert!(
        slept.len() + unseen >= SLEEPERS,
        "{}, {unseen} unseen, of {SLEEPERS}",
        slept.len()
    );
}

/// Sleeps in a child and behind a pipe: the time is the timer's, whoever waits for whom. The first sleep began before the
/// programs were attached.
#[test]
fn a_timer_is_found_through_children_and_pipes() {
    let Some(watch) = watch("a_timer_is_found_through_children_and_pipes", 30) else {
        return;
    };
    let script = watch.script("sleepy", "sleep 0.3\n(sleep 0.3; echo done) | cat >/dev/null");
    wait_for(plugin(&script, "timer").spawn().unwrap());
    let events = watch.finish();
    // A sleep that was not seen to begin began before the programs were attached, whatever the run queue's clock leaves out.
    let attached = |until: Timestamp| {
        let is_attached = |event: &&Event| event.body == Body::WaitsRecorded { on: true } && event.at <= until;
        events.iter().rfind(is_attached).map_or(until, |event| event.at)
    };
    for event in &events {
        if let Body::ThreadWoken(wake) = &event.body
            && wake.recovered
        {
            assert!(wake.slept_from <= attached(event.at), "{event:?}");
        }
    }
    let trace = trace_of(events, "timer");
    // By itself each sleep is its timer's. The plugin's path enters it when the shell waits for it, which a busy node delays.
    for span in trace
        .spans
        .iter()
        .filter(|span| registry::name(span) == "command sleep")
    {
        let time = span.process().and_then(|process| process.time.as_deref()).unwrap();
        // What lies before the programs were attached is unknown.
        let timer = ns_of(time, TimeReason::Timer);
        assert!(timer >= 150_000_000, "{time:?}");
        assert!(timer + ns_of(time, TimeReason::Unknown) >= 299_000_000, "{time:?}");
    }
    for name in ["plugin sleepy", "cni ADD"] {
        let time = time_of(&trace, name);
        let sleeps = time.waits.iter().find(|wait| wait.reason == TimeReason::Timer).unwrap();
        assert_eq!(sleeps.who, "sleep", "{time:?}");
        // Whoever waits for a child or a pipe waits for what is behind it. A busy node delays when the programs are attached, and
        // with it what of the first sleep is known.
        let (child, pipe) = (ns_of(time, TimeReason::Child), ns_of(time, TimeReason::Pipe));
        assert!(ns_of(time, TimeReason::Timer) >= 10 * (child + pipe), "{time:?}");
    }
}

/// Runs `work` beside so many busy threads for each processor.
pub fn beside_busy_threads<T>(for_each: usize, work: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let processors = std::thread::available_parallelism().unwrap().get();
        for _ in 0..for_each * processors {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let done = work();
        stop.store(true, Ordering::Relaxed);
        done
    })
}

fn until_recorded(watch: &Watch) {
    watch.wait("waits to be recorded", |events| {
        let mut events = events.iter();
        events
            .any(|event| event.body == Body::WaitsRecorded { on: true })
            .then_some(())
    });
}

/// Two busy threads for each processor: the time is the run queue's, and as much as the scheduler itself has counted.
#[test]
fn waits_for_a_processor_are_as_many_as_the_scheduler_counts() {
    let Some(watch) = watch("waits_for_a_processor_are_as_many_as_the_scheduler_counts", 0) else {
        return;
    };
    until_recorded(&watch);
    let body =
        "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; read ran waited times < /proc/$$/schedstat; echo $times";
    let script = watch.script("busy", body);
    let output = beside_busy_threads(2, || {
        let child = plugin(&script, "queue").stdout(Stdio::piped()).spawn().unwrap();
        child.wait_with_output().unwrap()
    });
    let switches: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    let events = watch.finish();
    let execs = events.iter().find_map(|event| match &event.body {
        Body::ProcessExecuted(exec) if exec.env("CNI_CONTAINERID") == Some("queue") => Some(exec.process),
        _ => None,
    });
    let process = execs.unwrap();
    let runs: Vec<(u64, ThreadRun)> = events
        .iter()
        .filter_map(|event| match &event.body {
            Body::ThreadRan(run) if run.times.process == process => Some((event.at.since(run.runnable_from), **run)),
            _ => None,
        })
        .collect();
    // The counter at a switch does not hold the wait that ends there.
    let (first, last) = (runs.first().unwrap(), runs.last().unwrap());
    let counted = last.1.times.run_delay_ns - first.1.times.run_delay_ns;
    let recorded: u64 = runs[..runs.len() - 1].iter().map(|run| run.0).sum();
    eprintln!(
        "recorded {recorded} ns in {} waits, counted {counted} ns, {switches} switches",
        runs.len()
    );
    let tolerance = (counted / 50).max(200_000);
    assert!(recorded <= counted + tolerance, "{recorded} of {counted}");
    // Waits of less than 0.2 ms have no record, and a switch has one wait at most.
    let too_short = (switches - runs.len() as u64) * 200_000;
    assert!(
        recorded + tolerance + too_short >= counted,
        "{recorded} of {counted}, and {too_short} at most in waits without a record"
    );
    let trace = trace_of(events, "queue");
    let time = time_of(&trace, "cni ADD");
    assert!(ns_of(time, TimeReason::RunQueue) >= recorded / 2, "{time:?}");
}

/// The scheduler's count is up to a tick old when a process ends, and the kernel side adds the rest: against what the kernel tells who waits
/// for the process (getrusage(2), which has all until its last switch).
#[test]
#[expect(clippy::zombie_processes, reason = "wait4 waits for it")]
fn the_processor_time_of_what_ended_is_that_of_its_resource_usage() {
    const PLUGINS: u64 = 20;
    const STOLEN_NS: u64 = 200_000;
    let Some(watch) = watch("the_processor_time_of_what_ended_is_that_of_its_resource_usage", 0) else {
        return;
    };
    until_recorded(&watch);
    let script = watch.script("works", "i=0; while [ $i -lt 7000 ]; do i=$((i+1)); done");
    let (mut behind, mut ahead) = (0, 0);
    for at in 0..PLUGINS {
        let child = plugin(&script, &format!("works{at}")).spawn().unwrap();
        let used = used_by(&child);
        let ended = watch.wait("the end of the plugin's thread", |events| {
            events.iter().find_map(|event| match &event.body {
                Body::ThreadEnded(times) if times.thread == child.id() => Some(times.processor_ns),
                _ => None,
            })
        });
        // The resource usage is in microseconds, and leaves out what a hypervisor has stolen since the last tick (kernel/sched/core.c,
        // update_rq_clock_task), which no program can read.
        assert!(ended <= used + 1_000 + STOLEN_NS, "{ended} of {used}");
        ahead += ended.saturating_sub(used + 1_000);
        behind += used - ended.min(used);
    }
    eprintln!(
        "{} ns between exit and last switch on average, {} ns more than was used",
        behind / PLUGINS,
        ahead / PLUGINS
    );
    assert!(ahead < PLUGINS * 50_000, "{ahead} ns more in {PLUGINS} plugins");
    assert!(behind < PLUGINS * 1_000_000, "{behind} ns in {PLUGINS} plugins");
}

/// Waits for a child that has no children: its time on a processor, nanoseconds.
fn used_by(child: &Child) -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    let (pid, mut status) = (child.id() as i32, 0);
    // SAFETY: both pointers are to live values of the types that wait4(2) writes.
    let ended = unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) };
    assert_eq!((ended, status), (pid, 0));
    // SAFETY: zeroed, and written by wait4(2).
    let usage = unsafe { usage.assume_init() };
    let ns = |time: libc::timeval| (time.tv_sec * 1_000_000 + time.tv_usec) as u64 * 1_000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

/// A plugin that works beside two busy threads for each processor, for longer than it takes until waits are recorded: of the time before
/// that the sums are known, from what the scheduler had counted by the plugin's first recorded wait.
#[test]
fn time_before_waits_are_recorded_is_divided_as_the_scheduler_counts() {
    let Some(watch) = watch("time_before_waits_are_recorded_is_divided_as_the_scheduler_counts", 50) else {
        return;
    };
    let body = "read ran0 waited0 times < /proc/$$/schedstat; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done
                read ran waited times < /proc/$$/schedstat; echo $((ran-ran0)) $((waited-waited0)); sleep 0.3";
    let script = watch.script("early", body);
    let mut early = plugin(&script, "early");
    // What it did between its fork and its exec is not the plugin's, and would be unknown if the exec's record did not have the counts.
    let late_exec = || {
        std::thread::sleep(Duration::from_millis(60));
        Ok(())
    };
    // SAFETY: between fork and exec it makes one system call, and allocates nothing.
    unsafe { early.pre_exec(late_exec) };
    let output = beside_busy_threads(2, || {
        let child = early.stdout(Stdio::piped()).spawn().unwrap();
        child.wait_with_output().unwrap()
    });
    let counted = String::from_utf8(output.stdout).unwrap();
    let counted: Vec<u64> = counted.split_whitespace().map(|ns| ns.parse().unwrap()).collect();
    let trace = trace_of(watch.finish(), "early");
    let time = time_of(&trace, "plugin early");
    eprintln!(
        "the scheduler counted {counted:?} ns before the sleep; {:?}",
        time.parts
    );
    let unknown = ns_of(time, TimeReason::Unknown);
    let at_least = |ns: u64| ns.saturating_sub((ns / 50).max(200_000));
    assert!(ns_of(time, TimeReason::Processor) >= at_least(counted[0]), "{time:?}");
    assert!(ns_of(time, TimeReason::RunQueue) >= at_least(counted[1]), "{time:?}");
    // All of the time until the programs were attached was unknown without the counts: 50 ms and more.
    assert!(unknown < 25_000_000, "{time:?}");
}

/// No wake-up shows that a new process is runnable: it waits for a processor from its creation on.
#[test]
fn a_new_process_waits_for_a_processor_from_its_creation_on() {
    let Some(watch) = watch("a_new_process_waits_for_a_processor_from_its_creation_on", 0) else {
        return;
    };
    until_recorded(&watch);
    // In the background, and the shell works on: `wait` is when it leaves the processor.
    let body =
        "i=0; while [ $i -lt 40 ]; do (:) & j=0; while [ $j -lt 3000 ]; do j=$((j+1)); done; wait; i=$((i+1)); done";
    let mut forks = plugin(&watch.script("forks", body), "forks");
    // Of a real-time policy, on one processor, and with children of the usual one: none of them can run before the shell waits, whatever
    // turns fair scheduling gives (sched(7)).
    let ahead = || {
        let mut one = CpuSet::new();
        one.set(sched_getcpu());
        sched_setaffinity(None, &one)?;
        let priority = libc::sched_param { sched_priority: 1 };
        let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
        // SAFETY: one system call, with a pointer to a value that lives until it returns.
        match unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec it makes three system calls, and allocates nothing.
    unsafe { forks.pre_exec(ahead) };
    wait_for(forks.spawn().unwrap());
    let events = watch.finish();
    let executed = events.iter().find_map(|event| match &event.body {
        Body::ProcessExecuted(exec) if exec.env("CNI_CONTAINERID") == Some("forks") => Some(exec.process),
        _ => None,
    });
    let forks = events.iter().filter_map(|event| match &event.body {
        Body::ProcessForked(fork) if Some(fork.parent) == executed => Some((event.at, fork.process)),
        _ => None,
    });
    let mut waited = Vec::new();
    for (forked, process) in forks {
        let first = events.iter().find_map(|event| match &event.body {
            Body::ThreadRan(run) if run.times.process == process && run.times.processor_ns == 0 => {
                Some((run.runnable_from, event.at))
            }
            _ => None,
        });
        let Some((runnable, ran)) = first else { continue };
        // It is reported when it exists already.
        assert!(runnable <= forked && forked <= ran, "{runnable:?} {forked:?} {ran:?}");
        waited.push(ran.since(runnable));
    }
    eprintln!(
        "{} of 40 processes waited for their first processor: {waited:?} ns",
        waited.len()
    );
    // A switch from process 1 is in no trace on some machines (`Tracefs::connects_of_init`).
    assert!(waited.len() >= 36);
}

/// Threads of processes that have ended take no room from others, where the programs stay attached: more have run than the kernel side
/// remembers, and the begin of a sleep is still seen, not recovered.
#[test]
fn sleeps_are_seen_however_many_processes_have_run() {
    const TEST: &str = "sleeps_are_seen_however_many_processes_have_run";
    let Some(watch) = watch(TEST, 0) else { return };
    let many =
        "for i in 1 2 3 4 5 6 7 8; do (n=0; while [ $n -lt 560 ]; do sleep 0.001; n=$((n + 1)); done) & done; wait";
    let script = watch.script("many", many);
    let began = std::time::Instant::now();
    wait_for(plugin(&script, "many").spawn().unwrap());
    eprintln!("{TEST}: 4480 processes in {:?}", began.elapsed());
    std::thread::sleep(Duration::from_secs(1));
    let script = watch.script("last", "sleep 0.25");
    let last = clock::now();
    wait_for(plugin(&script, "last").spawn().unwrap());
    let is_sleep = |event: &Event| match &event.body {
        Body::ThreadWoken(wake) => {
            let is_long = event.at.since(wake.slept_from) >= 240_000_000;
            (event.at > last && is_long && wake.stack.iter().any(|name| name.contains("nanosleep")))
                .then_some(wake.recovered)
        }
        _ => None,
    };
    let recovered = watch.wait("the sleep", |events| events.iter().find_map(is_sleep));
    assert!(!recovered, "the kernel side had no room for the thread");
}

/// A plugin that is fast enough, and one without the programs.
#[test]
fn fast_plugins_and_other_rungs_have_no_waits() {
    let Some(watch) = watch("fast_plugins_and_other_rungs_have_no_waits", 600_000) else {
        return;
    };
    let script = watch.script("fast", "sleep 0.1");
    wait_for(plugin(&script, "fast").spawn().unwrap());
    let about_waits = |event: &Event| {
        matches!(
            event.body,
            Body::ThreadWoken(_) | Body::ThreadRan(_) | Body::LockBlocked(_) | Body::WaitsRecorded { on: true }
        )
    };
    assert!(!watch.finish().iter().any(about_waits));
    let options = LinuxOptions {
        rungs: vec![Rung::RawTp],
        waits_after: Some(Duration::ZERO),
        ..default_source().unwrap()
    };
    let Some(watch) = Watch::with("fast_plugins_and_other_rungs_have_no_waits", options) else {
        return;
    };
    let status = watch
        .health
        .probes()
        .into_iter()
        .find(|probe| probe.probe == "waits")
        .unwrap();
    assert!(
        !status.attached && status.consequence.contains("only tp_btf"),
        "{status:?}"
    );
    wait_for(plugin(&script_in(&watch), "other").spawn().unwrap());
    assert!(!watch.finish().iter().any(about_waits));
}

fn script_in(watch: &Watch) -> std::path::PathBuf {
    watch.script("fast", "sleep 0.1")
}
