//! `sandglass replay`: a recording to the same traces, on any machine.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass_correlator::Output;
use sandglass_model::{ClockAnchor, Event, Timestamp, Trace, TraceId, text};
use serde::Serialize;
use tokio::sync::watch;

use super::console::print;
use super::flags::{configuration, otlp_flags};
use crate::app::serving::{self, Pulse, Shown};
use crate::app::{self, settings};
use crate::cli::{Print, ReplayArgs};
use crate::config::Config;
use crate::failure::Failure;
use crate::health::{Health, ProbeStatus, SessionLabel};
use crate::http;
use crate::node::NodeInfo;
use crate::pipeline::{Outputs, Pipeline};
use crate::platform::until_stopped;
use crate::sinks::otlp::OtlpSink;
use crate::sinks::prometheus::{Metrics, ProductMetrics};
use crate::sinks::recording::Recorder;
use crate::sinks::store::StoreOptions;
use crate::sources::clock;
use crate::sources::replay::Replay;
use crate::view::{self, Store};

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
        config.correlation.reorder.as_nanos(),
        health.clone(),
    );
    let mut recorder = args
        .record
        .as_deref()
        .map(|path| Recorder::create(path, &header))
        .transpose()?;
    let mut progress = Progress::new();
    while let Some(event) = recording.next_event()? {
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

/// What the replay found.
struct Replayed {
    product: ProductMetrics,
    otlp: Option<OtlpSink>,
    closed: Vec<Arc<Trace>>,
    /// Served afterwards. It receives traffic at once, traces at the end.
    store: Option<Store>,
    anchor: ClockAnchor,
    at: Timestamp,
}

impl Outputs for Replayed {
    fn arrived(&mut self, event: &Event) {
        self.at = self.at.max(event.at);
    }

    fn output(&mut self, output: &Output) {
        self.product.record(output);
        if let (Output::Finding(traffic), Some(store)) = (output, &self.store) {
            store.traffic(traffic, self.anchor.unix_ns(self.at));
        }
        if let Output::Closed(trace) = output {
            if let Some(otlp) = &self.otlp {
                otlp.offer(trace);
            }
            self.closed.push(Arc::clone(trace));
        }
    }

    fn changed(&mut self, _open: &mut dyn Iterator<Item = &Trace>, _changed: &BTreeSet<TraceId>) {}
}

/// One trace as a line of JSON: what OTLP would carry, with nothing in it that depends on when it is printed.
#[derive(Serialize)]
struct Line<'a> {
    trace_id: TraceId,
    sandbox: Option<&'a str>,
    pod: &'a sandglass_model::PodIdentity,
    incomplete: bool,
    spans: Vec<view::SpanView>,
}

impl Replayed {
    /// Waits for the collector: a replay is faster than any, and would shed.
    async fn make_room(&self) {
        while let Some(otlp) = &self.otlp
            && otlp.status().waiting > MOST_WAITING
            && !otlp.status().failing
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn render(&self, what: Print, metrics: &Metrics) -> Result<String, Failure> {
        let mut rendered = String::new();
        match what {
            Print::Nothing => {}
            Print::Tree => {
                for trace in &self.closed {
                    rendered.push_str(&text::tree(trace, end(trace)));
                    rendered.push('\n');
                }
            }
            Print::Spans => {
                for trace in &self.closed {
                    let line = Line {
                        trace_id: trace.id,
                        sandbox: trace.sandbox.as_ref().map(|sandbox| sandbox.0.as_str()),
                        pod: &trace.identity,
                        incomplete: trace.incomplete,
                        spans: view::timeline(trace, end(trace)),
                    };
                    rendered.push_str(&serde_json::to_string(&line).map_err(Failure::defect)?);
                    rendered.push('\n');
                }
            }
            Print::Metrics => {
                rendered = metrics
                    .encode()
                    .map_err(|_| Failure::defect("cannot encode the metrics"))?;
            }
        }
        Ok(rendered)
    }
}

fn end(trace: &Trace) -> Timestamp {
    trace.root().end.unwrap_or(trace.root().start)
}

fn exporter(args: &ReplayArgs, config: &Config, node: &NodeInfo, health: &Health) -> Result<OtlpSink, Failure> {
    app::start_otlp(config, &otlp_flags(&args.config), node, health)?.ok_or_else(|| {
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

/// A store without bounds: the user asked for the whole recording.
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
        pulse: Arc::new(Pulse::of_replay()),
    };
    let server = serving::serve(config, shown, stop).await?;
    http::announce(server.address);
    print(&format!("http://{}/ (end with Ctrl-C)\n", server.address))?;
    until_stopped().await;
    shutdown.send_replace(true);
    server.stopped().await;
    Ok(())
}

/// A progress bar on a terminal.
struct Progress {
    on: bool,
    shown: Instant,
    began: Timestamp,
}

impl Progress {
    fn new() -> Progress {
        Progress {
            on: std::io::stderr().is_terminal(),
            shown: Instant::now(),
            began: clock::now(),
        }
    }

    fn show(&mut self, (read, total): (u64, u64)) {
        if !self.on || self.shown.elapsed() < Duration::from_millis(100) {
            return;
        }
        self.shown = Instant::now();
        let done = usize::try_from(read.saturating_mul(40) / total.max(1))
            .unwrap_or(40)
            .min(40);
        let seconds = clock::now().since(self.began) / 1_000_000_000;
        let bar = "#".repeat(done) + &".".repeat(40 - done);
        // A terminal that cannot be written to shows no progress.
        let _ = write!(
            std::io::stderr(),
            "\r[{bar}] {:3} %  {seconds} s",
            read * 100 / total.max(1)
        );
    }

    fn clear(&self) {
        if self.on {
            let _ = write!(std::io::stderr(), "\r{:60}\r", "");
        }
    }
}

/// Spans that may wait for the collector before the replay pauses.
const MOST_WAITING: u64 = 4_096;
/// How long the end of a replay waits for the collector.
const EXPORT_WAIT: Duration = Duration::from_secs(15);
