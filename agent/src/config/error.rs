//! Why a configuration was refused, with a hint for each reason.
//!
//! Used by `layers` and by the commands, which end with exit code 64 (`EX_USAGE` of sysexits.h).

use std::borrow::Cow;
use std::path::PathBuf;

use crate::failure::{Advice, ExitReason};

/// Why the configuration was refused. Exit code 64.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a configuration: its syntax, or the type of a value.
    #[error("configuration {} is not valid: {problem}", path.display())]
    Parse {
        /// Which file.
        path: PathBuf,
        /// What, with line and column.
        problem: String,
    },
    /// A key that stands twice in one section. YAML 1.2.2 (section 3.2.1.1) requires that keys of a mapping differ; which of the
    /// two values was meant cannot be known.
    #[error("configuration {}: the key {key:?} stands a second time in its section, at line {line}", path.display())]
    DuplicateKey {
        /// Which file.
        path: PathBuf,
        /// The key, without its section.
        key: String,
        /// Line of the second of the two, from 1.
        line: u64,
    },
    /// A key that does not exist.
    #[error("unknown configuration key {key:?} in {from}")]
    UnknownKey {
        /// The key, dotted.
        key: String,
        /// File or flag.
        from: String,
        /// The nearest valid key, or where to find all.
        hint: String,
    },
    /// A value that is not allowed.
    #[error("configuration key {key}: {problem}")]
    Value {
        /// The key, dotted.
        key: String,
        /// What is wrong.
        problem: String,
    },
}

impl ConfigError {
    /// `key` has a value that is not allowed.
    pub(super) fn value(key: &str, problem: impl Into<String>) -> ConfigError {
        ConfigError::Value {
            key: key.to_owned(),
            problem: problem.into(),
        }
    }
}

impl Advice for ConfigError {
    fn hint(&self) -> Cow<'_, str> {
        let hint = match self {
            ConfigError::Read { .. } => "give the right path with --config, or leave it out: every key has a default",
            ConfigError::Parse { .. } | ConfigError::Value { .. } => {
                "`sandglass print-config` shows every key with a valid value"
            }
            ConfigError::DuplicateKey { .. } => "keep one of the two: a section names each of its keys once",
            ConfigError::UnknownKey { hint, .. } => hint,
        };
        hint.into()
    }

    fn exit(&self) -> ExitReason {
        ExitReason::Usage
    }
}
