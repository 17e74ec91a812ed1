//! What the probe bounds, counts and costs: long arguments, bursts, silences, a ring too small, unrelated processes.

use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};

use sandglass::app::settings::default_source;
use sandglass::sources;
use sandglass::sources::clock;
use sandglass::sources::linux::{LinuxOptions, LinuxSource, ProgramTime, Rung};
use sandglass_model::event::ExitStatus;
use sandglass_model::{Body, Event, ProcessKey};

use crate::watch::{Watch, execs, plugin, wait_for};

#[test]
fn binary_and_long_arguments_are_bounded() {
    let Some(watch) = Watch::start("binary_and_long_arguments_are_bounded") else {
        return;
    };
    let binary = std::ffi::OsStr::from_bytes(b"\xff\xfe\x01");
    let child = plugin(Path::new("/bin/true"), "binary")
        .arg(binary)
        .arg("ümlaut")
        .spawn()
        .unwrap();
    let pid = child.id();
    wait_for(child);
    let (_, exec) = watch.exec_of(pid);
    assert_eq!(exec.args, ["/bin/true", "\\xff\\xfe\u{1}", "ümlaut"]);
    assert!(!exec.args_truncated);

    let child = plugin(Path::new("/bin/true"), "long")
        .arg("a".repeat(100_000))
        .env("TRACEPARENT", "00-ab-cd-01")
        .spawn()
        .unwrap();
    let pid = child.id();
    wait_for(child);
    let (_, exec) = watch.exec_of(pid);
    assert!(exec.args_truncated);
    assert_eq!(
        exec.args.iter().map(|argument| argument.len() + 1).sum::<usize>(),
        4_097
    );
    assert_eq!(
        exec.env("CNI_CONTAINERID"),
        Some("long"),
        "the environment behind long arguments is still read"
    );
    assert_eq!(exec.env("TRACEPARENT"), Some("00-ab-cd-01"));
}

#[test]
fn a_long_variable_is_cut_and_does_not_hide_others() {
    let Some(watch) = Watch::start("a_long_variable_is_cut_and_does_not_hide_others") else {
        return;
    };
    let child = plugin(Path::new("/bin/true"), "cut")
        .env("CNI_ARGS", "k".repeat(60_000))
        .spawn()
        .unwrap();
    let pid = child.id();
    wait_for(child);
    let (_, exec) = watch.exec_of(pid);
    assert_eq!(exec.env("CNI_ARGS").map(str::len), Some(2_047 - "CNI_ARGS=".len()));
    assert_eq!(exec.env("CNI_PATH"), Some("/opt/cni/bin"));
}

/// A threaded process ends once, when its last thread does.
#[test]
fn threads_are_no_processes() {
    let Some(watch) = Watch::start("threads_are_no_processes") else {
        return;
    };
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("SKIPPED threads_are_no_processes: no python3");
        return;
    }
    let program = "import threading,os\nts=[threading.Thread(target=lambda: None) for _ in range(20)]\n\
                   [t.start() for t in ts]\n[t.join() for t in ts]\n\
                   threading.Thread(target=lambda: os._exit(5)).start()\nimport time; time.sleep(5)";
    let child = plugin(Path::new("/usr/bin/python3"), "threads")
        .arg("-c")
        .arg(program)
        .spawn()
        .unwrap();
    let pid = child.id();
    wait_for(child);
    let (_, exec) = watch.exec_of(pid);
    assert_eq!(watch.exit_of(exec.process).1.how, ExitStatus::Code(5));
    let events = watch.finish();
    let about = |event: &&Event| match &event.body {
        Body::ProcessForked(fork) => fork.parent.pid == pid,
        Body::ProcessExited(exit) => exit.process.pid == pid,
        _ => false,
    };
    assert_eq!(events.iter().filter(about).count(), 1, "one exit and no fork");
}

#[test]
fn five_hundred_plugins_at_once_and_none_lost() {
    let Some(watch) = Watch::start("five_hundred_plugins_at_once_and_none_lost") else {
        return;
    };
    let script = watch.script("burst", "/bin/true");
    let pids: Vec<u32> = std::thread::scope(|scope| {
        let starters: Vec<_> = (0..10)
            .map(|starter| {
                let script = &script;
                scope.spawn(move || {
                    let children: Vec<Child> = (0..50)
                        .map(|n| plugin(script, &format!("burst-{starter}-{n}")).spawn().unwrap())
                        .collect();
                    children
                        .into_iter()
                        .map(|mut child| {
                            child.wait().unwrap();
                            child.id()
                        })
                        .collect::<Vec<u32>>()
                })
            })
            .collect();
        starters
            .into_iter()
            .flat_map(|starter| starter.join().unwrap())
            .collect()
    });
    for pid in &pids {
        let (_, exec) = watch.exec_of(*pid);
        assert_eq!(watch.exit_of(exec.process).1.how, ExitStatus::Code(0));
    }
    let events = watch.finish();
    assert!(!events.iter().any(|event| matches!(event.body, Body::Lost { .. })));
    let scripts: Vec<_> = execs(&events)
        .filter(|(_, exec)| exec.path == script.to_str().unwrap())
        .collect();
    assert_eq!(scripts.len(), 500);
    let forks = |parent: ProcessKey| {
        events
            .iter()
            .filter(|event| matches!(&event.body, Body::ProcessForked(fork) if fork.parent == parent))
            .count()
    };
    assert!(scripts.iter().all(|(_, exec)| forks(exec.process) == 1));
}

/// The reader sleeps when nothing comes, and the kernel side wakes it only when it sleeps: whenever the next record comes,
/// the moment of falling asleep included, it must not lie about until a clock says so.
#[test]
fn after_any_silence_the_next_record_comes_soon() {
    let Some(watch) = Watch::start("after_any_silence_the_next_record_comes_soon") else {
        return;
    };
    let silences = "0 0.2 0.45 0.48 0.5 0.52 0.54 0.56 0.6 0.7 1.3";
    let script = watch.script(
        "silent",
        &format!("for s in {silences}; do sleep $s; /bin/true $s; done"),
    );
    let child = plugin(&script, "silent").spawn().unwrap();
    for silence in silences.split(' ') {
        let at = watch.wait(silence, |events| {
            let found = execs(events).find(|(_, exec)| exec.args == ["/bin/true", silence]);
            found.map(|(at, _)| at)
        });
        let late = clock::now().since(at);
        // A reader that was not woken looks once a second. On a busy machine it gets the processor late: it waits its turn.
        assert!(late < 500_000_000, "{late} ns after a silence of {silence} s");
    }
    wait_for(child);
}

/// A ring too small for a burst loses records, and the loss is counted.
#[test]
fn what_is_lost_is_counted() {
    let options = LinuxOptions {
        ring_bytes: 4096,
        ..default_source().unwrap()
    };
    let Some(watch) = Watch::with("what_is_lost_is_counted", options) else {
        return;
    };
    // One record of this size alone fills more than the ring.
    let child = plugin(Path::new("/bin/true"), "lost")
        .arg("z".repeat(4_096))
        .spawn()
        .unwrap();
    wait_for(child);
    let count = watch.wait("a loss", |events| {
        events.iter().find_map(|event| match &event.body {
            Body::Lost { probe, count } if probe == "exec" => Some(*count),
            _ => None,
        })
    });
    assert!(count >= 1);
}

/// The budget is 1 us per unrelated exec; a busy machine gets some slack here, the figure is in the output.
#[test]
fn off_its_hooks_nothing_is_seen_and_on_them_again_everything() {
    const TEST: &str = "off_its_hooks_nothing_is_seen_and_on_them_again_everything";
    for rung in Rung::ALL {
        let options = LinuxOptions {
            rungs: vec![rung],
            ..default_source().unwrap()
        };
        let Some(mut watch) = Watch::with(TEST, options) else {
            return;
        };
        let mut ran = Vec::new();
        // A second request returns the same.
        for hooked in [false, false, true, true, false, true] {
            watch.source.as_mut().unwrap().set_hooked(hooked).unwrap();
            let child = plugin(Path::new("/bin/true"), "hooked").spawn().unwrap();
            ran.push((child.id(), hooked));
            wait_for(child);
        }
        let (_, last) = watch.exec_of(ran.last().unwrap().0);
        watch.exit_of(last.process);
        let events = watch.finish();
        // Other tests' plugins are seen as well.
        let ours = |pid: &u32| ran.iter().any(|(ran, _)| ran == pid);
        let seen: Vec<u32> = execs(&events).map(|(_, exec)| exec.process.pid).filter(ours).collect();
        let expected: Vec<u32> = ran.iter().filter(|(_, hooked)| *hooked).map(|(pid, _)| *pid).collect();
        assert_eq!(seen, expected, "{}", rung.name());
    }
}

#[test]
fn unrelated_processes_cost_little() {
    for rung in Rung::ALL {
        let options = LinuxOptions {
            rungs: vec![rung],
            ..default_source().unwrap()
        };
        let Some(watch) = Watch::with("unrelated_processes_cost_little", options) else {
            return;
        };
        let Ok(_counting) = sources::linux::enable_run_time() else {
            eprintln!("SKIPPED unrelated_processes_cost_little: no run-time statistics");
            return;
        };
        let source = watch.source.as_ref().unwrap();
        // Fifteen batches: the quietest one shows what the program costs, the others what else the machine does.
        let batches: Vec<Vec<u64>> = (0..15).map(|_| costs_of(source, 100)).collect();
        for (n, program) in source.bpf_run_time().iter().enumerate() {
            let each: Vec<u64> = batches.iter().map(|batch| batch[n]).collect();
            let (least, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
            eprintln!("{} {}: {least} to {most} ns", rung.name(), program.program);
            // Loose: emulated machines are slow. It catches a program that does something for everybody.
            assert!(*least < 50_000, "{}: {least} ns", program.program);
        }
    }
}

/// Nanoseconds per run of each program while `count` unrelated processes run, and as many messages pass a socket.
fn costs_of(source: &LinuxSource, count: usize) -> Vec<u64> {
    let (mut one, mut other) = UnixStream::pair().unwrap();
    let before = source.bpf_run_time();
    for _ in 0..count {
        // As a login shell's: 35 variables, 1.3 KiB.
        let variables = (0..35).map(|n| (format!("VARIABLE_{n:02}"), "x".repeat(25)));
        wait_for(Command::new("/bin/true").env_clear().envs(variables).spawn().unwrap());
        one.write_all(b"x").unwrap();
        other.read_exact(&mut [0]).unwrap();
    }
    let after = source.bpf_run_time();
    let cost = |(after, before): (&ProgramTime, &ProgramTime)| {
        let runs = after.run_count - before.run_count;
        // Attached only while a plugin is slow or a shim, which may be one of another test; on_extack runs when the kernel remarks on
        // a netlink request.
        let at_times = [
            "on_switch",
            "on_waking",
            "on_sock_send",
            "on_sock_receive",
            "on_flock",
            "on_posix_lock",
            "on_contention_begin",
            "on_contention_end",
            "on_extack",
            "look",
        ];
        assert!(
            at_times.contains(&after.program.as_str()) || runs >= count as u64,
            "{} ran {runs} times",
            after.program
        );
        (after.run_time_ns - before.run_time_ns) / runs.max(1)
    };
    after.iter().zip(&before).map(cost).collect()
}
