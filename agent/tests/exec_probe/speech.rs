//! What plugins wrote into their pipes, read at their exit.

use std::path::Path;
use std::process::Command;

use sandglass_model::Body;

use crate::watch::{Watch, converse, execs, plugin, spoken};

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
    let read: Vec<_> = pids.iter().filter_map(|pid| spoken(&events, *pid)).collect();
    let errors = read.iter().filter(|(_, spoken)| spoken.error.is_some()).count();
    let networks = read.iter().filter(|(_, spoken)| spoken.netconf.is_some()).count();
    eprintln!("{TEST}: of 100 plugins {errors} errors and {networks} configurations were had");
    assert_eq!((errors, networks), (100, 100));
    let (at, first) = &read[0];
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

/// The reader reads while the plugin exits: what it wrote last is found all the same.
#[test]
fn what_a_plugin_writes_last_is_read() {
    const TEST: &str = "what_a_plugin_writes_last_is_read";
    let Some(watch) = Watch::start(TEST) else { return };
    if !watch.reads_pipes(TEST) {
        return;
    }
    let error = r#"{"cniVersion":"1.0.0","code":101,"msg":"no address left"}"#;
    let script = watch.script("hasty", &format!("read -r conf\necho '{error}'\nexit 1"));
    let stdin = "{\"cniVersion\":\"1.0.0\",\"name\":\"pods\",\"type\":\"hasty\"}\n";
    let pids: Vec<u32> = (0..HASTY)
        .map(|n| converse(plugin(&script, &format!("hasty-{n}")), stdin).0)
        .collect();
    let (_, exec) = watch.exec_of(*pids.last().unwrap());
    watch.exit_of(exec.process);
    let events = watch.finish();
    let read = pids.iter().filter_map(|pid| spoken(&events, *pid));
    let whole = read.filter(|(_, spoken)| spoken.error.is_some() && spoken.netconf.is_some());
    assert_eq!(whole.count(), HASTY, "errors and configurations were read");
}

/// Calls of a plugin that exits as soon as it has written.
const HASTY: usize = 2_000;

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
        let Some((_, read)) = spoken(&events, *pid) else {
            continue;
        };
        had += 1;
        assert_eq!(read.netconf.as_ref().unwrap().network, format!("spoken{tag}"), "{verb}");
        if *verb == "ADD" {
            assert_eq!(read.addresses.len(), 1, "{answer}");
            assert!(answer.contains(&read.addresses[0]), "{answer} {read:?}");
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
    assert!(had == calls.len() && !delegates.is_empty());
}
