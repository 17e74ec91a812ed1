//! What this Windows lets the agent do: rights, free ETW sessions, providers, the services that networks and sandboxes need.
//!
//! Used by `system.rs`. Does not: change or start anything.

use std::path::Path;

use sandglass_etw::Guid;
use windows::Win32::Foundation::{CloseHandle, ERROR_MORE_DATA, HANDLE};
use windows::Win32::Security::{GetTokenInformation, SC_HANDLE, TOKEN_ELEVATION, TOKEN_QUERY, TokenElevation};
use windows::Win32::System::Diagnostics::Etw::{
    EVENT_TRACE_PROPERTIES, EnumerateTraceGuidsEx, PROVIDER_ENUMERATION_INFO, QueryAllTracesW, TRACE_PROVIDER_INFO,
    TdhEnumerateProviders, TraceGuidQueryList,
};
use windows::Win32::System::LibraryLoader::{GetModuleHandleW, GetProcAddress};
use windows::Win32::System::Services::{
    CloseServiceHandle, OpenSCManagerW, OpenServiceW, QueryServiceStatus, SC_MANAGER_CONNECT, SERVICE_QUERY_STATUS,
    SERVICE_RUNNING, SERVICE_STATUS,
};
use windows::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};
use windows::core::{GUID, HSTRING, PCWSTR, s, w};

use super::super::providers::{self, Known};
use super::super::{Finding, Level};
use crate::health::ProbeStatus;
use crate::log_file;

/// The probe without which there are no spans, by its name in health.
pub(crate) const VITAL: &str = "etw";

/// Windows has no `/proc`. Wine shows that of the Linux below it, which is not the node's.
pub(crate) fn has_proc(_root: &Path) -> bool {
    false
}

/// Findings in the order in which a session needs what they are about: rights, room for sessions, providers, services.
pub(crate) fn check(_root: &Path, _probes: &[ProbeStatus]) -> Vec<Finding> {
    let mut findings = vec![rights(), sessions()];
    findings.extend(providers::judge(&known_providers()));
    // Services come last: without rights and sessions it does not matter whether they run.
    findings.extend(SERVICES.iter().map(service));
    findings.push(log());
    findings
}

/// Where the service would log, or has.
fn log() -> Finding {
    // The service's environment has `ProgramData` too, with the same value.
    let path = log_file::of_service(std::env::var_os("ProgramData").map(Into::into));
    let what = match std::fs::metadata(&path) {
        Ok(metadata) => format!("the service logs into {}, {} bytes now", path.display(), metadata.len()),
        Err(_) => format!("as a service it logs into {}, which is not there yet", path.display()),
    };
    Finding::ok("windows.log", what)
}

/// StartTrace is for administrators, members of Performance Log Users and services as LocalSystem; the kernel logger is not for
/// the second (documentation of `StartTraceW`), so that the agent wants the first.
fn rights() -> Finding {
    match elevated() {
        Some(true) => Finding::ok("windows.rights", "this process has the rights of an administrator"),
        Some(false) => Finding::new(
            Level::Fail,
            "windows.rights",
            "this process has no administrator's rights",
        )
        .why("ETW refuses sessions without them")
        .hint("run it as SYSTEM or administrator: as a service, or in a HostProcess container"),
        None => Finding::new(
            Level::Note,
            "windows.rights",
            "the rights of this process cannot be determined",
        ),
    }
}

/// Whether the token of this process is elevated; `None` when Windows does not answer.
fn elevated() -> Option<bool> {
    let mut token = HANDLE::default();
    // SAFETY: the pseudo handle of this process is always valid, and the token is closed below.
    unsafe { OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &mut token) }.ok()?;
    // UAC gives an administrator two tokens; only the elevated one may start sessions.
    let mut elevation = TOKEN_ELEVATION::default();
    let mut length = 0;
    let size = u32::try_from(size_of::<TOKEN_ELEVATION>()).unwrap_or(0);
    // SAFETY: the buffer has the length that is passed.
    let queried = unsafe {
        GetTokenInformation(
            token,
            TokenElevation,
            Some((&raw mut elevation).cast()),
            size,
            &mut length,
        )
    };
    // SAFETY: opened above, closed once.
    let _ = unsafe { CloseHandle(token) };
    queried.ok()?;
    Some(elevation.TokenIsElevated != 0)
}

/// Windows runs up to 64 sessions by default (documentation of `StartTraceW`, ERROR_NO_SYSTEM_RESOURCES); their number is that of
/// all programs together, and a session outlives a program that was killed.
fn sessions() -> Finding {
    // One block for each session that can run; Windows fills as many as there are.
    let mut blocks: Vec<Block> = (0..MOST_SESSIONS).map(|_| Block::default()).collect();
    let mut pointers: Vec<*mut EVENT_TRACE_PROPERTIES> =
        blocks.iter_mut().map(|block| (&raw mut *block).cast()).collect();
    let mut count = 0;
    // SAFETY: each block has the length that it declares and has room for both names; all outlive the call.
    let status = unsafe { QueryAllTracesW(&mut pointers, &mut count) };
    // More sessions than blocks: the count is right all the same (documentation of `QueryAllTracesW`).
    if status.0 != 0 && status != ERROR_MORE_DATA {
        return Finding::new(
            Level::Note,
            "windows.sessions",
            format!("the ETW sessions that run cannot be counted: error {}", status.0),
        );
    }
    let what = format!("{count} of {MOST_SESSIONS} ETW sessions run");
    if count as usize + OURS <= MOST_SESSIONS {
        return Finding::ok("windows.sessions", what);
    }
    Finding::new(Level::Warn, "windows.sessions", what)
        .why("the agent needs two, and ETW refuses sessions beyond that limit")
        .hint("`logman query -ets` lists them: stop one that is not needed")
}

fn known_providers() -> Known {
    // Wine exports both functions, and ends a program that calls them.
    if is_wine() {
        return Known::default();
    }
    Known {
        manifests: manifests(),
        running: registered(),
    }
}

/// Wine answers for ETW with empty lists, which would read as a node without providers. Its ntdll alone has this function.
fn is_wine() -> bool {
    // SAFETY: both names end with zero; ntdll is loaded in every process.
    unsafe {
        GetModuleHandleW(w!("ntdll.dll")).is_ok_and(|ntdll| GetProcAddress(ntdll, s!("wine_get_version")).is_some())
    }
}

/// Providers with a manifest (or a class of WMI). The list is a head with a count and an array behind it
/// (<https://learn.microsoft.com/windows/win32/api/tdh/nf-tdh-tdhenumerateproviders>).
fn manifests() -> Option<Vec<Guid>> {
    grown(|buffer, size| {
        let info: *mut PROVIDER_ENUMERATION_INFO = buffer.as_mut_ptr().cast();
        // SAFETY: the buffer has `size` bytes, and is aligned as the structure is.
        let status = unsafe { TdhEnumerateProviders(Some(info), size) };
        if status != 0 {
            return Err(status);
        }
        // SAFETY: the call has filled the head.
        let count = unsafe { (*info).NumberOfProviders } as usize;
        // The count is the system's; no more is read than the buffer can hold.
        let room = (size_of_val(buffer) - HEAD) / size_of::<TRACE_PROVIDER_INFO>();
        let guids = (0..count.min(room)).map(|index| {
            // SAFETY: the array stands behind the head, and the index lies in the buffer.
            let provider = unsafe {
                (&raw const (*info).TraceProviderInfoArray)
                    .cast::<TRACE_PROVIDER_INFO>()
                    .add(index)
            };
            // SAFETY: filled by the call, and plain numbers in any case.
            Guid(unsafe { (*provider).ProviderGuid }.to_u128())
        });
        Ok(guids.collect())
    })
}

/// Providers that a process or a driver has registered, or a session has enabled: `TraceGuidQueryList` returns an array of GUIDs
/// (<https://learn.microsoft.com/windows/win32/api/evntrace/nf-evntrace-enumeratetraceguidsex>).
fn registered() -> Option<Vec<Guid>> {
    grown(|buffer, size| {
        let guids: *mut GUID = buffer.as_mut_ptr().cast();
        let mut needed = 0;
        // SAFETY: the buffer has `size` bytes.
        let status =
            unsafe { EnumerateTraceGuidsEx(TraceGuidQueryList, None, 0, Some(guids.cast()), *size, &mut needed) };
        if status.0 != 0 {
            *size = needed;
            return Err(status.0);
        }
        let count = (needed as usize).min(size_of_val(buffer)) / size_of::<GUID>();
        // SAFETY: so many were written, and the index lies in the buffer.
        let guid = |index| Guid(unsafe { *guids.add(index) }.to_u128());
        Ok((0..count).map(guid).collect())
    })
}

/// Repeats a request with a larger buffer as long as Windows wants one. `None` when the request fails, or when eight buffers were
/// too small: the size at least doubles each time, up to [`MOST_BYTES`].
fn grown(mut request: impl FnMut(&mut [u64], &mut u32) -> Result<Vec<Guid>, u32>) -> Option<Vec<Guid>> {
    // A first guess; Windows names the size that it needs where this is too small.
    let mut size: u32 = 64 * 1024;
    // Providers come and go between two calls.
    for _ in 0..8 {
        // Of u64, for the alignment of structures.
        let mut buffer = vec![0_u64; (size as usize).div_ceil(size_of::<u64>())];
        let room = size;
        match request(&mut buffer, &mut size) {
            Ok(guids) => return Some(guids),
            Err(INSUFFICIENT_BUFFER) => size = size.max(room.saturating_mul(2)).min(MOST_BYTES),
            Err(_) => return None,
        }
    }
    None
}

/// A service, and what its absence means. Stopped is a warning, since it should run; absent a note, since the feature that brings
/// it may not be wanted.
struct ServiceCheck {
    check: &'static str,
    name: &'static str,
    without: &'static str,
}

fn service(service: &ServiceCheck) -> Finding {
    let ServiceCheck { check, name, without } = service;
    match running(name) {
        Some(true) => Finding::ok(check, format!("the service {name} runs")),
        // A stopped service can be started by the reader, hence no hint beyond its name.
        Some(false) => Finding::new(Level::Warn, check, format!("the service {name} does not run")).why(*without),
        None => Finding::new(Level::Note, check, format!("there is no service {name}")).why(*without),
    }
}

/// Whether a service runs; `None` when there is no such service, or the request fails. Opens both with the
/// least rights that the query needs, so that it works without those of an administrator.
fn running(name: &str) -> Option<bool> {
    // SAFETY: no names are passed; the handle is closed below.
    let manager = ServiceHandle(unsafe { OpenSCManagerW(PCWSTR::null(), PCWSTR::null(), SC_MANAGER_CONNECT) }.ok()?);
    // SAFETY: the manager's handle is open, the name ends with zero.
    let service = unsafe { OpenServiceW(manager.0, &HSTRING::from(name), SERVICE_QUERY_STATUS) };
    let service = ServiceHandle(service.ok()?);
    let mut status = SERVICE_STATUS::default();
    // SAFETY: the service's handle is open.
    unsafe { QueryServiceStatus(service.0, &mut status) }.ok()?;
    Some(status.dwCurrentState == SERVICE_RUNNING)
}

/// An open handle of the service control manager or of a service, closed when it is dropped.
struct ServiceHandle(SC_HANDLE);

impl Drop for ServiceHandle {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once.
        let _ = unsafe { CloseServiceHandle(self.0) };
    }
}

/// Properties of a session and, behind them, its names.
#[repr(C)]
struct Block {
    properties: EVENT_TRACE_PROPERTIES,
    names: [u16; 2 * NAME_CHARACTERS],
}

impl Default for Block {
    fn default() -> Block {
        let mut properties = EVENT_TRACE_PROPERTIES::default();
        properties.Wnode.BufferSize = size_of::<Block>() as u32;
        properties.LoggerNameOffset = size_of::<EVENT_TRACE_PROPERTIES>() as u32;
        properties.LogFileNameOffset = properties.LoggerNameOffset + 2 * NAME_CHARACTERS as u32;
        Block {
            properties,
            names: [0; 2 * NAME_CHARACTERS],
        }
    }
}

/// Services without which pods have no network, no container or no name.
const SERVICES: [ServiceCheck; 3] = [
    ServiceCheck {
        check: "windows.service.hns",
        name: "hns",
        without: "no pod gets a network on this node, and there are no spans of HNS",
    },
    ServiceCheck {
        check: "windows.service.vmcompute",
        name: "vmcompute",
        without: "no container starts on this node, and there are no spans of HCS",
    },
    ServiceCheck {
        check: "windows.service.containerd",
        name: "containerd",
        without: "pods are named by containerd's own events; another runtime, or a service of another name, has to be checked by hand",
    },
];
/// `ERROR_INSUFFICIENT_BUFFER` of winerror.h.
const INSUFFICIENT_BUFFER: u32 = 122;
/// A list of providers is about 100 KiB.
const MOST_BYTES: u32 = 16 << 20;
/// Count and a reserved number before the array of `PROVIDER_ENUMERATION_INFO`.
const HEAD: usize = 8;
/// Sessions of all programs that Windows runs by default.
const MOST_SESSIONS: usize = 64;
/// Of events, and of processes.
const OURS: usize = 2;
/// Longest name of a session or log file, its terminator included (documentation of EVENT_TRACE_PROPERTIES).
const NAME_CHARACTERS: usize = 1_024;
