//! Scrapes of `/metrics` at once, of the real server and registry, while the pipeline counts: none misses a series that an
//! earlier one had, and no counter goes back.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandglass::health::{Health, ProbeStatus};
use sandglass::http::{self, HttpOptions, Services};
use sandglass::node::NodeInfo;
use sandglass::pipeline::{Outputs, Pipeline};
use sandglass::sinks::prometheus::{Metrics, ProductMetrics};
use sandglass::sinks::store::StoreOptions;
use sandglass::sources::replay::Recording;
use sandglass::view::Store;
use sandglass_correlator::{CorrelatorConfig, Output};
use sandglass_model::{Event, Trace, TraceId};

const SCRAPERS: usize = 8;
const SCRAPES: usize = 25;
const PROBES: usize = 6;

struct Counting(ProductMetrics);

impl Outputs for Counting {
    fn arrived(&mut self, _: &Event) {}

    fn output(&mut self, output: &Output) {
        self.0.record(output);
    }

    fn changed(&mut self, _: &mut dyn Iterator<Item = &Trace>, _: &BTreeSet<TraceId>) {}
}

/// One recording through pipeline and metrics.
fn replay(outputs: &mut Counting, health: &Health) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings/demo-scenarios/events.jsonl");
    let mut recording = Recording::open(&path).unwrap();
    let config = CorrelatorConfig {
        boot_id: recording.header.boot_id.clone(),
        anchor: recording.header.clock,
        ..CorrelatorConfig::default()
    };
    let mut pipeline = Pipeline::new(config, 100_000_000, health.clone());
    while let Some(event) = recording.next_event().unwrap() {
        pipeline.feed(event, outputs);
    }
    pipeline.finish(outputs);
}

fn probe(number: usize, attached: bool) -> ProbeStatus {
    ProbeStatus {
        probe: format!("probe{number}"),
        hook: "a_hook".to_owned(),
        attached,
        consequence: String::new(),
        hint: String::new(),
    }
}

/// The samples of one scrape, by series.
fn scrape(address: SocketAddr) -> BTreeMap<String, f64> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200"),
        "{}",
        &answer[..answer.len().min(200)]
    );
    assert!(answer.trim_end().ends_with("# EOF"), "cut");
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let samples = body.lines().filter(|line| line.starts_with("sandglass_"));
    let sample = |line: &str| {
        // An exemplar may follow.
        let line = line.split(" # ").next().unwrap();
        let (series, value) = line.rsplit_once(' ').unwrap();
        (series.to_owned(), value.parse().unwrap())
    };
    samples.map(sample).collect()
}

#[test]
fn no_scrape_misses_what_an_earlier_one_had() {
    let (health, node) = (Health::default(), NodeInfo::default());
    let metrics = Metrics::new(&node, &health);
    metrics.register_process();
    let product = ProductMetrics::new(64);
    metrics.register(|registry| product.register(registry));
    for number in 0..PROBES {
        health.set_probe(probe(number, true));
    }
    let mut counting = Counting(product);
    replay(&mut counting, &health);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap();
    let services = Services {
        store: Store::new(StoreOptions::live(1_000), node),
        health: health.clone(),
        metrics: Arc::new(move || metrics.encode()),
        alive: Arc::new(|| Ok(())),
        ready: Arc::new(|| Ok(())),
        journal: None,
        otlp: Arc::new(|| serde_json::Value::Null),
    };
    let options = HttpOptions::new(SocketAddr::from(([127, 0, 0, 1], 0)), Duration::from_secs(30));
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    let address = runtime
        .block_on(http::serve(options, services, stopped))
        .unwrap()
        .address;
    let first = scrape(address);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                replay(&mut counting, &health);
                health.set_probe(probe(round % PROBES, round % 2 == 0));
            }
        });
        let scrapers: Vec<_> = (0..SCRAPERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut before = first.clone();
                    for _ in 0..SCRAPES {
                        let now = scrape(address);
                        for (series, value) in &before {
                            let found = now.get(series);
                            assert!(found.is_some(), "{series} is missing");
                            let counts = series.split('{').next().is_some_and(|name| name.ends_with("_total"));
                            assert!(!counts || found >= Some(value), "{series} went back");
                        }
                        before = now;
                    }
                })
            })
            .collect();
        let results: Vec<_> = scrapers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        // Otherwise the load would go on behind a failure.
        done.store(true, Ordering::Relaxed);
        for result in results {
            result.unwrap();
        }
    });
    eprintln!("{} scrapes of {} series", SCRAPERS * SCRAPES, first.len());
    assert!(
        first
            .keys()
            .filter(|series| series.starts_with("sandglass_probe_info{"))
            .count()
            == PROBES
    );
}
