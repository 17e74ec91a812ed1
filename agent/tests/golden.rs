//! Golden recordings: every folder of `recordings/` replays to the spans and metrics that lie beside its events.
//!
//! `BLESS=1 cargo test --test golden` rewrites the expectations; the diff is reviewed like code.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sandglass_correlator::{Correlator, CorrelatorConfig, Output};
use sandglass_model::{Event, phases, recording};

fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings");
    let mut folders: Vec<PathBuf> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    folders
}

/// The recording: events, or what an ETW session wrote.
fn events_of(folder: &Path) -> PathBuf {
    let written = folder.join("events.etl");
    if written.is_file() {
        written
    } else {
        folder.join("events.jsonl")
    }
}

fn replay(recording: &Path, what: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_sandglass"))
        .args(["replay", "--print", what])
        .arg(recording)
        .env_clear()
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}: {}",
        recording.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Counts and sums, sorted: the registry writes series in no particular order. The agent's own process and version
/// differ from machine to machine.
fn stable(metrics: &str) -> String {
    let own = |line: &&str| !line.contains("sandglass_process_") && !line.contains("sandglass_build");
    let mut lines: Vec<&str> = metrics
        .lines()
        .filter(|line| !line.starts_with('#') && !line.contains("_bucket{"))
        .filter(own)
        .collect();
    lines.sort_unstable();
    lines.join("\n") + "\n"
}

fn check(path: &Path, actual: &str) {
    if std::env::var_os("BLESS").is_some() {
        fs::write(path, actual).unwrap();
        return;
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    // Which series stand at 0 from the start is the system's that the agent was built for.
    let comparable = |text: &str| {
        let lines = text
            .lines()
            .filter(|line| !cfg!(windows) || !(line.ends_with(" 0") || line.ends_with(" 0.0")));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    let (expected, actual) = (comparable(&expected), comparable(actual));
    if let Some((number, (left, right))) = expected
        .lines()
        .zip(actual.lines())
        .enumerate()
        .find(|(_, (left, right))| left != right)
    {
        panic!(
            "{}, line {}:\nexpected {left}\nactual   {right}",
            path.display(),
            number + 1
        );
    }
    assert_eq!(
        expected.lines().count(),
        actual.lines().count(),
        "{}: number of lines",
        path.display()
    );
}

#[test]
fn an_etl_file_and_the_recording_made_of_it_give_the_same() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings/windows-l2bridge");
    let directory = tempfile::tempdir().unwrap();
    let recording = directory.path().join("events.jsonl");
    let output = Command::new(env!("CARGO_BIN_EXE_sandglass"))
        .args(["replay", "--print", "spans", "--record"])
        .args([&recording, &folder.join("events.etl")])
        .env_clear()
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(replay(&recording, "spans"), String::from_utf8(output.stdout).unwrap());
}

#[test]
fn every_recording_gives_its_spans_and_metrics_twice() {
    let folders = folders();
    assert!(folders.len() >= 5, "only {} recordings", folders.len());
    for folder in folders {
        let events = events_of(&folder);
        assert!(
            folder.join("README.md").is_file(),
            "{} has no README.md",
            folder.display()
        );
        let spans = replay(&events, "spans");
        assert_eq!(
            spans,
            replay(&events, "spans"),
            "{}: two replays differ",
            folder.display()
        );
        check(&folder.join("spans.jsonl"), &spans);
        check(&folder.join("tree.txt"), &replay(&events, "tree"));
        check(&folder.join("metrics.prom"), &stable(&replay(&events, "metrics")));
    }
}

/// The sentence above a trace names what its slow plugin waited for, and blames no plugin where the node was busy.
#[test]
fn headlines_name_what_slow_plugins_waited_for() {
    for (name, sentence) in [
        (
            "xtables-lock",
            "27 commands iptables of plugin portmap took 1.79 s of 1.84 s (96 %): \
             iptables waited 1.74 s for a lock on a file (/run/xtables.lock, held by lock-holder)",
        ),
        (
            "busy-node",
            ": the node's processors were busy, 42 % of it was waiting for one",
        ),
        (
            "daemon-shim",
            " for cilium-agent, whose iptables-restore waited 1.67 s for a lock on a file \
             (/run/sg/xtables.lock, held by lock-holder)",
        ),
        ("dhcp-daemon", "plugin dhcp waited 3.03 s of 3.11 s (97 %) for dhcp"),
        ("cgroup-quota", ": its cgroup had used up its quota for 75 % of it"),
        (
            "rtnl-holder",
            ": bridge waited 11 times 349 ms for a lock of the kernel (rtnl, held by ip)",
        ),
        (
            "slow-disk",
            "plugin host-local took 400 ms of 400 ms (100 %): host-local waited 394 ms for a disk (page of a file)",
        ),
        (
            "slow-api-server",
            ": calico waited 1.00 s for the network (10.77.94.1:6443, the API server, woken by kube-apiserver)",
        ),
        (
            "nft-cleanup",
            ": iptables waited 4 times 42.4 ms for the kernel's own work (nftables, woken by kworker)",
        ),
        (
            "ptp-ipv6",
            ": 1.55 s of it was duplicate address detection of fd00::5 on eth0 (likely)",
        ),
        ("slow-plugin", ": sleep waited 2 times 500 ms for a timer"),
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings").join(name);
        let text = fs::read_to_string(folder.join("events.jsonl")).unwrap();
        let mut events: Vec<Event> = text
            .lines()
            .skip(1)
            .map(|line| recording::decode_event(line).unwrap())
            .collect();
        events.sort_by_key(|event| event.at);
        let mut correlator = Correlator::new(CorrelatorConfig::default());
        for event in events {
            correlator.handle(event);
        }
        correlator.finish();
        let trace = correlator.drain().into_iter().find_map(|output| match output {
            Output::Closed(trace) => Some(trace),
            _ => None,
        });
        let trace = trace.unwrap();
        let verdict = phases::verdict(&trace, trace.root().end.unwrap());
        assert!(verdict.ends_with(sentence), "{name}: {verdict}");
    }
}
