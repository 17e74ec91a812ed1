//! Layers of configuration (default, file, flag), merged key by key, each key remembering its origin.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::Config;

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

/// Why the configuration was refused. Exit code 64.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration {}: {source}\nhint: give the right path with --config, or leave it out: every key has a default", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is no configuration: syntax or type of a value.
    #[error("configuration {} is not valid: {problem}\nhint: `sandglass print-config` shows every key with a valid value", path.display())]
    Parse {
        /// Which file.
        path: PathBuf,
        /// What, with line and column.
        problem: String,
    },
    /// A key that does not exist.
    #[error("unknown configuration key {key:?} in {from}\nhint: {hint}")]
    UnknownKey {
        /// The key, dotted.
        key: String,
        /// File or flag.
        from: String,
        /// The nearest valid key, or where to find all.
        hint: String,
    },
    /// A value that is not allowed.
    #[error("configuration key {key}: {problem}\nhint: `sandglass print-config` shows every key with a valid value")]
    Value {
        /// The key, dotted.
        key: String,
        /// What is wrong.
        problem: String,
    },
}

/// The merged configuration before it is typed.
#[derive(Clone, Debug)]
pub struct Layers {
    merged: Value,
    origins: BTreeMap<String, Origin>,
}

impl Default for Layers {
    fn default() -> Layers {
        // A Config of plain data always serializes; an empty object would only mean "no keys are known".
        let merged = serde_json::to_value(Config::default()).unwrap_or(Value::Object(Map::new()));
        Layers {
            merged,
            origins: BTreeMap::new(),
        }
    }
}

impl Layers {
    /// Lays a file over what is there.
    pub fn file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let read = |source| ConfigError::Read {
            path: path.to_owned(),
            source,
        };
        let size = std::fs::metadata(path).map_err(read)?.len();
        if size > MAX_FILE_BYTES {
            return Err(read(std::io::Error::other(format!(
                "{size} bytes are more than a configuration has"
            ))));
        }
        let text = std::fs::read_to_string(path).map_err(read)?;
        self.text(&text, path)
    }

    fn text(&mut self, text: &str, path: &Path) -> Result<(), ConfigError> {
        if text
            .lines()
            .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
        {
            return Ok(());
        }
        let parse = |problem: String| ConfigError::Parse {
            path: path.to_owned(),
            problem: first_line(&problem),
        };
        let tree: Value = serde_saphyr::from_str(text).map_err(|error| parse(error.to_string()))?;
        if !tree.is_object() {
            return Err(parse("it must be a mapping of keys".to_owned()));
        }
        let mut leaves = Vec::new();
        flatten("", &tree, &self.merged, &mut leaves);
        for (key, _) in &leaves {
            self.known(key, &path.display().to_string())?;
        }
        // Typed once more from the text itself: its errors know line and column.
        serde_saphyr::from_str::<Config>(text).map_err(|error| parse(error.to_string()))?;
        for (key, value) in leaves {
            self.set(&key, value, Origin::File(path.to_owned()));
        }
        Ok(())
    }

    /// Lays one flag over what is there; `value` is text, read as YAML where the key wants no text.
    pub fn flag(&mut self, flag: &str, key: &str, value: &str) -> Result<(), ConfigError> {
        self.known(key, &format!("flag {flag}"))?;
        let old = lookup(&self.merged, key);
        let value = match old {
            Some(Value::String(_)) | None => Value::String(value.to_owned()),
            Some(Value::Null) => Value::String(value.to_owned()),
            Some(_) => serde_saphyr::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned())),
        };
        self.set(key, value, Origin::Flag(flag.to_owned()));
        Ok(())
    }

    /// The typed, validated configuration.
    pub fn resolve(&self) -> Result<Config, ConfigError> {
        let config: Config = serde_json::from_value(self.merged.clone()).map_err(|error| {
            // The file was typed already: only a flag can be at fault.
            let key = self
                .origins
                .iter()
                .rev()
                .find(|(_, origin)| matches!(origin, Origin::Flag(_)));
            ConfigError::Value {
                key: key.map_or_else(|| "?".to_owned(), |(key, origin)| format!("{key} ({origin})")),
                problem: error.to_string(),
            }
        })?;
        config.validate()?;
        Ok(config)
    }

    /// Every key with its value as JSON and its origin, in order.
    #[must_use]
    pub fn keys(&self) -> Vec<(String, String, Origin)> {
        let mut leaves = Vec::new();
        flatten("", &self.merged, &self.merged, &mut leaves);
        leaves
            .into_iter()
            .map(|(key, value)| {
                let origin = self.origins.get(&key).cloned().unwrap_or_default();
                (key, value.to_string(), origin)
            })
            .collect()
    }

    fn set(&mut self, key: &str, value: Value, origin: Origin) {
        let mut place = &mut self.merged;
        for part in key.split('.') {
            let Some(next) = place.get_mut(part) else { return };
            place = next;
        }
        *place = value;
        self.origins.insert(key.to_owned(), origin);
    }

    fn known(&self, key: &str, from: &str) -> Result<(), ConfigError> {
        if lookup(&self.merged, key).is_some() {
            return Ok(());
        }
        let mut all = Vec::new();
        flatten("", &self.merged, &self.merged, &mut all);
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

/// Parsers add a source excerpt over several lines; the first line has the position.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
