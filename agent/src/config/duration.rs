//! A length of time in the configuration: `250ms`, `10s`, `5m`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A length of time, whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(u64);

/// Text that is not a [`Period`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a length of time: write a whole number with ms, s, m or h, e.g. 250ms or 10s")]
pub struct BadPeriod(String);

impl Period {
    /// A period of `ms` milliseconds.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Period {
        Period(ms)
    }

    /// A period of `seconds` seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Period {
        Period(seconds * 1_000)
    }

    /// The length in nanoseconds; saturates.
    #[must_use]
    pub fn as_nanos(self) -> u64 {
        self.0.saturating_mul(1_000_000)
    }
}

impl From<Period> for Duration {
    fn from(period: Period) -> Duration {
        Duration::from_millis(period.0)
    }
}

impl FromStr for Period {
    type Err = BadPeriod;

    fn from_str(text: &str) -> Result<Period, BadPeriod> {
        let bad = || BadPeriod(text.chars().take(40).collect());
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        if digits > MAX_DIGITS {
            return Err(bad());
        }
        let factor = match &text[digits..] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(bad()),
        };
        let number: u64 = text[..digits].parse().map_err(|_| bad())?;
        number.checked_mul(factor).map(Period).ok_or_else(bad)
    }
}

/// As the chart's schema has it: a regular expression cannot express where a number of milliseconds overflows.
const MAX_DIGITS: usize = 12;

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ms if ms != 0 && ms % 3_600_000 == 0 => write!(f, "{}h", ms / 3_600_000),
            ms if ms != 0 && ms % 60_000 == 0 => write!(f, "{}m", ms / 60_000),
            ms if ms % 1_000 == 0 => write!(f, "{}s", ms / 1_000),
            ms => write!(f, "{ms}ms"),
        }
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Period, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for text in ["0s", "250ms", "10s", "5m", "24h"] {
            assert_eq!(text.parse::<Period>().unwrap().to_string(), text);
        }
        for bad in [
            "",
            "10",
            "s",
            "1.5s",
            "-1s",
            "99999999999999999999s",
            "9999999999999999999h",
            "1000000000000ms",
            "1 s",
            "ß",
        ] {
            assert!(bad.parse::<Period>().is_err(), "{bad}");
        }
    }
}
