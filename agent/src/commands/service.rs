//! `sandglass service`: the agent under the service control manager of Windows. Stop and shutdown end it cleanly.
//!
//! docs/windows.md says how to install it, and where its log lies (`log_file.rs`). Does not: install anything, or write to
//! the event log.

use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use windows_service::service::{
    ServiceControl, ServiceControlAccept, ServiceExitCode, ServiceState, ServiceStatus, ServiceType,
};
use windows_service::service_control_handler::{self, ServiceControlHandlerResult, ServiceStatusHandle};
use windows_service::{define_windows_service, service_dispatcher};

use super::{block_on, run};
use crate::cli::RunArgs;
use crate::failure::{Exit, Failure};

/// Hands the process over to the service control manager until the service is stopped.
pub fn service(args: RunArgs) -> Result<(), Failure> {
    *ARGS.lock().unwrap_or_else(PoisonError::into_inner) = Some(args);
    service_dispatcher::start(NAME, service_entry).map_err(|error| {
        Failure::new(
            Exit::Unavailable,
            format!("cannot reach the service control manager: {error}"),
            "only it starts this command; by hand it is sandglass run",
        )
    })?;
    let failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner).take();
    failed.map_or(Ok(()), Err)
}

/// Waits for the service control manager to stop the service; for ever in a process that is none.
pub async fn stopped() {
    STOP.notified().await;
}

define_windows_service!(service_entry, serve);

fn serve(_: Vec<OsString>) {
    let registered = service_control_handler::register(NAME, |control| match control {
        ServiceControl::Stop | ServiceControl::Shutdown => {
            STOP.notify_one();
            ServiceControlHandlerResult::NoError
        }
        ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
        _ => ServiceControlHandlerResult::NotImplemented,
    });
    let (Ok(handle), Some(args)) = (registered, ARGS.lock().unwrap_or_else(PoisonError::into_inner).take()) else {
        return;
    };
    tell(handle, ServiceState::Running, 0);
    let ended = block_on(run::run(args));
    let code = ended.as_ref().err().map_or(0, |failure| failure.exit().code());
    *FAILED.lock().unwrap_or_else(PoisonError::into_inner) = ended.err();
    tell(handle, ServiceState::Stopped, code);
}

/// A manager that does not listen any more cannot be told anything.
fn tell(handle: ServiceStatusHandle, state: ServiceState, code: u8) {
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
static STOP: Notify = Notify::const_new();
static ARGS: Mutex<Option<RunArgs>> = Mutex::new(None);
static FAILED: Mutex<Option<Failure>> = Mutex::new(None);
