//! One configuration directory: whether there is anything in it, each of its files, and which of them wins.
//!
//! Used by `cni.rs` for the default directory and for those of containerd's runtime handlers (`cni_conf_dir` of a runtime in
//! containerd's configuration). A runtime without a usable file reports `NetworkReady=false`, and the kubelet marks the node
//! NotReady (`updateRuntimeUp` of its `pkg/kubelet/kubelet.go`): hence `Fail` where no file can be used.
//! Does not: read a file; `cni_conf` did, as the runtime does.

use super::super::cri::RuntimeView;
use super::super::{Finding, Level};
use super::{file, name, paths};
use crate::cni_conf::{Choice, CniConf, ConfDirectory, RuntimeKind};

/// Findings from the outside in: the directory, its files in the order in which the runtime takes them, and the choice among
/// them.
pub(super) fn check(conf: &CniConf, directory: &ConfDirectory, runtime: &RuntimeView) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(of_handlers(directory));
    findings.extend(listing(conf, directory, runtime));
    // By place, since a file is judged beside those before it.
    for place in 0..directory.files.len() {
        findings.extend(file::check(conf, directory, place));
    }
    findings.extend(choice(conf, directory));
    findings
}

/// Heads the findings of a directory that is not the default one, so that a reader knows which sandboxes they concern.
fn of_handlers(directory: &ConfDirectory) -> Option<Finding> {
    if directory.handlers.is_empty() {
        return None;
    }
    let handlers = directory.handlers.join(", ");
    let what = format!("sandboxes of runtime handler {handlers}: {}", directory.path.display());
    Some(Finding::ok("cni.settings", what))
}

/// A directory that gives nothing. Without a runtime on the node an empty one is a note: the agent may run before the network
/// provider is installed.
fn listing(conf: &CniConf, directory: &ConfDirectory, runtime: &RuntimeView) -> Option<Finding> {
    let path = directory.path.display();
    // The runtime may read what the agent may not, so that this is no failure of the node.
    if let Some(error) = &directory.unreadable {
        return Some(
            Finding::new(Level::Warn, "cni.directory", format!("cannot list {path}: {error}"))
                .why("networks are known only by what plugins are seen doing")
                .hint("run as root, or mount the directory into the agent's container"),
        );
    }
    if directory.files.is_empty() {
        // A runtime is known by its answer or by its settings files.
        let has_runtime = runtime.kind.is_some() || conf.settings.loader.runtime != RuntimeKind::Unknown;
        let level = if has_runtime { Level::Warn } else { Level::Note };
        // The usual reason on a new node: the network provider's pod, which writes the file, does not run yet.
        let mut finding = Finding::new(level, "cni.directory", format!("no network configuration in {path}"))
            .why(if directory.handlers.is_empty() {
                "a runtime without one reports NetworkReady=false, and pods wait"
            } else {
                "pods of this runtime handler wait"
            })
            .hint("install a network provider, or mount the directory into the agent's container");
        // Only `.conf`, `.conflist` and `.json` are read: a file `10-net.conf.bak` is the usual reason of an empty directory.
        if !directory.ignored.is_empty() {
            finding.why = format!(
                "{}; not read for their names: {}",
                finding.why,
                paths(&directory.ignored)
            );
        }
        return Some(finding);
    }
    // The bound is `cni_conf`'s: a directory with more files than that is no configuration that somebody maintains.
    directory.truncated.then(|| {
        Finding::new(
            Level::Note,
            "cni.directory",
            format!("more than {} files in {path}", directory.files.len()),
        )
        .why("the agent does not look at the rest; the runtime does")
    })
}

/// Which networks sandboxes are attached to. Both runtimes sort files by name; containerd takes the first `max_conf_num` of them
/// (`loadFromConfDir` of go-cni's `opts.go`), CRI-O the one that `cni_default_network` names, else the first that it can use
/// (`loadNetworks` of ocicni's `ocicni.go`). `None` where every file is used, or where the file that stops containerd has its own
/// finding.
fn choice(conf: &CniConf, directory: &ConfDirectory) -> Option<Finding> {
    let runtime = conf.settings.loader.runtime.name();
    let file = |place: usize| name(&directory.files[place].path);
    match &directory.choice {
        // CRI-O waits for the network of that name and takes no other (`getDefaultNetwork` of ocicni's `ocicni.go`).
        Choice::NotFound(wanted) => Some(
            Finding::new(
                Level::Fail,
                "cni.choice",
                format!("no file configures network {wanted:?}, which CRI-O's cni_default_network names"),
            )
            .why("CRI-O reports NetworkReady=false and pods wait")
            .hint("mend cni_default_network in CRI-O's settings, or name a network so"),
        ),
        Choice::Networks(places) => {
            // Whether containerd uses one file or several is its `max_conf_num`; CRI-O uses one.
            let used: Vec<String> = places.iter().map(|place| file(*place)).collect();
            let unused: Vec<String> = (0..directory.files.len())
                .filter(|place| !places.contains(place))
                .map(file)
                .collect();
            if unused.is_empty() {
                return None;
            }
            // Files that are not used surprise those who add a second network provider.
            let what = format!("{} wins; {runtime} does not use {}", used.join(", "), unused.join(", "));
            Some(Finding::new(Level::Note, "cni.choice", what).why("files are taken in the order of their names"))
        }
        // Each of the files has a finding with its error above.
        Choice::Nothing if !directory.files.is_empty() => Some(
            Finding::new(
                Level::Fail,
                "cni.choice",
                format!("{runtime} can use none of the files"),
            )
            .why("it reports NetworkReady=false and pods wait")
            .hint("mend the files named above"),
        ),
        // The runtime's choice stands, and is unknown here only.
        // Larger than the agent reads, or not readable by it alone.
        Choice::Unknown(place) => Some(
            Finding::new(
                Level::Warn,
                "cni.choice",
                format!("which network {runtime} uses depends on {}", file(*place)),
            )
            .why("the agent cannot read that file; the runtime perhaps can"),
        ),
        // An empty directory is reported by `listing`, a file at which containerd stops by `file.rs`.
        Choice::Nothing | Choice::StoppedAt(_) => None,
    }
}
