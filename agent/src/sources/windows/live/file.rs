//! `sandglass record FILE.etl`: ETW itself writes the file, so that nothing of ours stands between an event and the disk.
//!
//! One session of the kernel logger's kind takes our providers and the command lines (Windows 8 and newer allow both in
//! one), because a replay reads one file. Started with Win32 itself: ferrisetw enables providers in sessions of users only.
//! Does not: decode, or merge the schemas of manifests into the file: the reader's tables have those that are enabled.

use std::mem::size_of;
use std::path::Path;

use windows::Win32::Foundation::WIN32_ERROR;
use windows::Win32::System::Diagnostics::Etw::{
    CONTROLTRACE_HANDLE, ControlTraceW, ENABLE_TRACE_PARAMETERS, ENABLE_TRACE_PARAMETERS_VERSION_2,
    EVENT_CONTROL_CODE_ENABLE_PROVIDER, EVENT_TRACE_CONTROL_QUERY, EVENT_TRACE_CONTROL_STOP,
    EVENT_TRACE_FILE_MODE_SEQUENTIAL, EVENT_TRACE_FLAG_PROCESS, EVENT_TRACE_PROPERTIES, EVENT_TRACE_SYSTEM_LOGGER_MODE,
    EnableTraceEx2, StartTraceW, WNODE_FLAG_TRACED_GUID,
};
use windows::core::{GUID, PCWSTR};

use super::{Options, StartError, WANTED, Wanted, is_denial, properties, property};

/// A session that writes a file. Dropping it stops it too.
#[derive(Debug)]
pub struct EtlFile {
    handle: CONTROLTRACE_HANDLE,
}

/// Begins to write the file.
pub fn record(path: &Path, options: &Options) -> Result<EtlFile, StartError> {
    // Of a recording that was killed.
    let _ = control(
        CONTROLTRACE_HANDLE::default(),
        Some(&wide(FILE)),
        EVENT_TRACE_CONTROL_STOP,
    );
    let sizes = properties(options);
    let mut block = Block::default();
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
    // SAFETY: the properties stand at the begin of a block as long as it says, with room for both names at the offsets it
    // says; the session's name ends with zero. All outlive the call.
    let status = unsafe { StartTraceW(&mut handle, PCWSTR(wide(FILE).as_ptr()), &mut block.properties) };
    check(status)?;
    let file = EtlFile { handle };
    for wanted in WANTED {
        file.enable(wanted)?;
    }
    Ok(file)
}

impl EtlFile {
    /// Stops the session; what it has buffered is written. Says how many events it lost.
    pub fn stop(self) -> u64 {
        control(self.handle, None, EVENT_TRACE_CONTROL_QUERY).unwrap_or_default()
    }

    fn enable(&self, wanted: &Wanted) -> Result<(), StartError> {
        let parameters = ENABLE_TRACE_PARAMETERS {
            Version: ENABLE_TRACE_PARAMETERS_VERSION_2,
            EnableProperty: property(wanted),
            ..Default::default()
        };
        let provider = GUID::from_u128(wanted.provider.0);
        // SAFETY: the handle is of a session that runs until we are dropped; GUID and parameters outlive the call.
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

impl Drop for EtlFile {
    fn drop(&mut self) {
        let _ = control(self.handle, None, EVENT_TRACE_CONTROL_STOP);
    }
}

/// Asks or stops a session, by handle or by name; gives the events it lost.
fn control(
    handle: CONTROLTRACE_HANDLE,
    name: Option<&[u16]>,
    control: windows::Win32::System::Diagnostics::Etw::EVENT_TRACE_CONTROL,
) -> Option<u64> {
    let mut block = Block::default();
    let name = name.map_or(PCWSTR::null(), |name| PCWSTR(name.as_ptr()));
    // SAFETY: as at the start of the session.
    let status = unsafe { ControlTraceW(handle, name, &mut block.properties, control) };
    let lost = u64::from(block.properties.EventsLost) + u64::from(block.properties.LogBuffersLost);
    (status.0 == 0).then_some(lost)
}

fn check(status: WIN32_ERROR) -> Result<(), StartError> {
    match status {
        WIN32_ERROR(0) => Ok(()),
        WIN32_ERROR(code) => {
            let code = i32::try_from(code).unwrap_or(i32::MAX);
            Err(refused(&std::io::Error::from_raw_os_error(code).to_string(), code))
        }
    }
}

fn refused(what: &str, code: i32) -> StartError {
    StartError::Session {
        name: FILE,
        what: format!("{what} (0x{code:08x})"),
        denied: is_denial(code),
    }
}

fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

/// Properties and, behind them, the names.
#[repr(C)]
struct Block {
    properties: EVENT_TRACE_PROPERTIES,
    session: [u16; CHARACTERS],
    file: [u16; CHARACTERS],
}

impl Default for Block {
    fn default() -> Block {
        let mut properties = EVENT_TRACE_PROPERTIES::default();
        properties.Wnode.BufferSize = size_of::<Block>() as u32;
        properties.LoggerNameOffset = size_of::<EVENT_TRACE_PROPERTIES>() as u32;
        properties.LogFileNameOffset = properties.LoggerNameOffset + 2 * CHARACTERS as u32;
        Block {
            properties,
            session: [0; CHARACTERS],
            file: [0; CHARACTERS],
        }
    }
}

const FILE: &str = "sandglass-record";
const CHARACTERS: usize = 1_024;
/// Time stamps by the performance counter.
const QPC: u32 = 1;
