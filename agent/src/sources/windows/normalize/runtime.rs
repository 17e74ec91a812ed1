//! Log lines of containerd and its shim in ETW, and the shim's own spans.
//!
//! Texts: containerd `internal/cri/instrument/instrumented_service.go`; hcsshim exporters in `internal/oc` and `internal/ot`,
//! `internal/hcsoci/network.go`, `cmd/containerd-shim-runhcs-v1`. Other lines yield nothing.
//!
//! Used by `normalize`. These lines alone join a sandbox id, its pod and its namespace: CNI and HNS know only the namespace,
//! HCS only the container. The texts are no interface of containerd, so a line that is not exactly as expected is ignored.
//! Does not: match lines by level or order.

use sandglass_etw::{EtwEvent, Value};
use sandglass_model::windows::{RuntimeReport, RuntimeSpan};
use sandglass_model::{Body, PodIdentity, SandboxId, Timestamp};

use super::text::{bounded, masked, object_id};

/// The event of a log line of containerd. logrus fields are fields of the ETW event (go-winio `pkg/etwlogrus`): `Message` is
/// the text, `error` the error of a failed call.
pub(super) fn containerd(event: &EtwEvent) -> Option<Body> {
    let message = event.text("Message")?;
    let error = || masked(event.text("error").unwrap_or_default());
    // Each call of the CRI has a line when it begins and one when it returns; the text behind the metadata is the difference.
    let line = if let Some(rest) = message.strip_prefix("RunPodSandbox for ") {
        let (identity, attempt, tail) = metadata(rest)?;
        // Only the line of the return names the sandbox: until then the pod's metadata is all that identifies it.
        if let Some(tail) = tail.trim_start().strip_prefix("returns sandbox id ") {
            RuntimeReport::RunReturned {
                identity,
                sandbox: SandboxId(quoted(tail)?),
            }
        } else if tail.trim_start().starts_with("failed") {
            RuntimeReport::RunFailed {
                identity,
                message: error(),
            }
        } else if tail.trim().is_empty() {
            RuntimeReport::RunBegan { identity, attempt }
        } else {
            return None;
        }
    } else if let Some(rest) = message.strip_prefix("CreateContainer within sandbox ") {
        // Only the line of the return has the container's id.
        let (_, container) = rest.split_once(" returns container id ")?;
        RuntimeReport::ContainerOf {
            // The first quoted text of the line is the sandbox, the one behind `container id` the container.
            sandbox: SandboxId(quoted(rest)?),
            container: quoted(container)?.to_lowercase(),
        }
    } else if let Some(rest) = message.strip_prefix("StopPodSandbox for ") {
        let sandbox = SandboxId(quoted(rest)?);
        if rest.ends_with("returns successfully") {
            RuntimeReport::StopReturned {
                sandbox,
                message: String::new(),
            }
        } else if rest.contains(" failed") {
            RuntimeReport::StopReturned {
                sandbox,
                message: error(),
            }
        } else {
            RuntimeReport::StopBegan { sandbox }
        }
    } else {
        return None;
    };
    Some(Body::RuntimeReported(Box::new(line)))
}

/// The event of a log line or span of the shim. `ShimLaunched` is an ETW event of its own
/// (`cmd/containerd-shim-runhcs-v1/main.go`), all others are log lines (`LogrusEntry`, go-winio `pkg/etwlogrus`).
pub(super) fn run_hcs(event: &EtwEvent) -> Option<Body> {
    let line = match event.name.as_deref()? {
        // Logged in the shim, so that the process of the header is the shim's.
        "ShimLaunched" => RuntimeReport::ShimLaunched {
            sandbox: SandboxId(shim_sandbox(event)?),
            pid: event.pid,
        },
        "LogrusEntry" => match event.text("Message")? {
            "Span" => RuntimeReport::Span(Box::new(span(event)?)),
            "created network namespace for container" => RuntimeReport::NamespaceOf {
                sandbox: SandboxId(bounded(event.text("cid")?)),
                namespace: object_id(event.text("netID")?),
            },
            "added network endpoint to namespace" => RuntimeReport::EndpointOf {
                namespace: object_id(event.text("netID")?),
                endpoint: object_id(event.text("endpointID")?),
            },
            _ => return None,
        },
        _ => return None,
    };
    Some(Body::RuntimeReported(Box::new(line)))
}

/// A span of the shim (hcsshim `internal/oc/exporter.go` and `internal/ot`): it is logged when it ends, so that its start is a
/// field. A span that cannot have ended before it began ends where it began.
fn span(event: &EtwEvent) -> Option<RuntimeSpan> {
    let start = time(event, "startTime")?;
    Some(RuntimeSpan {
        name: bounded(event.text("name")?),
        trace: bounded(event.text("traceID").unwrap_or_default()),
        span: bounded(event.text("spanID").unwrap_or_default()),
        container: bounded(event.text("cid").unwrap_or_default()),
        start,
        end: time(event, "endTime").unwrap_or(Timestamp(event.at_ns)).max(start),
        message: masked(event.text("error").unwrap_or_default()),
    })
}

/// A time field: a FILETIME (go-winio `pkg/etw`), otherwise a text.
fn time(event: &EtwEvent, field: &str) -> Option<Timestamp> {
    let value = event.get(field)?;
    let unix_ns = match value.unix_ns() {
        Some(unix_ns) => Some(unix_ns),
        None => value.text().and_then(rfc3339_ns),
    };
    unix_ns.map(Timestamp)
}

/// Nanoseconds since 1970 of a time as in RFC 3339: `2026-11-21T10:11:12.123456789Z`, fractions of any length, offsets such
/// as `+02:00`.
///
/// Written out here because nothing else of the agent parses dates. The separators are not checked: a text of another form
/// fails at one of the numbers.
fn rfc3339_ns(text: &str) -> Option<u64> {
    let part = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let (year, month, day) = (part(0..4)?, part(5..7)?, part(8..10)?);
    let (hour, minute, second) = (part(11..13)?, part(14..16)?, part(17..19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || !text.is_char_boundary(19) {
        return None;
    }
    let rest = text.get(19..)?;
    let digits: String = rest
        .strip_prefix('.')
        .unwrap_or_default()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    // Behind the fraction with its point, where there is one.
    let zone = &rest[if digits.is_empty() { 0 } else { digits.len() + 1 }..];
    let offset = match zone.as_bytes() {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), ..] => {
            let (hours, minutes) = (
                zone.get(1..3)?.parse::<i64>().ok()?,
                zone.get(4..6)?.parse::<i64>().ok()?,
            );
            (hours * 3_600 + minutes * 60) * if *sign == b'-' { -1 } else { 1 }
        }
        _ => return None,
    };
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset;
    // Nine digits: a shorter fraction is padded on the right, a longer one cut.
    let fraction: u64 = format!("{digits:0<9}").get(..9)?.parse().ok()?;
    u64::try_from(seconds)
        .ok()?
        .checked_mul(1_000_000_000)?
        .checked_add(fraction)
}

/// Days from 1970-01-01 to a Gregorian date (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March here, so that the leap day is the last day.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The sandbox id in a shim's arguments: `... -id ID ...`, with one dash or two. Go's package flag accepts both.
fn shim_sandbox(event: &EtwEvent) -> Option<String> {
    // An array of texts where the schema says so, otherwise the text that Go prints of a list.
    let texts: Vec<&str> = match event.get("Args")? {
        Value::List(values) => values.iter().filter_map(Value::text).collect(),
        value => value.text()?.trim_matches(['[', ']']).split_whitespace().collect(),
    };
    let at = texts.iter().position(|text| matches!(*text, "-id" | "--id"))?;
    texts.get(at + 1).map(|id| bounded(id))
}

/// The pod's metadata as Go prints it, and the rest of the text: `&PodSandboxMetadata{Name:a,Uid:b,Namespace:c,Attempt:0,}`
/// with gogo/protobuf (containerd 1.x), `name:"a"  uid:"b"  namespace:"c"` with google.golang.org/protobuf (2.x).
fn metadata(text: &str) -> Option<(PodIdentity, u32, &str)> {
    let mut identity = PodIdentity::default();
    let mut attempt = 0;
    let rest = match text.strip_prefix("&PodSandboxMetadata{") {
        Some(inside) => {
            let (inside, rest) = inside.split_once('}')?;
            for pair in inside.split(',') {
                let Some((key, value)) = pair.split_once(':') else {
                    continue;
                };
                set(&mut identity, &mut attempt, &key.to_ascii_lowercase(), value);
            }
            rest
        }
        None => {
            let mut rest = text;
            // One or two spaces between the fields: google.golang.org/protobuf varies them on purpose, so that nobody relies on
            // its text (its `internal/detrand`).
            loop {
                rest = rest.trim_start();
                let Some((key, after)) = rest.split_once(':').filter(|(key, _)| is_key(key)) else {
                    break rest;
                };
                let (value, after) = match after.strip_prefix('"') {
                    Some(after) => after.split_once('"')?,
                    None => after.split_at(after.find(' ').unwrap_or(after.len())),
                };
                set(&mut identity, &mut attempt, key, value);
                rest = after;
            }
        }
    };
    (!identity.is_empty()).then_some((identity, attempt, rest))
}

/// The fields of `PodSandboxMetadata` (CRI v1). Anything else ends the metadata: the text goes on behind it.
fn is_key(key: &str) -> bool {
    matches!(key, "name" | "uid" | "namespace" | "attempt")
}

/// Sets one field of the metadata; keys of later versions of the CRI are ignored. A number that cannot be read is attempt 0, as
/// protobuf leaves out a zero.
fn set(identity: &mut PodIdentity, attempt: &mut u32, key: &str, value: &str) {
    match key {
        "name" => identity.name = bounded(value),
        "uid" => identity.uid = bounded(value),
        "namespace" => identity.namespace = bounded(value),
        "attempt" => *attempt = value.parse().unwrap_or(0),
        _ => {}
    }
}

/// The first text in double quotes, `None` when it is empty. Ids hold no quotes, so that escapes need no care.
fn quoted(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('"')?;
    let (inside, _) = rest.split_once('"')?;
    (!inside.is_empty()).then(|| bounded(inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of containerd 1.x and 2.x; an unfinished one yields nothing rather than half of an identity.
    #[test]
    fn metadata_of_both_generators() {
        for text in [
            "&PodSandboxMetadata{Name:web-0,Uid:1234,Namespace:shop,Attempt:2,} returns sandbox id \"abc\"",
            "name:\"web-0\"  uid:\"1234\" namespace:\"shop\" attempt:2 returns sandbox id \"abc\"",
        ] {
            let (identity, attempt, rest) = metadata(text).unwrap();
            assert_eq!(
                (
                    identity.name.as_str(),
                    identity.uid.as_str(),
                    identity.namespace.as_str()
                ),
                ("web-0", "1234", "shop")
            );
            assert_eq!((attempt, quoted(rest).as_deref()), (2, Some("abc")), "{text}");
        }
        for text in [
            "",
            "&PodSandboxMetadata{",
            "&PodSandboxMetadata{Name:,}",
            "name:\"open",
            "x:y",
        ] {
            assert!(metadata(text).is_none(), "{text}");
        }
    }

    /// time.RFC3339Nano leaves out the zeros at the end of a fraction, and the fraction itself where it is zero.
    #[test]
    fn times_as_go_prints_them() {
        assert_eq!(rfc3339_ns("1970-01-01T00:00:01Z"), Some(1_000_000_000));
        assert_eq!(
            rfc3339_ns("2024-02-29T12:00:00.5+02:00"),
            Some(1_709_200_800_500_000_000)
        );
        assert_eq!(
            rfc3339_ns("2026-11-21T10:11:12.123456789Z"),
            Some(1_795_255_872_123_456_789)
        );
        for text in [
            "",
            "2026-13-01T00:00:00Z",
            "2026-11-21T10:11:12",
            "2026-11-21T10:11:12.1é",
            "not a time at all at all",
        ] {
            assert_eq!(rfc3339_ns(text), None, "{text}");
        }
    }
}
