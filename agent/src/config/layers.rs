//! Layers of configuration (default, file, flag), merged key by key; each key keeps its origin.
//!
//! Used by `commands`. Does not: read the environment.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::Config;
use super::error::ConfigError;
use super::yaml;

/// Largest configuration file that is read.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Where the value of a key came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Built in.
    #[default]
    Default,
    /// The configuration file.
    File(PathBuf),
    /// A flag.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "file {}", path.display()),
            Origin::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// The merged configuration before it is typed.
#[derive(Clone, Debug)]
pub struct Layers {
    /// The defaults. They also distinguish sections from values that are objects.
    defaults: Value,
    merged: Value,
    origins: BTreeMap<String, Origin>,
}

impl Default for Layers {
    fn default() -> Layers {
        // Plain data always serializes; an empty object would mean that no key exists.
        let defaults = serde_json::to_value(Config::default()).unwrap_or(Value::Object(Map::new()));
        Layers {
            merged: defaults.clone(),
            defaults,
            origins: BTreeMap::new(),
        }
    }
}

impl Layers {
    /// Merges a file over the layers so far.
    ///
    /// # Errors
    /// The file cannot be read or is larger than [`MAX_FILE_BYTES`]; its text, a key or a value is not valid.
    pub fn file(&mut self, path: &Path) -> Result<(), ConfigError> {
        self.text(&Layers::read(path)?, path)
    }

    /// The text of a file, for [`Layers::text`].
    ///
    /// # Errors
    /// The file cannot be read or is larger than [`MAX_FILE_BYTES`].
    pub fn read(path: &Path) -> Result<String, ConfigError> {
        let read = |source| ConfigError::Read {
            path: path.to_owned(),
            source,
        };
        // Bounded while reading: a device such as /dev/zero has no size and no end.
        let mut text = String::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text))
            .map_err(read)?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(read(std::io::Error::other(format!(
                "more than {MAX_FILE_BYTES} bytes are no configuration"
            ))));
        }
        Ok(text)
    }

    /// Merges the text of a file over the layers so far; `path` is its origin.
    ///
    /// # Errors
    /// The text, a key or a value is not valid.
    pub fn text(&mut self, text: &str, path: &Path) -> Result<(), ConfigError> {
        if text
            .lines()
            .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
        {
            return Ok(());
        }
        let parse = |problem: String| ConfigError::Parse {
            path: path.to_owned(),
            problem,
        };
        let not_yaml = |error| yaml::refusal(error, path);
        let tree: Value = serde_saphyr::from_str(text).map_err(not_yaml)?;
        if !tree.is_object() {
            return Err(parse("it must be a mapping of keys".to_owned()));
        }
        let mut leaves = Vec::new();
        flatten("", &tree, &self.defaults, &mut leaves);
        // A section that is empty or has a value itself: typing refuses it below, with line and column.
        leaves.retain(|(key, _)| !lookup(&self.defaults, key).is_some_and(Value::is_object));
        for (key, _) in &leaves {
            self.known(key, &path.display().to_string())?;
        }
        // Typed from the text, not from the tree, so that errors have line and column.
        let typed: Config = serde_saphyr::from_str(text).map_err(not_yaml)?;
        let typed = serde_json::to_value(typed).map_err(|error| parse(error.to_string()))?;
        for (key, value) in leaves {
            let value = match (self.fits(&key, &value), lookup(&typed, &key)) {
                (Ok(()), _) => value,
                // Secrets serialize as `***`: the typed value cannot be taken.
                (Err(_), _) if SECRET.contains(&key.as_str()) => {
                    return Err(parse(format!("{key} must be texts: write them in quotes")));
                }
                // A number where the key wants text, or an empty section: the typed value.
                (Err(_), Some(typed)) => typed.clone(),
                (Err(_), None) => continue,
            };
            self.set(&key, value, Origin::File(path.to_owned()));
        }
        Ok(())
    }

    /// Merges one flag over the layers so far; `value` is text, or YAML where the key wants no text. A list of one may
    /// be written without its brackets.
    ///
    /// # Errors
    /// The key does not exist, or does not accept the value.
    pub fn flag(&mut self, flag: &str, key: &str, value: &str) -> Result<(), ConfigError> {
        self.known(key, &format!("flag {flag}"))?;
        let text = Value::String(value.to_owned());
        let yaml = serde_saphyr::from_str::<Value>(value).ok();
        let readings = match lookup(&self.defaults, key) {
            Some(Value::String(_)) => vec![text],
            Some(Value::Array(_)) => yaml.into_iter().chain([Value::Array(vec![text])]).collect(),
            Some(Value::Null) => [text].into_iter().chain(yaml).collect(),
            _ => vec![yaml.unwrap_or(text)],
        };
        let mut problem = String::new();
        for reading in readings {
            match self.fits(key, &reading) {
                Ok(()) => {
                    self.set(key, reading, Origin::Flag(flag.to_owned()));
                    return Ok(());
                }
                Err(error) => problem = error.to_string(),
            }
        }
        Err(ConfigError::value(&format!("{key} (flag {flag})"), problem))
    }

    /// Whether `key` accepts `value`, independent of the other keys.
    fn fits(&self, key: &str, value: &Value) -> Result<(), serde_json::Error> {
        let mut alone = self.defaults.clone();
        if let Some(place) = place(&mut alone, key) {
            *place = value.clone();
        }
        serde_json::from_value::<Config>(alone).map(|_| ())
    }

    /// The typed, validated configuration.
    ///
    /// # Errors
    /// Values contradict each other.
    pub fn resolve(&self) -> Result<Config, ConfigError> {
        // Each value was checked when it was merged, so this does not fail for one of them.
        let config: Config = serde_json::from_value(self.merged.clone())
            .map_err(|error| ConfigError::value("(all)", error.to_string()))?;
        config.validate()?;
        Ok(config)
    }

    /// Every key with its value as JSON and its origin, in order. Secrets show as `***`.
    #[must_use]
    pub fn keys(&self) -> Vec<(String, String, Origin)> {
        let mut leaves = Vec::new();
        flatten("", &self.merged, &self.defaults, &mut leaves);
        leaves
            .into_iter()
            .map(|(key, mut value)| {
                if SECRET.contains(&key.as_str()) {
                    redact(&mut value);
                }
                let origin = self.origins.get(&key).cloned().unwrap_or_default();
                (key, value.to_string(), origin)
            })
            .collect()
    }

    /// The keys whose values differ, in order; those of secrets are compared too.
    #[must_use]
    pub fn differing(&self, other: &Layers) -> Vec<String> {
        let leaves = |layers: &Layers| {
            let mut leaves = Vec::new();
            flatten("", &layers.merged, &layers.defaults, &mut leaves);
            leaves.into_iter().collect::<BTreeMap<_, _>>()
        };
        let (ours, theirs) = (leaves(self), leaves(other));
        let keys: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
        let differs = |key: &&String| ours.get(*key) != theirs.get(*key);
        keys.into_iter().filter(differs).cloned().collect()
    }

    fn set(&mut self, key: &str, value: Value, origin: Origin) {
        if let Some(place) = place(&mut self.merged, key) {
            *place = value;
            self.origins.insert(key.to_owned(), origin);
        }
    }

    fn known(&self, key: &str, from: &str) -> Result<(), ConfigError> {
        let section = match lookup(&self.defaults, key) {
            Some(Value::Object(_)) => true,
            Some(_) => return Ok(()),
            None => false,
        };
        let mut all = Vec::new();
        flatten("", &self.defaults, &self.defaults, &mut all);
        if section {
            let inside = all.iter().find(|(known, _)| known.starts_with(&format!("{key}.")));
            let example = inside.map_or(key, |(known, _)| known);
            return Err(ConfigError::UnknownKey {
                key: key.to_owned(),
                from: from.to_owned(),
                hint: format!("it is a section: give one of its keys a value, as {example:?}"),
            });
        }
        let nearest = all
            .iter()
            .map(|(known, _)| (strsim::damerau_levenshtein(known, key), known))
            .min();
        let hint = match nearest {
            Some((distance, known)) if distance <= key.len() / 2 => format!("did you mean {known:?}?"),
            _ => "`sandglass print-config` shows every key".to_owned(),
        };
        Err(ConfigError::UnknownKey {
            key: key.to_owned(),
            from: from.to_owned(),
            hint,
        })
    }
}

/// Lists the leaves of `tree` with dotted keys. An object is a branch only where `shape` has one too.
fn flatten(prefix: &str, tree: &Value, shape: &Value, leaves: &mut Vec<(String, Value)>) {
    match (tree, shape) {
        (Value::Object(map), Value::Object(shape)) => {
            for (key, value) in map {
                let path = if prefix.is_empty() {
                    key.clone()
                } else {
                    format!("{prefix}.{key}")
                };
                flatten(&path, value, shape.get(key).unwrap_or(&Value::Null), leaves);
            }
        }
        _ => leaves.push((prefix.to_owned(), tree.clone())),
    }
}

fn lookup<'a>(tree: &'a Value, key: &str) -> Option<&'a Value> {
    key.split('.').try_fold(tree, |place, part| place.get(part))
}

fn place<'a>(tree: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    key.split('.').try_fold(tree, |place, part| place.get_mut(part))
}

/// Replaces the values and keeps the names.
fn redact(value: &mut Value) {
    match value {
        Value::Object(map) => map.values_mut().for_each(redact),
        Value::Array(list) => list.iter_mut().for_each(redact),
        Value::Null => {}
        Value::String(_) | Value::Number(_) | Value::Bool(_) => *value = Value::String("***".to_owned()),
    }
}

/// Keys whose values are not shown.
const SECRET: [&str; 1] = ["otlp.headers"];
