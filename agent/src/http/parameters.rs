//! From the query string of a URL to a [`Query`]: total, and strict, so that a misspelt filter is not silently none.
//!
//! Does not: accept a key twice, or guess.

use sandglass_model::trace::JourneyReason;
use sandglass_model::waits::TimeReason;
use sandglass_model::{CniCommand, registry};

use crate::view::{KindFilter, Query, Sort, StateFilter, TraceOutcome};

/// Why a query string is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadQuery {
    /// A `%` without two hexadecimal digits, or bytes that are no UTF-8.
    #[error("{0:?} is not percent-encoded UTF-8")]
    Encoding(String),
    /// Not a parameter of this address.
    #[error("unknown parameter {0:?}")]
    Key(String),
    /// Repeated.
    #[error("parameter {0:?} is given twice")]
    Twice(String),
    /// Not a value of this parameter.
    #[error("{value:?} is no value of {key}: expected {expected}")]
    Value {
        /// The parameter.
        key: &'static str,
        /// The value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
}

/// The parameters of `/api/v1/sandboxes`.
pub fn list(text: &str) -> Result<Query, BadQuery> {
    let mut query = Query::default();
    for (key, value) in pairs(text)? {
        match key.as_str() {
            "sort" => query.sort = one_of("sort", &value, "newest or slowest", &SORTS)?,
            "state" => query.state = one_of("state", &value, "all, running, waiting or ended", &STATES)?,
            "result" => query.result = one_of("result", &value, "all, ok or failed", &RESULTS)?,
            "kind" => query.kind = kind(&value)?,
            "q" => query.text = bounded("q", value)?,
            "plugin" => query.plugin = bounded("plugin", value)?,
            "reason" => reason(&mut query, &value)?,
            "cause" => query.cause = cause(&value)?,
            "limit" => query.limit = number("limit", &value, 1..=MAX_LIMIT, "a number from 1 to 1000")?,
            "offset" => query.offset = number("offset", &value, 0..=1_000_000, "a number from 0 to 1000000")?,
            _ => return Err(BadQuery::Key(key)),
        }
    }
    Ok(query)
}

/// For addresses without parameters.
pub fn none(text: &str) -> Result<(), BadQuery> {
    match pairs(text)?.into_iter().next() {
        Some((key, _)) => Err(BadQuery::Key(key)),
        None => Ok(()),
    }
}

fn kind(value: &str) -> Result<KindFilter, BadQuery> {
    if let Some(verb) = CniCommand::ALL
        .into_iter()
        .find(|verb| verb.as_str().eq_ignore_ascii_case(value))
    {
        return Ok(KindFilter::Verb(verb));
    }
    one_of("kind", value, "all, sandbox, operation, journey, or a CNI verb", &KINDS)
}

/// Of a journey, or of what a set-up waited for: no name is both.
fn reason(query: &mut Query, value: &str) -> Result<(), BadQuery> {
    let mut waits = TimeReason::ALL.iter().filter(|reason| reason.is_wait());
    query.wait = waits.find(|reason| reason.as_str() == value).copied();
    if query.wait.is_none() {
        let expected = "failed, dropped, retried or slow, or a wait, as file_lock or run_queue";
        query.reason = Some(one_of("reason", value, expected, &REASONS)?);
    }
    Ok(())
}

fn cause(value: &str) -> Result<String, BadQuery> {
    match registry::CAUSES.iter().find(|known| **known == value) {
        Some(&known) => Ok(known.to_owned()),
        None => Err(bad("cause", value, "a cause, as conntrack_race or dns_server_silent")),
    }
}

fn one_of<T: Copy>(
    key: &'static str,
    value: &str,
    expected: &'static str,
    values: &[(&str, T)],
) -> Result<T, BadQuery> {
    values
        .iter()
        .find(|(name, _)| *name == value)
        .map(|(_, meant)| *meant)
        .ok_or_else(|| bad(key, value, expected))
}

fn number(
    key: &'static str,
    value: &str,
    range: std::ops::RangeInclusive<usize>,
    expected: &'static str,
) -> Result<usize, BadQuery> {
    value
        .parse()
        .ok()
        .filter(|number| range.contains(number))
        .ok_or_else(|| bad(key, value, expected))
}

fn bounded(key: &'static str, value: String) -> Result<String, BadQuery> {
    if value.len() > MAX_TEXT {
        return Err(bad(key, &value, "at most 256 bytes"));
    }
    Ok(value)
}

fn bad(key: &'static str, value: &str, expected: &'static str) -> BadQuery {
    BadQuery::Value {
        key,
        value: value.chars().take(64).collect(),
        expected,
    }
}

fn pairs(text: &str) -> Result<Vec<(String, String)>, BadQuery> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for part in text.split('&').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let key = decode(key)?;
        if pairs.iter().any(|(known, _)| *known == key) {
            return Err(BadQuery::Twice(key));
        }
        pairs.push((key, decode(value)?));
    }
    Ok(pairs)
}

fn decode(text: &str) -> Result<String, BadQuery> {
    let refuse = || BadQuery::Encoding(text.chars().take(64).collect());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
                match (digit(), digit()) {
                    (Some(high), Some(low)) => u8::try_from(high * 16 + low).map_err(|_| refuse())?,
                    _ => return Err(refuse()),
                }
            }
            other => other,
        });
    }
    String::from_utf8(bytes).map_err(|_| refuse())
}

const SORTS: [(&str, Sort); 2] = [("newest", Sort::Newest), ("slowest", Sort::Slowest)];
const STATES: [(&str, StateFilter); 4] = [
    ("all", StateFilter::All),
    ("running", StateFilter::Running),
    ("waiting", StateFilter::Waiting),
    ("ended", StateFilter::Ended),
];
const RESULTS: [(&str, Option<TraceOutcome>); 3] = [
    ("all", None),
    ("ok", Some(TraceOutcome::Ok)),
    ("failed", Some(TraceOutcome::Failed)),
];
const KINDS: [(&str, KindFilter); 4] = [
    ("all", KindFilter::All),
    ("sandbox", KindFilter::Sandbox),
    ("operation", KindFilter::Operation),
    ("journey", KindFilter::Journey),
];
const REASONS: [(&str, JourneyReason); 4] = [
    ("failed", JourneyReason::Failed),
    ("dropped", JourneyReason::Dropped),
    ("retried", JourneyReason::Retried),
    ("slow", JourneyReason::Slow),
];
const MAX_LIMIT: usize = 1_000;
const MAX_TEXT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_queries() {
        let query = list(
            "sort=slowest&state=ended&result=failed&kind=del&q=a%20b+c%2Fd&plugin=bridge&limit=7&offset=3\
              &reason=retried&cause=conntrack_race",
        );
        assert_eq!(
            query,
            Ok(Query {
                sort: Sort::Slowest,
                state: StateFilter::Ended,
                result: Some(TraceOutcome::Failed),
                kind: KindFilter::Verb(CniCommand::Del),
                text: "a b c/d".into(),
                plugin: "bridge".into(),
                reason: Some(JourneyReason::Retried),
                wait: None,
                cause: "conntrack_race".into(),
                limit: 7,
                offset: 3,
            })
        );
        assert_eq!(list(""), Ok(Query::default()));
        let waited = list("reason=file_lock").map(|query| (query.reason, query.wait));
        assert_eq!(waited, Ok((None, Some(TimeReason::FileLock))));
        assert!(list("reason=processor").is_err(), "no wait");
    }

    #[test]
    fn bad_queries_say_what_is_wrong() {
        for (text, message) in [
            (
                "sort=oldest",
                "\"oldest\" is no value of sort: expected newest or slowest",
            ),
            (
                "limit=0",
                "\"0\" is no value of limit: expected a number from 1 to 1000",
            ),
            (
                "limit=-1",
                "\"-1\" is no value of limit: expected a number from 1 to 1000",
            ),
            (
                "reason=bad",
                "\"bad\" is no value of reason: expected failed, dropped, retried or slow, or a wait, as file_lock or run_queue",
            ),
            (
                "cause=bad",
                "\"bad\" is no value of cause: expected a cause, as conntrack_race or dns_server_silent",
            ),
            ("sotr=newest", "unknown parameter \"sotr\""),
            ("q=a&q=b", "parameter \"q\" is given twice"),
            ("q=%zz", "\"%zz\" is not percent-encoded UTF-8"),
            ("q=%", "\"%\" is not percent-encoded UTF-8"),
            ("q=%ff", "\"%ff\" is not percent-encoded UTF-8"),
        ] {
            assert_eq!(list(text).map_err(|error| error.to_string()), Err(message.to_owned()));
        }
        assert!(list(&format!("q={}", "x".repeat(300))).is_err());
        assert!(none("x=1").is_err() && none("").is_ok());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_query_or_an_error(text in ".{0,200}") {
            let _ = list(&text);
        }
    }
}
