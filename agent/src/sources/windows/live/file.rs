//! `sandglass record FILE.etl`: a session in which ETW itself writes the file.
//!
//! One system logger session takes user-mode providers and command lines (EVENT_TRACE_SYSTEM_LOGGER_MODE, Windows 8 and newer),
//! because a replay reads one file. Started through Win32: ferrisetw enables providers in user sessions only.
//! Does not: decode, or merge the manifests into the file; the reader's tables have those of the enabled providers.

use std::path::Path;

use windows::Win32::Foundation::WIN32_ERROR;
use windows::Win32::System::Diagnostics::Etw::{
    CONTROLTRACE_HANDLE, ENABLE_TRACE_PARAMETERS, ENABLE_TRACE_PARAMETERS_VERSION_2,
    EVENT_CONTROL_CODE_ENABLE_PROVIDER, EVENT_TRACE_CONTROL, EVENT_TRACE_CONTROL_QUERY, EVENT_TRACE_CONTROL_STOP,
    EVENT_TRACE_FILE_MODE_SEQUENTIAL, EVENT_TRACE_FLAG_PROCESS, EVENT_TRACE_SYSTEM_LOGGER_MODE, EnableTraceEx2,
    StartTraceW, WNODE_FLAG_TRACED_GUID,
};
use windows::core::{GUID, PCWSTR};

use super::error::is_denial;
use super::properties::{SessionProperties, wide};
use super::providers::{WANTED, Wanted, enable_property};
use super::{EtwStartError, buffers};

/// A session that writes a file. Dropping it stops it too.
#[derive(Debug)]
pub struct EtlRecording {
    /// Of the session; valid until it is stopped.
    handle: CONTROLTRACE_HANDLE,
}

/// Starts the session and begins to write the file; ETW buffers have `buffer_kib` KiB each.
///
/// # Errors
///
/// [`EtwStartError::Session`] when Windows refuses the session or a provider, or the path is longer than 1,023 characters.
pub fn record(path: &Path, buffer_kib: u32) -> Result<EtlRecording, EtwStartError> {
    // A session outlives a recording that was killed.
    let _ = lost_after(
        CONTROLTRACE_HANDLE::default(),
        Some(&wide(FILE)),
        EVENT_TRACE_CONTROL_STOP,
    );
    let sizes = buffers(buffer_kib);
    let mut block = SessionProperties::default();
    let session = &mut block.properties;
    session.Wnode.Flags = WNODE_FLAG_TRACED_GUID;
    session.Wnode.ClientContext = QPC;
    session.BufferSize = sizes.buffer_size;
    session.MinimumBuffers = sizes.min_buffer;
    session.MaximumBuffers = sizes.max_buffer;
    session.FlushTimer = 1;
    session.LogFileMode = EVENT_TRACE_FILE_MODE_SEQUENTIAL | EVENT_TRACE_SYSTEM_LOGGER_MODE;
    session.EnableFlags = EVENT_TRACE_FLAG_PROCESS;
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let name = wide(&absolute.to_string_lossy());
    if name.len() > block.file.len() {
        return Err(refused("its path is longer than 1023 characters", 0));
    }
    block.file[..name.len()].copy_from_slice(&name);
    let mut handle = CONTROLTRACE_HANDLE::default();
    // SAFETY: the properties are at the begin of a block of the size that they state, with room for both names at the
    // offsets that they state; the session's name ends with zero. All outlive the call.
    let status = unsafe { StartTraceW(&mut handle, PCWSTR(wide(FILE).as_ptr()), &mut block.properties) };
    check(status)?;
    let file = EtlRecording { handle };
    for wanted in WANTED {
        file.enable(wanted)?;
    }
    Ok(file)
}

impl EtlRecording {
    /// Stops the session, which writes its buffers; returns the number of lost events.
    pub fn stop(self) -> u64 {
        lost_after(self.handle, None, EVENT_TRACE_CONTROL_QUERY).unwrap_or_default()
    }

    /// Enables a provider as the live session does: by level, keywords and properties (documentation of EnableTraceEx2).
    fn enable(&self, wanted: &Wanted) -> Result<(), EtwStartError> {
        let parameters = ENABLE_TRACE_PARAMETERS {
            Version: ENABLE_TRACE_PARAMETERS_VERSION_2,
            EnableProperty: enable_property(wanted),
            ..Default::default()
        };
        let provider = GUID::from_u128(wanted.provider.0);
        // SAFETY: the handle is of a session that runs until this is dropped; GUID and parameters outlive the call.
        check(unsafe {
            EnableTraceEx2(
                self.handle,
                &provider,
                EVENT_CONTROL_CODE_ENABLE_PROVIDER.0,
                wanted.level,
                wanted.keywords,
                0,
                0,
                Some(&parameters),
            )
        })
    }
}

impl Drop for EtlRecording {
    fn drop(&mut self) {
        let _ = lost_after(self.handle, None, EVENT_TRACE_CONTROL_STOP);
    }
}

/// Queries or stops a session, by handle or by name; returns the events and buffers that it lost.
fn lost_after(handle: CONTROLTRACE_HANDLE, name: Option<&[u16]>, control: EVENT_TRACE_CONTROL) -> Option<u64> {
    let mut block = SessionProperties::default();
    let status = block.control(handle, name, control);
    let lost = u64::from(block.properties.EventsLost) + u64::from(block.properties.LogBuffersLost);
    (status.0 == 0).then_some(lost)
}

/// The error that a call of Win32 returned, if any.
fn check(status: WIN32_ERROR) -> Result<(), EtwStartError> {
    match status {
        WIN32_ERROR(0) => Ok(()),
        WIN32_ERROR(code) => {
            let code = i32::try_from(code).unwrap_or(i32::MAX);
            Err(refused(&std::io::Error::from_raw_os_error(code).to_string(), code))
        }
    }
}

/// The error of this session, with its code as Windows documents it.
fn refused(what: &str, code: i32) -> EtwStartError {
    EtwStartError::Session {
        name: FILE,
        what: format!("{what} (0x{code:08x})"),
        denied: is_denial(code),
    }
}

/// Name of the session. Not that of the agent's own sessions: a recording runs beside the agent.
const FILE: &str = "sandglass-record";
/// Clock of the timestamps: the performance counter (WNODE_HEADER, `ClientContext`).
const QPC: u32 = 1;
