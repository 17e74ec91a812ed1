//! The kinds of spans: one variant of [`Detail`] each, and accessors, so that code selects the one kind that it needs.
//!
//! Used by everything that reads spans. Only code that treats every kind matches exhaustively: [`crate::registry`]
//! (names and attributes), [`crate::phases`] (phase and verdict) and [`crate::text`]. Everything else uses the
//! accessors, so that a new kind does not touch it.

use serde::{Deserialize, Serialize};

use super::{
    ActivityDetail, Cause, CommandDetail, ConnectDetail, CreateDetail, DaemonDetail, JourneyDetail, LookupDetail,
    OperationDetail, PluginDetail, ProcessDetail, RuntimeStepDetail, RuntimeWorkDetail, SandboxDetail, VnicWaitDetail,
};
use crate::waits::{TimeSpent, WaitDetail};

/// The kind of a span, with what only that kind has.
///
/// Boxed but for one: a trace holds few spans of each kind, and without a box a span takes the size of the largest
/// kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Detail {
    /// Root of a sandbox's creation: from the first evidence until its network, or else the sandbox, is ready.
    Sandbox(Box<SandboxDetail>),
    /// What the runtime does for a sandbox: from the request until the response, or as much of that as is seen.
    SandboxCreate(CreateDetail),
    /// One CNI operation for one attachment.
    Operation(Box<OperationDetail>),
    /// One exec of a plugin binary.
    Plugin(Box<PluginDetail>),
    /// Any other process below a plugin invocation.
    Command(Box<CommandDetail>),
    /// A process that the runtime runs for a sandbox: shim start, `runc create`, `runc start`.
    RuntimeStep(Box<RuntimeStepDetail>),
    /// What the runtime does before or after all that, in which nothing is seen.
    RuntimeWork(Box<RuntimeWorkDetail>),
    /// Root of a trace about one lookup or connect that failed or was slow after readiness.
    Journey(Box<JourneyDetail>),
    /// One name that a program resolves, with all queries, answers and retries.
    Lookup(Box<LookupDetail>),
    /// The establishment of one TCP connection.
    Connect(Box<ConnectDetail>),
    /// One activity of HNS, HCS or a silo (Windows).
    Activity(Box<ActivityDetail>),
    /// From the end of ADD until the sandbox's interface exists (Windows, where ADD returns before it does).
    VnicWait(Box<VnicWaitDetail>),
    /// A wait of a plugin or a command.
    Wait(Box<WaitDetail>),
    /// A request to a daemon.
    Daemon(Box<DaemonDetail>),
}

/// `Some` for the one kind, `None` for every other.
macro_rules! accessors {
    ($($get:ident, $get_mut:ident: $kind:ident($detail:ty);)*) => {
        impl Detail {
            $(
                #[doc = concat!("The detail of a [`Detail::", stringify!($kind), "`]; `None` for every other kind.")]
                #[must_use]
                pub fn $get(&self) -> Option<&$detail> {
                    match self {
                        Detail::$kind(detail) => Some(detail),
                        _ => None,
                    }
                }

                #[doc = concat!("The same as [`", stringify!($get), "`](Detail::", stringify!($get), "), mutable.")]
                #[must_use]
                pub fn $get_mut(&mut self) -> Option<&mut $detail> {
                    match self {
                        Detail::$kind(detail) => Some(detail),
                        _ => None,
                    }
                }
            )*

            /// Bytes of the kind's structure, without what its texts and lists allocate.
            #[must_use]
            pub fn struct_bytes(&self) -> usize {
                match self {
                    $(Detail::$kind(detail) => size_of_val::<$detail>(detail),)*
                }
            }
        }
    };
}

accessors! {
    as_sandbox, as_sandbox_mut: Sandbox(SandboxDetail);
    as_create, as_create_mut: SandboxCreate(CreateDetail);
    as_operation, as_operation_mut: Operation(OperationDetail);
    as_plugin, as_plugin_mut: Plugin(PluginDetail);
    as_command, as_command_mut: Command(CommandDetail);
    as_step, as_step_mut: RuntimeStep(RuntimeStepDetail);
    as_runtime_work, as_runtime_work_mut: RuntimeWork(RuntimeWorkDetail);
    as_journey, as_journey_mut: Journey(JourneyDetail);
    as_lookup, as_lookup_mut: Lookup(LookupDetail);
    as_connect, as_connect_mut: Connect(ConnectDetail);
    as_activity, as_activity_mut: Activity(ActivityDetail);
    as_vnic_wait, as_vnic_wait_mut: VnicWait(VnicWaitDetail);
    as_wait, as_wait_mut: Wait(WaitDetail);
    as_daemon, as_daemon_mut: Daemon(DaemonDetail);
}

impl Detail {
    /// The process behind a plugin, a command or a runtime step.
    #[must_use]
    pub fn process(&self) -> Option<&ProcessDetail> {
        match self {
            Detail::Plugin(plugin) => Some(&plugin.process),
            Detail::Command(command) => Some(&command.process),
            Detail::RuntimeStep(step) => Some(&step.process),
            _ => None,
        }
    }

    /// What the time of a creation, an operation, a process or a request went to, where that was recorded.
    #[must_use]
    pub fn time(&self) -> Option<&TimeSpent> {
        let time = match self {
            Detail::SandboxCreate(create) => &create.time,
            Detail::Operation(operation) => &operation.time,
            Detail::RuntimeWork(work) => &work.time,
            Detail::Daemon(daemon) => &daemon.time,
            _ => &self.process()?.time,
        };
        time.as_deref()
    }

    /// The same as [`process`](Detail::process), mutable.
    #[must_use]
    pub fn process_mut(&mut self) -> Option<&mut ProcessDetail> {
        match self {
            Detail::Plugin(plugin) => Some(&mut plugin.process),
            Detail::Command(command) => Some(&mut command.process),
            Detail::RuntimeStep(step) => Some(&mut step.process),
            _ => None,
        }
    }

    /// Why a lookup or a connect failed or was slow.
    #[must_use]
    pub fn cause(&self) -> Option<&Cause> {
        match self {
            Detail::Lookup(lookup) => lookup.cause.as_ref(),
            Detail::Connect(connect) => connect.cause.as_ref(),
            _ => None,
        }
    }

    /// Which attempt it is, from 1; 1 for kinds whose attempts are not counted.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        match self {
            Detail::Sandbox(sandbox) => sandbox.attempt,
            Detail::Operation(operation) => operation.attempt,
            _ => 1,
        }
    }

    /// It only encloses other spans: a failure of it repeats a failure of one of them.
    #[must_use]
    pub fn is_frame(&self) -> bool {
        matches!(
            self,
            Detail::Sandbox(_) | Detail::SandboxCreate(_) | Detail::Operation(_) | Detail::Journey(_)
        )
    }
}
