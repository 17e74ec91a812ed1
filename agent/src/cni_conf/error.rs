//! The reasons why a file configures no network, and whether they are the runtime's or the agent's own.
//!
//! Used by all of `cni_conf`; `doctor` shows it. Does not: know what the runtime does about it (`directory.rs`).

use super::json::{Reason, SyntaxError};

/// Why a file configures no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfError {
    /// It cannot be read.
    #[error("{0}")]
    Read(ReadError),
    /// It is not JSON.
    #[error("line {line}, column {column}: {reason}")]
    Json {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        reason: Reason,
    },
    /// It is JSON, but no object.
    #[error("not a JSON object")]
    NotAnObject,
    /// A number somewhere in it is larger than a `float64`.
    #[error("a number is too large for a 64-bit float")]
    NumberRange,
    /// A key has a value of the wrong type.
    #[error("{key:?} is not {expected}")]
    Type {
        /// Which key.
        key: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A key that a list must have is missing.
    #[error("{key:?} is missing{}", other_case(.like))]
    Missing {
        /// Which key.
        key: &'static str,
        /// A key that is there and differs in case only.
        like: Option<String>,
    },
    /// `plugins` is empty, and no directory has more of them.
    #[error("\"plugins\" is missing or empty")]
    NoPlugins,
    /// A plugin has no `type`.
    #[error("\"type\" of {place} is missing{}", overridden(.like))]
    NoType {
        /// Which plugin.
        place: String,
        /// A key that is there and differs in case only.
        like: Option<String>,
    },
    /// A list in a file that is named as one plugin's.
    #[error("a list (\"plugins\") in a file that is not called .conflist")]
    ListInConf,
    /// One plugin in a file that is named as a list.
    #[error("one plugin (\"type\") in a file that is called .conflist")]
    ConfInList,
    /// Some of `cniVersions` is no version.
    #[error("{0:?} in \"cniVersions\" or \"cniVersion\" is not a version")]
    BadVersion(String),
    /// The directory called like the network, which may hold more plugins, cannot be listed.
    #[error("cannot list plugins of the network in {directory}: {reason}")]
    PluginDirectory {
        /// The directory.
        directory: String,
        /// Why not.
        reason: String,
    },
    /// A file of that directory configures no plugin.
    #[error("{file}: {error}")]
    PluginFile {
        /// The file.
        file: String,
        /// Why not.
        error: Box<ConfError>,
    },
}

impl ConfError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            ConfError::Read(ReadError::TooLarge) => "a configuration is a few KiB: is this the right file?",
            ConfError::Read(ReadError::Denied(_)) => "run the agent as root, or check the file's owner and mode",
            ConfError::Read(_) | ConfError::PluginDirectory { .. } => "check what the name leads to",
            ConfError::Json { reason, .. } => match reason {
                Reason::Empty => "write a configuration into it, or remove the file",
                Reason::ByteOrderMark => "save the file without a byte order mark",
                Reason::Utf16 => "save the file as UTF-8, without a byte order mark",
                Reason::Comment => "remove the comments",
                reason if reason.shown_by_jq() => "`jq . FILE` shows the same place",
                _ => "mend the file at this place; `jq` does not mind it",
            },
            ConfError::NotAnObject => "a configuration begins with { and ends with }",
            ConfError::NumberRange | ConfError::Type { .. } | ConfError::BadVersion(_) => {
                "see the CNI specification, section 1"
            }
            ConfError::Missing { like: Some(_), .. } => "write the key in lower case: in a list case matters",
            ConfError::Missing { key: "name", .. } => "give the network a name, for example \"name\": \"pods\"",
            ConfError::Missing { .. } | ConfError::NoPlugins | ConfError::NoType { .. } => {
                "\"type\" names the plugin's binary, for example \"type\": \"bridge\""
            }
            ConfError::ListInConf => "rename the file to end in .conflist",
            ConfError::ConfInList => "put the plugin into \"plugins\": [ ... ], or rename the file to end in .conf",
            ConfError::PluginFile { error, .. } => error.hint(),
        }
    }

    /// Whether only the agent is stopped by it. What the runtime makes of the file is not known then.
    #[must_use]
    pub fn is_own_limit(&self) -> bool {
        match self {
            ConfError::Read(ReadError::Denied(_) | ReadError::TooLarge | ReadError::Special) => true,
            ConfError::PluginFile { error, .. } => error.is_own_limit(),
            _ => false,
        }
    }
}

/// Why a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The system refuses, and would refuse the runtime too.
    #[error("cannot read: {0}")]
    Io(String),
    /// The agent lacks the right to read it; a runtime that is root has it.
    #[error("the agent may not read it: {0}")]
    Denied(String),
    /// A pipe, a socket, a device: opening it may have effects or never end.
    #[error("not a regular file; the agent does not open it")]
    Special,
    /// A directory.
    #[error("not a regular file")]
    Directory,
    /// Larger than 1 MiB.
    #[error("larger than 1 MiB, which is the most that the agent reads")]
    TooLarge,
}

/// An error with line and column in place of the offset. A column counts bytes.
pub(super) fn located(bytes: &[u8], error: &SyntaxError) -> ConfError {
    let before = &bytes[..error.at.min(bytes.len())];
    let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    ConfError::Json {
        line: before.iter().filter(|byte| **byte == b'\n').count() + 1,
        column: before.len() - line_start + 1,
        reason: error.reason,
    }
}

fn other_case(like: &Option<String>) -> String {
    like.as_ref().map_or_else(String::new, |like| {
        format!("; {like:?} does not count, since case matters here")
    })
}

fn overridden(like: &Option<String>) -> String {
    like.as_ref().map_or_else(String::new, |like| {
        format!(" or empty; the last of it and {like:?} counts")
    })
}
