//! `sandglass doctor`: what can be observed on this node, and what is wrong with its CNI set-up.
//!
//! The probes are loaded and attached for a moment, the only reliable test of whether this kernel accepts them.

use super::console::print;
use super::flags::configuration;
use crate::app::settings;
use crate::cli::DoctorArgs;
use crate::config::Config;
use crate::doctor::{self, DoctorOptions, render};
use crate::failure::{Advice, ExitReason, Failure};
use crate::health::{Health, ProbeStatus};
use crate::sources::{self, native};
use crate::terminal;
use crate::watch;

/// Examines the node.
pub async fn doctor(args: DoctorArgs) -> Result<(), Failure> {
    let (_, config) = configuration(&args.config)?;
    let (probes, not_started) = attach(&config).await?;
    // Without a running agent, or without its token, nothing is known of refused processes, which is no finding.
    let token = config
        .page
        .token_file
        .as_ref()
        .and_then(|file| std::fs::read_to_string(file).ok());
    let token = token.map(|token| token.trim().to_owned());
    let refused = watch::refused_by(config.page.listen(config.http.address), token)
        .await
        .unwrap_or_default();
    let options = DoctorOptions {
        refused,
        runtime: settings::runtime_choice(&config)?,
        timeout: config.cri.timeout.into(),
        cni: settings::cni_options(&config),
        spool: config.otlp.spool_directory.clone(),
        ..DoctorOptions::new(settings::node_info(&config), probes)
    };
    let report = doctor::run(options).await;
    print(&if args.json {
        report.to_json() + "\n"
    } else {
        render(&report, terminal::colors())
    })?;
    match report.exit_code() {
        0 => Ok(()),
        _ => Err(Failure::new(
            // A kernel or a privilege that keeps the probes out weighs more than the rest.
            not_started.unwrap_or(ExitReason::Runtime),
            "something above is broken",
            "follow the hints above",
        )),
    }
}

/// Starts the source and stops it at once. Returns the status of its probes, and the exit code if it did not start.
async fn attach(config: &Config) -> Result<(Vec<ProbeStatus>, Option<ExitReason>), Failure> {
    let health = Health::default();
    let (sender, receiver) = sources::channel(config.probes.queue_events, health.queue_depth.clone());
    let (options, seen) = (
        native::Options::from_settings(settings::source_settings(config))?,
        health.clone(),
    );
    let attaching = tokio::task::spawn_blocking(move || {
        // An error is a finding, not a failure: the probe's status has it.
        match native::start(options, sender, seen) {
            Ok(source) => {
                // Before the stop: the source's threads block while the channel is full.
                drop(receiver);
                source.stop();
                None
            }
            Err(error) => Some(error.exit()),
        }
    });
    let refused = attaching
        .await
        .map_err(|error| Failure::runtime(format!("cannot try the probes: {error}"), "try again"))?;
    Ok((health.probes(), refused))
}
