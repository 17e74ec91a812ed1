//! The machine, kernel and date of a measurement, without which figures cannot be compared.
//!
//! Used by `run` for the results file. Does not: include the machine's name.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// Today, as `2026-01-31`, UTC.
pub fn date() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    format!("{year}-{month:02}-{day:02}")
}

/// Release of the kernel.
pub fn kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Machine and version, as a list.
pub fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (processor, memory, load) = (read("/proc/cpuinfo"), read("/proc/meminfo"), read("/proc/loadavg"));
    let mut text = String::new();
    for (name, value) in [
        (
            "agent",
            format!("sandglass {}, release build", env!("CARGO_PKG_VERSION")),
        ),
        (
            "kernel",
            format!("{} {}", kernel(), rustix::system::uname().machine().to_string_lossy()),
        ),
        ("processor", format!("{cores} x {}", field(&processor, "model name"))),
        ("memory", field(&memory, "MemTotal").to_owned()),
        (
            "load of the machine at the end",
            load.split(" ").take(3).collect::<Vec<_>>().join(" "),
        ),
    ] {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "- {name}: {value}");
    }
    text
}

/// Value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let values = text.lines().filter_map(|line| line.split_once(':'));
    let found = values.into_iter().find(|(key, _)| key.trim() == name);
    found.map_or("unknown", |(_, value)| value.trim())
}

/// Year, month and day of a day since 1970 (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (19_782, (2024, 2, 29)),
            (20_454, (2026, 1, 1)),
        ] {
            assert_eq!(civil(days), date);
        }
    }

    #[test]
    fn fields_are_found() {
        assert_eq!(field("a : 1\nmodel name\t: X y\nmodel name: Z", "model name"), "X y");
        assert_eq!(field("", "model name"), "unknown");
    }
}
