//! Linux: neither `.etl` files nor services; both commands say so.

use crate::cli::{RecordArgs, RunArgs};
use crate::failure::{ExitReason, Failure};

/// Only ETW writes `.etl` files.
pub async fn record_etl(args: &RecordArgs) -> Result<(), Failure> {
    Err(Failure::new(
        ExitReason::Unavailable,
        format!(
            "cannot record {}: only ETW writes .etl files, and that is on Windows",
            args.recording.display()
        ),
        "give the file another ending",
    ))
}

/// Only Windows has a service control manager.
pub fn service(_args: RunArgs) -> Result<(), Failure> {
    Err(Failure::new(
        ExitReason::Unavailable,
        "the service control manager is a part of Windows",
        "elsewhere it is sandglass run",
    ))
}
