//! The plugins a configuration names, directly or through delegation, and their binaries.
//!
//! Delegation is each plugin's own invention; known here: `ipam.type`, `delegate` (flannel, ptp-like), `delegates` and
//! `clusterNetwork`/`defaultNetworks` (Multus). Does not: know what else a plugin may run.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// A plugin and what it delegates to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// `type`: the name of its binary.
    pub kind: String,
    /// What it runs in turn.
    pub delegates: Vec<Delegate>,
}

/// Something a plugin runs in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegate {
    /// The key that names it, e.g. `ipam`.
    pub key: &'static str,
    /// What it is.
    pub to: DelegateTo,
}

/// What a plugin delegates to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DelegateTo {
    /// Plugins, as one network when it has a name.
    Network {
        /// `name`; empty when the plugin gives its own.
        name: String,
        /// Its chain.
        plugins: Vec<Plugin>,
    },
    /// A network by name, configured elsewhere.
    Named(String),
}

impl Plugin {
    /// All plugins below this one, itself first.
    pub fn all(&self) -> impl Iterator<Item = &Plugin> {
        let mut stack = vec![self];
        std::iter::from_fn(move || {
            let plugin = stack.pop()?;
            for delegate in plugin.delegates.iter().rev() {
                if let DelegateTo::Network { plugins, .. } = &delegate.to {
                    stack.extend(plugins.iter().rev());
                }
            }
            Some(plugin)
        })
    }
}

/// Where a plugin's binary is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binary {
    /// Here.
    Found(PathBuf),
    /// Here, but not executable.
    NotExecutable(PathBuf),
    /// In none of the directories.
    Missing,
}

impl Binary {
    /// Looks for a binary as libcni does: the first directory that has a file of that name.
    #[must_use]
    pub fn find(kind: &str, directories: &[PathBuf]) -> Binary {
        for directory in directories {
            let path = directory.join(kind);
            match std::fs::metadata(&path) {
                Ok(metadata) if metadata.is_file() => {
                    return if is_executable(&path, &metadata) {
                        Binary::Found(path)
                    } else {
                        Binary::NotExecutable(path)
                    };
                }
                _ => {}
            }
        }
        Binary::Missing
    }
}

#[cfg(unix)]
fn is_executable(_path: &Path, metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o111 != 0
}

#[cfg(not(unix))]
fn is_executable(path: &Path, _metadata: &std::fs::Metadata) -> bool {
    path.extension().is_some_and(|extension| extension == "exe")
}

/// What a plugin's configuration delegates to.
pub(super) fn delegates(kind: &str, object: &Map<String, Value>) -> Vec<Delegate> {
    below(kind, object, MAX_DEPTH)
}

fn below(kind: &str, object: &Map<String, Value>, depth: usize) -> Vec<Delegate> {
    let mut found = Vec::new();
    if depth == 0 {
        return found;
    }
    for (key, value) in KEYS.iter().filter_map(|key| Some((*key, object.get(*key)?))) {
        match value {
            Value::Object(object) => found.extend(network(kind, key, object, depth)),
            Value::String(name) if key == "clusterNetwork" => found.push(named(key, name)),
            Value::Array(values) if key != "ipam" => {
                for value in values.iter().take(MAX_DELEGATES) {
                    match value {
                        Value::Object(object) => found.extend(network(kind, key, object, depth)),
                        Value::String(name) => found.push(named(key, name)),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    // flannel delegates to bridge when it is not told otherwise.
    if kind == "flannel" && !object.contains_key("delegate") {
        found.extend(network(kind, "delegate", &Map::new(), depth));
    }
    found
}

fn network(parent: &str, key: &'static str, object: &Map<String, Value>, depth: usize) -> Option<Delegate> {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let plugins: Vec<Plugin> = match object.get("plugins") {
        Some(Value::Array(plugins)) => {
            let objects = plugins.iter().filter_map(Value::as_object).take(MAX_DELEGATES);
            objects.filter_map(|object| plugin("", object, depth)).collect()
        }
        _ => plugin(if parent == "flannel" { "bridge" } else { "" }, object, depth)
            .into_iter()
            .collect(),
    };
    if plugins.is_empty() {
        return None;
    }
    let name = cut(text("name"));
    Some(Delegate {
        key,
        to: DelegateTo::Network { name, plugins },
    })
}

fn plugin(default: &str, object: &Map<String, Value>, depth: usize) -> Option<Plugin> {
    let kind = match object.get("type") {
        Some(Value::String(kind)) => kind,
        None => default,
        Some(_) => return None,
    };
    if kind.is_empty() || kind.contains('/') || kind.len() > MAX_TEXT {
        return None;
    }
    Some(Plugin {
        kind: kind.to_owned(),
        delegates: below(kind, object, depth - 1),
    })
}

fn named(key: &'static str, name: &str) -> Delegate {
    Delegate {
        key,
        to: DelegateTo::Named(cut(name)),
    }
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT)].to_owned()
}

const KEYS: [&str; 5] = ["ipam", "delegate", "delegates", "clusterNetwork", "defaultNetworks"];
const MAX_DEPTH: usize = 4;
const MAX_DELEGATES: usize = 16;
const MAX_TEXT: usize = 256;
