//! The footprint of the agent: time until ready, memory, processor time; idle and under load.
//!
//! Runs the real binary. Under load, the agent's metrics must count exactly the processes that ran. Does not: measure the
//! overhead on the load itself.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::Effort;
use crate::agent::{Agent, Metrics, Started};
use crate::load::{self, Load, PROCESSES_PER_SANDBOX};
use crate::report::{Figure, Outcome, Unit, median, quantile};

/// Measures.
pub fn run(effort: Effort) -> Result<Outcome> {
    let mut starts = Vec::new();
    for _ in 0..effort.pick(5, 2) {
        match Agent::start()? {
            Started::Ready(agent) => {
                starts.push(agent.ready_after.as_secs_f64() * 1e3);
                agent.stop()?;
            }
            Started::Impossible(reason) => return Ok(Outcome::Skipped(reason)),
        }
    }
    let Started::Ready(agent) = Agent::start()? else {
        bail!("the agent started before and does not now");
    };
    let mut figures = vec![
        Figure::new("process start until ready", median(&starts), Unit::Milliseconds)
            .at_most(READY_MS)
            .remark(spread(&starts, "ms")),
    ];
    figures.extend(idle(&agent, effort)?);
    figures.extend(loaded(&agent, effort)?);
    agent.stop()?;
    Ok(Outcome::Figures(figures))
}

fn idle(agent: &Agent, effort: Effort) -> Result<Vec<Figure>> {
    std::thread::sleep(Duration::from_secs(effort.pick(10, 2)));
    let resident = agent.resident_bytes()?;
    let before = events(agent)?;
    let shares: Vec<f64> = (0..effort.pick(20, 4))
        .map(|_| cpu_share(agent, Duration::from_secs(1)))
        .collect::<Result<_>>()?;
    // A scrape is work, so it is outside of the period. The events in between show whether the node was idle.
    let arrived = events(agent)? - before;
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    Ok(vec![
        Figure::new("resident memory, idle", resident, Unit::Bytes).at_most(RESIDENT_BYTES),
        Figure::new("processor, idle", mean, Unit::Percent)
            .at_most(IDLE_PERCENT)
            .remark(format!(
                "of one core; {} s, {arrived} events arrived, ticks included",
                shares.len()
            )),
    ])
}

fn loaded(agent: &Agent, effort: Effort) -> Result<Vec<Figure>> {
    let load = Load::new()?;
    let period = Duration::from_secs(effort.pick(20, 4));
    let before = agent.metrics()?;
    let (cpu, begin) = (agent.cpu()?, Instant::now());
    let played = load.play(RATE, period)?;
    let share = (agent.cpu()? - cpu).as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0;
    let each_us = (agent.cpu()? - cpu).as_secs_f64() * 1e6 / played.sandboxes as f64;
    let resident = agent.resident_bytes()?;
    let expected = (played.sandboxes * PROCESSES_PER_SANDBOX) as f64;
    let metrics = settled(agent, expected)?;
    let reported = load::reported(&metrics);
    let losses: Vec<String> = LOSSES
        .iter()
        .map(|name| (name, metrics.sum(name, &[]) - before.sum(name, &[])))
        .filter(|(_, count)| *count > 0.0)
        .map(|(name, count)| format!("; {name} {count}"))
        .collect();
    let rate = played.sandboxes as f64 / period.as_secs_f64().max(played.took.as_secs_f64() - 2.0);
    ensure!(
        reported <= expected,
        "the agent reports {reported} processes, but {expected} ran"
    );
    Ok(vec![
        Figure::new(format!("processor, {RATE} sandboxes/s"), share, Unit::Percent).remark(format!(
            "of one core; {each_us:.0} us a sandbox with its DEL, {PROCESSES_PER_SANDBOX} processes; reached {rate:.1}/s"
        )),
        Figure::new(format!("resident memory, after {RATE} sandboxes/s"), resident, Unit::Bytes)
            .at_most(RESIDENT_BYTES)
            .remark(format!("{} sandboxes", played.sandboxes)),
        Figure::new("processes not reported", expected - reported, Unit::Count)
            .at_most(0.0)
            .remark(format!("of {expected}{}", losses.concat())),
    ])
}

/// The metrics once they count `expected` processes, or after 5 s.
fn settled(agent: &Agent, expected: f64) -> Result<Metrics> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let metrics = agent.metrics()?;
        if load::reported(&metrics) >= expected || Instant::now() > deadline {
            return Ok(metrics);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn cpu_share(agent: &Agent, period: Duration) -> Result<f64> {
    let (cpu, begin) = (agent.cpu()?, Instant::now());
    std::thread::sleep(period);
    Ok((agent.cpu()? - cpu).as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0)
}

fn events(agent: &Agent) -> Result<f64> {
    Ok(agent.metrics()?.sum("sandglass_events_total", &[]))
}

/// Minimum and maximum of some numbers.
pub fn spread(values: &[f64], unit: &str) -> String {
    let (least, most) = (quantile(values, 0.0), quantile(values, 1.0));
    format!("median of {}, {least:.1} to {most:.1} {unit}", values.len())
}

const READY_MS: f64 = 300.0;
const RESIDENT_BYTES: f64 = 25e6;
const IDLE_PERCENT: f64 = 0.1;
/// Sandboxes a second.
const RATE: u64 = 50;
const LOSSES: [&str; 6] = [
    "sandglass_events_lost_total",
    "sandglass_events_late_total",
    "sandglass_events_orphan_total",
    "sandglass_evicted_total",
    "sandglass_shed_total",
    "sandglass_events_undecodable_total",
];
