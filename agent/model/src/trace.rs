//! Traces and spans: what the correlator makes of events.
//!
//! A trace is one attempt to create a sandbox (up to its first working lookup and connection), or one CNI operation
//! apart from that (DEL, CHECK, GC, STATUS, VERSION, and an ADD to a sandbox that exists), or the journey of a lookup
//! or connection that went badly. `spans[0]` is the root. Invariants, checked by [`Trace::check`]:
//! a span's parent stands before it, and an ended span lies within its ended parent.
//! What a span is called and which attributes it has in OTLP, JSON and text stands in [`crate::registry`].

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cni::{CniCommand, CniError, PodIdentity};
use crate::event::ExitStatus;
use crate::id::{RootId, SandboxId, SpanId, TraceId};
use crate::network::{Asker, ConnectFailure, Transport};
use crate::text_list::TextList;
use crate::time::{ClockAnchor, Timestamp};
use crate::windows::Service;

/// One trace, open or closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Its id; the runtime's own where it passed one on, and then not its alone: see [`Trace::root_id`].
    pub id: TraceId,
    /// The sandbox; `None` for GC, STATUS and VERSION.
    pub sandbox: Option<SandboxId>,
    /// The pod, as far as known.
    pub identity: PodIdentity,
    /// Maps the spans' times to the wall clock.
    pub anchor: ClockAnchor,
    /// Records were lost while it was open, or its beginning was not seen: durations and children may be missing.
    pub incomplete: bool,
    /// No more changes will come.
    pub closed: bool,
    /// The remote parent when the runtime or plugin passed `TRACEPARENT`: the root's parent span, in the trace `id`.
    pub remote_parent: Option<SpanId>,
    /// `spans[0]` is the root.
    pub spans: Vec<Span>,
}

/// One interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Its id.
    pub id: SpanId,
    /// Index of the parent in [`Trace::spans`]; `None` for the root.
    pub parent: Option<usize>,
    /// Begin.
    pub start: Timestamp,
    /// End; `None` while it runs.
    pub end: Option<Timestamp>,
    /// Success leaves it unset, as OpenTelemetry asks of instrumentation.
    pub status: Status,
    /// What it is.
    pub detail: Detail,
    /// Instants in it, in time order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<SpanEvent>,
    /// Other traces it belongs with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
}

/// Success or failure of a span.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Not failed.
    #[default]
    Unset,
    /// Failed.
    Error {
        /// Low-cardinality class: `error.type` and the metrics' `error` label. One of [`crate::registry::ERROR_TYPES`].
        class: String,
        /// Short description for people.
        message: String,
    },
}

impl Status {
    /// True for `Error`.
    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self, Status::Error { .. })
    }
}

/// What a span is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Detail {
    /// Root of a sandbox's creation: first evidence to network ready (or sandbox ready). In a box, as most that follow: a
    /// trace has few of them, and every span takes the room of the largest.
    Sandbox(Box<SandboxDetail>),
    /// The runtime's view: namespace creation to pause process running.
    SandboxCreate(CreateDetail),
    /// One CNI operation for one attachment.
    Operation(Box<OperationDetail>),
    /// One exec of a plugin binary.
    Plugin(Box<PluginDetail>),
    /// Anything else a plugin spawned.
    Command(Box<CommandDetail>),
    /// A step of the runtime: shim start, `runc create`, `runc start`.
    RuntimeStep(Box<RuntimeStepDetail>),
    /// Root of a trace of its own: a bad lookup or connection of a sandbox (or of the node), with what belongs to it.
    Journey(Box<JourneyDetail>),
    /// One DNS name asked, with all its answers and retries.
    Lookup(Box<LookupDetail>),
    /// The set-up of one TCP connection.
    Connect(Box<ConnectDetail>),
    /// One activity of HNS, HCS or a silo (Windows).
    Activity(Box<ActivityDetail>),
    /// From the end of ADD to the sandbox's interface being there (Windows, where ADD returns before it is).
    VnicWait(Box<VnicWaitDetail>),
}

/// Root of a sandbox's creation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxDetail {
    /// Which attempt for this pod: 1 for the first, 2 when an earlier sandbox of the same pod was tried before, and so on.
    pub attempt: u32,
    /// Who asked: `containerd`, `cri-o`, or the caller's `comm` as it is.
    pub runtime: String,
    /// When its network had proven usable: the first answered lookup, and the first connection if one was begun. `None`
    /// when nothing was sent within the deadline, or nobody watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_ready: Option<Timestamp>,
    /// When it first tried: its first query or SYN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_attempt: Option<Timestamp>,
    /// Its traffic was watched until the deadline, and it sent nothing. Not so of one that was removed before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
    /// Lookups and connections that it tried before its network was ready and that are not shown: there were too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts_left_out: u32,
}

/// The runtime's view of a sandbox's creation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateDetail {
    /// The begin is when the network namespace was created; otherwise it is the first plugin's exec.
    pub netns_seen: bool,
    /// The end is when the runtime had started the pause process; otherwise it is the end of the last operation.
    pub runtime_seen: bool,
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
    /// `CNI_NETNS`; empty when not given.
    pub netns: String,
    /// Which attempt of this verb for this attachment, from 1: a DEL that is repeated counts up.
    pub attempt: u32,
    /// Plugins of the chain that ran, in order, joined by `,`: a bounded description for people and labels.
    pub plugins: Vec<Arc<str>>,
    /// Addresses given, when the result could be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

/// One process of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessDetail {
    /// Process id in the initial pid namespace.
    pub pid: u32,
    /// The parent's.
    pub parent_pid: u32,
    /// Path as given to `execve`. Shared, as is the cgroup: a node runs the same few programs all day.
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
    /// Whose it is was inferred, and more than one sandbox fitted (Windows): it was given to the likeliest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ambiguous: bool,
}

/// One exec of a plugin binary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginDetail {
    /// Plugin type: the file name of the executable. Shared: a node has a handful of them and runs them all day.
    pub plugin: Arc<str>,
    /// The verb it was given.
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
    /// Which.
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

/// Root of the trace of a bad lookup or connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JourneyDetail {
    /// Why it has a trace of its own.
    pub reason: JourneyReason,
    /// What was asked or connected to first: a name, or an address.
    pub target: String,
    /// It is the node's own, not a sandbox's.
    #[serde(default)]
    pub node: bool,
}

/// Why a lookup or connection has a trace of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JourneyReason {
    /// It failed.
    Failed,
    /// A packet of it was dropped.
    Dropped,
    /// It had to be tried again.
    Retried,
    /// It took longer than the configured threshold.
    Slow,
}

impl JourneyReason {
    /// All reasons, the gravest first.
    pub const ALL: [JourneyReason; 4] = [
        JourneyReason::Failed,
        JourneyReason::Dropped,
        JourneyReason::Retried,
        JourneyReason::Slow,
    ];

    /// Name in metrics and attributes.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            JourneyReason::Failed => "failed",
            JourneyReason::Dropped => "dropped",
            JourneyReason::Retried => "retried",
            JourneyReason::Slow => "slow",
        }
    }
}

/// How a lookup ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LookupResult {
    /// With an answer of this response code.
    Rcode(u16),
    /// Without an answer.
    Unanswered,
}

impl LookupResult {
    /// Every name that [`as_str`](LookupResult::as_str) gives.
    pub const NAMES: [&'static str; 8] = [
        "noerror", "nxdomain", "servfail", "refused", "formerr", "notimp", "other", "timeout",
    ];

    /// Name in metrics and attributes: a closed set.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            LookupResult::Rcode(0) => "noerror",
            LookupResult::Rcode(1) => "formerr",
            LookupResult::Rcode(2) => "servfail",
            LookupResult::Rcode(3) => "nxdomain",
            LookupResult::Rcode(4) => "notimp",
            LookupResult::Rcode(5) => "refused",
            LookupResult::Rcode(_) => "other",
            LookupResult::Unanswered => "timeout",
        }
    }

    /// The network and the server did their part: there is such a name, or there is none.
    #[must_use]
    pub fn is_answer(self) -> bool {
        matches!(self, LookupResult::Rcode(0 | 3))
    }
}

/// One DNS name asked, with all its answers and retries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookupDetail {
    /// The name as the program meant it, as far as it can be told: without what the search path added.
    pub name: String,
    /// Record types asked, in the order of asking: `A`, `AAAA`, `TYPE65`, ...
    pub types: Vec<String>,
    /// Servers asked, in the order of asking, as the client sees them.
    pub servers: Vec<SocketAddr>,
    /// How the last answer travelled.
    pub transport: Transport,
    /// How it ended; `None` while it runs.
    pub result: Option<LookupResult>,
    /// Messages sent, all in all.
    pub queries: u32,
    /// Of these: the same question sent again.
    pub retransmissions: u32,
    /// Questions that never got an answer.
    pub unanswered: u32,
    /// Names tried before or besides the one that decided (the search path, ndots).
    pub search_names: u32,
    /// An answer was cut and asked for again over TCP.
    #[serde(default)]
    pub truncated: bool,
    /// Addresses found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The server behind the service address, where conntrack translated it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<SocketAddr>,
    /// Who asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asker: Option<Asker>,
    /// Why it went badly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
}

/// The set-up of one TCP connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectDetail {
    /// The connecting end.
    pub local: SocketAddr,
    /// The other end as the client sees it.
    pub remote: SocketAddr,
    /// The end behind a service address, where conntrack translated it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<SocketAddr>,
    /// The name whose lookup gave the address, where one did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// SYNs sent again.
    pub retransmits: u32,
    /// Why it came to nothing; `None` while it runs, and when it was established.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<ConnectFailure>,
    /// Who connects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asker: Option<Asker>,
    /// Why it went badly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
}

/// One activity of HNS, HCS or a silo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityDetail {
    /// Whose.
    pub service: Service,
    /// As the provider names it; shared, there are some dozens of names.
    pub name: Arc<str>,
    /// HRESULT or NTSTATUS of its end; `None` while it runs or when it ended without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<u32>,
    /// The namespace, endpoint, port and so on that it named, as `kind=id`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<String>,
    /// More than one sandbox fitted: it was given to the likeliest.
    #[serde(default)]
    pub ambiguous: bool,
}

/// From the end of ADD to the sandbox's interface being there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VnicWaitDetail {
    /// The endpoint, where known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// What showed that it is there: `endpoint attached`, `interface added`, ...
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub evidence: String,
}

/// Why something went badly, with what speaks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Which: one of [`crate::registry::CAUSES`].
    pub cause: String,
    /// How sure.
    pub confidence: Confidence,
    /// What speaks for it, one sentence each.
    pub evidence: Vec<String>,
}

/// How sure a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Some of the evidence, and nothing against it.
    Possible,
    /// Most of the evidence.
    Likely,
    /// All of it: the kernel said so.
    Certain,
}

impl Confidence {
    /// Name in attributes.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Confidence::Possible => "possible",
            Confidence::Likely => "likely",
            Confidence::Certain => "certain",
        }
    }
}

/// An instant in a span.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanEvent {
    /// When.
    pub at: Timestamp,
    /// Name from the registry.
    pub name: String,
    /// Attributes: key from the registry, value.
    pub attributes: Vec<(String, String)>,
}

/// Another trace this one belongs with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its trace id.
    pub trace: TraceId,
    /// Its root's span id.
    pub span: SpanId,
    /// Why.
    pub relation: Relation,
}

/// Why two traces are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// The previous attempt of the same pod or operation.
    PreviousAttempt,
    /// The creation of the sandbox this operation or journey is for.
    Sandbox,
    /// The span that asked for this, in the runtime's own trace.
    Caller,
    /// The same work as a span that the runtime made itself (Windows: the shim's own tracing).
    Runtime,
}

impl Link {
    /// The root of the trace that is linked to; of a [`Relation::Caller`], the span that asked.
    #[must_use]
    pub fn to(&self) -> RootId {
        RootId {
            trace: self.trace,
            span: self.span,
        }
    }
}

impl RootId {
    /// A link to this trace.
    #[must_use]
    pub fn link(self, relation: Relation) -> Link {
        Link {
            trace: self.trace,
            span: self.span,
            relation,
        }
    }
}

impl Trace {
    /// The root span. A trace always has one.
    #[must_use]
    pub fn root(&self) -> &Span {
        &self.spans[0]
    }

    /// What tells it from every other trace.
    #[must_use]
    pub fn root_id(&self) -> RootId {
        RootId {
            trace: self.id,
            span: self.root().id,
        }
    }

    /// Begin of the root.
    #[must_use]
    pub fn start(&self) -> Timestamp {
        self.root().start
    }

    /// The failed span that explains a failed trace: from the root (of an open trace: from an operation that failed)
    /// down through what failed last, as far as the failure was passed on. A command that failed below a plugin that
    /// said itself what was wrong, or that was not the last thing its plugin did, explains nothing: `iptables -C` fails by
    /// design.
    #[must_use]
    pub fn culprit(&self) -> Option<&Span> {
        let failed = |index: usize| self.spans[index].status.is_error();
        let is_asked = |index: usize| matches!(self.spans[index].detail, Detail::Operation(_));
        let mut culprit = (0..self.spans.len().min(1)).find(|&root| failed(root)).or_else(|| {
            let mut asked = (0..self.spans.len()).filter(|&index| !self.closed && failed(index) && is_asked(index));
            asked.rfind(|&index| self.spans[index].parent.is_none_or(|parent| parent <= 1))
        })?;
        loop {
            let says = matches!(&self.spans[culprit].detail, Detail::Plugin(plugin) if plugin.error.is_some());
            let below = (culprit + 1..self.spans.len())
                .filter(|&index| self.spans[index].parent == Some(culprit) && failed(index))
                .filter(|&index| {
                    !matches!(self.spans[index].detail, Detail::Command(_)) || (!says && self.is_last_child(index))
                })
                .max_by_key(|&index| self.spans[index].end);
            match below {
                Some(below) => culprit = below,
                None => return self.spans.get(culprit),
            }
        }
    }

    /// No sibling of this span ended later.
    fn is_last_child(&self, index: usize) -> bool {
        let siblings = self.spans.iter().filter(|span| span.parent == self.spans[index].parent);
        siblings.map(|span| span.end).max() == Some(self.spans[index].end)
    }

    /// Indices of the spans with their depths, each below its parent, siblings in order of begin.
    #[must_use]
    pub fn in_tree_order(&self) -> Vec<(usize, usize)> {
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); self.spans.len()];
        let mut stack = Vec::new();
        for (index, span) in self.spans.iter().enumerate() {
            match span.parent {
                Some(parent) if parent < index => children[parent].push(index),
                Some(_) | None => stack.push((index, 0)),
            }
        }
        stack.reverse();
        let mut order = Vec::with_capacity(self.spans.len());
        while let Some((index, depth)) = stack.pop() {
            order.push((index, depth));
            let below = &mut children[index];
            below.sort_by_key(|&child| self.spans[child].start);
            stack.extend(below.drain(..).rev().map(|child| (child, depth + 1)));
        }
        order
    }

    /// Checks the invariants that every closed trace keeps; the error says which one is broken.
    pub fn check(&self) -> Result<(), String> {
        if self.spans.is_empty() {
            return Err("no root".to_owned());
        }
        for (index, span) in self.spans.iter().enumerate() {
            let Some(end) = span.end else {
                if self.closed {
                    return Err(format!("span {index} of a closed trace is open"));
                }
                continue;
            };
            if end < span.start {
                return Err(format!("span {index} ends before it begins"));
            }
            match span.parent {
                None if index == 0 => {}
                None => return Err(format!("span {index} has no parent")),
                Some(parent) if parent >= index => {
                    return Err(format!("span {index} stands before its parent {parent}"));
                }
                Some(parent) => {
                    let parent_span = &self.spans[parent];
                    if span.start < parent_span.start || parent_span.end.is_some_and(|parent_end| end > parent_end) {
                        return Err(format!("span {index} does not lie within its parent {parent}"));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Span {
    /// Nanoseconds from begin to end; to `now` while it runs.
    #[must_use]
    pub fn duration_ns(&self, now: Timestamp) -> u64 {
        self.end.unwrap_or(now).since(self.start)
    }

    /// The process behind it, if it is one.
    #[must_use]
    pub fn process(&self) -> Option<&ProcessDetail> {
        match &self.detail {
            Detail::Plugin(plugin) => Some(&plugin.process),
            Detail::Command(command) => Some(&command.process),
            Detail::RuntimeStep(step) => Some(&step.process),
            Detail::Sandbox(_)
            | Detail::SandboxCreate(_)
            | Detail::Operation(_)
            | Detail::Journey(_)
            | Detail::Lookup(_)
            | Detail::Connect(_)
            | Detail::Activity(_)
            | Detail::VnicWait(_) => None,
        }
    }

    /// The process behind it, if it is one, to change.
    #[must_use]
    pub fn process_mut(&mut self) -> Option<&mut ProcessDetail> {
        match &mut self.detail {
            Detail::Plugin(plugin) => Some(&mut plugin.process),
            Detail::Command(command) => Some(&mut command.process),
            Detail::RuntimeStep(step) => Some(&mut step.process),
            Detail::Sandbox(_)
            | Detail::SandboxCreate(_)
            | Detail::Operation(_)
            | Detail::Journey(_)
            | Detail::Lookup(_)
            | Detail::Connect(_)
            | Detail::Activity(_)
            | Detail::VnicWait(_) => None,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}
