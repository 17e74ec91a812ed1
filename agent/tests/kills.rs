//! The real agent is killed (SIGKILL) at random while sandboxes fail: what had ended arrives with its ids, and the page shows again what it had shown.
//!
//! Needs root with BPF, or prints `SKIPPED`. A sandbox is a plugin that fails, made and listed by the test. What ended less than [`SURE`] before a kill, and
//! for as long as tasks of the machine waited for processors and disks since then, may arrive or not (LIMITATIONS.md); what began while no agent ran is not made. What needs no agent is tested beside `sinks/otlp` and `sinks/store`.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

#[path = "lab/collector.rs"]
mod collector;
#[path = "lab/running.rs"]
mod running;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use collector::Collector;
use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use prost::Message as _;
use running::Running;
use sandglass_lab::pressure::Pressure;
use serde_json::Value;

const KILLS: u64 = 20;
/// What ended so long before a kill is kept for certain, on a machine that has time: the agent reads, orders and writes within half a second.
const SURE: Duration = Duration::from_secs(1);

/// A sandbox that the test made.
struct Made {
    container: String,
    ended: Instant,
    pressure: Pressure,
}

impl Made {
    /// The agent was killed just now, so long after it that only a machine without time can have kept the agent from it.
    fn is_sure(&self, killed: Instant) -> bool {
        killed - self.ended > SURE
    }

    /// Tasks of the machine waited for so long since then that the agent may not have had that time: its reader, its pipeline and its journal
    /// wait one after the other.
    fn is_excused(&self, killed: Instant) -> bool {
        killed - self.ended <= SURE + Duration::from_nanos(self.pressure.ns_since())
    }
}

/// One test at a time: each agent sees the sandboxes of all, and a kill is judged by what the machine had time for.
static ALONE: Mutex<()> = Mutex::new(());

/// Makes sandboxes, each with one plugin, which fails.
struct Maker<'a> {
    folder: &'a Path,
    /// What the ids of its sandboxes begin with.
    prefix: String,
    made: Vec<Made>,
}

impl<'a> Maker<'a> {
    fn new(folder: &'a Path, name: &str) -> Maker<'a> {
        fs::create_dir(folder.join("bin")).unwrap();
        fs::copy("/bin/false", folder.join("bin/broken")).unwrap();
        Maker {
            folder,
            prefix: format!("{name}-{}-", std::process::id()),
            made: Vec::new(),
        }
    }

    fn make(&mut self) {
        let container = format!("{}{:05}", self.prefix, self.made.len());
        let bin = self.folder.join("bin");
        let status = Command::new(bin.join("broken"))
            .env_clear()
            .envs([
                ("CNI_COMMAND", "ADD"),
                ("CNI_CONTAINERID", &container),
                ("CNI_NETNS", "/proc/self/ns/net"),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", bin.to_str().unwrap()),
            ])
            .status();
        assert_eq!(status.unwrap().code(), Some(1));
        self.made.push(Made {
            container,
            ended: Instant::now(),
            pressure: Pressure::now(),
        });
    }
}

fn start(test: &str, folder: &Path, collector: Option<&Collector>) -> Option<Running> {
    let spool = format!("otlp.spool_directory={}", folder.join("spool").display());
    let mut arguments = vec!["--set", &spool, "--set", "correlation.runtime_wait=1s"];
    let endpoint = collector.map(|collector| format!("http://{}", collector.address));
    if let Some(endpoint) = &endpoint {
        arguments.extend(["--otlp-endpoint", endpoint]);
    }
    Running::start(test, folder, &arguments, &[])
}

/// A root span by trace id and span id.
type RootIds = (Vec<u8>, Vec<u8>);

/// How often each root arrived, by container; those with ids that begin with `prefix`.
fn arrived(bodies: Vec<Vec<u8>>, prefix: &str) -> BTreeMap<String, BTreeMap<RootIds, u32>> {
    let mut arrived: BTreeMap<String, BTreeMap<RootIds, u32>> = BTreeMap::new();
    for body in bodies {
        let mut plain = Vec::new();
        GzDecoder::new(body.as_slice()).read_to_end(&mut plain).unwrap();
        let request = ExportTraceServiceRequest::decode(plain.as_slice()).unwrap();
        let scopes = request.resource_spans.into_iter().flat_map(|spans| spans.scope_spans);
        for span in scopes.flat_map(|scope| scope.spans) {
            let texts = span
                .attributes
                .iter()
                .filter_map(|pair| match &pair.value.as_ref()?.value {
                    Some(AnyValue::StringValue(text)) => Some(text.clone()),
                    _ => None,
                });
            let container = texts.into_iter().find(|text| text.starts_with(prefix));
            if let (true, Some(container)) = (span.parent_span_id.is_empty(), container) {
                let roots = arrived.entry(container).or_default();
                *roots.entry((span.trace_id, span.span_id)).or_default() += 1;
            }
        }
    }
    arrived
}

/// Spans that a run of the agent dropped, by the counters that are not 0.
fn dropped(agent: &Running) -> BTreeMap<&'static str, f64> {
    let outcomes = ["rejected", "evicted", "expired", "corrupt", "partial_rejected", "shed"];
    let spans = outcomes.map(|outcome| {
        let series = format!("sandglass_export_spans_total{{outcome=\"{outcome}\"}}");
        (outcome, agent.metric(&series).unwrap())
    });
    spans.into_iter().filter(|(_, spans)| *spans != 0.0).collect()
}

#[test]
fn an_agent_that_is_killed_twenty_times_loses_no_bad_sandbox() {
    let test = "an_agent_that_is_killed_twenty_times_loses_no_bad_sandbox";
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    // One of three requests is refused for the moment, so that some wait at each kill.
    let collector = Collector::answering(|number| if number.is_multiple_of(3) { 503 } else { 200 });
    let mut maker = Maker::new(folder.path(), "struck");
    let (mut sure, mut excused) = (BTreeMap::new(), BTreeSet::new());
    let (began, mut random) = (Pressure::now(), u64::from(std::process::id()));
    for kill in 0..KILLS {
        let Some(agent) = start(test, folder.path(), Some(&collector)) else {
            return;
        };
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let first = maker.made.len();
        let up = Duration::from_millis(200 + (random >> 33) % 3_000);
        let begin = Instant::now();
        while begin.elapsed() < up {
            maker.make();
            std::thread::sleep(Duration::from_millis(15));
        }
        assert_eq!(dropped(&agent), BTreeMap::new(), "before kill {kill}");
        // SIGKILL. How long the kernel then takes to detach its programs is no time of the agent.
        let killed = Instant::now();
        drop(agent);
        for made in maker.made[first..].iter().filter(|made| made.is_sure(killed)) {
            let times = format!(
                "made {:?} after the start, {:?} before kill {kill}",
                made.ended - begin,
                killed - made.ended
            );
            sure.insert(made.container.clone(), times);
            if made.is_excused(killed) {
                excused.insert(made.container.clone());
            }
        }
    }
    let agent = start(test, folder.path(), Some(&collector)).unwrap();
    agent.until("all is sent", |agent| {
        let health = agent.health();
        let count = |part: &str, key: &str| health[part][key].as_u64().unwrap();
        // Its file has a header as soon as it has read what was left.
        count("journal", "bytes") > 0 && count("journal", "traces") == 0 && count("otlp", "waiting") == 0
    });
    assert_eq!(dropped(&agent), BTreeMap::new());
    let health = agent.health();
    assert!(
        health["otlp"]["spool_problem"].is_null() && health["journal"]["problem"].is_null(),
        "{health}"
    );
    drop(agent);

    let arrived = arrived(collector.take(), &maker.prefix);
    let waited = Duration::from_nanos(began.ns_since());
    let lost: BTreeMap<_, _> = sure
        .iter()
        .filter(|(container, _)| !arrived.contains_key(*container))
        .collect();
    let twice = arrived
        .values()
        .flat_map(BTreeMap::values)
        .filter(|times| **times > 1)
        .count();
    eprintln!(
        "{} made, {} for certain, {} arrived, {twice} more than once; tasks waited for {waited:?}",
        maker.made.len(),
        sure.len(),
        arrived.len()
    );
    assert!(sure.len() > 100 && arrived.len() > sure.len() / 2, "{}", sure.len());
    let unexplained: Vec<_> = lost.iter().filter(|(made, _)| !excused.contains(**made)).collect();
    assert!(unexplained.is_empty(), "{unexplained:#?}");
    if !lost.is_empty() {
        eprintln!(
            "NOT JUDGED {test}::lost: {} of {} did not arrive, for which the agent may have had no time: tasks waited for {waited:?}",
            lost.len(),
            sure.len()
        );
    }
    for container in sure.keys().filter(|container| arrived.contains_key(*container)) {
        assert_eq!(
            arrived[container].len(),
            1,
            "{container}: one trace, however often it is sent"
        );
    }
}

/// Ids of the rows that the page lists of the test's sandboxes.
fn rows(agent: &Running, prefix: &str) -> BTreeSet<String> {
    let answer = agent.page(&format!("/api/v1/sandboxes?kind=all&limit=1000&q={prefix}"));
    let closed = answer["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["result"] == "failed");
    closed
        .map(|row| format!("{} {}", row["trace_id"], row["root_span_id"]))
        .collect()
}

fn counts(agent: &Running) -> Value {
    agent.page("/api/v1/sandboxes?kind=all")["counts"].clone()
}

/// Without a collector: the page alone.
#[test]
fn the_page_shows_after_a_kill_what_it_had_shown_before() {
    let test = "the_page_shows_after_a_kill_what_it_had_shown_before";
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let mut maker = Maker::new(folder.path(), "shown");
    let mut shown = BTreeSet::new();
    for run in 0..3 {
        let Some(agent) = start(test, folder.path(), None) else {
            return;
        };
        agent.until("what was shown before is shown again", |agent| {
            rows(agent, &maker.prefix) == shown
        });
        // Others may use the machine too.
        let earlier = counts(&agent)["earlier"].as_u64().unwrap();
        assert!(
            earlier >= shown.len() as u64 && (run > 0) == (earlier > 0),
            "run {run}: {earlier}"
        );
        for _ in 0..20 {
            maker.make();
        }
        agent.until("they are closed", |agent| {
            rows(agent, &maker.prefix).len() == 20 * (run + 1)
        });
        agent.until("all that is closed is written", |agent| {
            let health = agent.health();
            let count = |part: &str, key: &str| health[part][key].as_u64().unwrap();
            let closed = count("store", "traces") - count("store", "running") - count("store", "waiting");
            count("store_disk", "traces") == closed
        });
        shown = rows(&agent, &maker.prefix);
        if run == 1 {
            // A clean end keeps them too.
            let mut agent = agent;
            let pid = rustix::process::Pid::from_child(&agent.process);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
            agent.process.wait().unwrap();
        }
    }
    // Who wants nothing at rest gets nothing at rest.
    let spool = format!("otlp.spool_directory={}", folder.path().join("spool").display());
    let agent = Running::start(
        test,
        folder.path(),
        &["--set", &spool, "--set", "store.on_disk=false"],
        &[],
    )
    .unwrap();
    assert!(rows(&agent, &maker.prefix).is_empty() && agent.health()["store_disk"].is_null());
    let names = ["store.0", "store.1", "store.2", "store.3"].map(|name| folder.path().join("spool").join(name));
    let left = names
        .iter()
        .filter_map(|name| fs::read(name).ok())
        .find(|bytes| bytes.windows(4).any(|four| four == b"SGJR"));
    assert_eq!(left, None);
}
