//! The plugins a configuration names, directly or through delegation.
//!
//! Delegation is each plugin's own invention; known here: `ipam.type` (CNI specification 1.1.0, section 4), `delegate`
//! (flannel), `delegates`, `clusterNetwork` and `defaultNetworks` (Multus). Plugins are Go programs as well, so that the case
//! of these keys does not matter. Does not: know what else a plugin may execute.

use super::bounded::bounded;
use super::json::{Members, Value, folded};

/// A plugin and what it delegates to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// `type`: the name of its binary.
    pub kind: String,
    /// What it executes in turn.
    pub delegates: Vec<Delegate>,
}

/// Something a plugin executes in turn.
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

/// What a plugin's configuration delegates to.
pub(super) fn delegates(kind: &str, members: &Members) -> Vec<Delegate> {
    below(kind, members, MAX_DEPTH)
}

fn below(kind: &str, members: &Members, depth: usize) -> Vec<Delegate> {
    let mut found = Vec::new();
    if depth == 0 {
        return found;
    }
    for (key, value) in KEYS.iter().filter_map(|key| Some((*key, folded(members, key)?))) {
        match value {
            Value::Object(members) => found.extend(network(kind, key, members, depth)),
            Value::Text(name) if key == "clusterNetwork" => found.push(named(key, name)),
            Value::List(values) if key != "ipam" => {
                for value in values.iter().take(MAX_DELEGATES) {
                    match value {
                        Value::Object(members) => found.extend(network(kind, key, members, depth)),
                        Value::Text(name) => found.push(named(key, name)),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    // flannel delegates to bridge unless its configuration names another plugin.
    if kind == "flannel" && folded(members, "delegate").is_none() {
        found.extend(network(kind, "delegate", &Members::new(), depth));
    }
    found
}

fn network(parent: &str, key: &'static str, members: &Members, depth: usize) -> Option<Delegate> {
    let plugins: Vec<Plugin> = match folded(members, "plugins") {
        Some(Value::List(plugins)) => {
            let objects = plugins.iter().filter_map(Value::as_object).take(MAX_DELEGATES);
            objects.filter_map(|members| plugin("", members, depth)).collect()
        }
        _ => {
            let default = if parent == "flannel" { "bridge" } else { "" };
            plugin(default, members, depth).into_iter().collect()
        }
    };
    if plugins.is_empty() {
        return None;
    }
    let name = folded(members, "name").and_then(Value::as_text).unwrap_or_default();
    let name = bounded(name);
    Some(Delegate {
        key,
        to: DelegateTo::Network { name, plugins },
    })
}

fn plugin(default: &str, members: &Members, depth: usize) -> Option<Plugin> {
    let kind = match folded(members, "type") {
        Some(Value::Text(kind)) => kind,
        None => default,
        Some(_) => return None,
    };
    if kind.is_empty() {
        return None;
    }
    Some(Plugin {
        kind: bounded(kind),
        delegates: below(kind, members, depth - 1),
    })
}

fn named(key: &'static str, name: &str) -> Delegate {
    Delegate {
        key,
        to: DelegateTo::Named(bounded(name)),
    }
}

const KEYS: [&str; 5] = ["ipam", "delegate", "delegates", "clusterNetwork", "defaultNetworks"];
const MAX_DEPTH: usize = 4;
const MAX_DELEGATES: usize = 16;
