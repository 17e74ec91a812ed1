//! `sandglass record`: every event of this node into a file, until Ctrl-C.

use std::ffi::OsStr;
use std::time::Duration;

use super::console::print;
use super::flags::configuration;
use super::native::record_etl;
use crate::app::{self, StartOptions};
use crate::cli::RecordArgs;
use crate::failure::Failure;
use crate::platform::until_stopped;

/// Records until Ctrl-C, or for `--seconds`.
pub async fn record(args: RecordArgs) -> Result<(), Failure> {
    let (_, config) = configuration(&args.config)?;
    if args
        .recording
        .extension()
        .and_then(OsStr::to_str)
        .is_some_and(|extension| extension.eq_ignore_ascii_case("etl"))
    {
        if args.anonymize {
            return Err(Failure::usage(
                "an .etl file holds what Windows wrote and cannot be anonymized",
                "record it as it is, then make an anonymized recording of it: `sandglass replay FILE.etl --record NEW --anonymize`",
            ));
        }
        return record_etl(&args).await;
    }
    // Nothing is served or exported while recording, whatever the environment configures.
    let options = StartOptions {
        record: Some(args.recording.clone()),
        anonymize: args.anonymize,
        record_only: true,
        ..StartOptions::default()
    };
    let app = app::start(&config, options).await?;
    tracing::info!(file = %args.recording.display(), "recording; end it with Ctrl-C");
    let over = async {
        match args.seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    // A recording that cannot be continued ends the command at once.
    tokio::select! {
        () = until_stopped() => {}
        () = over => {}
        () = app.recording_broken.notified() => {}
    }
    let events = app.stop().await?;
    print(&format!("{events} events recorded in {}\n", args.recording.display()))
}
