//! What the kernel offers and what this process may use of it, read from `/proc`, `/sys` and `/boot`.
//!
//! Used by `system.rs`. The probes report what works; this reports why the rest does not. Where these files are absent, as on
//! other systems than Linux, there are no findings. Every path is below `root`, which in a container is where the node's file
//! system is mounted; `/proc/self` is then that of the agent, whose privileges are meant.
//! Does not: load anything into the kernel, or write a setting.

#[path = "kernel/capabilities.rs"]
mod capabilities;
#[path = "kernel/config.rs"]
mod config;

use std::fs;
use std::io::Read;
use std::path::Path;

use crate::node::kernel_version;
use crate::selinux::{self, Domain};

use super::super::{Finding, Level};
use crate::health::ProbeStatus;

/// The probe without which there are no spans.
pub(crate) const VITAL: &str = "exec";

/// Whether the node's file system at `root` has a `/proc`.
pub(crate) fn has_proc(root: &Path) -> bool {
    root.join("proc/self/status").exists()
}

/// Findings in the order in which a probe needs what they are about: kernel, privileges, type information, options.
pub(crate) fn check(root: &Path, probes: &[ProbeStatus]) -> Vec<Finding> {
    if !has_proc(root) {
        return Vec::new();
    }
    // An attached probe is evidence, a file is a promise: what a file lacks cannot be fatal once the vital probe runs.
    let vital_attached = probes.iter().any(|probe| probe.probe == VITAL && probe.attached);
    let release = line(root, "proc/sys/kernel/osrelease");
    let node = NodeFiles {
        root,
        version: kernel_version(&release),
        release,
        worst: if vital_attached { Level::Note } else { Level::Fail },
    };
    let mut findings = vec![node.kernel()];
    findings.extend(capabilities::check(
        node.effective(),
        node.worst,
        node.older_than(5, 11),
    ));
    let all_attached = probes.iter().all(|probe| probe.attached);
    findings.extend(node.selinux(all_attached));
    findings.push(node.btf());
    findings.extend(node.lockdown());
    findings.push(config::check(root, &node.release, node.worst));
    findings.extend(node.sysctls());
    findings.push(node.cgroup());
    findings
}

/// What several checks need of the node.
struct NodeFiles<'a> {
    /// Where the node's file system is.
    root: &'a Path,
    /// `uname -r`; empty when it cannot be read.
    release: String,
    /// Major and minor number of the release.
    version: Option<(u32, u32)>,
    /// The level of what keeps probes away: no worse than a note when they are attached all the same.
    worst: Level,
}

impl NodeFiles<'_> {
    /// `false` where the version is not known: a check that is for old kernels only then stays silent.
    fn older_than(&self, major: u32, minor: u32) -> bool {
        self.version.is_some_and(|version| version < (major, minor))
    }

    /// Whether the kernel is new enough for any probe.
    fn kernel(&self) -> Finding {
        let what = format!("kernel {}", self.release);
        // Every probe writes into a BPF ring buffer: `kernel/bpf/ringbuf.c` is there from Linux 5.8 on.
        if self.older_than(5, 8) {
            return Finding::new(self.worst, "kernel.release", what)
                .why("BPF ring buffers came with 5.8: the probes cannot be loaded")
                .hint("use a node with a newer kernel");
        }
        if self.version.is_none() {
            return Finding::new(Level::Note, "kernel.release", what)
                .why("the release has no version number, so checks by version are left out");
        }
        Finding::ok("kernel.release", what)
    }

    /// The agent's domain; where it may be why probes are missing, how to change it. Without SELinux there is no finding.
    fn selinux(&self, all_attached: bool) -> Option<Finding> {
        let domain = Domain::of_this_process(self.root)?;
        if all_attached || !domain.may_refuse() {
            return Some(Finding::ok("privilege.selinux", domain.to_string()));
        }
        Some(
            Finding::new(self.worst, "privilege.selinux", domain.to_string())
                .why("a policy that does not allow this type bpf(2) keeps the probes away, whatever the capabilities are")
                .hint(selinux::HINT),
        )
    }

    /// The kernel's own BTF (`kernel/bpf/sysfs_btf.c`). The loader relocates the accesses of a probe to kernel structures by it
    /// (CO-RE), so that one object fits all kernels.
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

    /// Lockdown comes with UEFI Secure Boot on most distributions (kernel_lockdown(7)).
    /// The file lists all modes and puts the one in force into brackets (`lockdown_read` of `security/lockdown/lockdown.c`).
    /// Confidentiality forbids LOCKDOWN_BPF_READ_KERNEL, which every probe needs; integrity forbids nothing that probes do.
    /// A kernel without the lockdown module has no such file, and no finding.
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

    /// Settings of Documentation/admin-guide/sysctl/kernel.rst that decide what may be loaded and what it costs.
    fn sysctls(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        findings.extend(self.paranoia());
        // 1 and 2 refuse bpf(2) to processes without CAP_BPF; the agent has it or reports its absence.
        let unprivileged = line(self.root, "proc/sys/kernel/unprivileged_bpf_disabled");
        if !unprivileged.is_empty() {
            findings.push(Finding::ok(
                "kernel.unprivileged_bpf_disabled",
                format!("unprivileged_bpf_disabled = {unprivileged} (holders of CAP_BPF may all the same)"),
            ));
        }
        // With statistics each run reads the clock twice (`__bpf_prog_run` of include/linux/filter.h): about 57 ns on the
        // reference machine (bench: dns_cost), where a probe's early exit takes less than that.
        if line(self.root, "proc/sys/kernel/bpf_stats_enabled") == "1" {
            findings.push(
                Finding::new(Level::Note, "kernel.bpf_stats", "bpf_stats_enabled = 1")
                    .why("the kernel measures the time of every run of every BPF program, which costs more than the probes themselves")
                    .hint("sysctl kernel.bpf_stats_enabled=0"),
            );
        }
        findings
    }

    /// Debian and Ubuntu add levels from 3 on, at which `perf_event_open` is for CAP_SYS_ADMIN alone (their patch to
    /// `kernel/events/core.c`). kprobes attach through it; raw tracepoints, tp_btf and fentry do not.
    fn paranoia(&self) -> Option<Finding> {
        let text = line(self.root, "proc/sys/kernel/perf_event_paranoid");
        // -1 allows all, 2 is the kernel's default.
        let level: i32 = text.parse().ok()?;
        let what = format!("perf_event_paranoid = {level}");
        if level < 3 || self.effective().is_some_and(capabilities::holds_sys_admin) {
            return Some(Finding::ok("kernel.perf_event_paranoid", what));
        }
        Some(
            Finding::new(Level::Note, "kernel.perf_event_paranoid", what)
                .why("from 3 on, kprobes need CAP_SYS_ADMIN; raw tracepoints, tp_btf and fentry do not")
                .hint("sysctl kernel.perf_event_paranoid=2, if a probe is missing for it"),
        )
    }

    /// The effective capabilities of this process as a bit mask (proc_pid_status(5), `CapEff`: hexadecimal).
    fn effective(&self) -> Option<u64> {
        let text = line_starting(self.root, "proc/self/status", "CapEff:");
        u64::from_str_radix(&text, 16).ok()
    }

    /// The agent names the cgroup of a process by its path in the v2 hierarchy; v1 has a path for each controller.
    fn cgroup(&self) -> Finding {
        let mounts = fs::read_to_string(self.root.join("proc/self/mountinfo")).unwrap_or_default();
        // proc_pid_mountinfo(5): after the lone hyphen come file system type and source; the fifth field is the mount point.
        let mut unified = mounts.lines().filter_map(|mount| {
            let (before, after) = mount.split_once(" - ")?;
            (after.split(' ').next()? == "cgroup2").then_some(before.split(' ').nth(4)?)
        });
        match unified.next() {
            Some("/sys/fs/cgroup") => Finding::ok("kernel.cgroup", "cgroup v2 at /sys/fs/cgroup"),
            // systemd's hybrid layout: v2 stands at /sys/fs/cgroup/unified and has no controllers.
            Some(path) => Finding::new(Level::Note, "kernel.cgroup", format!("cgroup v2 at {path}, beside v1"))
                .why("processes are in v1 groups too; the paths that are shown are those of v2, often just /"),
            None => Finding::new(Level::Note, "kernel.cgroup", "no cgroup v2 is mounted")
                .why("cgroup paths of processes are not shown")
                .hint("boot with systemd.unified_cgroup_hierarchy=1; in a container, mount /sys/fs/cgroup"),
        }
    }
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

/// What follows `start` in the first line that begins so; empty when there is none. For `/proc/PID/status`, whose lines are a name,
/// a colon, a tab and a value (proc_pid_status(5)).
fn line_starting(root: &Path, path: &str, start: &str) -> String {
    let text = fs::read(root.join(path)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let rest = text.lines().find_map(|line| line.strip_prefix(start));
    rest.unwrap_or_default().trim().to_owned()
}

/// Far longer than any line of these files; a file with a longer one is not what its name says.
const MAX_LINE: u64 = 4096;
