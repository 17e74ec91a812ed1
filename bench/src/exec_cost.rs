//! What the probe costs a process that is none of its business: kernel time per fork, exec and exit of `/bin/true`.
//!
//! The kernel's own run-time statistics, per program. The mean time of a run is used, not the sum over the runs this
//! part caused: other processes of the machine run the programs too, and are just as unrelated.
//! Does not: subtract what the measuring itself costs (two clock reads, about 57 ns a run on the reference machine).

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use prometheus_client::metrics::gauge::Gauge;
use sandglass::health::Health;
use sandglass::sources;
use sandglass::sources::linux::{self, LinuxSource, Options, ProgramTime};

use crate::Effort;
use crate::report::{Figure, Outcome, Unit};

/// Measures.
pub fn run(effort: Effort) -> Result<Outcome> {
    let (sender, receiver) = sources::channel(1024, Gauge::default());
    let source = match linux::start(Options::default(), sender, Health::default()) {
        Ok(source) => source,
        Err(error) => return Ok(Outcome::Skipped(format!("{error} ({})", error.hint()))),
    };
    std::thread::spawn(move || while receiver.receive(Duration::from_secs(3600)).is_ok() {});
    let _counting = linux::enable_run_time().context("cannot switch the kernel's run-time statistics on")?;
    let processes = effort.pick(1500, 300);
    let mut figures = Vec::new();
    for (environment, bytes, budget) in [("1.3 KiB", 1_300, true), ("16 KiB", 16_000, false)] {
        let (sum, remark) = cost(&source, processes, bytes)?;
        let figure = Figure::new(
            format!("kernel time per unrelated process, environment of {environment}"),
            sum,
            Unit::Nanoseconds,
        )
        .remark(remark);
        figures.push(if budget { figure.at_most(UNRELATED_NS) } else { figure });
    }
    source.stop();
    Ok(Outcome::Figures(figures))
}

/// Nanoseconds of all programs for one process, and of each program.
fn cost(source: &LinuxSource, processes: u32, environment: usize) -> Result<(f64, String)> {
    let run = |count: u32| (0..count).try_for_each(|_| unrelated(environment));
    run(processes / 10)?;
    let before = source.bpf_run_time();
    run(processes)?;
    let after = source.bpf_run_time();
    let (mut sum, mut each) = (0.0, Vec::new());
    for program in &after {
        let (ns, runs) = since(&before, program);
        ensure!(
            runs >= u64::from(processes),
            "{} ran {runs} times for {processes} processes",
            program.program
        );
        let mean = ns as f64 / runs as f64;
        sum += mean;
        each.push(format!("{} {mean:.0} ns", program.program));
    }
    Ok((sum, each.join(", ")))
}

fn since(before: &[ProgramTime], program: &ProgramTime) -> (u64, u64) {
    let old = before.iter().find(|old| old.program == program.program);
    let (ns, runs) = old.map_or((0, 0), |old| (old.run_time_ns, old.run_count));
    (program.run_time_ns - ns, program.run_count - runs)
}

/// Runs `/bin/true` with an environment of `bytes` bytes in variables as they usually are.
fn unrelated(bytes: usize) -> Result<()> {
    let mut command = Command::new("/bin/true");
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null());
    for number in 0..bytes / VARIABLE_BYTES {
        command.env(format!("KUBERNETES_{number:04}"), "10.96.0.1:443/tcp/cluster");
    }
    ensure!(command.status()?.success(), "/bin/true failed");
    Ok(())
}

/// `KUBERNETES_0000=10.96.0.1:443/tcp/cluster` and its terminator.
const VARIABLE_BYTES: usize = 42;
const UNRELATED_NS: f64 = 1_000.0;
