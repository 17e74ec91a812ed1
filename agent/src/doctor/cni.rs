//! The CNI configuration as a runtime sees it: which file wins, what is wrong with the files, which binaries are there.

use std::path::{Path, PathBuf};

use super::cri::RuntimeView;
use super::{Finding, Level};
use crate::cni_conf::{
    Binary, Choice, CniConf, CniOptions, ConfFile, DelegateTo, Network, Plugin, Remark, RuntimeKind,
};

pub(super) fn check(options: &CniOptions, runtime: &RuntimeView) -> Vec<Finding> {
    let told = options;
    let mut options = options.clone();
    let from_files = CniConf::read(&options);
    let mut findings = Vec::new();
    if let Some(kind) = runtime.kind {
        options.runtime.get_or_insert(kind);
    }
    // What the runtime says it uses counts for more than what its files say.
    if let Some(loaded) = &runtime.cni {
        if options.conf_dir.is_none() {
            options.conf_dir = Some(below(&options.root, &loaded.conf_dir));
        }
        if options.bin_dirs.is_empty() {
            options.bin_dirs = loaded.bin_dirs.iter().map(|dir| below(&options.root, dir)).collect();
        }
    }
    let mut conf = CniConf::read(&options);
    if let Some(loaded) = &runtime.cni {
        conf.use_max_networks(loaded.max_networks);
    }
    findings.extend(settings(&conf, told, runtime));
    if runtime.cni.is_some() && !from_files.settings.sources.is_empty() {
        findings.extend(drift(&from_files, &conf));
    }
    findings.extend(directory(&conf, runtime));
    for (place, file) in conf.files.iter().enumerate() {
        findings.extend(one_file(&conf, place, file));
    }
    findings.extend(choice(&conf));
    findings.extend(loopback(&conf));
    findings
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn settings(conf: &CniConf, told: &CniOptions, runtime: &RuntimeView) -> Vec<Finding> {
    let settings = &conf.settings;
    let found = match (&runtime.cni, &settings.sources[..]) {
        (Some(_), _) => "says the runtime".to_owned(),
        (None, []) => "defaults".to_owned(),
        (None, sources) => format!("from {}", paths(sources)),
    };
    let origin = |is_told: bool, key: &str| {
        if is_told {
            format!("as {key} says")
        } else {
            found.clone()
        }
    };
    let of_files = origin(told.conf_dir.is_some(), "cni.conf_dir");
    let of_binaries = origin(!told.bin_dirs.is_empty(), "cni.bin_dirs");
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
    for error in &settings.errors {
        let mut text = error.to_string();
        if let Some(cause) = std::error::Error::source(error) {
            text = format!("{text}: {cause}");
        }
        findings.push(
            Finding::new(Level::Warn, "cni.settings", text)
                .why("the runtime does not start with a bad settings file; here the defaults are assumed")
                .hint("mend the file; `containerd config dump` and `crio config` show what the runtime reads"),
        );
    }
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

/// The runtime runs with other settings than its files now say.
fn drift(files: &CniConf, running: &CniConf) -> Option<Finding> {
    let (file, now) = (&files.settings, &running.settings);
    if file.conf_dir == now.conf_dir && file.bin_dirs == now.bin_dirs {
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

fn directory(conf: &CniConf, runtime: &RuntimeView) -> Option<Finding> {
    let directory = conf.settings.conf_dir.display();
    if let Some(error) = &conf.unreadable {
        return Some(
            Finding::new(
                Level::Warn,
                "cni.directory",
                format!("cannot list {directory}: {error}"),
            )
            .why("networks are known only by what plugins are seen doing")
            .hint("run as root, or mount the directory into the agent's container"),
        );
    }
    if conf.files.is_empty() {
        let has_runtime = runtime.kind.is_some() || conf.settings.runtime != RuntimeKind::Unknown;
        let level = if has_runtime { Level::Warn } else { Level::Note };
        let mut finding = Finding::new(
            level,
            "cni.directory",
            format!("no network configuration in {directory}"),
        )
        .why("a runtime without one reports NetworkReady=false, and pods wait")
        .hint("install a network provider, or mount the directory into the agent's container");
        if !conf.ignored.is_empty() {
            finding.why = format!("{}; not read for their names: {}", finding.why, paths(&conf.ignored));
        }
        return Some(finding);
    }
    conf.truncated.then(|| {
        Finding::new(
            Level::Note,
            "cni.directory",
            format!("more than {} files in {directory}", conf.files.len()),
        )
        .why("the rest is not looked at")
    })
}

fn one_file(conf: &CniConf, place: usize, file: &ConfFile) -> Vec<Finding> {
    let name = name(&file.path);
    let chosen = matches!(&conf.choice, Choice::Networks(places) if places.contains(&place));
    let network = match &file.network {
        Ok(network) => network,
        Err(error) => {
            let stops = conf.choice == Choice::StoppedAt(place);
            let (level, why) = if stops {
                (
                    Level::Fail,
                    "containerd loads no network at all when it meets a bad file",
                )
            } else {
                (Level::Warn, "this file is of no use to the runtime")
            };
            return vec![
                Finding::new(level, "cni.file", format!("{name}: {error}"))
                    .why(why)
                    .hint(error.hint()),
            ];
        }
    };
    let mut findings = Vec::new();
    if chosen {
        findings.push(Finding::ok("cni.file", format!("{name}: {}", describe(network))));
        findings.extend(verbs(&name, network));
    }
    findings.extend(
        network
            .remarks
            .iter()
            .map(|remark| remark_finding(&name, remark, chosen)),
    );
    findings.extend(binaries(conf, &name, network, chosen));
    findings.extend(named_elsewhere(&name, network));
    let double = conf.files[..place]
        .iter()
        .find(|other| other.network.as_ref().is_ok_and(|other| other.name == network.name));
    if let Some(other) = double {
        let other = self::name(&other.path);
        findings.push(
            Finding::new(
                Level::Warn,
                "cni.file",
                format!("{name}: network {:?} is also in {other}", network.name),
            )
            .why("plugins keep their state by network name: two configurations of one name disturb each other")
            .hint("remove one of the files, or rename one network"),
        );
    }
    findings
}

/// `network pods 1.0.0: bridge (ipam host-local) > portmap > firewall`.
fn describe(network: &Network) -> String {
    let chain: Vec<String> = network.plugins.iter().map(chain_link).collect();
    format!("network {} {}: {}", network.name, network.version, chain.join(" > "))
}

fn chain_link(plugin: &Plugin) -> String {
    let delegates: Vec<String> = plugin
        .delegates
        .iter()
        .map(|delegate| match &delegate.to {
            DelegateTo::Network { plugins, .. } => {
                let chain: Vec<String> = plugins.iter().map(chain_link).collect();
                format!("{} {}", delegate.key, chain.join(" > "))
            }
            DelegateTo::Named(name) => format!("{} {name}", delegate.key),
        })
        .collect();
    if delegates.is_empty() {
        return plugin.kind.clone();
    }
    format!("{} ({})", plugin.kind, delegates.join(", "))
}

fn verbs(name: &str, network: &Network) -> Option<Finding> {
    let mut missing = Vec::new();
    if !network.has_check() {
        let reason = if network.check_disabled {
            "disableCheck"
        } else {
            "from cniVersion 0.4.0"
        };
        missing.push(format!("CHECK ({reason})"));
    }
    if !network.has_status() {
        missing.push("STATUS (from cniVersion 1.1.0)".to_owned());
    }
    if !network.has_gc() {
        let reason = if network.gc_disabled {
            "disableGC"
        } else {
            "from cniVersion 1.1.0"
        };
        missing.push(format!("GC ({reason})"));
    }
    if missing.is_empty() {
        return None;
    }
    Some(
        Finding::new(
            Level::Note,
            "cni.verbs",
            format!("{name}: not available: {}", missing.join(", ")),
        )
        .why("the runtime does not ask these of this network"),
    )
}

fn remark_finding(name: &str, remark: &Remark, chosen: bool) -> Finding {
    let bad = if chosen { Level::Warn } else { Level::Note };
    match remark {
        Remark::NoVersion => Finding::new(bad, "cni.file", format!("{name}: \"cniVersion\" is missing"))
            .why("it is taken as 0.1.0: no CHECK, results in the oldest form, and newer plugins may refuse it")
            .hint("add \"cniVersion\": \"1.0.0\""),
        Remark::FutureVersion(version) => Finding::new(
            bad,
            "cni.file",
            format!("{name}: \"cniVersion\" {version} is newer than 1.1.0"),
        )
        .why("runtimes and plugins refuse a version they do not know")
        .hint("use a version that all plugins of the chain know, or \"cniVersions\""),
        Remark::NameOverwritten { plugin, name: own } => Finding::new(
            Level::Note,
            "cni.file",
            format!("{name}: plugin {plugin} has a name of its own, {own:?}"),
        )
        .why("the list's name is given to the plugin instead"),
        Remark::VersionOverwritten { plugin, version } => {
            let what = format!("{name}: plugin {plugin} has a cniVersion of its own, {version}");
            Finding::new(Level::Note, "cni.file", what).why("the list's cniVersion is given to the plugin instead")
        }
    }
}

fn binaries(conf: &CniConf, name: &str, network: &Network, chosen: bool) -> Vec<Finding> {
    let directories = &conf.settings.bin_dirs;
    let mut seen = Vec::new();
    let mut findings = Vec::new();
    for plugin in network.plugins.iter().flat_map(Plugin::all) {
        if seen.contains(&&plugin.kind) {
            continue;
        }
        seen.push(&plugin.kind);
        let level = if chosen { Level::Fail } else { Level::Note };
        let finding = match Binary::find(&plugin.kind, directories) {
            Binary::Found(_) => continue,
            Binary::NotExecutable(path) => Finding::new(
                level,
                "cni.binary",
                format!("{name}: {} is not executable", path.display()),
            )
            .hint(format!("chmod 755 {}", path.display())),
            Binary::Missing => {
                let what = format!("{name}: no plugin {:?} in {}", plugin.kind, paths(directories));
                Finding::new(level, "cni.binary", what)
                    .hint("install the plugin there, or set the runtime's plugin directory")
            }
        };
        findings.push(finding.why("every ADD that comes to this plugin fails"));
    }
    findings
}

fn named_elsewhere(name: &str, network: &Network) -> Vec<Finding> {
    let plugins = network.plugins.iter().flat_map(Plugin::all);
    let delegates = plugins.flat_map(|plugin| plugin.delegates.iter().map(move |delegate| (plugin, delegate)));
    delegates
        .filter_map(|(plugin, delegate)| match &delegate.to {
            DelegateTo::Named(to) => Some(
                Finding::new(
                    Level::Note,
                    "cni.delegate",
                    format!("{name}: {} delegates to {to} ({})", plugin.kind, delegate.key),
                )
                .why("that network is configured elsewhere and not checked here"),
            ),
            DelegateTo::Network { .. } => None,
        })
        .collect()
}

fn choice(conf: &CniConf) -> Vec<Finding> {
    let runtime = conf.settings.runtime.name();
    match &conf.choice {
        Choice::NotFound(name) => vec![
            Finding::new(
                Level::Fail,
                "cni.choice",
                format!("no file configures network {name:?}, which CRI-O is told to use"),
            )
            .why("CRI-O reports NetworkReady=false and pods wait")
            .hint("mend cni_default_network in CRI-O's settings, or name a network so"),
        ],
        Choice::Networks(places) => {
            let used: Vec<String> = places.iter().map(|place| name(&conf.files[*place].path)).collect();
            let unused: Vec<String> = (0..conf.files.len())
                .filter(|place| !places.contains(place))
                .map(|place| name(&conf.files[place].path))
                .collect();
            if unused.is_empty() {
                return Vec::new();
            }
            let what = format!("{} wins; {runtime} does not use {}", used.join(", "), unused.join(", "));
            vec![Finding::new(Level::Note, "cni.choice", what).why("files are taken in the order of their names")]
        }
        Choice::Nothing if !conf.files.is_empty() => vec![
            Finding::new(
                Level::Fail,
                "cni.choice",
                format!("{runtime} can use none of the files"),
            )
            .why("it reports NetworkReady=false and pods wait")
            .hint("mend the files named above"),
        ],
        Choice::Nothing | Choice::StoppedAt(_) => Vec::new(),
    }
}

/// containerd runs `loopback` for every sandbox, whatever is configured.
fn loopback(conf: &CniConf) -> Option<Finding> {
    if !conf.settings.loopback_plugin || Binary::find("loopback", &conf.settings.bin_dirs) != Binary::Missing {
        return None;
    }
    let what = format!("no plugin \"loopback\" in {}", paths(&conf.settings.bin_dirs));
    let level = if conf.files.is_empty() {
        Level::Warn
    } else {
        Level::Fail
    };
    Some(
        Finding::new(level, "cni.binary", what)
            .why("containerd runs it for every sandbox: none can be made")
            .hint("install the reference CNI plugins there"),
    )
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn paths(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths.iter().take(8).map(|path| path.display().to_string()).collect();
    shown.join(", ")
}
