//! Events: what sources report of the node, one fact at one instant.
//!
//! Emitted by the sources (and by `identity`), ordered by the reorder stage, handled by the correlator, kept in
//! recordings. One vocabulary for every operating system and for replay. An event carries no interpretation: the
//! correlator finds out that a process is a delegate of another, or that a chain is complete.
//! Strings are bounded by the source and valid UTF-8: sources escape what is not (`\xNN`). The names of variants and
//! fields are those of the recording format.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::cni::{CniError, ConfigProblem, NetConf, NetworkList, PodIdentity};
use crate::cri::{SandboxRequest, SandboxResponse};
use crate::daemons::{Goroutine, RequestStep};
use crate::id::{ProcessKey, SandboxId};
use crate::locks::{FileLockTry, KernelLockWait};
use crate::network::{ConnectStep, ConntrackCounts, DnsMessage, DnsUnreported, Flow, PacketDrop};
use crate::text_list::{TextList, TextPairs};
use crate::time::Timestamp;
use crate::waits::{
    LockBlocked, RuntimeTimes, SchedulerCount, TentativeSeen, ThreadKey, ThreadRun, ThreadTimes, ThreadWake,
    ThreadsSeen,
};
use crate::windows::{ActivityStep, InterfaceStep, LookupStep, RuntimeReport, SiloStep};

/// One fact at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When it happened, on the boot clock: the kernel's time stamp where the record has one, else the time of reading.
    pub at: Timestamp,
    /// The fact.
    #[serde(flatten)]
    pub body: Body,
}

/// A fact. Large contents are in boxes: events are moved several times, and most are forks and exits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Body {
    /// A tracked process, or one of a runtime's step, forked a new process (threads are not reported).
    ProcessForked(Fork),
    /// A tracked process runs a new image. Of what a runtime's step forked, the exec of the container's program is the last event.
    ProcessExecuted(Box<Exec>),
    /// A tracked process ended, all its threads included.
    ProcessExited(Exit),
    /// A thread of a tracked process that slept was woken.
    ThreadWoken(Box<ThreadWake>),
    /// A thread of a tracked process that was runnable began to run.
    ThreadRan(Box<ThreadRun>),
    /// A thread of a tracked process ended while waits were recorded: its first one, or its last one, and with it the process.
    ThreadEnded(Box<ThreadTimes>),
    /// What the threads of tracked processes do now.
    ThreadsSeen(Box<ThreadsSeen>),
    /// From now on waits of tracked threads are recorded, or not any more. Without such an event they never are.
    WaitsRecorded {
        /// They are.
        on: bool,
    },
    /// A process waits for a lock on a file.
    LockBlocked(Box<LockBlocked>),
    /// Which addresses are tentative in the namespace that a plugin works in.
    TentativeSeen(Box<TentativeSeen>),
    /// Under which address this node's pods and plugins reach the API server.
    ApiServerKnown {
        /// Its service address, as Kubernetes passes it to every container.
        address: SocketAddr,
    },
    /// A message of a request to a daemon.
    RequestSeen(Box<RequestStep>),
    /// From now on requests to daemons are followed, or not any more. Without such an event they never are.
    RequestsFollowed {
        /// They are.
        on: bool,
    },
    /// The runtime received a request to make a sandbox.
    SandboxRequested(Box<SandboxRequest>),
    /// The runtime responded to such a request, or it was withdrawn.
    SandboxResponded(Box<SandboxResponse>),
    /// What the scheduler has counted of a runtime's daemon so far.
    RuntimeMeasured(RuntimeTimes),
    /// A thread tried to lock a file that another process has locked.
    FileLockTried(Box<FileLockTry>),
    /// A thread has waited for a lock inside the kernel.
    KernelLockWaited(Box<KernelLockWait>),
    /// The kernel remarked on a netlink request of a tracked process, mostly because it refused it.
    NetlinkRemarked(Box<NetlinkRemark>),
    /// What a plugin read on standard input or wrote to standard output, parsed and redacted. The name in recordings is
    /// older than the variant's and is part of their format.
    #[serde(rename = "plugin_spoke")]
    PluginIoRead(Box<PluginIo>),
    /// The pod that a sandbox belongs to, as the CRI responded.
    SandboxDescribed(Box<SandboxDescription>),
    /// A sandbox's network namespace was observed, with its begin where that could be seen.
    NetnsObserved(Box<Netns>),
    /// A container runtime named a network namespace of a sandbox, or removed the name. It does both for every sandbox
    /// with a network of its own, also where no plugin runs; sandboxes on the node's network have no such name.
    NetnsNamed {
        /// The name: last component of `CNI_NETNS`. Its form is one that [`runtime_of_netns`](crate::cni::runtime_of_netns) knows.
        name: String,
        /// The name is gone.
        #[serde(default, skip_serializing_if = "is_false")]
        removed: bool,
    },
    /// The network lists that the runtime can choose from. Replaces those of an earlier event.
    NetworksConfigured {
        /// The lists, in the order of their file names.
        networks: Vec<NetworkList>,
    },
    /// What is wrong with the CNI configuration from now on. Replaces the problems of an earlier event.
    CniConfigJudged {
        /// The problems that keep sandboxes from getting a network; empty when there are none.
        problems: Vec<ConfigProblem>,
    },
    /// The source reports traffic from now on: a sandbox whose creation follows and that shows none has sent nothing.
    TrafficWatched {
        /// Inode of the node's own network namespace.
        node_netns: u64,
    },
    /// A DNS query left a socket, or an answer reached one.
    DnsSeen(Box<DnsMessage>),
    /// DNS traffic that is not reported as messages, and why.
    DnsUnreported(Box<DnsUnreported>),
    /// A step in the establishment of a TCP connection.
    ConnectSeen(Box<ConnectStep>),
    /// A conntrack entry was created or removed.
    FlowSeen(Box<Flow>),
    /// Conntrack's counters grew, or its table's fill changed.
    ConntrackCounted(Box<ConntrackCounts>),
    /// The kernel dropped a DNS packet or a SYN.
    PacketDropped(Box<PacketDrop>),
    /// A step of an activity of HNS, HCS or the container library (Windows).
    ActivitySeen(Box<ActivityStep>),
    /// The runtime reported a step of its own (Windows, through ETW). The name in recordings is part of their format.
    #[serde(rename = "runtime_said")]
    RuntimeReported(Box<RuntimeReport>),
    /// A step in the life of a silo (Windows).
    SiloSeen(Box<SiloStep>),
    /// A network interface was added or removed (Windows).
    InterfaceSeen(InterfaceStep),
    /// A step of a lookup, as the DNS client service logs it (Windows).
    LookupSeen(Box<LookupStep>),
    /// The wall clock at `at`. Emitted at the start and whenever the clock was stepped.
    ClockAnchored {
        /// Nanoseconds since 1970.
        unix_ns: u64,
    },
    /// A probe lost records at or shortly before `at`.
    Lost {
        /// Which probe, as in `sandglass_probe_info`.
        probe: String,
        /// How many records.
        count: u64,
    },
    /// A probe leaves out further records of one owner for a second, because there are too many of them.
    Limited {
        /// Which probe, as in `sandglass_probe_info`.
        probe: String,
        /// Inode of the network namespace in which they were seen; 0: records of any owner are left out.
        netns: u64,
        /// The sender of the packets.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<IpAddr>,
    },
    /// Time passed: no event older than `at` will come, and timers fire. They also fire on every other event.
    Tick,
}

/// A process was forked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// The new process.
    pub process: ProcessKey,
    /// Its parent.
    pub parent: ProcessKey,
    /// The parent's thread that forked; `None` when not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<ThreadKey>,
    /// The parent's goroutine that forked, of a daemon in Go; `None` when not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goroutine: Option<Goroutine>,
}

/// An image was executed, or (with `running`) was found running when the agent started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// The process.
    pub process: ProcessKey,
    /// Its parent.
    pub parent: ProcessKey,
    /// The parent's `comm` (15 bytes at most, `TASK_COMM_LEN`); empty when not known. Names the runtime.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub parent_comm: SmolStr,
    /// Path of the executed file as passed to execve(2); for a script the script, not its interpreter.
    pub path: SmolStr,
    /// Arguments, `argv[0]` included; bounded, see `args_truncated`.
    pub args: TextList,
    /// Some arguments were longer than the bound and were cut.
    #[serde(default, skip_serializing_if = "is_false")]
    pub args_truncated: bool,
    /// `CNI_*`, `TRACEPARENT` and `TRACESTATE` of the environment, in its order. Nothing else leaves the kernel.
    #[serde(default, skip_serializing_if = "TextPairs::is_empty")]
    pub env: TextPairs,
    /// Path of the cgroup (v2), or empty when not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cgroup: String,
    /// Inode number of the network namespace the process runs in; 0 when not known.
    #[serde(default)]
    pub netns: u64,
    /// What the scheduler had counted of its thread since it was created; `None` where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<SchedulerCount>,
    /// Found running when the agent started, read from `/proc`: `at` is the start of the process to 10 ms, and what it
    /// did before is not known.
    #[serde(default, skip_serializing_if = "is_false")]
    pub running: bool,
}

impl Exec {
    /// The value of an environment variable, if it was kept.
    #[must_use]
    pub fn env(&self, name: &str) -> Option<&str> {
        self.env.get(name)
    }

    /// Last component of `path`.
    #[must_use]
    pub fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// A process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The process.
    pub process: ProcessKey,
    /// How it ended.
    pub how: ExitStatus,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// By itself, with this code (0 to 255).
    Code(i32),
    /// Killed by this signal.
    Signal(i32),
    /// It is gone and its end was not seen: the record was lost, or it ended before the agent could look.
    Unknown,
}

impl ExitStatus {
    /// Code 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == ExitStatus::Code(0)
    }
}

/// The kernel's message about a netlink request (`NL_SET_ERR_MSG`, include/linux/netlink.h). The request need not have failed: some
/// messages are warnings, and some programs only probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetlinkRemark {
    /// The process that sent the request.
    pub process: ProcessKey,
    /// The message, 127 bytes at most.
    pub message: SmolStr,
}

/// What a plugin read or wrote, as far as its pipes still held it when it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginIo {
    /// The plugin process.
    pub process: ProcessKey,
    /// From standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netconf: Option<NetConf>,
    /// From standard output, when the plugin reported an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CniError>,
    /// From standard output, when the plugin reported success: IP addresses with prefix length.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

/// A sandbox as the CRI describes it (`PodSandboxStatus`, `ListPodSandbox`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxDescription {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Its pod, with labels.
    pub identity: PodIdentity,
    /// When the runtime created it, nanoseconds since 1970; 0 when not known.
    #[serde(default)]
    pub created_unix_ns: u64,
    /// Its state is `SANDBOX_READY`.
    #[serde(default)]
    pub ready: bool,
    /// It existed when the agent started, which then lists all sandboxes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub preexisting: bool,
}

/// A network namespace of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Netns {
    /// The sandbox whose plugin named it.
    pub sandbox: SandboxId,
    /// Path as in `CNI_NETNS`.
    pub path: String,
    /// Inode number.
    pub inode: u64,
    /// When the runtime began to create it, as far as that was seen; `None` where the system does not show it.
    pub created: Option<Timestamp>,
    /// When it existed, where its begin was seen apart from that; in steps of a kernel timer tick.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub there: Option<Timestamp>,
}

fn is_false(value: &bool) -> bool {
    !*value
}
