//! `sandglass doctor`: what can be observed on this node, and what is wrong with its CNI set-up.

use crate::cli::DoctorArgs;
use crate::failure::Failure;

/// Examines the node.
pub async fn doctor(_args: DoctorArgs) -> Result<(), Failure> {
    Err(Failure::unavailable("not merged yet"))
}
