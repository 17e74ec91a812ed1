//! The functions themselves, under the names that advapi32, tdh, kernel32 and ole32
//! export. Their contracts are those of evntrace.h and tdh.h (learn.microsoft.com, Event Tracing).
//!
//! Linked in place of Windows where the live source is tested on another system. Does not: check arguments that the source always
//! passes alike.

use std::ffi::c_void;
use std::sync::PoisonError;

use sandglass_etw::Guid;
use windows::Win32::System::Diagnostics::Etw::{
    ENABLE_TRACE_PARAMETERS, EVENT_RECORD, EVENT_TRACE_LOGFILEW, EVENT_TRACE_PROPERTIES,
};
use windows::core::{GUID, PCWSTR};

use crate::record::deliver;
use crate::state::{CHANGED, Enabled, Opened, Session, state};

/// Starts a session; `ERROR_ALREADY_EXISTS` when one of the name runs.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn StartTraceW(
    handle: *mut u64,
    name: PCWSTR,
    properties: *mut EVENT_TRACE_PROPERTIES,
) -> u32 {
    // SAFETY: the caller passes a string that ends with zero.
    let name = unsafe { text(name) };
    let mut state = state();
    if let Some(error) = state.refused.get(&name) {
        return *error;
    }
    if state.sessions.contains_key(&name) {
        return ALREADY_EXISTS;
    }
    let mut session = Session::new(state.handle());
    // SAFETY: the caller passes properties as long as they say, names behind them.
    unsafe {
        session.kernel_flags = (*properties).EnableFlags.0;
        let offset = (*properties).LogFileNameOffset as usize;
        if offset > 0 {
            let file = text(PCWSTR(properties.cast::<u8>().add(offset).cast()));
            session.file = (!file.is_empty()).then_some(file);
        }
        *handle = session.handle;
    }
    state.sessions.insert(name, session);
    0
}

/// Enables a provider in a session, or disables it there.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn EnableTraceEx2(
    handle: u64,
    provider: *const GUID,
    control: u32,
    level: u8,
    any: u64,
    _all: u64,
    _timeout: u32,
    parameters: *const ENABLE_TRACE_PARAMETERS,
) -> u32 {
    // SAFETY: the caller passes a GUID, and parameters or null.
    let (provider, property) = unsafe {
        (
            Guid((*provider).to_u128()),
            parameters.as_ref().map_or(0, |parameters| parameters.EnableProperty),
        )
    };
    let mut state = state();
    if let Some(error) = state.refused_providers.get(&provider) {
        return *error;
    }
    match state.sessions.values_mut().find(|session| session.handle == handle) {
        Some(session) if control == DISABLE => {
            session.enabled.retain(|enabled| enabled.provider != provider);
            CHANGED.notify_all();
            0
        }
        Some(session) => {
            session.enabled.push(Enabled {
                provider,
                level,
                keywords: any,
                property,
            });
            0
        }
        None => INVALID_HANDLE,
    }
}

/// Opens a session for consumption. As on Windows, that it does not run is found out later.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn OpenTraceW(file: *mut EVENT_TRACE_LOGFILEW) -> u64 {
    // SAFETY: the caller passes a whole structure with a callback of event records.
    let opened = unsafe {
        Opened {
            session: text(PCWSTR((*file).LoggerName.0)),
            callback: (*file).Anonymous2.EventRecordCallback,
            context: (*file).Context as usize,
        }
    };
    let mut state = state();
    let handle = state.handle();
    state.opened.insert(handle, opened);
    handle
}

/// Delivers records until the session ends or is closed.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn ProcessTrace(
    handles: *const u64,
    _count: u32,
    _from: *const c_void,
    _to: *const c_void,
) -> u32 {
    // SAFETY: the caller passes one handle at least.
    let handle = unsafe { *handles };
    let mut state = state();
    state.consuming += 1;
    let status = loop {
        let Some(opened) = state.opened.get(&handle).cloned() else {
            break CANCELLED;
        };
        let Some(session) = state.sessions.get_mut(&opened.session) else {
            break 0;
        };
        match session.waiting.pop_front() {
            Some(record) => {
                drop(state);
                deliver(&record, opened.callback, opened.context);
                state = crate::state::state();
            }
            None => state = CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    };
    state.consuming -= 1;
    status
}

/// Ends consumption.
#[unsafe(no_mangle)]
pub extern "system" fn CloseTrace(handle: u64) -> u32 {
    let closed = state().opened.remove(&handle);
    CHANGED.notify_all();
    if closed.is_some() { 0 } else { INVALID_HANDLE }
}

/// Queries or stops a session, by handle or by name.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn ControlTraceW(
    handle: u64,
    name: PCWSTR,
    properties: *mut EVENT_TRACE_PROPERTIES,
    control: u32,
) -> u32 {
    let mut state = state();
    let found = if name.is_null() {
        let mut sessions = state.sessions.iter();
        sessions
            .find(|(_, session)| session.handle == handle)
            .map(|(name, _)| name.clone())
    } else {
        // SAFETY: the caller passes a string that ends with zero.
        let name = unsafe { text(name) };
        state.sessions.contains_key(&name).then_some(name)
    };
    let Some(session) = found.as_ref().and_then(|name| state.sessions.get(name)) else {
        return INSTANCE_NOT_FOUND;
    };
    // SAFETY: the caller passes whole properties.
    unsafe {
        (*properties).EventsLost = session.events_lost;
        (*properties).RealTimeBuffersLost = session.buffers_lost;
        (*properties).Wnode.Anonymous1.HistoricalContext = session.handle;
    }
    if let (STOP, Some(name)) = (control, found) {
        state.sessions.remove(&name);
        CHANGED.notify_all();
    }
    0
}

/// The schema of an event, when the test described it.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn TdhGetEventInformation(
    event: *const EVENT_RECORD,
    _contexts: u32,
    _context: *const c_void,
    buffer: *mut u8,
    size: *mut u32,
) -> u32 {
    // SAFETY: the caller passes a record whose header is filled.
    let header = unsafe { &(*event).EventHeader };
    let provider = Guid(header.ProviderId.to_u128());
    let mut state = state();
    state.questions += 1;
    let key = (provider, header.EventDescriptor.Id, header.EventDescriptor.Version);
    let Some(info) = state.schemas.get(&key) else {
        return NOT_FOUND;
    };
    // SAFETY: the caller passes as many bytes as `size` states, or none.
    unsafe {
        let room = *size as usize;
        *size = u32::try_from(info.len()).unwrap_or(u32::MAX);
        if buffer.is_null() || room < info.len() {
            return INSUFFICIENT_BUFFER;
        }
        std::ptr::copy_nonoverlapping(info.as_ptr(), buffer, info.len());
    }
    0
}

/// Nothing here reads single properties.
#[unsafe(no_mangle)]
pub extern "system" fn TdhGetPropertySize(
    _event: *const c_void,
    _contexts: u32,
    _context: *const c_void,
    _count: u32,
    _properties: *const c_void,
    _size: *mut u32,
) -> u32 {
    NOT_FOUND
}

/// A new GUID each time.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn CoCreateGuid(guid: *mut GUID) -> i32 {
    let number = u128::from(state().handle());
    // SAFETY: the caller passes room for a GUID.
    unsafe { *guid = GUID::from_u128(number) };
    0
}

/// No error has more information.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn GetErrorInfo(_reserved: u32, out: *mut *mut c_void) -> i32 {
    // SAFETY: the caller passes room for a pointer.
    unsafe { *out = std::ptr::null_mut() };
    // S_FALSE
    1
}

/// Nothing here sets one.
#[unsafe(no_mangle)]
pub extern "system" fn GetLastError() -> u32 {
    0
}

/// The condition mask as it was passed: [`VerifyVersionInfoA`] does not read it.
#[unsafe(no_mangle)]
pub extern "system" fn VerSetConditionMask(mask: u64, _kind: u32, _condition: u8) -> u64 {
    mask
}

/// Every version that is required is there.
#[unsafe(no_mangle)]
pub extern "system" fn VerifyVersionInfoA(_version: *mut c_void, _kind: u32, _mask: u64) -> i32 {
    1
}

/// A string of Win32.
///
/// # Safety
/// Ends with zero, or is null.
unsafe fn text(text: PCWSTR) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, and the caller states that it ends with zero.
    String::from_utf16_lossy(unsafe { text.as_wide() })
}

/// `EVENT_TRACE_CONTROL_STOP` (evntrace.h).
const STOP: u32 = 1;
/// `EVENT_CONTROL_CODE_DISABLE_PROVIDER` (evntprov.h).
const DISABLE: u32 = 0;
/// `ERROR_INVALID_HANDLE` (winerror.h).
const INVALID_HANDLE: u32 = 6;
/// `ERROR_INSUFFICIENT_BUFFER` (winerror.h).
const INSUFFICIENT_BUFFER: u32 = 122;
/// `ERROR_ALREADY_EXISTS` (winerror.h).
const ALREADY_EXISTS: u32 = 183;
/// `ERROR_NOT_FOUND` (winerror.h).
const NOT_FOUND: u32 = 1168;
/// `ERROR_CANCELLED` (winerror.h).
const CANCELLED: u32 = 1223;
/// `ERROR_WMI_INSTANCE_NOT_FOUND` (winerror.h).
const INSTANCE_NOT_FOUND: u32 = 4201;
