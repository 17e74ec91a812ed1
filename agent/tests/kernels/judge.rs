//! Compares the console of a machine with what `kernels/init` must print on it.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::console::{PROBES, Ran, Verdict, booted, lines, part, start};
use super::machines::{Expected, Family, Machine, Missing, Profile, Scene};
use super::suspend;

/// Everything that must hold of the machine.
pub fn judge(machine: &Machine, console: &str) -> Result<Verdict> {
    let (release, date) = booted(machine, console)?;
    let of_other_family = |address: &&str| match machine.family {
        Family::V4 => false,
        Family::V6 => address.starts_with("inet "),
    };
    let others: Vec<&str> = lines(console, "address: ").filter(of_other_family).collect();
    ensure!(others.is_empty(), "addresses of the other family: {others:?}");
    let mut scenes = Vec::new();
    for (number, scene) in machine.scenes.iter().enumerate() {
        let printed = part(console, &format!("scene {number}"))?;
        ensure!(!printed.contains("panicked at"), "{}: the agent panics", scene.name);
        if scene.suspends {
            suspend::judge(printed).with_context(|| format!("scene: {}", scene.name))?;
        }
        scenes.push(of_scene(scene, console, printed).with_context(|| format!("scene: {}", scene.name))?);
    }
    Ok(Verdict {
        release,
        date,
        scenes,
        tracked: tracks_connections(console),
    })
}

fn of_scene(scene: &Scene, console: &str, printed: &str) -> Result<Ran> {
    if scene.profile != Profile::None {
        confined(scene, console, printed)?;
    }
    match &scene.expected {
        Expected::Runs { without } => Ok(Ran {
            rungs: runs(scene, without, console, printed)?,
            start: Some(start(printed)?),
            waits: waits(scene, console, part(printed, "metrics")?, printed)?,
        }),
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
            Ok(Ran::default())
        }
        Expected::Pods => bail!("not a scene of this test"),
    }
}

/// The security module enforces, and the agent is below the profile or in the domain. Of an agent that SELinux stops, the kernel's
/// log and the agent's message name the domain; to another agent SELinux denies nothing.
fn confined(scene: &Scene, console: &str, printed: &str) -> Result<()> {
    let label = scene.profile.label();
    let enforced = match scene.profile {
        Profile::Domain(_) => lines(console, "selinux enforces: ").any(|mode| mode == "1"),
        _ => lines(console, "profile: ").any(|profile| profile == label),
    };
    ensure!(enforced, "{label} is not enforced");
    let runs = matches!(scene.expected, Expected::Runs { .. });
    ensure!(
        !runs || lines(printed, "confined by: ").any(|by| by == label),
        "the agent is not confined by {label}"
    );
    if !matches!(scene.profile, Profile::Domain(_)) {
        return Ok(());
    }
    ensure!(
        lines(printed, "denials: ").any(|which| which == "all"),
        "the kernel's log of what SELinux denies is behind"
    );
    let denied: Vec<&str> = lines(printed, "avc: ")
        .filter(|line| line.contains(" denied "))
        .collect();
    let named = lines(printed, "log: ").any(|line| line.contains(&label));
    if !scene.is_stopped_by_selinux() {
        ensure!(denied.is_empty(), "SELinux denies {label}: {denied:?}");
        ensure!(!named, "the agent's message names {label}, which denied nothing");
        return Ok(());
    }
    // Where sysctl unprivileged_bpf_disabled is set, as in Debian, older kernels ask for the capability first (`__sys_bpf` of 6.1).
    let of_the_agent =
        |line: &&str| line.contains("comm=\"sandglass\"") && (line.contains("{ bpf }") || line.contains("tclass=bpf "));
    ensure!(
        denied.iter().any(of_the_agent),
        "the kernel logs no denial of bpf(2): {denied:?}"
    );
    ensure!(named, "the agent's message does not name {label}");
    Ok(())
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
    locks(release, metrics)?;
    daemons(release, metrics)?;
    counted(without, console, metrics)
        .with_context(|| format!("where the agent reports: {}", unaccounted(metrics, printed).join(", ")))?;
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

/// What happened is counted exactly, and nothing was lost.
fn counted(without: &[Missing], console: &str, metrics: &str) -> Result<()> {
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
    Ok(())
}

/// What could explain a count that is wrong: records and events by the loss words, drops of the node's scope as well, and runs of
/// programs that the kernel skipped.
fn unaccounted(metrics: &str, printed: &str) -> Vec<String> {
    let series = metrics.lines().filter(|line| {
        let wanted = ["sandglass_events_", "sandglass_packet_drops_total{"];
        wanted.iter().any(|begin| line.starts_with(begin)) && !line.ends_with(" 0")
    });
    let skipped = lines(printed, "skipped: ");
    series.chain(skipped).map(ToOwned::to_owned).collect()
}

/// The plugins that waited have their time by its reasons: the one that slept for four seconds, and on some machines the one that
/// waited for one thing after the other. Returns those reasons.
#[expect(clippy::print_stderr, reason = "what a test does not judge")]
fn waits(scene: &Scene, console: &str, metrics: &str, printed: &str) -> Result<Vec<String>> {
    ensure!(
        metrics.contains("\nsandglass_probe_attached{probe=\"waits\",hook=\"tp_btf, while a plugin is slow\"} 1\n"),
        "waits are not recorded"
    );
    let seconds = |plugin: &str, reason: &str| -> Result<f64> {
        let series =
            format!("\nsandglass_cni_time_seconds_total{{operation=\"ADD\",plugin=\"{plugin}\",reason=\"{reason}\"}} ");
        let (_, rest) = metrics
            .split_once(&series)
            .with_context(|| format!("no time of {plugin} for {reason}"))?;
        Ok(rest.lines().next().unwrap_or_default().parse()?)
    };
    let slept = seconds("plug", "timer")?;
    ensure!(slept >= 3.9, "{slept} s of a sleep of 4 s");
    if !scene.waits {
        return Ok(Vec::new());
    }
    let wanted = lines(console, "waits for: ").next().context("no waits")?;
    let ended: Vec<&str> = lines(printed, "ptp ended with ").collect();
    ensure!(
        ended == ["0"] || !wanted.split(' ').any(|reason| reason == "kernel_work"),
        "ptp ended with {ended:?}: {:?}",
        lines(printed, "ptp: ").collect::<Vec<_>>()
    );
    let mut asserted = Vec::new();
    for reason in wanted.split(' ') {
        let least = match reason {
            "timer" | "pipe" => 1.9,
            // Two seconds from when it was seen to wait, and from when it was seen to connect.
            "file_lock" => 1.9,
            "network" => 1.5,
            // Four seconds, less what a busy machine takes between two requests.
            "disk" => 1.0,
            // Duplicate address detection takes three seconds here, less what was slept before the first reading.
            "kernel_work" => 0.5,
            // How long others hold the lock of the interfaces is theirs.
            _ => 0.001,
        };
        let plugin = if reason == "kernel_work" { "ptp" } else { "waits" };
        let waited = seconds(plugin, reason).unwrap_or_default();
        // What waits for a processor beside it, in a machine that has to wait for its own, leaves less for the reason.
        let queued = seconds(plugin, "run_queue").unwrap_or_default();
        if reason == "kernel_work" && waited < least && waited + queued >= least {
            eprintln!(
                "NOT JUDGED kernels::{reason}: {waited} s, and {queued} s in which {plugin} waited for a processor"
            );
            continue;
        }
        ensure!(
            waited >= least,
            "{waited} s of waiting for {reason}, not {least} s, where the agent reports: {}",
            times(metrics, plugin)
        );
        asserted.push(reason.to_owned());
    }
    let of_flock = |reason: &str| reason == "file_lock";
    ensure!(
        !wanted.split(' ').any(of_flock) || part(printed, "trace")?.contains("held by flock)"),
        "the trace does not name the holder of the file's lock"
    );
    ensure!(
        !asserted.iter().any(|reason| reason == "kernel_work")
            || part(printed, "trace")?.contains("duplicate address detection of fd0a::5"),
        "the trace does not name the address whose duplicate address detection was waited for"
    );
    Ok(asserted)
}

/// The seconds of a plugin's ADD by reason, those of which it has any.
fn times(metrics: &str, plugin: &str) -> String {
    let begin = format!("sandglass_cni_time_seconds_total{{operation=\"ADD\",plugin=\"{plugin}\",reason=");
    let reasons = metrics.lines().filter_map(|line| line.strip_prefix(&begin));
    let reported: Vec<&str> = reasons.filter(|reason| !reason.ends_with(" 0")).collect();
    reported.join(", ")
}

/// Locks are followed together with waits, and the kernel's messages about netlink requests are read where it has such a tracepoint (5.12). A
/// program that the kernel rejects would show here: nothing else depends on these.
fn locks(release: &str, metrics: &str) -> Result<()> {
    let attached = |probe: &str, hook: &str, value: u8| {
        let series = format!("\nsandglass_probe_attached{{probe=\"{probe}\",hook=\"{hook}\"}} {value}\n");
        ensure!(metrics.contains(&series), "not there: {series}");
        Ok(())
    };
    // Tracepoints of waits for locks of the kernel came with 5.19.
    if release.starts_with("5.10.") {
        attached("netlink", "none", 0)?;
        return attached("locks", "tp_btf filelock, while a plugin is slow", 1);
    }
    attached("netlink", "tp_btf netlink_extack", 1)?;
    attached("locks", "tp_btf filelock, contention, while a plugin is slow", 1)
}

/// Requests to daemons are followed, and those to the runtime read, where sockets have tracepoints for them, since Linux 6.3.
fn daemons(release: &str, metrics: &str) -> Result<()> {
    let old = ["5.", "6.1."].iter().any(|begin| release.starts_with(begin));
    let (hook, attached) = if old {
        ("none", 0)
    } else {
        ("tp_btf, while a plugin is slow or a shim", 1)
    };
    let line = format!("\nsandglass_probe_attached{{probe=\"daemons\",hook=\"{hook}\"}} {attached}\n");
    ensure!(
        metrics.contains(&line),
        "requests to daemons are not followed as {release} can"
    );
    let hook = if old { "none" } else { "tp_btf sock_recv_length" };
    let line = format!("\nsandglass_probe_attached{{probe=\"cri\",hook=\"{hook}\"}} {attached}\n");
    ensure!(
        metrics.contains(&line),
        "the runtime's CRI socket is not read as {release} can"
    );
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
