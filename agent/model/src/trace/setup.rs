//! Details of the spans of a sandbox's set-up: sandbox, operation, and the processes that plugins and runtimes run.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::cni::{CniCommand, CniError};
use crate::event::ExitStatus;
use crate::text_list::TextList;
use crate::time::Timestamp;
use crate::trace::{Attribution, Cause};
use crate::waits::{TimeSpent, Waiting};

/// Root of a sandbox's creation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxDetail {
    /// Which attempt for this pod: 1 for the first, 2 when an earlier sandbox of the same pod was tried before, and so on.
    pub attempt: u32,
    /// The runtime that requested it: `containerd`, `cri-o`, or the caller's `comm` as it is.
    pub runtime: String,
    /// When its network had proven usable: the first answered lookup, and the first connect if one was begun. `None`
    /// when nothing was sent within the deadline, or when no source observed traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_ready: Option<Timestamp>,
    /// Its first query or SYN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_attempt: Option<Timestamp>,
    /// Its traffic was observed until the deadline, and it sent nothing. `false` for one that was removed before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
    /// Lookups and connections that it tried before its network was ready and that are not shown: there were too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts_left_out: u32,
}

/// The runtime's view of a sandbox's creation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateDetail {
    /// The begin is when the network namespace was created; otherwise it is the first plugin's exec. With `request_seen` it is earlier.
    pub netns_seen: bool,
    /// The end is when the runtime had started the pause process; otherwise it is the end of the last operation. With `response_seen` it
    /// is later.
    pub runtime_seen: bool,
    /// The begin is when the runtime received the request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub request_seen: bool,
    /// The end is when the runtime responded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub response_seen: bool,
    /// Why it failed, where nothing that ran did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Box<Cause>>,
    /// What its time went to, where anything of it was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Box<TimeSpent>>,
}

/// One CNI operation for one attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationDetail {
    /// Its verb.
    pub command: CniCommand,
    /// `CNI_IFNAME`; empty for GC, STATUS and VERSION.
    pub ifname: String,
    /// Network name; empty when not known.
    pub network: String,
    /// `CNI_NETNS`; empty when not passed.
    pub netns: String,
    /// Which attempt of this verb for this attachment, from 1: a DEL that is repeated counts up.
    pub attempt: u32,
    /// Plugins of the chain that ran, in order, joined by `,`: a bounded description for people and labels.
    pub plugins: Vec<Arc<str>>,
    /// Addresses that the plugins reported, when the result could be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// What its time went to, where waits were recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Box<TimeSpent>>,
}

/// One process of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessDetail {
    /// Process id in the initial pid namespace.
    pub pid: u32,
    /// Process id of its parent.
    pub parent_pid: u32,
    /// Path as passed to execve(2). Shared, as is the cgroup: a node runs the same few programs all day.
    pub path: Arc<str>,
    /// Arguments, `argv[0]` included.
    pub args: TextList,
    /// Path of the cgroup; empty when not known.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub cgroup: Arc<str>,
    /// Inode of its network namespace at exec; 0 when not known.
    #[serde(default)]
    pub netns: u64,
    /// How it ended; `None` while it runs, or when it outlived its parent.
    pub exit: Option<ExitStatus>,
    /// It was already running when the agent started; the begin is from `/proc`, to 10 ms.
    #[serde(default)]
    pub found_running: bool,
    /// It ran on after its parent had ended (a daemon); the span ends with its parent.
    #[serde(default)]
    pub outlived_parent: bool,
    /// Its sandbox was inferred, and more than one fitted (Windows), or its request to a daemon: it is attributed to the likeliest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ambiguous: bool,
    /// The kernel's newest message about one of its netlink requests; empty when there was none. A process that succeeds may have
    /// one: it only probed.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub netlink: SmolStr,
    /// A daemon ran it: why it is attributed to the request that it lies below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attribution: Option<Attribution>,
    /// What its time went to, where waits were recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Box<TimeSpent>>,
    /// What it waits for now, as the newest look found it; of one that was cut off, what it waited for then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Box<Waiting>>,
}

/// One exec of a plugin binary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginDetail {
    /// Plugin type: the file name of the executable. Shared: a node has a handful of them and runs them all day.
    pub plugin: Arc<str>,
    /// The verb that it was executed with.
    pub command: CniCommand,
    /// Called by another plugin, not by the runtime (IPAM included).
    pub delegate: bool,
    /// `cniVersion` of its configuration; empty when not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub spec_version: String,
    /// Its error result, where it could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CniError>,
    /// The process.
    pub process: ProcessDetail,
}

/// A command that a plugin spawned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandDetail {
    /// File name of the executable.
    pub name: Arc<str>,
    /// The plugin it ran for.
    pub plugin: Arc<str>,
    /// The process.
    pub process: ProcessDetail,
}

/// A step of the runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeStepDetail {
    /// The step.
    pub step: RuntimeStep,
    /// The process.
    pub process: ProcessDetail,
}

/// A step of the runtime that has a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeStep {
    /// containerd's shim or CRI-O's conmon comes up.
    Shim,
    /// `runc create` or `crun create` of the sandbox's pause container.
    Create,
    /// `runc start` or `crun start` of it.
    Start,
}

/// What the runtime did for a sandbox before or after everything else that is seen of it. No process and no event shows what that was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeWorkDetail {
    /// Which part.
    pub part: RuntimePart,
    /// What the time of its daemon went to, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Box<TimeSpent>>,
}

/// A part of the runtime's own work for a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimePart {
    /// From the request until the network namespace began to be made, or else the first plugin or process: names, leases, images, storage.
    Prepare,
    /// From the end of the last operation or process until the response; of a request that failed, the clean-up.
    Finish,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}
