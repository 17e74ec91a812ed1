//! The demo's node with the agent beside it, in one process: the composition of both.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use sandglass_model::Trace;

use sandglass::app::{self, App, StartOptions, settings};
use sandglass::commands::{configuration, otlp_flags};
use sandglass::config::{Config, Period};
use sandglass::failure::Failure;
use sandglass::sinks::otlp::config::Settings;
use sandglass::terminal;
use sandglass_demo::networks::Network;
use sandglass_demo::observability::{Observability, Programs};
use sandglass_demo::rig::{Rig, RigOptions};
use sandglass_demo::show::{self, DemoOptions, Ended, Observer};
use sandglass_demo::verify::network::Seen;

use crate::{Args, avoid_taken_port};

/// Runs the demo.
pub async fn demo(args: Args) -> Result<(), Failure> {
    let (_, config) = configuration(&args.config)?;
    let flags = otlp_flags(&args.config);
    let options = DemoOptions {
        once: args.once,
        rig: RigOptions {
            program: std::env::current_exe().ok(),
            ..RigOptions::default()
        },
    };
    let record = args.record;
    // Before anything is started: a missing program ends the demo at once.
    let programs = match args.observability {
        true => Some(Programs::find()?),
        false => None,
    };
    let ended = show::run(&options, &mut std::io::stdout(), async |rig: &Rig| {
        observe(config, flags, record, programs, rig).await.map_err(Into::into)
    })
    .await?;
    match ended {
        Ended::Passed | Ended::Interrupted => Ok(()),
        Ended::Failed => Err(Failure::runtime(
            "not every sandbox was traced completely",
            "the list above says which, and what is missing",
        )),
    }
}

/// Starts the agent for the demo's node, and what is to run beside it.
async fn observe(
    mut config: Config,
    mut otlp_flags: Settings,
    record: Option<std::path::PathBuf>,
    programs: Option<Programs>,
    rig: &Rig,
) -> Result<Observer, Failure> {
    config.cri.endpoint = format!("unix://{}", rig.cri_socket().display());
    config.cni.bin_dirs = vec![rig.bin_dir()];
    // The page judges the demo's configuration, and not one of the machine's.
    config.cni.conf_dir = Some(rig.conf_dir(Network::Plain));
    // The demo's pods send at once or never: a deadline of half a minute would only delay the latter's traces.
    config.traffic.ready_deadline = READY_DEADLINE;
    // What the user sets stays.
    if config.waits.after == Config::default().waits.after {
        config.waits.after = WAITS_AFTER;
    }
    avoid_taken_port(&mut config);
    let mut beside = match programs {
        Some(programs) => Some(Observability::start(programs, rig).await?),
        None => None,
    };
    if let Some(beside) = &beside {
        // A user who configures a collector finds the traces there.
        otlp_flags.endpoint.get_or_insert_with(|| beside.otlp.clone());
    }
    let (closed, received) = mpsc::channel();
    let app = app::start(
        &config,
        StartOptions {
            otlp_flags,
            record,
            serve: true,
            closed: Some(closed),
            node_netns: Some(rig.node_netns()),
            netns_directories: vec![rig.netns_directory().display().to_string()],
            ..StartOptions::default()
        },
    )
    .await?;
    if let (Some(beside), Some(agent)) = (&mut beside, app.address) {
        let node = settings::node_info(&config).name;
        beside.scrape(agent, &node, rig).await?;
    }
    let page = app.address.map(|address| format!("http://{address}/"));
    let seen = Mutex::new((received, Vec::<Arc<Trace>>::new()));
    let (width, color) = (terminal::size().0, terminal::colors());
    Ok(Observer {
        page,
        seen: Seen::by(&app.health.probes()),
        beside: beside.iter().flat_map(|beside| beside.addresses.clone()).collect(),
        traces: Box::new(move || {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            let (received, traces) = &mut *seen;
            traces.extend(received.try_iter());
            traces.clone()
        }),
        waterfall: Box::new(move |trace| terminal::render_waterfall(trace, width, color)),
        // In this order: the agent sends its last traces to what runs beside it.
        keep: Box::new((Stopping(Some(app)), beside)) as Box<dyn Any + Send + Sync>,
    })
}

/// Stops the agent when dropped: the recording is complete, and queued traces are sent to the collector.
struct Stopping(Option<App>);

impl Drop for Stopping {
    fn drop(&mut self) {
        if let Some(app) = self.0.take() {
            tokio::task::block_in_place(|| {
                if let Err(failure) = tokio::runtime::Handle::current().block_on(app.stop()) {
                    tracing::warn!(%failure, "the agent did not stop cleanly");
                }
            });
        }
    }
}

/// Sooner than by default, so that what most deletions of the demo's pods wait for is seen: the kernel's clean-up of nftables.
const WAITS_AFTER: Period = Period::from_millis(50);
/// Longer than the stalled lookup takes.
const READY_DEADLINE: Period = Period::from_secs(8);
