//! Compares the console of a machine with what `kernels/init` must print on it.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::machines::{Expected, Family, Machine, Missing, Profile, Scene};

/// What a machine printed, judged.
pub struct Verdict {
    /// `uname -r`.
    pub release: String,
    /// The day, by the machine's clock (UTC).
    pub date: String,
    /// The hook of each probe in each scene; empty where the agent must not run.
    pub rungs: Vec<Vec<(String, String)>>,
    /// Whether the kernel tracked connections, and translated one: without `nft` it does not.
    pub tracked: bool,
}

/// Everything that must hold of the machine.
pub fn judge(machine: &Machine, console: &str) -> Result<Verdict> {
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
    let of_other_family = |address: &&str| match machine.family {
        Family::V4 => false,
        Family::V6 => address.starts_with("inet "),
    };
    let others: Vec<&str> = lines(console, "address: ").filter(of_other_family).collect();
    ensure!(others.is_empty(), "addresses of the other family: {others:?}");
    let release = lines(console, "kernel: ").next().context("no kernel")?;
    let mut rungs = Vec::new();
    for (number, scene) in machine.scenes.iter().enumerate() {
        let printed = part(console, &format!("scene {number}"))?;
        ensure!(!printed.contains("panicked at"), "{}: the agent panics", scene.name);
        rungs.push(of_scene(scene, console, printed).with_context(|| format!("scene: {}", scene.name))?);
    }
    Ok(Verdict {
        release: release.split(' ').next().unwrap_or_default().to_owned(),
        date: lines(console, "date: ").next().context("no date")?.to_owned(),
        rungs,
        tracked: tracks_connections(console),
    })
}

fn of_scene(scene: &Scene, console: &str, printed: &str) -> Result<Vec<(String, String)>> {
    if scene.profile != Profile::None {
        let enforced = format!("{} (enforce)", scene.profile.name());
        ensure!(
            lines(console, "profile: ").any(|profile| profile == enforced),
            "the profile is not enforced"
        );
        if let Expected::Runs { .. } = scene.expected {
            ensure!(
                lines(printed, "confined by: ").any(|label| label == enforced),
                "the agent is not below the profile"
            );
        }
    }
    match &scene.expected {
        Expected::Runs { without } => runs(scene, without, console, printed),
        Expected::Refuses {
            code,
            hint,
            findings: wanted,
        } => {
            ensure!(
                printed.contains(&format!("\nagent ended with {code}\n")),
                "the agent did not end with {code}"
            );
            ensure!(
                lines(printed, "log: ").any(|line| line.contains(hint)),
                "the agent's hint lacks: {hint}"
            );
            ensure!(
                printed.contains(&format!("\ndoctor ended with {code}\n")),
                "doctor did not end with {code}"
            );
            let found = findings(printed)?;
            for (check, text) in *wanted {
                ensure!(has(&found, check, text), "doctor does not report {check}: {text}");
            }
            Ok(Vec::new())
        }
    }
}

/// An agent that runs: its probes, and what it counted.
fn runs(scene: &Scene, without: &[Missing], console: &str, printed: &str) -> Result<Vec<(String, String)>> {
    ensure!(
        printed.contains("\nagent ended with 0\n"),
        "the agent did not end as it should"
    );
    if let Some(mask) = scene.capabilities.mask() {
        ensure!(
            printed.contains(&format!("CapEff:\t{mask:016x}\n"))
                && printed.contains(&format!("CapBnd:\t{mask:016x}\n")),
            "the agent has other capabilities"
        );
    }
    let metrics = part(printed, "metrics")?;
    let mut rungs = Vec::new();
    for (probe, hooks) in PROBES {
        let hooks = match without.iter().find(|missing| missing.probe == probe) {
            Some(_) => &["none"],
            None => hooks,
        };
        let attached = |hook: &&&str| {
            let value = u8::from(**hook != "none");
            metrics.contains(&format!(
                "\nsandglass_probe_attached{{probe=\"{probe}\",hook=\"{hook}\"}} {value}\n"
            ))
        };
        let hook = hooks
            .iter()
            .find(attached)
            .with_context(|| format!("the hook of probe {probe} is not one of {hooks:?}"))?;
        rungs.push((probe.to_owned(), (*hook).to_owned()));
    }
    if !without.is_empty() {
        reported_as_missing(without, printed)?;
    }
    let release = lines(console, "kernel: ").next().context("no kernel")?;
    waits(release, metrics, printed)?;
    let has_dns = !without.iter().any(|missing| missing.probe == "dns");
    for (metric, count) in COUNTS {
        let count = if metric.starts_with("sandglass_dns_") && !has_dns {
            continue;
        } else {
            count
        };
        ensure!(
            metrics.contains(&format!("\n{metric} {count}\n")),
            "not {count}: {metric}"
        );
    }
    // busybox repeats its query; each is dropped, and so is the request for a connection that is refused.
    let queries = sum(metrics, "sandglass_dns_queries_total{scope=\"sandbox\"");
    let dropped = sum(metrics, "sandglass_packet_drops_total{scope=\"sandbox\",packet=\"dns\"");
    ensure!(
        dropped > 0 && (!has_dns || dropped == queries),
        "{dropped} drops of {queries} queries are reported"
    );
    let refused = sum(
        metrics,
        "sandglass_packet_drops_total{scope=\"sandbox\",packet=\"tcp_syn\"",
    );
    ensure!(
        refused == 1,
        "{refused} drops of a request for a connection are reported"
    );
    if tracks_connections(console) && !without.iter().any(|missing| missing.probe == "conntrack") {
        // Both connections and the lookup, whose repeated query is of the same flow.
        for (series, count) in [
            ("sandglass_conntrack_flows_total{scope=\"sandbox\",change=\"new\"}", 3),
            ("sandglass_conntrack_nat_total{scope=\"sandbox\",nat=\"dnat\"}", 1),
        ] {
            let counted = sum(metrics, series);
            ensure!(counted == count, "{counted}, not {count}: {series}");
        }
    }
    let lost = |line: &str| line.starts_with("sandglass_events_lost_total{") && !line.ends_with(" 0");
    ensure!(!metrics.lines().any(lost), "events were lost");
    let sandboxes = part(printed, "sandboxes")?;
    ensure!(!metrics.contains("plugin=\"false\""), "a forged plugin is a label");
    ensure!(
        !sandboxes.contains("forged") && !sandboxes.contains("victim"),
        "a forged plugin is a sandbox"
    );
    for wanted in [
        "\"verdict\":\"plugin plug failed: no policy allows this pod\"",
        "\"pod\":\"good\"",
        "\"pod\":\"large\"",
    ] {
        ensure!(sandboxes.contains(wanted), "the list of sandboxes lacks {wanted}");
    }
    Ok(rungs)
}

/// The plugin that slept for four seconds has that time by its reason. On 5.10 the log says what is missing: the kernel names its
/// functions to a BPF program from 5.13 on.
fn waits(release: &str, metrics: &str, printed: &str) -> Result<()> {
    const SLEPT: &str = "\nsandglass_cni_time_seconds_total{operation=\"ADD\",plugin=\"plug\",reason=\"timer\"} ";
    if release.starts_with("5.10.") {
        ensure!(
            metrics.contains("\nsandglass_probe_attached{probe=\"waits\",hook=\"none\"} 0\n"),
            "waits are recorded, which 5.10 cannot"
        );
        ensure!(
            printed.contains("consequence=\"traces do not say what plugins waited for: "),
            "the log does not say why waits are not recorded"
        );
        return Ok(());
    }
    ensure!(
        metrics.contains("\nsandglass_probe_attached{probe=\"waits\",hook=\"tp_btf, while a plugin is slow\"} 1\n"),
        "waits are not recorded"
    );
    let (_, slept) = metrics.split_once(SLEPT).context("no time of a timer")?;
    let slept: f64 = slept.lines().next().unwrap_or_default().parse()?;
    ensure!(slept >= 3.9, "{slept} s of a sleep of 4 s");
    Ok(())
}

/// Health page and `doctor` name each probe that is missing, and why.
fn reported_as_missing(without: &[Missing], printed: &str) -> Result<()> {
    let health: Value = serde_json::from_str(part(printed, "health")?.trim()).context("the health page")?;
    let found = findings(printed)?;
    for missing in without {
        let probes = health["probes"].as_array().context("no probes on the health page")?;
        let status = probes.iter().find(|status| status["probe"] == missing.probe);
        let status = status.with_context(|| format!("no probe {} on the health page", missing.probe))?;
        ensure!(
            status["attached"] == false && status.to_string().contains(missing.names),
            "the health page does not name {}: {status}",
            missing.names
        );
        let title = format!("{}: none", missing.probe);
        let finding = found
            .iter()
            .find(|finding| finding["check"] == "probe" && finding["what"] == title);
        let finding = finding.with_context(|| format!("doctor does not report {title}"))?;
        ensure!(
            finding["level"] == "warn" && finding.to_string().contains(missing.names),
            "doctor does not name {}: {finding}",
            missing.names
        );
    }
    Ok(())
}

/// The findings of `sandglass doctor --json`, of all sections.
fn findings(printed: &str) -> Result<Vec<Value>> {
    let report: Value = serde_json::from_str(part(printed, "doctor")?.trim()).context("doctor's report")?;
    let sections = report["sections"].as_array().context("no sections")?;
    let findings = sections
        .iter()
        .filter_map(|section| section["findings"].as_array())
        .flatten();
    Ok(findings.cloned().collect())
}

fn tracks_connections(console: &str) -> bool {
    lines(console, "translated: ").any(|word| word == "yes")
}

/// The sum of the series that begin so.
fn sum(metrics: &str, begin: &str) -> u64 {
    let series = metrics.lines().filter(|line| line.starts_with(begin));
    series
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

fn has(findings: &[Value], check: &str, text: &str) -> bool {
    findings
        .iter()
        .any(|finding| finding["check"] == check && finding["what"].as_str().is_some_and(|what| what.contains(text)))
}

/// What stands behind `begin` in the lines that begin so.
fn lines<'a>(console: &'a str, begin: &'a str) -> impl Iterator<Item = &'a str> {
    console.lines().filter_map(move |line| line.strip_prefix(begin))
}

/// What stands between the lines `begin NAME` and `end NAME`.
fn part<'a>(console: &'a str, name: &str) -> Result<&'a str> {
    let behind = console
        .split_once(&format!("begin {name}\n"))
        .with_context(|| format!("no begin of {name}"))?
        .1;
    Ok(behind
        .split_once(&format!("end {name}\n"))
        .with_context(|| format!("no end of {name}"))?
        .0)
}

/// Each probe, with the hooks of which one must be in use.
const PROBES: [(&str, &[&str]); 7] = [
    ("exec", &["tp_btf", "raw_tp"]),
    ("stdio", &["pipe pages at exit"]),
    ("netns", &["/proc/PID/root, inotify"]),
    ("connect", &["tp_btf inet_sock_set_state", "raw_tp inet_sock_set_state"]),
    ("drops", &["tp_btf", "tp_btf without reason"]),
    ("dns", &["cgroup_skb"]),
    ("conntrack", &["ctnetlink filter"]),
];

/// What `traffic` of `kernels/init` comes to.
const COUNTS: [(&str, u32); 10] = [
    (
        "sandglass_cni_plugin_duration_seconds_count{operation=\"ADD\",plugin=\"plug\",result=\"success\"}",
        3,
    ),
    (
        "sandglass_cni_plugin_duration_seconds_count{operation=\"ADD\",plugin=\"plug\",result=\"error\"}",
        1,
    ),
    // From the plugin's own message: its exit code alone would be another class.
    (
        "sandglass_cni_operation_errors_total{operation=\"ADD\",plugin=\"plug\",error=\"cni_try_again_later\"}",
        1,
    ),
    (
        "sandglass_connect_duration_seconds_count{scope=\"sandbox\",result=\"established\"}",
        1,
    ),
    (
        "sandglass_connect_duration_seconds_count{scope=\"sandbox\",result=\"refused\"}",
        1,
    ),
    ("sandglass_dns_unanswered_total{scope=\"sandbox\"}", 1),
    (
        "sandglass_untrusted_processes_total{claim=\"plugin\",reason=\"capabilities\"}",
        1,
    ),
    (
        "sandglass_untrusted_processes_total{claim=\"plugin\",reason=\"pid_namespace\"}",
        1,
    ),
    (
        "sandglass_untrusted_processes_total{claim=\"plugin\",reason=\"user_namespace\"}",
        1,
    ),
    (
        "sandglass_untrusted_processes_total{claim=\"runtime\",reason=\"capabilities\"}",
        1,
    ),
];
