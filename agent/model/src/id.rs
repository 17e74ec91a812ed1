//! Identifiers: of traces, their roots and spans (stable hashes), of sandboxes, and of processes.
//!
//! Used everywhere. A replay of a recording, or a second export after a lost response, has the same ids: they are
//! hashes of what happened on the node, never random. The hash is XXH3-128 (<https://github.com/Cyan4973/xxHash>),
//! whose output is fixed.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// W3C trace id: 16 bytes, never all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(pub u128);

/// W3C span id: 8 bytes, never all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(pub u64);

/// The root span of a trace, which identifies the trace. Its [`TraceId`] alone does not: a runtime that passes its own
/// on to plugins (`TRACEPARENT`) gives the same id to all operations that it requests within one of its traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RootId {
    /// The trace's id.
    #[serde(rename = "trace_id")]
    pub trace: TraceId,
    /// The root's span id, the same while the trace is open and when it is closed.
    #[serde(rename = "root_span_id")]
    pub span: SpanId,
}

impl RootId {
    /// Every root that a trace of this id may have, for the range of an ordered map.
    #[must_use]
    pub fn all_of(trace: TraceId) -> RangeInclusive<RootId> {
        let [first, last] = [u64::MIN, u64::MAX].map(|span| RootId {
            trace,
            span: SpanId(span),
        });
        first..=last
    }
}

impl TraceId {
    /// The id made of `parts`, in order.
    #[must_use]
    pub fn of(parts: &[&[u8]]) -> TraceId {
        TraceId(joined(parts, xxh3_128).max(1))
    }
}

impl SpanId {
    /// The id made of `parts`, in order.
    #[must_use]
    pub fn of(parts: &[&[u8]]) -> SpanId {
        SpanId(joined(parts, xxh3_64).max(1))
    }
}

/// Joins with lengths, so that ("ab","c") and ("a","bc") differ, and hashes. Every span begins with this: what is joined
/// stands on the stack, which the parts outgrow only when they are a stranger's.
fn joined<H>(parts: &[&[u8]], hash: fn(&[u8]) -> H) -> H {
    let mut short = [0; 256];
    let length = parts.iter().map(|part| part.len() + 8).sum();
    match short.get_mut(..length) {
        Some(place) => {
            let mut rest = &mut place[..];
            for part in parts {
                for bytes in [&(part.len() as u64).to_le_bytes()[..], part] {
                    let (begin, behind) = rest.split_at_mut(bytes.len());
                    begin.copy_from_slice(bytes);
                    rest = behind;
                }
            }
            hash(place)
        }
        None => {
            let mut long = Vec::with_capacity(length);
            for part in parts {
                long.extend_from_slice(&(part.len() as u64).to_le_bytes());
                long.extend_from_slice(part);
            }
            hash(&long)
        }
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for TraceId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<TraceId, BadId> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(BadId { digits: 32 });
        }
        u128::from_str_radix(text, 16)
            .map(TraceId)
            .map_err(|_| BadId { digits: 32 })
    }
}

impl FromStr for SpanId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<SpanId, BadId> {
        if text.len() != 16 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(BadId { digits: 16 });
        }
        u64::from_str_radix(text, 16)
            .map(SpanId)
            .map_err(|_| BadId { digits: 16 })
    }
}

/// A trace or span id that is not hexadecimal of the right length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an id of {digits} hexadecimal digits")]
pub struct BadId {
    /// How many digits it should have.
    pub digits: usize,
}

macro_rules! serde_as_text {
    ($type:ty) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    };
}
serde_as_text!(TraceId);
serde_as_text!(SpanId);

/// The runtime's id of a pod sandbox, passed to plugins in `CNI_CONTAINERID` (CNI spec 1.1.0, section 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SandboxId(pub String);

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One process for as long as the node is up, pid reuse included.
///
/// The start is kept in hundredths of a second since boot, the only precision that both the kernel's records
/// (nanoseconds, `task_struct::start_boottime`) and `/proc/PID/stat` field 22 (clock ticks of 10 ms) can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessKey {
    /// Process id (thread group id) in the initial pid namespace.
    pub pid: u32,
    /// Start of the process in hundredths of a second since boot.
    pub start_ticks: u64,
}

impl ProcessKey {
    /// The key of a process that the kernel says started at `start_boottime_ns`.
    #[must_use]
    pub fn new(pid: u32, start_boottime_ns: u64) -> ProcessKey {
        ProcessKey {
            pid,
            start_ticks: start_boottime_ns / 10_000_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_stable_and_parts_do_not_run_together() {
        assert_eq!(
            TraceId::of(&[b"boot", b"sandbox"]).to_string(),
            "f5ecdf88fbc344baa255abb849d3475b"
        );
        assert_ne!(TraceId::of(&[b"ab", b"c"]), TraceId::of(&[b"a", b"bc"]));
        assert_ne!(SpanId::of(&[b"ab", b"c"]), SpanId::of(&[b"a", b"bc"]));
    }

    #[test]
    fn long_parts_are_joined_as_short_ones_are() {
        let long = vec![7; 300];
        let joined = [&300_u64.to_le_bytes()[..], &long, &1_u64.to_le_bytes(), b"x"].concat();
        assert_eq!(SpanId::of(&[&long, b"x"]), SpanId(xxh3_64(&joined)));
        let joined = [&30_u64.to_le_bytes()[..], &long[..30], &1_u64.to_le_bytes(), b"x"].concat();
        assert_eq!(SpanId::of(&[&long[..30], b"x"]), SpanId(xxh3_64(&joined)));
    }

    #[test]
    fn ids_survive_text_and_refuse_other_text() {
        let id = TraceId::of(&[b"x"]);
        assert_eq!(id.to_string().parse::<TraceId>(), Ok(id));
        assert!("+0000000000000000000000000000001".parse::<TraceId>().is_err());
        assert!("12".parse::<SpanId>().is_err());
    }
}
