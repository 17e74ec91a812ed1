//! What the kernel offers and what this process may use of it, read from `/proc`, `/sys` and `/boot`.
//!
//! Used by `system.rs`. The probes report what works; this reports why the rest does not. Where these files are absent, as on
//! other systems than Linux, there are no findings. Does not: load anything into the kernel.

use std::fs;
use std::io::Read;
use std::path::Path;

use super::super::{Finding, Level};
use crate::health::ProbeStatus;

/// The probe without which there are no spans.
pub(crate) const VITAL: &str = "exec";

pub(crate) fn check(root: &Path, probes: &[ProbeStatus]) -> Vec<Finding> {
    if !root.join("proc/self/status").exists() {
        return Vec::new();
    }
    // What the probes got counts for more than what files promise.
    let vital_attached = probes.iter().any(|probe| probe.probe == VITAL && probe.attached);
    let release = line(root, "proc/sys/kernel/osrelease");
    let node = NodeFiles {
        root,
        version: version(&release),
        release,
        worst: if vital_attached { Level::Note } else { Level::Fail },
    };
    let mut findings = vec![node.kernel()];
    findings.extend(node.capabilities());
    findings.push(node.btf());
    findings.extend(node.lockdown());
    findings.push(node.config());
    findings.extend(node.sysctls());
    findings.push(node.cgroup());
    findings
}

struct NodeFiles<'a> {
    root: &'a Path,
    release: String,
    version: Option<(u32, u32)>,
    /// The level of what keeps probes away: no worse than a note when they are attached all the same.
    worst: Level,
}

impl NodeFiles<'_> {
    fn older_than(&self, major: u32, minor: u32) -> bool {
        self.version.is_some_and(|version| version < (major, minor))
    }

    fn kernel(&self) -> Finding {
        let what = format!("kernel {}", self.release);
        // `kernel/bpf/ringbuf.c` is there from Linux 5.8.
        if self.older_than(5, 8) {
            return Finding::new(self.worst, "kernel.release", what)
                .why("BPF ring buffers came with 5.8: the probes cannot be loaded")
                .hint("use a node with a newer kernel");
        }
        if self.version.is_none() {
            return Finding::new(Level::Note, "kernel.release", what).why("this is no kernel release as known here");
        }
        Finding::ok("kernel.release", what)
    }

    fn capabilities(&self) -> Vec<Finding> {
        let Some(effective) = self.effective() else {
            return vec![
                Finding::new(
                    Level::Note,
                    "privilege.capabilities",
                    "effective capabilities cannot be read",
                )
                .why("what this process may do is not known beforehand"),
            ];
        };
        let has = |capability: &Capability| effective & (1 << capability.bit) != 0;
        let everything = has(&SYS_ADMIN);
        let mut held = Vec::new();
        let mut findings = Vec::new();
        for capability in &CAPABILITIES {
            if has(capability) {
                held.push(capability.name);
            } else if (capability.implied && everything) || !self.matters(capability) {
                continue;
            } else {
                let level = capability.level.min(self.worst.max(Level::Warn));
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

    /// Maps are charged to the memory cgroup since 5.11, and to RLIMIT_MEMLOCK before (`kernel/bpf/syscall.c`).
    fn matters(&self, capability: &Capability) -> bool {
        capability.name != "CAP_SYS_RESOURCE" || self.older_than(5, 11)
    }

    fn btf(&self) -> Finding {
        match fs::metadata(self.root.join("sys/kernel/btf/vmlinux")) {
            Ok(metadata) if metadata.len() > 0 => Finding::ok(
                "kernel.btf",
                format!("type information (BTF), {} KiB", metadata.len() / 1024),
            ),
            _ => Finding::new(
                self.worst,
                "kernel.btf",
                "no type information (BTF) at /sys/kernel/btf/vmlinux",
            )
            .why("probes are fitted to this kernel with it; without it none can be loaded")
            .hint("use a kernel built with CONFIG_DEBUG_INFO_BTF=y; in a container, mount /sys"),
        }
    }

    fn lockdown(&self) -> Option<Finding> {
        let text = line(self.root, "sys/kernel/security/lockdown");
        let mode = text.split('[').nth(1)?.split(']').next()?;
        Some(match mode {
            "confidentiality" => Finding::new(self.worst, "kernel.lockdown", "kernel lockdown: confidentiality")
                .why("BPF programs may not read kernel memory in this mode: probes are refused with EPERM")
                .hint("boot with lockdown=integrity, or without"),
            mode => Finding::ok("kernel.lockdown", format!("kernel lockdown: {mode}")),
        })
    }

    fn config(&self) -> Finding {
        let Some((path, text)) = self.config_text() else {
            return Finding::new(
                Level::Note,
                "kernel.config",
                "the kernel's configuration is not readable here",
            )
            .why("its options cannot be checked beforehand; the probes above say what works")
            .hint("mount /boot, or use a kernel with CONFIG_IKCONFIG_PROC=y");
        };
        let set = |option: &str| {
            text.lines().any(|line| {
                let value = line.strip_prefix(option).and_then(|rest| rest.strip_prefix('='));
                matches!(value, Some("y" | "m"))
            })
        };
        let missing: Vec<&(&str, &str, bool)> = CONFIG.iter().filter(|(option, ..)| !set(option)).collect();
        if missing.is_empty() {
            return Finding::ok(
                "kernel.config",
                format!("all {} options are set in {path}", CONFIG.len()),
            );
        }
        let names: Vec<&str> = missing.iter().map(|(option, ..)| *option).collect();
        let reasons: Vec<String> = missing
            .iter()
            .map(|(option, why, _)| match missing[..] {
                [_] => (*why).to_owned(),
                _ => format!("{option}: {why}"),
            })
            .collect();
        let level = if missing.iter().any(|(.., vital)| *vital) {
            self.worst
        } else {
            Level::Note
        };
        Finding::new(
            level,
            "kernel.config",
            format!("not set in {path}: {}", names.join(" ")),
        )
        .why(reasons.join("; "))
        .hint("use a kernel with these options, as those of the large distributions have")
    }

    fn config_text(&self) -> Option<(String, String)> {
        let compressed = self.root.join("proc/config.gz");
        if let Ok(file) = fs::File::open(&compressed) {
            let mut text = String::new();
            let reader = flate2::read::GzDecoder::new(file);
            if reader.take(MAX_CONFIG).read_to_string(&mut text).is_ok() {
                return Some(("/proc/config.gz".to_owned(), text));
            }
        }
        let paths = [
            format!("/boot/config-{}", self.release),
            format!("/lib/modules/{}/config", self.release),
        ];
        paths.into_iter().find_map(|path| {
            let mut text = String::new();
            let file = fs::File::open(self.root.join(&path[1..])).ok()?;
            file.take(MAX_CONFIG).read_to_string(&mut text).ok()?;
            Some((path, text))
        })
    }

    fn sysctls(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        findings.extend(self.paranoia());
        let unprivileged = line(self.root, "proc/sys/kernel/unprivileged_bpf_disabled");
        if !unprivileged.is_empty() {
            findings.push(Finding::ok(
                "kernel.unprivileged_bpf_disabled",
                format!("unprivileged_bpf_disabled = {unprivileged} (holders of CAP_BPF may all the same)"),
            ));
        }
        if line(self.root, "proc/sys/kernel/bpf_stats_enabled") == "1" {
            findings.push(
                Finding::new(Level::Note, "kernel.bpf_stats", "bpf_stats_enabled = 1")
                    .why("the kernel takes the time of every BPF program run, which costs more than the probes do")
                    .hint("sysctl kernel.bpf_stats_enabled=0"),
            );
        }
        findings
    }

    /// Debian and Ubuntu add levels from 3 on, at which `perf_event_open` is for CAP_SYS_ADMIN alone (their patch to
    /// `kernel/events/core.c`). kprobes attach through it; raw tracepoints, tp_btf and fentry do not.
    fn paranoia(&self) -> Option<Finding> {
        let text = line(self.root, "proc/sys/kernel/perf_event_paranoid");
        let level: i32 = text.parse().ok()?;
        let what = format!("perf_event_paranoid = {level}");
        if level < 3
            || self
                .effective()
                .is_some_and(|effective| effective & (1 << SYS_ADMIN.bit) != 0)
        {
            return Some(Finding::ok("kernel.perf_event_paranoid", what));
        }
        Some(
            Finding::new(Level::Note, "kernel.perf_event_paranoid", what)
                .why("from 3 on kprobes need CAP_SYS_ADMIN; hooks by raw tracepoint, tp_btf and fentry do not")
                .hint("sysctl kernel.perf_event_paranoid=2, if a probe is missing for it"),
        )
    }

    fn effective(&self) -> Option<u64> {
        let text = line_starting(self.root, "proc/self/status", "CapEff:");
        u64::from_str_radix(&text, 16).ok()
    }

    fn cgroup(&self) -> Finding {
        let mounts = fs::read_to_string(self.root.join("proc/self/mountinfo")).unwrap_or_default();
        // proc(5): after the lone hyphen come file system type and source; the fifth field is the mount point.
        let mut unified = mounts.lines().filter_map(|mount| {
            let (before, after) = mount.split_once(" - ")?;
            (after.split(' ').next()? == "cgroup2").then_some(before.split(' ').nth(4)?)
        });
        match unified.next() {
            Some("/sys/fs/cgroup") => Finding::ok("kernel.cgroup", "cgroup v2 at /sys/fs/cgroup"),
            Some(path) => Finding::new(Level::Note, "kernel.cgroup", format!("cgroup v2 at {path}, beside v1"))
                .why("processes are in v1 groups too; paths shown are those of v2, often just /"),
            None => Finding::new(Level::Note, "kernel.cgroup", "no cgroup v2 is mounted")
                .why("cgroup paths of processes are not shown")
                .hint("boot with systemd.unified_cgroup_hierarchy=1; in a container, mount /sys/fs/cgroup"),
        }
    }
}

struct Capability {
    name: &'static str,
    bit: u32,
    level: Level,
    /// Whether CAP_SYS_ADMIN does as well.
    implied: bool,
    without: &'static str,
}

/// First line of a file, trimmed; empty when it cannot be read.
fn line(root: &Path, path: &str) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = fs::File::open(root.join(path)) {
        let _ = file.take(MAX_LINE).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes)
        .lines()
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn line_starting(root: &Path, path: &str, start: &str) -> String {
    let text = fs::read(root.join(path)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let rest = text.lines().find_map(|line| line.strip_prefix(start));
    rest.unwrap_or_default().trim().to_owned()
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

const SYS_ADMIN: Capability = Capability {
    name: "CAP_SYS_ADMIN",
    bit: 21,
    level: Level::Ok,
    implied: false,
    without: "",
};

/// Bits: `include/uapi/linux/capability.h`.
const CAPABILITIES: [Capability; 6] = [
    Capability {
        name: "CAP_BPF",
        bit: 39,
        level: Level::Fail,
        implied: true,
        without: "BPF programs and maps cannot be loaded: no probe works",
    },
    Capability {
        name: "CAP_PERFMON",
        bit: 38,
        level: Level::Fail,
        implied: true,
        without: "programs that read kernel memory cannot be loaded: no probe works",
    },
    Capability {
        name: "CAP_SYS_PTRACE",
        bit: 19,
        level: Level::Warn,
        implied: false,
        without: "environment and namespaces of other processes cannot be read: operations that run when the agent starts are missed",
    },
    Capability {
        name: "CAP_NET_ADMIN",
        bit: 12,
        level: Level::Note,
        implied: false,
        without: "conntrack events and counters are not to be had",
    },
    Capability {
        name: "CAP_DAC_READ_SEARCH",
        bit: 2,
        level: Level::Note,
        implied: false,
        without: "configuration that only its owner may read is not seen, unless the agent is the owner",
    },
    Capability {
        name: "CAP_SYS_RESOURCE",
        bit: 24,
        level: Level::Warn,
        implied: false,
        without: "before kernel 5.11 the ring buffer must fit the limit on locked memory, often 64 KiB",
    },
];

/// Option, what is lost without it, whether everything is.
const CONFIG: [(&str, &str, bool); 9] = [
    ("CONFIG_BPF_SYSCALL", "no probe works", true),
    (
        "CONFIG_BPF_JIT",
        "BPF programs are interpreted, and tp_btf and fentry are not to be had",
        false,
    ),
    ("CONFIG_DEBUG_INFO_BTF", "probes cannot be fitted to this kernel", true),
    (
        "CONFIG_BPF_EVENTS",
        "BPF programs cannot be attached to tracepoints and functions",
        true,
    ),
    ("CONFIG_FTRACE", "functions cannot be hooked with fentry", false),
    ("CONFIG_KPROBES", "functions cannot be hooked with kprobes", false),
    ("CONFIG_CGROUPS", "processes have no cgroup", false),
    ("CONFIG_NET_NS", "sandboxes have no network of their own", false),
    (
        "CONFIG_NF_CONNTRACK",
        "there is no connection tracking to observe",
        false,
    ),
];
const MAX_LINE: u64 = 4096;
const MAX_CONFIG: u64 = 4 << 20;
