//! The agents of a fleet: the agent's own OTLP sink for each, with sampling, encoder, spool and connection, and what was offered to it.
//!
//! One process plays thousands: a sink is two tasks and some queues, about as large as what it holds. Each has a directory for its
//! spool, a connection of its own and a seed of its own for its waits, as on as many nodes. Does not: play sources, correlator or
//! metrics, which cost a node and not the gateway (`throughput`, `footprint`, `series`).

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use prometheus_client::registry::Registry;
use sandglass::health::Health;
use sandglass::node::NodeInfo;
use sandglass::sinks::otlp::config::{Resolution, Settings, resolve};
use sandglass::sinks::otlp::{OtlpSink, OtlpStatus};
use sandglass_model::TraceId;

use super::copies::Node;
use super::stories::{Mix, Scene};
use crate::agent::Metrics;

/// One agent.
pub struct Player {
    node: Node,
    sink: OtlpSink,
    registry: Registry,
    /// It marks what it found bad, so that the gateway knows it.
    marks: bool,
    /// Spans offered to the sink.
    offered: u64,
}

/// What a fleet's agents are like.
#[derive(Clone, Debug)]
pub struct Fleet<'a> {
    /// How many.
    pub agents: usize,
    /// `otlp.sampling`.
    pub sampling: &'a str,
    /// Port of the gateway, for OTLP over gRPC.
    pub port: u16,
    /// Seconds of real time for one of simulated time: the agents' waits shrink or grow with it.
    pub pace: f64,
    /// Below which each has a spool.
    pub folder: &'a Path,
}

/// The makers' own list.
#[derive(Debug, Default)]
pub struct Made {
    /// Sandboxes, further attempts included.
    pub sandboxes: u64,
    /// Traces.
    pub traces: u64,
    /// Spans.
    pub spans: u64,
    /// Number of spans of each bad trace that must reach the back end: of a fleet that does not mark them, the failed ones.
    pub bad: HashMap<TraceId, usize>,
    /// Ids of the newest of them.
    pub newest_bad: Vec<TraceId>,
}

/// What the sinks of a fleet counted, in spans, and what does not add up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// Accepted by the gateway.
    pub delivered: u64,
    /// Pending, in memory or in a spool.
    pub waiting: u64,
    /// Left out by the policy.
    pub sampled_out: u64,
    /// Rejected, evicted, expired, corrupt or shed.
    pub dropped: u64,
    /// Agents on which offered is not the sum of these.
    pub wrong: u64,
    /// Bytes of all attempts.
    pub sent_bytes: f64,
    /// Attempts after the first.
    pub retries: f64,
    /// Spans that a spool could not take.
    pub fallback: f64,
}

impl Fleet<'_> {
    /// Starts all agents, on the current runtime.
    pub fn start(&self) -> Result<Vec<Player>> {
        (0..self.agents).map(|number| self.player(number)).collect()
    }

    fn player(&self, number: usize) -> Result<Player> {
        let node = Node::new(number);
        let settings = Settings {
            endpoint: Some(format!("http://127.0.0.1:{}", self.port)),
            protocol: Some("grpc".to_owned()),
            sampling: Some(self.sampling.to_owned()),
            spool_directory: Some(self.folder.join(&node.name)),
            ..Settings::default()
        };
        let mut resolved = match resolve(&settings, &|_| None, &Settings::default())? {
            Resolution::On(resolved) => *resolved,
            Resolution::Off(reason) => bail!("the sink is off: {reason}"),
        };
        let tuning = &mut resolved.tuning;
        for wait in [
            &mut tuning.batch_delay,
            &mut tuning.backoff_initial,
            &mut tuning.backoff_max,
        ] {
            *wait = wait.mul_f64(self.pace);
        }
        let info = NodeInfo {
            name: node.name.clone(),
            service: "sandglass".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            boot_id: node.boot_id.clone(),
            ..NodeInfo::default()
        };
        let sink = OtlpSink::start(resolved, info, Health::default())
            .with_context(|| format!("cannot start the sink of {}", node.name))?;
        let mut registry = Registry::default();
        sink.register(&mut registry);
        Ok(Player {
            node,
            sink,
            registry,
            marks: self.sampling == "bad",
            offered: 0,
        })
    }
}

impl Player {
    /// A pod goes and another comes: the end of story `number - 1`, and the begin of story `number`.
    pub fn play(&mut self, mix: &Mix, number: u64, unix_ns: u64, made: &mut Made) {
        if let Some(before) = number.checked_sub(1) {
            let story = mix.pick(self.random(before));
            self.offer(&story.end, before, unix_ns, made);
        }
        let story = mix.pick(self.random(number));
        made.sandboxes += story.sandboxes();
        self.offer(&story.begin, number, unix_ns, made);
    }

    fn offer(&mut self, scenes: &[Scene], story: u64, unix_ns: u64, made: &mut Made) {
        for scene in scenes {
            let copy = self.node.copy(&scene.trace, story, unix_ns);
            let spans = copy.spans.len();
            self.offered += spans as u64;
            made.traces += 1;
            made.spans += spans as u64;
            if scene.bad && (self.marks || scene.failed) {
                made.bad.insert(copy.id, spans);
                made.newest_bad.push(copy.id);
            }
            self.sink.offer(&Arc::new(copy));
        }
        if made.newest_bad.len() > 2 * NEWEST {
            made.newest_bad.drain(..NEWEST);
        }
    }

    /// The same for the same node and story.
    fn random(&self, story: u64) -> u64 {
        let id = TraceId::of(&[self.node.boot_id.as_bytes(), &story.to_le_bytes()]);
        id.0 as u64
    }

    /// Ends the sink; what it has not delivered by then stays in its spool.
    pub async fn stop(&self, timeout: Duration) -> u64 {
        self.sink.stop(timeout).await
    }

    fn account(&self) -> Result<Account> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        let metrics = Metrics::parse(&text);
        Ok(Account {
            sent_bytes: metrics.sum("export_sent_bytes_total", &[]),
            retries: metrics.sum("export_retries_total", &[]),
            fallback: metrics.sum("export_spool_fallback_spans_total", &[]),
            ..Account::of(&self.sink.status(), self.offered)
        })
    }
}

impl Account {
    /// Of one sink that `offered` spans were offered to.
    fn of(status: &OtlpStatus, offered: u64) -> Account {
        let dropped = status.rejected + status.evicted + status.expired + status.corrupt + status.shed;
        let sum = status.delivered + status.waiting + status.sampled_out + dropped;
        Account {
            delivered: status.delivered,
            waiting: status.waiting,
            sampled_out: status.sampled_out,
            dropped,
            wrong: u64::from(sum != offered),
            ..Account::default()
        }
    }

    /// Of all agents.
    pub fn of_all(players: &[Player]) -> Result<Account> {
        let mut all = Account::default();
        for player in players {
            let one = player.account()?;
            all.delivered += one.delivered;
            all.waiting += one.waiting;
            all.sampled_out += one.sampled_out;
            all.dropped += one.dropped;
            all.wrong += one.wrong;
            all.sent_bytes += one.sent_bytes;
            all.retries += one.retries;
            all.fallback += one.fallback;
        }
        Ok(all)
    }

    /// Spans of all agents that wait.
    pub fn waiting(players: &[Player]) -> u64 {
        players.iter().map(|player| player.sink.status().waiting).sum()
    }
}

/// How many ids of bad traces are kept in order, at least.
const NEWEST: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_way_a_span_can_end_is_in_the_account() {
        let folder = tempfile::tempdir().unwrap();
        let fleet = Fleet {
            agents: 1,
            sampling: "all",
            port: 1,
            pace: 1.0,
            folder: folder.path(),
        };
        let player = &fleet.start().unwrap()[0];
        let status = OtlpStatus {
            delivered: 1,
            waiting: 2,
            rejected: 4,
            evicted: 8,
            expired: 16,
            corrupt: 32,
            shed: 64,
            sampled_out: 128,
            ..player.sink.status()
        };
        let account = Account::of(&status, 255);
        assert_eq!((account.wrong, account.dropped), (0, 124));
        for offered in [254, 256] {
            assert_eq!(Account::of(&status, offered).wrong, 1);
        }
        // The names of counters that are read are those of the sink.
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &player.registry).unwrap();
        for name in [
            "export_sent_bytes_total",
            "export_retries_total",
            "export_spool_fallback_spans_total",
        ] {
            assert!(text.contains(&format!("\n{name} 0\n")), "{name}: {text}");
        }
    }

    /// Without a gateway all that is bad waits in the spools, and the good ones are counted.
    #[tokio::test]
    async fn what_is_made_is_accounted_for() {
        let folder = tempfile::tempdir().unwrap();
        let mix = Mix::healthy().unwrap();
        let [port] = sandglass_lab::ports::free([0]).unwrap();
        let fleet = Fleet {
            agents: 3,
            sampling: "bad",
            port,
            pace: 0.01,
            folder: folder.path(),
        };
        let mut players = fleet.start().unwrap();
        let mut made = Made::default();
        for number in 0..100 {
            for player in &mut players {
                player.play(&mix, number, 1_790_000_000_000_000_000, &mut made);
            }
        }
        let counts = (made.sandboxes, made.traces, made.bad.len());
        assert!(counts.0 > 100 && counts.1 > counts.0 && counts.2 > 0, "{counts:?}");
        let account = Account::of_all(&players).unwrap();
        assert_eq!(account.wrong, 0, "{account:?}");
        assert_eq!(account.waiting + account.sampled_out, made.spans, "{account:?}");
        let bad: usize = made.bad.values().sum();
        assert!(
            account.waiting >= bad as u64 && account.sampled_out > account.waiting,
            "{account:?}"
        );
        assert_eq!(Account::waiting(&players), account.waiting);
        let undelivered = players[0].stop(Duration::from_millis(10)).await;
        assert!(undelivered <= account.waiting);
    }
}
