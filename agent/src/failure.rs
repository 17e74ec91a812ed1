//! How a command ends when it fails: one message with its hint, and the exit code.
//!
//! 1 runtime failure, 64 usage or configuration, 69 kernel or system feature missing, 77 privilege missing
//! (the numbers of sysexits.h).

use crate::config::ConfigError;
use crate::sources::replay::ReplayError;

/// A failed command.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// For people: cause chain, then a `hint:` line.
    pub message: String,
    /// Exit code.
    pub exit: u8,
}

impl Failure {
    /// Something went wrong at run time.
    pub fn runtime(error: impl std::fmt::Display) -> Failure {
        Failure {
            message: error.to_string(),
            exit: 1,
        }
    }

    /// The user asked for something that cannot be.
    pub fn usage(error: impl std::fmt::Display) -> Failure {
        Failure {
            message: error.to_string(),
            exit: 64,
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        Failure::usage(error)
    }
}

impl From<ReplayError> for Failure {
    fn from(error: ReplayError) -> Failure {
        match error {
            ReplayError::Read { .. } | ReplayError::Etl(_) => Failure::runtime(error),
            ReplayError::Header { .. } => Failure::usage(error),
        }
    }
}
