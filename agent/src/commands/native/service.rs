//! `sandglass service`: `run` under the service control manager of Windows. Stop and shutdown end it cleanly.
//!
//! docs/windows.md says how to install it, and where its log lies (`log_file.rs`). Does not: install the service, or write to
//! the event log.

use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use windows_service::service::{
    ServiceControl, ServiceControlAccept, ServiceExitCode, ServiceState, ServiceStatus, ServiceType,
};
use windows_service::service_control_handler::{self, ServiceControlHandlerResult, ServiceStatusHandle};
use windows_service::{define_windows_service, service_dispatcher};

use crate::cli::RunArgs;
use crate::commands::console::block_on;
use crate::commands::run;
use crate::failure::{ExitReason, Failure};
use crate::platform;

/// Hands the process over to the service control manager until the service is stopped.
pub fn service(args: RunArgs) -> Result<(), Failure> {
    *ARGS.lock().unwrap_or_else(PoisonError::into_inner) = Some(args);
    service_dispatcher::start(NAME, service_entry).map_err(|error| {
        Failure::new(
            ExitReason::Unavailable,
            format!("cannot reach the service control manager: {error}"),
            "only it starts this command; by hand it is sandglass run",
        )
    })?;
    let failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner).take();
    failed.map_or(Ok(()), Err)
}

define_windows_service!(service_entry, serve);

fn serve(_: Vec<OsString>) {
    let registered = service_control_handler::register(NAME, |control| match control {
        ServiceControl::Stop | ServiceControl::Shutdown => {
            platform::stop();
            ServiceControlHandlerResult::NoError
        }
        ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
        _ => ServiceControlHandlerResult::NotImplemented,
    });
    let (Ok(handle), Some(args)) = (registered, ARGS.lock().unwrap_or_else(PoisonError::into_inner).take()) else {
        return;
    };
    report(handle, ServiceState::Running, 0);
    let ended = block_on(run::run(args));
    let code = ended.as_ref().err().map_or(0, |failure| failure.exit().code());
    *FAILED.lock().unwrap_or_else(PoisonError::into_inner) = ended.err();
    report(handle, ServiceState::Stopped, code);
}

/// Reports the state. A manager that has gone away is no failure.
fn report(handle: ServiceStatusHandle, state: ServiceState, code: u8) {
    let _ = handle.set_service_status(ServiceStatus {
        service_type: ServiceType::OWN_PROCESS,
        current_state: state,
        controls_accepted: match state {
            ServiceState::Running => ServiceControlAccept::STOP | ServiceControlAccept::SHUTDOWN,
            _ => ServiceControlAccept::empty(),
        },
        exit_code: match code {
            0 => ServiceExitCode::NO_ERROR,
            code => ServiceExitCode::ServiceSpecific(u32::from(code)),
        },
        checkpoint: 0,
        wait_hint: Duration::ZERO,
        process_id: None,
    });
}

const NAME: &str = "sandglass";
static ARGS: Mutex<Option<RunArgs>> = Mutex::new(None);
static FAILED: Mutex<Option<Failure>> = Mutex::new(None);
