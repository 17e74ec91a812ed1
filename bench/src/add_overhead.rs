//! The overhead of the agent on an ADD: a real chain of plugins, run directly, with the agent's hooks attached and detached.
//!
//! By itself, since `RunPodSandbox` ([`crate::sandbox_overhead`]) is mostly the runtime's work and varies by more than the budget.
//! The effect is smaller than the difference between two ADDs. So short blocks with detached (A) and attached hooks (B)
//! alternate in the order ABBA, then BAAB, which cancels linear drift; caller and plugins run on one processor. Each block
//! counts with its median, four blocks give one ratio, and the result is the Hodges-Lehmann estimate over all ratios with a
//! bootstrap interval. ADDs run for [`WARM_UP`] before each block, so that the agent works as it does all the time. The whole measurement, agent included, has a higher priority than the machine's other processes.
//! Two more figures vary less than the time of an ADD: the processor time of the plugins, which has no waits and none of the
//! agent's time in it; and the context switches of the plugins' threads, which do not depend on the machine's speed. A thread
//! of the agent on a plugin's processor makes the monitor thread of the plugin's Go runtime wake repeatedly until the plugin
//! runs again.
//! The kernel's work on interfaces causes most of the variance. So one plugin without interfaces is measured by itself: its
//! overhead per process, times the processes of an ADD, has a tenth of the variance.
//! Does not: pin the agent to a processor, or give plugins a higher priority than the agent. With detached hooks the agent
//! runs but is idle.

use std::time::{Duration, Instant};

use anyhow::Result;
use sandglass_demo::rig::Rig;

use crate::agent::Switched;
use crate::chain::Chain;
use crate::estimate::{Took, bootstrap_interval, hodges_lehmann, more_percent, tail};
use crate::processor::Children;
use crate::report::{Figure, Outcome, Unit, median};
use crate::{Effort, on_rig};

/// Measures.
pub fn run(effort: Effort) -> Result<Outcome> {
    on_rig::measure(|rig| compare(rig, effort))
}

/// With the rig's plugins and configuration; its containerd has no part in it.
fn compare(rig: &Rig, effort: Effort) -> Result<Vec<Figure>> {
    let period = effort.add_for.unwrap_or(effort.pick(PERIOD, PERIOD_QUICK));
    let mut alone = Chain::of_pods(rig)?.addresses_alone()?;
    let one = Comparison::of(&mut alone, BLOCK_ALONE, period)?;
    let mut chain = Chain::of_pods(rig)?;
    let all = Comparison::of(&mut chain, BLOCK, period)?;
    let list = chain.processes().join(", ");
    Ok(vec![
        Figure::new(
            format!("ADD ({list}) without the agent"),
            all.without.wall / 1e6,
            Unit::Milliseconds,
        )
        .remark(format!(
            "{:.1} ms of processor time of its plugins",
            all.without.processor / 1e6
        )),
        more_percent(
            &format!("ADD ({list}) longer with the agent, median"),
            &all.longer,
            BLOCK,
        )
        .at_most(SLOWER_PERCENT),
        tail(&format!("ADD ({list}), p99 with the agent"), &all.times),
        more_percent(
            "processor time of an ADD's plugins more with the agent, median",
            &all.busier,
            BLOCK,
        )
        .at_most(SLOWER_PERCENT),
        by_processes(chain.processes().len() as f64, &all, &one),
        Figure::new(
            "switches of an ADD's and DEL's plugins more with the agent",
            (all.switches[1] / all.switches[0] - 1.0) * 100.0,
            Unit::Percent,
        )
        .at_most(SWITCHES_PERCENT)
        .remark(format!(
            "{:.0} and {:.0}, medians of the blocks",
            all.switches[0], all.switches[1]
        )),
    ])
}

/// The overhead of `one` process, times the processes of an ADD of `all`.
fn by_processes(count: f64, all: &Comparison, one: &Comparison) -> Figure {
    let (low, high) = bootstrap_interval(&one.more_ns);
    let percent = |ns: f64| ns * count / all.without.wall * 100.0;
    let name = format!("ADD longer by what its {count} processes are, each measured by itself");
    Figure::new(name, percent(hodges_lehmann(&one.more_ns)), Unit::Percent)
        .at_most(SLOWER_PERCENT)
        .between((percent(low), percent(high)))
        .remark(format!(
            "{:.1} us a process, {:.1} to {:.1} at 95 % confidence, of {:.2} ms of an ADD of host-local; {} times four blocks of {BLOCK_ALONE}",
            hodges_lehmann(&one.more_ns) / 1e3,
            low / 1e3,
            high / 1e3,
            one.without.wall / 1e6,
            one.more_ns.len(),
        ))
}

/// A chain's ADDs with and without the agent's hooks.
struct Comparison {
    /// Median of an ADD without hooks.
    without: Took,
    /// For each four blocks, how much longer an ADD was with hooks: percent, and nanoseconds.
    longer: Vec<f64>,
    more_ns: Vec<f64>,
    /// The same for its processor time, percent.
    busier: Vec<f64>,
    /// Each ADD without and with hooks, nanoseconds.
    times: [Vec<f64>; 2],
    /// Context switches of the plugins of an ADD and its DEL, without and with hooks.
    switches: [f64; 2],
}

impl Comparison {
    /// Compares in blocks of so many ADDs for so long.
    fn of(chain: &mut Chain, block: u32, period: Duration) -> Result<Comparison> {
        let mut agent = Switched::start()?;
        // The first ADD creates the bridge and reads the plugins from disk.
        chain.adds(1)?;
        let mut observed = 1;
        let mut without = Vec::new();
        let (mut longer, mut more_ns, mut busier) = (Vec::new(), Vec::new(), Vec::new());
        let mut switches = [Vec::new(), Vec::new()];
        let mut all = [Vec::new(), Vec::new()];
        let end = Instant::now() + period;
        while Instant::now() < end || longer.len() < QUADS_LEAST {
            let turned = longer.len() % 2 == 1;
            let mut times = [Vec::new(), Vec::new()];
            for with in [turned, !turned, !turned, turned] {
                agent.hook(with)?;
                let warmed_up = adds_for(chain, WARM_UP)?;
                let before = Children::so_far().switches;
                let adds = chain.adds(block)?;
                times[usize::from(with)].push(Took::quantile(&adds, 0.5));
                all[usize::from(with)].extend(adds.iter().map(|took| took.wall));
                let switched = Children::so_far().switches - before;
                switches[usize::from(with)].push(switched as f64 / f64::from(block));
                observed += if with { warmed_up + block } else { 0 };
            }
            let [off, on] = times.map(|blocks| blocks[0].mean(blocks[1]));
            let more = on.more_than(off);
            longer.push(more.wall);
            busier.push(more.processor);
            more_ns.push(on.wall - off.wall);
            without.push(off);
        }
        for plugin in chain.processes() {
            agent.agent.ensure_adds(plugin, observed)?;
        }
        agent.stop()?;
        Ok(Comparison {
            without: Took::quantile(&without, 0.5),
            longer,
            more_ns,
            busier,
            times: all,
            switches: switches.map(|blocks| median(&blocks)),
        })
    }
}

/// Runs ADDs for so long, and returns their number.
fn adds_for(chain: &mut Chain, period: Duration) -> Result<u32> {
    let end = Instant::now() + period;
    let mut count = 0;
    while Instant::now() < end {
        chain.adds(1)?;
        count += 1;
    }
    Ok(count)
}

const SLOWER_PERCENT: f64 = 1.0;
const SWITCHES_PERCENT: f64 = 5.0;
/// How long to measure, each: the chain, one plugin.
const PERIOD: Duration = Duration::from_secs(270);
const PERIOD_QUICK: Duration = Duration::from_secs(10);
/// Lower bound on quads: fewer show no distribution.
const QUADS_LEAST: usize = 4;
/// ADDs of each block: of the chain, of one plugin.
const BLOCK: u32 = 16;
const BLOCK_ALONE: u32 = 80;
/// How long ADDs run before each block: longer than the agent's pipeline waits for a batch. A block with hooks then has its share of the
/// agent's work, and the work for the ADDs of one block is not done during the next.
const WARM_UP: Duration = Duration::from_millis(250);
