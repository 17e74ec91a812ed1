//! The composition root: starts the agent's parts in order, connects them, and stops them in reverse.
//!
//! Used by `run`, `record` and `demo`. Two things are fatal at start: no source at all, and invalid configuration (an
//! address that cannot be listened on is one). Everything else is a warning, a probe status, and the agent runs on.

mod fan_out;
pub mod live;
mod networks;
mod pools;
pub mod serving;
pub mod settings;
mod worker;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use sandglass_model::{ClockAnchor, Trace};
use tokio::sync::{Notify, watch};

use crate::config::Config;
use crate::cri::RuntimeChoice;
use crate::failure::Failure;
use crate::health::Health;
use crate::http;
use crate::identity::{Identity, IdentityOptions};
use crate::node::NodeInfo;
use crate::pipeline::Pipeline;
use crate::sinks::otlp::OtlpSink;
use crate::sinks::otlp::config::{self as otlp_config, Resolution, Settings};
use crate::sinks::prometheus::{InFlight, Metrics, ProductMetrics};
use crate::sinks::recording::Recorder;
use crate::sources::native::{self, Source};
use crate::sources::{self, EventSender, SourceSettings, clock};
use crate::view::Store;
use live::LiveSettings;
use serving::{Pulse, Shown};

pub use fan_out::FanOut;

/// What to start besides what the configuration selects.
#[derive(Debug, Default)]
pub struct StartOptions {
    /// OTLP settings from flags: they override the environment, which overrides the file.
    pub otlp_flags: Settings,
    /// Record every event into this new file.
    pub record: Option<PathBuf>,
    /// Replace names and addresses in that file.
    pub anonymize: bool,
    /// Serve page, API and metrics.
    pub serve: bool,
    /// Only record: nothing is exported, whatever the environment configures.
    pub record_only: bool,
    /// The node's network namespace, where it is not that of process 1; for `demo`.
    pub node_netns: Option<PathBuf>,
    /// Further directories in which a runtime names network namespaces; for `demo`.
    pub netns_directories: Vec<String>,
    /// Receives every closed trace; for `demo`.
    pub closed: Option<mpsc::Sender<Arc<Trace>>>,
}

/// A running agent.
#[derive(Debug)]
pub struct App {
    /// Where page and API are served, and metrics and health too.
    pub address: Option<SocketAddr>,
    /// Where only metrics and health are served.
    pub metrics_address: Option<SocketAddr>,
    /// Losses and probes.
    pub health: Health,
    /// Notified when the recording ended early; never without a recording.
    pub recording_broken: Arc<Notify>,
    /// Observes the node.
    pub source: Source,
    identity: Arc<Mutex<Option<Identity>>>,
    networks: networks::NetworkWatch,
    pools: pools::PoolWatch,
    pipeline: JoinHandle<FanOut>,
    otlp: Option<Arc<OtlpSink>>,
    server: Option<http::Running>,
    live: LiveSettings,
    shutdown: watch::Sender<bool>,
}

/// Starts the agent.
///
/// # Errors
/// Invalid configuration, no source, an address or a recording that cannot be opened.
pub async fn start(config: &Config, options: StartOptions) -> Result<App, Failure> {
    // The configuration, before anything is attached.
    let node = settings::node_info(config);
    let runtime = settings::runtime_choice(config)?;
    let source_options = native::Options::from_settings(SourceSettings {
        node_netns: options.node_netns.clone(),
        netns_directories: options.netns_directories.clone(),
        ..settings::source_settings(config)
    })?;
    // One reading for the recording's header and the correlator: a replay maps times as the live run did.
    let anchor = clock::anchor();

    // The counters.
    let health = Health::default();
    let metrics = Metrics::new(&node, &health);
    metrics.register_process();

    // The sinks.
    let sinks = Sinks::start(config, &options, &node, anchor, &health, &metrics)?;
    let recording_broken = sinks.recorder.as_ref().map(Recorder::broken).unwrap_or_default();

    // The server, before the source: an address in use is found before anything is attached to the kernel.
    let (shutdown, stop) = watch::channel(false);
    let pulse = Arc::new(Pulse::starting());
    let shown = Shown {
        store: sinks.store.clone(),
        health: health.clone(),
        metrics: metrics.clone(),
        otlp: sinks.otlp.clone(),
        pulse: Arc::clone(&pulse),
    };
    let server = match options.serve {
        true => Some(serving::serve(settings::http_options(config, &node), shown, stop).await?),
        false => None,
    };

    // The source, and the two that add facts to its events.
    let (sender, receiver) = sources::channel(config.probes.queue_events, health.queue_depth.clone());
    let sender = sender.with_arguments(config.commands.arguments);
    let source = native::start(source_options, sender.clone(), health.clone())?;
    let cni_options = settings::cni_options(config);
    let cri_timeout = config.cri.timeout.into();
    let runtime_is_asked = runtime != RuntimeChoice::Off;
    let pools = pools::PoolWatch::start(cni_options.clone(), runtime.clone(), cri_timeout, health.pools.clone());
    let identity_options = IdentityOptions {
        namespaces: source.namespace_look(),
        ..IdentityOptions::new(runtime, cri_timeout)
    };
    let identity = start_identity(identity_options, &sender, &health, &metrics);
    let identity = Arc::new(Mutex::new(identity));
    let networks = networks::NetworkWatch::start(cni_options, sender, health.cni.clone());

    let live = LiveSettings::of(
        sinks.otlp.as_ref().map(|otlp| otlp.sampling().clone()),
        sinks.store.clone(),
        server.as_ref().map(http::Running::stuck_after),
    );

    if let Some(otlp) = &sinks.otlp {
        keep_journal(otlp, &sinks.store, runtime_is_asked);
    }

    // The pipeline, with the correlator in it and the sinks behind it.
    let otlp = sinks.otlp.clone();
    let fan_out = sinks.fan_out(config, &metrics, &health, Arc::clone(&identity), options.closed);
    let pipeline = Pipeline::new(
        settings::correlator_config(config, &node, anchor),
        config.correlation.reorder.as_nanos(),
        health.clone(),
    );
    let pipeline = worker::start(pipeline, receiver, fan_out, health.events.clone(), Arc::clone(&pulse))?;

    // Only now, so that a start that fails logs its reason and nothing else.
    pulse.started.store(true, Ordering::Relaxed);
    server.iter().for_each(http::Running::announce);
    Ok(App {
        address: server.as_ref().map(|server| server.address),
        metrics_address: server.as_ref().and_then(|server| server.metrics),
        health,
        recording_broken,
        source,
        identity,
        networks,
        pools,
        pipeline,
        otlp,
        server,
        live,
        shutdown,
    })
}

impl App {
    /// What a reload of the configuration changes while the agent runs.
    #[must_use]
    pub fn live(&self) -> LiveSettings {
        self.live.clone()
    }

    /// Stops in the order of the data: sources, pipeline, exporters, server. Returns how many events were recorded.
    ///
    /// # Errors
    /// The recording is not complete, or the pipeline panicked.
    pub async fn stop(self) -> Result<u64, Failure> {
        self.source.stop();
        self.networks.stop();
        drop(self.pools);
        // The identity's answers keep the pipeline's channel open.
        drop(self.identity.lock().unwrap_or_else(PoisonError::into_inner).take());
        let pipeline = self.pipeline;
        let joined = tokio::task::spawn_blocking(move || pipeline.join()).await;
        let Ok(Ok(fan_out)) = joined else {
            return Err(Failure::defect("the pipeline's thread panicked"));
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

/// The sinks that the composition root starts before the server.
struct Sinks {
    store: Store,
    otlp: Option<Arc<OtlpSink>>,
    recorder: Option<Recorder>,
}

impl Sinks {
    fn start(
        config: &Config,
        options: &StartOptions,
        node: &NodeInfo,
        anchor: ClockAnchor,
        health: &Health,
        metrics: &Metrics,
    ) -> Result<Sinks, Failure> {
        let otlp = match options.record_only {
            true => None,
            false => start_otlp(config, &options.otlp_flags, node, health)?.map(Arc::new),
        };
        if let Some(otlp) = &otlp {
            metrics.register(|registry| otlp.register(registry));
        }
        let recorder = match &options.record {
            Some(path) => {
                let header = settings::recording_header(config, node, anchor);
                Some(match options.anonymize {
                    true => Recorder::create_anonymized(path, &header)?,
                    false => Recorder::create(path, &header)?,
                })
            }
            None => None,
        };
        Ok(Sinks {
            store: Store::new(settings::store_options(config), node.clone()),
            otlp,
            recorder,
        })
    }

    /// These sinks and the metrics, behind the pipeline.
    fn fan_out(
        self,
        config: &Config,
        metrics: &Metrics,
        health: &Health,
        identity: Arc<Mutex<Option<Identity>>>,
        closed: Option<mpsc::Sender<Arc<Trace>>>,
    ) -> FanOut {
        let mut product = ProductMetrics::new(config.metrics.max_label_values);
        if let Some(otlp) = &self.otlp {
            product = product.with_sampling(otlp.sampling());
        }
        metrics.register(|registry| product.register(registry));
        let in_flight = InFlight::new(clock::now);
        metrics.register(|registry| registry.register_collector(Box::new(in_flight.clone())));
        FanOut {
            product,
            in_flight,
            cni: health.cni.clone(),
            store: Some(self.store),
            otlp: self.otlp,
            identity,
            recorder: self.recorder,
            closed,
        }
    }
}

/// Starts OTLP export when an endpoint is configured by flag, environment or file.
///
/// # Errors
/// A setting is not valid, or a certificate cannot be used.
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
        Resolution::On(mut resolved) => {
            if let Some(spool) = &mut resolved.spool {
                spool.clock = clock::anchor;
            }
            Ok(Some(OtlpSink::start(*resolved, node.clone(), health.clone())?))
        }
    }
}

/// What an earlier run left open is shown and sent, and counted by the journal only: nobody knows how it went on.
fn keep_journal(otlp: &Arc<OtlpSink>, store: &Store, runtime_is_asked: bool) {
    let patience = if runtime_is_asked {
        RUNTIME_ANSWER
    } else {
        Duration::ZERO
    };
    let (sink, store) = (Arc::downgrade(otlp), store.clone());
    otlp.keep_journal(patience, move |trace| {
        store.update(Arc::clone(&trace));
        if let Some(sink) = sink.upgrade() {
            sink.offer(&trace);
        }
    });
}

fn start_identity(
    options: IdentityOptions,
    sender: &EventSender,
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

/// How long the runtime has to list the sandboxes that are older than the agent, until one that was interrupted is reported.
const RUNTIME_ANSWER: Duration = Duration::from_secs(10);
/// How long a clean stop waits for the collector.
const FLUSH: Duration = Duration::from_secs(5);
