//! Every recording replays to the same tree after `replay --record --anonymize`, and the copy names nobody.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sandglass::sources::replay::Replay;
use sandglass::sources::windows::normalize::ActivityNames;
use sandglass_model::{Body, Event, PodIdentity};
use serde_json::Value;

#[test]
fn every_recording_keeps_its_tree_and_names_nobody() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings");
    let mut folders: Vec<PathBuf> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.is_dir());
    folders.sort();
    assert!(folders.len() >= 30, "only {} recordings", folders.len());
    for folder in folders {
        let written = folder.join("events.etl");
        let original = if written.is_file() {
            written
        } else {
            folder.join("events.jsonl")
        };
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join("anonymized.jsonl");
        let expected = shapes(&replay(&original, Some(&copy)));
        let actual = shapes(&replay(&copy, None));
        assert_eq!(actual.len(), expected.len(), "{}: traces", folder.display());
        for (actual, expected) in actual.iter().zip(&expected) {
            assert_eq!(actual, expected, "{}", folder.display());
        }
        let text = fs::read_to_string(&copy).unwrap();
        let node = serde_json::from_str::<Value>(text.lines().next().unwrap()).unwrap();
        assert_eq!(node["holds"]["anonymized"], true, "{}", folder.display());
        for name in names(&original) {
            assert!(!text.contains(&name), "{}: {name:?} is in the copy", folder.display());
        }
    }
}

fn replay(recording: &Path, copy: Option<&Path>) -> Vec<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandglass"));
    command.args(["replay", "--print", "spans"]).arg(recording).env_clear();
    if let Some(copy) = copy {
        command.arg("--anonymize").arg("--record").arg(copy);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What a trace is without its names: spans with depth, name, kind, times, phase and state. Sorted, since traces that end at
/// one instant may be ordered by id.
fn shapes(traces: &[Value]) -> Vec<String> {
    let kept = [
        "depth",
        "name",
        "kind",
        "start_unix_ns",
        "end_unix_ns",
        "own_ns",
        "phase",
        "status",
        "error_class",
    ];
    let shape = |trace: &Value| {
        let spans = trace["spans"].as_array().unwrap().iter().map(|span| {
            let fields = kept.iter().map(|field| format!("{field}={}", span[*field]));
            let marks = span["events"].as_array().unwrap().iter();
            let marks = marks.map(|mark| format!("{} {}", mark["name"], mark["unix_ns"]));
            fields.chain(marks).collect::<Vec<_>>().join(" ")
        });
        format!(
            "incomplete={}\n{}",
            trace["incomplete"],
            spans.collect::<Vec<_>>().join("\n")
        )
    };
    let mut shapes: Vec<String> = traces.iter().map(shape).collect();
    shapes.sort();
    shapes
}

/// Names of pods, ids and addresses in a recording, as far as their fields have them.
fn names(recording: &Path) -> BTreeSet<String> {
    let mut replay = Replay::open(recording, ActivityNames::default()).unwrap();
    let mut found = BTreeSet::new();
    let identity = |identity: &PodIdentity, found: &mut BTreeSet<String>| {
        found.extend([identity.uid.clone(), identity.name.clone(), identity.namespace.clone()]);
    };
    while let Some(Event { body, .. }) = replay.next_event().unwrap() {
        match body {
            Body::ProcessExecuted(exec) => {
                found.extend(exec.env("CNI_CONTAINERID").map(str::to_owned));
                if let Some(args) = exec.env("CNI_ARGS") {
                    identity(&PodIdentity::from_cni_args(args), &mut found);
                }
            }
            Body::SandboxDescribed(description) => {
                found.insert(description.sandbox.0);
                identity(&description.identity, &mut found);
            }
            Body::ConnectSeen(step) => found.extend([format!("\"{}\"", step.remote), format!("\"{}\"", step.local)]),
            Body::DnsSeen(message) => {
                let names = message.questions.into_iter().map(|question| question.name.to_string());
                found.extend(names.filter(|name| name.contains('.')));
            }
            _ => {}
        }
    }
    // What is shown: names that Kubernetes itself makes, and the loopback. Short names are parts of other words.
    let shown = |name: &String| {
        name.len() < 6
            || matches!(
                name.as_str(),
                "default" | "kube-system" | "kubernetes.default.svc.cluster.local"
            )
            || name.contains("127.0.0.1")
            || name.contains("[::1]")
            || name.starts_with("\"10.")
    };
    found.retain(|name| !shown(name));
    found
}
