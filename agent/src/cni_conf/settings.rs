//! Where a runtime looks for network configuration and plugins: its own settings, else the defaults.
//!
//! containerd: <https://github.com/containerd/containerd/blob/main/docs/cri/config.md>, all three layouts, and the
//! files it imports; an imported file replaces a plugin's whole section, as in containerd. CRI-O: crio.conf(5) and its
//! drop-in directory, key by key. Does not: ask the runtime, which may have been started with other settings.

use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::file::{ReadError, read_bounded};

/// Which runtime a node uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeKind {
    /// containerd, also inside k3s and RKE2.
    Containerd,
    /// CRI-O.
    Crio,
    /// None that is known here.
    Unknown,
}

impl RuntimeKind {
    /// From `runtime_name` of the CRI's `Version`.
    #[must_use]
    pub fn from_name(name: &str) -> RuntimeKind {
        match name {
            "containerd" => RuntimeKind::Containerd,
            "cri-o" => RuntimeKind::Crio,
            _ => RuntimeKind::Unknown,
        }
    }

    /// Its name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RuntimeKind::Containerd => "containerd",
            RuntimeKind::Crio => "CRI-O",
            RuntimeKind::Unknown => "the runtime",
        }
    }
}

/// What the agent is told about the node's CNI set-up; everything else is found.
#[derive(Clone, Debug)]
pub struct CniOptions {
    /// The runtime, when known better than from its files.
    pub runtime: Option<RuntimeKind>,
    /// Directory of network configuration.
    pub conf_dir: Option<PathBuf>,
    /// Directories of plugins; empty to find them.
    pub bin_dirs: Vec<PathBuf>,
    /// containerd's configuration file.
    pub containerd_config: Option<PathBuf>,
    /// Where the node's file system is seen, normally `/`. Paths given above are taken as they are.
    pub root: PathBuf,
}

impl Default for CniOptions {
    fn default() -> CniOptions {
        CniOptions {
            runtime: None,
            conf_dir: None,
            bin_dirs: Vec::new(),
            containerd_config: None,
            root: PathBuf::from("/"),
        }
    }
}

/// The settings in force, as far as files tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniSettings {
    /// The runtime.
    pub runtime: RuntimeKind,
    /// Directory of network configuration.
    pub conf_dir: PathBuf,
    /// Directories of plugins, in the order they are searched.
    pub bin_dirs: Vec<PathBuf>,
    /// How many files containerd takes; `None` for all.
    pub max_networks: Option<usize>,
    /// The network CRI-O takes; empty for the first.
    pub default_network: String,
    /// Whether the runtime runs the `loopback` plugin for every sandbox.
    pub loopback_plugin: bool,
    /// Files these settings come from; empty when all are defaults or given.
    pub sources: Vec<PathBuf>,
    /// Paths that would change these settings if they changed or came to be.
    pub watched: Vec<PathBuf>,
    /// containerd's CRI plugin is switched off in this file.
    pub cri_disabled_in: Option<PathBuf>,
    /// Settings files that could not be used.
    pub errors: Vec<SettingsError>,
}

/// A settings file of a runtime that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// It cannot be read.
    #[error("cannot read {path}", path = .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: ReadError,
    },
    /// It is not TOML.
    #[error("{path}:{line}:{column}: {reason}", path = .path.display())]
    Toml {
        /// Which file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        reason: String,
    },
    /// A setting has the wrong type.
    #[error("{path}: {key} is not {expected}", path = .path.display())]
    Type {
        /// Which file.
        path: PathBuf,
        /// Which setting.
        key: &'static str,
        /// What it should be.
        expected: &'static str,
    },
}

impl CniSettings {
    /// Finds the settings in force.
    #[must_use]
    pub fn find(options: &CniOptions) -> CniSettings {
        let runtime = options.runtime.unwrap_or_else(|| detect(options));
        let mut settings = CniSettings {
            runtime,
            conf_dir: below(&options.root, DEFAULT_CONF_DIR),
            bin_dirs: vec![below(&options.root, DEFAULT_BIN_DIR)],
            max_networks: Some(1),
            default_network: String::new(),
            loopback_plugin: runtime == RuntimeKind::Containerd,
            sources: Vec::new(),
            watched: CONTAINERD_CONFIGS
                .into_iter()
                .chain([CRIO_CONF, CRIO_CONF_DIR])
                .map(|path| below(&options.root, path))
                .collect(),
            cri_disabled_in: None,
            errors: Vec::new(),
        };
        match runtime {
            RuntimeKind::Containerd => settings.read_containerd(options),
            RuntimeKind::Crio => settings.read_crio(options),
            RuntimeKind::Unknown => {}
        }
        if let Some(conf_dir) = &options.conf_dir {
            settings.conf_dir.clone_from(conf_dir);
        }
        if !options.bin_dirs.is_empty() {
            settings.bin_dirs.clone_from(&options.bin_dirs);
        }
        settings
    }

    fn read_containerd(&mut self, options: &CniOptions) {
        let Some(main) = containerd_config(options) else {
            return;
        };
        let mut pending = vec![main];
        let mut seen = Vec::new();
        // Depth first, imported files after the one that names them: the last word counts.
        while let Some(path) = pending.pop() {
            let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
            if seen.contains(&real) || seen.len() >= MAX_SETTINGS_FILES {
                continue;
            }
            seen.push(real);
            let Some(table) = self.table(&path) else {
                continue;
            };
            self.apply_containerd(options, &path, &table);
            let mut imported = imports(options, &path, &table);
            imported.reverse();
            pending.extend(imported);
        }
    }

    fn apply_containerd(&mut self, options: &CniOptions, path: &Path, table: &Table) {
        let disabled = table.get("disabled_plugins").and_then(Value::as_array);
        let disables = |value: &Value| value.as_str().is_some_and(|name| CRI_PLUGINS.contains(&name));
        if disabled.is_some_and(|plugins| plugins.iter().any(disables)) {
            self.cri_disabled_in = Some(path.to_owned());
        }
        let Some(section) = CRI_PLUGINS.iter().find_map(|plugin| table.get("plugins")?.get(plugin)) else {
            return;
        };
        self.sources.push(path.to_owned());
        // The whole section is replaced: what this file does not say is the default again.
        self.conf_dir = below(&options.root, DEFAULT_CONF_DIR);
        self.bin_dirs = vec![below(&options.root, DEFAULT_BIN_DIR)];
        self.max_networks = Some(1);
        self.loopback_plugin = true;
        let Some(cni) = section.get("cni") else {
            return;
        };
        if let Some(directory) = self.text(path, cni, "conf_dir") {
            self.conf_dir = below(&options.root, &directory);
        }
        if let Some(directory) = self.text(path, cni, "bin_dir") {
            self.bin_dirs = vec![below(&options.root, &directory)];
        }
        if let Some(directories) = self.texts(path, cni, "bin_dirs") {
            self.bin_dirs = directories.iter().map(|dir| below(&options.root, dir)).collect();
        }
        match cni.get("max_conf_num").map(Value::as_integer) {
            Some(Some(number)) => self.max_networks = usize::try_from(number).ok().filter(|number| *number > 0),
            Some(None) => self.errors.push(wrong_type(path, "max_conf_num", "a number")),
            None => {}
        }
        if cni.get("use_internal_loopback").and_then(Value::as_bool) == Some(true) {
            self.loopback_plugin = false;
        }
    }

    fn read_crio(&mut self, options: &CniOptions) {
        let mut files = vec![below(&options.root, CRIO_CONF)];
        files.extend(list(&below(&options.root, CRIO_CONF_DIR)));
        for path in files.into_iter().take(MAX_SETTINGS_FILES) {
            if !path.is_file() {
                continue;
            }
            let Some(table) = self.table(&path) else {
                continue;
            };
            let Some(network) = table.get("crio").and_then(|crio| crio.get("network")) else {
                continue;
            };
            self.sources.push(path.clone());
            if let Some(directory) = self.text(&path, network, "network_dir") {
                self.conf_dir = below(&options.root, &directory);
            }
            if let Some(directory) = self.text(&path, network, "plugin_dir") {
                self.bin_dirs = vec![below(&options.root, &directory)];
            }
            if let Some(directories) = self.texts(&path, network, "plugin_dirs") {
                self.bin_dirs = directories.iter().map(|dir| below(&options.root, dir)).collect();
            }
            if let Some(name) = network.get("cni_default_network").and_then(Value::as_str) {
                name.clone_into(&mut self.default_network);
            }
        }
    }

    fn table(&mut self, path: &Path) -> Option<Table> {
        self.watched.push(path.to_owned());
        let bytes = match read_bounded(path) {
            Ok(bytes) => bytes,
            Err(source) => {
                let path = path.to_owned();
                self.errors.push(SettingsError::Read { path, source });
                return None;
            }
        };
        let text = String::from_utf8_lossy(&bytes);
        match text.parse::<Table>() {
            Ok(table) => Some(table),
            Err(error) => {
                let (line, column) = position(&text, error.span().map_or(0, |span| span.start));
                self.errors.push(SettingsError::Toml {
                    path: path.to_owned(),
                    line,
                    column,
                    reason: error.message().replace('\n', " "),
                });
                None
            }
        }
    }

    /// A text setting; an empty one counts as absent, as it does for the runtimes.
    fn text(&mut self, path: &Path, section: &Value, key: &'static str) -> Option<String> {
        let value = section.get(key)?;
        match value.as_str() {
            Some(text) => Some(text.to_owned()).filter(|text| !text.is_empty()),
            None => {
                self.errors.push(wrong_type(path, key, "a text"));
                None
            }
        }
    }

    fn texts(&mut self, path: &Path, section: &Value, key: &'static str) -> Option<Vec<String>> {
        let values = section.get(key)?.as_array();
        let texts: Option<Vec<String>> = values.and_then(|values| {
            let texts = values.iter().map(|value| value.as_str().map(str::to_owned));
            texts.take(MAX_BIN_DIRS).collect()
        });
        match texts {
            Some(texts) => Some(texts).filter(|texts| !texts.is_empty()),
            None => {
                self.errors.push(wrong_type(path, key, "a list of texts"));
                None
            }
        }
    }
}

fn wrong_type(path: &Path, key: &'static str, expected: &'static str) -> SettingsError {
    SettingsError::Type {
        path: path.to_owned(),
        key,
        expected,
    }
}

/// A socket says that a runtime runs, a settings file only that it was installed: sockets first.
fn detect(options: &CniOptions) -> RuntimeKind {
    if options.containerd_config.is_some() {
        return RuntimeKind::Containerd;
    }
    let exists = |path: &&str| below(&options.root, path).exists();
    let kinds = [
        ("/run/containerd/containerd.sock", RuntimeKind::Containerd),
        ("/run/k3s/containerd/containerd.sock", RuntimeKind::Containerd),
        ("/run/crio/crio.sock", RuntimeKind::Crio),
        (CONTAINERD_CONFIGS[0], RuntimeKind::Containerd),
        (CONTAINERD_CONFIGS[1], RuntimeKind::Containerd),
        (CONTAINERD_CONFIGS[2], RuntimeKind::Containerd),
        (CRIO_CONF, RuntimeKind::Crio),
        (CRIO_CONF_DIR, RuntimeKind::Crio),
    ];
    let found = kinds.into_iter().find(|(path, _)| exists(path));
    found.map_or(RuntimeKind::Unknown, |(_, kind)| kind)
}

fn containerd_config(options: &CniOptions) -> Option<PathBuf> {
    if options.containerd_config.is_some() {
        return options.containerd_config.clone();
    }
    let mut candidates = CONTAINERD_CONFIGS.map(|path| below(&options.root, path)).into_iter();
    candidates.find(|path| path.exists())
}

/// Files named by `imports`: paths, or patterns with `*` in the last component.
fn imports(options: &CniOptions, path: &Path, table: &Table) -> Vec<PathBuf> {
    let patterns = table.get("imports").and_then(Value::as_array);
    let mut files = Vec::new();
    for pattern in patterns.into_iter().flatten().filter_map(Value::as_str) {
        let full = if Path::new(pattern).has_root() {
            below(&options.root, pattern)
        } else {
            path.parent().unwrap_or(Path::new("/")).join(pattern)
        };
        if !pattern.contains('*') {
            files.push(full);
            continue;
        }
        let (Some(directory), Some(name)) = (full.parent(), full.file_name()) else {
            continue;
        };
        let name = name.to_string_lossy();
        let fits = |path: &PathBuf| {
            path.file_name()
                .is_some_and(|file| matches(&name, &file.to_string_lossy()))
        };
        files.extend(list(directory).into_iter().filter(fits));
    }
    files.truncate(MAX_SETTINGS_FILES);
    files
}

/// Whether `name` fits `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty()
}

/// Files of a directory in the order of their names; none when it cannot be read.
fn list(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().take(MAX_ENTRIES);
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    files
}

pub(super) fn below(root: &Path, path: &str) -> PathBuf {
    // The node's own root has drives, any other has none.
    #[cfg(windows)]
    let path = match path.split_once(':') {
        Some((_, rest)) if root != Path::new("/") => rest.trim_start_matches('\\'),
        _ => path,
    };
    root.join(path.trim_start_matches('/'))
}

/// Line and column, both from 1, of a byte offset.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = &text[..text.floor_char_boundary(offset)];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = before.matches('\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}

/// Directory of network configuration when nothing else is said.
#[cfg(not(windows))]
const DEFAULT_CONF_DIR: &str = "/etc/cni/net.d";
/// Directory of plugins when nothing else is said.
#[cfg(not(windows))]
const DEFAULT_BIN_DIR: &str = "/opt/cni/bin";
// containerd's defaults on Windows (internal/cri/config/config_windows.go, defaults/defaults_windows.go).
/// Directory of network configuration when nothing else is said.
#[cfg(windows)]
const DEFAULT_CONF_DIR: &str = r"C:\Program Files\containerd\cni\conf";
/// Directory of plugins when nothing else is said.
#[cfg(windows)]
const DEFAULT_BIN_DIR: &str = r"C:\Program Files\containerd\cni\bin";
#[cfg(windows)]
pub(super) const CONTAINERD_CONFIGS: [&str; 3] = [
    r"C:\Program Files\containerd\config.toml",
    // Where AKS Engine and RKE2 keep theirs.
    r"C:\ProgramData\containerd\config.toml",
    r"C:\var\lib\rancher\rke2\agent\etc\containerd\config.toml",
];
#[cfg(not(windows))]
pub(super) const CONTAINERD_CONFIGS: [&str; 3] = [
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
];
const CRIO_CONF: &str = "/etc/crio/crio.conf";
const CRIO_CONF_DIR: &str = "/etc/crio/crio.conf.d";
/// Names of containerd's CRI plugin in configuration versions 3, 2 and 1.
const CRI_PLUGINS: [&str; 3] = ["io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri"];
const MAX_SETTINGS_FILES: usize = 64;
const MAX_BIN_DIRS: usize = 16;
const MAX_ENTRIES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = CONTAINERD_CONFIGS[0];

    fn beside(name: &str) -> String {
        CONFIG.replace("config.toml", name)
    }

    struct Node(tempfile::TempDir);

    impl Node {
        fn new() -> Node {
            Node(tempfile::tempdir().unwrap())
        }
        fn file(&self, path: &str, text: &str) -> &Node {
            let path = self.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }
        fn path(&self, path: &str) -> PathBuf {
            below(self.0.path(), path)
        }
        fn settings(&self) -> CniSettings {
            CniSettings::find(&CniOptions {
                root: self.0.path().to_owned(),
                ..CniOptions::default()
            })
        }
    }

    #[test]
    fn an_empty_node_has_the_defaults() {
        let node = Node::new();
        let settings = node.settings();
        assert_eq!(settings.runtime, RuntimeKind::Unknown);
        assert_eq!(settings.conf_dir, node.path(DEFAULT_CONF_DIR));
        assert_eq!(settings.bin_dirs, [node.path(DEFAULT_BIN_DIR)]);
        assert_eq!(settings.errors, []);
    }

    #[test]
    fn all_layouts_of_containerd_are_read() {
        for (layout, bin) in [
            (
                "[plugins.cri.cni]\nconf_dir='/a'\nbin_dir='/b'\nmax_conf_num=2",
                vec!["/b"],
            ),
            (
                "version=2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nconf_dir='/a'\nbin_dir='/b'\nmax_conf_num=2",
                vec!["/b"],
            ),
            (
                "version=3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nconf_dir='/a'\nbin_dir=''\nbin_dirs=['/b','/c']\nmax_conf_num=2",
                vec!["/b", "/c"],
            ),
        ] {
            let node = Node::new();
            node.file(CONFIG, layout);
            let settings = node.settings();
            assert_eq!(settings.runtime, RuntimeKind::Containerd);
            assert_eq!(settings.conf_dir, node.path("/a"), "{layout}");
            assert_eq!(
                settings.bin_dirs,
                bin.iter().map(|dir| node.path(dir)).collect::<Vec<_>>()
            );
            assert_eq!(settings.max_networks, Some(2));
            assert!(settings.loopback_plugin);
            assert_eq!(settings.sources, [node.path(CONFIG)]);
        }
    }

    #[test]
    fn imports_replace_the_section_and_may_form_a_circle() {
        let node = Node::new();
        node.file(
            CONFIG,
            &format!("version=2\nimports=['conf.d/*.toml', '{CONFIG}']\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nconf_dir='/a'\nmax_conf_num=5"),
        );
        node.file(
            &beside("conf.d/a.toml"),
            "[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir='/x'",
        );
        node.file(&beside("conf.d/b.toml"), "imports=['../config.toml']\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir='/y'\nmax_conf_num=0\nuse_internal_loopback=true");
        node.file(
            &beside("conf.d/c.bak"),
            "[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir='/z'",
        );
        let settings = node.settings();
        assert_eq!(settings.bin_dirs, [node.path("/y")]);
        assert_eq!(settings.conf_dir, node.path(DEFAULT_CONF_DIR));
        assert_eq!(settings.max_networks, None);
        assert!(!settings.loopback_plugin);
    }

    #[test]
    fn a_disabled_cri_plugin_is_noticed() {
        let node = Node::new();
        node.file(CONFIG, "disabled_plugins = [\"cri\"]");
        assert_eq!(node.settings().cri_disabled_in, Some(node.path(CONFIG)));
    }

    #[test]
    fn crio_is_read_key_by_key() {
        let node = Node::new();
        node.file(
            "/etc/crio/crio.conf",
            "[crio.network]\nnetwork_dir='/a'\nplugin_dirs=['/b']",
        );
        node.file(
            "/etc/crio/crio.conf.d/10-x.conf",
            "[crio.network]\nplugin_dirs=['/c','/d']",
        );
        node.file(
            "/etc/crio/crio.conf.d/20-y.conf",
            "[crio.network]\ncni_default_network='pods'",
        );
        let settings = node.settings();
        assert_eq!(settings.runtime, RuntimeKind::Crio);
        assert_eq!(settings.conf_dir, node.path("/a"));
        assert_eq!(settings.bin_dirs, [node.path("/c"), node.path("/d")]);
        assert_eq!(settings.default_network, "pods");
        assert!(!settings.loopback_plugin);
    }

    #[test]
    fn bad_toml_has_a_position_and_leaves_the_defaults() {
        let node = Node::new();
        node.file(CONFIG, "version = 2\n[plugins\nx = 1\n");
        let settings = node.settings();
        assert_eq!(settings.conf_dir, node.path(DEFAULT_CONF_DIR));
        assert!(
            matches!(&settings.errors[..], [SettingsError::Toml { line: 2, .. }]),
            "{:?}",
            settings.errors
        );
        node.file(
            CONFIG,
            "[plugins.cri.cni]\nconf_dir = 7\nbin_dirs = 'x'\nmax_conf_num = 'y'",
        );
        assert_eq!(node.settings().errors.len(), 3);
    }

    #[test]
    fn what_the_agent_is_told_wins() {
        let node = Node::new();
        node.file(CONFIG, "[plugins.cri.cni]\nconf_dir='/a'");
        let settings = CniSettings::find(&CniOptions {
            conf_dir: Some("/told".into()),
            bin_dirs: vec!["/told/bin".into()],
            root: node.0.path().to_owned(),
            ..CniOptions::default()
        });
        assert_eq!(settings.conf_dir, Path::new("/told"));
        assert_eq!(settings.bin_dirs, [Path::new("/told/bin")]);
    }

    #[test]
    fn patterns_match_as_a_shell_does() {
        assert!(matches("*.toml", "a.toml"));
        assert!(matches("a*c*e", "abcde"));
        assert!(!matches("a*c*e", "abde"));
        assert!(!matches("a", "ab"));
        assert!(matches("*", ""));
    }
}
