//! 10,000 sandboxes in an hour of the node's time, replayed fast: the memory of pipeline and sinks is flat, and every span is accounted for.
//!
//! Each sandbox is a copy of a recorded one that failed, with ids, processes and times of its own; they overlap as on a node. Behind the correlator are the sinks of `sandglass run`
//! with spool, journal and store on disk, and a collector that is away. Memory is compared with itself, at 5,000 and at 10,000 sandboxes, when all tables are full: that
//! of ended sandboxes is smaller here than by default (2,048, about 1.5 KiB each). Does not: attach probes, or measure how large the agent is (`bench/`).
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use sandglass::app::{self, FanOut, settings};
use sandglass::config::Config;
use sandglass::health::Health;
use sandglass::node::NodeInfo;
use sandglass::pipeline::Pipeline;
use sandglass::sinks::journal::{Journal, JournalOptions, Keeper};
use sandglass::sinks::otlp::config::Settings;
use sandglass::sinks::prometheus::{Buckets, InFlight, ProductMetrics};
use sandglass::sources::clock;
use sandglass::view::Store;
use sandglass_model::{Body, ClockAnchor, Event, Timestamp, Trace};
use serde_json::Value;

const SANDBOXES: u64 = 10_000;
/// Between the begins of two sandboxes.
const APART_NS: u64 = 3_600_000_000_000 / SANDBOXES;
/// Between two ticks.
const TICK_NS: u64 = 200_000_000;

/// The events of one recorded sandbox.
struct Story {
    events: Vec<Value>,
    begin: u64,
}

impl Story {
    fn read() -> Story {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings/add-timeout-killed/events.jsonl");
        let text = fs::read_to_string(path).unwrap();
        let events = text
            .lines()
            .skip(1)
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of_node = ["tick", "clock_anchored", "networks_configured"];
        let events = events.filter(|event| !of_node.contains(&event["event"].as_str().unwrap()));
        let mut events: Vec<Value> = events.collect();
        events.sort_by_key(|event| event["at"].as_u64());
        Story {
            begin: events[0]["at"].as_u64().unwrap(),
            events,
        }
    }

    /// When an event of the sandbox with this number happens.
    fn at(&self, number: u64, index: usize) -> u64 {
        self.events[index]["at"].as_u64().unwrap() - self.begin + FIRST_NS + number * APART_NS
    }

    fn event(&self, number: u64, index: usize) -> Event {
        let mut event = self.events[index].clone();
        let later = (FIRST_NS + number * APART_NS).wrapping_sub(self.begin);
        change(&mut event, "", number, later);
        serde_json::from_value(event).unwrap()
    }
}

/// Begin of the first sandbox.
const FIRST_NS: u64 = 10_000_000_000_000;

/// Makes the sandbox another one, at another time.
fn change(value: &mut Value, key: &str, number: u64, later: u64) {
    match value {
        Value::Object(map) => map
            .iter_mut()
            .for_each(|(key, value)| change(value, key, number, later)),
        Value::Array(list) => list.iter_mut().for_each(|value| change(value, key, number, later)),
        Value::Number(_) => {
            let Some(before) = value.as_u64() else { return };
            *value = match key {
                "at" | "created" => before.wrapping_add(later).into(),
                // Hundredths of a second.
                "start_ticks" => (before.wrapping_add(later / 10_000_000) % (1 << 40)).into(),
                "pid" => (before % 30_000 + number % 100 * 30_000).into(),
                "inode" => (before + number % 1_000 * 8).into(),
                _ => before.into(),
            };
        }
        Value::String(text) => {
            for (recorded, own) in [
                (CONTAINER, container(number)),
                ("search-0", format!("search-{number}")),
                (
                    "00000001-5a6d-4c1e-8d00-000000005cbf",
                    format!("00000001-5a6d-4c1e-8d00-{number:012}"),
                ),
                ("cni-9b7d8b6f-547b-9404-5425-017277d50ef7", format!("cni-{number}")),
            ] {
                if text.contains(recorded) {
                    *text = text.replace(recorded, &own);
                }
            }
        }
        _ => {}
    }
}

const CONTAINER: &str = "56a229f6dae907923b9712028126ec918a412f7e93ccd4c5477510f3c60cba26";

fn container(number: u64) -> String {
    format!("{number:064x}")
}

/// Resident bytes of this process.
fn resident() -> u64 {
    sandglass::resident::trim();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1_024
}

#[test]
fn ten_thousand_sandboxes_leave_memory_flat_and_every_span_accounted_for() {
    // As the agent does: one arena.
    sandglass::resident::keep_small();
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    let mut config = Config::default();
    // Nothing listens on the port of discard.
    config.otlp.endpoint = Some("http://127.0.0.1:9".to_owned());
    config.otlp.spool_directory = Some(folder.path().join("spool"));
    config.cri.endpoint = "none".to_owned();
    config.correlation.max_remembered = 1_024;
    let (health, node) = (Health::default(), NodeInfo::default());
    let otlp = app::start_otlp(&config, &Settings::default(), &node, &health, Buckets::Classic);
    let otlp = Arc::new(otlp.unwrap().unwrap());
    let journal = Journal::new(Keeper::Export);
    otlp.keep_in(journal.clone());
    let options = JournalOptions {
        directory: folder.path().join("spool"),
        clock: clock::anchor,
    };
    journal.start(&options, Duration::ZERO, Box::new(|_| {}));
    let store = Store::new(settings::store_options(&config), node.clone());
    store.keep_on_disk(&folder.path().join("spool"), Some(journal.clone()));
    let (sender, closed) = mpsc::channel();
    let mut fan_out = FanOut {
        product: ProductMetrics::with_buckets(config.metrics.max_label_values, Buckets::Classic),
        in_flight: InFlight::new(clock::now),
        cni: health.cni.clone(),
        store: Some(store.clone()),
        otlp: Some(Arc::clone(&otlp)),
        journal: Some(journal),
        identity: Arc::new(Mutex::new(None)),
        recorder: None,
        closed: Some(sender),
    };
    let anchor = ClockAnchor {
        boot_ns: FIRST_NS,
        unix_ns: 1_790_000_000_000_000_000,
    };
    let correlator = settings::correlator_config(&config, &node, anchor);
    let mut pipeline = Pipeline::new(correlator, 100_000_000, health.clone());

    let story = Story::read();
    let mut next = BinaryHeap::from([Reverse((story.at(0, 0), 0, 0))]);
    let (mut made, mut bad, mut memory, mut ticked) = (0, BTreeSet::new(), Vec::new(), FIRST_NS);
    let begin = Instant::now();
    while let Some(Reverse((at, number, index))) = next.pop() {
        while ticked + TICK_NS < at {
            ticked += TICK_NS;
            let tick = Event {
                at: Timestamp(ticked),
                body: Body::Tick,
            };
            pipeline.feed(tick, &mut fan_out);
        }
        pipeline.feed(story.event(number, index), &mut fan_out);
        if index + 1 < story.events.len() {
            next.push(Reverse((story.at(number, index + 1), number, index + 1)));
        }
        if index == 0 && number + 1 < SANDBOXES {
            next.push(Reverse((story.at(number + 1, 0), number + 1, 0)));
            // Not faster than the sink encodes: what is shed is counted, and is not what is tested here.
            while otlp.status().waiting > otlp.status().spool_spans.unwrap() + 4_000 {
                std::thread::sleep(Duration::from_millis(5));
            }
            account(&closed, &mut made, &mut bad);
            if (number + 1) % 1_000 == 0 {
                // What waits in the sink's queue for the spool would be measured too, and is more on a busy machine.
                while otlp.status().waiting > otlp.status().spool_spans.unwrap() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                memory.push(resident());
            }
        }
    }
    let minutes = Event {
        at: Timestamp(ticked + 120_000_000_000),
        body: Body::Tick,
    };
    pipeline.feed(minutes, &mut fan_out);
    account(&closed, &mut made, &mut bad);
    memory.push(resident());
    let megabytes: Vec<String> = memory
        .iter()
        .map(|bytes| format!("{:.1}", *bytes as f64 / 1e6))
        .collect();
    eprintln!(
        "{SANDBOXES} sandboxes in {:?}; MB after each thousand: {}",
        begin.elapsed(),
        megabytes.join(" ")
    );

    let expected: BTreeSet<u64> = (0..SANDBOXES).collect();
    assert_eq!(bad, expected, "each sandbox failed once, and was closed");
    let status = otlp.status();
    let dropped = status.rejected + status.evicted + status.expired + status.corrupt + status.shed;
    assert_eq!(
        status.delivered + status.waiting + dropped + status.sampled_out,
        made,
        "{status:?}"
    );
    assert_eq!(dropped, 0, "{status:?}");
    let evicted = health.evicted.count().by;
    let lost: Vec<_> = evicted
        .iter()
        .filter(|(table, count)| **count > 0 && !table.contains("remembered"))
        .collect();
    assert_eq!((health.late.get(), health.orphan.get(), lost), (0, 0, Vec::new()));
    let (half, whole) = (memory[4] as f64, memory[9] as f64);
    assert!(whole < half * 1.1, "{half} bytes at 5,000 sandboxes, {whole} at 10,000");
    store.stop();
    runtime.block_on(otlp.stop(Duration::from_millis(100)));
}

/// Counts the spans of closed traces, and keeps the numbers of the sandboxes that failed: their ids would be memory that grows.
fn account(closed: &mpsc::Receiver<Arc<Trace>>, made: &mut u64, bad: &mut BTreeSet<u64>) {
    for trace in closed.try_iter() {
        *made += trace.spans.len() as u64;
        if trace.root().detail.as_sandbox().is_some() && trace.root().status.is_error() {
            let number = trace.sandbox.as_ref().map(|id| u64::from_str_radix(&id.0, 16).unwrap());
            bad.extend(number);
        }
    }
}
