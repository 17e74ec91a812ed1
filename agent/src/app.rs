//! The composition root: which part is connected to which, started in order and stopped in reverse.
//!
//! Used by `run`, `record` and `demo`. Two things are fatal at start: no source at all, and invalid configuration (an
//! address that cannot be listened on is one). Everything else is a warning, a probe status, and the agent runs on.

mod fan_out;
mod networks;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use sandglass_correlator::Config as CorrelatorConfig;
use sandglass_model::recording::{self, Header};
use sandglass_model::{ClockAnchor, Trace};
use tokio::sync::{Notify, watch};

use crate::cni_conf::CniOptions;
use crate::config::Config;
use crate::cri::RuntimeChoice;
use crate::failure::{Failure, NO_THREADS};
use crate::health::{Health, ProbeStatus};
use crate::http::{self, HttpOptions, Services};
use crate::identity::{Identity, IdentityOptions};
use crate::node::NodeInfo;
use crate::pipeline::Pipeline;
use crate::sinks::otlp::OtlpSink;
use crate::sinks::otlp::config::{self as otlp_config, Resolution, Settings};
use crate::sinks::prometheus::{InFlight, Metrics, ProductMetrics};
use crate::sinks::recording::Recorder;
use crate::sinks::store::StoreOptions;
use crate::sources::native::{self, Source};
use crate::sources::windows::normalize::ActivityNames;
use crate::sources::{self, clock};
use crate::view::Store;
use crate::{resident, scheduling};

pub use fan_out::FanOut;

/// What to start besides what the configuration says.
#[derive(Debug, Default)]
pub struct Options {
    /// OTLP settings given by flags: they stand above the environment, the file stands below it.
    pub otlp_flags: Settings,
    /// Record every event into this new file.
    pub record: Option<PathBuf>,
    /// Serve page, API and metrics.
    pub serve: bool,
    /// Only record: nothing is exported, whatever the environment says.
    pub record_only: bool,
    /// The node's network namespace, where it is not that of process 1; for `demo`.
    pub node_netns: Option<PathBuf>,
    /// Further directories in which a runtime gives names to network namespaces; for `demo`.
    pub netns_directories: Vec<String>,
    /// Receives every closed trace; for `demo`.
    pub closed: Option<mpsc::Sender<Arc<Trace>>>,
}

/// A running agent.
#[derive(Debug)]
pub struct App {
    /// Where page, API and metrics are served.
    pub address: Option<std::net::SocketAddr>,
    /// The account of losses and probes.
    pub health: Health,
    /// Told when the recording ended early; never without one.
    pub recording_broken: Arc<Notify>,
    /// What observes the node.
    pub source: Source,
    identity: Arc<Mutex<Option<Identity>>>,
    networks: networks::NetworkWatch,
    pipeline: JoinHandle<FanOut>,
    otlp: Option<Arc<OtlpSink>>,
    server: Option<http::Running>,
    shutdown: watch::Sender<bool>,
}

/// Signs of life that the HTTP server tells of.
#[derive(Debug, Default)]
pub struct Pulse {
    /// Boot time at which the pipeline last moved.
    pub moved: AtomicU64,
    /// Everything is attached, and read: no process that begins from now on is missed.
    pub started: AtomicBool,
}

/// How long a clean stop waits for the collector.
const FLUSH: Duration = Duration::from_secs(5);
/// How often memory of no more use is given back, once after the start and then after how many events at least: an idle
/// node pays nothing for it.
const TRIM_EVERY_NS: u64 = 5_000_000_000;
const TRIM_AFTER: u64 = 1_000;
/// `/healthz` fails when the pipeline has not moved for so long.
const STALLED_SECONDS: u64 = 30;

/// Starts the agent.
pub async fn start(config: &Config, options: Options) -> Result<App, Failure> {
    let node = node_info(config);
    // One reading for the recording's header and the correlator: a replay maps times as the live run did.
    let anchor = clock::anchor();
    // Before anything is attached: a bad value is found at once.
    let runtime = runtime_choice(config)?;
    let health = Health::default();
    let metrics = Metrics::new(&node, &health);
    metrics.register_process();
    let store = Store::new(StoreOptions::live(config.store.max_traces), node.clone());
    let otlp = match options.record_only {
        true => None,
        false => start_otlp(config, &options.otlp_flags, &node, &health)?.map(Arc::new),
    };
    if let Some(otlp) = &otlp {
        metrics.register(|registry| otlp.register(registry));
    }
    let recorder = match &options.record {
        Some(path) => Some(Recorder::create(path, &recording_header(&node, anchor))?),
        None => None,
    };

    let recording_broken = recorder.as_ref().map(Recorder::broken).unwrap_or_default();

    // The server comes before the source: an address in use is found before anything is attached to the kernel.
    let (shutdown, stop) = watch::channel(false);
    let pulse = Arc::new(Pulse {
        moved: AtomicU64::new(clock::now().0),
        started: AtomicBool::new(false),
    });
    let server = match options.serve {
        true => Some(
            serve(
                config,
                &store,
                &health,
                &metrics,
                otlp.clone(),
                Arc::clone(&pulse),
                stop,
            )
            .await?,
        ),
        false => None,
    };

    let (sender, receiver) = sources::channel(config.probes.queue_events, health.queue_depth.clone());
    let source_options = source_options(config)?;
    #[cfg(target_os = "linux")]
    let source_options = {
        let mut source_options = source_options;
        source_options.node_netns = options.node_netns;
        source_options.netns_directories.extend(options.netns_directories);
        source_options
    };
    let source = native::start(source_options, sender.clone(), health.clone())?;
    #[cfg(target_os = "linux")]
    let namespaces = Some(source.namespace_look());
    #[cfg(not(target_os = "linux"))]
    let namespaces = None;
    let asked = IdentityOptions {
        runtime,
        timeout: config.cri.timeout.into(),
        namespaces,
        ..IdentityOptions::default()
    };
    let identity = Arc::new(Mutex::new(start_identity(asked, &sender, &health, &metrics)));
    let networks = networks::NetworkWatch::start(conf_options(config), sender);

    let product = ProductMetrics::new(config.metrics.max_label_values);
    metrics.register(|registry| product.register(registry));
    let in_flight = InFlight::new(clock::now);
    metrics.register(|registry| registry.register_collector(Box::new(in_flight.clone())));
    let mut fan_out = FanOut {
        product,
        in_flight,
        store: Some(store),
        otlp: otlp.clone(),
        identity: Arc::clone(&identity),
        recorder,
        closed: options.closed,
    };
    let pipeline = Pipeline::new(
        correlator_config(config, &node, anchor),
        config.correlation.reorder.as_nanos(),
        health.clone(),
    );
    let events = health.events.clone();
    let beating = Arc::clone(&pulse);
    let pipeline = std::thread::Builder::new()
        .name("pipeline".into())
        .spawn(move || {
            scheduling::give_way();
            let (mut trimmed, mut fresh) = ((clock::now(), events.get()), true);
            let beat = || {
                let (now, seen) = (clock::now(), events.get());
                beating.moved.store(now.0, Ordering::Relaxed);
                if now.since(trimmed.0) >= TRIM_EVERY_NS && (fresh || seen - trimmed.1 >= TRIM_AFTER) {
                    (trimmed, fresh) = ((now, seen), false);
                    resident::trim();
                    resident::forget_code();
                }
            };
            pipeline.run(&receiver, clock::now, &mut fan_out, beat);
            fan_out
        })
        .map_err(|error| Failure::runtime(format!("cannot start the pipeline's thread: {error}"), NO_THREADS))?;
    pulse.started.store(true, Ordering::Relaxed);
    // Only now: a start that fails says why, and nothing else.
    let address = server.as_ref().map(|server| server.address);
    if let Some(address) = address {
        http::announce(address);
    }
    Ok(App {
        address,
        health,
        recording_broken,
        source,
        identity,
        networks,
        pipeline,
        otlp,
        server,
        shutdown,
    })
}

impl App {
    /// Stops in the order of the data: sources, pipeline, exporters, server. Gives how many events were recorded.
    pub async fn stop(self) -> Result<u64, Failure> {
        self.source.stop();
        self.networks.stop();
        // Whoever may still ask keeps the answers' end of the channel open, and the pipeline waits for that.
        drop(self.identity.lock().unwrap_or_else(PoisonError::into_inner).take());
        let pipeline = self.pipeline;
        let joined = tokio::task::spawn_blocking(move || pipeline.join()).await;
        let fan_out = match joined {
            Ok(Ok(fan_out)) => fan_out,
            _ => {
                return Err(Failure::defect("the pipeline's thread panicked"));
            }
        };
        if let Some(otlp) = self.otlp {
            otlp.stop(FLUSH).await;
        }
        self.shutdown.send_replace(true);
        if let Some(server) = self.server {
            server.stopped().await;
        }
        match fan_out.recorder {
            Some(recorder) => Ok(recorder.finish()?),
            None => Ok(0),
        }
    }
}

/// Facts about this node, with the configured name.
#[must_use]
pub fn node_info(config: &Config) -> NodeInfo {
    let facts = clock::node_facts();
    let named = [
        config.node_name.clone(),
        std::env::var("NODE_NAME").unwrap_or_default(),
        facts.host,
    ];
    NodeInfo {
        name: named.into_iter().find(|name| !name.is_empty()).unwrap_or_default(),
        service: "sandglass".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: facts.boot_id,
        os: facts.os,
        kernel: facts.kernel,
        machine: facts.machine,
    }
}

/// Deadlines and bounds as the correlator takes them.
#[must_use]
pub fn correlator_config(config: &Config, node: &NodeInfo, anchor: ClockAnchor) -> CorrelatorConfig {
    let correlation = &config.correlation;
    CorrelatorConfig {
        boot_id: node.boot_id.clone(),
        anchor,
        settle_ns: correlation.settle.as_nanos(),
        runtime_wait_ns: correlation.runtime_wait.as_nanos(),
        deadline_ns: correlation.deadline.as_nanos(),
        labels_wait_ns: match RuntimeChoice::parse(&config.cri.endpoint) {
            Ok(RuntimeChoice::Off) => 0,
            Ok(RuntimeChoice::Auto | RuntimeChoice::At(_)) | Err(_) => CorrelatorConfig::default().labels_wait_ns,
        },
        max_traces: correlation.max_traces,
        max_processes: correlation.max_processes,
        max_spans: correlation.max_spans,
        max_remembered: correlation.max_remembered,
        traffic: config.traffic.bounds(),
        windows: node.os == "Windows",
    }
}

/// Starts OTLP export when an endpoint is configured anywhere.
pub fn start_otlp(
    config: &Config,
    flags: &Settings,
    node: &NodeInfo,
    health: &Health,
) -> Result<Option<OtlpSink>, Failure> {
    let env = |name: &str| std::env::var(name).ok();
    match otlp_config::resolve(flags, &env, &config.otlp)? {
        Resolution::Off(reason) => {
            tracing::debug!(reason, "traces are not exported");
            Ok(None)
        }
        Resolution::On(resolved) => Ok(Some(OtlpSink::start(*resolved, node.clone(), health.clone())?)),
    }
}

/// Starts the HTTP server.
pub async fn serve(
    config: &Config,
    store: &Store,
    health: &Health,
    metrics: &Metrics,
    otlp: Option<Arc<OtlpSink>>,
    pulse: Arc<Pulse>,
    stop: watch::Receiver<bool>,
) -> Result<http::Running, Failure> {
    let options = HttpOptions {
        listen: config.http.address,
        host_names: config.http.hosts.clone(),
        stuck_after: config.correlation.stuck_after.into(),
        ..HttpOptions::default()
    };
    let (metrics, probes, starting) = (metrics.clone(), health.clone(), Arc::clone(&pulse));
    let services = Services {
        store: store.clone(),
        health: health.clone(),
        metrics: Arc::new(move || metrics.encode()),
        alive: Arc::new(move || {
            let silent = clock::now().0.saturating_sub(pulse.moved.load(Ordering::Relaxed)) / 1_000_000_000;
            if silent < STALLED_SECONDS {
                Ok(())
            } else {
                Err(format!("the pipeline has not moved for {silent} s"))
            }
        }),
        ready: Arc::new(move || readiness(&probes.probes(), starting.started.load(Ordering::Relaxed))),
        otlp: Arc::new(move || {
            otlp.as_ref().map_or(serde_json::Value::Null, |otlp| {
                serde_json::to_value(otlp.status()).unwrap_or(serde_json::Value::Null)
            })
        }),
    };
    Ok(http::serve(options, services, stop).await?)
}

/// Whether the agent sees what begins from now on. On Windows the sessions of providers do without the kernel logger's.
fn readiness(probes: &[ProbeStatus], started: bool) -> Result<(), String> {
    let mut essential = probes
        .iter()
        .filter(|probe| matches!(probe.probe.as_str(), "exec" | "etw"));
    match essential.any(|probe| probe.attached) {
        true if started => Ok(()),
        // Attaching the others takes a second or more, and until then nothing is shown.
        true => Err("not all probes are attached yet".to_owned()),
        false => Err("the process probe is not attached".to_owned()),
    }
}

/// How the kernel of this node is hooked.
#[cfg(target_os = "linux")]
pub fn source_options(config: &Config) -> Result<native::Options, Failure> {
    Ok(native::Options {
        ring_bytes: config.probes.ring_buffer_bytes,
        stdio: config.probes.stdio,
        dns: config.probes.dns,
        connect: config.probes.connect,
        conntrack: config.probes.conntrack,
        drops: config.probes.drops,
        dns_ports: config.dns.ports.clone(),
        ..native::Options::default()
    })
}

/// How ETW of this node is listened to.
#[cfg(windows)]
pub fn source_options(config: &Config) -> Result<native::Options, Failure> {
    Ok(native::Options {
        vfp: config.windows.vfp.into(),
        names: activity_names(config)?,
        ..native::Options::default()
    })
}

/// What is known of the names of HNS's and HCS's activities.
pub fn activity_names(config: &Config) -> Result<ActivityNames, Failure> {
    Ok(ActivityNames::with_file(config.windows.activities.as_deref())?)
}

/// Where the CNI configuration is looked for.
#[must_use]
pub fn conf_options(config: &Config) -> CniOptions {
    CniOptions {
        conf_dir: config.cni.conf_dir.clone(),
        bin_dirs: config.cni.bin_dirs.clone(),
        ..CniOptions::default()
    }
}

fn start_identity(
    options: IdentityOptions,
    sender: &sources::EventSender,
    health: &Health,
    metrics: &Metrics,
) -> Option<Identity> {
    if options.runtime == RuntimeChoice::Off {
        return None;
    }
    let identity = Identity::start(options, sender.clone(), health.clone(), clock::now);
    metrics.register(|registry| identity.metrics().register(registry));
    Some(identity)
}

/// Which runtime to ask.
pub fn runtime_choice(config: &Config) -> Result<RuntimeChoice, Failure> {
    RuntimeChoice::parse(&config.cri.endpoint).map_err(|error| {
        Failure::usage(
            format!("configuration key cri.endpoint: {error}"),
            "write unix:///path/to/socket, tcp://127.0.0.1:port, auto or none",
        )
    })
}

fn recording_header(node: &NodeInfo, clock: ClockAnchor) -> Header {
    Header {
        recording: "sandglass".to_owned(),
        version: recording::VERSION,
        agent: node.version.clone(),
        os: node.os.clone(),
        kernel: node.kernel.clone(),
        machine: node.machine.clone(),
        node: node.name.clone(),
        boot_id: node.boot_id.clone(),
        clock,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_said_when_nothing_is_missed_any_more() {
        let exec = |attached| ProbeStatus {
            probe: "exec".to_owned(),
            hook: "tp_btf".to_owned(),
            attached,
            consequence: String::new(),
            hint: String::new(),
        };
        let said = |probes: &[ProbeStatus], started| readiness(probes, started).err().unwrap_or_default();
        assert_eq!(said(&[], false), "the process probe is not attached");
        assert_eq!(said(&[exec(false)], true), "the process probe is not attached");
        assert_eq!(said(&[exec(true)], false), "not all probes are attached yet");
        assert_eq!(said(&[exec(true)], true), "");
    }

    #[test]
    fn labels_are_waited_for_only_where_a_runtime_may_tell_them() {
        let waits = |endpoint: &str| {
            let mut config = Config::default();
            config.cri.endpoint = endpoint.to_owned();
            correlator_config(&config, &NodeInfo::default(), ClockAnchor::default()).labels_wait_ns > 0
        };
        assert!(waits("auto") && waits("unix:///run/cri.sock"));
        assert!(!waits("none"));
    }
}
