//! What the recording of waits adds to an ADD: two agents that differ only in it, of which one at a time has its hooks attached.
//!
//! Measures a chain that ends before `waits.after`, for which nothing of it is attached, and a plugin of a quarter of a second, whose
//! waits are recorded. Blocks, order and estimate as in [`crate::add_overhead`].
//! Does not: measure the rest of the agent.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use sandglass_demo::rig::Rig;

use crate::agent::Switched;
use crate::chain::Chain;
use crate::estimate::{Took, bootstrap_interval, hodges_lehmann};
use crate::report::{Figure, Outcome, Unit};
use crate::{Effort, on_rig};

/// Measures.
pub fn run(effort: Effort) -> Result<Outcome> {
    on_rig::measure(|rig| compare(rig, effort))
}

fn compare(rig: &Rig, effort: Effort) -> Result<Vec<Figure>> {
    let period = effort.add_for.unwrap_or(effort.pick(PERIOD, PERIOD_QUICK));
    let mut figures = measure("ADD of the chain", &mut Chain::of_pods(rig)?, BLOCK, period)?;
    let mut slow = Chain::of_pods(rig)?.slow_plugin()?;
    figures.extend(measure("ADD of a slow plugin", &mut slow, BLOCK_SLOW, period)?);
    Ok(figures)
}

fn measure(what: &str, chain: &mut Chain, block: u32, period: Duration) -> Result<Vec<Figure>> {
    let mut agents = [Switched::start_without_waits()?, Switched::start()?];
    chain.adds(WARM_UP)?;
    let (mut longer, mut busier) = (Vec::new(), Vec::new());
    let mut all = [Vec::new(), Vec::new()];
    let end = Instant::now() + period;
    while Instant::now() < end || longer.len() < QUADS_LEAST {
        let turned = longer.len() % 2 == 1;
        let mut times = [Vec::new(), Vec::new()];
        for with in [turned, !turned, !turned, turned] {
            agents[usize::from(!with)].hook(false)?;
            agents[usize::from(with)].hook(true)?;
            chain.adds(WARM_UP)?;
            let took = chain.adds(block)?;
            times[usize::from(with)].push(Took::quantile(&took, 0.5));
            all[usize::from(with)].extend(took);
        }
        let [without, with] = times.map(|blocks| blocks[0].mean(blocks[1]));
        let more = with.more_than(without);
        longer.push(more.wall);
        busier.push(more.processor);
    }
    let seconds = |agent: &Switched| -> Result<f64> {
        let labels = ["operation=\"ADD\"", "plugin=\"slow\""];
        Ok(agent.agent.metrics()?.sum("sandglass_cni_time_seconds_total", &labels))
    };
    // Otherwise the figures of slow plugins compare nothing.
    let [off, on] = [seconds(&agents[0])?, seconds(&agents[1])?];
    ensure!(
        off == 0.0 && (on > 0.0) == (block == BLOCK_SLOW),
        "{what}: {off} s of recorded waits without, {on} s with"
    );
    for agent in agents {
        agent.stop()?;
    }
    let [without, with] = [Took::quantile(&all[0], 0.99), Took::quantile(&all[1], 0.99)];
    let usual = Took::quantile(&all[0], 0.5);
    let quads = longer.len();
    let remark = |median: f64, without: f64, with: f64, percents: &[f64]| {
        let (low, high) = bootstrap_interval(percents);
        format!(
            "{low:+.2} to {high:+.2} % at 95 % confidence of {:.1} ms; {quads} times four blocks of {block}; p99 {:.1} and {:.1} ms",
            median / 1e6,
            without / 1e6,
            with / 1e6,
        )
    };
    Ok(vec![
        Figure::new(
            format!("{what} longer with waits, median"),
            hodges_lehmann(&longer),
            Unit::Percent,
        )
        .at_most(LONGER_PERCENT)
        .between(bootstrap_interval(&longer))
        .remark(remark(usual.wall, without.wall, with.wall, &longer)),
        Figure::new(
            format!("{what}: processor time of its plugins more with waits, median"),
            hodges_lehmann(&busier),
            Unit::Percent,
        )
        .between(bootstrap_interval(&busier))
        .remark(remark(usual.processor, without.processor, with.processor, &busier)),
    ])
}

const LONGER_PERCENT: f64 = 1.0;
/// How long to measure each.
const PERIOD: Duration = Duration::from_secs(150);
const PERIOD_QUICK: Duration = Duration::from_secs(5);
/// Lower bound on quads: fewer show no distribution.
const QUADS_LEAST: usize = 4;
/// ADDs of each block.
const BLOCK: u32 = 4;
const BLOCK_SLOW: u32 = 2;
/// ADDs before each block.
const WARM_UP: u32 = 1;
