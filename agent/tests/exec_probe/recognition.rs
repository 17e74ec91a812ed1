//! Which process is a plugin, a command below one, or a runtime, and what is reported of it: wherever its variables stand, whatever its
//! binary is.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use sandglass::app::settings::default_source;
use sandglass::health::Health;
use sandglass::sources::linux::{LinuxOptions, Rung};
use sandglass::sources::{self, clock};
use sandglass_model::event::ExitStatus;
use sandglass_model::{Body, ProcessKey};

use crate::watch::{Watch, converse, execs, plugin, spoken, start_ticks, wait_for};

#[test]
fn cni_command_is_found_wherever_it_stands() {
    for rung in Rung::ALL {
        let options = LinuxOptions {
            rungs: vec![rung],
            ..default_source().unwrap()
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
        .map(|(_, child)| child.path.into())
        .collect();
    assert_eq!(paths, ["/bin/sh", "/bin/sh", "/bin/sleep"]);
}

/// A plugin that is one static binary with neither interpreter nor C library, in a directory that no CNI knows: it runs a
/// command, reads its configuration, prints an error and exits.
#[test]
fn a_static_binary_anywhere_is_a_plugin() {
    const TEST: &str = "a_static_binary_anywhere_is_a_plugin";
    let Some(watch) = Watch::start(TEST) else { return };
    let Some(path) = static_plugin(&watch) else {
        eprintln!("SKIPPED {TEST}: no C compiler that makes a static binary here");
        return;
    };
    let mut command = plugin(&path, "static");
    command
        .arg("--flag")
        .env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=lonely")
        .env("SECRET", "s3cret");
    let stdin = r#"{"cniVersion":"1.0.0","name":"pods","type":"lonely"}"#;
    let (pid, answer) = converse(command, stdin);
    assert!(answer.contains("no policy"), "{answer:?}");

    let (_, exec) = watch.exec_of(pid);
    assert_eq!(exec.path, path.to_str().unwrap());
    assert_eq!(exec.args, [path.to_str().unwrap(), "--flag"]);
    assert_eq!(exec.env("CNI_CONTAINERID"), Some("static"));
    assert_eq!(exec.env("CNI_ARGS"), Some("IgnoreUnknown=1;K8S_POD_NAME=lonely"));
    assert_eq!(exec.env("SECRET"), None);
    assert_eq!(watch.exit_of(exec.process).1.how, ExitStatus::Code(4));
    let (_, child) = watch.wait("its command", |events| {
        execs(events).find(|(_, child)| child.parent == exec.process)
    });
    assert_eq!(child.path, "/bin/true");
    assert_eq!(watch.exit_of(child.process).1.how, ExitStatus::Code(0));
    if watch.reads_pipes(TEST) {
        let events = watch.finish();
        let (_, read) = spoken(&events, pid).unwrap();
        assert_eq!(read.error.unwrap().msg, "no policy");
        assert_eq!(&*read.netconf.unwrap().plugin, "lonely");
    }
}

/// Builds the plugin. `None` where there is no compiler for it; every machine that links Rust has one.
fn static_plugin(watch: &Watch) -> Option<PathBuf> {
    let directory = watch.directory.path().join("far away/from any");
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("lonely");
    let built = Command::new("cc")
        .args([
            "-static",
            "-nostdlib",
            "-ffreestanding",
            "-fno-stack-protector",
            "-O1",
            "-o",
        ])
        .arg(&path)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exec_probe/lonely.c"))
        .output()
        .ok()?;
    if !built.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&built.stderr));
        return None;
    }
    assert!(
        !asks_for_an_interpreter(&std::fs::read(&path).unwrap()),
        "it is not static"
    );
    Some(path)
}

/// Whether an ELF file (64 bit, little endian) has a program header of type `PT_INTERP` (elf(5)).
fn asks_for_an_interpreter(elf: &[u8]) -> bool {
    let number = |at: usize, size: usize| {
        let bytes = elf[at..at + size].iter().rev();
        bytes.fold(0_usize, |number, byte| number << 8 | usize::from(*byte))
    };
    assert_eq!(&elf[..5], b"\x7fELF\x02");
    let (table, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    assert!(count > 0);
    (0..count).any(|n| number(table + n * size, 4) == 3)
}

/// A runtime's own process is seen without its environment, of what it starts only that a step did, and verbs that say nothing of a
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
    // Those that make a container and end: runc, crun, youki, runsc.
    let steps = [seen[0], seen[1], seen[3], seen[4]];
    let mut started = Vec::new();
    for event in watch.finish() {
        match &event.body {
            Body::ProcessExecuted(exec) => {
                assert!(![other, passed_over].contains(&exec.process.pid), "{event:?}");
                if seen.contains(&exec.parent.pid) {
                    assert!(exec.path.ends_with("/true") && exec.args.is_empty(), "{event:?}");
                    started.push(exec.parent.pid);
                }
            }
            Body::ProcessExited(exit) => assert!(![other, passed_over].contains(&exit.process.pid), "{event:?}"),
            Body::ProcessForked(fork) if seen.contains(&fork.parent.pid) => {
                assert!(steps.contains(&fork.parent.pid), "{event:?}");
            }
            _ => {}
        }
    }
    assert_eq!(started, steps);
}

/// What was reported of a step and what it forked: how many processes, the names of what these executed, and how many ends.
fn followed_below(watch: Watch, step: ProcessKey) -> (usize, Vec<String>, usize) {
    let (mut below, mut executed, mut exits) = (vec![step], Vec::new(), 0);
    for event in watch.finish() {
        match &event.body {
            Body::ProcessForked(fork) if below.contains(&fork.parent) => below.push(fork.process),
            Body::ProcessExecuted(exec) if below.contains(&exec.process) && exec.process != step => {
                assert!(exec.args.is_empty() && exec.env.is_empty(), "{event:?}");
                executed.push(exec.path.rsplit('/').next().unwrap_or_default().to_owned());
            }
            Body::ProcessExited(exit) if below.contains(&exit.process) => exits += 1,
            _ => {}
        }
    }
    (below.len(), executed, exits)
}

/// What a step forks is reported until it executes something else, of which the path alone is. A copy of itself is nothing else, as
/// `runc init` executes it.
#[test]
fn what_a_step_forks_is_followed_until_it_is_the_container() {
    let Some(watch) = Watch::start("what_a_step_forks_is_followed_until_it_is_the_container") else {
        return;
    };
    let script = watch.script(
        "runc",
        "(/bin/true secret; exec /bin/sh -c '/bin/true not seen; :') &\n(exec /proc/self/exe -c '/bin/false; :') &\nwait",
    );
    let child = Command::new(script).args(["create", "id"]).spawn().unwrap();
    let step = watch.exec_of(child.id()).1.process;
    wait_for(child);
    watch.exit_of(step);
    let (below, mut executed, exits) = followed_below(watch, step);
    executed.sort();
    assert_eq!(executed, ["false", "sh", "true"]);
    // Two subshells and a command of each; the second subshell and the step are followed to their ends.
    assert_eq!((below, exits), (5, 2));
}

/// A container's program that has a plugin's environment or a runtime's name is refused, and what it starts is not followed.
#[test]
fn a_container_that_claims_to_be_a_plugin_or_a_runtime_is_not_followed() {
    let test = "a_container_that_claims_to_be_a_plugin_or_a_runtime_is_not_followed";
    let Some(watch) = Watch::start(test) else { return };
    let python = Path::new("/usr/bin/python3");
    if !python.exists() {
        eprintln!("SKIPPED {test}: no python3, which takes the runtime's place");
        return;
    }
    let (runtime, program) = (
        watch.directory.path().join("runc"),
        watch.directory.path().join("conmon"),
    );
    std::fs::copy(python, &runtime).unwrap();
    std::fs::copy("/bin/sh", &program).unwrap();
    // Nobody may look into the directory of the test.
    std::fs::set_permissions(watch.directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // As runc: a fork takes its privileges away and executes the container's program.
    let forks = format!(
        "import os\n\
         for path in '/bin/sh', '{}':\n\
         \x20   if os.fork() == 0:\n\
         \x20       os.setgroups([])\n\
         \x20       os.setresgid(65534, 65534, 65534)\n\
         \x20       os.setresuid(65534, 65534, 65534)\n\
         \x20       os.execve(path, [path, '-c', '/bin/true; :'], {{'CNI_COMMAND': 'ADD'}} if path == '/bin/sh' else {{}})\n\
         \x20   os.wait()\n",
        program.display()
    );
    let child = Command::new(runtime)
        .args(["-c", &forks, "create", "id"])
        .spawn()
        .unwrap();
    let step = watch.exec_of(child.id()).1.process;
    wait_for(child);
    watch.exit_of(step);
    let (below, executed, exits) = followed_below(watch, step);
    assert_eq!(executed, ["sh", "conmon"]);
    assert_eq!((below, exits), (3, 1), "two forks, and the end of the step");
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

/// The other probes take a while to attach. What a plugin did meanwhile must not wait for that: it would come to the
/// pipeline behind newer events of theirs.
#[test]
fn what_happens_while_the_rest_is_attached_is_read_at_once() {
    let test = "what_happens_while_the_rest_is_attached_is_read_at_once";
    let Some(mut watch) = Watch::start(test) else { return };
    let script = watch.script("meanwhile", "exit 0");
    watch.source.take().unwrap().stop();
    let (sender, receiver) = sources::channel(65_536, Gauge::default());
    let started = AtomicBool::new(false);
    let source = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !started.load(Ordering::Relaxed) {
                plugin(&script, "meanwhile").status().unwrap();
            }
        });
        let source = sources::linux::start(default_source().unwrap(), sender, Health::default());
        started.store(true, Ordering::Relaxed);
        source.unwrap()
    });
    let mut events = Vec::new();
    while let Ok(Some(event)) = receiver.receive(Duration::ZERO) {
        events.push(event);
    }
    let read = execs(&events).filter(|(_, exec)| !exec.running && exec.env("CNI_CONTAINERID") == Some("meanwhile"));
    assert!(read.count() > 0, "{} events, none of a plugin", events.len());
    drop(source);
}

#[test]
fn a_named_namespace_begins_with_its_name() {
    let test = "a_named_namespace_begins_with_its_name";
    let Some(watch) = Watch::start(test) else {
        return;
    };
    let ip = |verb: &str, name: &str| Command::new("ip").args(["netns", verb, name]).status();
    let name_of = |number| format!("sandglass-test-{}-{number}", std::process::id());
    if !ip("add", &name_of(0)).is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED {test}: ip netns add does not work here");
        return;
    }
    ip("del", &name_of(0)).unwrap();
    // Where nothing was named before there is no directory yet: the first look finds it. A stamp may come too late.
    let is_stamped = (1..=10).any(|number| {
        let sandbox = format!("aged-{number}");
        let name = name_of(number);
        let before = clock::now();
        assert!(ip("add", &name).unwrap().success());
        let after = clock::now();
        std::thread::sleep(Duration::from_millis(300));
        let path = format!("/var/run/netns/{name}");
        let inode = std::fs::metadata(&path).unwrap().ino();
        let child = plugin(Path::new("/bin/true"), &sandbox)
            .env("CNI_NETNS", &path)
            .spawn()
            .unwrap();
        wait_for(child);
        let netns = watch.netns_of(&sandbox);
        ip("del", &name).unwrap();
        assert_eq!((netns.inode, netns.path), (inode, path));
        // Inode times are taken from a clock that ticks every 4 to 10 ms; a stamp is exact, or not believed.
        let (created, there) = (netns.created.unwrap(), netns.there);
        let earliest = if there.is_some() {
            before
        } else {
            before.minus(15_000_000)
        };
        assert!(
            created >= earliest && created <= after.plus(15_000_000),
            "{before} {created} {there:?} {after}"
        );
        there.is_some()
    });
    assert!(is_stamped, "no name was seen in ten tries");
}
