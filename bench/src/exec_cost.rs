//! The cost of the exec probe: kernel time per exec of `/bin/true`, and of its fork and exit, and that of a plugin.
//!
//! From the kernel's run-time statistics, per program. Uses the mean of a run, not the sum over this part's runs: other
//! processes of the machine run the programs too, and are as unrelated. A plugin has one thread here; what others fork and end
//! makes the means of its fork and exit smaller.
//! Does not: subtract the cost of the measurement (two clock reads, about 57 ns a run on the reference machine).

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::Effort;
use crate::probe::{Probe, Runs, since};
use crate::report::{Figure, Outcome, Unit, median};

/// Measures.
pub fn run(effort: Effort) -> Result<Outcome> {
    let probe = match Probe::attach()? {
        Ok(probe) => probe,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let processes = effort.pick(1500, 300);
    let mut figures = Vec::new();
    for (environment, bytes, budget) in [("1.3 KiB", 1_300, true), ("16 KiB", 16_000, false)] {
        let (exec, remark) = cost(&probe, processes, &|| unrelated(bytes))?;
        let figure = Figure::new(
            format!("kernel time per unrelated exec, environment of {environment}"),
            exec,
            Unit::Nanoseconds,
        )
        .remark(remark);
        figures.push(if budget { figure.at_most(UNRELATED_NS) } else { figure });
    }
    let (exec, remark) = cost(&probe, processes, &plugin)?;
    figures.push(Figure::new("kernel time per exec of a plugin", exec, Unit::Nanoseconds).remark(remark));
    Ok(Outcome::Figures(figures))
}

/// Nanoseconds of the program at exec, and a text with those of each program: the median of the mean runs of several rounds.
fn cost(probe: &Probe, processes: u32, process: &dyn Fn() -> Result<()>) -> Result<(f64, String)> {
    let play = |count: u32| (0..count).try_for_each(|_| process());
    play(processes / 10)?;
    let mut rounds: Vec<Vec<f64>> = Vec::new();
    let mut names = Vec::new();
    for _ in 0..ROUNDS {
        let before = probe.runs();
        play(processes / ROUNDS)?;
        let (waits, runs): (Vec<Runs>, Vec<Runs>) = since(&before, &probe.runs())
            .into_iter()
            .filter(|program| !OF_MESSAGES.contains(&program.program.as_str()))
            .partition(|program| ATTACHED_AT_TIMES.contains(&program.program.as_str()));
        if let Some(waits) = waits.iter().find(|program| program.count > 0) {
            bail!("{} ran {} times, though no plugin is slow", waits.program, waits.count);
        }
        for program in &runs {
            ensure!(
                program.count >= u64::from(processes / ROUNDS),
                "{} ran only {} times",
                program.program,
                program.count
            );
        }
        rounds.push(
            runs.iter()
                .map(|program| program.ns as f64 / program.count as f64)
                .collect(),
        );
        names = runs.into_iter().map(|program| program.program).collect();
    }
    let means: Vec<f64> = (0..names.len())
        .map(|program| median(&rounds.iter().map(|round| round[program]).collect::<Vec<_>>()))
        .collect();
    let each: Vec<String> = names
        .iter()
        .zip(&means)
        .map(|(name, mean)| format!("{name} {mean:.0} ns"))
        .collect();
    let exec = names
        .iter()
        .zip(&means)
        .find(|(name, _)| name.contains("on_exec"))
        .map(|(_, mean)| *mean);
    let Some(exec) = exec else {
        bail!("no program is called on_exec: {names:?}")
    };
    let whole: f64 = means.iter().sum();
    Ok((exec, format!("{}; {whole:.0} ns with fork and exit", each.join(", "))))
}

/// Runs `/bin/true` with an environment of about `bytes` bytes, with variables as the kubelet sets for the services of a
/// namespace (<https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables>).
fn unrelated(bytes: usize) -> Result<()> {
    let mut command = Command::new("/bin/true");
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null());
    let mut size = 0;
    for number in 0.. {
        let name = SERVICES[number % SERVICES.len()];
        let host = format!("10.96.{}.{}", number / 200, 1 + number % 200);
        for (suffix, value) in [
            ("SERVICE_HOST", host.clone()),
            ("SERVICE_PORT", "8080".to_owned()),
            ("PORT", format!("tcp://{host}:8080")),
            ("PORT_8080_TCP", format!("tcp://{host}:8080")),
            ("PORT_8080_TCP_PROTO", "tcp".to_owned()),
            ("PORT_8080_TCP_PORT", "8080".to_owned()),
            ("PORT_8080_TCP_ADDR", host.clone()),
        ] {
            let variable = format!("{name}{number}_{suffix}");
            size += variable.len() + value.len() + 2;
            if size > bytes {
                ensure!(command.status()?.success(), "/bin/true failed");
                return Ok(());
            }
            command.env(variable, value);
        }
    }
    Ok(())
}

/// Runs `/bin/cat` as a runtime runs a plugin: with the parameters of the CNI specification (1.1.0, section 2, "Parameters") and
/// pipes for its configuration and result.
fn plugin() -> Result<()> {
    let id = "0123456789abcdef".repeat(4);
    let mut child = Command::new("/bin/cat")
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("CNI_COMMAND", "ADD")
        .env("CNI_CONTAINERID", &id)
        .env("CNI_NETNS", "/proc/self/ns/net")
        .env("CNI_IFNAME", "eth0")
        .env(
            "CNI_ARGS",
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME=pod;K8S_POD_UID={id}"),
        )
        .env("CNI_PATH", "/opt/cni/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let configuration = [b' '; CONFIGURATION];
    let mut stdin = child.stdin.take().context("no pipe to /bin/cat")?;
    stdin.write_all(&configuration)?;
    drop(stdin);
    let output = child.wait_with_output()?;
    ensure!(output.stdout == configuration, "/bin/cat printed something else");
    Ok(())
}

/// Programs that are attached only while a plugin is slow, or a shim.
const ATTACHED_AT_TIMES: [&str; 10] = [
    "look",
    "on_contention_begin",
    "on_contention_end",
    "on_extack",
    "on_flock",
    "on_posix_lock",
    "on_sock_receive",
    "on_sock_send",
    "on_switch",
    "on_waking",
];
/// Programs that messages of the runtime run, which is another process.
const OF_MESSAGES: [&str; 2] = ["on_cri_receive", "on_cri_send"];
/// Bytes of a plugin's configuration, and of its result.
const CONFIGURATION: usize = 600;
/// Names of services: prefixes of the variables.
const SERVICES: [&str; 6] = [
    "KUBERNETES",
    "CART",
    "ORDERS",
    "PAYMENT_API",
    "SEARCH_INDEX",
    "CATALOGUE",
];
/// Rounds, so that a busy moment of the machine does not decide.
const ROUNDS: u32 = 10;
const UNRELATED_NS: f64 = 1_000.0;
