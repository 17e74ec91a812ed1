//! How numbers are written in the JSON of the API.
//!
//! 64-bit wall-clock times are decimal strings, as in OTLP's JSON (<https://protobuf.dev/programming-guides/json/>), because
//! a JavaScript number holds 53 bits. Durations are numbers: they stay below that.

use serde::Serializer;

/// A 64-bit number as decimal text.
pub(super) fn as_text<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// A 64-bit number as decimal text, or `null`.
pub(super) fn as_optional_text<S: Serializer>(value: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}
