//! `sandglass run`: the agent until SIGTERM, Ctrl-C, or the end of the Windows service.

use super::flags::{configuration, otlp_flags};
use crate::app::{self, StartOptions};
use crate::cli::RunArgs;
use crate::failure::Failure;
use crate::platform::until_stopped;

/// Runs the agent.
pub async fn run(args: RunArgs) -> Result<(), Failure> {
    let (_, config) = configuration(&args.config)?;
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
    until_stopped().await;
    tracing::info!("stopping");
    app.stop().await.map(|_| ())
}
