//! What a node's agent serves: real renderings of `/metrics`, by the agent's own code, from recordings.
//!
//! [`Replayed`] is the real binary serving a recording. [`rendering`] adds the families that only a running agent has
//! (export, in flight, identity), made by the same code as in `app`. [`Again`] serves an exposition as a node would on
//! which it happens again every second: a recording stands still, and a rate of it would be nothing.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use sandglass::app;
use sandglass::cni_conf::{Problem, ProblemKind};
use sandglass::config::Config;
use sandglass::health::{Health, ProbeLabel, ProbeStatus, RefusedLabel, SessionLabel, TableLabel};
use sandglass::identity::IdentityMetrics;
use sandglass::ip_pools::{IpPool, RangeSet};
use sandglass::node::NodeInfo;
use sandglass::sinks::journal::{Journal, Keeper};
use sandglass::sinks::otlp::config::Settings;
use sandglass::sinks::prometheus::{Buckets, InFlight, Metrics, ProductMetrics};
use sandglass_correlator::{ActivityEnded, Finding, Output};
use sandglass_model::windows::Service;
use sandglass_model::{ClockAnchor, CniCommand, Detail, Timestamp, Trace};

use super::exposition::Exposition;
use super::samples::{self, Scene};
use super::served::Served;
use sandglass_lab::peers;

/// Recordings that lie in the tree: name and file.
pub fn recordings() -> Vec<(String, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings");
    let mut found: Vec<(String, PathBuf)> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter_map(|folder| {
            let name = folder.file_name()?.to_str()?.to_owned();
            let mut files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
            let recorded =
                |file: &PathBuf| file.ends_with("events.jsonl") || file.extension().is_some_and(|end| end == "etl");
            Some((name, files.find(recorded)?))
        })
        .collect();
    found.sort();
    assert!(found.len() >= 6, "only {} recordings", found.len());
    found
}

/// The agent, serving a recording.
pub struct Replayed {
    pub name: String,
    pub address: SocketAddr,
    _served: Served,
}

impl Replayed {
    pub fn start(name: &str, recording: &Path) -> Replayed {
        let served = Served::start(recording);
        Replayed {
            name: name.to_owned(),
            address: served.address,
            _served: served,
        }
    }

    /// What it serves.
    pub fn exposition(&self) -> Exposition {
        Exposition::parse(&peers::get(self.address, "/metrics").unwrap())
    }
}

/// The families that a replay does not have, rendered by the agent's own code as `app` puts them together.
fn of_a_running_agent() -> Exposition {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let text = runtime.block_on(async {
        let (node, health) = (NodeInfo::default(), Health::default());
        let metrics = Metrics::new(&node, &health);
        health.set_probe(ProbeStatus {
            probe: "exec".to_owned(),
            hook: "tp_btf".to_owned(),
            attached: true,
            consequence: String::new(),
            hint: String::new(),
        });
        // A replay loses nothing; the source of a live agent counts what the kernel could not hand over.
        let exec = ProbeLabel {
            probe: "exec".to_owned(),
        };
        health.lost.get_or_create(&exec).inc_by(112);
        health.limited.get_or_create(&exec).inc_by(30);
        for label in RefusedLabel::all() {
            health.untrusted.get_or_create(&label).inc_by(3);
        }
        for owner in ["noisy", "sandbox", "node"] {
            let table = "lookups";
            health.evicted.get_or_create(&TableLabel { table, owner }).inc_by(5);
        }
        let etw = ProbeLabel {
            probe: "etw".to_owned(),
        };
        health.lost.get_or_create(&etw).inc_by(7);
        let drops = ProbeLabel {
            probe: "drops".to_owned(),
        };
        health.limited.get_or_create(&drops).inc_by(40);
        let session = SessionLabel::new("sandglass-events");
        health.etw_lost.get_or_create(&session).inc_by(7);
        let problem = Problem {
            kind: ProblemKind::NoPlugin,
            text: "no plugin \"bridge\" in /opt/cni/bin".to_owned(),
            handlers: Vec::new(),
        };
        health
            .configuration
            .loaded(7, unix_ns(), vec!["http.address".to_owned()]);
        health.cni.judged(&[problem], 0, ClockAnchor::default());
        health.pools.report(vec![IpPool {
            network: "pods".to_owned(),
            sets: vec![RangeSet {
                addresses: 253,
                used: 250,
                leaked: Some(12),
            }],
            ..IpPool::default()
        }]);
        let traces = samples::busy_node(unix_ns());
        let in_flight = InFlight::new(|| Timestamp(4_000_000_000_000));
        in_flight.set(traces.iter());
        metrics.register(|registry| registry.register_collector(Box::new(in_flight)));
        metrics.register(|registry| IdentityMetrics::default().register(registry));
        // No recording has a DEL that failed.
        let mut product = ProductMetrics::new(10);
        metrics.register(|registry| product.register(registry));
        let mut failed = Scene::operation(CniCommand::Del, "shop", "cart-0", 7, unix_ns());
        let portmap = failed.plugin(0, 2, "portmap", false, CniCommand::Del);
        failed.end(portmap, 21);
        failed.fail(portmap, "exit_code", "exit code 4");
        failed.fail(0, "exit_code", "exit code 4");
        product.record(&Output::Closed(Arc::new(failed.close(23))));
        record_traffic(&mut product);
        // Some traces are delivered, then the collector stops listening and the rest is queued.
        let collector = Collector::start();
        let flags = Settings {
            endpoint: Some(format!("http://{}", collector.address)),
            batch_delay_ms: Some(1),
            ..Settings::default()
        };
        let otlp = app::start_otlp(&Config::default(), &flags, &node, &health, Buckets::Classic)
            .unwrap()
            .unwrap();
        metrics.register(|registry| otlp.register(registry));
        // Where a directory is configured.
        metrics.register(|registry| Journal::new(Keeper::Export).register(registry));
        let (delivered, waiting) = traces.split_at(10);
        let offer = |traces: &[Trace]| traces.iter().for_each(|trace| otlp.offer(&Arc::new(trace.clone())));
        offer(delivered);
        let begin = Instant::now();
        while otlp.status().delivered == 0 {
            assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", otlp.status());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        collector.stop();
        offer(waiting);
        let begin = Instant::now();
        loop {
            let text = metrics.encode().unwrap();
            let waits = |line: &str| line.starts_with("sandglass_export_queue_oldest") && !line.ends_with(" 0");
            if text.lines().any(waits) || begin.elapsed() > Duration::from_secs(10) {
                otlp.stop(Duration::ZERO).await;
                return text;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    Exposition::parse(&text)
}

/// Lookups, connections, conntrack and drops, good and bad, and sandboxes whose network did or did not prove usable.
fn record_traffic(product: &mut ProductMetrics) {
    for (_, traffic) in samples::an_hour(unix_ns()) {
        product.record(&Output::Finding(traffic));
    }
    product.record(&Output::Finding(Finding::JourneyHeldBack));
    let ready = samples::network_ready("shop", "db-0", 1, unix_ns());
    let journeys = [
        samples::stalled_journey(&ready, unix_ns()),
        samples::refused_journey(unix_ns()),
    ];
    let sandboxes = [ready, samples::never_connected("shop", "db-1", 2, unix_ns())];
    for sandbox in &sandboxes {
        let mut open = sandbox.clone();
        open.closed = false;
        product.record(&Output::Created(Arc::new(open)));
    }
    for closed in sandboxes.into_iter().chain(journeys) {
        product.record(&Output::Closed(Arc::new(closed)));
    }
    record_windows(product);
}

/// What a Windows node has besides: activities of each service, well and not, endpoints, and a wait for an interface.
fn record_windows(product: &mut ProductMetrics) {
    for (service, name) in [
        (Service::Hns, "EndpointAttachShared"),
        (Service::Hcs, "HcsCreateComputeSystem"),
    ] {
        for failed in [false, true] {
            product.record(&Output::Finding(Finding::Activity(Box::new(ActivityEnded {
                service,
                name: name.into(),
                start: Timestamp(0),
                end: Timestamp(40_000_000),
                failed,
            }))));
        }
    }
    product.record(&Output::Finding(Finding::Endpoints {
        endpoints: 3,
        sandboxes: 2,
    }));
    product.record(&Output::Finding(Finding::HnsRestarted));
    let mut late = samples::usual("shop", "web-7", 7, unix_ns());
    let mut wait = late.spans[0].clone();
    wait.parent = Some(0);
    wait.detail = Detail::VnicWait(Box::default());
    late.spans.push(wait);
    product.record(&Output::Closed(Arc::new(late)));
}

/// Accepts every request until it is stopped.
struct Collector {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Collector {
    fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let mut stream = stream.unwrap();
                let mut request = [0; 1 << 16];
                // The sender may be slower than one read; it takes the answer as one all the same.
                let _ = stream.read(&mut request);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            }
        });
        Collector {
            address,
            stopped,
            thread,
        }
    }

    fn stop(self) {
        self.stopped.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
        self.thread.join().unwrap();
    }
}

fn unix_ns() -> u64 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    u64::try_from(now.as_nanos()).unwrap()
}

/// All recordings as one node after the other serves them, with all families that an agent has.
pub fn renderings() -> &'static [(String, Exposition)] {
    static RENDERINGS: OnceLock<Vec<(String, Exposition)>> = OnceLock::new();
    RENDERINGS.get_or_init(|| {
        let live = of_a_running_agent();
        let all = recordings().into_iter().map(|(name, file)| {
            let mut exposition = Replayed::start(&name, &file).exposition();
            exposition.add(&live, 1.0);
            (name, exposition)
        });
        all.collect()
    })
}

/// Everything together: all families and all label values that are known.
pub fn rendering() -> Exposition {
    let mut sum = Exposition::default();
    for (_, exposition) in renderings() {
        sum.add(exposition, 1.0);
    }
    sum
}

/// Serves an exposition as if it happened again `each` time per second, in any mixture.
pub struct Again {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    sum: Exposition,
    now: Exposition,
    since: Instant,
}

impl Again {
    /// Starts with the samples of `exposition`.
    pub fn serve(exposition: Exposition) -> Again {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State {
            sum: exposition.clone(),
            now: exposition,
            since: Instant::now(),
        }));
        let shared = Arc::clone(&state);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = [0; 4096];
                let _ = stream.read(&mut request);
                let text = shared.lock().unwrap().settle().text();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    sandglass::sinks::prometheus::CONTENT_TYPE,
                    text.len()
                );
                // Prometheus may have given up.
                let _ = stream.write_all(head.as_bytes());
                let _ = stream.write_all(text.as_bytes());
            }
        });
        Again { address, state }
    }

    /// From now on it is this that happens again and again.
    pub fn turn_to(&self, exposition: Exposition) {
        let mut state = self.state.lock().unwrap();
        state.settle();
        state.now = exposition;
    }
}

impl State {
    fn settle(&mut self) -> &Exposition {
        let times = self.since.elapsed().as_secs_f64();
        self.since = Instant::now();
        self.sum.add(&self.now, times);
        &self.sum
    }
}
