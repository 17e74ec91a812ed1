//! The CNI configuration as a runtime sees it: where it is, which file wins, what is wrong with the files, which binaries
//! are there.
//!
//! Used by `doctor::run`. `cni_conf` decides what a runtime makes of a file; this module and its children word that and weigh it.
//! Three sources name directories, in this order: the agent's own settings, the running runtime, its settings files.
//! Does not: run a plugin, except for its versions where the runtime is CRI-O, which does so at every change of the configuration
//! (`ValidateNetworkList` of libcni's `api.go`, called by `loadNetworks` of ocicni's `ocicni.go`).

mod directory;
mod file;
mod pools;

use std::path::{Path, PathBuf};

use super::cri::RuntimeView;
use super::{Finding, Level};
use crate::cni_conf::{Binary, CniConf, CniOptions, CniSettings, HandlerDirectory, under};
use crate::failure::causes;

/// Findings about where configuration is, then about each directory, then about what containerd adds to every sandbox, then about
/// pools of addresses. What the
/// running runtime reports comes before what its files say: it may have been started with others.
pub(super) fn check(options: &CniOptions, runtime: &RuntimeView) -> Vec<Finding> {
    let mut conf = CniConf::read(&merged(options, runtime));
    if let Some(loaded) = &runtime.cni {
        conf.use_max_networks(loaded.max_networks);
    }
    // In a container the node's plugins are programs of another file system, and may not run.
    if options.root == Path::new("/") {
        conf.ask_plugins();
    }
    let mut findings = settings(&conf, options, runtime);
    if runtime.cni.is_some() {
        findings.extend(drift(&CniSettings::find(options), &conf.settings));
    }
    // The default directory first, then those of runtime handlers.
    for directory in &conf.directories {
        findings.extend(directory::check(&conf, directory, runtime));
    }
    findings.extend(loopback(&conf));
    findings.extend(pools::check(&conf, &options.root, runtime));
    findings
}

/// The agent's own settings first, then what the runtime reports; the rest is found in the runtime's files.
/// Paths of the runtime are those of the node: in a container they lie below `root`, where the node's file system is mounted.
fn merged(options: &CniOptions, runtime: &RuntimeView) -> CniOptions {
    let mut options = options.clone();
    if let Some(kind) = runtime.kind {
        options.runtime.get_or_insert(kind);
    }
    // What the user configured wins, as for the agent itself: `doctor` checks what the agent would do.
    options.libcni = options.libcni.or(runtime.libcni);
    let Some(loaded) = &runtime.cni else {
        return options;
    };
    // The runtime reports paths of the node, wherever that is mounted here.
    let root = options.root.clone();
    options.conf_dir.get_or_insert_with(|| under(&root, &loaded.conf_dir));
    // An empty list means that none is configured, since a runtime cannot run without one.
    if options.bin_dirs.is_empty() {
        options.bin_dirs = loaded.bin_dirs.iter().map(|dir| under(&root, dir)).collect();
    }
    if let Some(handlers) = &loaded.handlers {
        let handlers = handlers.iter().map(|handler| HandlerDirectory {
            handler: handler.handler.clone(),
            conf_dir: under(&root, &handler.conf_dir),
            max_networks: match handler.max_networks {
                Some(own) => own,
                None => loaded.max_networks,
            },
        });
        options.handlers = Some(handlers.collect());
    }
    options
}

/// Where configuration and plugins are, with the origin of each, and settings files that could not be used. The first finding is
/// always there: a reader who looks in the wrong directory sees it.
fn settings(conf: &CniConf, own: &CniOptions, runtime: &RuntimeView) -> Vec<Finding> {
    let settings = &conf.settings;
    // The origin of what the agent's own settings leave open.
    let found = match (&runtime.cni, &settings.sources[..]) {
        (Some(_), _) => "reported by the runtime".to_owned(),
        (None, []) => "defaults".to_owned(),
        (None, sources) => format!("from {}", paths(sources)),
    };
    let origin = |is_own: bool, key: &str| {
        if is_own { format!("set by {key}") } else { found.clone() }
    };
    let of_files = origin(own.conf_dir.is_some(), "cni.conf_dir");
    let of_binaries = origin(!own.bin_dirs.is_empty(), "cni.bin_dirs");
    // One origin is named once, behind both paths.
    let apart = if of_files == of_binaries {
        String::new()
    } else {
        format!(" ({of_files})")
    };
    let what = format!(
        "configuration in {}{apart}, plugins in {} ({of_binaries})",
        settings.conf_dir.display(),
        paths(&settings.bin_dirs)
    );
    let mut findings = vec![Finding::ok("cni.settings", what)];
    // Both runtimes end with an error at a settings file that they cannot parse, so that this one was changed after the start.
    for error in &settings.errors {
        findings.push(
            Finding::new(Level::Warn, "cni.settings", causes(error))
                .why("the runtime does not start with a bad settings file; here the defaults are assumed")
                .hint("mend the file; `containerd config dump` and `crio config` show what the runtime reads"),
        );
    }
    // `disabled_plugins` in containerd's configuration; Docker's package containerd.io installs it with "cri" in the list.
    if let Some(path) = &settings.cri_disabled_in {
        findings.push(
            Finding::new(
                Level::Warn,
                "cni.settings",
                format!("containerd's CRI plugin is switched off in {}", path.display()),
            )
            .why("the kubelet cannot use this containerd; packages made for Docker are delivered so")
            .hint("take \"cri\" out of disabled_plugins and restart containerd"),
        );
    }
    findings
}

/// The runtime runs with other settings than its files have now. A note: the running settings are those that count for pods, and
/// they are what the other findings are about.
fn drift(file: &CniSettings, running: &CniSettings) -> Option<Finding> {
    // Without a settings file there is nothing that was changed: the defaults of this module are no statement of the node.
    let is_same = file.conf_dir == running.conf_dir && file.bin_dirs == running.bin_dirs;
    if is_same || file.sources.is_empty() {
        return None;
    }
    let what = format!(
        "settings files of this node say {} and {}",
        file.conf_dir.display(),
        paths(&file.bin_dirs)
    );
    Some(
        Finding::new(Level::Note, "cni.settings", what)
            .why("the runtime was started with another file, or before these were changed")
            .hint("restart the runtime if these files are right"),
    )
}

/// containerd executes `loopback` for every sandbox, whatever is configured (unless `use_internal_loopback` is set,
/// `internal/cri/config/config.go`). This is the only place that reports it missing.
fn loopback(conf: &CniConf) -> Option<Finding> {
    if !conf.settings.loopback_plugin || Binary::find(LOOPBACK, &conf.settings.bin_dirs) != Binary::Missing {
        return None;
    }
    let what = format!("no plugin {LOOPBACK:?} in {}", paths(&conf.settings.bin_dirs));
    // Without any configuration no sandbox gets a network yet: then the network provider may be about to install both.
    let has_files = conf.directories.iter().any(|directory| !directory.files.is_empty());
    let level = if has_files { Level::Fail } else { Level::Warn };
    Some(
        Finding::new(level, "cni.binary", what)
            .why("containerd runs it for every sandbox: none can be made")
            .hint("install the reference CNI plugins there"),
    )
}

/// A file's name without its directory, which the section has named before. Names that are no UTF-8 are shown with replacement
/// characters: they are valid on Linux.
fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// At most eight paths in one line: a settings file may list any number.
fn paths(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths.iter().take(8).map(|path| path.display().to_string()).collect();
    shown.join(", ")
}

/// The reference plugin that containerd's built-in network `cni-loopback` executes (`WithLoNetwork` of go-cni's `opts.go`).
const LOOPBACK: &str = "loopback";
