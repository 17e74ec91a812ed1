//! The overhead of the agent on `RunPodSandbox`: with and without its hooks, in pairs.
//!
//! [`crate::add_overhead`] measures the ADD alone; this is the call that the kubelet makes, on a private containerd with the
//! distribution's CNI plugins (the demo's rig). Sandboxes are created one at a time, in blocks of [`BLOCK`] with detached (A) and attached hooks (B)
//! in the order ABBA, then BAAB, which cancels linear drift. Before each block one sandbox is not counted ([`WARM_UP`]), so that the agent's work for
//! the deletion before is done in the block that it belongs to. The result is the Hodges-Lehmann estimate over the ratios of
//! four blocks, with a confidence interval; on a busy machine that is wider than the budget, and the verdict is `unsure`. The
//! kernel's own run time of the probe's programs within a call is reported beside it: noise hardly affects it.
//! Pods that publish a port, for which portmap runs iptables, and pods that do not are measured one after the other.
//! Does not: measure several sandboxes at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sandglass::cri::Cri;
use sandglass_demo::networks::Network;
use sandglass_demo::pods::{CallRecord, Pod};
use sandglass_demo::rig::Rig;
use sandglass_demo::scenarios;

use crate::agent::Switched;
use crate::estimate::{more_percent, tail};
use crate::probe::{Probe, Runs, since};
use crate::report::{Figure, Outcome, Unit, median};
use crate::{Effort, on_rig};

/// Measures.
pub fn run(effort: Effort) -> Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    on_rig::measure(|rig| runtime.block_on(sandboxes(rig, effort)))
}

async fn sandboxes(rig: &Rig, effort: Effort) -> Result<Vec<Figure>> {
    scenarios::wait_for_pause(rig).await?;
    let cri = Cri::connect(&rig.cri_socket().to_string_lossy(), Duration::from_secs(10)).await?;
    let mut node = Node {
        rig,
        cri: Arc::new(cri),
        made: 0,
        published: true,
    };
    let mut figures = compare(&mut node, effort, "RunPodSandbox").await?;
    node.published = false;
    figures.extend(compare(&mut node, effort, "RunPodSandbox without a published port").await?);
    Ok(figures)
}

async fn compare(node: &mut Node<'_>, effort: Effort, call: &str) -> Result<Vec<Figure>> {
    // The first sandboxes of a containerd create bridges and iptables chains, and read from disk.
    for _ in 0..3 {
        node.sandbox().await?;
    }
    let mut agent = Switched::start()?;
    let made = node.made;
    let (mut ratios, mut times) = (Vec::new(), [Vec::new(), Vec::new()]);
    let end = Instant::now() + effort.add_for.unwrap_or(effort.pick(PERIOD, PERIOD_QUICK));
    while Instant::now() < end || ratios.len() < QUADS_LEAST {
        ratios.push(quad(node, &mut agent, ratios.len() % 2 == 1, &mut times).await?);
    }
    // Half of the blocks had hooks, with the sandboxes before them that are not counted.
    agent.agent.ensure_adds(PLUGIN, (node.made - made) / 2)?;
    let agent_ns = agent_time(node, agent).await?;
    let (kernel_ns, programs) = kernel_time(node).await?;
    let usual = median(&times[0]);
    Ok(vec![
        Figure::new(format!("{call}, without the agent"), usual / 1e6, Unit::Milliseconds),
        more_percent(&format!("{call}, longer with the agent, median"), &ratios, BLOCK).at_most(SLOWER_PERCENT),
        tail(&format!("{call}, p99 with the agent"), &times),
        Figure::new(
            format!("{call}, kernel time of the probe within it"),
            kernel_ns / usual * 100.0,
            Unit::Percent,
        )
        .remark(format!("{:.0} us: {programs}", kernel_ns / 1e3)),
        Figure::new(
            format!("{call}, processor time of the agent for it"),
            agent_ns / 1e6,
            Unit::Milliseconds,
        )
        .remark("with the deletion; beside the call, not in it"),
    ])
}

/// Four blocks, two without and two with hooks: ABBA or, if `turned`, BAAB. Returns how much longer it takes to create a sandbox with
/// hooks, percent, by the geometric means of the blocks. Adds each time, nanoseconds, to those without and with hooks.
async fn quad(node: &mut Node<'_>, agent: &mut Switched, turned: bool, times: &mut [Vec<f64>; 2]) -> Result<f64> {
    let mut logarithms = [0.0, 0.0];
    for with in [turned, !turned, !turned, turned] {
        agent.hook(with)?;
        for _ in 0..WARM_UP {
            node.sandbox().await?;
        }
        for _ in 0..BLOCK {
            let time = node.sandbox().await?;
            logarithms[usize::from(with)] += time.ln();
            times[usize::from(with)].push(time);
        }
    }
    let [off, on] = logarithms.map(|sum| sum / f64::from(2 * BLOCK));
    Ok(((on - off).exp() - 1.0) * 100.0)
}

/// Processor time of the agent for one sandbox, nanoseconds. Its idle time is too small to subtract.
async fn agent_time(node: &mut Node<'_>, mut agent: Switched) -> Result<f64> {
    agent.hook(true)?;
    let before = agent.agent.cpu()?;
    for _ in 0..AGENT_CALLS {
        node.sandbox().await?;
    }
    tokio::time::sleep(SETTLE).await;
    let spent = agent.agent.cpu()? - before;
    agent.stop()?;
    Ok(spent.as_nanos() as f64 / f64::from(AGENT_CALLS))
}

/// Run time of the probe's programs within one `RunPodSandbox` in nanoseconds, by the kernel's statistics, and the runs of
/// each program. Other processes of this machine run the programs too: an equally long period without a sandbox, right
/// after each call, is subtracted.
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
    /// Whether pods publish a port, for which portmap runs iptables.
    published: bool,
}

impl Node<'_> {
    /// Creates and deletes a sandbox. Returns the time to create it, nanoseconds.
    async fn sandbox(&mut self) -> Result<f64> {
        let mut record = self.make().await?;
        scenarios::delete(&self.cri, &mut record).await?;
        tokio::time::sleep(BETWEEN).await;
        Ok(record.run.duration_ns() as f64)
    }

    async fn make(&mut self) -> Result<CallRecord> {
        self.made += 1;
        let mut pod = Pod::new(&format!("bench-{}", self.made), self.made, Network::Plain);
        if self.published {
            pod.host_port = Some(20_000 + u16::try_from(self.made % 10_000)?);
        }
        let records = scenarios::make(&self.cri, self.rig, vec![pod]).await;
        let record = records.into_iter().next().context("no record of the call")?;
        match &record.outcome {
            Ok(_) => Ok(record),
            Err(message) => bail!("RunPodSandbox failed: {message}"),
        }
    }
}

const SLOWER_PERCENT: f64 = 1.0;
/// Sandboxes of a block. More of them would say little more for their time: one differs from the next by 6.6 %, one block from the next by 3.4 % beside that.
const BLOCK: u32 = 2;
/// Sandboxes before each block. One takes 0.4 s with its deletion, twice as long as the agent's pipeline waits for a batch.
const WARM_UP: u32 = 1;
/// A plugin that runs once for each sandbox.
const PLUGIN: &str = "bridge";
/// How long to measure with and without hooks.
const PERIOD: Duration = Duration::from_secs(150);
const PERIOD_QUICK: Duration = Duration::from_secs(5);
/// Lower bound on quads: fewer show no distribution.
const QUADS_LEAST: usize = 4;
/// Sandboxes for the agent's processor time.
const AGENT_CALLS: u32 = 24;
/// Pause after the last one: the agent processes events with a delay.
const SETTLE: Duration = Duration::from_millis(1_500);
/// Sandboxes for the kernel's own statistics.
const KERNEL_CALLS: u32 = 12;
/// Pause after a deletion, before the runs without a sandbox are counted.
const REST: Duration = Duration::from_millis(250);
/// Pause after a deletion: the runtime completes it after its response.
const BETWEEN: Duration = Duration::from_millis(50);
