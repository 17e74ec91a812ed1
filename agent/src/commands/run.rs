//! `sandglass run`: the agent until SIGTERM or Ctrl-C.

use tokio::signal;

use super::configuration;
use crate::app::{self, Options};
use crate::cli::{ConfigArgs, RunArgs};
use crate::failure::Failure;
use crate::sinks::otlp::config::Settings;

/// Runs the agent.
pub async fn run(args: RunArgs) -> Result<(), Failure> {
    let (_, config) = configuration(&args.config)?;
    let options = Options {
        otlp_flags: otlp_flags(&args.config),
        record: args.record,
        serve: true,
        ..Options::default()
    };
    let app = app::start(&config, options).await?;
    // The identity speaks for itself, when it has found out.
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

/// What the flags say of OTLP: they stand above the environment.
pub fn otlp_flags(args: &ConfigArgs) -> Settings {
    Settings {
        endpoint: args.otlp_endpoint.clone(),
        protocol: args.otlp_protocol.clone(),
        ..Settings::default()
    }
}

/// Waits for Ctrl-C, on Unix for SIGTERM, on Windows for the service control manager.
pub async fn until_stopped() {
    #[cfg(unix)]
    {
        if let Ok(mut terminate) = signal::unix::signal(signal::unix::SignalKind::terminate()) {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = signal::ctrl_c() => {}
            }
        }
    }
    #[cfg(windows)]
    tokio::select! {
        () = super::service::stopped() => {}
        _ = signal::ctrl_c() => {}
    }
}
