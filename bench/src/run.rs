//! The command line of the benchmarks: parts, effort, results directory.
//!
//! Does not: measure.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};

use crate::pace::Course;
use crate::report::{Outcome, table};
use crate::{
    add_overhead, connect_cost, delivery, dns_cost, etl_throughput, exec_cost, fleet, footprint, machine, memory,
    sandbox_overhead, series, throughput, unrelated_cost, waits_cost,
};

/// Measures sandglass against its budgets.
#[derive(Debug, Parser)]
#[command(name = "sandglass-bench")]
struct Arguments {
    /// Parts to measure; all when none is named
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// A tenth of the work: a smoke test, not for figures
    #[arg(long)]
    quick: bool,
    /// Seconds to measure each kind of ADD and RunPodSandbox: intervals narrow with its square root
    #[arg(long, value_name = "SECONDS")]
    add_for: Option<u64>,
    /// Agents of the simulated fleet (default 5000)
    #[arg(long, value_name = "NUMBER")]
    fleet_agents: Option<usize>,
    /// Seconds of real time for each second of the fleet's time (default 0.25)
    #[arg(long, value_name = "SECONDS")]
    fleet_pace: Option<f64>,
    /// Exit with 1 when a budget is missed
    #[arg(long)]
    check: bool,
    /// Where a full run writes its results
    #[arg(long, value_name = "DIRECTORY", default_value = "bench/results")]
    results: PathBuf,
}

/// One part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Events a second through decode, reorder and correlator
    Throughput,
    /// Megabytes a second out of .etl files
    Etl,
    /// Allocations per event, bytes per sandbox
    Memory,
    /// Start, memory and processor time of the agent, idle and under load
    Footprint,
    /// Memory, bytes written and what arrives, in and after ten minutes without a collector
    Delivery,
    /// Kernel time for unrelated processes
    Exec,
    /// DNS messages: time per message, lookups without loss; a TCP connection beside them
    Dns,
    /// Kernel time for connects and flows, and the idle cost of observing them
    Connect,
    /// ADDs with and without the agent
    Add,
    /// RunPodSandbox with and without the agent
    Sandbox,
    /// ADDs with and without the recording of waits
    Waits,
    /// Kernel time for unrelated threads while a plugin is slow
    Unrelated,
    /// Series of a node and of a fleet, and what Prometheus takes to scrape them
    Series,
    /// Thousands of agents against a gateway and a back end
    Fleet,
}

/// Effort of a run.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    quick: bool,
    /// How long to measure the ADD and `RunPodSandbox`, each; `None` for the default.
    pub add_for: Option<Duration>,
    /// Agents of the simulated fleet; `None` for the default.
    pub fleet_agents: Option<usize>,
    /// Seconds of real time for each second of the fleet's; `None` for the default.
    pub fleet_pace: Option<f64>,
}

impl Effort {
    /// The number for a full run, or that for a quick one.
    pub fn pick<T>(self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Throughput => "throughput",
            Part::Etl => "etl",
            Part::Memory => "memory",
            Part::Footprint => "footprint",
            Part::Delivery => "delivery",
            Part::Exec => "exec",
            Part::Dns => "dns",
            Part::Connect => "connect",
            Part::Add => "add",
            Part::Sandbox => "sandbox",
            Part::Waits => "waits",
            Part::Unrelated => "unrelated",
            Part::Series => "series",
            Part::Fleet => "fleet",
        }
    }

    fn run(self, effort: Effort) -> Outcome {
        let outcome = match self {
            Part::Throughput => throughput::run(effort),
            Part::Etl => etl_throughput::run(effort),
            Part::Memory => memory::run(effort),
            Part::Footprint => footprint::run(effort),
            Part::Delivery => delivery::run(effort),
            Part::Exec => exec_cost::run(effort),
            Part::Dns => dns_cost::run(effort),
            Part::Connect => connect_cost::run(effort),
            Part::Add => add_overhead::run(effort),
            Part::Sandbox => sandbox_overhead::run(effort),
            Part::Waits => waits_cost::run(effort),
            Part::Unrelated => unrelated_cost::run(effort),
            Part::Series => series::run(effort),
            Part::Fleet => fleet::run(effort),
        };
        outcome.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
    }
}

/// Runs the parts of the command line.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let everything = arguments.parts.is_empty();
    let parts = if everything {
        Part::value_variants()
    } else {
        &arguments.parts
    };
    let effort = Effort {
        quick: arguments.quick,
        add_for: arguments.add_for.map(Duration::from_secs),
        fleet_agents: arguments.fleet_agents,
        fleet_pace: arguments.fleet_pace,
    };
    let course = Course::new();
    let (mut outcomes, mut paces) = (Vec::new(), vec![course.pace().to_string()]);
    for part in parts {
        let begin = Instant::now();
        eprint!("{} ..", part.name());
        outcomes.push((part.name(), part.run(effort)));
        eprintln!(" {:.0} s", begin.elapsed().as_secs_f64());
        paces.push(format!("{} after {}", course.pace(), part.name()));
    }
    let table = format!(
        "{}\nthe machine's pace, nanoseconds a step of arithmetic and of a walk through 4 MB: {}\n",
        table(&outcomes),
        paces.join(", ")
    );
    println!("\n{table}");
    if everything && !arguments.quick {
        match write_results(&arguments.results, &table) {
            Ok(path) => println!("written to {}", path.display()),
            Err(error) => eprintln!("error: {error:#}"),
        }
    }
    let failed = outcomes.iter().any(|(_, outcome)| match outcome {
        Outcome::Figures(figures) => arguments.check && figures.iter().any(|figure| figure.is_over()),
        Outcome::Skipped(_) => false,
        Outcome::Failed(_) => true,
    });
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Writes the results into a new file.
fn write_results(directory: &Path, table: &str) -> Result<PathBuf> {
    let (date, kernel) = (machine::date(), machine::kernel());
    let names = (1..).map(|run| match run {
        1 => format!("{date}-{kernel}.md"),
        run => format!("{date}-{kernel}-{run}.md"),
    });
    let free = names.map(|name| directory.join(name)).find(|path| !path.exists());
    let path = free.context("no name is free")?;
    let text = format!("# Benchmarks of {date}\n\n{}\n{table}", machine::describe());
    std::fs::write(&path, text).with_context(|| {
        format!(
            "cannot write {}\nhint: run it from the repository's root, or name --results",
            path.display()
        )
    })?;
    Ok(path)
}
