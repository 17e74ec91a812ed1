//! Whether the kernel was built with the options that the probes need.
//!
//! Used by `kernel.rs`. The configuration says why a probe cannot be attached, and is no evidence that it can: distributions
//! install the file beside the kernel, and a lockdown or an LSM may forbid what was built in.
//! Does not: load a module, or judge options that only make the agent cheaper.

use std::fs;
use std::io::Read;
use std::path::Path;

use super::super::super::{Finding, Level};

/// One finding: all options that the probes need are set, or which are not and what that means. `release` is that of the running
/// kernel, `worst` the level of an option without which no probe works.
pub(super) fn check(root: &Path, release: &str, worst: Level) -> Finding {
    let Some((path, text)) = config_text(root, release) else {
        return Finding::new(
            Level::Note,
            "kernel.config",
            "the kernel's configuration is not readable here",
        )
        .why("its options cannot be checked beforehand; the probes above say what works")
        .hint("mount /boot, or use a kernel with CONFIG_IKCONFIG_PROC=y");
    };
    // A module counts as well: the kernel loads it when it is needed. An option that is off stands as a comment.
    let set = |option: &str| {
        text.lines().any(|line| {
            // The `=` is part of the match: one option's name may begin with another's.
            let value = line.strip_prefix(option).and_then(|rest| rest.strip_prefix('='));
            matches!(value, Some("y" | "m"))
        })
    };
    // In the order of the table, vital or not: one finding names them all.
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
        // One option alone needs no name before its reason: the finding names it.
        .map(|(option, why, _)| match missing[..] {
            [_] => (*why).to_owned(),
            _ => format!("{option}: {why}"),
        })
        .collect();
    // Where a vital option is missing and a probe is attached all the same, the file is not that of the running kernel.
    let level = if missing.iter().any(|(.., vital)| *vital) {
        worst
    } else {
        Level::Note
    };
    // What is missing, and below it what each option is for.
    Finding::new(
        level,
        "kernel.config",
        format!("not set in {path}: {}", names.join(" ")),
    )
    .why(reasons.join("; "))
    .hint("use a kernel with these options, as those of the large distributions have")
}

/// The configuration of the running kernel and where it stands, as text: the kernel's own copy (CONFIG_IKCONFIG_PROC,
/// `kernel/configs.c`), else the file that distributions install beside the kernel.
fn config_text(root: &Path, release: &str) -> Option<(String, String)> {
    // Decompressed on the way: the kernel keeps its copy as gzip.
    let compressed = root.join("proc/config.gz");
    if let Ok(file) = fs::File::open(&compressed) {
        let mut text = String::new();
        let reader = flate2::read::GzDecoder::new(file);
        // A file that is cut off or damaged is as good as none: the next place is tried.
        if reader.take(MAX_CONFIG).read_to_string(&mut text).is_ok() {
            return Some(("/proc/config.gz".to_owned(), text));
        }
    }
    // Distributions install one or the other.
    let paths = [
        format!("/boot/config-{release}"),
        format!("/lib/modules/{release}/config"),
    ];
    paths.into_iter().find_map(|path| {
        let mut text = String::new();
        // `join` with an absolute path would leave the root.
        let file = fs::File::open(root.join(&path[1..])).ok()?;
        file.take(MAX_CONFIG).read_to_string(&mut text).ok()?;
        Some((path, text))
    })
}

/// Option, what is lost without it, whether everything is. Their definitions, as in Linux 6.12: BPF_SYSCALL and BPF_JIT in
/// kernel/bpf/Kconfig, BPF_EVENTS and FTRACE in kernel/trace/Kconfig, DEBUG_INFO_BTF in lib/Kconfig.debug, KPROBES in
/// arch/Kconfig, CGROUPS and NET_NS in init/Kconfig, NF_CONNTRACK in net/netfilter/Kconfig.
const CONFIG: [(&str, &str, bool); 9] = [
    ("CONFIG_BPF_SYSCALL", "no probe works", true),
    (
        "CONFIG_BPF_JIT",
        "BPF programs are interpreted, and tp_btf and fentry are not available",
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
/// Configurations have about 300 KiB. The bound holds for the decompressed text, so that a small file cannot become a large one.
const MAX_CONFIG: u64 = 4 << 20;
