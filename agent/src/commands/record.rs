//! `sandglass record`: every event of this node into a file, until Ctrl-C.

use std::ffi::OsStr;
use std::time::Duration;

use super::run::until_stopped;
use super::{configuration, print};
use crate::app::{self, Options};
use crate::cli::RecordArgs;
use crate::failure::{Exit, Failure};

/// Records.
pub async fn record(args: RecordArgs) -> Result<(), Failure> {
    let (_, config) = configuration(&args.config)?;
    if args
        .recording
        .extension()
        .and_then(OsStr::to_str)
        .is_some_and(|extension| extension.eq_ignore_ascii_case("etl"))
    {
        return etl(&args).await;
    }
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

/// ETW itself writes the file, and nothing is decoded meanwhile.
#[cfg(windows)]
async fn etl(args: &RecordArgs) -> Result<(), Failure> {
    use crate::sources::windows::live::{self, file};
    if args.recording.exists() {
        return Err(Failure::runtime(
            format!("{} exists already", args.recording.display()),
            "give another name, or remove it",
        ));
    }
    let session = file::record(&args.recording, &live::Options::default())?;
    tracing::info!(file = %args.recording.display(), "ETW writes; end it with Ctrl-C");
    tokio::select! {
        () = until_stopped() => {}
        () = tokio::time::sleep(args.seconds.map_or(Duration::MAX, Duration::from_secs)) => {}
    }
    let lost = session.stop();
    let bytes = std::fs::metadata(&args.recording).map_or(0, |metadata| metadata.len());
    print(&format!(
        "{bytes} bytes in {}, {lost} events lost\n",
        args.recording.display()
    ))
}

#[cfg(not(windows))]
#[expect(clippy::unused_async, reason = "the same as on Windows")]
async fn etl(args: &RecordArgs) -> Result<(), Failure> {
    Err(Failure::new(
        Exit::Unavailable,
        format!(
            "cannot record {}: only ETW writes .etl files, and that is on Windows",
            args.recording.display()
        ),
        "give the file another ending",
    ))
}
