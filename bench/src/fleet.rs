//! A fleet: thousands of agents against a real gateway and back end, through a peak, a rollout and a gateway that restarts in it.
//!
//! Agents are the agent's own OTLP sinks (`fleet/players.rs`); what they send are recordings, retimed and with ids of their own
//! (`fleet/stories.rs`, `fleet/copies.rs`). The gateway is that of `deploy/examples`, in Jaeger's build of the OpenTelemetry Collector
//! (`fleet/gateway.rs`). What reaches the back end is compared with the makers' list (`fleet/ledger.rs`). Simulated time passes at a
//! pace of real time, since agents, gateway and back end share this machine: each figure is for simulated time, and the remark names
//! both. Does not: play what an agent costs its node, or scrapes (`series`).

pub mod copies;
mod course;
mod gateway;
mod ledger;
mod outturn;
mod players;
pub mod stories;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};

use self::course::Phase;
use self::gateway::Gateway;
use self::ledger::Ledger;
use self::outturn::{ListFigures, Outturn};
use self::players::{Account, Fleet, Made, Player};
use self::stories::Mix;
use crate::Effort;
use crate::report::{Figure, Outcome, Unit};

/// A simulation.
struct Simulation<'a> {
    mix: &'a Mix,
    binary: &'a Path,
    agents: usize,
    sampling: &'static str,
    pace: f64,
    peak: Phase,
    rollout: Option<Phase>,
}

/// Measures.
pub fn run(effort: Effort) -> Result<Outcome> {
    let Some(binary) = sandglass_lab::built::peer("SANDGLASS_JAEGER", "jaeger") else {
        return Ok(Outcome::Skipped(
            "no Jaeger, whose build of the Collector is the gateway: scripts/peer.sh jaeger builds it".into(),
        ));
    };
    raise_descriptors()?;
    let mix = Mix::healthy()?;
    let agents = effort.fleet_agents.unwrap_or(effort.pick(AGENTS, 50));
    let pace = effort.fleet_pace.unwrap_or(effort.pick(PACE, 0.05));
    let between = SANDBOX_EVERY.mul_f64(mix.sandboxes_per_story());
    let stories = |time: Duration, every: Duration| (time.as_secs_f64() / every.as_secs_f64()).round() as u64;
    let rollout_every = ROLLOUT.div_f64(PODS as f64);
    let bad = Simulation {
        mix: &mix,
        binary: &binary,
        agents,
        sampling: "bad",
        pace,
        peak: Phase {
            stories: stories(PEAK, between),
            every: between,
            away: None,
        },
        rollout: Some(Phase {
            stories: PODS,
            every: rollout_every,
            away: Some((ROLLOUT / 3, AWAY)),
        }),
    }
    .run()?;
    // A twentieth of the fleet for a fifth of the time: all of it is more than a machine with two processors sends, receives and
    // stores.
    let all = Simulation {
        mix: &mix,
        binary: &binary,
        agents: (agents / 20).max(5),
        sampling: "all",
        pace: effort.pick(1.0, 0.1),
        peak: Phase {
            stories: stories(PEAK / 5, between),
            every: between,
            away: None,
        },
        rollout: None,
    }
    .run()?;
    let mut figures = bad.figures();
    figures.extend(all.figures());
    let (bad_bytes, all_bytes) = (bad.bytes_per_sandbox(), all.bytes_per_sandbox());
    figures.push(
        Figure::new("bytes of all for each byte of bad", all_bytes / bad_bytes, Unit::Count)
            .at_least(TIMES_FEWER)
            .remark(format!(
                "{all_bytes:.0} and {bad_bytes:.0} bytes a sandbox with its deletions, compressed"
            )),
    );
    Ok(Outcome::Figures(figures))
}

impl Simulation<'_> {
    fn run(&self) -> Result<Outturn> {
        let folder = tempfile::tempdir()?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(4)
            .enable_all()
            .build()?;
        let ledger = runtime.block_on(Ledger::start())?;
        let gateway = Gateway::start(self.binary, folder.path(), &ledger)?;
        let port = gateway.ports.grpc;
        await_port(port)?;
        let gateway = Arc::new(Mutex::new(gateway));
        let spools = folder.path().join("spools");
        let fleet = Fleet {
            agents: self.agents,
            sampling: self.sampling,
            port,
            pace: self.pace,
            folder: &spools,
        };
        let mut players = {
            let _guard = runtime.enter();
            fleet.start()?
        };
        let outturn = self.play(&mut players, &gateway, &ledger, &runtime);
        // Whatever came of it: the runtime ends with its tasks.
        runtime.shutdown_timeout(Duration::from_secs(5));
        outturn
    }

    fn play(
        &self,
        players: &mut [Player],
        gateway: &Arc<Mutex<Gateway>>,
        ledger: &Ledger,
        runtime: &Runtime,
    ) -> Result<Outturn> {
        let mut made = Made::default();
        let peak = course::play(self.peak, self.pace, 0, self.mix, players, gateway, &mut made)?;
        let rollout = match self.rollout {
            Some(phase) => {
                let before = self.peak.stories;
                Some(course::play(
                    phase, self.pace, before, self.mix, players, gateway, &mut made,
                )?)
            }
            None => None,
        };
        until(DELIVERY, || Account::waiting(players) == 0);
        let account = Account::of_all(players)?;
        // The gateway decides about the last trace, and sends it.
        until(DECISION, || missing(&made, ledger) == 0);
        // Its last span metrics come after its interval.
        if self.rollout.is_none() {
            until(DECISION, || ledger.list().calls() >= account.delivered);
        }
        let (looked_up, missing_in_jaeger) = {
            let gateway = gateway.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let newest = made.newest_bad.iter().rev().take(LOOKED_UP);
            let wrong = |id: &&sandglass_model::TraceId| {
                gateway.spans_in_jaeger(&id.to_string()) != made.bad.get(*id).copied().unwrap_or(0)
            };
            (newest.clone().count(), newest.filter(wrong).count())
        };
        let missing = missing(&made, ledger);
        runtime.block_on(async {
            for player in &*players {
                player.stop(Duration::ZERO).await;
            }
        });
        let list = ledger.list();
        Ok(Outturn {
            agents: self.agents,
            sampling: self.sampling,
            peak,
            rollout,
            account,
            missing,
            missing_in_jaeger,
            looked_up,
            list: ListFigures {
                traces: list.traces(),
                duplicates: list.duplicates,
                undecodable: list.undecodable,
                series: list.series(),
                metric_bytes: list.metric_bytes,
                calls: list.calls(),
                starts: list.starts_per_counter(),
            },
            made,
        })
    }
}

/// Bad traces of which not every span is on the list.
fn missing(made: &Made, ledger: &Ledger) -> usize {
    let list = ledger.list();
    let gone = made.bad.iter().filter(|(id, spans)| list.spans_of(**id) != **spans);
    gone.count()
}

/// Waits for `condition`, for at most `most`.
fn until(most: Duration, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() && begin.elapsed() < most {
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Waits until something listens on a port of loopback.
fn await_port(port: u16) -> Result<()> {
    let begin = Instant::now();
    loop {
        match std::net::TcpStream::connect(sandglass_lab::ports::local(port)) {
            Ok(_) => return Ok(()),
            Err(error) if begin.elapsed() > DELIVERY => return Err(error).context("the gateway does not listen"),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Each agent has a connection, a lock and the files of its spool open. Only root may raise the limit of the process itself.
fn raise_descriptors() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let raised = |limit| {
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit,
                maximum: limit,
            },
        )
    };
    let wanted = now.maximum.map(|most| most.max(DESCRIPTORS));
    raised(wanted)
        .or_else(|_| raised(now.maximum))
        .context("cannot raise the number of open files")
}

const AGENTS: usize = 5_000;
const DESCRIPTORS: u64 = 50_000;
/// Seconds of real time for one of simulated time.
const PACE: f64 = 0.25;
/// 30 sandboxes a minute.
const SANDBOX_EVERY: Duration = Duration::from_secs(2);
const PEAK: Duration = Duration::from_secs(600);
const ROLLOUT: Duration = Duration::from_secs(900);
/// Pods of a node: the kubelet's default limit.
const PODS: u64 = 110;
/// How long the gateway is away in the rollout.
const AWAY: Duration = Duration::from_secs(60);
/// Longest wait for the agents to deliver what waits, and for a program to start.
const DELIVERY: Duration = Duration::from_secs(300);
/// Longest wait for the gateway to decide about the last traces, 15 s, to send its metrics, 30 s, and for the back end.
const DECISION: Duration = Duration::from_secs(60);
/// Newest bad traces that are looked up in Jaeger: it keeps 10,000 traces.
const LOOKED_UP: usize = 200;
const TIMES_FEWER: f64 = 10.0;
