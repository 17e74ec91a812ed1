//! Reports of made-up nodes: kernels, configuration directories and scripted runtimes; the text and JSON forms.

use std::fs;

use super::*;

struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Node {
        Node(tempfile::tempdir().unwrap())
    }

    fn file(&self, path: &str, text: impl AsRef<[u8]>) -> &Node {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn options(&self) -> DoctorOptions {
        DoctorOptions {
            runtime: RuntimeChoice::Auto,
            timeout: Duration::from_secs(2),
            pause: Duration::from_millis(10),
            cni: CniOptions::found_below(self.0.path()),
            root: self.0.path().to_owned(),
            ..DoctorOptions::new(node_info(), vec![attached("exec", "")])
        }
    }

    async fn report(&self) -> Report {
        run(self.options()).await
    }
}

fn node_info() -> NodeInfo {
    NodeInfo {
        name: "n1".to_owned(),
        version: "0.0.0".to_owned(),
        os: "Linux".to_owned(),
        kernel: "6.12.0".to_owned(),
        machine: "x86_64".to_owned(),
        ..NodeInfo::default()
    }
}

fn attached(probe: &str, consequence: &str) -> ProbeStatus {
    ProbeStatus {
        probe: probe.to_owned(),
        hook: "tp_btf".to_owned(),
        attached: true,
        consequence: consequence.to_owned(),
        hint: String::new(),
    }
}

fn level_of(report: &Report, check: &str, part: &str) -> Level {
    let findings = report.sections.iter().flat_map(|section| &section.findings);
    let found = findings
        .clone()
        .find(|finding| finding.check == check && finding.what.contains(part));
    found
        .unwrap_or_else(|| panic!("no {check} with {part:?} in {report:#?}"))
        .level
}

#[tokio::test]
async fn an_empty_node_fails_for_want_of_probes_only() {
    let node = Node::new();
    let report = run(DoctorOptions {
        probes: Vec::new(),
        ..node.options()
    })
    .await;
    assert_eq!(report.count(Level::Fail), 1);
    assert_eq!(report.exit_code(), 1);
    assert_eq!(level_of(&report, "probe", "no probe"), Level::Fail);
    assert_eq!(
        level_of(&report, "cni.directory", "no network configuration"),
        Level::Note
    );
}

/// The report of a node on which every file is garbage.
async fn report_of_garbage() -> Report {
    let node = Node::new();
    let garbage: Vec<u8> = (0..=255u8).cycle().take(9_000).collect();
    for path in [
        "proc/self/status",
        "proc/self/attr/current",
        "proc/sys/kernel/osrelease",
        "sys/kernel/btf/vmlinux",
        "sys/kernel/security/lockdown",
        "proc/config.gz",
        "proc/sys/kernel/perf_event_paranoid",
        "proc/self/mountinfo",
        "etc/containerd/config.toml",
        "etc/cni/net.d/a.conf",
        "etc/cni/net.d/b.conflist",
        "run/containerd/containerd.sock",
    ] {
        node.file(path, &garbage);
    }
    node.report().await
}

#[tokio::test]
async fn garbage_everywhere_is_no_panic() {
    let report = report_of_garbage().await;
    let text = render(&report, true);
    assert!(text.lines().all(|line| line.len() < 1000));
    assert!(serde_json::from_str::<serde_json::Value>(&report.to_json()).is_ok());
}

#[tokio::test]
async fn json_has_the_same_findings() {
    let report = Report {
        node: node_info(),
        sections: vec![Section {
            title: "probes",
            findings: vec![
                Finding::ok("probe", "exec"),
                Finding::new(Level::Fail, "probe", "x").why("y"),
            ],
        }],
    };
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["node"]["name"], "n1");
    assert_eq!(
        json["sections"][0]["findings"],
        serde_json::json!([
            {"level": "ok", "check": "probe", "what": "exec"},
            {"level": "fail", "check": "probe", "what": "x", "why": "y"},
        ])
    );
}

#[test]
fn texts_cannot_play_with_the_terminal() {
    let report = Report {
        node: node_info(),
        sections: vec![Section {
            title: "probes",
            findings: vec![Finding::ok("probe", "a\x1b[2Jb\nc".to_owned() + &"x".repeat(5_000))],
        }],
    };
    let text = render(&report, false);
    assert!(text.contains("ok   a [2Jb c"), "{text}");
    assert!(!text.contains('\x1b') && text.len() < 1_000);
    assert!(render(&report, true).contains("\x1b[32mok  \x1b[0m"));
}

#[cfg(unix)]
mod unix;
