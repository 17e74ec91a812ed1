//! The sampling fields of W3C Trace Context and of OpenTelemetry's entry in its `tracestate`: parsed, rendered, compared.
//!
//! Used by the correlator, which reads what a caller passed on, and by the OTLP sink, which decides and passes on. Sources:
//! Trace Context Level 2, section 3.2.2.3 "Random Trace ID Flag" and section 4.1 "Randomness of trace-id"
//! (<https://www.w3.org/TR/trace-context-2/>); OpenTelemetry specification, trace/tracestate-handling.md (`th`, `rv`) and
//! trace/tracestate-probability-sampling.md (decision: keep if randomness >= threshold).
//! Does not: decide which traces are kept, or carry other vendors' entries.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::id::TraceId;

/// Flag of Trace Context: the caller records the trace.
pub const SAMPLED: u8 = 1;
/// Flag of Trace Context Level 2: the last 56 bits of the trace id are random.
pub const RANDOM: u8 = 2;
/// 2^56: the threshold that rejects everything, and the number of random values.
pub const ALL: u64 = 1 << 56;

/// What the caller of an operation decided about its own trace (`TRACEPARENT`, `TRACESTATE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallerSampling {
    /// The flags of `traceparent`.
    pub flags: u8,
    /// `ot=th`: the caller rejected traces with less randomness than this.
    pub threshold: Option<u64>,
    /// `ot=rv`: the randomness, where it is not that of the trace id.
    pub randomness: Option<u64>,
}

impl CallerSampling {
    /// From the flags of `traceparent` and the text of `tracestate`, empty without one. What is not valid is left out.
    #[must_use]
    pub fn parse(flags: u8, tracestate: &str) -> CallerSampling {
        let mut sampling = CallerSampling {
            flags,
            ..CallerSampling::default()
        };
        let mut entries = tracestate.split(',').map(str::trim);
        let Some(own) = entries.find_map(|entry| entry.strip_prefix("ot=")) else {
            return sampling;
        };
        for (key, value) in own.split(';').filter_map(|field| field.split_once(':')) {
            match key {
                "th" => sampling.threshold = digits(value),
                "rv" if value.len() == DIGITS => sampling.randomness = digits(value),
                _ => {}
            }
        }
        sampling
    }

    /// The caller records its trace.
    #[must_use]
    pub fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }
}

/// The 56 bits of a trace id that are random: the least significant ones.
#[must_use]
pub fn randomness(trace: TraceId) -> u64 {
    // The remainder is below 2^56.
    (trace.0 % u128::from(ALL)) as u64
}

/// The threshold that keeps `kept` of a thousand traces, at most all: rounded to 24 bits, which is off by less than one in 10,000 of
/// the share that is kept, and short in each span's `tracestate`.
#[must_use]
pub fn threshold(kept: u32) -> u64 {
    let rejected = u64::from(1_000 - kept.min(1_000));
    let exact = u128::from(ALL) * u128::from(rejected) / 1_000;
    // At most 2^56.
    ((exact + (1 << 31)) >> 32 << 32) as u64
}

/// The `tracestate` of spans that were kept with this threshold, and with this explicit randomness. Empty without both.
#[must_use]
pub fn tracestate(threshold: Option<u64>, randomness: Option<u64>) -> String {
    let mut text = String::new();
    if let Some(threshold) = threshold.filter(|threshold| *threshold < ALL) {
        let digits = format!("{threshold:014x}");
        let digits = digits.trim_end_matches('0');
        let _ = write!(text, "th:{}", if digits.is_empty() { "0" } else { digits });
    }
    if let Some(randomness) = randomness {
        let separator = if text.is_empty() { "" } else { ";" };
        let _ = write!(text, "{separator}rv:{randomness:014x}");
    }
    match text.is_empty() {
        true => text,
        false => format!("ot={text}"),
    }
}

/// A number of at most 14 lower-case hexadecimal digits, as if zeros followed to make 14.
fn digits(text: &str) -> Option<u64> {
    let valid = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.is_empty() || text.len() > DIGITS || !text.bytes().all(valid) {
        return None;
    }
    let number = u64::from_str_radix(text, 16).ok()?;
    Some(number << (4 * (DIGITS - text.len())))
}

/// Hexadecimal digits of 56 bits.
const DIGITS: usize = 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_specification() {
        let parsed = |state| CallerSampling::parse(SAMPLED, state);
        assert_eq!(parsed("ot=th:0").threshold, Some(0));
        assert_eq!(parsed("ot=th:c").threshold, Some(0xc0_0000_0000_0000));
        assert_eq!(parsed("ot=th:fd70a4").threshold, Some(0xfd_70a4_0000_0000));
        assert_eq!(parsed("ot=rv:6e6d1a75832a2f").randomness, Some(0x6e_6d1a_7583_2a2f));
        assert_eq!(
            parsed("ot=p:8;th:8;rv:00000000000001").threshold,
            Some(0x80_0000_0000_0000)
        );
        assert_eq!(tracestate(Some(threshold(10)), None), "ot=th:fd70a4");
        assert_eq!(tracestate(Some(threshold(250)), None), "ot=th:c");
        assert_eq!(tracestate(Some(threshold(1_000)), None), "ot=th:0");
        assert_eq!(tracestate(Some(0), Some(1)), "ot=th:0;rv:00000000000001");
        assert_eq!(tracestate(None, None), "");
    }

    #[test]
    fn what_is_not_valid_is_left_out() {
        for state in [
            "",
            "ot=",
            "ot=th",
            "ot=th:",
            "ot=th:C",
            "ot=th:0x1",
            "ot=th:000000000000001",
            "ot=rv:1",
            "vendor=th:c",
            "ot=th:+1",
            "botot=th:c",
        ] {
            assert_eq!(CallerSampling::parse(0, state), CallerSampling::default(), "{state}");
        }
        let among = CallerSampling::parse(SAMPLED | RANDOM, "vendor=1, ot=th:c , x@y=z");
        assert!(among.is_sampled() && among.threshold.is_some());
    }

    #[test]
    fn masking_leaves_the_entry_of_opentelemetry_alone() {
        let state = "vendor=a,ot=th:fd70a4;rv:6e6d1a75832a2f";
        assert_eq!(crate::masking::value_of("TRACESTATE", state), state);
    }

    #[test]
    fn the_share_that_is_kept_is_the_one_that_was_configured() {
        for kept in [0, 1, 10, 500, 999, 1_000] {
            let threshold = threshold(kept);
            let number = 200_000;
            let above = (0..number).filter(|number: &u32| {
                let id = TraceId::of(&[b"trace", &number.to_le_bytes()]);
                randomness(id) >= threshold
            });
            let (found, wanted) = (above.count() as u32, number / 1_000 * kept);
            // Five standard deviations of the binomial distribution at most, and exact at both ends.
            let bound = (f64::from(wanted) * (1.0 - f64::from(kept) / 1_000.0)).sqrt() * 5.0;
            assert!(
                f64::from(found.abs_diff(wanted)) <= bound,
                "{kept}: {found} of {wanted}"
            );
        }
    }
}
