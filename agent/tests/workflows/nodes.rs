//! The judge of Linux nodes (`scripts/nodes/judge.py`), against stand-ins for kubectl and the agent, and the script that starts Fedora, against
//! stand-ins for QEMU and ssh.
//!
//! The judge is run against a real node too: `cluster.rs`, and `end_to_end/crio.rs` of the demo. Does not: trace.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::{fs, thread};

use serde_json::{Value, json};

use super::{root, stand_in, text};

/// What the judge asks for, of a node with two pods, a slow and a refused one.
struct Node {
    /// When the pods were requested, nanoseconds since 1970.
    begin_ns: u64,
    traces: Vec<Value>,
    operations: Vec<Value>,
    metrics: String,
    doctor: Value,
    /// What `kubectl get pods` has.
    pods: Value,
}

type Spoil = fn(&mut Node);

const GOOD: [&str; 3] = ["judge-1", "judge-2", "judge-slow"];
const METRICS: &str = "# TYPE sandglass_events_lost counter
sandglass_events_lost_total{probe=\"exec\"} 0.0
sandglass_events_lost_total{probe=\"dns\"} 3.0
sandglass_events_orphan_total 1.0
# EOF
";

impl Node {
    fn good(begin_ns: u64) -> Node {
        let mut traces: Vec<Value> = GOOD.iter().map(|pod| trace(begin_ns, pod)).collect();
        traces.extend([refused(begin_ns, 1), refused(begin_ns, 2)]);
        let del = |pod: &&str| {
            json!({"kind": "operation", "operation": "DEL", "namespace": "sandglass-judge", "pod": pod, "result": "ok", "running": false,
                   "incomplete": false})
        };
        let runs = |pod: &&str| {
            json!({"metadata": {"name": pod, "uid": uid(pod)}, "status": {
                "phase": "Running",
                "conditions": [{"type": "PodReadyToStartContainers", "status": "True", "lastTransitionTime": "@NOW@"}],
                "containerStatuses": [{"state": {"running": {"startedAt": "@NOW@"}}}],
            }})
        };
        let mut pods: Vec<Value> = GOOD.iter().map(runs).collect();
        pods.push(
            json!({"metadata": {"name": "judge-refused", "uid": uid("judge-refused")}, "status": {"phase": "Pending"}}),
        );
        Node {
            begin_ns,
            traces,
            operations: GOOD.iter().map(del).collect(),
            metrics: METRICS.to_owned(),
            doctor: json!({"sections": [{"findings": [{"level": "ok", "check": "kernel.btf", "what": "there"},
                                                      {"level": "warn", "check": "cri.socket", "what": "none"}]}]}),
            pods: json!({"items": pods}),
        }
    }

    fn of(&mut self, pod: &str) -> &mut Value {
        let mut traces = self.traces.iter_mut();
        traces.find(|trace| trace["pod"] == pod).unwrap()
    }

    fn span(&mut self, pod: &str, name: &str) -> &mut Value {
        let mut spans = self.of(pod)["timeline"].as_array_mut().unwrap().iter_mut();
        spans.find(|span| span["name"] == name).unwrap()
    }
}

fn uid(pod: &str) -> String {
    format!("uid-{pod}")
}

/// A span from and until so many milliseconds after the request.
fn span(begin_ns: u64, name: &str, from_ms: u64, until_ms: u64) -> Value {
    let at = |ms: u64| (begin_ns + ms * 1_000_000).to_string();
    let duration = (until_ms - from_ms) * 1_000_000;
    json!({"name": name, "start_unix_ns": at(from_ms), "end_unix_ns": at(until_ms), "duration_ns": duration, "status": "unset", "events": []})
}

/// A good trace. Its times are those of the request: the judge holds them against its own clock, and a stand-in takes no time.
fn trace(begin_ns: u64, pod: &str) -> Value {
    let mut timeline = vec![
        span(begin_ns, "sandbox", 1, 90),
        span(begin_ns, "sandbox.create", 1, 80),
        span(begin_ns, "cni ADD", 5, 60),
        span(begin_ns, "plugin bridge", 5, 40),
        span(begin_ns, "plugin host-local", 10, 20),
        span(begin_ns, "daemon helper", 11, 12),
        span(begin_ns, "plugin sandglass-judge", 45, 60),
    ];
    if pod == "judge-slow" {
        timeline.push(span(begin_ns, "command sleep", 46, 59));
        timeline[6]["duration_ns"] = 2_010_000_000_u64.into();
    }
    json!({
        "trace_id": uid(pod), "root_span_id": "1", "kind": "sandbox", "namespace": "sandglass-judge", "pod": pod, "result": "ok",
        "running": false, "incomplete": false, "verdict": "nothing stands out", "sandbox": "abc",
        "identity": {"name": pod, "namespace": "sandglass-judge", "uid": uid(pod)}, "timeline": timeline,
    })
}

/// An attempt that the plugin refused.
fn refused(begin_ns: u64, attempt: u64) -> Value {
    let mut trace = trace(begin_ns, "judge-refused");
    trace["root_span_id"] = attempt.to_string().into();
    trace["result"] = "failed".into();
    trace["timeline"][6]["error_message"] = "the judge refuses this pod".into();
    trace
}

/// kubectl, as far as the judge calls it; it notes when pods were requested.
const KUBECTL: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit 1
case "$*" in
"apply "*) cat > applied.json; date +%s%N > applied ;;
"get pods --output=json"*) sed "s/@NOW@/$(date -u +%Y-%m-%dT%H:%M:%SZ)/g" pods.json ;;
"get serviceaccount "* | "create namespace "* | "delete "*) echo "$*" ;;
*) echo "told" ;;
esac
"#;

fn program(file: &Path, script: &str) {
    fs::write(file, script).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

fn answer(folder: &Path, spoil: Spoil, path: &str) -> Option<String> {
    let applied = fs::read_to_string(folder.join("applied")).ok();
    let begin_ns = applied.and_then(|applied| applied.trim().parse().ok());
    let mut node = Node::good(begin_ns.unwrap_or_default());
    spoil(&mut node);
    let rows = |traces: &[Value]| json!({ "rows": traces }).to_string();
    match path.split('?').next().unwrap() {
        "/readyz" => Some("ready".to_owned()),
        "/metrics" => Some(if begin_ns.is_some() {
            node.metrics
        } else {
            METRICS.to_owned()
        }),
        "/api/v1/sandboxes" if path.contains("kind=operation") => Some(rows(&node.operations)),
        "/api/v1/sandboxes" => Some(rows(&node.traces)),
        "/api/v1/health" | "/api/v1/known" | "/api/v1/operations" | "/api/v1/network" => Some("{}".to_owned()),
        path => {
            let id = path.strip_prefix("/api/v1/traces/")?;
            let is = |trace: &&Value| {
                format!(
                    "{}/{}",
                    trace["trace_id"].as_str().unwrap(),
                    trace["root_span_id"].as_str().unwrap()
                ) == id
            };
            node.traces.iter().find(is).map(Value::to_string)
        }
    }
}

/// The judgement of a node that is spoiled so.
fn judged(spoil: Spoil, more: &[&str]) -> (Output, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::good(0);
    spoil(&mut node);
    for (name, content) in [("pods.json", &node.pods), ("doctor.json", &node.doctor)] {
        fs::write(folder.path().join(name), content.to_string()).unwrap();
    }
    program(&folder.path().join("kubectl"), KUBECTL);
    for name in ["networks", "plugins"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let list = r#"{"cniVersion": "1.0.0", "name": "node", "plugins": [{"type": "bridge"}]}"#;
    fs::write(folder.path().join("networks/10-node.conflist"), list).unwrap();
    let state = folder.path().to_owned();
    let address = stand_in::serve(move |path, _| answer(&state, spoil, path));
    let at = |name: &str| folder.path().join(name).display().to_string();
    let output = Command::new("python3")
        .arg(root("scripts/nodes/judge.py"))
        .args([
            &at("evidence"),
            "--pods",
            "2",
            "--plugin",
            "bridge",
            "--plugin",
            "host-local",
            "--daemon",
            "helper",
        ])
        .args([
            "--page",
            &address,
            "--metrics",
            &address,
            "--kubectl",
            &at("kubectl"),
            "--seconds",
            "2",
        ])
        .args(["--networks", &at("networks"), "--plugins", &at("plugins")])
        .args([
            "--doctor",
            &format!("cat {}", at("doctor.json")),
            "--limitation",
            "Runtimes beyond",
        ])
        .args(more)
        .output()
        .unwrap();
    let printed = text(&output.stdout) + &text(&output.stderr);
    // What was put into the runtime's folders is gone, and the judgement is among the evidence.
    let left: Vec<_> = ["networks", "plugins"]
        .iter()
        .flat_map(|name| fs::read_dir(at(name)).unwrap())
        .collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let kept = fs::read_to_string(folder.path().join("evidence/judgement.txt")).unwrap();
    assert_eq!(kept, text(&output.stdout));
    (output, printed)
}

#[test]
fn the_judge_of_nodes_accepts_a_good_one() {
    let (accepted, printed) = judged(|_| {}, &[]);
    assert!(accepted.status.success(), "{printed}");
    assert!(printed.lines().last().unwrap().starts_with("passed: "), "{printed}");
    assert!(printed.matches("ok ").count() > 40, "{printed}");
    assert!(printed.contains("note   doctor warns: cri.socket: none"), "{printed}");
}

/// Each is rejected by name: the complaint of a line that begins with FAILED.
const SPOILS: [(&str, Spoil); 21] = [
    ("judge-2: one trace (0)", |node| {
        node.traces.retain(|trace| trace["pod"] != "judge-2")
    }),
    ("judge-1: one trace (2)", |node| {
        let mut again = node.of("judge-1").clone();
        again["root_span_id"] = "2".into();
        node.traces.push(again);
    }),
    ("judge-1: its trace is complete", |node| {
        node.of("judge-1")["incomplete"] = true.into()
    }),
    ("judge-1: its trace is complete (lost: ['dns'])", |node| {
        let trace = node.of("judge-1");
        trace["incomplete"] = true.into();
        trace["timeline"][0]["events"] = json!([{"name": "records lost", "attributes": [["sandglass.probe", "dns"]]}]);
    }),
    ("judge-1: its trace has no failure (failed: ", |node| {
        node.of("judge-1")["result"] = "failed".into()
    }),
    ("judge-1: every span has an end", |node| {
        node.span("judge-1", "plugin bridge")
            .as_object_mut()
            .unwrap()
            .remove("end_unix_ns");
    }),
    (
        "judge-1: name and namespace are the pod's (sandglass-judge/other)",
        |node| {
            node.of("judge-1")["identity"]["name"] = "other".into();
        },
    ),
    (
        "judge-2: has plugin host-local (of plugin bridge, plugin other, plugin sandglass-judge)",
        |node| {
            node.span("judge-2", "plugin host-local")["name"] = "plugin other".into();
        },
    ),
    ("judge-2: one sandbox.create (0)", |node| {
        node.span("judge-2", "sandbox.create")["name"] = "other".into()
    }),
    ("judge-1: the creation is within what was seen from outside", |node| {
        let early = (node.begin_ns.saturating_sub(60_000_000_000)).to_string();
        node.span("judge-1", "sandbox.create")["start_unix_ns"] = early.into();
    }),
    ("judge-2: the creation is within what was seen from outside", |node| {
        let late = (node.begin_ns + 900_000_000_000).to_string();
        node.span("judge-2", "sandbox.create")["end_unix_ns"] = late.into();
    }),
    ("judge-1: each cni ADD is within the creation (0 of 1)", |node| {
        let late = (node.begin_ns + 85_000_000).to_string();
        node.span("judge-1", "cni ADD")["end_unix_ns"] = late.into();
    }),
    ("judge-slow: plugin sandglass-judge took 2 s or more", |node| {
        node.span("judge-slow", "plugin sandglass-judge")["duration_ns"] = 1_900_000_000_u64.into();
    }),
    ("judge-refused: each of 2 attempts or more failed (1 of 2)", |node| {
        node.of("judge-refused")["result"] = "ok".into()
    }),
    ("judge-refused: the failure has the plugin's own message", |node| {
        for trace in node.traces.iter_mut().filter(|trace| trace["pod"] == "judge-refused") {
            trace["timeline"][6]["error_message"] = "exit code 1".into();
        }
    }),
    ("every trace is of a pod that was made (['stranger'] are not)", |node| {
        let mut stranger = trace(node.begin_ns, "stranger");
        stranger["identity"]["uid"] = "other".into();
        node.traces.push(stranger);
    }),
    ("a trace has a request to the daemon helper (0 of 5)", |node| {
        for trace in &mut node.traces {
            trace["timeline"][5]["name"] = "wait socket".into();
        }
    }),
    (
        "judge-2: its DEL is traced, complete and without failure (0 of 1)",
        |node| node.operations[1]["result"] = "failed".into(),
    ),
    ("events_orphan_total did not grow", |node| {
        node.metrics = METRICS.replace("orphan_total 1.0", "orphan_total 2.0")
    }),
    ("doctor: cni.configuration: no list", |node| {
        node.doctor["sections"][0]["findings"][0] =
            json!({"level": "fail", "check": "cni.configuration", "what": "no list"});
    }),
    ("judge-2: runs", |node| {
        node.pods["items"][1]["status"]["phase"] = "Pending".into()
    }),
];

#[test]
fn the_judge_of_nodes_rejects_spoiled_ones_by_name() {
    // Beside each other: they wait for what does not come.
    thread::scope(|scope| {
        for (complaint, spoil) in SPOILS {
            scope.spawn(move || {
                let (rejected, printed) = judged(spoil, &[]);
                assert_eq!(rejected.status.code(), Some(1), "{complaint}: {printed}");
                let says = |line: &str| {
                    line.starts_with("FAILED ")
                        && line.contains(complaint)
                        && line.ends_with("[LIMITATIONS: Runtimes beyond]")
                };
                assert!(printed.lines().any(says), "{complaint}: {printed}");
                assert!(
                    printed.lines().last().unwrap().starts_with("failed: "),
                    "{complaint}: {printed}"
                );
            });
        }
    });
}

/// Where others use the machine, what is lost of their traffic is named and not judged; processes are.
#[test]
fn the_judge_of_nodes_excuses_lost_traffic_of_others_only() {
    let lost = |node: &mut Node| {
        node.metrics = METRICS
            .replace("\"dns\"} 3.0", "\"dns\"} 4.0")
            .replace("orphan_total 1.0", "orphan_total 2.0");
        let trace = node.of("judge-1");
        trace["incomplete"] = true.into();
        trace["timeline"][0]["events"] = json!([{"name": "records lost", "attributes": [["sandglass.probe", "dns"]]}]);
    };
    let (accepted, printed) = judged(lost, &["--shared"]);
    assert!(accepted.status.success(), "{printed}");
    for name in ["complete_judge-1", "events_lost_total", "events_orphan_total"] {
        assert!(printed.contains(&format!("NOT JUDGED judge::{name}: ")), "{printed}");
    }
    let (rejected, printed) = judged(
        |node| node.metrics = METRICS.replace("\"exec\"} 0.0", "\"exec\"} 1.0"),
        &["--shared"],
    );
    assert_eq!(rejected.status.code(), Some(1), "{printed}");
    assert!(printed.contains("FAILED events_lost_total did not grow"), "{printed}");
}

/// What cannot be judged at all is a failure with its reason, and not a traceback.
#[test]
fn the_judge_of_nodes_says_why_it_does_not_get_to_the_end() {
    let (rejected, printed) = judged(|_| {}, &["--kubectl", "false"]);
    assert_eq!(rejected.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("FAILED the judge gets to the end (Stop: false create namespace sandglass-judge: exit code 1"),
        "{printed}"
    );
    let (rejected, printed) = judged(
        |_| {},
        &[
            "--agent",
            "sh -c 'echo no such option; exit 64'",
            "--metrics",
            "http://127.0.0.1:1",
        ],
    );
    assert_eq!(rejected.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("the agent ended with code 64: no such option"),
        "{printed}"
    );
    assert!(!printed.contains("Traceback"), "{printed}");
}

/// The image is compared with the checksum of the script and with the publisher's list before anything is booted, and then answers.
#[test]
fn fedora_is_started_only_from_the_image_that_was_pinned() {
    let test = "fedora_is_started_only_from_the_image_that_was_pinned";
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("SKIPPED {test}: curl is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let images = folder.path().join("images");
    fs::create_dir(&images).unwrap();
    let image = "Fedora-Cloud-Base-Generic-44-1.7.x86_64.qcow2";
    fs::write(images.join(image), "image\n").unwrap();
    let summed = Command::new("sha256sum").arg(images.join(image)).output().unwrap();
    let checksum = text(&summed.stdout)[..64].to_owned();
    let list = |checksum: &str| {
        let list = format!(
            "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n# {image}: 6 bytes\nSHA256 ({image}) = {checksum}\n"
        );
        fs::write(images.join("Fedora-Cloud-44-1.7-x86_64-CHECKSUM"), list).unwrap();
    };
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    for name in ["qemu-img", "genisoimage", "qemu-system-x86_64", "ssh"] {
        program(
            &bin.join(name),
            &format!("#!/bin/sh\necho {name} \"$@\" >> {}/calls\n", folder.path().display()),
        );
    }
    program(
        &bin.join("ssh-keygen"),
        "#!/bin/sh\necho 'ssh-ed25519 AAAA sandglass' | tee key.pub > key\n",
    );
    let start = |pinned: &str| {
        Command::new(root("scripts/nodes/fedora.sh"))
            .args(["start", &folder.path().join("machine").display().to_string()])
            .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
            .env("FEDORA_IMAGES", format!("file://{}", images.display()))
            .env("FEDORA_SHA256", pinned)
            .output()
            .unwrap()
    };
    let calls = || fs::read_to_string(folder.path().join("calls")).unwrap_or_default();
    let other = "0".repeat(64);
    for (pinned, published) in [(&other, &checksum), (&checksum, &other)] {
        list(published);
        assert!(!start(pinned).status.success());
        assert_eq!(calls(), "");
    }
    list(&checksum);
    let started = start(&checksum);
    assert!(
        started.status.success(),
        "{}{}",
        text(&started.stdout),
        text(&started.stderr)
    );
    let calls = calls();
    assert!(
        calls.contains("-drive file=seed.iso,if=virtio,format=raw,readonly=on"),
        "{calls}"
    );
    assert!(
        calls.contains("fedora@127.0.0.1 sudo cloud-init status --wait"),
        "{calls}"
    );
    let seed = fs::read_to_string(folder.path().join("machine/user-data")).unwrap();
    assert!(
        seed.starts_with("#cloud-config\nssh_authorized_keys: [\"ssh-ed25519 "),
        "{seed}"
    );
}
