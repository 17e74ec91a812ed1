//! Refusals of the YAML parser in words for users: place, and what is expected there.
//!
//! Used by `layers`. The parser's own words name Rust types, events of its parser and settings of its library. Does not: read
//! a file, or know a key.

use std::borrow::Cow;
use std::path::Path;

use serde_saphyr::{Error as YamlError, MessageFormatter, UserMessageFormatter};

use super::error::ConfigError;

/// Why the text of the file at `path` was refused.
pub(super) fn refusal(error: YamlError, path: &Path) -> ConfigError {
    let path = path.to_owned();
    match error.without_snippet() {
        YamlError::DuplicateMappingKey {
            key: Some(key),
            location,
        } => ConfigError::DuplicateKey {
            path,
            key: key.clone(),
            line: location.line(),
        },
        _ => ConfigError::Parse {
            path,
            problem: position_and_problem(&error.render_with_formatter(&PlainMessages)),
        },
    }
}

/// Parsers add a source excerpt over several lines; the first line has the position.
fn position_and_problem(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// Describes the expected value for users; the library names a Rust type or an event of its parser.
struct PlainMessages;

impl MessageFormatter for PlainMessages {
    fn format_message<'a>(&self, error: &'a YamlError) -> Cow<'a, str> {
        let expected = match error {
            YamlError::InvalidScalar { ty: "u16", .. } => "a whole number up to 65535",
            YamlError::InvalidScalar {
                ty: "u32" | "u64" | "usize",
                ..
            } => "a whole number",
            YamlError::InvalidScalar { ty: "boolean", .. } => "true or false",
            YamlError::Unexpected {
                expected: "mapping start",
                ..
            } => "a mapping of keys",
            YamlError::Unexpected {
                expected: "sequence start",
                ..
            } => "a list",
            YamlError::Unexpected {
                expected: "string scalar",
                ..
            } => "a single value",
            _ => return UserMessageFormatter.format_message(error),
        };
        Cow::Owned(format!("{expected} is expected here"))
    }
}
