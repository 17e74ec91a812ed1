//! `sandglass replay`: a recording to the same traces, on any machine.

mod progress;
mod replayed;

use std::sync::Arc;
use std::time::Duration;

use sandglass_correlator::FEED_WAIT_NS;
use sandglass_model::Timestamp;
use sandglass_model::masking::{self, Arguments};
use sandglass_model::recording::{Header, Holds};
use tokio::sync::watch;

use super::console::print;
use super::flags::{configuration, otlp_flags};
use crate::app::serving::{self, Pulse, Shown};
use crate::app::{self, settings};
use crate::cli::ReplayArgs;
use crate::config::Config;
use crate::failure::Failure;
use crate::health::{Health, ProbeStatus, SessionLabel};
use crate::node::NodeInfo;
use crate::pipeline::Pipeline;
use crate::platform::until_stopped;
use crate::sinks::otlp::OtlpSink;
use crate::sinks::prometheus::{Buckets, Metrics, ProductMetrics};
use crate::sinks::recording::Recorder;
use crate::sinks::store::StoreOptions;
use crate::sources::replay::Replay;
use crate::view::Store;
use progress::ProgressLine;
use replayed::Replayed;

/// Replays.
pub async fn replay(args: ReplayArgs) -> Result<(), Failure> {
    let (_, config) = configuration(&args.config)?;
    let recording = Replay::open(&args.recording, settings::activity_names(&config)?)?;
    replay_from(recording, args, config).await
}

/// Replays an open recording.
pub async fn replay_from(mut recording: Replay, args: ReplayArgs, config: Config) -> Result<(), Failure> {
    let header = recording.header().clone();
    let node = NodeInfo {
        // An .etl file does not name its machine.
        name: if header.node.is_empty() {
            config.node_name.clone()
        } else {
            header.node.clone()
        },
        service: "sandglass".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: header.boot_id.clone(),
        os: header.os.clone(),
        kernel: header.kernel.clone(),
        machine: header.machine.clone(),
    };
    let health = Health::default();
    let metrics = Metrics::new(&node, &health);
    let product = ProductMetrics::new(config.metrics.max_label_values);
    metrics.register(|registry| product.register(registry));
    let otlp = if args.export {
        Some(exporter(&args, &config, &node, &health)?)
    } else {
        None
    };
    let product = match &otlp {
        Some(otlp) => product.with_sampling(otlp.sampling()),
        None => product,
    };
    let mut replayed = Replayed {
        product,
        otlp,
        closed: Vec::new(),
        store: args.serve.then(|| replay_store(&node)),
        anchor: header.clock,
        at: Timestamp(0),
    };

    let mut pipeline = Pipeline::new(
        settings::correlator_config(&config, &node, header.clock),
        // A recording does not hold the watermarks of feeds, so each is waited for as long as an agent waits at most.
        config.correlation.reorder.as_nanos() + FEED_WAIT_NS,
        health.clone(),
    );
    let mut recorder = match args.record.as_deref() {
        Some(path) if args.anonymize => Some(Recorder::create_anonymized(path, &copied(&header, &config))?),
        Some(path) => Some(Recorder::create(path, &copied(&header, &config))?),
        None => None,
    };
    let mut progress = ProgressLine::new();
    while let Some(mut event) = recording.next_event()? {
        // A file may come from an agent that did not mask, or from Windows.
        masking::event(&mut event.body, config.commands.arguments);
        if let Some(recorder) = &mut recorder {
            recorder.record(&event);
        }
        pipeline.feed(event, &mut replayed);
        replayed.make_room().await;
        progress.show(recording.progress());
    }
    pipeline.finish(&mut replayed);
    if let Some(recorder) = recorder {
        recorder.finish()?;
    }
    progress.clear();
    report_unused(&recording);
    if let Replay::Etl(file) = &recording {
        let session = SessionLabel::new(file.session_name());
        health.etw_lost.get_or_create(&session).inc_by(file.unused().lost);
    }

    print(&replayed.render(args.print, &metrics)?)?;
    if let Some(otlp) = replayed.otlp.take() {
        export(&otlp).await?;
    }
    if let Some(store) = replayed.store {
        for trace in replayed.closed {
            store.update(trace);
        }
        serve(&config, store, &health, &metrics).await?;
    }
    Ok(())
}

/// The header of a copy: what the copy holds.
fn copied(header: &Header, config: &Config) -> Header {
    let holds = header.holds.unwrap_or(Holds {
        arguments: Arguments::Full,
        anonymized: false,
    });
    let arguments = match config.commands.arguments {
        Arguments::Full => holds.arguments,
        less => less,
    };
    Header {
        holds: Some(Holds { arguments, ..holds }),
        ..header.clone()
    }
}

/// Logs what was skipped or lost, and why.
fn report_unused(recording: &Replay) {
    match recording {
        Replay::Recording(recording) => {
            let skipped = recording.skipped();
            for (line, reason) in &skipped.examples {
                tracing::warn!(line, reason, "line skipped");
            }
            if skipped.count > 0 {
                tracing::warn!(
                    lines = skipped.count,
                    "lines of the recording were skipped: they are not events"
                );
            }
        }
        Replay::Etl(file) => {
            let unused = file.unused();
            if unused.lost > 0 {
                tracing::warn!(
                    events = unused.lost,
                    "the session lost events: traces may be incomplete"
                );
            }
            if unused.unreadable > 0 {
                tracing::warn!(records = unused.unreadable, "parts of the file could not be read");
            }
            if unused.undecodable > 0 || unused.wpp > 0 {
                let (records, wpp) = (unused.undecodable, unused.wpp);
                tracing::info!(records, wpp, "records that nothing describes were passed over");
            }
        }
    }
}

fn exporter(args: &ReplayArgs, config: &Config, node: &NodeInfo, health: &Health) -> Result<OtlpSink, Failure> {
    // The spool is the running agent's.
    let mut config = config.clone();
    config.otlp.spool_directory = None;
    app::start_otlp(&config, &otlp_flags(&args.config), node, health, Buckets::Classic)?.ok_or_else(|| {
        Failure::usage(
            "no OTLP endpoint to export to",
            "give --otlp-endpoint or set OTEL_EXPORTER_OTLP_ENDPOINT",
        )
    })
}

async fn export(otlp: &OtlpSink) -> Result<(), Failure> {
    let undelivered = otlp.stop(EXPORT_WAIT).await;
    let status = otlp.status();
    let lost = undelivered + status.rejected + status.evicted + status.shed;
    if lost == 0 {
        return print(&format!("{} spans exported to {}\n", status.delivered, status.endpoint));
    }
    Err(Failure::runtime(
        format!(
            "{lost} of {} spans did not reach {}: {}",
            lost + status.delivered,
            status.endpoint,
            status.last_error.unwrap_or_else(|| "no answer".to_owned()),
        ),
        "check that an OTLP receiver listens there and speaks this protocol; with https, that its certificate is trusted \
         (otlp.ca_file)",
    ))
}

/// A store without bounds: the user wants to see the whole recording.
fn replay_store(node: &NodeInfo) -> Store {
    Store::new(StoreOptions::replay(), node.clone())
}

async fn serve(config: &Config, store: Store, health: &Health, metrics: &Metrics) -> Result<(), Failure> {
    health.set_probe(ProbeStatus {
        probe: "exec".to_owned(),
        hook: "recording".to_owned(),
        attached: true,
        consequence: String::new(),
        hint: String::new(),
    });
    // Metrics of this process: not printed, since they are not of the recording.
    metrics.register_process();
    let (shutdown, stop) = watch::channel(false);
    let shown = Shown {
        store,
        health: health.clone(),
        metrics: metrics.clone(),
        otlp: None,
        journal: None,
        pulse: Arc::new(Pulse::of_replay()),
    };
    let options = settings::replay_http_options(config);
    if !options.page.address.ip().is_loopback()
        && options.access.token.is_none()
        && options.access.client_authorities.is_none()
    {
        return Err(Failure::usage(
            format!(
                "the page of a replay at {} would be open to everyone",
                options.page.address
            ),
            "choose an address of loopback, or set page.token_file or page.client_ca_file",
        ));
    }
    let server = serving::serve(options, shown, stop).await?;
    server.announce();
    let scheme = if server.tls { "https" } else { "http" };
    print(&format!("{scheme}://{}/ (end with Ctrl-C)\n", server.address))?;
    until_stopped().await;
    shutdown.send_replace(true);
    server.stopped().await;
    Ok(())
}

/// How long the end of a replay waits for the collector.
const EXPORT_WAIT: Duration = Duration::from_secs(15);
