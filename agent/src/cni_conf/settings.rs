//! Where a runtime looks for network configuration and plugins: its own settings, else the defaults.
//!
//! Used by `CniConf::read`. The formats are those of `settings/containerd.rs` and `settings/crio.rs`.
//! Does not: request them from the runtime, which may have been started with others.

mod containerd;
mod crio;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::error::ReadError;
use super::file::read_bounded;
use super::loader::{Libcni, Loader, RuntimeKind};
use super::os::{CONTAINERD_CONFIGS, DEFAULT_BIN_DIR, DEFAULT_CONF_DIR, under};

/// The node's CNI set-up as far as the agent's own settings and the runtime's responses define it; the rest is found.
#[derive(Clone, Debug)]
pub struct CniOptions {
    /// The runtime, when known better than from its files.
    pub runtime: Option<RuntimeKind>,
    /// The generation of its libcni, when its version is known.
    pub libcni: Option<Libcni>,
    /// Directory of network configuration.
    pub conf_dir: Option<PathBuf>,
    /// Directories of plugins; empty to find them.
    pub bin_dirs: Vec<PathBuf>,
    /// Directories of runtime handlers, when the runtime itself names them.
    pub handlers: Option<Vec<HandlerDirectory>>,
    /// containerd's configuration file.
    pub containerd_config: Option<PathBuf>,
    /// Where the node's file system is seen, normally `/`. The paths above are not below it.
    pub root: PathBuf,
}

impl CniOptions {
    /// Nothing is known: everything is found in the runtimes' files where the node's file system is at `root`.
    #[must_use]
    pub fn found_below(root: &Path) -> CniOptions {
        CniOptions {
            runtime: None,
            libcni: None,
            conf_dir: None,
            bin_dirs: Vec::new(),
            handlers: None,
            containerd_config: None,
            root: root.to_owned(),
        }
    }
}

/// A directory of network configuration that containerd uses for sandboxes of one runtime handler only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerDirectory {
    /// The handler's name, as in a RuntimeClass.
    pub handler: String,
    /// `cni_conf_dir`.
    pub conf_dir: PathBuf,
    /// `cni_max_conf_num`; `None` for all files.
    pub max_networks: Option<usize>,
}

/// The settings in force, as far as files define them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniSettings {
    /// The runtime's loader.
    pub loader: Loader,
    /// Directory of network configuration.
    pub conf_dir: PathBuf,
    /// Directories of plugins, in the order they are searched.
    pub bin_dirs: Vec<PathBuf>,
    /// How many files containerd takes; `None` for all.
    pub max_networks: Option<usize>,
    /// Directories of containerd's runtime handlers, where they differ from `conf_dir`.
    pub handlers: Vec<HandlerDirectory>,
    /// The network CRI-O takes; empty for the first.
    pub default_network: String,
    /// Whether the runtime runs the `loopback` plugin for every sandbox.
    pub loopback_plugin: bool,
    /// Files these settings come from; empty when all are defaults or the agent's own settings.
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
            loader: Loader {
                runtime,
                libcni: options.libcni,
            },
            conf_dir: under(&options.root, DEFAULT_CONF_DIR),
            bin_dirs: vec![under(&options.root, DEFAULT_BIN_DIR)],
            max_networks: Some(1),
            handlers: Vec::new(),
            default_network: String::new(),
            loopback_plugin: runtime == RuntimeKind::Containerd,
            sources: Vec::new(),
            watched: CONTAINERD_CONFIGS
                .into_iter()
                .chain([crio::CONF, crio::CONF_DIR])
                .map(|path| under(&options.root, path))
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
        if let Some(handlers) = &options.handlers {
            settings.handlers.clone_from(handlers);
        }
        settings
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
                self.wrong_type(path, key, "a text");
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
                self.wrong_type(path, key, "a list of texts");
                None
            }
        }
    }

    fn wrong_type(&mut self, path: &Path, key: &'static str, expected: &'static str) {
        let path = path.to_owned();
        self.errors.push(SettingsError::Type { path, key, expected });
    }
}

/// A socket shows that a runtime runs, a settings file only that it was installed: sockets first.
fn detect(options: &CniOptions) -> RuntimeKind {
    if options.containerd_config.is_some() {
        return RuntimeKind::Containerd;
    }
    let exists = |path: &&str| under(&options.root, path).exists();
    let kinds = [
        ("/run/containerd/containerd.sock", RuntimeKind::Containerd),
        ("/run/k3s/containerd/containerd.sock", RuntimeKind::Containerd),
        ("/run/crio/crio.sock", RuntimeKind::Crio),
        (CONTAINERD_CONFIGS[0], RuntimeKind::Containerd),
        (CONTAINERD_CONFIGS[1], RuntimeKind::Containerd),
        (CONTAINERD_CONFIGS[2], RuntimeKind::Containerd),
        (crio::CONF, RuntimeKind::Crio),
        (crio::CONF_DIR, RuntimeKind::Crio),
    ];
    let found = kinds.into_iter().find(|(path, _)| exists(path));
    found.map_or(RuntimeKind::Unknown, |(_, kind)| kind)
}

/// Files of a directory in the order of their names; none when it cannot be read.
fn list(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().take(MAX_ENTRIES);
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    files
}

/// Line and column, both from 1, of a byte offset.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = &text[..text.floor_char_boundary(offset)];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = before.matches('\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}

const MAX_SETTINGS_FILES: usize = 64;
const MAX_BIN_DIRS: usize = 16;
const MAX_ENTRIES: usize = 4096;
