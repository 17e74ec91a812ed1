//! The table of docs/systems.md: what each machine reported when it was last booted.
//!
//! A machine's report is a file of docs/systems, written by the run that booted it where `BLESS` is set; the table is rendered from the
//! files. Without `BLESS` a run must agree with its file. Releases and dates are those of the written run. Does not: know a system that
//! no machine is.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};

use super::console::{Start, Verdict};
use super::machines::{Expected, Family, Flavour, MACHINES, Machine, Scene};

/// Whether the files and the table are to be written.
pub fn blesses() -> bool {
    std::env::var_os("BLESS").is_some()
}

/// Writes the file of a machine.
pub fn write(machine: &Machine, verdict: &Verdict) -> Result<()> {
    let scenes = machine.scenes.iter().zip(&verdict.scenes).map(|(scene, ran)| {
        let rungs = ran.rungs.iter();
        let probes: Map<String, Value> = rungs.map(|(probe, hook)| (probe.clone(), json!(hook))).collect();
        let start = ran.start.as_ref().map(|start| {
            let Start {
                ready_ms,
                programs,
                load_ms,
                instructions,
            } = start;
            json!({"ready_ms": ready_ms, "programs": programs, "load_ms": load_ms, "instructions": instructions})
        });
        json!({"agent": scene.name, "probes": probes, "start": start, "waits": ran.waits})
    });
    let report = json!({
        "kernel": verdict.release,
        "run": verdict.date,
        "scenes": scenes.collect::<Vec<_>>(),
    });
    fs::create_dir_all(folder())?;
    fs::write(file(machine), serde_json::to_string_pretty(&report)? + "\n")?;
    Ok(())
}

/// The hooks of this run are those of the file. A probe that the file does not know yet is not compared: nor are times and
/// waits, or a machine without file.
pub fn agrees(machine: &Machine, verdict: &Verdict) -> Result<()> {
    let Some(report) = read(machine)? else { return Ok(()) };
    for (number, (scene, ran)) in machine.scenes.iter().zip(&verdict.scenes).enumerate() {
        let (rungs, written) = (&ran.rungs, &report["scenes"][number]);
        ensure!(
            written["agent"] == scene.name,
            "{}: another scene in its file",
            scene.name
        );
        let probes = written["probes"].as_object().context("no probes")?;
        for (probe, hook) in probes {
            let hook = hook.as_str().unwrap_or_default();
            ensure!(
                rungs.contains(&(probe.clone(), hook.to_owned())),
                "{}: the file has {probe} on {hook}, the run has {rungs:?}; BLESS=1 writes files and table",
                scene.name
            );
        }
    }
    Ok(())
}

/// The page with the table of all machines: what stands in it around the table stays.
pub fn page() -> Result<String> {
    let written = fs::read_to_string(page_file())?;
    let (before, rest) = written.split_once(BEGIN).context("no begin of the table")?;
    let (_, behind) = rest.split_once(END).context("no end of the table")?;
    let mut table = String::from(
        "| system | kernel | processor | agent | probes | ready | verifier | asserted | last run |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for machine in &MACHINES {
        let report = read(machine)?;
        for (number, scene) in machine.scenes.iter().enumerate() {
            writeln!(
                table,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                system(machine),
                report.as_ref().map_or(machine.series, |report| text(&report["kernel"])),
                machine.platform.name,
                scene.name,
                probes(report.as_ref().map(|report| &report["scenes"][number]["probes"])),
                ready(report.as_ref().map(|report| &report["scenes"][number]["start"])),
                verifier(report.as_ref().map(|report| &report["scenes"][number]["start"])),
                report.as_ref().map_or("-".to_owned(), |report| asserted(
                    scene,
                    &report["scenes"][number]["waits"]
                )),
                report.as_ref().map_or("never", |report| text(&report["run"])),
            )?;
        }
    }
    Ok(format!("{before}{BEGIN}\n{table}{END}{behind}"))
}

pub fn page_file() -> PathBuf {
    folder().with_extension("md")
}

/// Every file is of a machine.
pub fn strangers() -> Vec<PathBuf> {
    let known: Vec<PathBuf> = MACHINES.iter().map(file).collect();
    let files = fs::read_dir(folder()).into_iter().flatten().flatten();
    files
        .map(|entry| entry.path())
        .filter(|path| !known.contains(path))
        .collect()
}

/// What differs from a Debian cloud kernel as it is.
fn system(machine: &Machine) -> String {
    let mut words = vec![
        match machine.flavour {
            Flavour::Cloud => "Debian's cloud kernel",
            Flavour::Generic => "Debian's generic kernel",
            Flavour::RealTime => "Debian's PREEMPT_RT kernel",
            Flavour::Pages16 => "Debian's generic kernel with pages of 16 KiB",
            Flavour::WithoutBtf => "a small kernel of Debian's sources, without type information",
        }
        .to_owned(),
    ];
    if !machine.command_line.is_empty() {
        words.push(format!("`{}`", machine.command_line));
    }
    if machine.family == Family::V6 {
        words.push("IPv6 alone".to_owned());
    }
    words.join(", ")
}

/// Each probe with its hook; those that are not attached last.
fn probes(report: Option<&Value>) -> String {
    let Some(probes) = report.and_then(Value::as_object) else {
        return "-".to_owned();
    };
    let has_hook = |(_, hook): &(&String, &Value)| *hook != "none";
    let attached = probes
        .iter()
        .filter(has_hook)
        .map(|(probe, hook)| format!("{probe}: {}", text(hook)));
    let missing = probes
        .iter()
        .filter(|probe| !has_hook(probe))
        .map(|(probe, _)| format!("{probe}: not attached"));
    let all: Vec<String> = attached.chain(missing).collect();
    match all.is_empty() {
        true => "none".to_owned(),
        false => all.join("; "),
    }
}

/// How long the agent took until it was ready.
fn ready(start: Option<&Value>) -> String {
    let ms = start.and_then(|start| start["ready_ms"].as_f64());
    ms.map_or("-".to_owned(), |ms| format!("{:.1} s", ms / 1000.0))
}

/// What the verifier did meanwhile.
fn verifier(start: Option<&Value>) -> String {
    let number = |field: &str| start.and_then(|start| start[field].as_u64());
    let (Some(programs), Some(ms), Some(instructions)) =
        (number("programs"), number("load_ms"), number("instructions"))
    else {
        return "-".to_owned();
    };
    let visited = match instructions {
        0 => String::new(),
        _ => format!(", {instructions} instructions"),
    };
    format!("{ms} ms for {programs} programs{visited}")
}

fn asserted(scene: &Scene, waits: &Value) -> String {
    match &scene.expected {
        Expected::Pods => PODS.to_owned(),
        Expected::Runs { without: [] } => {
            let waits: Vec<&str> = waits
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let mut text = "everything is counted".to_owned();
            if !waits.is_empty() {
                text += &format!("; a plugin's waits for: {}", waits.join(", "));
            }
            if scene.suspends {
                text += "; a plugin over a suspend";
            }
            text
        }
        Expected::Runs { without } => {
            let missing: Vec<String> = without
                .iter()
                .map(|missing| format!("{} ({})", missing.probe, missing.names))
                .collect();
            format!(
                "health page and `doctor` name what is missing: {}; what the other probes see is counted",
                missing.join(", ")
            )
        }
        Expected::Refuses { code, hint, findings } => {
            let findings: Vec<String> = findings.iter().map(|(_, text)| format!("\"{text}\"")).collect();
            format!(
                "`run` ends with {code} and \"{hint}\"; `doctor` with {code} and {}",
                findings.join(", ")
            )
        }
    }
}

fn read(machine: &Machine) -> Result<Option<Value>> {
    match fs::read(file(machine)) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(_) => Ok(None),
    }
}

fn file(machine: &Machine) -> PathBuf {
    let words = machine
        .name
        .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '.');
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    folder().join(words.join("-").to_lowercase() + ".json")
}

fn folder() -> PathBuf {
    sandglass_lab::file("docs/systems")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// What the test `guests` asserts.
const PODS: &str = "two pods of containerd, all that `make demo ARGS=--once` checks of them but for durations: sandbox, ADD of eth0 and lo, bridge, host-local, \
                    portmap with iptables, runtime steps, network readiness through services, deletion; a plugin that fails, by its message";
const BEGIN: &str = "<!-- table -->";
const END: &str = "<!-- end of the table -->";
