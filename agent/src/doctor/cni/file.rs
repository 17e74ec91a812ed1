//! One configuration file: the network and chain it configures, what is wrong with it, and its plugins' binaries.
//!
//! Used by `directory.rs`, file by file. The format is that of the CNI specification 1.1.0, section 1; what a runtime makes of a
//! file that deviates is that of its loader, and differs between containerd and CRI-O. A level is as high as the consequence for
//! pods: a network that no sandbox is attached to harms nobody, so that its findings are notes.
//! Does not: read the file, or decide whether a runtime loads it; `cni_conf` did.

use super::super::{Finding, Level};
use super::{LOOPBACK, name, paths};
use crate::cni_conf::{
    Binary, Choice, CniConf, ConfDirectory, ConfError, DelegateTo, Network, Plugin, Remark, RuntimeKind,
};

/// Findings about the file at `place`. A file that the runtime does not use gets its error and remarks only: its plugins need not
/// be installed.
pub(super) fn check(conf: &CniConf, directory: &ConfDirectory, place: usize) -> Vec<Finding> {
    let file = &directory.files[place];
    let runtime = conf.settings.loader.runtime;
    let about = About {
        name: name(&file.path),
        runtime,
        is_chosen: directory.is_chosen(place),
    };
    // The file at which containerd stops keeps every network from loading, though it is not chosen itself.
    let matters = about.is_chosen || directory.choice == Choice::StoppedAt(place);
    // CRI-O alone runs the plugins' VERSION; of other runtimes this is `None`.
    let objection = file.supported.as_ref().and_then(|supported| supported.as_ref().err());
    let mut findings = match &file.network {
        Ok(network) => about.network(conf, network, objection),
        Err(error) => vec![about.error(error, directory.choice == Choice::StoppedAt(place))],
    };
    if matters {
        // Releases with another generation of libcni judge some files differently, such as one with `cniVersions`.
        let others = file.judged_otherwise(conf.settings.loader);
        findings.extend(others.into_iter().map(|(libcni, verdict)| {
            let releases = libcni.releases(runtime);
            match verdict {
                Ok(_) => about.finding(Level::Note, format!("{releases} loads it")),
                Err(error) => about.finding(Level::Warn, format!("{releases} does not load it: {error}")),
            }
            .why("the runtime's version is not known, and its releases do not agree")
        }));
    }
    // Also of files that are not used: the next one to be used may be the double.
    if let Ok(network) = &file.network {
        findings.extend(twice(directory, place, network));
    }
    findings
}

/// The file that findings are about, and what decides how bad they are.
struct About {
    /// The file's name.
    name: String,
    /// The node's runtime, which loads the file.
    runtime: RuntimeKind,
    /// Sandboxes are attached to its network.
    is_chosen: bool,
}

impl About {
    /// A finding about this file, under the check that all of them share.
    fn finding(&self, level: Level, what: impl AsRef<str>) -> Finding {
        Finding::new(level, "cni.file", format!("{}: {}", self.name, what.as_ref()))
    }

    /// A level for a network that sandboxes are attached to, and `Note` for others: what is not in use harms no pod until it is.
    fn if_chosen(&self, level: Level) -> Level {
        if self.is_chosen { level } else { Level::Note }
    }

    /// Why the runtime does not load it, and what that means there: containerd gives up at the first bad file (`loadFromConfDir`
    /// of go-cni's `opts.go`), CRI-O goes on with the next (`loadNetworks` of ocicni's `ocicni.go`).
    fn error(&self, error: &ConfError, stops: bool) -> Finding {
        let (level, why) = match self.runtime {
            // The agent bounds what it reads of a file; runtimes do not.
            _ if error.is_own_limit() => (
                Level::Warn,
                "the limit is the agent's, not the runtime's: what the runtime makes of the file is not known",
            ),
            _ if stops => (
                Level::Fail,
                "containerd loads no network at all when it meets a bad file",
            ),
            RuntimeKind::Containerd => (
                Level::Warn,
                "containerd does not come to this file; it would stop at it",
            ),
            RuntimeKind::Crio => (Level::Warn, "CRI-O passes over this file"),
            RuntimeKind::Unknown => (Level::Warn, "this file is of no use to the runtime"),
        };
        self.finding(level, error.to_string()).why(why).hint(error.hint())
    }

    /// A file that the runtime loads: what it configures, and what will fail later all the same.
    fn network(&self, conf: &CniConf, network: &Network, objection: Option<&String>) -> Vec<Finding> {
        let mut findings = Vec::new();
        // Of a network that is not in use only what is wrong is shown.
        if self.is_chosen {
            findings.push(self.finding(Level::Ok, describe(network)));
            findings.extend(self.verbs(network));
        }
        // `ValidateNetworkList`: each plugin of the chain has to support the list's version.
        findings.extend(objection.map(|objection| {
            self.finding(Level::Warn, objection)
                .why("CRI-O passes over the network")
                .hint("use a version that all plugins of the chain support, or newer plugins")
        }));
        findings.extend(network.remarks.iter().map(|remark| self.remark(network, remark)));
        findings.extend(self.binaries(conf, network));
        findings.extend(self.named_elsewhere(network));
        findings
    }

    /// Verbs that the runtime leaves out for this network: CHECK came with version 0.4.0 of the specification, GC and STATUS with
    /// 1.1.0 (`CheckNetworkList`, `GCNetworkList` and `GetStatusNetworkList` of libcni's `api.go`). `disableCheck` and `disableGC`
    /// of the list switch two of them off (specification 1.1.0, section 1).
    /// A note, since nothing fails for it: leaked addresses are the usual consequence of a missing GC.
    fn verbs(&self, network: &Network) -> Option<Finding> {
        // Named with the reason, so that a reader sees what to change.
        let mut missing = Vec::new();
        if !network.has_check() {
            let reason = if network.check_disabled {
                "disableCheck"
            } else {
                "from cniVersion 0.4.0"
            };
            missing.push(format!("CHECK ({reason})"));
        }
        // STATUS has no switch in the configuration: its version alone decides.
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
        let what = format!("{}: not available: {}", self.name, missing.join(", "));
        Some(Finding::new(Level::Note, "cni.verbs", what).why("the runtime does not request these of this network"))
    }

    /// What the runtime accepts and a plugin or libcni refuses later, or what it silently overrides. The level is that of the
    /// consequence where the network is in use: `Fail` where every ADD fails, `Warn` where it depends on the plugin.
    fn remark(&self, network: &Network, remark: &Remark) -> Finding {
        let fail = self.if_chosen(Level::Fail);
        // Both as for a network in use, a note for others.
        let warn = self.if_chosen(Level::Warn);
        let name_hint = "give the network a name, for example \"name\": \"pods\"";
        match remark {
            // `ValidateNetworkName` of libcni's `pkg/utils/utils.go` runs before a plugin is executed, not at load.
            Remark::NoName => self
                .finding(fail, "the network has no name")
                .why("containerd loads it and every ADD fails, since libcni refuses an empty name; CRI-O takes the file's name")
                .hint(name_hint),
            // `loadNetworks` of ocicni's `ocicni.go`: the base name of the file, extension included.
            Remark::NamedAfterFile => self
                .finding(Level::Note, "the network has no name")
                .why("CRI-O takes the file's name and uses it; with containerd every ADD would fail")
                .hint(name_hint),
            // A name is part of file paths: letters and digits, then also `_`, `.` and `-` (specification 1.1.0, section 1).
            Remark::BadName => self
                .finding(
                    fail,
                    format!(
                        "\"name\" {:?} is not allowed: letters, digits, and after the first also . _ -",
                        network.name
                    ),
                )
                .why("the runtime loads it and every ADD fails, since libcni refuses the name")
                .hint(name_hint),
            // Plugins take an empty version as 0.1.0 (`DecodeVersion` of libcni's `pkg/types/create/create.go`).
            Remark::NoVersion => self
                .finding(warn, "\"cniVersion\" is missing")
                .why("it is taken as 0.1.0: no CHECK, results in the oldest form, and newer plugins may refuse it")
                .hint("add \"cniVersion\": \"1.0.0\""),
            // Known versions: `version.All` of libcni's `pkg/version/version.go`, up to 1.1.0.
            Remark::FutureVersion => self
                .finding(warn, format!("\"cniVersion\" {} is newer than 1.1.0", network.version))
                .why(self.unknown_version())
                .hint("use a version that all plugins of the chain know, or \"cniVersions\""),
            // Not three numbers, or a version that the specification never had: no plugin can support it.
            Remark::BadVersion => self
                .finding(fail, format!("\"cniVersion\" {:?} is no version of CNI", network.version))
                .why(self.unknown_version())
                .hint("use a version that all plugins of the chain know, such as \"1.0.0\""),
            // `buildOneConfig` of libcni's `api.go` puts the list's name and version into the configuration of each plugin.
            Remark::NameOverwritten { plugin, name } => self
                .finding(Level::Note, format!("plugin {plugin} has a name of its own, {name:?}"))
                .why("the list's name is given to the plugin instead"),
            Remark::VersionOverwritten { plugin, version } => self
                .finding(
                    Level::Note,
                    format!("plugin {plugin} has a cniVersion of its own, {version}"),
                )
                .why("the list's cniVersion is given to the plugin instead"),
        }
    }

    /// The consequence of a version that no plugin lists, for the runtime of this node.
    fn unknown_version(&self) -> &'static str {
        match self.runtime {
            RuntimeKind::Containerd => {
                "containerd loads it; a plugin refuses a version it does not know, and ADD fails"
            }
            RuntimeKind::Crio => "CRI-O passes over a network unless each of its plugins supports just this version",
            RuntimeKind::Unknown => "runtimes and plugins refuse a version they do not know",
        }
    }

    /// Plugins of the chain, delegates included, that cannot be executed. Each is reported once, however often the chain names
    /// it. libcni takes the first regular file of that name in the plugin directories, without a look at its mode
    /// (`FindInPath` of its `pkg/invoke/find.go`), so that one that is not executable hides a good one in a later directory.
    fn binaries(&self, conf: &CniConf, network: &Network) -> Vec<Finding> {
        // Those of the runtime: `CNI_PATH` of its plugins.
        let directories = &conf.settings.bin_dirs;
        let level = self.if_chosen(Level::Fail);
        // A plugin that is missing fails the ADD of each sandbox at its place in the chain, not when the file is loaded.
        // containerd's own need of it is reported by `loopback`, once.
        let mut seen: Vec<&str> = if conf.settings.loopback_plugin {
            vec![LOOPBACK]
        } else {
            Vec::new()
        };
        let mut findings = Vec::new();
        for plugin in network.plugins.iter().flat_map(Plugin::all) {
            // Reported before, at its first place in the chain.
            if seen.contains(&plugin.kind.as_str()) {
                continue;
            }
            seen.push(&plugin.kind);
            let (what, hint) = match Binary::find(&plugin.kind, directories) {
                Binary::Found(_) => continue,
                // The kernel refuses the exec with EACCES (execve(2)).
                Binary::NotExecutable(path) => (
                    format!("{} is not executable", path.display()),
                    format!("chmod 755 {}", path.display()),
                ),
                Binary::Missing => (
                    format!("no plugin {:?} in {}", plugin.kind, paths(directories)),
                    "install the plugin there, or set the runtime's plugin directory".to_owned(),
                ),
                // "Must not contain characters disallowed in file paths" (specification 1.1.0, section 1); `FindInPath` refuses it.
                Binary::NotAName => (
                    format!("\"type\" {:?} is not a file name", plugin.kind),
                    "\"type\" names the plugin's binary, for example \"type\": \"bridge\"".to_owned(),
                ),
            };
            // An ADD runs the chain in order, so that the plugins before the missing one have done their work in vain.
            findings.push(
                Finding::new(level, "cni.binary", format!("{}: {what}", self.name))
                    .why("every ADD that comes to this plugin fails")
                    .hint(hint),
            );
        }
        findings
    }

    /// Multus and its like name networks that are objects of the cluster (NetworkAttachmentDefinition). No file of the node
    /// contains them, so that they are only mentioned.
    fn named_elsewhere(&self, network: &Network) -> Vec<Finding> {
        let plugins = network.plugins.iter().flat_map(Plugin::all);
        let delegates = plugins.flat_map(|plugin| plugin.delegates.iter().map(move |delegate| (plugin, delegate)));
        // Delegates that are configured inline are part of the chain and were checked with it.
        let named = delegates.filter_map(|(plugin, delegate)| match &delegate.to {
            DelegateTo::Named(to) => Some((plugin, delegate.key, to)),
            DelegateTo::Network { .. } => None,
        });
        let finding = |(plugin, key, to): (&Plugin, &str, &String)| {
            let what = format!("{}: {} delegates to {to} ({key})", self.name, plugin.kind);
            Finding::new(Level::Note, "cni.delegate", what)
                .why("that network is configured elsewhere and not checked here")
        };
        named.map(finding).collect()
    }
}

/// Another file of the directory that configures a network of the same name. Names should be unique on a node (CNI
/// specification 1.1.0, section 1): host-local keeps its leases in a directory of the network's name, libcni its results.
fn twice(directory: &ConfDirectory, place: usize, network: &Network) -> Option<Finding> {
    // Networks without a name are reported as such, and not as one another's doubles.
    let is_same = |other: &&Network| other.name == network.name && !other.name.is_empty();
    // Only earlier files, so that a pair is reported once, at the later one.
    let mut others = directory.files[..place].iter();
    let other = others.find(|other| other.network.as_ref().ok().filter(is_same).is_some())?;
    let what = format!(
        "{}: network {:?} is also in {}",
        name(&directory.files[place].path),
        network.name,
        name(&other.path)
    );
    Some(
        Finding::new(Level::Warn, "cni.file", what)
            .why("plugins keep their state by network name: two configurations of one name disturb each other")
            .hint("remove one of the files, or rename one network"),
    )
}

/// `network pods 1.0.0: bridge (ipam host-local) > portmap > firewall`.
fn describe(network: &Network) -> String {
    // In the order of execution; DEL runs it backwards (CNI specification 1.1.0, section 3).
    let chain: Vec<String> = network.plugins.iter().map(chain_link).collect();
    format!("network {} {}: {}", network.name, network.version, chain.join(" > "))
}

/// A plugin and what it delegates to, by the key of its configuration that names it: `bridge (ipam host-local)`. Recursive;
/// `cni_conf` bounds the depth.
fn chain_link(plugin: &Plugin) -> String {
    // Plugins of a delegate run below their caller, so they are shown in brackets behind it.
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
