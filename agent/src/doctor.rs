//! `sandglass doctor`: what this node lets the agent see, what is missing, and how to get it.
//!
//! The command passes the state of the probes (it starts the sources for a moment); this module checks kernel, privileges,
//! CNI configuration and the container runtime. Each finding has what was found, why it matters and how to mend it.
//! Does not: change anything.
//! Evidence of an attached probe counts for more than a file: what a file forbids and a probe does all the same is a note.
//! Input is whatever stands in files and answers: no panic on any of it, no finding without evidence.

mod cni;
mod cri;
mod network;
mod probes;
#[cfg(any(windows, test))]
pub(crate) mod providers;
mod refused;
mod render;
mod spool;
mod stats;
mod system;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::cni_conf::CniOptions;
use crate::cri::RuntimeChoice;
use crate::health::{ProbeStatus, RefusedProcess};
use crate::node::NodeInfo;

pub use render::render;

/// What to check.
#[derive(Clone, Debug)]
pub struct DoctorOptions {
    /// The node, for the heading.
    pub node: NodeInfo,
    /// What the sources could attach; empty when they could not be started at all.
    pub probes: Vec<ProbeStatus>,
    /// What the running agent refused as plugin or runtime, newest first; empty without one.
    pub refused: Vec<RefusedProcess>,
    /// The endpoint of the container runtime.
    pub runtime: RuntimeChoice,
    /// Deadline of each call to it.
    pub timeout: Duration,
    /// Pause between two requests for the statistics, which shows the figures that move.
    pub pause: Duration,
    /// Where CNI configuration is.
    pub cni: CniOptions,
    /// The spool's directory, if one is configured.
    pub spool: Option<PathBuf>,
    /// Where the node's file system is seen, normally `/`.
    pub root: PathBuf,
}

impl DoctorOptions {
    /// Everything found by itself.
    #[must_use]
    pub fn new(node: NodeInfo, probes: Vec<ProbeStatus>) -> DoctorOptions {
        DoctorOptions {
            node,
            probes,
            refused: Vec::new(),
            runtime: RuntimeChoice::Auto,
            timeout: Duration::from_secs(5),
            pause: Duration::from_secs(1),
            cni: CniOptions::found_below(Path::new("/")),
            spool: None,
            root: PathBuf::from("/"),
        }
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Something is missing, the rest works.
    Warn,
    /// The agent, or the node's pods, cannot work so.
    Fail,
}

impl Level {
    /// All levels, best first.
    pub const ALL: [Level; 4] = [Level::Ok, Level::Note, Level::Warn, Level::Fail];

    /// Its name in the report.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warn => "warn",
            Level::Fail => "fail",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// Stable name of the check, e.g. `kernel.btf`.
    pub check: &'static str,
    /// What was found.
    pub what: String,
    /// Why it matters; empty when all is well.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// How to mend it; may be empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

impl Finding {
    /// A finding that still wants its reason: whoever reads it must learn why it matters ([`Finding::why`]).
    fn new(level: Level, check: &'static str, what: impl Into<String>) -> Finding {
        Finding {
            level,
            check,
            what: what.into(),
            why: String::new(),
            hint: String::new(),
        }
    }

    fn ok(check: &'static str, what: impl Into<String>) -> Finding {
        Finding::new(Level::Ok, check, what)
    }

    fn why(mut self, why: impl Into<String>) -> Finding {
        self.why = why.into();
        self
    }

    fn hint(mut self, hint: impl Into<String>) -> Finding {
        self.hint = hint.into();
        self
    }
}

/// Findings that belong together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Section {
    /// Its heading.
    pub title: &'static str,
    /// What was found.
    pub findings: Vec<Finding>,
}

/// Everything that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The node.
    pub node: NodeInfo,
    /// The findings.
    pub sections: Vec<Section>,
}

impl Report {
    /// How many findings of a level there are.
    #[must_use]
    pub fn count(&self, level: Level) -> usize {
        let findings = self.sections.iter().flat_map(|section| &section.findings);
        findings.filter(|finding| finding.level == level).count()
    }

    /// 0 unless something failed: a warning is for people, and a script that sets up nodes must not stop for it.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        u8::from(self.count(Level::Fail) > 0)
    }

    /// As JSON, for programs.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Texts and lists only: this cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// Runs all checks. Takes a few seconds when the runtime has pods, up to a minute when it hangs.
pub async fn run(options: DoctorOptions) -> Report {
    // The CNI section comes after the runtime: a running containerd reports the directories that it uses, which its files may not
    // contain any more.
    let probes = probes::check(&options.probes);
    let refused = refused::check(&options.refused);
    let system = system::check(&options.root, &options.probes);
    let network = network::check(&options.root);
    let runtime = cri::check(&options).await;
    let cni = cni::check(&options.cni, &runtime);
    let spool = spool::check(options.spool.as_deref());
    let section = |title, findings| Section { title, findings };
    let mut report = Report {
        node: options.node,
        sections: vec![
            section("probes", probes),
            section("refused as plugin or runtime", refused),
            section("kernel and privileges", system),
            section("names and conntrack", network),
            section("container runtime", runtime.findings),
            section("CNI configuration", cni),
            section("pod statistics", runtime.stats),
        ],
    };
    if !spool.is_empty() {
        report.sections.push(section("spool", spool));
    }
    report
}
