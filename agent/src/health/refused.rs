//! Processes that posed as a plugin or a runtime, or served a plugin without the rights of one, and were refused: counted by claim and reason, and the newest of them by path.
//!
//! The process probe records them; `/api/v1/health` and `doctor` show them. The list is shared by cgroup: one that is full of
//! names evicts its own oldest. Does not: decide who is refused (`probes/bpf/trust.h`), or keep anything else of a process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use serde::{Deserialize, Serialize};

use super::Label;

/// Label: what a refused process claimed to be, and why it was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, EncodeLabelSet)]
pub struct RefusedLabel {
    /// One of [`CLAIMS`].
    pub claim: &'static str,
    /// One of [`REASONS`].
    pub reason: &'static str,
}

impl RefusedLabel {
    /// All labels: each claim with each reason, in the order of the kernel side's counters.
    pub fn all() -> impl Iterator<Item = RefusedLabel> {
        CLAIMS
            .iter()
            .flat_map(|claim| REASONS.iter().map(|reason| RefusedLabel { claim, reason }))
    }
}

impl Label for RefusedLabel {
    fn value(&self) -> &str {
        let place = RefusedLabel::all().position(|label| label == *self);
        place.and_then(|place| VALUES.get(place)).copied().unwrap_or_default()
    }
}

/// A refused process, as far as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedProcess {
    /// The executed file as it was named to the kernel, cut; of a daemon the name of its process.
    pub path: String,
    /// What it claimed to be: `plugin`, `runtime` or `daemon`.
    pub claim: String,
    /// Why it was refused.
    pub reason: String,
    /// Its real user id, as the node counts.
    pub uid: u32,
    /// Its process id; it has most likely ended.
    pub pid: u32,
    /// Its cgroup; empty when it is not known.
    pub cgroup: String,
}

impl RefusedProcess {
    fn is_like(&self, other: &RefusedProcess) -> bool {
        (&self.path, &self.claim, &self.reason, &self.cgroup)
            == (&other.path, &other.claim, &other.reason, &other.cgroup)
    }
}

/// The newest refused processes, oldest first; cheap to clone, all clones are one list.
#[derive(Clone, Debug, Default)]
pub struct RefusedProcesses(Arc<Mutex<Vec<RefusedProcess>>>);

impl RefusedProcesses {
    /// Adds a process, or makes an entry of the same path, claim, reason and cgroup the newest.
    pub fn record(&self, process: RefusedProcess) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|entry| !entry.is_like(&process));
        list.push(process);
        if list.len() > PROCESSES_MAX {
            let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
            for entry in list.iter() {
                *counts.entry(&entry.cgroup).or_default() += 1;
            }
            let fullest = counts.into_iter().max_by_key(|(_, count)| *count);
            let fullest = fullest.map(|(cgroup, _)| cgroup.to_owned()).unwrap_or_default();
            if let Some(oldest) = list.iter().position(|entry| entry.cgroup == fullest) {
                list.remove(oldest);
            }
        }
    }

    /// All entries, newest first.
    #[must_use]
    pub fn newest_first(&self) -> Vec<RefusedProcess> {
        let list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.iter().rev().cloned().collect()
    }
}

/// What a refused process claimed to be.
pub const CLAIMS: [&str; 3] = ["plugin", "runtime", "daemon"];
/// Why a process was refused.
pub const REASONS: [&str; 4] = ["user_namespace", "pid_namespace", "capabilities", "file_privileges"];
const VALUES: [&str; 12] = [
    "plugin: user_namespace",
    "plugin: pid_namespace",
    "plugin: capabilities",
    "plugin: file_privileges",
    "runtime: user_namespace",
    "runtime: pid_namespace",
    "runtime: capabilities",
    "runtime: file_privileges",
    "daemon: user_namespace",
    "daemon: pid_namespace",
    "daemon: capabilities",
    "daemon: file_privileges",
];
/// Entries of the list.
const PROCESSES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn process(cgroup: &str, path: &str) -> RefusedProcess {
        RefusedProcess {
            path: path.to_owned(),
            cgroup: cgroup.to_owned(),
            ..RefusedProcess::default()
        }
    }

    #[test]
    fn every_label_has_a_value_of_its_own() {
        for (label, value) in RefusedLabel::all().zip(VALUES) {
            assert_eq!(label.value(), format!("{}: {}", label.claim, label.reason));
            assert_eq!(label.value(), value);
        }
    }

    #[test]
    fn a_noisy_cgroup_evicts_its_own() {
        let refused = RefusedProcesses::default();
        refused.record(process("/quiet", "/bin/once"));
        for n in 0..1_000 {
            refused.record(process("/noisy", &format!("/tmp/forged-{n}")));
        }
        refused.record(process("/other", "/bin/runc"));
        let list = refused.newest_first();
        assert_eq!(list.len(), PROCESSES_MAX);
        assert_eq!(list[0].path, "/bin/runc");
        assert_eq!(list[1].path, "/tmp/forged-999");
        assert_eq!(list[PROCESSES_MAX - 1].path, "/bin/once");
    }

    #[test]
    fn what_comes_again_is_listed_once() {
        let refused = RefusedProcesses::default();
        for path in ["/a", "/b", "/a"] {
            refused.record(process("/x", path));
        }
        let paths: Vec<String> = refused.newest_first().into_iter().map(|entry| entry.path).collect();
        assert_eq!(paths, ["/a", "/b"]);
    }
}
