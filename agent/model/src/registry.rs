//! The registry: every span name, span kind, attribute, span event and error class that sandglass emits, in one place.
//!
//! Sinks render through [`name`], [`kind`] and [`attributes`] and make up nothing of their own; a test of each sink
//! holds what it emits against the tables here. Names are low-cardinality: ids, pods and addresses are attributes.
//! Sources: OpenTelemetry semantic conventions 1.44 (`k8s.*`, `process.*`, `error.type`, CLI spans); `cni.*` and
//! `sandglass.*` are ours, since no convention for CNI exists. containerd's spans carry `sandbox.id`, and so do ours.

mod classes;
mod values;
mod waiting;

use std::net::SocketAddr;

use crate::event::ExitStatus;
use crate::network::Initiator;
use crate::trace::{
    Cause, CgroupOwner, Confidence, DaemonDetail, Detail, ProcessDetail, Span, Status, ThreadsAttribution, Trace,
};
use crate::waits::{TimeReason, TimeSpent};

pub use self::classes::{CAUSES, CREATION_CAUSES, ERROR_TYPES, cause_text, creation_cause};
pub use self::values::{daemon_name, part_name, relation, step_name};
pub use self::waiting::{DETECTION, wait_by, wait_clause, wait_text, waiting_of, waiting_text};

/// Kind of a span, as OpenTelemetry means it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Work inside the node.
    Internal,
    /// The calling side of a request to another program: an exec of a plugin or command.
    Client,
}

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    /// Text.
    Text(String),
    /// Integer.
    Int(i64),
    /// True or false.
    Bool(bool),
    /// List of texts.
    List(Vec<String>),
}

/// A known attribute key.
#[derive(Clone, Copy, Debug)]
pub struct AttributeDef {
    /// Key.
    pub key: &'static str,
    /// What its value says.
    pub brief: &'static str,
}

macro_rules! attribute_keys {
    ($($constant:ident = $key:literal : $brief:literal),+ $(,)?) => {
        $(#[doc = $brief] pub const $constant: &str = $key;)+
        /// Every attribute key of resources, spans, span events and links.
        pub const ATTRIBUTES: &[AttributeDef] = &[$(AttributeDef { key: $key, brief: $brief }),+];
    };
}

attribute_keys! {
    SERVICE_NAME = "service.name": "Always `sandglass` unless configured (resource).",
    SERVICE_VERSION = "service.version": "Version of the agent (resource).",
    NODE_NAME = "k8s.node.name": "Node the agent runs on (resource).",
    POD_NAMESPACE = "k8s.namespace.name": "Namespace of the pod (resource).",
    POD_NAME = "k8s.pod.name": "Name of the pod (resource).",
    POD_UID = "k8s.pod.uid": "Uid of the pod (resource).",
    SANDBOX_ID = "sandbox.id": "The runtime's sandbox id, as containerd's own spans carry it; joins both.",
    CONTAINER_ID = "cni.container_id": "CNI_CONTAINERID as the plugin got it.",
    CNI_COMMAND = "cni.command": "ADD, DEL, CHECK, GC, STATUS or VERSION.",
    CNI_IFNAME = "cni.ifname": "Interface requested.",
    CNI_NETWORK = "cni.network.name": "Name of the network.",
    CNI_NETNS = "cni.netns": "Network namespace path given to the plugin.",
    CNI_PLUGIN = "cni.plugin.type": "Plugin type: file name of its executable.",
    CNI_PLUGINS = "cni.plugins": "Plugins of the chain that ran, in order.",
    CNI_SPEC_VERSION = "cni.spec_version": "cniVersion of the plugin's configuration.",
    CNI_ERROR_CODE = "cni.error.code": "Error code of the plugin's error result.",
    CNI_ERROR_MESSAGE = "cni.error.message": "Message of the plugin's error result.",
    CNI_ERROR_DETAILS = "cni.error.details": "Details of the plugin's error result.",
    CNI_DELEGATE = "cni.delegate": "The plugin was called by another plugin (IPAM included).",
    CNI_ATTEMPT = "cni.attempt": "Which attempt of this verb for this attachment, from 1.",
    CNI_ADDRESSES = "cni.result.ips": "IP addresses of the plugin's success result.",
    ATTEMPT = "sandglass.attempt": "Which attempt to make a sandbox for this pod, from 1.",
    RUNTIME = "sandglass.runtime": "Runtime that requested it: containerd, cri-o, or the caller's comm.",
    INCOMPLETE = "sandglass.incomplete": "Records were lost, or the beginning was not seen: time and children may be missing.",
    NETNS_SEEN = "sandglass.netns_seen": "The begin is that of the network namespace, not the first plugin; earlier with sandglass.request_seen.",
    RUNTIME_SEEN = "sandglass.runtime_seen": "The end is the start of the pause process, not the end of the last operation; later with sandglass.response_seen.",
    REQUEST_SEEN = "sandglass.request_seen": "The begin is when the runtime received the request to make the sandbox; only then set.",
    RESPONSE_SEEN = "sandglass.response_seen": "The end is when the runtime responded to that request; only then set.",
    FOUND_RUNNING = "sandglass.found_running": "The process ran already when the agent started; its begin is exact to 10 ms.",
    OUTLIVED_PARENT = "sandglass.outlived_parent": "The process ran on after its parent; the span ends with the parent.",
    RELATION = "sandglass.link.relation": "Why the trace is linked: previous_attempt, sandbox, caller or runtime.",
    ERROR_TYPE = "error.type": "Class of the failure; only on failed spans.",
    PROCESS_PID = "process.pid": "Process id on the node.",
    PROCESS_PARENT_PID = "process.parent_pid": "Process id of the parent.",
    PROCESS_NAME = "process.executable.name": "File name of the executable.",
    PROCESS_PATH = "process.executable.path": "Path of the executable as given to execve.",
    PROCESS_ARGS = "process.command_args": "Arguments, argv[0] included.",
    PROCESS_EXIT_CODE = "process.exit.code": "Exit code.",
    PROCESS_SIGNAL = "sandglass.process.signal": "Number of the signal that killed it.",
    PROCESS_CGROUP = "process.linux.cgroup": "cgroup path.",
    PROCESS_NETNS = "sandglass.process.netns": "Inode of the network namespace it ran in.",
    NETLINK_MESSAGE = "sandglass.netlink.message": "The kernel's newest message about one of its netlink requests, mostly why it refused it.",
    NETWORK_READY = "sandglass.network_ready": "The sandbox's network had proven usable when the root ended.",
    ATTEMPTS_LEFT_OUT = "sandglass.network_attempts_left_out": "Lookups and connections tried before that which are not shown: there were too many.",
    NODE_SCOPE = "sandglass.node": "The lookup or connection is the node's own, not a sandbox's.",
    JOURNEY_REASON = "sandglass.journey.reason": "Why it has a trace of its own: failed, dropped, retried or slow.",
    JOURNEY_TARGET = "sandglass.journey.target": "Name or address of the first lookup or connect.",
    CAUSE = "sandglass.cause": "Why it went badly; one of a closed set.",
    CAUSE_CONFIDENCE = "sandglass.cause.confidence": "How sure the cause is: possible, likely or certain.",
    CAUSE_EVIDENCE = "sandglass.cause.evidence": "What speaks for the cause, one sentence each.",
    DNS_NAME = "dns.question.name": "Name resolved, without what the search path added.",
    DNS_TYPES = "sandglass.dns.types": "Record types queried.",
    DNS_SERVERS = "sandglass.dns.servers": "Servers queried, as the client sees them.",
    DNS_RCODE = "sandglass.dns.rcode": "Response code of the deciding answer in lower case, timeout, unknown (bytes of its connection were not seen) or open (the input ended before).",
    DNS_ANSWERS = "dns.answers": "Addresses found.",
    DNS_QUERIES = "sandglass.dns.queries": "Messages sent.",
    DNS_RETRANSMISSIONS = "sandglass.dns.retransmissions": "Messages that repeated a question.",
    DNS_UNANSWERED = "sandglass.dns.unanswered": "Questions that never got an answer.",
    DNS_SEARCH_NAMES = "sandglass.dns.search_names": "Names tried because of the search path.",
    DNS_TRUNCATED = "sandglass.dns.truncated": "An answer was truncated and the query repeated over TCP.",
    DNS_ID = "sandglass.dns.id": "Message id (span event).",
    DNS_TYPE = "sandglass.dns.type": "Record type (span event).",
    NETWORK_TRANSPORT = "network.transport": "udp or tcp; of a request to a daemon unix or tcp.",
    LOCAL_ADDRESS = "network.local.address": "Address of the client's end.",
    LOCAL_PORT = "network.local.port": "Port of the client's end.",
    PEER_ADDRESS = "network.peer.address": "Address of the other end as the client sees it.",
    PEER_PORT = "network.peer.port": "Port of the other end.",
    BACKEND = "sandglass.nat.backend": "Address and port behind a service address, as conntrack translated it.",
    NAT = "sandglass.nat": "What was translated: dnat, snat or both (span event).",
    FLOW_ID = "sandglass.conntrack.id": "The kernel's id of the conntrack entry (span event).",
    CONNECT_RESULT = "sandglass.connect.result": "established, refused, timeout, unreachable, reset, abandoned or other.",
    CONNECT_RETRANSMITS = "sandglass.connect.retransmissions": "SYNs sent again.",
    DROP_REASON = "sandglass.drop.reason": "The kernel's reason for dropping a packet (span event).",
    DROP_FUNCTION = "sandglass.drop.function": "Kernel function that dropped a packet (span event).",
    COMM = "sandglass.process.comm": "Name of the asking thread, as the kernel has it.",
    ACTIVITY_SERVICE = "sandglass.windows.service": "hns, hcs or silo.",
    ACTIVITY_NAME = "sandglass.windows.activity": "Name of the activity as its provider gives it.",
    ACTIVITY_RESULT = "sandglass.windows.result": "HRESULT or NTSTATUS of its end, as 0x and eight digits.",
    ACTIVITY_OBJECTS = "sandglass.windows.objects": "Objects it named, as kind=id.",
    AMBIGUOUS = "sandglass.ambiguous": "More than one sandbox fitted, or more than one request to a daemon: assigned to the likeliest.",
    VNIC_ENDPOINT = "sandglass.windows.endpoint": "HNS endpoint of the interface that was waited for.",
    VNIC_EVIDENCE = "sandglass.windows.evidence": "What showed that the interface is there.",
    TIME_PROCESSOR = "sandglass.time.processor": "Nanoseconds of the critical path on a processor, or in waits too short for a record (0.2 ms).",
    TIME_RUN_QUEUE = "sandglass.time.run_queue": "Nanoseconds of the critical path runnable without a processor.",
    TIME_THROTTLED = "sandglass.time.throttled": "Nanoseconds of the critical path runnable while its cgroup had used up its quota.",
    TIME_CHILD = "sandglass.time.child": "Nanoseconds of the critical path waiting for a process of its own.",
    TIME_THREAD = "sandglass.time.thread": "Nanoseconds of the critical path waiting for another of its threads.",
    TIME_PIPE = "sandglass.time.pipe": "Nanoseconds of the critical path waiting for a pipe.",
    TIME_FILE_LOCK = "sandglass.time.file_lock": "Nanoseconds of the critical path waiting for a lock on a file.",
    TIME_KERNEL_LOCK = "sandglass.time.kernel_lock": "Nanoseconds of the critical path waiting for a lock of the kernel.",
    TIME_KERNEL_WORK = "sandglass.time.kernel_work": "Nanoseconds of the critical path waiting for the kernel's own work (RCU, clean-up, detection of duplicate addresses).",
    TIME_DISK = "sandglass.time.disk": "Nanoseconds of the critical path waiting for a disk.",
    TIME_MEMORY = "sandglass.time.memory": "Nanoseconds of the critical path waiting for free memory.",
    TIME_DAEMON = "sandglass.time.daemon": "Nanoseconds of the critical path waiting for another process behind a local socket.",
    TIME_NETWORK = "sandglass.time.network": "Nanoseconds of the critical path waiting for the network.",
    TIME_TIMER = "sandglass.time.timer": "Nanoseconds of the critical path waiting for a timer of its own.",
    TIME_OTHER = "sandglass.time.other": "Nanoseconds of the critical path waiting in a kernel function that the table does not explain.",
    TIME_RUNTIME = "sandglass.time.runtime": "Nanoseconds of the critical path in which the runtime, between what it executes, slept.",
    TIME_UNKNOWN = "sandglass.time.unknown": "Nanoseconds of the critical path not recorded.",
    TIME_RECORDED_AFTER = "sandglass.time.recorded_after": "Nanoseconds after the begin from which on waits were recorded; of the time before, only sums are known. Absent where they were recorded from the begin, or nothing is known of it.",
    TIME_WAITS = "sandglass.time.waits": "The longest waits of the critical path, the longest first.",
    WAITING = "sandglass.waiting": "What a process that runs waits for now, or what one that was cut off or killed waited for.",
    WAITING_REASON = "sandglass.waiting.reason": "The reason of that, as in sandglass.time.*.",
    WAITING_SINCE = "sandglass.waiting.since": "Since when, nanoseconds since 1970, as text: readers of JSON round such a number.",
    DAEMON_POD_UID = "sandglass.daemon.pod_uid": "Uid of the pod that the daemon runs in, by its cgroup.",
    DAEMON_CONTAINER = "sandglass.daemon.container_id": "Id of the container that the daemon runs in, by its cgroup.",
    DAEMON_UNIT = "sandglass.daemon.unit": "systemd unit that the daemon runs in, by its cgroup.",
    DAEMON_BEGIN = "sandglass.daemon.begin": "How the request's begin is known: sent (seen), recovered (since then its client slept) or followed (when messages were followed from).",
    DAEMON_UNANSWERED = "sandglass.daemon.unanswered": "The client ended without an answer of the daemon.",
    ATTRIBUTION = "sandglass.daemon.attribution": "Why what a daemon ran is attributed to this request: container_id, namespace, in_namespace, interface, only_request, goroutine, wake_ups, thread or newest.",
    ATTRIBUTION_CONFIDENCE = "sandglass.daemon.attribution.confidence": "How sure that is: possible, likely or certain.",
    DAEMON_THREADS = "sandglass.daemon.threads": "Why what the daemon's own threads waited for is part of this request's time: only_request, wake_ups, goroutines or ambiguous.",
    DAEMON_THREADS_CONFIDENCE = "sandglass.daemon.threads.confidence": "How sure that is: possible or likely.",
    WAIT_WHAT = "sandglass.wait.what": "What it waited for: the file, the lock, the kernel's work or function.",
    WAIT_BY = "sandglass.wait.by": "The process that held the lock, or the one whose wake-up ended the wait.",
    WAIT_CONFIDENCE = "sandglass.wait.confidence": "How sure the reason of the wait is, where it is inferred, or that a daemon's thread waited for this request: possible or likely.",
    LOST_PROBE = "sandglass.probe": "Probe whose records were lost or limited (span event).",
    LOST_COUNT = "sandglass.records_lost": "How many records were lost (span event).",
}

/// Every span name. `<...>` stands for a plugin, a command or a verb: closed or small sets.
pub const SPAN_NAMES: &[&str] = &[
    "sandbox",
    "sandbox.create",
    "cni <verb>",
    "plugin <type>",
    "command <name>",
    "runtime shim",
    "runtime create",
    "runtime start",
    "runtime prepare",
    "runtime finish",
    "journey",
    "lookup",
    "connect",
    "hns <activity>",
    "hcs <operation>",
    "silo <step>",
    "wait for vnic",
    "wait <reason>",
    "daemon <process>",
];

/// A second image was executed by the same process: the span goes on.
pub const EVENT_EXEC: &str = "exec";
/// Records of a probe were lost while the span was open.
pub const EVENT_LOST: &str = "records lost";
/// Records of a probe about this sandbox were left out, because there were too many of them.
pub const EVENT_LIMITED: &str = "records limited";
/// A question was sent.
pub const EVENT_QUERY: &str = "query";
/// The same question was sent again.
pub const EVENT_RETRANSMISSION: &str = "retransmission";
/// An answer came.
pub const EVENT_ANSWER: &str = "answer";
/// An answer came after its lookup had ended or had another answer.
pub const EVENT_LATE_ANSWER: &str = "late answer";
/// An answer came that no query fits: with another id, or from another address.
pub const EVENT_STRAY_ANSWER: &str = "stray answer";
/// Conntrack made an entry for it, translated or not.
pub const EVENT_FLOW: &str = "conntrack entry";
/// The kernel dropped a packet of it.
pub const EVENT_DROP: &str = "packet dropped";
/// The network had proven usable.
pub const EVENT_NETWORK_READY: &str = "network ready";
/// The runtime's network namespace was there; from the span's begin until then the kernel made it.
pub const EVENT_NETNS: &str = "network namespace made";
/// Every span event name.
pub const SPAN_EVENTS: &[&str] = &[
    EVENT_EXEC,
    EVENT_LOST,
    EVENT_LIMITED,
    EVENT_QUERY,
    EVENT_RETRANSMISSION,
    EVENT_ANSWER,
    EVENT_LATE_ANSWER,
    EVENT_STRAY_ANSWER,
    EVENT_FLOW,
    EVENT_DROP,
    EVENT_NETWORK_READY,
    EVENT_NETNS,
];

/// What the span is called.
#[must_use]
pub fn name(span: &Span) -> String {
    match &span.detail {
        Detail::Sandbox(_) => "sandbox".to_owned(),
        Detail::SandboxCreate(_) => "sandbox.create".to_owned(),
        Detail::Operation(operation) => format!("cni {}", operation.command),
        Detail::Plugin(plugin) => format!("plugin {}", plugin.plugin),
        Detail::Command(command) => format!("command {}", command.name),
        Detail::RuntimeStep(step) => format!("runtime {}", step_name(step.step)),
        Detail::RuntimeWork(work) => format!("runtime {}", part_name(work.part)),
        Detail::Journey(_) => "journey".to_owned(),
        Detail::Lookup(_) => "lookup".to_owned(),
        Detail::Connect(_) => "connect".to_owned(),
        Detail::Activity(activity) => format!("{} {}", activity.service.as_str(), activity.name),
        Detail::VnicWait(_) => "wait for vnic".to_owned(),
        Detail::Wait(wait) => format!("wait {}", wait.reason.as_str()),
        Detail::Daemon(daemon) => format!("daemon {}", daemon_name(daemon)),
    }
}

/// Its kind.
#[must_use]
pub fn kind(span: &Span) -> Kind {
    // Client is a span that waits for another process or server; a frame only encloses others.
    let is_wait = span.detail.as_vnic_wait().is_some() || span.detail.as_wait().is_some();
    if span.detail.is_frame() || is_wait || span.detail.as_runtime_work().is_some() {
        Kind::Internal
    } else {
        Kind::Client
    }
}

/// Its attributes, in a fixed order. Those of the pod are the resource's: see [`resource`].
#[must_use]
pub fn attributes(trace: &Trace, span: &Span) -> Vec<(&'static str, AttributeValue)> {
    let mut list = Attributes(Vec::with_capacity(16));
    if let Some(sandbox) = &trace.sandbox {
        list.text(SANDBOX_ID, &sandbox.0);
    }
    match &span.detail {
        Detail::Sandbox(sandbox) => {
            list.int(ATTEMPT, i64::from(sandbox.attempt));
            list.text(RUNTIME, &sandbox.runtime);
            let tried = sandbox.silent || sandbox.first_attempt.is_some();
            if sandbox.network_ready.is_some() || (tried && trace.closed) {
                list.bool(NETWORK_READY, sandbox.network_ready.is_some());
            }
            if sandbox.attempts_left_out > 0 {
                list.int(ATTEMPTS_LEFT_OUT, i64::from(sandbox.attempts_left_out));
            }
        }
        Detail::SandboxCreate(create) => {
            list.bool(NETNS_SEEN, create.netns_seen);
            list.bool(RUNTIME_SEEN, create.runtime_seen);
            if create.request_seen {
                list.bool(REQUEST_SEEN, true);
            }
            if create.response_seen {
                list.bool(RESPONSE_SEEN, true);
            }
            list.cause(create.cause.as_deref());
            list.time(create.time.as_deref());
        }
        Detail::Operation(operation) => {
            list.text(CNI_COMMAND, operation.command.as_str());
            if let Some(sandbox) = &trace.sandbox {
                list.text(CONTAINER_ID, &sandbox.0);
            }
            list.text(CNI_IFNAME, &operation.ifname);
            list.text(CNI_NETWORK, &operation.network);
            list.text(CNI_NETNS, &operation.netns);
            list.int(CNI_ATTEMPT, i64::from(operation.attempt));
            list.list(CNI_PLUGINS, operation.plugins.iter().map(AsRef::as_ref));
            list.list(CNI_ADDRESSES, &operation.addresses);
            list.time(operation.time.as_deref());
        }
        Detail::Plugin(plugin) => {
            list.text(CNI_COMMAND, plugin.command.as_str());
            list.text(CNI_PLUGIN, &plugin.plugin);
            list.bool(CNI_DELEGATE, plugin.delegate);
            list.text(CNI_SPEC_VERSION, &plugin.spec_version);
            if let Some(error) = &plugin.error {
                list.int(CNI_ERROR_CODE, i64::from(error.code));
                list.text(CNI_ERROR_MESSAGE, &error.msg);
                list.text(CNI_ERROR_DETAILS, &error.details);
            }
            list.process(&plugin.process);
        }
        Detail::Command(command) => {
            list.text(CNI_PLUGIN, &command.plugin);
            list.process(&command.process);
        }
        Detail::RuntimeStep(step) => list.process(&step.process),
        Detail::RuntimeWork(work) => list.time(work.time.as_deref()),
        Detail::Journey(journey) => {
            list.text(JOURNEY_REASON, journey.reason.as_str());
            list.text(JOURNEY_TARGET, &journey.target);
            if journey.node {
                list.bool(NODE_SCOPE, true);
            }
        }
        Detail::Lookup(lookup) => {
            list.text(DNS_NAME, &lookup.name);
            list.list(DNS_TYPES, &lookup.types);
            list.list(DNS_SERVERS, lookup.servers.iter().map(ToString::to_string));
            list.text(DNS_RCODE, lookup.result.map_or("", |result| result.as_str()));
            list.list(DNS_ANSWERS, lookup.addresses.iter().map(ToString::to_string));
            list.int(DNS_QUERIES, i64::from(lookup.queries));
            list.int(DNS_RETRANSMISSIONS, i64::from(lookup.retransmissions));
            list.int(DNS_UNANSWERED, i64::from(lookup.unanswered));
            list.int(DNS_SEARCH_NAMES, i64::from(lookup.search_names));
            if lookup.truncated {
                list.bool(DNS_TRUNCATED, true);
            }
            list.text(NETWORK_TRANSPORT, lookup.transport.as_str());
            list.peer(&lookup.backend, &lookup.initiator, &lookup.cause);
        }
        Detail::Connect(connect) => {
            list.text(NETWORK_TRANSPORT, "tcp");
            list.text(LOCAL_ADDRESS, &connect.local.ip().to_string());
            list.int(LOCAL_PORT, i64::from(connect.local.port()));
            list.text(PEER_ADDRESS, &connect.remote.ip().to_string());
            list.int(PEER_PORT, i64::from(connect.remote.port()));
            list.text(DNS_NAME, &connect.name);
            list.int(CONNECT_RETRANSMITS, i64::from(connect.retransmits));
            if span.end.is_some() {
                list.text(
                    CONNECT_RESULT,
                    connect.failure.map_or("established", |failure| failure.as_str()),
                );
            }
            list.peer(&connect.backend, &connect.initiator, &connect.cause);
        }
        Detail::Activity(activity) => {
            list.text(ACTIVITY_SERVICE, activity.service.as_str());
            list.text(ACTIVITY_NAME, &activity.name);
            if let Some(result) = activity.result {
                list.text(ACTIVITY_RESULT, &format!("{result:#010x}"));
            }
            list.list(ACTIVITY_OBJECTS, &activity.objects);
            if activity.ambiguous {
                list.bool(AMBIGUOUS, true);
            }
        }
        Detail::VnicWait(wait) => {
            list.text(VNIC_ENDPOINT, &wait.endpoint);
            list.text(VNIC_EVIDENCE, &wait.evidence);
        }
        Detail::Wait(wait) => {
            list.text(WAIT_WHAT, &wait.what);
            list.text(WAIT_BY, &wait.by);
            list.text(WAIT_CONFIDENCE, wait.confidence.map_or("", Confidence::as_str));
        }
        Detail::Daemon(daemon) => list.daemon(daemon),
    }
    list.waiting(trace, span);
    if let Status::Error { class, .. } = &span.status {
        list.text(ERROR_TYPE, class);
    }
    if trace.incomplete {
        list.bool(INCOMPLETE, true);
    }
    list.0
}

/// Attributes of the resource that the trace's spans belong to: the agent and the pod.
#[must_use]
pub fn resource(trace: &Trace, node: &str, service: &str, version: &str) -> Vec<(&'static str, AttributeValue)> {
    let mut list = Attributes(Vec::with_capacity(6));
    list.text(SERVICE_NAME, service);
    list.text(SERVICE_VERSION, version);
    list.text(NODE_NAME, node);
    list.text(POD_NAMESPACE, &trace.identity.namespace);
    list.text(POD_NAME, &trace.identity.name);
    list.text(POD_UID, &trace.identity.uid);
    list.0
}

/// Key of the attribute with the time of a reason.
#[must_use]
pub fn time_key(reason: TimeReason) -> &'static str {
    match reason {
        TimeReason::Processor => TIME_PROCESSOR,
        TimeReason::RunQueue => TIME_RUN_QUEUE,
        TimeReason::Throttled => TIME_THROTTLED,
        TimeReason::Child => TIME_CHILD,
        TimeReason::Thread => TIME_THREAD,
        TimeReason::Pipe => TIME_PIPE,
        TimeReason::FileLock => TIME_FILE_LOCK,
        TimeReason::KernelLock => TIME_KERNEL_LOCK,
        TimeReason::KernelWork => TIME_KERNEL_WORK,
        TimeReason::Disk => TIME_DISK,
        TimeReason::Memory => TIME_MEMORY,
        TimeReason::Daemon => TIME_DAEMON,
        TimeReason::Network => TIME_NETWORK,
        TimeReason::Timer => TIME_TIMER,
        TimeReason::Other => TIME_OTHER,
        TimeReason::Runtime => TIME_RUNTIME,
        TimeReason::Unknown => TIME_UNKNOWN,
    }
}

/// The list under construction. What has no value is left out, so that a query for an attribute finds the spans that have it.
struct Attributes(Vec<(&'static str, AttributeValue)>);

impl Attributes {
    /// Adds a text; an empty one is left out.
    fn text(&mut self, key: &'static str, value: &str) {
        if !value.is_empty() {
            self.0.push((key, AttributeValue::Text(value.to_owned())));
        }
    }

    fn int(&mut self, key: &'static str, value: i64) {
        self.0.push((key, AttributeValue::Int(value)));
    }

    fn bool(&mut self, key: &'static str, value: bool) {
        self.0.push((key, AttributeValue::Bool(value)));
    }

    fn list(&mut self, key: &'static str, values: impl IntoIterator<Item = impl Into<String>>) {
        let values: Vec<String> = values.into_iter().map(Into::into).collect();
        if !values.is_empty() {
            self.0.push((key, AttributeValue::List(values)));
        }
    }

    /// What lookups and connects share: the backend behind a service, the process, the cause of what went badly.
    fn peer(&mut self, backend: &Option<SocketAddr>, initiator: &Option<Initiator>, cause: &Option<Cause>) {
        if let Some(backend) = backend {
            self.text(BACKEND, &backend.to_string());
        }
        if let Some(initiator) = initiator {
            self.int(PROCESS_PID, i64::from(initiator.process.pid));
            self.text(COMM, &initiator.comm);
        }
        self.cause(cause.as_ref());
    }

    fn cause(&mut self, cause: Option<&Cause>) {
        if let Some(cause) = cause {
            self.text(CAUSE, &cause.cause);
            self.text(CAUSE_CONFIDENCE, cause.confidence.as_str());
            self.list(CAUSE_EVIDENCE, &cause.evidence);
        }
    }

    /// A process, as plugins, commands and runtime steps have one.
    fn process(&mut self, process: &ProcessDetail) {
        self.int(PROCESS_PID, i64::from(process.pid));
        self.int(PROCESS_PARENT_PID, i64::from(process.parent_pid));
        self.text(PROCESS_NAME, process.path.rsplit('/').next().unwrap_or_default());
        self.text(PROCESS_PATH, &process.path);
        self.list(PROCESS_ARGS, process.args.iter());
        self.text(PROCESS_CGROUP, &process.cgroup);
        if process.netns != 0 {
            self.int(PROCESS_NETNS, i64::try_from(process.netns).unwrap_or(i64::MAX));
        }
        match process.exit {
            Some(ExitStatus::Code(code)) => self.int(PROCESS_EXIT_CODE, i64::from(code)),
            Some(ExitStatus::Signal(signal)) => self.int(PROCESS_SIGNAL, i64::from(signal)),
            Some(ExitStatus::Unknown) | None => {}
        }
        if process.found_running {
            self.bool(FOUND_RUNNING, true);
        }
        if process.outlived_parent {
            self.bool(OUTLIVED_PARENT, true);
        }
        if process.ambiguous {
            self.bool(AMBIGUOUS, true);
        }
        self.text(NETLINK_MESSAGE, &process.netlink);
        if let Some(attribution) = process.attribution {
            self.text(ATTRIBUTION, attribution.as_str());
            self.text(ATTRIBUTION_CONFIDENCE, attribution.confidence().as_str());
        }
        self.time(process.time.as_deref());
    }

    /// What it waits for, or waited for when it was cut off.
    fn waiting(&mut self, trace: &Trace, span: &Span) {
        let Some(waiting) = waiting_of(trace, span) else {
            return;
        };
        self.text(WAITING, &waiting_text(waiting, span.end.is_some()));
        self.text(WAITING_REASON, waiting.reason.as_str());
        let since = trace.anchor.unix_ns(waiting.since);
        self.text(WAITING_SINCE, &since.to_string());
    }

    /// A request to a daemon.
    fn daemon(&mut self, daemon: &DaemonDetail) {
        if daemon.pid != 0 {
            self.int(PROCESS_PID, i64::from(daemon.pid));
        }
        self.text(PROCESS_NAME, &daemon.name);
        self.text(PROCESS_CGROUP, &daemon.cgroup);
        let owner = CgroupOwner::of(&daemon.cgroup);
        self.text(DAEMON_POD_UID, &owner.pod_uid());
        self.text(DAEMON_CONTAINER, owner.container);
        self.text(DAEMON_UNIT, owner.unit);
        self.text(NETWORK_TRANSPORT, daemon.transport.as_str());
        self.text(DAEMON_BEGIN, daemon.begin.as_str());
        if daemon.unanswered {
            self.bool(DAEMON_UNANSWERED, true);
        }
        if let Some(threads) = daemon.threads {
            self.text(DAEMON_THREADS, threads.as_str());
            self.text(DAEMON_THREADS_CONFIDENCE, threads.confidence().as_str());
            if threads == ThreadsAttribution::Ambiguous {
                self.bool(AMBIGUOUS, true);
            }
        }
        self.time(daemon.time.as_deref());
    }

    /// What the time went to. The numbers add up to the duration; a reason without time is left out.
    fn time(&mut self, time: Option<&TimeSpent>) {
        let Some(time) = time else {
            return;
        };
        for (reason, ns) in &time.parts {
            self.int(time_key(*reason), i64::try_from(*ns).unwrap_or(i64::MAX));
        }
        if time.recorded_after_ns > 0 {
            let after = i64::try_from(time.recorded_after_ns).unwrap_or(i64::MAX);
            self.int(TIME_RECORDED_AFTER, after);
        }
        self.list(TIME_WAITS, time.waits.iter().map(wait_text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unique_and_explained() {
        let mut keys: Vec<_> = ATTRIBUTES.iter().map(|attribute| attribute.key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), ATTRIBUTES.len());
        assert!(ATTRIBUTES.iter().all(|attribute| attribute.brief.ends_with('.')));
    }
}
