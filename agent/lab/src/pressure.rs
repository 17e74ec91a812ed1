//! How long tasks waited for a processor or for a disk: the kernel's pressure figures (PSI).
//!
//! Used where a duration is held against another clock: what lies between the two clocks can be work that waited. Such a
//! difference is then not judged, by name. Where the kernel has no such figures nothing waited, so everything is judged.
//! The tests that observe the node have a cgroup of their own (`scripts/lanes.py`), whose directory [`OWN`] names: there only what they and
//! the demo's nodes waited is counted. That something beside them waited says nothing of what is timed.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

/// The variable with the directory of the tests' own cgroup, of version 2 and directly below the top. Without it all tasks are counted.
pub const OWN: &str = "SANDGLASS_TESTS_CGROUP";
/// How the names of the demo's nodes' cgroups begin, which lie beside it.
pub const NODES: &str = "sandglass-demo-";

/// The kernel's totals, as they stand.
#[derive(Clone, Debug)]
pub struct Pressure {
    groups: Vec<Group>,
}

/// Totals of one cgroup, or of everything.
#[derive(Clone, Debug)]
struct Group {
    /// `None` is everything.
    directory: Option<PathBuf>,
    processors_us: u64,
    disks_us: u64,
}

impl Pressure {
    /// Reads them.
    #[must_use]
    pub fn now() -> Pressure {
        let own = std::env::var_os(OWN).map(PathBuf::from);
        Pressure {
            groups: own.map_or_else(|| vec![Group::read(None)], |own| with_nodes(&own)),
        }
    }

    /// The longest that any one task can have waited since then, nanoseconds.
    #[must_use]
    pub fn ns_since(&self) -> u64 {
        self.longest_ns(|group| group.processors_us + group.disks_us)
    }

    /// The same for disks alone, nanoseconds.
    #[must_use]
    pub fn disks_ns_since(&self) -> u64 {
        self.longest_ns(|group| group.disks_us)
    }

    fn longest_ns(&self, total_us: impl Fn(&Group) -> u64) -> u64 {
        // The kernel's total is the mean over processors, weighted by how busy each was (`kernel/sched/psi.c`, `collect_percpu_times`): it
        // is multiplied by their number.
        let processors = available_parallelism().map_or(1, NonZero::get) as u64;
        longest_us(&self.groups, &Pressure::now().groups, total_us) * 1000 * processors
    }
}

/// What of a total came since then, microseconds. Who waits in one group may wait for another that waits: groups are added.
fn longest_us(before: &[Group], now: &[Group], total_us: impl Fn(&Group) -> u64) -> u64 {
    let of = |now: &Group| {
        let before = before.iter().find(|before| before.directory == now.directory);
        total_us(now).saturating_sub(before.map_or(0, &total_us))
    };
    now.iter().map(of).sum()
}

impl Group {
    fn read(directory: Option<PathBuf>) -> Group {
        let some_us = |resource| match &directory {
            Some(directory) => read_us(&directory.join(format!("{resource}.pressure"))),
            None => some_us(resource),
        };
        let (processors_us, disks_us) = (some_us("cpu"), some_us("io"));
        Group {
            directory,
            processors_us,
            disks_us,
        }
    }
}

/// A cgroup and the demo's nodes.
fn with_nodes(own: &Path) -> Vec<Group> {
    let beside = own.parent().map(std::fs::read_dir).into_iter().flatten().flatten();
    let nodes = beside
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(NODES));
    let directories = std::iter::once(own.to_owned()).chain(nodes.map(|entry| entry.path()));
    directories.map(|directory| Group::read(Some(directory))).collect()
}

/// The kernel's own total of `some` for a resource (`cpu`, `io`, `memory`) and all tasks since boot, microseconds; 0 where it has none.
#[must_use]
pub fn some_us(resource: &str) -> u64 {
    read_us(Path::new(&format!("/proc/pressure/{resource}")))
}

fn read_us(file: &Path) -> u64 {
    std::fs::read_to_string(file).map_or(0, |text| parse(&text))
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
    fn a_group_that_came_meanwhile_counts_from_zero_and_one_that_went_not_at_all() {
        let group = |name: &str, processors_us, disks_us| Group {
            directory: Some(PathBuf::from(name)),
            processors_us,
            disks_us,
        };
        let before = [group("tests", 100, 10), group("gone", 70, 7)];
        let now = [group("tests", 130, 15), group("came", 5, 1)];
        assert_eq!(longest_us(&before, &now, |group| group.processors_us), 35);
        assert_eq!(longest_us(&before, &now, |group| group.disks_us), 6);
    }

    #[test]
    fn the_demos_nodes_beside_the_tests_are_counted() {
        let top = tempfile::tempdir().unwrap();
        for (name, waited) in [("tests", 3), ("sandglass-demo-1", 4), ("others", 5)] {
            let group = top.path().join(name);
            std::fs::create_dir(&group).unwrap();
            std::fs::write(group.join("cpu.pressure"), format!("some avg10=0.00 total={waited}\n")).unwrap();
        }
        let groups = with_nodes(&top.path().join("tests"));
        let mut waited: Vec<u64> = groups.iter().map(|group| group.processors_us).collect();
        waited.sort_unstable();
        assert_eq!(waited, [3, 4]);
    }

    #[test]
    fn the_total_of_some_is_read() {
        let text =
            "some avg10=0.00 avg60=0.12 avg300=1.00 total=6026528\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(parse(text), 6_026_528);
        assert_eq!(parse(""), 0);
        assert_eq!(parse("some avg10=0.00 total=x"), 0);
    }
}
