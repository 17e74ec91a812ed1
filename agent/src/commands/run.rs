//! `sandglass run`: the agent until SIGTERM, Ctrl-C, or the end of the Windows service. It follows its configuration file.

use super::flags::{configuration_of, file_text, otlp_flags};
use super::reload::{self, Reload};
use crate::app::{self, StartOptions};
use crate::cli::RunArgs;
use crate::failure::Failure;
use crate::platform::until_stopped;

/// Runs the agent.
pub async fn run(args: RunArgs) -> Result<(), Failure> {
    // Before the start, which takes a second: a request in it is not the end of the process.
    let requests = reload::requests(&args.config);
    let text = file_text(&args.config)?;
    let (layers, config) = configuration_of(&args.config, text.as_deref())?;
    let options = StartOptions {
        otlp_flags: otlp_flags(&args.config),
        record: args.record,
        serve: true,
        ..StartOptions::default()
    };
    let app = app::start(&config, options).await?;
    // The identity logs its own status, as soon as it has one.
    for probe in app
        .health
        .probes()
        .into_iter()
        .filter(|probe| probe.probe != "identity")
    {
        if probe.consequence.is_empty() {
            tracing::info!(probe = probe.probe, hook = probe.hook, "probe attached");
        } else {
            tracing::warn!(
                probe = probe.probe,
                hook = probe.hook,
                consequence = probe.consequence,
                hint = probe.hint,
                "probe"
            );
        }
    }
    let state = app.health.configuration.clone();
    reload::started(&layers, &state);
    match requests.zip(Reload::new(args.config, layers, text, app.live(), state)) {
        None => until_stopped().await,
        Some((requests, reload)) => tokio::select! {
            () = until_stopped() => {}
            () = reload.follow(requests) => {}
        },
    }
    tracing::info!("stopping");
    app.stop().await.map(|_| ())
}
