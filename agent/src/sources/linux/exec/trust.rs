//! Who may be a plugin or a runtime: the configured exceptions for the kernel side, and what it refused.
//!
//! Used by the feed of the process probe. The kernel side judges each exec (`probes/bpf/trust.h`); processes that are older
//! than the agent are judged here, by the same rule. Cgroups are configured by path and compared by id, so they are looked up
//! again every second: a service that is started again has a new id. The environment and the name of a process are its own
//! choice, and anything in a pod could pose as a plugin of any other pod. So a claim counts only of a process that could set
//! up the node's networks anyway.
//! Does not: report refused processes as events.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use sandglass_probes::wire::trust::{
    CLAIM_PLUGIN, NO_USER, REFUSED_CAPABILITIES, REFUSED_COUNTERS, REFUSED_FILE_PRIVILEGES, REFUSED_PID_NAMESPACE,
    REFUSED_REASONS, REFUSED_SLOTS, REFUSED_USER_NAMESPACE, RefusedRecord, TRUSTED_CGROUPS_MAX, TRUSTED_USERS_MAX,
    TrustedOwners,
};

use crate::health::{CLAIMS, Health, REASONS, RefusedLabel, RefusedProcess};
use crate::sources::TrustSettings;
use crate::sources::linux::cgroups::{self, Cgroups};
use crate::sources::linux::loader::maps::TrustMaps;
use crate::sources::linux::record::text;

/// The exceptions, and the counters that were read last.
pub struct Trust {
    maps: TrustMaps,
    settings: TrustSettings,
    health: Health,
    /// What the kernel side has; `None` before the first write has succeeded.
    written: Option<TrustedOwners>,
    /// The kernel side's totals at the last call of [`Trust::report`], in the order of [`RefusedLabel::all`].
    counted: [u64; REFUSED_COUNTERS as usize],
    /// Time of the newest refused process that was read, nanoseconds of the boot clock.
    newest_ns: u64,
}

impl Trust {
    /// Nothing is written yet: the kernel side trusts only processes of the root namespaces. Creates the counters.
    pub fn new(maps: TrustMaps, settings: TrustSettings, health: Health) -> Trust {
        // The series exist at 0 from the start: an alert on their rate needs a first sample.
        for label in RefusedLabel::all() {
            drop(health.untrusted.get_or_create(&label));
        }
        Trust {
            maps,
            settings,
            health,
            written: None,
            counted: [0; REFUSED_COUNTERS as usize],
            newest_ns: 0,
        }
    }

    /// Passes the exceptions to the kernel side if they have changed. Called every second, and cheap then: one stat(2) for each
    /// configured cgroup. A write that fails is tried again at the next call. More exceptions than there are places are left
    /// out; the configuration rejects such a list before it gets here.
    pub fn write(&mut self, cgroups: &Cgroups) {
        let mut owners = TrustedOwners {
            cgroups: [0; TRUSTED_CGROUPS_MAX as usize],
            users: [NO_USER; TRUSTED_USERS_MAX as usize],
        };
        for (place, path) in owners.cgroups.iter_mut().zip(&self.settings.cgroups) {
            // 0 marks an unused place: a cgroup that does not exist yet trusts nobody.
            *place = cgroups.id(path).unwrap_or(0);
        }
        for (place, uid) in owners.users.iter_mut().zip(&self.settings.users) {
            *place = *uid;
        }
        if self.written != Some(owners) && self.maps.set_owners(&owners) {
            self.written = Some(owners);
        }
    }

    /// Adds what the kernel side refused since the last call to the agent's health. The counters are exact; of the processes
    /// themselves only the newest of each slot is left to read (`probes/bpf/trust.h`).
    pub fn report(&mut self, cgroups: &mut Cgroups) {
        let mut is_new = false;
        for (place, label) in RefusedLabel::all().enumerate() {
            let total = u32::try_from(place).map_or(0, |place| self.maps.refused(place));
            let new = total.saturating_sub(self.counted[place]);
            if new > 0 {
                self.counted[place] = total;
                self.health.untrusted.get_or_create(&label).inc_by(new);
                is_new = true;
            }
        }
        // Without a new count no slot has changed: the usual case, which spares 256 reads of the map.
        if !is_new {
            return;
        }
        let mut records: Vec<RefusedRecord> = (0..REFUSED_SLOTS)
            .filter_map(|slot| self.maps.refused_process(slot))
            .filter(|record| record.at_ns > self.newest_ns)
            .collect();
        records.sort_by_key(|record| record.at_ns);
        for record in records {
            self.newest_ns = record.at_ns;
            // Two processors may have written the slot at once and mixed its fields: no length and no index is relied on.
            let path = record.path.get(..record.path_len as usize).unwrap_or(&record.path);
            let label = |names: &[&str], place: u32| names.get(place as usize).copied().unwrap_or_default().to_owned();
            self.health.refused.record(RefusedProcess {
                path: text(path).into_owned(),
                claim: label(&CLAIMS, record.claim),
                reason: label(&REASONS, record.reason),
                uid: record.uid,
                pid: record.pid,
                cgroup: cgroups.path(record.cgroup_id, record.pid),
            });
        }
    }

    /// Whether a running process could be a plugin, whatever it claims to be.
    pub fn is_trusted(&self, pid: u32) -> bool {
        Facts::read(pid).is_some_and(|facts| facts.refusal(&self.settings).is_none())
    }

    /// Whether a running process may be a plugin; `refused` holds those that were counted as refused before, since the caller
    /// judges a process once for each pass over `/proc`. `path` is called only for a process that is refused for the first
    /// time.
    pub fn judge_running(&self, pid: u32, path: impl FnOnce() -> String, refused: &mut HashSet<u32>) -> bool {
        // What cannot be read is not trusted, and not counted: most likely the process has ended.
        let Some(facts) = Facts::read(pid) else { return false };
        let Some(reason) = facts.refusal(&self.settings) else {
            return true;
        };
        if refused.insert(pid) {
            let place = (CLAIM_PLUGIN * REFUSED_REASONS + reason) as usize;
            if let Some(label) = RefusedLabel::all().nth(place) {
                self.health.untrusted.get_or_create(&label).inc();
                self.health.refused.record(RefusedProcess {
                    path: path(),
                    claim: label.claim.to_owned(),
                    reason: label.reason.to_owned(),
                    uid: facts.uid,
                    pid,
                    cgroup: facts.cgroup,
                });
            }
        }
        false
    }
}

/// What trust depends on, of a running process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    /// Real user id, as the initial user namespace has it.
    uid: u32,
    /// It is in the initial user namespace.
    in_root_users: bool,
    /// It is in the initial pid namespace.
    in_root_pids: bool,
    /// Effective capabilities, bit by number (include/uapi/linux/capability.h).
    effective: u64,
    /// Ambient capabilities, likewise.
    ambient: u64,
    /// Path of its cgroup (v2); empty when it is not known, which no exception covers.
    cgroup: String,
}

impl Facts {
    /// `None` when the process has ended, or may not be read.
    fn read(pid: u32) -> Option<Facts> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let inode = |kind: &str| fs::metadata(format!("/proc/{pid}/ns/{kind}")).map(|namespace| namespace.ino());
        let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        Some(Facts {
            in_root_users: inode("user").ok()? == INITIAL_USER_NAMESPACE,
            in_root_pids: inode("pid").ok()? == INITIAL_PID_NAMESPACE,
            cgroup: cgroups::own_path(&cgroup).unwrap_or_default(),
            ..Facts::parse_status(&status)?
        })
    }

    /// The fields of proc_pid_status(5). The ids are those of the initial user namespace only if the agent is in it.
    fn parse_status(status: &str) -> Option<Facts> {
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))?
                .split_ascii_whitespace()
                .next()
        };
        Some(Facts {
            uid: field("Uid:")?.parse().ok()?,
            in_root_users: false,
            in_root_pids: false,
            effective: u64::from_str_radix(field("CapEff:")?, 16).ok()?,
            ambient: u64::from_str_radix(field("CapAmb:")?, 16).ok()?,
            cgroup: String::new(),
        })
    }

    /// Why the process is not trusted, one of the `REFUSED_` reasons; `None` when it is. The rule of `judge()` in
    /// `probes/bpf/trust.h`, to be changed with it (`agent/tests/exec_probe/trust.rs`).
    fn refusal(&self, settings: &TrustSettings) -> Option<u32> {
        let reason = self.missing_privilege()?;
        // A cgroup is below a path only at a boundary of components: /a/bc is not below /a/b.
        let is_below = |path: &String| {
            let rest = self.cgroup.strip_prefix(path.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_excepted =
            self.in_root_pids && settings.users.contains(&self.uid) || settings.cgroups.iter().any(is_below);
        (!is_excepted).then_some(reason)
    }

    /// The first privilege of a plugin that the process lacks; the order is that of `judge_privileges()` in
    /// `probes/bpf/trust.h`, so that both count the same reason.
    fn missing_privilege(&self) -> Option<u32> {
        if !self.in_root_users {
            return Some(REFUSED_USER_NAMESPACE);
        }
        if !self.in_root_pids {
            return Some(REFUSED_PID_NAMESPACE);
        }
        if self.effective & NETWORK_CAPABILITIES == 0 {
            return Some(REFUSED_CAPABILITIES);
        }
        // capabilities(7): who is not root by the real user id and has the capabilities not as ambient ones has got them from
        // the executed file, and anybody may execute that.
        let is_inherited = self.uid == 0 || self.effective & self.ambient & NETWORK_CAPABILITIES != 0;
        (!is_inherited).then_some(REFUSED_FILE_PRIVILEGES)
    }
}

// include/uapi/linux/capability.h: CAP_NET_ADMIN and CAP_SYS_ADMIN.
const NETWORK_CAPABILITIES: u64 = 1 << 12 | 1 << 21;
// include/linux/proc_ns.h (include/uapi/linux/nsfs.h since Linux 6.18): PROC_USER_INIT_INO and PROC_PID_INIT_INO.
const INITIAL_USER_NAMESPACE: u64 = 0xeffffffd;
const INITIAL_PID_NAMESPACE: u64 = 0xeffffffc;

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Facts {
        Facts {
            uid: 0,
            in_root_users: true,
            in_root_pids: true,
            effective: 0x1ff_ffff_ffff,
            ambient: 0,
            cgroup: "/system.slice/containerd.service".to_owned(),
        }
    }

    /// Each privilege alone is taken from a root process of the node, which has them all.
    #[test]
    fn only_who_could_set_up_networks_is_trusted() {
        let nobody = TrustSettings::default();
        let refusal = |facts: Facts| facts.refusal(&nobody);
        assert_eq!(refusal(root()), None);
        let in_users = Facts {
            in_root_users: false,
            ..root()
        };
        assert_eq!(refusal(in_users), Some(REFUSED_USER_NAMESPACE));
        let in_pids = Facts {
            in_root_pids: false,
            ..root()
        };
        assert_eq!(refusal(in_pids), Some(REFUSED_PID_NAMESPACE));
        // The default capabilities of a container.
        let default = Facts {
            effective: 0xa804_25fb,
            ..root()
        };
        assert_eq!(refusal(default), Some(REFUSED_CAPABILITIES));
        let setuid = Facts { uid: 65_534, ..root() };
        assert_eq!(refusal(setuid.clone()), Some(REFUSED_FILE_PRIVILEGES));
        let ambient = Facts {
            ambient: 1 << 12,
            ..setuid
        };
        assert_eq!(refusal(ambient), None);
    }

    /// A configured user runs rootless plugins in the node's pid namespace; a container of the same user is not one of them.
    #[test]
    fn exceptions_are_users_of_the_root_pid_namespace_and_whole_cgroups() {
        let settings = TrustSettings {
            cgroups: vec!["/system.slice/podman/".to_owned()],
            users: vec![1000],
        };
        let rootless = Facts {
            uid: 1000,
            in_root_users: false,
            ..root()
        };
        assert_eq!(rootless.refusal(&settings), None);
        let its_container = Facts {
            in_root_pids: false,
            ..rootless
        };
        assert!(its_container.refusal(&settings).is_some());
        for (cgroup, is_trusted) in [
            ("/system.slice/podman", true),
            ("/system.slice/podman/x", true),
            ("/system.slice/podman2", false),
            ("/", false),
        ] {
            let facts = Facts {
                cgroup: cgroup.to_owned(),
                ..its_container.clone()
            };
            assert_eq!(facts.refusal(&settings).is_none(), is_trusted, "{cgroup}");
        }
    }

    /// The fields have these names on the running kernel, and a process that is gone is nobody.
    #[test]
    fn this_process_is_read_and_garbage_is_nothing() {
        let own = Facts::read(std::process::id()).unwrap();
        assert!(own.cgroup.is_empty() || own.cgroup.starts_with('/'));
        for bad in [
            "",
            "Uid:\n",
            "Uid:\tx\nCapEff:\t0\nCapAmb:\t0\n",
            "Uid:\t1\nCapEff:\tzz\nCapAmb:\t0\n",
        ] {
            assert_eq!(Facts::parse_status(bad), None);
        }
        assert_eq!(Facts::read(u32::MAX), None);
    }
}
