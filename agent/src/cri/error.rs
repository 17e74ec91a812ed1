//! Why a call to the container runtime failed, and what to do about it.

use std::borrow::Cow;
use std::time::Duration;

use super::endpoint::{BadEndpoint, Endpoint};
use crate::failure::Advice;
use crate::grpc::CallError;

/// Why a call gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// The text is not an address.
    #[error("no container runtime can be reached")]
    Endpoint(#[source] BadEndpoint),
    /// Nothing listens there, or access is denied.
    #[error("cannot connect to the container runtime at {endpoint}")]
    Connect {
        /// Where.
        endpoint: Endpoint,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The peer does not speak HTTP/2, closed the connection, or answered with an error.
    #[error("CRI {method} at {endpoint}")]
    Call {
        /// Where.
        endpoint: Endpoint,
        /// Which call.
        method: &'static str,
        /// What went wrong.
        #[source]
        source: CallError,
    },
    /// No answer in time.
    #[error("CRI {method} at {endpoint} gave no answer within {after:?}")]
    Deadline {
        /// Where.
        endpoint: Endpoint,
        /// Which call.
        method: &'static str,
        /// The deadline.
        after: Duration,
    },
    /// The answer is not the expected message.
    #[error("CRI {method} at {endpoint}: the answer cannot be decoded")]
    Decode {
        /// Where.
        endpoint: Endpoint,
        /// Which call.
        method: &'static str,
        /// Why not.
        #[source]
        source: prost::DecodeError,
    },
}

impl CriError {
    /// The gRPC status, when the runtime answered with an error.
    #[must_use]
    pub fn status(&self) -> Option<u32> {
        match self {
            CriError::Call {
                source: CallError::Status { code, .. },
                ..
            } => Some(*code),
            _ => None,
        }
    }

    /// Whether the runtime has no such sandbox.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(NOT_FOUND)
    }

    /// Whether the runtime does not know the method.
    #[must_use]
    pub fn is_unimplemented(&self) -> bool {
        self.status() == Some(UNIMPLEMENTED)
    }
}

impl Advice for CriError {
    fn hint(&self) -> Cow<'_, str> {
        let hint = match self {
            CriError::Endpoint(_) => "give a socket as /path or unix:///path, a TCP address as tcp://host:port",
            CriError::Connect { source, .. } => match source.kind() {
                std::io::ErrorKind::PermissionDenied => {
                    "run as root, or mount the socket so that the agent may open it"
                }
                std::io::ErrorKind::NotFound => {
                    "set the endpoint, or mount the runtime's socket into the agent's container"
                }
                _ => "is the container runtime running, and is this its CRI socket?",
            },
            CriError::Call { .. } if self.is_unimplemented() => {
                "the runtime has no such method: its CRI plugin is disabled, or it is older than CRI v1"
            }
            CriError::Call {
                source: CallError::Status { .. },
                ..
            } => "the runtime itself reports this error: see its log",
            CriError::Call { .. } | CriError::Decode { .. } => {
                "is this a CRI v1 socket? `crictl version` makes the same call"
            }
            CriError::Deadline { .. } => "the runtime is overloaded or hangs: see its own log",
        };
        hint.into()
    }
}

/// gRPC status codes (<https://grpc.io/docs/guides/status-codes/>).
const NOT_FOUND: u32 = 5;
const UNIMPLEMENTED: u32 = 12;
