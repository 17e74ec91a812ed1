//! Why ETW sessions cannot start, from what Windows returns.
//!
//! Used by both kinds of session: those of ferrisetw and the one that writes a file. Does not: retry.

use std::borrow::Cow;

use ferrisetw::native::EvntraceNativeError;
use ferrisetw::trace::{TraceError, stop_trace_by_name};

use crate::failure::{Advice, ExitReason};

/// Why the sessions could not start.
#[derive(Debug, thiserror::Error)]
pub enum EtwStartError {
    /// Windows refused the session of user-mode providers, without which there are no traces.
    #[error("cannot start the ETW session '{name}': {what}")]
    Session {
        /// Name of the session.
        name: &'static str,
        /// The error of Windows.
        what: String,
        /// Privilege is missing.
        denied: bool,
    },
    /// A thread of the agent could not be started.
    #[error("cannot start the thread that decodes ETW records")]
    Thread(#[source] std::io::Error),
}

impl Advice for EtwStartError {
    fn hint(&self) -> Cow<'_, str> {
        let hint = match self {
            EtwStartError::Session { denied: true, .. } => {
                "run it as SYSTEM or administrator: as a service, or in a HostProcess container"
            }
            EtwStartError::Session { denied: false, .. } => {
                "Windows runs at most 64 sessions (`logman query -ets` lists them): stop one that is not needed"
            }
            EtwStartError::Thread(_) => "the node is out of threads or memory: raise the limits of the agent",
        };
        hint.into()
    }

    fn exit(&self) -> ExitReason {
        match self {
            EtwStartError::Session { denied: true, .. } => ExitReason::NoPermission,
            EtwStartError::Session { denied: false, .. } => ExitReason::Unavailable,
            EtwStartError::Thread(_) => ExitReason::Runtime,
        }
    }
}

/// The error of a session that ferrisetw could not start.
pub(super) fn refused(name: &'static str, error: &TraceError) -> EtwStartError {
    // ferrisetw may have failed after the session had started.
    let _ = stop_trace_by_name(name);
    let (what, denied) = match error {
        // ferrisetw wraps an HRESULT in an io::Error.
        TraceError::EtwNativeError(EvntraceNativeError::IoError(error)) => {
            let code = error.raw_os_error().unwrap_or_default();
            (format!("{error} (0x{code:08x})"), is_denial(code))
        }
        other => (format!("{other:?}"), false),
    };
    EtwStartError::Session { name, what, denied }
}

/// ERROR_ACCESS_DENIED (winerror.h), also as the HRESULT E_ACCESSDENIED.
pub(super) fn is_denial(code: i32) -> bool {
    matches!(code, 5 | -2_147_024_891)
}
