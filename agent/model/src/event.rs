//! Events: what a source says happened on the node, one fact at one instant.
//!
//! One vocabulary for every operating system and for replay. An event carries no interpretation: that a process is a
//! delegate of another, or that a chain is complete, is the correlator's finding.
//! Strings are bounded and valid UTF-8: sources escape what is not (`\xNN`).

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::cni::{CniError, NetConf, NetworkList, PodIdentity};
use crate::id::{ProcessKey, SandboxId};
use crate::network::{ConnectStep, ConntrackCounts, DnsMessage, DnsUnreported, Flow, PacketDrop};
use crate::text_list::{TextList, TextPairs};
use crate::time::Timestamp;
use crate::windows::{ActivityStep, InterfaceStep, LookupStep, RuntimeReport, SiloStep};

/// One fact at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When it happened (kernel time where the kernel said it).
    pub at: Timestamp,
    /// What happened.
    #[serde(flatten)]
    pub body: Body,
}

/// What happened. What is large is in a box: events are handed on by value several times, and most are forks and exits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Body {
    /// A tracked process forked a new process (threads are not reported).
    ProcessForked(Fork),
    /// A tracked process runs a new image.
    ProcessExecuted(Box<Exec>),
    /// A tracked process ended, all its threads included.
    ProcessExited(Exit),
    /// What a plugin read on standard input or wrote to standard output, parsed and redacted. The name in recordings
    /// is older than the type's and is part of their format.
    #[serde(rename = "plugin_spoke")]
    PluginIoRead(Box<PluginIo>),
    /// Who a sandbox belongs to: the CRI's answer.
    SandboxDescribed(Box<SandboxDescription>),
    /// When a sandbox's network namespace came to be.
    NetnsObserved(Box<Netns>),
    /// The network configuration lists the runtime can choose from; replaces what an earlier event said.
    NetworksConfigured {
        /// The lists, in the order of their file names.
        networks: Vec<NetworkList>,
    },
    /// From now on the source tells of traffic: of a sandbox whose creation follows, silence means that it sent nothing.
    TrafficWatched {
        /// Inode of the node's own network namespace.
        node_netns: u64,
    },
    /// A DNS query left, or an answer came in.
    DnsSeen(Box<DnsMessage>),
    /// DNS traffic that is not reported as messages, and why.
    DnsUnreported(Box<DnsUnreported>),
    /// A TCP connection's set-up went a step on.
    ConnectSeen(Box<ConnectStep>),
    /// A conntrack entry came or went.
    FlowSeen(Box<Flow>),
    /// Conntrack's counters grew, or its table's fill changed.
    ConntrackCounted(Box<ConntrackCounts>),
    /// The kernel dropped a packet that somebody waits for.
    PacketDropped(Box<PacketDrop>),
    /// An activity of HNS, HCS or the container library went a step on (Windows).
    ActivitySeen(Box<ActivityStep>),
    /// The runtime reported a step of its own (Windows, through ETW). The name in recordings is part of their format.
    #[serde(rename = "runtime_said")]
    RuntimeReported(Box<RuntimeReport>),
    /// A silo went a step on (Windows).
    SiloSeen(Box<SiloStep>),
    /// A network interface came or went (Windows).
    InterfaceSeen(InterfaceStep),
    /// A lookup went a step on, as the DNS client service tells it (Windows).
    LookupSeen(Box<LookupStep>),
    /// The wall clock at `at`. Sent at start and whenever the clock was stepped.
    ClockAnchored {
        /// Nanoseconds since 1970.
        unix_ns: u64,
    },
    /// The kernel side lost records of a probe at or shortly before `at`.
    Lost {
        /// Which probe, as in `sandglass_probe_info`.
        probe: String,
        /// How many records.
        count: u64,
    },
    /// Nothing else: time went on. Deadlines fire on ticks and on every other event.
    Tick,
}

/// A process was forked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// The new process.
    pub process: ProcessKey,
    /// Its parent.
    pub parent: ProcessKey,
}

/// An image was executed, or (with `running`) was found running when the agent started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// The process.
    pub process: ProcessKey,
    /// Its parent.
    pub parent: ProcessKey,
    /// The parent's `comm` (15 bytes at most); empty when not known. Tells which runtime asked.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub parent_comm: SmolStr,
    /// Path of the executed file as given to `execve`; for a script the script, not its interpreter.
    pub path: SmolStr,
    /// Arguments, `argv[0]` included; bounded, see `args_truncated`.
    pub args: TextList,
    /// Some arguments were longer than the bound and were cut.
    #[serde(default, skip_serializing_if = "is_false")]
    pub args_truncated: bool,
    /// `CNI_*`, `TRACEPARENT` and `TRACESTATE` of the environment, in its order; nothing else of it.
    #[serde(default, skip_serializing_if = "TextPairs::is_empty")]
    pub env: TextPairs,
    /// Path of the cgroup (v2), or empty when not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cgroup: String,
    /// Inode number of the network namespace the process runs in; 0 when not known.
    #[serde(default)]
    pub netns: u64,
    /// Found running at the start of the agent, read from `/proc`: `at` is the start of the process, to 10 ms, and
    /// what it did before is not known.
    #[serde(default, skip_serializing_if = "is_false")]
    pub running: bool,
}

impl Exec {
    /// Value of an environment variable that was kept.
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
    /// It is gone, nobody saw how (a lost record, or gone before the agent looked).
    Unknown,
}

impl ExitStatus {
    /// Code 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == ExitStatus::Code(0)
    }
}

/// What a plugin read or wrote, as far as it could be had.
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

/// What the CRI knows of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxDescription {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Its pod, with labels.
    pub identity: PodIdentity,
    /// When the runtime says it was created, nanoseconds since 1970; 0 when not said.
    #[serde(default)]
    pub created_unix_ns: u64,
    /// The runtime says it is ready.
    #[serde(default)]
    pub ready: bool,
    /// The agent asked for all sandboxes at its start and this one was already there.
    #[serde(default, skip_serializing_if = "is_false")]
    pub preexisting: bool,
}

/// A network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Netns {
    /// The sandbox whose plugin named it.
    pub sandbox: SandboxId,
    /// Path as in `CNI_NETNS`.
    pub path: String,
    /// Inode number.
    pub inode: u64,
    /// When the runtime began to create it, as far as that was seen; `None` when the system does not tell.
    pub created: Option<Timestamp>,
    /// When it was there, where its begin was seen apart from that; in steps of a timer tick.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub there: Option<Timestamp>,
}

fn is_false(value: &bool) -> bool {
    !*value
}
