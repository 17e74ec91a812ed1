//! EVENT_TRACE_PROPERTIES with room for the names behind it, as `StartTraceW` and `ControlTraceW` require.
//!
//! Layout: <https://learn.microsoft.com/windows/win32/api/evntrace/ns-evntrace-event_trace_properties>. Used for queries of
//! losses, for the handle of a session, and for the session that writes a file. Does not: enable providers.

use windows::Win32::Foundation::WIN32_ERROR;
use windows::Win32::System::Diagnostics::Etw::{
    CONTROLTRACE_HANDLE, ControlTraceW, EVENT_TRACE_CONTROL, EVENT_TRACE_CONTROL_QUERY, EVENT_TRACE_PROPERTIES,
};
use windows::core::PCWSTR;

/// The properties and, behind them, the names of the session and of its file.
#[repr(C)]
pub(super) struct SessionProperties {
    pub(super) properties: EVENT_TRACE_PROPERTIES,
    /// Written by Windows, which has the name as a parameter.
    session: [u16; NAME_CHARACTERS],
    /// Path of the file of a session that writes one; written by the caller.
    pub(super) file: [u16; NAME_CHARACTERS],
}

impl SessionProperties {
    /// Of the running session with this name; `None` if there is none.
    pub(super) fn of(session: &str) -> Option<SessionProperties> {
        let mut block = SessionProperties::default();
        let name = Some(wide(session));
        let status = block.control(
            CONTROLTRACE_HANDLE::default(),
            name.as_deref(),
            EVENT_TRACE_CONTROL_QUERY,
        );
        status.is_ok().then_some(block)
    }

    /// Calls `ControlTraceW` for a session by handle or by name; Windows writes the session's properties here.
    pub(super) fn control(
        &mut self,
        handle: CONTROLTRACE_HANDLE,
        name: Option<&[u16]>,
        control: EVENT_TRACE_CONTROL,
    ) -> WIN32_ERROR {
        let name = name.map_or(PCWSTR::null(), |name| PCWSTR(name.as_ptr()));
        // SAFETY: the properties are at the begin of a block of the size that they state, with room for both names at the
        // offsets that they state; the name ends with zero. All outlive the call.
        unsafe { ControlTraceW(handle, name, &mut self.properties, control) }
    }

    /// The session's handle, which `ControlTraceW` returns in `Wnode.HistoricalContext` (documentation of WNODE_HEADER).
    pub(super) fn handle(&self) -> CONTROLTRACE_HANDLE {
        // SAFETY: both views of the union are plain integers; a query has filled this one.
        let handle = unsafe { self.properties.Wnode.Anonymous1.HistoricalContext };
        CONTROLTRACE_HANDLE { Value: handle }
    }
}

impl Default for SessionProperties {
    fn default() -> SessionProperties {
        let mut properties = EVENT_TRACE_PROPERTIES::default();
        properties.Wnode.BufferSize = size_of::<SessionProperties>() as u32;
        properties.LoggerNameOffset = size_of::<EVENT_TRACE_PROPERTIES>() as u32;
        properties.LogFileNameOffset = properties.LoggerNameOffset + 2 * NAME_CHARACTERS as u32;
        SessionProperties {
            properties,
            session: [0; NAME_CHARACTERS],
            file: [0; NAME_CHARACTERS],
        }
    }
}

/// Text in UTF-16 with a terminating zero.
pub(super) fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

/// Longest name of a session or file, with its terminating zero (EVENT_TRACE_PROPERTIES: 1,024 characters).
pub(super) const NAME_CHARACTERS: usize = 1_024;
