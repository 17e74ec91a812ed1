//! `sandglass demo`: the demo's node with this agent beside it.

use std::path::PathBuf;
use std::sync::mpsc;

use super::configuration;
use super::run::otlp_flags;
use crate::app::{self, App, Options};
use crate::cli::DemoArgs;
use crate::config::Config;
use crate::demo::rig::Rig;
use crate::demo::{self, DemoOptions, Ended, Observer};
use crate::failure::Failure;
use crate::sinks::otlp::config::Settings;
use crate::terminal;

/// Runs the demo.
pub async fn demo(args: DemoArgs) -> Result<(), Failure> {
    let (_, config) = configuration(&args.config)?;
    let flags = otlp_flags(&args.config);
    let options = DemoOptions {
        once: args.once,
        ..DemoOptions::default()
    };
    let mut agent = None;
    let ended = demo::run(&options, &mut std::io::stdout(), async |rig: &Rig| {
        let (app, observer) = observe(config, flags, args.record, rig).await?;
        agent = Some(app);
        Ok(observer)
    })
    .await;
    if let Some(app) = agent {
        // A recording is whole and what waits for a collector is sent, however the demo ended.
        app.stop().await?;
    }
    let ended = ended.map_err(|error| {
        let hint = error.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
        Failure {
            message: app::with_sources(&error) + &hint,
            exit: error.exit(),
        }
    })?;
    match ended {
        Ended::Passed | Ended::Interrupted => Ok(()),
        Ended::Failed => Err(Failure::runtime(
            "not every sandbox was traced completely\nhint: the list above says which, and what is missing",
        )),
    }
}

/// Starts the agent for the demo's node.
async fn observe(
    mut config: Config,
    otlp_flags: Settings,
    record: Option<PathBuf>,
    rig: &Rig,
) -> Result<(App, Observer), Failure> {
    config.cri.endpoint = format!("unix://{}", rig.cri_socket().display());
    config.cni.bin_dirs = vec![rig.bin_dir()];
    let (sender, closed) = mpsc::channel();
    let app = app::start(
        &config,
        Options {
            otlp_flags,
            record,
            serve: true,
            closed: Some(sender),
            ..Options::default()
        },
    )
    .await?;
    let page = app.address.map(|address| format!("http://{address}/"));
    let waterfall = |trace: &_| terminal::render_waterfall(trace, terminal::size().0, terminal::colors());
    Ok((
        app,
        Observer {
            page,
            closed,
            waterfall,
        },
    ))
}
