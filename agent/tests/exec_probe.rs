//! The process probe against this machine's kernel: real plugins, real environments, real exits.
//!
//! Needs root with BPF; where that is missing each test says `SKIPPED` and why.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use prometheus_client::metrics::gauge::Gauge;
use sandglass::health::Health;
use sandglass::sources::linux::{LinuxSource, Options, ProgramTime, Rung};
use sandglass::sources::{self, clock};
use sandglass_model::event::{Exec, Exit, ExitStatus, Netns, PluginIo};
use sandglass_model::{Body, Event, ProcessKey, Timestamp};
use tempfile::TempDir;

/// A running source and everything it has sent.
struct Watch {
    source: Option<LinuxSource>,
    events: Arc<(Mutex<Vec<Event>>, Condvar)>,
    health: Health,
    directory: TempDir,
}

impl Watch {
    /// Starts the source; says `SKIPPED` and returns `None` where that is not possible.
    fn start(test: &str) -> Option<Watch> {
        Watch::with(test, Options::default())
    }

    fn with(test: &str, options: Options) -> Option<Watch> {
        let health = Health::default();
        let began = Instant::now();
        let (sender, receiver) = sources::channel(64, Gauge::default());
        let source = match sources::linux::start(options, sender, health.clone()) {
            Ok(source) => source,
            Err(error) => {
                // Not allowed here is a reason to skip; anything else, a rejected program above all, is a failure.
                let cause = chain(&error);
                let not_here = error.exit_code() == 77 || cause.contains("os error 1)") || cause.contains("vmlinux");
                assert!(not_here, "{cause}");
                eprintln!("SKIPPED {test}: {cause}");
                return None;
            }
        };
        eprintln!("{test}: attached in {:?}", began.elapsed());
        let events = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let into = Arc::clone(&events);
        std::thread::spawn(move || {
            while let Ok(event) = receiver.receive(Duration::from_secs(60)) {
                into.0.lock().unwrap().extend(event);
                into.1.notify_all();
            }
        });
        let watch = Watch {
            source: Some(source),
            events,
            health,
            directory: tempfile::tempdir().unwrap(),
        };
        // The ring thread has begun when it has said what time it is.
        watch.wait("the first anchor", |events| {
            events
                .iter()
                .find(|event| matches!(event.body, Body::ClockAnchored { .. }))
                .map(|_| ())
        });
        Some(watch)
    }

    /// Waits until `find` finds something among the events.
    fn wait<T>(&self, what: &str, find: impl Fn(&[Event]) -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut events = self.events.0.lock().unwrap();
        loop {
            if let Some(found) = find(&events) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} did not come; {} events", events.len());
            events = self.events.1.wait_timeout(events, left).unwrap().0;
        }
    }

    fn exec_of(&self, pid: u32) -> (Timestamp, Exec) {
        self.wait(&format!("exec of {pid}"), |events| {
            execs(events).find(|(_, exec)| exec.process.pid == pid)
        })
    }

    fn exit_of(&self, process: ProcessKey) -> (Timestamp, Exit) {
        self.wait(&format!("exit of {process:?}"), |events| {
            events.iter().find_map(|event| match &event.body {
                Body::ProcessExited(exit) if exit.process == process => Some((event.at, *exit)),
                _ => None,
            })
        })
    }

    fn reads_pipes(&self, test: &str) -> bool {
        let stdio = self
            .health
            .probes()
            .into_iter()
            .find(|probe| probe.probe == "stdio")
            .unwrap();
        if !stdio.attached {
            eprintln!("SKIPPED {test}: {}", stdio.consequence);
        }
        stdio.attached
    }

    fn netns_of(&self, sandbox: &str) -> Netns {
        self.wait(&format!("netns of {sandbox}"), |events| {
            events.iter().find_map(|event| match &event.body {
                Body::NetnsObserved(netns) if netns.sandbox.0 == sandbox => Some(Netns::clone(netns)),
                _ => None,
            })
        })
    }

    fn script(&self, name: &str, body: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Stops the source and returns all it sent.
    fn finish(mut self) -> Vec<Event> {
        self.source.take().unwrap().stop();
        self.events.0.lock().unwrap().clone()
    }
}

/// The error and its causes in one line, without the verifier's log.
fn chain(error: &dyn std::error::Error) -> String {
    let causes: Vec<String> = std::iter::successors(Some(error), |error| error.source())
        .map(|error| error.to_string().lines().next().unwrap_or_default().to_owned())
        .collect();
    causes.join(": ")
}

fn execs(events: &[Event]) -> impl Iterator<Item = (Timestamp, Exec)> {
    events.iter().filter_map(|event| match &event.body {
        Body::ProcessExecuted(exec) => Some((event.at, (**exec).clone())),
        _ => None,
    })
}

/// A plugin call as a runtime makes it, for sandbox `id`.
fn plugin(path: &Path, id: &str) -> Command {
    let mut command = Command::new(path);
    command
        .env_clear()
        .env("CNI_COMMAND", "ADD")
        .env("CNI_CONTAINERID", id)
        .env("CNI_NETNS", "/var/run/netns/none")
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", "/opt/cni/bin")
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

fn start_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')')
        .next()
        .unwrap()
        .split_ascii_whitespace()
        .nth(19)
        .unwrap()
        .parse()
        .unwrap()
}

fn wait_for(mut child: Child) {
    child.wait().unwrap();
}

#[test]
fn cni_command_is_found_wherever_it_stands() {
    for rung in Rung::ALL {
        let options = Options {
            rungs: vec![rung],
            ..Options::default()
        };
        let Some(watch) = Watch::with("cni_command_is_found_wherever_it_stands", options) else {
            return;
        };
        assert_eq!(watch.health.probes()[0].hook, rung.name());
        let filler = |n: usize| (format!("FILLER_{n}"), "x".repeat(n % 100));
        // 400 variables of 64 bytes on average are 32 KiB; 1,600 are 120 KiB.
        for (total, place) in [
            (0, 0),
            (400, 0),
            (400, 1),
            (400, 200),
            (400, 399),
            (400, 400),
            (1_600, 1_600),
        ] {
            let mut command = Command::new("/usr/bin/env");
            command.arg("-i");
            for n in 0..total {
                if n == place {
                    command
                        .arg("CNI_COMMAND=ADD")
                        .arg(format!("CNI_CONTAINERID=at-{total}-{place}"));
                }
                let (name, value) = filler(n);
                command.arg(format!("{name}={value}"));
            }
            if place >= total {
                command
                    .arg("CNI_COMMAND=ADD")
                    .arg(format!("CNI_CONTAINERID=at-{total}-{place}"));
            }
            let child = command.arg("/bin/true").env_clear().spawn().unwrap();
            let pid = child.id();
            wait_for(child);
            let (_, exec) = watch.exec_of(pid);
            assert_eq!(exec.path, "/bin/true");
            let id = format!("at-{total}-{place}");
            let expected = [
                ("CNI_COMMAND".to_owned(), "ADD".to_owned()),
                ("CNI_CONTAINERID".to_owned(), id),
            ];
            assert_eq!(exec.env, expected, "{total} variables, CNI at {place}");
            assert_eq!(watch.exit_of(exec.process).1.how, ExitStatus::Code(0));
        }
    }
}

/// Every alignment, and every place around the seams of the kernel side's chunks.
#[test]
fn no_alignment_and_no_seam_hides_cni_command() {
    let Some(watch) = Watch::start("no_alignment_and_no_seam_hides_cni_command") else {
        return;
    };
    for place in (3..40_usize)
        .chain(1_005..1_035)
        .chain(4_060..4_110)
        .chain(8_150..8_180)
    {
        let mut command = Command::new("/usr/bin/env");
        // One variable before it that is, with its terminator, `place` bytes long.
        command.arg("-i").arg(format!("V={}", "y".repeat(place - 3)));
        command
            .arg(format!("CNI_COMMAND=ADD{place}"))
            .arg("/bin/true")
            .env_clear();
        let child = command.spawn().unwrap();
        let pid = child.id();
        wait_for(child);
        assert_eq!(watch.exec_of(pid).1.env("CNI_COMMAND"), Some(&*format!("ADD{place}")));
    }
}

#[test]
fn a_name_that_only_ends_like_it_is_no_plugin() {
    let Some(watch) = Watch::start("a_name_that_only_ends_like_it_is_no_plugin") else {
        return;
    };
    let mut strangers = Vec::new();
    for (name, value) in [
        ("XCNI_COMMAND", "ADD"),
        ("X", "CNI_COMMAND=ADD"),
        ("CNI_COMMANDS", "ADD"),
        ("CNI_COMMAN", "D="),
    ] {
        let child = Command::new("/bin/true").env_clear().env(name, value).spawn().unwrap();
        strangers.push(child.id());
        wait_for(child);
    }
    let script = watch.script("stranger", "/bin/true; /bin/true");
    let child = Command::new(script).spawn().unwrap();
    strangers.push(child.id());
    wait_for(child);
    // A plugin at the end: when it has come, nothing before it is still under way.
    let last = plugin(Path::new("/bin/true"), "last").spawn().unwrap();
    let pid = last.id();
    wait_for(last);
    let (_, exec) = watch.exec_of(pid);
    watch.exit_of(exec.process);
    let events = watch.finish();
    for event in &events {
        let about = match &event.body {
            Body::ProcessExecuted(exec) => exec.process.pid,
            Body::ProcessForked(fork) => fork.process.pid,
            Body::ProcessExited(exit) => exit.process.pid,
            _ => continue,
        };
        assert!(!strangers.contains(&about), "{event:?}");
    }
}

#[test]
fn a_script_its_commands_and_how_they_end() {
    let Some(watch) = Watch::start("a_script_its_commands_and_how_they_end") else {
        return;
    };
    let script = watch.script(
        "my plugin",
        "/bin/sh -c 'exit 3'\n/bin/sh -c 'kill -9 $$'\n/bin/sleep 0.05\nexit 7",
    );
    let child = plugin(&script, "scripted").arg("--flag").spawn().unwrap();
    let (pid, before) = (child.id(), clock::now());
    let ticks = start_ticks(pid);
    wait_for(child);
    let after = clock::now();

    let (at, exec) = watch.exec_of(pid);
    assert_eq!(
        exec.process,
        ProcessKey {
            pid,
            start_ticks: ticks
        }
    );
    assert_eq!(exec.path, script.to_str().unwrap());
    assert_eq!(exec.args, ["/bin/sh", script.to_str().unwrap(), "--flag"]);
    assert_eq!(exec.env("CNI_CONTAINERID"), Some("scripted"));
    assert_eq!(exec.env("PATH"), None, "what is not of CNI is dropped");
    assert_eq!(exec.parent.pid, std::process::id());
    assert_eq!(exec.parent.start_ticks, start_ticks(std::process::id()));
    assert_eq!(
        exec.parent_comm,
        std::fs::read_to_string("/proc/self/comm").unwrap().trim()
    );
    assert_eq!(exec.netns, std::fs::metadata("/proc/self/ns/net").unwrap().ino());
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    if let Some(own) = cgroup.lines().find_map(|line| line.strip_prefix("0::")) {
        assert_eq!(exec.cgroup, own);
    }
    let (exited, exit) = watch.exit_of(exec.process);
    assert_eq!(exit.how, ExitStatus::Code(7));
    assert!(at.0 < before.0 + 1_000_000_000 && exited < after && exited.since(at) > 50_000_000);

    let events = watch.finish();
    let children: Vec<ProcessKey> = events
        .iter()
        .filter_map(|event| match &event.body {
            Body::ProcessForked(fork) if fork.parent == exec.process => Some(fork.process),
            _ => None,
        })
        .collect();
    assert_eq!(children.len(), 3, "{events:#?}");
    let ends: Vec<ExitStatus> = children
        .iter()
        .map(|child| {
            let exit = events.iter().find_map(|event| match &event.body {
                Body::ProcessExited(exit) if exit.process == *child => Some(exit.how),
                _ => None,
            });
            exit.unwrap()
        })
        .collect();
    assert_eq!(ends, [ExitStatus::Code(3), ExitStatus::Signal(9), ExitStatus::Code(0)]);
    let paths: Vec<String> = execs(&events)
        .filter(|(_, child)| child.parent == exec.process)
        .map(|(_, child)| child.path)
        .collect();
    assert_eq!(paths, ["/bin/sh", "/bin/sh", "/bin/sleep"]);
}

/// A runtime's own process is seen without its environment, what it starts is not, and verbs that say nothing of a
/// sandbox's life are passed over, their exits too.
#[test]
fn of_runtimes_only_their_own_life_is_seen() {
    let Some(watch) = Watch::start("of_runtimes_only_their_own_life_is_seen") else {
        return;
    };
    let run = |name: &str, verb: &str| {
        let script = watch.script(name, "/bin/true\nexec /bin/sh -c 'exit 2'");
        let mut command = Command::new(script);
        let child = command
            .args(["--root", "/r", verb, "id"])
            .env("SECRET", "s3cret")
            .env("CNI_X", "y")
            .spawn()
            .unwrap();
        let pid = child.id();
        wait_for(child);
        pid
    };
    let other = run("runcx", "create");
    let passed_over = run("runc", "exec");
    let seen: Vec<u32> = ["runc", "crun", "conmon", "youki", "runsc", "containerd-shim-runc-v2"]
        .map(|name| run(name, "create"))
        .to_vec();
    for pid in &seen {
        let (_, exec) = watch.exec_of(*pid);
        assert!(
            exec.args.iter().skip(2).eq(["--root", "/r", "create", "id"]),
            "{:?}",
            exec.args
        );
        assert!(exec.env.is_empty());
        assert_eq!(watch.exit_of(exec.process).1.how, ExitStatus::Code(2));
    }
    for event in watch.finish() {
        match &event.body {
            Body::ProcessExecuted(exec) => {
                assert!(![other, passed_over].contains(&exec.process.pid), "{event:?}");
                assert!(
                    !seen.contains(&exec.parent.pid),
                    "children of runtimes are not tracked: {event:?}"
                );
            }
            Body::ProcessExited(exit) => assert!(![other, passed_over].contains(&exit.process.pid), "{event:?}"),
            Body::ProcessForked(fork) => assert!(!seen.contains(&fork.parent.pid), "{event:?}"),
            _ => {}
        }
    }
}

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
        // A reader that was not woken looks once a second. On a busy machine it may get the processor late.
        assert!(late < 200_000_000, "{late} ns after a silence of {silence} s");
    }
    wait_for(child);
}

/// A ring too small for a burst loses records, and says how many.
#[test]
fn what_is_lost_is_counted() {
    let options = Options {
        ring_bytes: 4096,
        ..Options::default()
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

/// Started in the middle: what runs already is found, its children too, and its end is seen.
#[test]
fn running_plugins_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("running");
    std::fs::write(&script, "#!/bin/sh\n/bin/sleep 60 & wait; exit 4\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut child = plugin(&script, "running").process_group(0).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let watch = Watch::start("running_plugins_are_found");
    let pid = child.id();
    let Some(watch) = watch else {
        child.kill().unwrap();
        child.wait().unwrap();
        return;
    };
    let (at, exec) = watch.exec_of(pid);
    assert!(exec.running);
    assert_eq!(exec.path, script.to_str().unwrap());
    assert_eq!(exec.env("CNI_CONTAINERID"), Some("running"));
    assert_eq!(exec.process.start_ticks, start_ticks(pid));
    assert_eq!(at.0, exec.process.start_ticks * 10_000_000);
    assert_eq!(exec.parent.pid, std::process::id());
    let (_, sleep) = watch.wait("the sleep", |events| {
        execs(events).find(|(_, other)| {
            other.parent == exec.process && other.args.iter().next().is_some_and(|name| name.ends_with("sleep"))
        })
    });
    assert!(sleep.running);
    // Its end, and that of the whole, come from the kernel.
    let ended = Command::new("kill")
        .arg(sleep.process.pid.to_string())
        .status()
        .unwrap();
    assert!(ended.success());
    assert_eq!(watch.exit_of(sleep.process).1.how, ExitStatus::Signal(15));
    child.wait().unwrap();
    assert_eq!(watch.exit_of(exec.process).1.how, ExitStatus::Code(4));
}

#[test]
fn a_named_namespace_is_seen_with_its_age() {
    let Some(watch) = Watch::start("a_named_namespace_is_seen_with_its_age") else {
        return;
    };
    let name = format!("sandglass-test-{}", std::process::id());
    let before = clock::now();
    if !Command::new("ip")
        .args(["netns", "add", &name])
        .status()
        .is_ok_and(|status| status.success())
    {
        eprintln!("SKIPPED a_named_namespace_is_seen_with_its_age: ip netns add does not work here");
        return;
    }
    let after = clock::now();
    std::thread::sleep(Duration::from_millis(300));
    let path = format!("/var/run/netns/{name}");
    let inode = std::fs::metadata(&path).unwrap().ino();
    let child = plugin(Path::new("/bin/true"), "aged")
        .env("CNI_NETNS", &path)
        .spawn()
        .unwrap();
    wait_for(child);
    let netns = watch.netns_of("aged");
    Command::new("ip").args(["netns", "del", &name]).status().unwrap();
    assert_eq!((netns.inode, netns.path), (inode, path));
    let created = netns.created.unwrap();
    // Inode times are taken from a clock that ticks every 4 to 10 ms.
    assert!(
        created >= before.minus(15_000_000) && created <= after.plus(1_000_000),
        "{before} {created} {after}"
    );
}

/// The budget is 1 us per unrelated exec; a busy machine gets some slack here, the figure is in the output.
#[test]
fn unrelated_processes_cost_little() {
    for rung in Rung::ALL {
        let options = Options {
            rungs: vec![rung],
            ..Options::default()
        };
        let Some(watch) = Watch::with("unrelated_processes_cost_little", options) else {
            return;
        };
        let Ok(_counting) = sources::linux::enable_run_time() else {
            eprintln!("SKIPPED unrelated_processes_cost_little: no run-time statistics");
            return;
        };
        let source = watch.source.as_ref().unwrap();
        // Fifteen batches: the quietest one tells what the program costs, the others what else the machine does.
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

/// Nanoseconds per run of each program while `count` unrelated processes run.
fn costs_of(source: &LinuxSource, count: usize) -> Vec<u64> {
    let before = source.bpf_run_time();
    for _ in 0..count {
        // As a login shell's: 35 variables, 1.3 KiB.
        let variables = (0..35).map(|n| (format!("VARIABLE_{n:02}"), "x".repeat(25)));
        wait_for(Command::new("/bin/true").env_clear().envs(variables).spawn().unwrap());
    }
    let after = source.bpf_run_time();
    let cost = |(after, before): (&ProgramTime, &ProgramTime)| {
        let runs = after.run_count - before.run_count;
        assert!(runs >= count as u64, "{} ran {runs} times", after.program);
        (after.run_time_ns - before.run_time_ns) / runs
    };
    after.iter().zip(&before).map(cost).collect()
}

/// Runs a plugin as libcni does: the configuration through a pipe, the answer read while it runs.
fn converse(mut command: Command, stdin: &str) -> (u32, String) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id();
    let mut answer = String::new();
    let mut stdout = child.stdout.take().unwrap();
    let mut into = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = into.write_all(stdin.as_bytes());
        });
        stdout.read_to_string(&mut answer).unwrap();
    });
    wait_for(child);
    (pid, answer)
}

fn spoken(events: &[Event], pid: u32) -> Option<(Timestamp, PluginIo)> {
    events.iter().find_map(|event| match &event.body {
        Body::PluginSpoke(spoken) if spoken.process.pid == pid => Some((event.at, PluginIo::clone(spoken))),
        _ => None,
    })
}

#[test]
fn a_failing_plugin_says_why() {
    const TEST: &str = "a_failing_plugin_says_why";
    let Some(watch) = Watch::start(TEST) else { return };
    if !watch.reads_pipes(TEST) {
        return;
    }
    let error = r#"{"cniVersion":"1.0.0","code":101,"msg":"no address left","details":"pool 10.0.0.0/30"}"#;
    let script = watch.script(
        "failing",
        &format!("cat >/dev/null\necho '{error}'\n/bin/sleep 0.01\nexit 1"),
    );
    let stdin = r#"{"cniVersion":"1.0.0","name":"pods","type":"failing","token":"s3cret"}"#;
    let pids: Vec<u32> = (0..100)
        .map(|n| converse(plugin(&script, &format!("failing-{n}")), stdin).0)
        .collect();
    let (_, exec) = watch.exec_of(*pids.last().unwrap());
    watch.exit_of(exec.process);
    let events = watch.finish();
    let said: Vec<_> = pids.iter().filter_map(|pid| spoken(&events, *pid)).collect();
    let errors = said.iter().filter(|(_, spoken)| spoken.error.is_some()).count();
    let networks = said.iter().filter(|(_, spoken)| spoken.netconf.is_some()).count();
    eprintln!("{TEST}: of 100 plugins {errors} errors and {networks} configurations were had");
    assert!(errors >= 95 && networks >= 95);
    let (at, first) = &said[0];
    assert_eq!(first.error.as_ref().unwrap().msg, "no address left");
    let netconf = first.netconf.as_ref().unwrap();
    assert_eq!(
        (&*netconf.network, &*netconf.plugin, netconf.chained),
        ("pods", "failing", false)
    );
    let exit = events.iter().find_map(|event| match &event.body {
        Body::ProcessExited(exit) if exit.process == first.process => Some(event.at),
        _ => None,
    });
    assert!(*at <= exit.unwrap(), "stamped before the exit");
    let of_plugins = execs(&events).filter(|(_, exec)| pids.contains(&exec.parent.pid));
    let commands: Vec<u32> = of_plugins.map(|(_, exec)| exec.process.pid).collect();
    assert!(commands.len() >= 200, "cat and sleep of each");
    let speaking = commands.iter().filter(|pid| spoken(&events, **pid).is_some()).count();
    assert_eq!(speaking, 0, "commands that share a plugin's pipes do not speak");
    assert!(!format!("{events:?}").contains("s3cret"));
}

#[test]
fn real_plugins_say_their_addresses() {
    const TEST: &str = "real_plugins_say_their_addresses";
    let bridge = Path::new("/usr/lib/cni/bridge");
    if !bridge.exists() {
        eprintln!("SKIPPED {TEST}: no CNI plugins in /usr/lib/cni");
        return;
    }
    let Some(watch) = Watch::start(TEST) else { return };
    if !watch.reads_pipes(TEST) {
        return;
    }
    let data = watch.directory.path().display();
    let tag = std::process::id() % 10_000;
    let stdin = format!(
        r#"{{"cniVersion":"0.4.0","name":"spoken{tag}","type":"bridge","bridge":"sgt{tag}","ipam":{{"type":"host-local","dataDir":"{data}","subnet":"10.249.0.0/24"}}}}"#
    );
    let mut calls = Vec::new();
    for n in 0..5 {
        let name = format!("sandglass-spoken-{tag}-{n}");
        if !Command::new("ip")
            .args(["netns", "add", &name])
            .status()
            .is_ok_and(|status| status.success())
        {
            eprintln!("SKIPPED {TEST}: ip netns add does not work here");
            return;
        }
        for verb in ["ADD", "DEL"] {
            let mut command = plugin(bridge, &name);
            command
                .env("CNI_COMMAND", verb)
                .env("CNI_NETNS", format!("/var/run/netns/{name}"))
                .env("CNI_PATH", "/usr/lib/cni");
            let (pid, answer) = converse(command, &stdin);
            calls.push((verb, pid, answer));
        }
        Command::new("ip").args(["netns", "del", &name]).status().unwrap();
    }
    Command::new("ip")
        .args(["link", "del", &format!("sgt{tag}")])
        .status()
        .unwrap();
    let (_, exec) = watch.exec_of(calls.last().unwrap().1);
    watch.exit_of(exec.process);
    let events = watch.finish();
    let mut had = 0;
    for (verb, pid, answer) in &calls {
        let Some((_, said)) = spoken(&events, *pid) else {
            continue;
        };
        had += 1;
        assert_eq!(said.netconf.as_ref().unwrap().network, format!("spoken{tag}"), "{verb}");
        if *verb == "ADD" {
            assert_eq!(said.addresses.len(), 1, "{answer}");
            assert!(answer.contains(&said.addresses[0]), "{answer} {said:?}");
        }
    }
    let delegates = execs(&events).filter(|(_, exec)| exec.file_name() == "host-local");
    let delegates: Vec<u32> = delegates.map(|(_, exec)| exec.process.pid).collect();
    let delegates_had = delegates.iter().filter(|pid| spoken(&events, **pid).is_some()).count();
    eprintln!(
        "{TEST}: of {} bridge {had}, of {} host-local {delegates_had} were had",
        calls.len(),
        delegates.len()
    );
    assert!(had >= 9 && !delegates.is_empty());
}
