//! The Go programs that load directories as the runtimes do. Does not: know what should come out.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use sandglass::cni_conf::Libcni;
use sandglass_lab::built;

use crate::cases::{Case, Stage};

/// One build of `peer/`, with the modules of one containerd and of the CRI-O of its time.
pub struct Peer {
    pub name: &'static str,
    pub libcni: Libcni,
    program: PathBuf,
}

/// What the loaders made of a directory.
#[derive(Debug)]
pub struct Outcome {
    /// The error of containerd's loader when it loads nothing.
    pub error: String,
    /// What it loads.
    pub networks: Vec<Loaded>,
    /// The network that CRI-O attaches pods to, and whether it is there.
    pub default: String,
    pub available: bool,
    /// Whether this program has CRI-O's loader.
    pub has_crio: bool,
}

/// A network as a loader has it.
#[derive(Debug, PartialEq, Eq)]
pub struct Loaded {
    pub name: String,
    pub version: String,
    pub plugins: Vec<String>,
}

impl Loaded {
    /// The agent keeps 256 bytes of a text.
    pub fn bounded(&self) -> Loaded {
        Loaded {
            name: bounded(&self.name),
            version: bounded(&self.version),
            plugins: self.plugins.iter().map(|plugin| bounded(plugin)).collect(),
        }
    }
}

pub fn bounded(text: &str) -> String {
    text[..text.floor_char_boundary(256)].to_owned()
}

impl Peer {
    /// All of them, from the folder that `SANDGLASS_CNI_LOADERS` names or `scripts/peer.sh` has built; prints `SKIPPED`
    /// where there is neither.
    pub fn all(test: &str) -> Option<Vec<Peer>> {
        let Some(folder) = built::peer("SANDGLASS_CNI_LOADERS", "cniloaders") else {
            eprintln!("SKIPPED {test}: no loaders; scripts/peer.sh cniloaders builds them");
            return None;
        };
        let peers = [
            ("containerd-1.5", Libcni::V1_1),
            ("containerd-1.6", Libcni::V1_1),
            ("containerd-1.7", Libcni::V1_1),
            ("containerd-2.0", Libcni::V1_2),
            ("containerd-2.4", Libcni::V1_3),
        ];
        let peers = peers.map(|(name, libcni)| Peer {
            name,
            libcni,
            program: folder.join(name),
        });
        Some(peers.into())
    }

    /// Loads all directories of a stage in one process.
    pub fn load(&self, stage: &Stage, cases: &[Case]) -> Vec<Outcome> {
        let mut child = Command::new(&self.program)
            .arg("load")
            .arg(stage.bin_dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = Vec::new();
        for (place, case) in cases.iter().enumerate() {
            let line = serde_json::json!({"dir": stage.directory(place), "max": case.max, "default": case.default});
            writeln!(input, "{line}").unwrap();
        }
        // The program prints after it has read everything.
        child.stdin.take().unwrap().write_all(&input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", self.name);
        let lines = String::from_utf8(output.stdout).unwrap();
        let outcomes: Vec<Outcome> = lines.lines().map(outcome).collect();
        assert_eq!(outcomes.len(), cases.len());
        outcomes
    }
}

fn outcome(line: &str) -> Outcome {
    let value: serde_json::Value = serde_json::from_str(line).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let texts = |value: &serde_json::Value| value.as_array().unwrap().iter().map(text).collect();
    let loaded = |network: &serde_json::Value| Loaded {
        name: text(&network["name"]),
        version: text(&network["version"]),
        plugins: texts(&network["plugins"]),
    };
    Outcome {
        error: text(&value["error"]),
        networks: value["networks"].as_array().into_iter().flatten().map(loaded).collect(),
        default: text(&value["default"]),
        available: value["available"].as_bool().unwrap(),
        has_crio: value["has_crio"].as_bool().unwrap(),
    }
}

/// Every JSON text of the modules' sources, tests and documents, each once, and once more with values in place of fmt's verbs.
pub fn corpus(peers: &[Peer]) -> Vec<Vec<u8>> {
    let mut texts = Vec::new();
    for peer in peers {
        let folder = tempfile::tempdir().unwrap();
        let output = Command::new(&peer.program)
            .arg("corpus")
            .arg(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for file in std::fs::read_dir(folder.path()).unwrap() {
            let text = std::fs::read(file.unwrap().path()).unwrap();
            texts.push(filled(&text));
            texts.push(text);
        }
    }
    texts.sort();
    texts.dedup();
    texts
}

/// A format string as a test uses it: versions, names and numbers for the verbs of Go's fmt.
fn filled(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    let text = text.replace(r#""cniVersion": "%s""#, r#""cniVersion": "1.0.0""#);
    let text = text.replace(r#""cniVersion":"%s""#, r#""cniVersion":"1.0.0""#);
    let text = text.replace(r#""cniVersion": "%v""#, r#""cniVersion": "0.4.0""#);
    let text = text
        .replace("%d", "1")
        .replace("%t", "true")
        .replace("%q", r#""bridge""#);
    text.replace("%s", "test").replace("%v", "1").into_bytes()
}
