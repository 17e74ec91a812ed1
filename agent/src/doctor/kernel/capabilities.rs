//! Which capabilities this process holds, and what does not work without those that it lacks.
//!
//! Used by `kernel.rs`. Reads the effective set, which is what the kernel checks; a container's bounding set or a user
//! namespace may have reduced it (capabilities(7), user_namespaces(7)). `deploy/README.md` says what each is for.
//! Does not: know whether the probes got what they need without them; the caller says how bad it is.

use super::super::super::{Finding, Level};

/// One finding with what is held, and one for each capability that is missing and matters here. `effective` is the bit mask of
/// this process, `worst` the level that a missing one may have at most, unless it is a warning.
pub(super) fn check(effective: Option<u64>, worst: Level, locked_memory_is_limited: bool) -> Vec<Finding> {
    let Some(effective) = effective else {
        return vec![
            Finding::new(
                Level::Note,
                "privilege.capabilities",
                "effective capabilities cannot be read",
            )
            .why("whether this process may load probes is not known beforehand"),
        ];
    };
    let has = |capability: &Capability| effective & (1 << capability.bit) != 0;
    // Until 5.8 CAP_SYS_ADMIN was all of CAP_BPF and CAP_PERFMON, and the kernel still takes it for them (`bpf_capable` and
    // `perfmon_capable` of include/linux/capability.h).
    let everything = has(&SYS_ADMIN);
    let mut held = Vec::new();
    let mut findings = Vec::new();
    for capability in &CAPABILITIES {
        if has(capability) {
            held.push(capability.name);
        } else if (capability.implied && everything) || !matters(capability, locked_memory_is_limited) {
            continue;
        } else {
            // Once the vital probe is attached nothing that is missing here can be a failure any more.
            let level = capability.level.min(worst.max(Level::Warn));
            findings.push(
                Finding::new(
                    level,
                    "privilege.capabilities",
                    format!("{} is missing", capability.name),
                )
                .why(capability.without)
                .hint(format!(
                    "run as root, or add {} to the container's capabilities",
                    &capability.name[4..]
                )),
            );
        }
    }
    // Named last, since it is more than any of the others.
    if everything {
        held.push(SYS_ADMIN.name);
    }
    if !held.is_empty() {
        findings.insert(
            0,
            Finding::ok("privilege.capabilities", format!("holds {}", held.join(" "))),
        );
    }
    findings
}

/// Maps are charged to the memory cgroup since 5.11, and to RLIMIT_MEMLOCK before (`kernel/bpf/syscall.c`): only then
/// must the limit be raised.
fn matters(capability: &Capability, locked_memory_is_limited: bool) -> bool {
    capability.name != "CAP_SYS_RESOURCE" || locked_memory_is_limited
}

/// Whether a bit mask contains CAP_SYS_ADMIN. For `kernel.rs`, which judges settings that it overrides.
pub(super) fn holds_sys_admin(effective: u64) -> bool {
    effective & (1 << SYS_ADMIN.bit) != 0
}

/// A capability that the agent uses, or that stands for others.
struct Capability {
    /// With its prefix, as in capabilities(7).
    name: &'static str,
    /// Its number, which is the bit in the mask.
    bit: u32,
    /// How bad it is when it is missing and the vital probe is not attached.
    level: Level,
    /// Whether CAP_SYS_ADMIN does as well.
    implied: bool,
    /// What does not work without it.
    without: &'static str,
}

/// Not used by itself: holding it makes up for those that are `implied`, and it is named among what is held.
const SYS_ADMIN: Capability = Capability {
    name: "CAP_SYS_ADMIN",
    bit: 21,
    level: Level::Ok,
    implied: false,
    without: "",
};

/// What the agent uses. Bits: `include/uapi/linux/capability.h`; what each allows: capabilities(7).
const CAPABILITIES: [Capability; 6] = [
    // `bpf_capable` guards loading of programs and maps (`kernel/bpf/syscall.c`).
    Capability {
        name: "CAP_BPF",
        bit: 39,
        level: Level::Fail,
        implied: true,
        without: "BPF programs and maps cannot be loaded: no probe works",
    },
    // `perfmon_capable` guards tracing programs and bpf_probe_read_kernel.
    Capability {
        name: "CAP_PERFMON",
        bit: 38,
        level: Level::Fail,
        implied: true,
        without: "programs that read kernel memory cannot be loaded: no probe works",
    },
    // /proc/PID/environ and /proc/PID/ns of others ask ptrace_may_access (`fs/proc/base.c`, `fs/proc/namespaces.c`).
    Capability {
        name: "CAP_SYS_PTRACE",
        bit: 19,
        level: Level::Warn,
        implied: false,
        without: "environment and namespaces of other processes cannot be read: operations that run when the agent starts are missed",
    },
    // nfnetlink lets nobody else join a multicast group (`netlink_bind` of net/netlink/af_netlink.c).
    Capability {
        name: "CAP_NET_ADMIN",
        bit: 12,
        level: Level::Note,
        implied: false,
        without: "conntrack's events and counters cannot be read",
    },
    // Configuration with passwords in it often has mode 0600.
    Capability {
        name: "CAP_DAC_READ_SEARCH",
        bit: 2,
        level: Level::Note,
        implied: false,
        without: "configuration files that only their owner may read cannot be read, unless the agent is the owner",
    },
    // Raising RLIMIT_MEMLOCK above the hard limit: setrlimit(2).
    Capability {
        name: "CAP_SYS_RESOURCE",
        bit: 24,
        level: Level::Fail,
        implied: false,
        without: "before kernel 5.11 the probes' maps must fit the limit on locked memory, often 64 KiB: no probe works below it",
    },
];
