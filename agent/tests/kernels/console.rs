//! What every machine prints: `kernels/prelude` reports it. And the words that the judges of consoles share.
//!
//! Used by the tests `kernels` and, in the demo's crate, `guests`. Does not: judge what an agent reports.

use anyhow::{Context as _, Result, ensure};

use super::machines::Machine;

/// What a machine printed, judged.
pub struct Verdict {
    /// `uname -r`.
    pub release: String,
    /// The day, by the machine's clock (UTC).
    pub date: String,
    /// Its scenes, in their order.
    pub scenes: Vec<Ran>,
    /// Whether the kernel tracked connections, and translated one: without `nft` it does not.
    pub tracked: bool,
}

/// An agent on a machine.
#[derive(Default)]
pub struct Ran {
    /// The hook of each probe; empty where the agent must not run.
    pub rungs: Vec<(String, String)>,
    /// How its start went; none where it must not run.
    pub start: Option<Start>,
    /// What a plugin waited for that had its time by that reason; empty where none waits.
    pub waits: Vec<String>,
}

/// How long an agent took to start, by the machine's clock: emulation is slow.
pub struct Start {
    /// From the process' start until it was ready.
    pub ready_ms: u64,
    /// Programs that it loaded.
    pub programs: u64,
    /// In the system calls that load them, which is the kernel's verifier and compiler.
    pub load_ms: u64,
    /// Instructions that the verifier visited; 0 before Linux 5.16, which does not count them.
    pub instructions: u64,
}

/// Everything that must hold of every machine; its release and date.
pub fn booted(machine: &Machine, console: &str) -> Result<(String, String)> {
    ensure!(console.contains("\nend of the run"), "the run did not come to its end");
    ensure!(
        console.contains("\nmodules: yes\n"),
        "the kernel's modules could not be loaded"
    );
    let complaints: Vec<&str> = lines(console, "complaint: ").collect();
    ensure!(complaints.is_empty(), "the kernel complains: {complaints:?}");
    // cgroup v2 alone, as nodes have it.
    let cgroups: Vec<&str> = lines(console, "cgroups: ").collect();
    ensure!(
        matches!(cgroups[..], [mount] if mount.contains(" /sys/fs/cgroup cgroup2 ")),
        "not cgroup v2 alone: {cgroups:?}"
    );
    let booted = lines(console, "command line: ").next().unwrap_or_default();
    ensure!(booted.ends_with(machine.command_line), "command line: {booted}");
    let release = lines(console, "kernel: ").next().context("no kernel")?;
    let date = lines(console, "date: ").next().context("no date")?;
    Ok((
        release.split(' ').next().unwrap_or_default().to_owned(),
        date.to_owned(),
    ))
}

/// How the agent's start went: how long it took, and the log of its loader (`loader/family.rs`).
pub fn start(printed: &str) -> Result<Start> {
    let ready = lines(printed, "ready after: ")
        .next()
        .context("the agent was not ready")?;
    let loaded: Vec<&str> = printed
        .lines()
        .filter(|line| line.contains("loaded a program "))
        .collect();
    let sum = |field: &str| -> Result<u64> {
        let values = loaded.iter().map(|line| {
            let value = line
                .split_once(&format!(" {field}="))
                .map(|(_, rest)| rest.split(' ').next());
            let value = value.flatten().with_context(|| format!("no {field}: {line}"))?;
            Ok(value.parse::<u64>()?)
        });
        values.sum()
    };
    ensure!(!loaded.is_empty(), "the log names no program that was loaded");
    Ok(Start {
        ready_ms: ready.trim_end_matches(" ms").parse().context("ready after")?,
        programs: u64::try_from(loaded.len())?,
        load_ms: sum("took_us")? / 1000,
        instructions: sum("verified")?,
    })
}

/// What stands behind `begin` in the lines that begin so.
pub fn lines<'a>(console: &'a str, begin: &'a str) -> impl Iterator<Item = &'a str> {
    console.lines().filter_map(move |line| line.strip_prefix(begin))
}

/// What stands between the lines `begin NAME` and `end NAME`.
pub fn part<'a>(console: &'a str, name: &str) -> Result<&'a str> {
    let behind = console
        .split_once(&format!("begin {name}\n"))
        .with_context(|| format!("no begin of {name}"))?
        .1;
    Ok(behind
        .split_once(&format!("end {name}\n"))
        .with_context(|| format!("no end of {name}"))?
        .0)
}

/// What a plugin can be had to wait for (`waits` and `settling` of `kernels/init`).
pub const WAITS: [&str; 7] = [
    "pipe",
    "timer",
    "network",
    "kernel_lock",
    "file_lock",
    "disk",
    "kernel_work",
];

/// Each probe, with the hooks of which one must be in use.
pub const PROBES: [(&str, &[&str]); 7] = [
    ("exec", &["tp_btf", "raw_tp"]),
    ("stdio", &["pipe pages at exit"]),
    ("netns", &["/proc/PID/root, inotify"]),
    ("connect", &["tp_btf inet_sock_set_state", "raw_tp inet_sock_set_state"]),
    ("drops", &["tp_btf", "tp_btf without reason"]),
    ("dns", &["cgroup_skb"]),
    ("conntrack", &["ctnetlink filter"]),
];
