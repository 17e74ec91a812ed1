//! Windows: ETW writes `.etl` files itself, and the service control manager starts the agent.

mod service;

use std::time::Duration;

use crate::cli::RecordArgs;
use crate::commands::console::print;
use crate::config::defaults;
use crate::failure::Failure;
use crate::platform::until_stopped;
use crate::sources::windows::live::file;

pub use service::service;

/// ETW writes the file; nothing is decoded meanwhile.
pub async fn record_etl(args: &RecordArgs) -> Result<(), Failure> {
    if args.recording.exists() {
        return Err(Failure::runtime(
            format!("{} exists already", args.recording.display()),
            "give another name, or remove it",
        ));
    }
    let session = file::record(&args.recording, defaults::ETW_BUFFER_KIB)?;
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
