//! Disables the provider of the virtual switch's flows after the configured time (`windows.vfp`); the session goes on.
//!
//! ferrisetw can neither disable a provider nor return a session's handle, so the handle is queried by name. Does not: keep
//! time (`statistics.rs` does).

use windows::Win32::Foundation::WIN32_ERROR;
use windows::Win32::System::Diagnostics::Etw::{
    CONTROLTRACE_HANDLE, EVENT_CONTROL_CODE_DISABLE_PROVIDER, EnableTraceEx2,
};
use windows::core::GUID;

use super::properties::SessionProperties;
use super::{EVENTS, FLOWS};

/// Disables the provider. Flows already in ETW's buffers are still delivered.
pub(super) fn end() {
    let ended = SessionProperties::of(EVENTS).map(|session| disable(session.handle()));
    match ended {
        Some(WIN32_ERROR(0)) => {
            tracing::info!("flows of the virtual switch are no longer observed: the time of windows.vfp is over")
        }
        Some(WIN32_ERROR(code)) => tracing::warn!(
            code,
            "cannot disable the flows of the virtual switch: restart the agent"
        ),
        // The session was stopped from outside, which its own thread has reported.
        None => {}
    }
}

/// Disables the provider in one session; others keep it. The time-out of 0 makes the call asynchronous (documentation of
/// EnableTraceEx2).
fn disable(session: CONTROLTRACE_HANDLE) -> WIN32_ERROR {
    let provider = GUID::from_u128(FLOWS.provider.0);
    // SAFETY: the handle is that of a session that existed just now (an ended one is an error); the GUID outlives the call.
    unsafe {
        EnableTraceEx2(
            session,
            &provider,
            EVENT_CONTROL_CODE_DISABLE_PROVIDER.0,
            0,
            0,
            0,
            0,
            None,
        )
    }
}
