//! containerd's settings: the three layouts of its configuration file, and the files it imports.
//!
//! Source: <https://github.com/containerd/containerd/blob/main/docs/cri/config.md>, `CniConfig` and `Runtime` of
//! `internal/cri/config/config.go` (2.4). An imported file replaces a plugin's whole section, as in containerd.

use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::super::os::{CONTAINERD_CONFIGS, DEFAULT_BIN_DIR, DEFAULT_CONF_DIR, under};
use super::{CniOptions, CniSettings, HandlerDirectory, MAX_SETTINGS_FILES, list};

impl CniSettings {
    pub(super) fn read_containerd(&mut self, options: &CniOptions) {
        let Some(main) = main_file(options) else {
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
        // The whole section is replaced: a key that this file does not set has its default again.
        self.conf_dir = under(&options.root, DEFAULT_CONF_DIR);
        self.bin_dirs = vec![under(&options.root, DEFAULT_BIN_DIR)];
        self.max_networks = Some(1);
        self.handlers.clear();
        self.loopback_plugin = true;
        if let Some(cni) = section.get("cni") {
            self.apply_cni(options, path, cni);
        }
        self.apply_handlers(options, path, section);
    }

    fn apply_cni(&mut self, options: &CniOptions, path: &Path, cni: &Value) {
        if let Some(directory) = self.text(path, cni, "conf_dir") {
            self.conf_dir = under(&options.root, &directory);
        }
        if let Some(directory) = self.text(path, cni, "bin_dir") {
            self.bin_dirs = vec![under(&options.root, &directory)];
        }
        if let Some(directories) = self.texts(path, cni, "bin_dirs") {
            self.bin_dirs = directories.iter().map(|dir| under(&options.root, dir)).collect();
        }
        if let Some(number) = self.number(path, cni, "max_conf_num") {
            self.max_networks = limit(number);
        }
        if cni.get("use_internal_loopback").and_then(Value::as_bool) == Some(true) {
            self.loopback_plugin = false;
        }
    }

    /// Runtime handlers with a directory of their own. containerd loads it at start beside the default one
    /// (`initPlatform` of `internal/cri/server/service_linux.go`).
    fn apply_handlers(&mut self, options: &CniOptions, path: &Path, section: &Value) {
        let runtimes = section.get("containerd").and_then(|section| section.get("runtimes"));
        for (handler, runtime) in runtimes.and_then(Value::as_table).into_iter().flatten() {
            let Some(directory) = self.text(path, runtime, "cni_conf_dir") else {
                continue;
            };
            let own = self.number(path, runtime, "cni_max_conf_num");
            self.handlers.push(HandlerDirectory {
                handler: handler.clone(),
                conf_dir: under(&options.root, &directory),
                max_networks: own.filter(|own| *own != 0).map_or(self.max_networks, limit),
            });
        }
        self.handlers.truncate(MAX_HANDLERS);
    }

    fn number(&mut self, path: &Path, section: &Value, key: &'static str) -> Option<i64> {
        let value = section.get(key)?;
        let number = value.as_integer();
        if number.is_none() {
            self.wrong_type(path, key, "a number");
        }
        number
    }
}

/// go-cni loads all files when the number is not positive.
pub(super) fn limit(number: i64) -> Option<usize> {
    usize::try_from(number).ok().filter(|number| *number > 0)
}

fn main_file(options: &CniOptions) -> Option<PathBuf> {
    if options.containerd_config.is_some() {
        return options.containerd_config.clone();
    }
    let mut candidates = CONTAINERD_CONFIGS.map(|path| under(&options.root, path)).into_iter();
    candidates.find(|path| path.exists())
}

/// Files named by `imports`: paths, or patterns with `*` in the last component.
fn imports(options: &CniOptions, path: &Path, table: &Table) -> Vec<PathBuf> {
    let patterns = table.get("imports").and_then(Value::as_array);
    let mut files = Vec::new();
    for pattern in patterns.into_iter().flatten().filter_map(Value::as_str) {
        let full = if Path::new(pattern).has_root() {
            under(&options.root, pattern)
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
pub(super) fn matches(pattern: &str, name: &str) -> bool {
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

/// Names of containerd's CRI plugin in configuration versions 3, 2 and 1.
const CRI_PLUGINS: [&str; 3] = ["io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri"];
const MAX_HANDLERS: usize = 64;
