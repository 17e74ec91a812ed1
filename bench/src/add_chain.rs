//! What the agent adds to an ADD: a real chain of plugins, run directly, with the agent's hooks on and off.
//!
//! Used by the ADD part, whose `RunPodSandbox` is mostly the runtime's own work and varies by more than the budget.
//! The effect is smaller than what one ADD differs from the next by, so: short blocks with the agent off its hooks (A) and
//! on them (B) in the order ABBA, then BAAB, which cancels what drifts evenly; the caller and its plugins on one
//! processor; of a block its median, of four blocks one ratio, of all ratios the Hodges-Lehmann estimate with a bootstrap
//! interval over them. All of it goes before the machine's other work, the agent too.
//! Beside the time of an ADD stands the processor time of its plugins: in it nothing is waited for, and what the agent's
//! own threads take of that processor is not in it. And how often the plugins' threads were switched, which no speed of a
//! machine changes: a thread of the agent that runs where a plugin does makes the Go runtime's watcher in it wake again and
//! again until the plugin's own threads go on.
//! The kernel's work on interfaces makes ADDs differ most. So one plugin is measured by itself that touches none: what its
//! process is longer by, as often as an ADD has processes, is known ten times as surely.
//! Does not: keep the agent on or off that processor, or put plugins before the agent. Off its hooks the agent is there,
//! but only waits.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use sandglass_demo::rig::Rig;

use crate::Effort;
use crate::agent::Switched;
use crate::chain::Chain;
use crate::estimate::{Took, bootstrap_interval, hodges_lehmann};
use crate::processor::{Children, go_before_other_work};
use crate::report::{Figure, Unit, median, quantile};

/// Measures with the rig's plugins and configuration; its containerd has no part in it.
pub fn run(rig: &Rig, effort: Effort) -> Result<Vec<Figure>> {
    go_before_other_work();
    let mut alone = Chain::of_pods(rig)?.addresses_alone()?;
    let one = Comparison::of(&mut alone, BLOCK_ALONE, effort.pick(PERIOD_ALONE, PERIOD_QUICK))?;
    let mut chain = Chain::of_pods(rig)?;
    let period = effort.add_for.unwrap_or(effort.pick(PERIOD, PERIOD_QUICK));
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
        more(&format!("ADD ({list}) longer with the agent, median"), &all.longer),
        more(
            "processor time of an ADD's plugins more with the agent, median",
            &all.busier,
        ),
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

fn more(name: &str, percents: &[f64]) -> Figure {
    let (low, high) = bootstrap_interval(percents);
    Figure::new(name, hodges_lehmann(percents), Unit::Percent)
        .at_most(SLOWER_PERCENT)
        .between((low, high))
        .remark(format!(
            "{low:+.2} to {high:+.2} % at 95 % confidence; {} times four blocks of {BLOCK}; middle half {:+.1} to {:+.1} %",
            percents.len(),
            quantile(percents, 0.25),
            quantile(percents, 0.75),
        ))
}

/// What `one` process is longer by, as often as an ADD of `all` has processes.
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
    /// What an ADD usually took without.
    without: Took,
    /// Of each four blocks, how much longer an ADD was with the hooks: percent, and nanoseconds.
    longer: Vec<f64>,
    more_ns: Vec<f64>,
    /// The same of its processor time, percent.
    busier: Vec<f64>,
    /// How often the plugins of an ADD and its DEL were switched, without and with.
    switches: [f64; 2],
}

impl Comparison {
    /// Compares in blocks of so many ADDs for so long.
    fn of(chain: &mut Chain, block: u32, period: Duration) -> Result<Comparison> {
        let mut agent = Switched::start()?;
        // The first ADD makes the bridge, and reads the plugins from disk.
        chain.adds(WARM_UP)?;
        let mut observed = WARM_UP;
        let mut without = Vec::new();
        let (mut longer, mut more_ns, mut busier) = (Vec::new(), Vec::new(), Vec::new());
        let mut switches = [Vec::new(), Vec::new()];
        let end = Instant::now() + period;
        while Instant::now() < end || longer.len() < QUADS_LEAST {
            let turned = longer.len() % 2 == 1;
            let mut times = [Vec::new(), Vec::new()];
            for with in [turned, !turned, !turned, turned] {
                agent.hook(with)?;
                chain.adds(WARM_UP)?;
                let before = Children::so_far().switches;
                times[usize::from(with)].push(Took::quantile(&chain.adds(block)?, 0.5));
                let switched = Children::so_far().switches - before;
                switches[usize::from(with)].push(switched as f64 / f64::from(block));
                observed += if with { WARM_UP + block } else { 0 };
            }
            let [off, on] = times.map(|blocks| blocks[0].mean(blocks[1]));
            let more = on.more_than(off);
            longer.push(more.wall);
            busier.push(more.processor);
            more_ns.push(on.wall - off.wall);
            without.push(off);
        }
        is_told(chain, &agent, observed)?;
        agent.stop()?;
        Ok(Comparison {
            without: Took::quantile(&without, 0.5),
            longer,
            more_ns,
            busier,
            switches: switches.map(|blocks| median(&blocks)),
        })
    }
}

/// The figures mean nothing unless the agent tells of the ADDs that it was on its hooks for, and of no other.
fn is_told(chain: &Chain, agent: &Switched, observed: u32) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    for plugin in chain.processes() {
        let labels = ["operation=\"ADD\"", &format!("plugin=\"{plugin}\"")];
        loop {
            let metrics = agent.agent.metrics()?;
            let told = metrics.sum("sandglass_cni_plugin_duration_seconds_count", &labels);
            if told == f64::from(observed) {
                break;
            }
            ensure!(
                Instant::now() < deadline,
                "the agent tells of {told} ADDs of {plugin}, its hooks were on for {observed}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

const SLOWER_PERCENT: f64 = 1.0;
const SWITCHES_PERCENT: f64 = 5.0;
/// How long blocks are made: of the chain, of one plugin.
const PERIOD: Duration = Duration::from_secs(270);
const PERIOD_ALONE: Duration = Duration::from_secs(90);
const PERIOD_QUICK: Duration = Duration::from_secs(10);
/// Fewer say nothing of how they are spread.
const QUADS_LEAST: usize = 4;
/// ADDs of each block: of the chain, of one plugin.
const BLOCK: u32 = 4;
const BLOCK_ALONE: u32 = 12;
/// ADDs before each block.
const WARM_UP: u32 = 1;
