//! The workflows of `.github` as far as they run on Linux: actionlint finds nothing in them, the judge of a Windows node accepts
//! a good replay and rejects spoiled ones, the CNI plugins of that node do what they are for, and so do the judges of the dashboards in Grafana
//! and of Linux nodes.
//!
//! The replays are those of `recordings/windows-*`, in place of a node's. Does not: run a workflow.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

#[path = "workflows/grafana.rs"]
mod grafana;
#[path = "workflows/nodes.rs"]
mod nodes;
#[path = "workflows/stand_in.rs"]
mod stand_in;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(path)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn actionlint_finds_nothing() {
    let test = "actionlint_finds_nothing";
    let built = Command::new(root("scripts/peer.sh"))
        .arg("actionlint")
        .output()
        .unwrap();
    if !built.status.success() {
        let why = text(&built.stderr);
        eprintln!(
            "SKIPPED {test}: no actionlint: {}",
            why.lines().last().unwrap_or_default()
        );
        return;
    }
    // actionlint gives it the steps' scripts; a step that is a file of its own is checked here.
    match Command::new("shellcheck")
        .args(["fedora.sh", "podman.sh"].map(|name| root("scripts/nodes").join(name)))
        .output()
    {
        Ok(checked) => assert!(checked.status.success(), "{}", text(&checked.stdout)),
        Err(_) => eprintln!("NOT RUN {test}::shellcheck: shellcheck is not installed"),
    }
    let mut workflows: Vec<PathBuf> = fs::read_dir(root(".github/workflows"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    workflows.sort();
    assert_eq!(workflows.len(), 4, "{workflows:?}");
    let checked = Command::new(text(&built.stdout).trim())
        .arg("-no-color")
        .args(&workflows)
        .output()
        .unwrap();
    assert!(
        checked.status.success(),
        "{}{}",
        text(&checked.stdout),
        text(&checked.stderr)
    );
}

/// What was never run names the workflow that would show it, and a workflow the line that it is about: both are there.
#[test]
fn limitations_and_workflows_name_each_other() {
    let limitations = fs::read_to_string(root("LIMITATIONS.md")).unwrap();
    let (_, never_run) = limitations.split_once("\n## What was never run\n").unwrap();
    assert!(!never_run.contains("no workflow"), "{never_run}");
    // Every second piece is code.
    let named = never_run
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.ends_with(".yml"));
    let named: Vec<&str> = named.collect();
    assert!(named.len() > 5, "{named:?}");
    for name in named {
        assert!(root(".github/workflows").join(name).exists(), "{name}");
    }
    let mut lines = 0;
    for entry in fs::read_dir(root(".github/workflows")).unwrap() {
        let workflow = fs::read_to_string(entry.unwrap().path()).unwrap();
        for (_, rest) in workflow.lines().filter_map(|line| line.split_once("LIMITATIONS \"")) {
            for name in rest.split(", \"").map(|name| name.split('"').next().unwrap()) {
                assert!(never_run.contains(&format!("**{name}")), "{name}");
                lines += 1;
            }
        }
    }
    assert!(lines > 10, "{lines}");
}

/// What the judge reads of a node.
#[derive(Clone)]
struct Node {
    traces: Vec<Value>,
    clock: Value,
    xml: String,
    live: String,
}

/// A pod that was made, by another name than in its recording.
struct Pod {
    name: &'static str,
    recording: &'static str,
    plugins: &'static [&'static str],
    fails: bool,
    /// A command below a plugin, and how many milliseconds it takes at least.
    command: Option<(&'static str, u64)>,
}

const PODS: [Pod; 3] = [
    Pod {
        name: "good",
        recording: "windows-l2bridge",
        plugins: &["sdnbridge", "host-local"],
        fails: false,
        command: None,
    },
    Pod {
        name: "refused",
        recording: "windows-attach-failed",
        plugins: &["sdnbridge"],
        fails: true,
        command: None,
    },
    Pod {
        name: "slow",
        recording: "windows-agent-powershell",
        plugins: &["antrea"],
        fails: false,
        command: Some(("powershell", 3_000)),
    },
];
/// 2026-01-01T00:00:00Z, when the recordings begin.
const MIDNIGHT_NS: u64 = 1_767_225_600_000_000_000;

/// A node on which three pods were made: replays of three recordings.
fn node() -> Node {
    let (mut traces, mut clock, mut events) = (Vec::new(), Vec::new(), String::new());
    for pod in PODS {
        let recording = format!("recordings/{}/events.etl", pod.recording);
        let replayed = Command::new(env!("CARGO_BIN_EXE_sandglass"))
            .args(["replay", "--print", "spans"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(recording))
            .env_clear()
            .output()
            .unwrap();
        assert!(replayed.status.success(), "{}", text(&replayed.stderr));
        for line in text(&replayed.stdout).lines() {
            let mut trace: Value = serde_json::from_str(line).unwrap();
            trace["pod"]["name"] = pod.name.into();
            for span in trace["spans"].as_array().unwrap() {
                process_event(span, &mut events);
                if span["name"] == "sandbox.create" {
                    let at = |key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap();
                    clock.push(json!({
                        "pod": pod.name, "plugins": pod.plugins, "fails": pod.fails, "command": pod.command,
                        "exit": i32::from(pod.fails),
                        "begin_ns": at("start_unix_ns") - 20_000_000, "end_ns": at("end_unix_ns") + 20_000_000,
                    }));
                }
            }
            traces.push(trace);
        }
    }
    Node {
        traces,
        clock: clock.into(),
        xml: format!("<Events>{events}</Events>"),
        live: json!([{"pod": "good"}, {"pod": "refused"}, {"pod": "slow"}]).to_string(),
    }
}

/// Adds what `tracerpt -of XML` prints of the process that a span is about.
fn process_event(span: &Value, events: &mut String) {
    let Some(pid) = span["attributes"]["process.pid"].as_u64() else {
        return;
    };
    let since = span["start_unix_ns"].as_str().unwrap().parse::<u64>().unwrap() - MIDNIGHT_NS;
    write!(
        events,
        r#"<Event xmlns="http://schemas.microsoft.com/win/2004/08/events/event"><System>
        <Provider Guid="{{9e814aad-3204-11d2-9a82-006008a86939}}" /><Opcode>1</Opcode>
        <TimeCreated SystemTime="2026-01-01T00:00:{:02}.{:09}Z" /></System>
        <EventData><Data Name="ProcessId">0x{pid:X}</Data><Data Name="ImageFileName">{}</Data></EventData>
        <RenderingInfo Culture="en-US"><Opcode>Start</Opcode>
        <EventName xmlns="http://schemas.microsoft.com/win/2004/08/events/trace">Process</EventName></RenderingInfo></Event>"#,
        since / 1_000_000_000,
        since % 1_000_000_000,
        span["attributes"]["process.executable.name"]
            .as_str()
            .unwrap_or_default(),
    )
    .unwrap();
}

fn judge(node: &Node) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: String| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let lines: Vec<String> = node.traces.iter().map(Value::to_string).collect();
    Command::new("python3")
        .arg(root("scripts/windows/judge.py"))
        .arg("--spans")
        .arg(file("spans", lines.join("\n")))
        .arg("--clock")
        .arg(file("clock", node.clock.to_string()))
        .arg("--xml")
        .arg(file("xml", node.xml.clone()))
        .arg("--live")
        .arg(file("live", node.live.clone()))
        .output()
        .unwrap()
}

type Spoil = fn(&mut Node);

/// Spans of a pod whose names begin so.
fn spans<'a>(node: &'a mut Node, pod: &str, beginning: &str) -> Vec<&'a mut Value> {
    node.traces
        .iter_mut()
        .filter(|trace| trace["pod"]["name"] == pod)
        .flat_map(|trace| trace["spans"].as_array_mut().unwrap())
        .filter(|span| span["name"].as_str().unwrap().starts_with(beginning))
        .collect()
}

fn rename(node: &mut Node, pod: &str, beginning: &str) {
    let found = spans(node, pod, beginning);
    assert!(!found.is_empty(), "{pod} has no {beginning}");
    for span in found {
        span["name"] = "other".into();
    }
}

#[test]
fn the_judge_of_a_windows_node_accepts_a_good_one_and_rejects_spoiled_ones() {
    let good = node();
    let accepted = judge(&good);
    assert!(
        accepted.status.success(),
        "{}{}",
        text(&accepted.stdout),
        text(&accepted.stderr)
    );
    assert!(
        text(&accepted.stdout).matches("ok ").count() > 35,
        "{}",
        text(&accepted.stdout)
    );

    let spoils: [(&str, Spoil); 12] = [
        ("good: one trace (0)", |node| {
            node.traces.retain(|trace| trace["pod"]["name"] != "good");
        }),
        ("good: has hns spans", |node| rename(node, "good", "hns ")),
        ("good: has hcs spans", |node| rename(node, "good", "hcs ")),
        ("good: one cni ADD (0)", |node| rename(node, "good", "cni ADD")),
        ("good: one plugin host-local (0)", |node| {
            rename(node, "good", "plugin host-local");
        }),
        ("refused: the ADD failed", |node| {
            spans(node, "refused", "cni ADD")[0]["status"] = "unset".into();
        }),
        ("refused: crictl's exit code 0 agrees", |node| {
            node.clock[1]["exit"] = 0.into();
        }),
        ("slow: a command powershell of 3000 ms or more", |node| {
            rename(node, "slow", "command powershell");
        }),
        ("good: creation is within crictl's clock", |node| {
            let late = node.clock[0]["begin_ns"].as_u64().unwrap() + 2_000_000_000;
            node.clock[0]["begin_ns"] = late.into();
        }),
        ("slow: no event was lost", |node| {
            for trace in &mut node.traces {
                trace["incomplete"] = true.into();
            }
        }),
        ("as tracerpt has it (10.000 ms)", |node| {
            node.xml = node.xml.replace("00:00:00.140000000Z", "00:00:00.150000000Z");
        }),
        ("slow: the live agent lists it", |node| {
            node.live = node.live.replace("slow", "other");
        }),
    ];
    for (complaint, spoil) in spoils {
        let mut spoiled = good.clone();
        spoil(&mut spoiled);
        let judged = judge(&spoiled);
        let printed = text(&judged.stdout);
        assert_eq!(
            judged.status.code(),
            Some(1),
            "{complaint}: {printed}{}",
            text(&judged.stderr)
        );
        assert!(
            printed
                .lines()
                .any(|line| line.starts_with("FAILED ") && line.contains(complaint)),
            "{complaint}: {printed}"
        );
    }
}

/// Runs a plugin as a runtime does.
fn plugin(program: &Path, command: &str, folder: &Path) -> Output {
    let mut child = Command::new(program)
        .env_clear()
        .env("CNI_COMMAND", command)
        .env("CNI_PATH", folder)
        .env("PATH", format!("{}:/usr/bin:/bin", folder.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let configuration = br#"{"cniVersion": "0.3.0", "name": "nat", "type": "sleeps"}"#;
    child.stdin.take().unwrap().write_all(configuration).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn the_plugins_of_the_windows_node_fail_and_delegate() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for name in ["fails", "sleeps"] {
        let compiled = Command::new("rustc")
            .args(["--edition", "2024", "-Dwarnings", "-o"])
            .arg(folder.join(name))
            .arg(root(&format!("scripts/windows/{name}.rs")))
            .output()
            .unwrap();
        assert!(compiled.status.success(), "{}", text(&compiled.stderr));
    }
    // In place of PowerShell, and of the plugin that is delegated to: it repeats its configuration.
    for (name, script) in [
        ("powershell", "echo \"$@\" > \"$(dirname \"$0\")/asked\""),
        ("nat", "echo $CNI_COMMAND; cat; exit 7"),
    ] {
        let file = folder.join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    let refused = plugin(&folder.join("fails"), "ADD", folder);
    assert_eq!(refused.status.code(), Some(1));
    let error: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(
        (&error["code"], &error["msg"]),
        (&json!(11), &json!("no policy allows this pod"))
    );
    assert!(plugin(&folder.join("fails"), "DEL", folder).status.success());

    let removed = plugin(&folder.join("sleeps"), "DEL", folder);
    assert_eq!(removed.status.code(), Some(7), "{}", text(&removed.stderr));
    assert!(!folder.join("asked").exists(), "PowerShell ran for a DEL");
    let added = plugin(&folder.join("sleeps"), "ADD", folder);
    assert_eq!(added.status.code(), Some(7), "{}", text(&added.stderr));
    assert_eq!(
        text(&added.stdout),
        "ADD\n{\"cniVersion\": \"0.3.0\", \"name\": \"nat\", \"type\": \"nat\"}"
    );
    assert!(
        fs::read_to_string(folder.join("asked"))
            .unwrap()
            .contains("Start-Sleep -Seconds 3")
    );
}

/// The workflow runs what docs/windows.md says, and containerd's configuration names a CNI folder for each handler.
#[test]
fn the_scripts_of_the_windows_node_read_the_documents_and_write_configurations() {
    let folder = tempfile::tempdir().unwrap();
    let script = r"
import pathlib, sys, tomllib
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import capture, node
for tool in ['logman', 'pktmon', 'netsh', 'wpr']:
    start, stop = capture.documented(tool)
    assert start and ' stop' in stop.replace('-', ' '), (tool, start, stop)
    assert 'C:\\node.etl' in ' '.join([*start, stop]), tool
folder = pathlib.Path(sys.argv[2])
node.configure(folder, '172.20.0.0/20', '172.20.0.1')
runtimes = tomllib.loads((folder / 'config.toml').read_text())['plugins']['io.containerd.cri.v1.runtime']['containerd']['runtimes']
for handler in [pod[1] for pod in capture.PODS if pod[1]]:
    assert handler in node.HANDLERS
    configuration, = pathlib.Path(runtimes[handler]['cni_conf_dir']).iterdir()
    assert f'\x22type\x22: \x22{handler}\x22' in configuration.read_text()
";
    let ran = Command::new("python3")
        .args(["-c", script])
        .arg(root("scripts/windows"))
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
}
