//! The machines that the tests `kernels` and, in the demo's crate, `guests` boot, one entry each, and what the agent must report
//! on them.
//!
//! A kernel is one line of [`MACHINES`]; what differs from [`PLAIN`] is named in it.

/// A machine that QEMU emulates.
#[derive(Clone, Copy)]
pub struct Machine {
    /// As the table in docs/systems.md names it.
    pub name: &'static str,
    /// Its processor.
    pub platform: &'static Platform,
    /// The begin of the kernel's release, without a dot behind it: `6.1` is not 6.12.
    pub series: &'static str,
    /// Which of Debian's builds of that kernel.
    pub flavour: Flavour,
    /// What is added to the kernel's command line.
    pub command_line: &'static str,
    /// The addresses of its interfaces, the loopback interface included.
    pub family: Family,
    /// What happens on it, in this order.
    pub scenes: &'static [Scene],
}

/// What the emulator needs to know of an architecture.
pub struct Platform {
    /// As in the table.
    pub name: &'static str,
    /// The place of its kernels (`scripts/places.sh`).
    pub place: &'static str,
    pub emulator: &'static str,
    /// QEMU's `-accel`.
    pub accelerator: &'static str,
    /// QEMU's `-cpu`.
    pub processor: &'static str,
    /// Of GNU binutils, for its programs.
    pub strip: &'static str,
    pub options: &'static [&'static str],
    pub console: &'static str,
    /// What its kernels need on their command line.
    pub command_line: &'static str,
    /// How Debian's kernels of it end.
    pub suffix: &'static str,
}

/// A build of a kernel by Debian.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// linux-image-*-cloud-*: no drivers for hardware.
    Cloud,
    /// linux-image-*-amd64.
    Generic,
    /// linux-image-*-rt-amd64: PREEMPT_RT.
    RealTime,
    /// linux-image-*-arm64-16k: pages of 16 KiB.
    Pages16,
    /// Of Debian's sources, small and without type information: built, not fetched (`scripts/kernel-without-btf.sh`).
    WithoutBtf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// An agent on a machine, and what happens there meanwhile.
pub struct Scene {
    /// As the table names it.
    pub name: &'static str,
    pub capabilities: Capabilities,
    pub profile: Profile,
    /// Whether `/sys/kernel/btf` is in sight. The kernel has the information in any case: an empty file system is mounted over the
    /// folder, which is what the agent would find on a kernel without CONFIG_DEBUG_INFO_BTF.
    pub btf: bool,
    /// Whether a plugin waits for one thing after the other (`waits` of `kernels/init`): half a minute.
    pub waits: bool,
    /// Whether the machine is suspended to RAM while a plugin runs (`suspending` of `kernels/init`): ten seconds, in most of which it does nothing.
    pub suspends: bool,
    pub expected: Expected,
}

/// The capabilities of an agent that is root.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Capabilities {
    All,
    /// linux.capabilities of the chart (deploy/helm/sandglass/values.yaml).
    Chart,
    /// Those, and what raises the limit of locked memory.
    ChartAndResource,
    /// What no probe works without.
    BpfAndPerfmon,
    None,
}

/// What a security module makes of an agent: its AppArmor profile, or its SELinux domain.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Not confined by either.
    None,
    /// That of containerd for containers (`kernels/cri-containerd.apparmor.d`).
    Runtime,
    /// That of the chart (`deploy/helm/sandglass/profiles/apparmor`).
    Ours,
    /// The domain of this type, in the policy of Debian trixie.
    Domain(&'static str),
}

/// What the agent does.
pub enum Expected {
    /// It runs, and counts what happens, but for what these probes see.
    Runs { without: &'static [Missing] },
    /// It ends with this code, prints this hint, and `doctor` has each of these findings.
    Refuses {
        code: i32,
        hint: &'static str,
        findings: &'static [(&'static str, &'static str)],
    },
    /// It traces pods of a containerd completely: a machine of the test `guests`.
    Pods,
}

/// A probe that cannot be attached.
pub struct Missing {
    pub probe: &'static str,
    /// What its status names: a capability, or the error of the kernel.
    pub names: &'static str,
}

pub const X86_64: Platform = Platform {
    name: "x86_64",
    place: "kernels",
    emulator: "qemu-system-x86_64",
    // Both processors on one thread, in turns. On two threads QEMU 7.2 loses races over code that the kernel patches while it runs
    // (arch/x86/kernel/alternative.c, smp_text_poke_batch_finish): "Oops: int3" before the first process, or no progress, in two of
    // ninety boots.
    accelerator: "tcg,thread=single",
    processor: "max",
    strip: "strip",
    options: &[],
    console: "ttyS0",
    // A busy host may not let the timer tick while the kernel counts its ticks at boot, which it takes for broken hardware: it panics
    // (arch/x86/kernel/apic/io_apic.c, check_timer).
    command_line: "no_timer_check",
    suffix: "amd64",
};
pub const ARM64: Platform = Platform {
    name: "arm64",
    place: "kernels_arm64",
    emulator: "qemu-system-aarch64",
    // On two threads a processor that the host does not run makes the other one spin.
    accelerator: "tcg,thread=single",
    // Pointer authentication as real processors have it, but with a hash that is quick to compute in place of QARMA5, in which QEMU spent half
    // of its time (QEMU's docs/system/arm/cpu-features.rst, "TCG VCPU Features").
    processor: "max,pauth-impdef=on",
    strip: "aarch64-linux-gnu-strip",
    options: &["-machine", "virt"],
    console: "ttyAMA0",
    command_line: "",
    suffix: "arm64",
};

/// An agent with all privileges.
const ROOT: Scene = Scene {
    name: "root",
    capabilities: Capabilities::All,
    profile: Profile::None,
    btf: true,
    waits: true,
    suspends: false,
    expected: Expected::Runs { without: &[] },
};
/// The traces of plugins that waited are asked for together with those around the suspend.
const SUSPENDED: Scene = Scene { suspends: true, ..ROOT };
const CHART: Scene = Scene {
    name: "the chart's capabilities",
    capabilities: Capabilities::Chart,
    ..ROOT
};
const CHART_BELOW_RUNTIME_PROFILE: Scene = Scene {
    name: "the chart's capabilities, AppArmor profile of containerd",
    profile: Profile::Runtime,
    waits: false,
    expected: Expected::Runs {
        without: &[Missing {
            probe: "netns",
            names: "AppArmor",
        }],
    },
    ..CHART
};
const CHART_BELOW_OURS: Scene = Scene {
    name: "the chart's capabilities, AppArmor profile of the chart",
    profile: Profile::Ours,
    waits: false,
    ..CHART
};
const CHART_BRIEFLY: Scene = Scene { waits: false, ..CHART };
/// What the chart asks for where SELinux enforces: nothing is denied to it but what its capabilities lack.
const SPC: Profile = Profile::Domain("spc_t");
const CHART_AS_SPC: Scene = Scene {
    name: "the chart's capabilities, SELinux type spc_t",
    profile: SPC,
    ..CHART_BRIEFLY
};
/// What a container runs as unless it asks for another type.
const CHART_AS_CONTAINER: Scene = Scene {
    name: "the chart's capabilities, SELinux type container_t",
    profile: Profile::Domain("container_t"),
    expected: Expected::Refuses {
        code: 77,
        hint: "SELinux type spc_t",
        findings: &[
            ("probe", "exec: none"),
            ("privilege.selinux", "SELinux domain system_u:system_r:container_t:s0"),
        ],
    },
    ..CHART_BRIEFLY
};
const BPF_AND_PERFMON_AS_SPC: Scene = Scene {
    name: "BPF and PERFMON, SELinux type spc_t",
    profile: SPC,
    ..BPF_AND_PERFMON
};
const NO_CAPABILITY_AS_SPC: Scene = Scene {
    name: "no capability, SELinux type spc_t",
    profile: SPC,
    ..NO_CAPABILITY
};
/// Before Linux 5.11 maps count as locked memory, of which a process may have 64 KiB here.
const CHART_BEFORE_5_11: Scene = Scene {
    expected: Expected::Refuses {
        code: 77,
        hint: "before Linux 5.11 the maps of probes count as locked memory: add CAP_SYS_RESOURCE",
        findings: &[
            ("probe", "exec: none"),
            ("privilege.capabilities", "CAP_SYS_RESOURCE is missing"),
        ],
    },
    ..CHART_BRIEFLY
};
const BPF_AND_PERFMON_BEFORE_5_11: Scene = Scene {
    name: BPF_AND_PERFMON.name,
    capabilities: Capabilities::BpfAndPerfmon,
    ..CHART_BEFORE_5_11
};
const CHART_AND_SYS_RESOURCE: Scene = Scene {
    name: "the chart's capabilities and SYS_RESOURCE",
    capabilities: Capabilities::ChartAndResource,
    ..CHART_BRIEFLY
};
const BPF_AND_PERFMON: Scene = Scene {
    name: "BPF and PERFMON",
    capabilities: Capabilities::BpfAndPerfmon,
    waits: false,
    expected: Expected::Runs {
        without: &[
            Missing {
                probe: "netns",
                names: "CAP_SYS_PTRACE",
            },
            Missing {
                probe: "dns",
                names: "CAP_NET_ADMIN",
            },
            Missing {
                probe: "conntrack",
                names: "CAP_NET_ADMIN",
            },
        ],
    },
    ..ROOT
};
const NO_CAPABILITY: Scene = Scene {
    name: "no capability",
    capabilities: Capabilities::None,
    expected: Expected::Refuses {
        code: 77,
        hint: "needs CAP_BPF and CAP_PERFMON",
        findings: &[
            ("probe", "exec: none"),
            ("privilege.capabilities", "CAP_BPF is missing"),
            ("privilege.capabilities", "CAP_PERFMON is missing"),
            ("privilege.capabilities", "CAP_SYS_PTRACE is missing"),
            ("privilege.capabilities", "CAP_NET_ADMIN is missing"),
        ],
    },
    ..ROOT
};
const NO_BTF: Scene = Scene {
    name: "/sys/kernel/btf hidden",
    btf: false,
    expected: Expected::Refuses {
        code: 69,
        hint: "needs a kernel built with CONFIG_DEBUG_INFO_BTF=y",
        findings: &[("probe", "exec: none"), ("kernel.btf", "no type information (BTF)")],
    },
    ..ROOT
};
/// A kernel that has none.
const WITHOUT_BTF: Scene = Scene {
    name: ROOT.name,
    btf: true,
    ..NO_BTF
};
const PODS: Scene = Scene {
    name: "root, beside containerd",
    expected: Expected::Pods,
    ..ROOT
};
/// Lockdown refuses whoever may load programs otherwise.
const LOCKED_DOWN: Scene = Scene {
    name: "root",
    expected: Expected::Refuses {
        code: 69,
        hint: "not shut off by lockdown",
        findings: &[("probe", "exec: none"), ("kernel.lockdown", "confidentiality")],
    },
    ..ROOT
};
const CHART_LOCKED_DOWN: Scene = Scene {
    name: CHART.name,
    capabilities: Capabilities::Chart,
    ..LOCKED_DOWN
};
const BPF_AND_PERFMON_LOCKED_DOWN: Scene = Scene {
    name: BPF_AND_PERFMON.name,
    capabilities: Capabilities::BpfAndPerfmon,
    ..LOCKED_DOWN
};

/// Debian's kernel for clouds as it is, with IPv4 and an agent with all privileges.
pub const PLAIN: Machine = Machine {
    name: "",
    platform: &X86_64,
    series: "",
    flavour: Flavour::Cloud,
    command_line: "",
    family: Family::V4,
    scenes: &[ROOT],
};

/// Every machine, in the order of the table. 5.10 is the oldest series that probes are built for. A kernel of x86_64 with one command line is
/// booted once, with all its scenes; what a plugin waits for is asserted of [`ROOT`] or [`CHART`] on each.
#[rustfmt::skip]
pub const MACHINES: [Machine; 15] = [
    Machine { name: "5.10", series: "5.10", scenes: &[ROOT, CHART_BEFORE_5_11, CHART_AND_SYS_RESOURCE, BPF_AND_PERFMON_BEFORE_5_11, NO_CAPABILITY], ..PLAIN },
    Machine { name: "6.1", series: "6.1", scenes: &[ROOT, CHART_BRIEFLY, BPF_AND_PERFMON, NO_CAPABILITY, NO_BTF], ..PLAIN },
    Machine { name: "6.12", series: "6.12", scenes: &[CHART, BPF_AND_PERFMON, NO_CAPABILITY, NO_BTF, SUSPENDED], ..PLAIN },
    Machine { name: "7", series: "7", scenes: &[ROOT, CHART, BPF_AND_PERFMON, NO_CAPABILITY, NO_BTF], ..PLAIN },
    Machine { name: "6.1 generic, AppArmor", series: "6.1", flavour: Flavour::Generic, command_line: "apparmor=1 security=apparmor", scenes: &[CHART_BELOW_RUNTIME_PROFILE, CHART_BELOW_OURS, BPF_AND_PERFMON, NO_CAPABILITY], ..PLAIN },
    Machine { name: "6.12 PREEMPT_RT, IPv6 alone", series: "6.12", flavour: Flavour::RealTime, family: Family::V6, scenes: &[CHART, BPF_AND_PERFMON, NO_CAPABILITY], ..PLAIN },
    Machine { name: "6.1 SELinux", series: "6.1", command_line: "security=selinux selinux=1 enforcing=1", scenes: &SELINUX, ..PLAIN },
    Machine { name: "6.12 SELinux", series: "6.12", command_line: "security=selinux selinux=1 enforcing=1", scenes: &SELINUX, ..PLAIN },
    Machine { name: "6.12 lockdown", series: "6.12", command_line: "lockdown=confidentiality", scenes: &[LOCKED_DOWN, CHART_LOCKED_DOWN, BPF_AND_PERFMON_LOCKED_DOWN, NO_CAPABILITY], ..PLAIN },
    Machine { name: "6.1 without BTF", series: "6.1", flavour: Flavour::WithoutBtf, scenes: &[WITHOUT_BTF], ..PLAIN },
    Machine { name: "6.1 pods", series: "6.1", scenes: &[PODS], ..PLAIN },
    Machine { name: "6.12 pods", series: "6.12", scenes: &[PODS], ..PLAIN },
    Machine { name: "6.1 arm64", platform: &ARM64, series: "6.1", scenes: &CAPABILITY_SETS, ..PLAIN },
    Machine { name: "6.12 arm64", platform: &ARM64, series: "6.12", scenes: &CAPABILITY_SETS, ..PLAIN },
    Machine { name: "6.12 arm64, pages of 16 KiB", platform: &ARM64, series: "6.12", flavour: Flavour::Pages16, scenes: &CAPABILITY_SETS, ..PLAIN },
];

/// All privileges, then each set of capabilities that an agent may have been given.
const CAPABILITY_SETS: [Scene; 4] = [ROOT, CHART_BRIEFLY, BPF_AND_PERFMON, NO_CAPABILITY];
/// Those, as the chart has the agent run where SELinux enforces, and what a container runs as otherwise.
const SELINUX: [Scene; 4] = [
    CHART_AS_SPC,
    BPF_AND_PERFMON_AS_SPC,
    NO_CAPABILITY_AS_SPC,
    CHART_AS_CONTAINER,
];

impl Machine {
    /// A kernel of this release, without another property.
    pub fn plain(release: &'static str, platform: &'static Platform) -> Machine {
        Machine {
            name: release,
            series: release,
            platform,
            flavour: Flavour::of(release, platform),
            ..PLAIN
        }
    }

    /// Whether a folder of the cache, which has the kernel's release as its name, is of this machine's series and flavour.
    pub fn takes(&self, release: &str) -> bool {
        release
            .strip_prefix(self.series)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            && self.flavour == Flavour::of(release, self.platform)
    }

    /// Whether pods of a containerd are made on it.
    pub fn has_pods(&self) -> bool {
        self.scenes.iter().any(|scene| matches!(scene.expected, Expected::Pods))
    }

    pub fn is_arm64(&self) -> bool {
        self.platform.name == ARM64.name
    }

    /// What puts its kernel into the cache.
    pub fn script(&self) -> &'static str {
        match self.flavour {
            Flavour::WithoutBtf => "scripts/kernel-without-btf.sh",
            _ if self.is_arm64() => "scripts/kernels-arm64.sh",
            _ => "scripts/kernels.sh",
        }
    }
}

impl Flavour {
    fn of(release: &str, platform: &Platform) -> Flavour {
        if release.ends_with("-16k") {
            return Flavour::Pages16;
        }
        if release.ends_with("-without-btf") {
            return Flavour::WithoutBtf;
        }
        match release.strip_suffix(platform.suffix) {
            Some(release) if release.ends_with("-cloud-") => Flavour::Cloud,
            Some(release) if release.ends_with("-rt-") => Flavour::RealTime,
            _ => Flavour::Generic,
        }
    }
}

impl Scene {
    /// Whether the waits of a plugin are judged.
    pub fn is_to_wait(&self) -> bool {
        self.waits && matches!(self.expected, Expected::Runs { .. })
    }

    /// Whether it is the agent's domain that keeps it from loading programs, and not a capability that it lacks.
    pub fn is_stopped_by_selinux(&self) -> bool {
        match self.expected {
            Expected::Refuses { findings, .. } => findings.iter().any(|(check, _)| *check == "privilege.selinux"),
            Expected::Runs { .. } | Expected::Pods => false,
        }
    }

    /// The line of `/machine`: number, kind, capabilities, profile, BTF, waits, suspends (`scene` of `kernels/init`).
    pub fn call(&self, number: usize) -> String {
        let kind = match self.expected {
            Expected::Runs { .. } | Expected::Pods => "traffic",
            Expected::Refuses { .. } => "refused",
        };
        let btf = if self.btf { "shown" } else { "hidden" };
        let [waits, suspends] = [self.waits, self.suspends].map(|is| if is { "yes" } else { "no" });
        format!(
            "scene {number} {kind} {} {} {btf} {waits} {suspends}",
            self.capabilities.set(),
            self.profile.name()
        )
    }
}

impl Capabilities {
    /// As `confined` of `kernels/init` takes them.
    fn set(self) -> &'static str {
        match self {
            Capabilities::All => "all",
            Capabilities::Chart => "-all,+bpf,+perfmon,+sys_ptrace,+net_admin",
            Capabilities::ChartAndResource => "-all,+bpf,+perfmon,+sys_ptrace,+net_admin,+sys_resource",
            Capabilities::BpfAndPerfmon => "-all,+bpf,+perfmon",
            Capabilities::None => "-all",
        }
    }

    /// The effective set as the kernel shows it (proc_pid_status(5), `CapEff`). Bits: include/uapi/linux/capability.h.
    pub fn mask(self) -> Option<u64> {
        let (bpf, perfmon, sys_ptrace, net_admin, sys_resource) = (1 << 39, 1 << 38, 1 << 19, 1 << 12, 1 << 24);
        match self {
            Capabilities::All => None,
            Capabilities::Chart => Some(bpf | perfmon | sys_ptrace | net_admin),
            Capabilities::ChartAndResource => Some(bpf | perfmon | sys_ptrace | net_admin | sys_resource),
            Capabilities::BpfAndPerfmon => Some(bpf | perfmon),
            Capabilities::None => Some(0),
        }
    }
}

impl Profile {
    /// The name that its text declares, which the file in the machine has too; of a domain as `confined` of `kernels/init` takes it.
    pub fn name(self) -> String {
        match self {
            Profile::None => "none".to_owned(),
            Profile::Runtime => "cri-containerd.apparmor.d".to_owned(),
            Profile::Ours => "sandglass".to_owned(),
            Profile::Domain(kind) => format!("selinux:{kind}"),
        }
    }

    /// Whether AppArmor must know it.
    pub fn is_of_apparmor(self) -> bool {
        matches!(self, Profile::Runtime | Profile::Ours)
    }

    /// The process' label (proc_pid_attr(5), `current`).
    pub fn label(self) -> String {
        match self {
            Profile::None => "unconfined".to_owned(),
            Profile::Runtime | Profile::Ours => format!("{} (enforce)", self.name()),
            Profile::Domain(kind) => format!("system_u:system_r:{kind}:s0"),
        }
    }
}
