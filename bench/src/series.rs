//! Series: how many an agent exposes, how many it can at most, and what a real Prometheus takes to scrape a fleet of them.
//!
//! The exposition is that of the agent's own registry after all Linux recordings, joined with that of a running agent where one can
//! run here. The bound is what remains when plugins, commands and networks have ever new names. Prometheus scrapes copies of the
//! exposition (`series/scraped.rs`) under as many instance labels. Does not: push metrics.

mod bound;
mod exposition;
mod scraped;

use std::time::Duration;

use anyhow::{Result, ensure};

use self::exposition::{Exposition, replayed};
use crate::Effort;
use crate::agent::{Agent, Started};
use crate::report::{Figure, Outcome, Unit};

/// Measures.
pub fn run(effort: Effort) -> Result<Outcome> {
    let (all, bad) = (replayed("all")?, replayed("bad")?);
    let differing = all.differing_values(&bad);
    let (running, remark) = match Agent::start()? {
        Started::Ready(agent) => {
            let text = agent.exposition()?;
            agent.stop()?;
            (
                Exposition::of(text),
                "all Linux recordings and a running agent".to_owned(),
            )
        }
        Started::Impossible(reason) => (
            Exposition::default(),
            format!("all Linux recordings; no agent runs here: {reason}"),
        ),
    };
    let node = all.joined(&running);
    let most = node.joined(&bound::flooded()?);
    let series = node.series() as f64;
    let mut figures = vec![
        Figure::new("series of a node", series, Unit::Count)
            .at_most(NODE_SERIES)
            .remark(format!(
                "{remark}; {} as the agent starts; {} bytes of text",
                running.series(),
                node.text().len()
            )),
        Figure::new("series of a node at most", most.series() as f64, Unit::Count)
            .at_most(MOST_SERIES)
            .remark(format!(
                "after {} names each of plugins, commands and networks; {}",
                bound::NAMES,
                most.largest(3)
            )),
        Figure::new("series of 5,000 nodes", series * NODES, Unit::Count)
            .remark(format!("at most {:.0} million", most.series() as f64 * NODES / 1e6)),
        Figure::new("values that sampling changes", differing as f64, Unit::Count)
            .at_most(0.0)
            .remark(format!("of {}, otlp.sampling all and bad", all.series())),
    ];
    match scraped::prometheus() {
        Some(binary) => figures.extend(scrapes(&binary, &node, effort)?),
        None => eprint!(" (no prometheus in PATH: not scraped)"),
    }
    Ok(Outcome::Figures(figures))
}

fn scrapes(binary: &std::path::Path, node: &Exposition, effort: Effort) -> Result<Vec<Figure>> {
    let targets = effort.pick(200, 20);
    let rounds = effort.pick(12, 4);
    let load = scraped::scrape(
        binary,
        node.text(),
        targets,
        rounds,
        effort.pick(INTERVAL, INTERVAL / 5),
    )?;
    ensure!(load.scrapes > 0, "Prometheus scraped nothing");
    let each = load.processor.as_secs_f64() / load.scrapes as f64;
    let processors = each * NODES / SCRAPE_EVERY.as_secs_f64();
    let version = &load.version;
    Ok(vec![
        Figure::new(
            "series of a node in Prometheus",
            load.head_series / targets as f64,
            Unit::Count,
        )
        .remark(format!(
            "{version}; head of {targets} targets, with five series of its own for each"
        )),
        Figure::new(
            "processor of Prometheus per scrape of a node",
            each * 1e6 * 1e3,
            Unit::Nanoseconds,
        )
        .remark(format!("{} scrapes of {} targets", load.scrapes, targets)),
        Figure::new(
            "processor of Prometheus, 5,000 nodes every 30 s",
            processors * 100.0,
            Unit::Percent,
        )
        .at_most(PROMETHEUS_PERCENT)
        .remark("of one core; extrapolated from the scrape of one"),
        Figure::new(
            "memory of Prometheus per series",
            load.resident_bytes / load.head_series,
            Unit::Bytes,
        )
        .remark(format!("{:.0} MB resident", load.resident_bytes / 1e6)),
    ])
}

const NODES: f64 = 5_000.0;
const SCRAPE_EVERY: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_secs(5);
const NODE_SERIES: f64 = 3_000.0;
const MOST_SERIES: f64 = 20_000.0;
const PROMETHEUS_PERCENT: f64 = 400.0;
