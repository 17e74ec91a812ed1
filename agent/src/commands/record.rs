//! `sandglass record`: every event of this node into a file, until Ctrl-C.

use std::time::Duration;

use super::run::until_stopped;
use super::{configuration, print};
use crate::app::{self, Options};
use crate::cli::RecordArgs;
use crate::failure::Failure;

/// Records.
pub async fn record(args: RecordArgs) -> Result<(), Failure> {
    let (_, config) = configuration(&args.config)?;
    // Recording is for later: nothing is served or exported meanwhile, whatever the environment says.
    let options = Options {
        record: Some(args.recording.clone()),
        record_only: true,
        ..Options::default()
    };
    let app = app::start(&config, options).await?;
    tracing::info!(file = %args.recording.display(), "recording; end it with Ctrl-C");
    let over = async {
        match args.seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    // A recording that cannot go on is not waited with until somebody looks.
    tokio::select! {
        () = until_stopped() => {}
        () = over => {}
        () = app.recording_broken.notified() => {}
    }
    let events = app.stop().await?;
    print(&format!("{events} events recorded in {}\n", args.recording.display()))
}
