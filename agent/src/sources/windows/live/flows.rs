//! Ends the flows of the virtual switch when their time is over: the session drops their provider and runs on.
//!
//! ferrisetw enables providers and does not disable them, nor does it give away the session's handle; ETW tells it by name.

use windows::Win32::Foundation::WIN32_ERROR;
use windows::Win32::System::Diagnostics::Etw::{
    CONTROLTRACE_HANDLE, EVENT_CONTROL_CODE_DISABLE_PROVIDER, EnableTraceEx2,
};
use windows::core::GUID;

use super::statistics::Answer;
use super::{EVENTS, FLOWS};

/// Disables the provider. Flows that wait in buffers still come.
pub(super) fn end() {
    let ended = Answer::of(EVENTS).map(|session| disable(session.handle()));
    match ended {
        Some(WIN32_ERROR(0)) => tracing::info!("the time of windows.vfp is over: no more flows of the virtual switch"),
        Some(WIN32_ERROR(code)) => tracing::warn!(
            code,
            "the flows of the virtual switch cannot be ended: restart the agent"
        ),
        // The session has been stopped from outside, and that is said already.
        None => {}
    }
}

fn disable(session: CONTROLTRACE_HANDLE) -> WIN32_ERROR {
    let provider = GUID::from_u128(FLOWS.provider.0);
    // SAFETY: the handle is of a session that ran a moment ago (one that is gone is an error); the GUID outlives the call.
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
