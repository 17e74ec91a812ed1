//! What keeps a node's sandboxes from getting a network, as far as the configuration and the plugins' directories show it.
//!
//! Used by the watch of the configuration, whose findings are metrics, the page's and the alert's. The weight is that of
//! `doctor`: what it reports as a failure is a problem here. Does not: advise (`doctor` does), or run a plugin.

use std::path::PathBuf;

use sandglass_model::cni::ConfigProblem;
use serde::Serialize;

use super::binary::Binary;
use super::directory::{Choice, ConfDirectory};
use super::error::ConfError;
use super::network::Remark;
use super::plugins::Plugin;
use super::{CniConf, CniSettings};

/// Kinds of problems: a closed set, values of a metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// There is no configuration, or CRI-O's network is configured by no file.
    NoConfiguration,
    /// The runtime can use none of the files, or stops at a bad one.
    BadFile,
    /// The network is loaded, and libcni or the plugins refuse its name or version.
    BadNetwork,
    /// A plugin's binary is missing or not executable.
    NoPlugin,
    /// The agent cannot read what the runtime perhaps can. This alone is no failure of the node.
    NotReadable,
}

impl ProblemKind {
    /// All of them.
    pub const ALL: [ProblemKind; 5] = [
        ProblemKind::NoConfiguration,
        ProblemKind::BadFile,
        ProblemKind::BadNetwork,
        ProblemKind::NoPlugin,
        ProblemKind::NotReadable,
    ];

    /// Name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ProblemKind::NoConfiguration => "no_configuration",
            ProblemKind::BadFile => "bad_file",
            ProblemKind::BadNetwork => "bad_network",
            ProblemKind::NoPlugin => "no_plugin",
            ProblemKind::NotReadable => "not_readable",
        }
    }

    /// Sandboxes fail or wait because of it.
    #[must_use]
    pub fn stops_sandboxes(self) -> bool {
        self != ProblemKind::NotReadable
    }
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Which kind.
    pub kind: ProblemKind,
    /// What and where: directory, file, line, plugin.
    pub text: String,
    /// Runtime handlers whose sandboxes it concerns; empty when it concerns all others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub handlers: Vec<String>,
}

impl Problem {
    /// The problem as an event's; `None` for a kind that stops no sandbox.
    #[must_use]
    pub fn to_event(&self) -> Option<ConfigProblem> {
        self.kind.stops_sandboxes().then(|| ConfigProblem {
            kind: self.kind.as_str().to_owned(),
            text: self.text.clone(),
            handlers: self.handlers.clone(),
        })
    }
}

impl CniConf {
    /// Everything that keeps sandboxes from getting a network.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for directory in &self.directories {
            let found = of_directory(&self.settings, directory);
            problems.extend(found.into_iter().map(|(kind, text)| Problem {
                kind,
                text,
                handlers: directory.handlers.clone(),
            }));
        }
        problems.truncate(PROBLEMS_MAX);
        problems
    }

    /// The binaries that the chosen networks need, wherever they are looked for.
    pub(super) fn binaries(&self) -> Vec<PathBuf> {
        let mut paths = self.settings.bin_dirs.clone();
        for directory in &self.directories {
            for (_, network) in directory.chosen() {
                let kinds = network.plugins.iter().flat_map(Plugin::all).map(|plugin| &plugin.kind);
                paths.extend(kinds.flat_map(|kind| self.settings.bin_dirs.iter().map(move |dir| dir.join(kind))));
            }
        }
        paths.truncate(PATHS_MAX);
        paths
    }
}

fn of_directory(settings: &CniSettings, directory: &ConfDirectory) -> Vec<(ProblemKind, String)> {
    let path = directory.path.display();
    let runtime = settings.loader.runtime.name();
    if let Some(error) = &directory.unreadable {
        return vec![(ProblemKind::NotReadable, format!("cannot list {path}: {error}"))];
    }
    let bad = |place: usize| match &directory.files[place].network {
        Err(error) => format!("{}: {}", directory.files[place].path.display(), worded(error)),
        Ok(_) => directory.files[place].path.display().to_string(),
    };
    match &directory.choice {
        Choice::Nothing if directory.files.is_empty() => {
            vec![(
                ProblemKind::NoConfiguration,
                format!("no network configuration in {path}"),
            )]
        }
        Choice::Nothing => (0..directory.files.len())
            .map(|place| (ProblemKind::BadFile, bad(place)))
            .collect(),
        Choice::StoppedAt(place) => vec![(ProblemKind::BadFile, bad(*place))],
        Choice::NotFound(name) => vec![(
            ProblemKind::NoConfiguration,
            format!("no file in {path} configures network {name:?}, which {runtime} is set to"),
        )],
        Choice::Unknown(place) => vec![(ProblemKind::NotReadable, bad(*place))],
        Choice::Networks(_) => of_networks(settings, directory),
    }
}

fn worded(error: &ConfError) -> String {
    match error {
        ConfError::Json { .. } => format!("not JSON, {error}"),
        error => error.to_string(),
    }
}

fn of_networks(settings: &CniSettings, directory: &ConfDirectory) -> Vec<(ProblemKind, String)> {
    let mut problems = Vec::new();
    // A container without a mount of the plugins sees none of these directories.
    let has_plugins = settings.bin_dirs.iter().any(|directory| directory.is_dir());
    if !has_plugins {
        let text = format!("no plugin directory: {}", paths(&settings.bin_dirs));
        problems.push((ProblemKind::NotReadable, text));
    }
    for (path, network) in directory.chosen() {
        for remark in &network.remarks {
            let what = match remark {
                Remark::NoName => "the network has no name".to_owned(),
                Remark::BadName => format!("the network's name {:?} is not allowed", network.name),
                Remark::BadVersion => format!("cniVersion {:?} is no version of CNI", network.version),
                _ => continue,
            };
            problems.push((ProblemKind::BadNetwork, format!("{}: {what}", path.display())));
        }
        let kinds = network
            .plugins
            .iter()
            .flat_map(Plugin::all)
            .map(|plugin| plugin.kind.as_str());
        for kind in kinds.filter(|_| has_plugins) {
            if let Some(what) = missing(kind, &settings.bin_dirs) {
                problems.push((ProblemKind::NoPlugin, format!("{}: {what}", path.display())));
            }
        }
    }
    if settings.loopback_plugin
        && has_plugins
        && let Some(what) = missing("loopback", &settings.bin_dirs)
    {
        problems.push((
            ProblemKind::NoPlugin,
            format!("{what}, which containerd runs for every sandbox"),
        ));
    }
    problems.dedup();
    problems
}

fn missing(kind: &str, directories: &[PathBuf]) -> Option<String> {
    match Binary::find(kind, directories) {
        Binary::Found(_) => None,
        Binary::NotExecutable(path) => Some(format!("{} is not executable", path.display())),
        Binary::Missing => Some(format!("no plugin {kind:?} in {}", paths(directories))),
        Binary::NotAName => Some(format!("\"type\" {kind:?} is not a file name")),
    }
}

fn paths(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths.iter().take(8).map(|path| path.display().to_string()).collect();
    shown.join(", ")
}

const PROBLEMS_MAX: usize = 64;
const PATHS_MAX: usize = 256;
