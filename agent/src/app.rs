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
use std::path::{Path, PathBuf};
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
use crate::sinks::journal::{self, Journal, JournalOptions, Keeper};
use crate::sinks::otlp::OtlpSink;
use crate::sinks::otlp::config::{self as otlp_config, PushOptions, Resolution, Settings};
use crate::sinks::otlp::push::MetricsPush;
use crate::sinks::prometheus::{Buckets, InFlight, Metrics, ProductMetrics};
use crate::sinks::recording::Recorder;
use crate::sinks::store;
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
    store: Store,
    journal: Option<Journal>,
    push: Option<MetricsPush>,
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
    let push = match options.record_only {
        true => None,
        false => push_options(config, &options.otlp_flags)?,
    };
    let buckets = match push {
        Some(_) => Buckets::AndExponential,
        None => Buckets::Classic,
    };
    let sinks = Sinks::start(config, &options, &node, anchor, &health, &metrics, buckets)?;
    let push = push
        .map(|push| MetricsPush::start(push, &node, metrics.clone()))
        .transpose()?;
    let journal = match options.record_only {
        true => None,
        false => journal_of(config, &sinks, options.serve, &metrics)?,
    };
    let recording_broken = sinks.recorder.as_ref().map(Recorder::broken).unwrap_or_default();

    // The server, before the source: an address in use is found before anything is attached to the kernel.
    let (shutdown, stop) = watch::channel(false);
    let pulse = Arc::new(Pulse::starting());
    let shown = Shown {
        store: sinks.store.clone(),
        health: health.clone(),
        metrics: metrics.clone(),
        otlp: sinks.otlp.clone(),
        journal: journal.clone(),
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

    if options.serve {
        keep_page(config, &sinks.store, journal.clone(), &metrics)?;
    }
    if let Some((journal, directory)) = journal.as_ref().zip(settings::store_directory(config)?) {
        start_journal(journal, directory, &sinks, runtime_is_asked);
    }

    // The pipeline, with the correlator in it and the sinks behind it.
    let (otlp, store) = (sinks.otlp.clone(), sinks.store.clone());
    let fan_out = sinks.fan_out(
        config,
        (&metrics, &health),
        journal.clone(),
        Arc::clone(&identity),
        options.closed,
    );
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
        store,
        journal,
        push,
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
        let store = self.store;
        // It waits for the disk; the pipeline has closed its last trace.
        let _ = tokio::task::spawn_blocking(move || store.stop()).await;
        if let Some(otlp) = self.otlp {
            otlp.stop(FLUSH).await;
        }
        if let Some(journal) = self.journal {
            // After both that may keep what is in it.
            let _ = tokio::task::spawn_blocking(move || journal.stop()).await;
        }
        if let Some(push) = self.push {
            push.stop(FLUSH).await;
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
    buckets: Buckets,
}

impl Sinks {
    fn start(
        config: &Config,
        options: &StartOptions,
        node: &NodeInfo,
        anchor: ClockAnchor,
        health: &Health,
        metrics: &Metrics,
        buckets: Buckets,
    ) -> Result<Sinks, Failure> {
        let otlp = match options.record_only {
            true => None,
            false => start_otlp(config, &options.otlp_flags, node, health, buckets)?.map(Arc::new),
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
            buckets,
        })
    }

    /// These sinks and the metrics, behind the pipeline.
    fn fan_out(
        self,
        config: &Config,
        (metrics, health): (&Metrics, &Health),
        journal: Option<Journal>,
        identity: Arc<Mutex<Option<Identity>>>,
        closed: Option<mpsc::Sender<Arc<Trace>>>,
    ) -> FanOut {
        let mut product = ProductMetrics::with_buckets(config.metrics.max_label_values, self.buckets);
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
            journal,
            identity,
            recorder: self.recorder,
            closed,
        }
    }
}

/// Settings of the push of metrics, if it is configured by flag, environment or file.
fn push_options(config: &Config, flags: &Settings) -> Result<Option<PushOptions>, Failure> {
    let env = |name: &str| std::env::var(name).ok();
    match otlp_config::resolve_push(flags, &env, &config.otlp)? {
        Resolution::Off(reason) => {
            match reason == otlp_config::NO_ENDPOINT {
                // Somebody wants them pushed.
                true => tracing::warn!(reason, "metrics are not pushed"),
                false => tracing::debug!(reason, "metrics are not pushed"),
            }
            Ok(None)
        }
        Resolution::On(options) => Ok(Some(*options)),
    }
}

/// Starts OTLP export of traces when an endpoint is configured by flag, environment or file.
///
/// # Errors
/// A setting is not valid, or a certificate cannot be used.
pub fn start_otlp(
    config: &Config,
    flags: &Settings,
    node: &NodeInfo,
    health: &Health,
    buckets: Buckets,
) -> Result<Option<OtlpSink>, Failure> {
    let env = |name: &str| std::env::var(name).ok();
    match otlp_config::resolve(flags, &env, &config.otlp)? {
        Resolution::Off(reason) => {
            tracing::debug!(reason, "traces are not exported");
            Ok(None)
        }
        Resolution::On(mut resolved) => {
            resolved.buckets = buckets;
            if let Some(spool) = &mut resolved.spool {
                spool.clock = clock::anchor;
            }
            Ok(Some(OtlpSink::start(*resolved, node.clone(), health.clone())?))
        }
    }
}

/// A journal of open traces where a directory is configured and somebody keeps closed ones: a collector, or the page on disk. Where nobody does, none of an
/// earlier run stay there.
fn journal_of(config: &Config, sinks: &Sinks, serve: bool, metrics: &Metrics) -> Result<Option<Journal>, Failure> {
    let Some(directory) = settings::store_directory(config)? else {
        return Ok(None);
    };
    let keeper = match &sinks.otlp {
        Some(_) => Keeper::Export,
        None if serve && config.store.on_disk => Keeper::Store,
        None => {
            if let Err(error) = journal::forget(directory) {
                let directory = directory.display();
                tracing::warn!(%directory, %error, "cannot empty the journal of an earlier run: there is no collector, and store.on_disk is false");
            }
            return Ok(None);
        }
    };
    let journal = Journal::new(keeper);
    metrics.register(|registry| journal.register(registry));
    if let Some(otlp) = &sinks.otlp {
        otlp.keep_in(journal.clone());
    }
    Ok(Some(journal))
}

/// What an earlier run left open is shown and sent, and counted by the journal only: nobody knows how it went on.
fn start_journal(journal: &Journal, directory: &Path, sinks: &Sinks, runtime_is_asked: bool) {
    let patience = if runtime_is_asked {
        RUNTIME_ANSWER
    } else {
        FOUND_RUNNING
    };
    let options = JournalOptions {
        directory: directory.to_owned(),
        clock: clock::anchor,
    };
    let (otlp, store) = (sinks.otlp.as_ref().map(Arc::downgrade), sinks.store.clone());
    let kept_by = journal.clone();
    let deliver = move |trace: Arc<Trace>| {
        store.restore(Arc::clone(&trace));
        if let Some(sink) = otlp.as_ref().and_then(std::sync::Weak::upgrade) {
            sink.offer(&trace);
        }
        kept_by.close(&trace);
    };
    journal.start(&options, patience, Box::new(deliver));
}

/// The page's traces survive a restart where the spool's directory is configured; where they must not, none of an earlier run stay there.
fn keep_page(config: &Config, store: &Store, journal: Option<Journal>, metrics: &Metrics) -> Result<(), Failure> {
    let Some(directory) = settings::store_directory(config)? else {
        return Ok(());
    };
    if config.store.on_disk {
        store.keep_on_disk(directory, journal);
        metrics.register(|registry| store.register(registry));
    } else if let Err(error) = store::disk::forget(directory) {
        let directory = directory.display();
        tracing::warn!(%directory, %error, "cannot empty the page's files of an earlier run: store.on_disk is false");
    }
    Ok(())
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
/// How long the first snapshot of a sandbox may take of which a plugin was found running at the start.
const FOUND_RUNNING: Duration = Duration::from_secs(2);
/// How long a clean stop waits for the collector.
const FLUSH: Duration = Duration::from_secs(5);
