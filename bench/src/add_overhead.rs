//! What the agent adds to the ADD, and to `RunPodSandbox` around it: the same with and without it, in pairs.
//!
//! The ADD alone is measured by [`add_chain`]; here is the call that the kubelet makes. A private containerd with the
//! distribution's CNI plugins (the demo's rig). Each pair makes a few sandboxes with the agent running and as many
//! without, in alternating order; the ratio within a pair cancels what drifts over minutes. What counts is the median of
//! the ratios, with the interval it is sure of: on a busy machine that is wider than the budget, and the verdict
//! `unsure`. Beside it stands what noise hardly touches: the kernel's own count of the time that the probe's programs
//! take within a call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sandglass::cri::Cri;
use sandglass::demo::networks::Network;
use sandglass::demo::rig::{Rig, RigOptions};
use sandglass::demo::scenarios::{self, CallRecord, Pod};

use crate::agent::{Agent, Started};
use crate::probe::{Probe, Runs, since};
use crate::report::{Figure, Outcome, Unit, median, median_interval, quantile};
use crate::{Effort, add_chain};

/// Measures.
pub fn run(effort: Effort) -> Result<Outcome> {
    if let Some(obstacle) = Rig::obstacle(&RigOptions::default()) {
        return Ok(Outcome::Skipped(obstacle));
    }
    match Agent::start()? {
        Started::Ready(agent) => agent.stop()?,
        Started::Impossible(reason) => return Ok(Outcome::Skipped(reason)),
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let rig = Rig::start(&RigOptions::default())?;
    // The chain first: beside a containerd that has had nothing to do yet.
    let measured = add_chain::run(&rig, effort).and_then(|mut figures| {
        figures.extend(runtime.block_on(sandboxes(&rig, effort))?);
        Ok(Outcome::Figures(figures))
    });
    rig.stop()?;
    measured
}

/// `RunPodSandbox`, which has the whole runtime around the ADD.
async fn sandboxes(rig: &Rig, effort: Effort) -> Result<Vec<Figure>> {
    scenarios::wait_for_pause(rig).await?;
    let cri = Cri::connect(&rig.cri_socket().to_string_lossy(), Duration::from_secs(10)).await?;
    let mut node = Node {
        rig,
        cri: Arc::new(cri),
        made: 0,
    };
    pairs(&mut node, effort).await
}

async fn pairs(node: &mut Node<'_>, effort: Effort) -> Result<Vec<Figure>> {
    // The first sandboxes of a containerd make bridges and iptables chains, and read everything from disk.
    for _ in 0..3 {
        node.sandboxes(1).await?;
    }
    let (mut ratios, mut without, mut agent_ns) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..effort.pick(PAIRS, 3) {
        let mut times = [0.0; 2];
        for turn in [pair % 2, (pair + 1) % 2] {
            // Both halves begin alike, with an agent that starts; else one of them would find the runtime still at
            // work on the last deletion, and the other would not.
            let agent = agent()?;
            if turn == 0 {
                agent.stop()?;
                tokio::time::sleep(REST).await;
                times[0] = median(&node.sandboxes(BATCH).await?);
            } else {
                tokio::time::sleep(REST).await;
                let cpu = agent.cpu()?;
                times[1] = median(&node.sandboxes(BATCH).await?);
                agent_ns.push((agent.cpu()? - cpu).as_nanos() as f64 / f64::from(BATCH));
                agent.stop()?;
            }
        }
        without.push(times[0]);
        ratios.push((times[1] / times[0] - 1.0) * 100.0);
    }
    let (kernel_ns, programs) = kernel_time(node).await?;
    let usual = median(&without);
    Ok(vec![
        Figure::new("RunPodSandbox without the agent", usual / 1e6, Unit::Milliseconds),
        Figure::new(
            "RunPodSandbox longer with the agent, median",
            median(&ratios),
            Unit::Percent,
        )
        .at_most(SLOWER_PERCENT)
        .between(median_interval(&ratios))
        .remark(format!(
            "{:+.1} to {:+.1} % at 95 % confidence; {} pairs of {BATCH} and {BATCH}; middle half {:+.1} to {:+.1} %, all {:+.1} to {:+.1} %",
            median_interval(&ratios).0,
            median_interval(&ratios).1,
            ratios.len(),
            quantile(&ratios, 0.25),
            quantile(&ratios, 0.75),
            quantile(&ratios, 0.0),
            quantile(&ratios, 1.0)
        )),
        Figure::new(
            "kernel time of the probe within RunPodSandbox",
            kernel_ns / usual * 100.0,
            Unit::Percent,
        )
        .remark(format!("{:.0} us: {programs}", kernel_ns / 1e3)),
        Figure::new(
            "processor time of the agent per sandbox",
            median(&agent_ns) / 1e6,
            Unit::Milliseconds,
        )
        .remark("made and deleted; beside RunPodSandbox, not in it"),
    ])
}

/// One more agent, on a machine where one has been ready before.
pub fn agent() -> Result<Agent> {
    match Agent::start()? {
        Started::Ready(agent) => Ok(agent),
        Started::Impossible(reason) => bail!("the agent started before and does not now: {reason}"),
    }
}

/// Nanoseconds that the probe's programs run within one `RunPodSandbox`, by the kernel's own statistics; and how they
/// come about. Whatever else runs on this machine runs the programs too: what they do in as long a time right after it,
/// without a sandbox, is taken off.
async fn kernel_time(node: &mut Node<'_>) -> Result<(f64, String)> {
    let probe = match Probe::attach()? {
        Ok(probe) => probe,
        Err(reason) => bail!("the probe was attached before and cannot be now: {reason}"),
    };
    let mut calls = Vec::new();
    let mut names = Vec::new();
    for _ in 0..KERNEL_CALLS {
        let (before, begin) = (probe.runs(), Instant::now());
        let mut record = node.make().await?;
        let (between, took) = (probe.runs(), begin.elapsed());
        scenarios::delete(&node.cri, &mut record).await?;
        tokio::time::sleep(REST).await;
        let idle = probe.runs();
        tokio::time::sleep(took).await;
        let (ours, others) = (since(&before, &between), since(&idle, &probe.runs()));
        calls.push(since(&others, &ours));
        names = between.into_iter().map(|runs| runs.program).collect();
    }
    let middle = |number: &dyn Fn(&[Runs]) -> u64| {
        let numbers: Vec<f64> = calls.iter().map(|runs| number(runs) as f64).collect();
        median(&numbers)
    };
    let list: Vec<String> = (0..names.len())
        .map(|program| {
            let (count, ns) = (middle(&|runs| runs[program].count), middle(&|runs| runs[program].ns));
            format!("{} {count:.0} times {:.0} us", names[program], ns / 1e3)
        })
        .collect();
    Ok((middle(&|runs| runs.iter().map(|runs| runs.ns).sum()), list.join(", ")))
}

struct Node<'a> {
    rig: &'a Rig,
    cri: Arc<Cri>,
    made: u32,
}

impl Node<'_> {
    /// Makes `count` sandboxes, one after the other, and deletes them. Gives how long each took to make, nanoseconds.
    async fn sandboxes(&mut self, count: u32) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        for _ in 0..count {
            let mut record = self.make().await?;
            times.push(record.run.duration_ns() as f64);
            scenarios::delete(&self.cri, &mut record).await?;
            tokio::time::sleep(BETWEEN).await;
        }
        Ok(times)
    }

    async fn make(&mut self) -> Result<CallRecord> {
        self.made += 1;
        let mut pod = Pod::new(&format!("bench-{}", self.made), self.made, Network::Plain);
        // Makes portmap call iptables, as it does for every published port.
        pod.host_port = Some(20_000 + u16::try_from(self.made % 10_000)?);
        let records = scenarios::make(&self.cri, self.rig, vec![pod]).await;
        let record = records.into_iter().next().context("no record of the call")?;
        match &record.outcome {
            Ok(_) => Ok(record),
            Err(message) => bail!("RunPodSandbox failed: {message}"),
        }
    }
}

const SLOWER_PERCENT: f64 = 1.0;
const PAIRS: u32 = 24;
/// Sandboxes of each half of a pair.
const BATCH: u32 = 3;
/// Sandboxes for the kernel's own statistics.
const KERNEL_CALLS: u32 = 12;
/// After the agent has started or stopped: what it reads at its start is not what it costs later.
const REST: Duration = Duration::from_millis(250);
/// After a deletion, whose last steps the runtime does behind its answer.
const BETWEEN: Duration = Duration::from_millis(50);
