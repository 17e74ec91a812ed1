//! How long tasks of this node waited for a processor or for a disk: the kernel's pressure figures (PSI).
//!
//! Used where a duration is held against another clock: what lies between the two clocks can be work that waited. Such a
//! difference is then not judged, by name. Where the kernel has no such figures nothing waited, so everything is judged.

use std::num::NonZero;
use std::thread::available_parallelism;

/// The kernel's totals since boot, as they stand.
#[derive(Clone, Copy, Debug)]
pub struct Pressure {
    processors_us: u64,
    disks_us: u64,
}

impl Pressure {
    /// Reads them.
    #[must_use]
    pub fn now() -> Pressure {
        Pressure {
            processors_us: some_us("cpu"),
            disks_us: some_us("io"),
        }
    }

    /// The longest that any one task can have waited since then, nanoseconds.
    #[must_use]
    pub fn ns_since(&self) -> u64 {
        let now = Pressure::now();
        longest_ns(now.processors_us + now.disks_us, self.processors_us + self.disks_us)
    }

    /// The same for disks alone, nanoseconds.
    #[must_use]
    pub fn disks_ns_since(&self) -> u64 {
        longest_ns(Pressure::now().disks_us, self.disks_us)
    }
}

/// The kernel's total is the mean over processors, weighted by how busy each was (`kernel/sched/psi.c`, `collect_percpu_times`): it is
/// multiplied by their number.
fn longest_ns(now_us: u64, before_us: u64) -> u64 {
    let processors = available_parallelism().map_or(1, NonZero::get) as u64;
    now_us.saturating_sub(before_us) * 1000 * processors
}

/// The kernel's own total of `some` for a resource (`cpu`, `io`, `memory`) since boot, microseconds; 0 where it has none.
#[must_use]
pub fn some_us(resource: &str) -> u64 {
    std::fs::read_to_string(format!("/proc/pressure/{resource}")).map_or(0, |text| parse(&text))
}

/// The total of the line `some`, microseconds (`Documentation/accounting/psi.rst`); 0 where there is none.
fn parse(text: &str) -> u64 {
    let some = text.lines().find(|line| line.starts_with("some "));
    let total = some.and_then(|line| line.rsplit_once("total=")?.1.trim().parse().ok());
    total.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_some_is_read() {
        let text =
            "some avg10=0.00 avg60=0.12 avg300=1.00 total=6026528\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(parse(text), 6_026_528);
        assert_eq!(parse(""), 0);
        assert_eq!(parse("some avg10=0.00 total=x"), 0);
    }
}
