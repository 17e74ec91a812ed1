//! The state machine: which process is a plugin, which operation it belongs to, which sandbox that is for.
//!
//! This file is its outside: what goes in, what comes out, how time passes. The inside is told by subject: `plugins`
//! follows processes and makes spans and operations of them, `sandboxes` opens and closes traces and adds what the
//! runtime and the CRI tell, `traffic` joins DNS, connections and conntrack, `windows` infers what cannot be seen there.
//! An open trace is in `open.rs`, all of them in `slots.rs`, what falls due in `timers.rs`.

use std::collections::BTreeSet;
use std::sync::Arc;

use sandglass_model::cni::NetworkList;
use sandglass_model::time::{MILLISECOND, SECOND};
use sandglass_model::trace::RuntimeStep;
use sandglass_model::{
    Body, ClockAnchor, CniCommand, Detail, Event, PodIdentity, SandboxId, Span, SpanId, Timestamp, Trace, TraceId,
    registry,
};

use crate::collections::by_text::ByText;
use crate::open::{Cut, Effects, TraceKey};
use crate::plugins::invocation::Image;
use crate::plugins::names::Names;
use crate::plugins::operations::OperationRef;
use crate::plugins::processes::Processes;
use crate::sandboxes::labels::Unlabelled;
use crate::sandboxes::memory::Memory;
use crate::slots::Slots;
use crate::timers::Timer;
use crate::traffic::watch::Watch;
use crate::traffic::{Traffic, TrafficConfig};
use crate::windows::Windows;

/// Deadlines and bounds. All times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Boot id of the node: part of every trace id.
    pub boot_id: String,
    /// Both clocks at the start, for traces that begin before the first `ClockAnchored`.
    pub anchor: ClockAnchor,
    /// An operation whose plugins have all ended waits this long for the next plugin of its chain.
    pub settle_ns: u64,
    /// A sandbox whose operations have all succeeded waits this long for the runtime's next step when the caller is
    /// a runtime whose steps are known (containerd, CRI-O).
    pub runtime_wait_ns: u64,
    /// A plugin that runs this long is given up: its span ends with `deadline`.
    pub deadline_ns: u64,
    /// A complete trace waits this long for what the runtime tells of its pod, if nothing was told yet; 0 where no runtime
    /// is asked.
    pub labels_wait_ns: u64,
    /// Most traces open at once.
    pub max_traces: usize,
    /// Most processes tracked at once.
    pub max_processes: usize,
    /// Most spans in one trace.
    pub max_spans: usize,
    /// Most ended sandboxes and pods remembered, for links and attempt numbers.
    pub max_remembered: usize,
    /// What is made of traffic.
    pub traffic: TrafficConfig,
    /// The node runs Windows: environments cannot be seen, and what plugins are called for is inferred.
    pub windows: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            boot_id: String::new(),
            anchor: ClockAnchor::default(),
            settle_ns: 500 * MILLISECOND,
            runtime_wait_ns: 10 * SECOND,
            deadline_ns: 300 * SECOND,
            labels_wait_ns: 2 * SECOND,
            max_traces: 4_096,
            max_processes: 16_384,
            max_spans: 512,
            max_remembered: 8_192,
            traffic: TrafficConfig::default(),
            windows: false,
        }
    }
}

/// What the correlator found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A span ended, once and for all. Metrics count these.
    Ended(EndedSpan),
    /// The creation of a sandbox is over, well or not. Its trace stays open until its network has proven usable, or
    /// closes at once. Told once of every sandbox's trace; metrics of the set-up count these.
    Created(Arc<Trace>),
    /// A finding about traffic.
    Traffic(Traffic),
    /// A trace is complete. Exported and stored.
    Closed(Arc<Trace>),
    /// A sandbox was created whose labels only the runtime can tell.
    Asked(SandboxId),
    /// A sandbox that is older than the agent.
    Known {
        /// The sandbox.
        sandbox: SandboxId,
        /// Its pod.
        identity: PodIdentity,
        /// When the runtime says it was created.
        created: Timestamp,
    },
}

/// A span that ended: as much of it as what counts spans has use for. Copying it whole would be the dearest part of an
/// exit's handling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedSpan {
    /// Its trace.
    pub trace: TraceId,
    /// The trace is incomplete.
    pub incomplete: bool,
    /// Its id.
    pub id: SpanId,
    /// Begin.
    pub start: Timestamp,
    /// End.
    pub end: Timestamp,
    /// Its status is an error.
    pub failed: bool,
    /// What it is.
    pub what: EndedKind,
}

/// What a span that ended is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndedKind {
    /// One exec of a plugin binary.
    Plugin {
        /// Plugin type.
        plugin: Arc<str>,
        /// The verb it was given.
        command: CniCommand,
    },
    /// A command that a plugin spawned.
    Command {
        /// File name of the executable.
        name: Arc<str>,
        /// The plugin it ran for.
        plugin: Arc<str>,
    },
    /// A step of the runtime.
    RuntimeStep(RuntimeStep),
    /// A sandbox, its creation, or an operation: told whole when the trace closes. A lookup or a connection: told by
    /// [`Output::Traffic`].
    Enclosing,
}

impl EndedSpan {
    /// Of a span of the trace; one without an end counts as ending when it begins.
    #[must_use]
    pub fn of(trace: &Trace, span: &Span) -> EndedSpan {
        EndedSpan {
            trace: trace.id,
            incomplete: trace.incomplete,
            id: span.id,
            start: span.start,
            end: span.end.unwrap_or(span.start),
            failed: span.status.is_error(),
            what: match &span.detail {
                Detail::Plugin(plugin) => EndedKind::Plugin {
                    plugin: Arc::clone(&plugin.plugin),
                    command: plugin.command,
                },
                Detail::Command(command) => EndedKind::Command {
                    name: Arc::clone(&command.name),
                    plugin: Arc::clone(&command.plugin),
                },
                Detail::RuntimeStep(step) => EndedKind::RuntimeStep(step.step),
                Detail::Sandbox(_)
                | Detail::SandboxCreate(_)
                | Detail::Operation(_)
                | Detail::Journey(_)
                | Detail::Lookup(_)
                | Detail::Connect(_)
                | Detail::Activity(_)
                | Detail::VnicWait(_) => EndedKind::Enclosing,
            },
        }
    }
}

/// What was counted; only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events whose owner was not found.
    pub orphan: u64,
    /// Traces given up because too many were open.
    pub evicted_traces: u64,
    /// Processes given up because too many were tracked.
    pub evicted_processes: u64,
    /// Spans not made because a trace was full.
    pub evicted_spans: u64,
    /// Remembered sandboxes and pods forgotten.
    pub evicted_remembered: u64,
    /// Lookups given up because too many were open.
    pub evicted_lookups: u64,
    /// Connections given up because too many were open.
    pub evicted_connects: u64,
    /// Conntrack entries forgotten because too many were remembered.
    pub evicted_flows: u64,
    /// Activities, objects and sandboxes of Windows forgotten because too many were remembered.
    pub evicted_windows: u64,
}

/// How full the correlator's tables are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Open traces; at most [`Config::max_traces`].
    pub traces: usize,
    /// Tracked processes; at most [`Config::max_processes`].
    pub processes: usize,
    /// Remembered sandboxes; at most [`Config::max_remembered`].
    pub sandboxes: usize,
    /// Remembered pods; at most [`Config::max_remembered`].
    pub pods: usize,
    /// Open lookups; at most [`TrafficConfig::max_lookups`].
    pub lookups: usize,
    /// Open connections; at most [`TrafficConfig::max_connects`].
    pub connects: usize,
    /// Remembered conntrack entries; at most [`TrafficConfig::max_flows`].
    pub flows: usize,
    /// Remembered network namespaces and addresses; at most three times [`Config::max_remembered`].
    pub owners: usize,
    /// Journeys that may go on; at most 256.
    pub journeys: usize,
    /// Complete traces that wait for their pods' labels; at most 1,024.
    pub unlabelled: usize,
    /// Sandboxes, activities, objects and lookups of Windows; at most five times [`Config::max_remembered`] and 6,144.
    pub windows: usize,
}

/// The correlator.
///
/// Give it every event with [`handle`](Correlator::handle), then take what it found with
/// [`drain`](Correlator::drain). At the end of the input, [`finish`](Correlator::finish) and drain once more.
#[derive(Debug)]
pub struct Correlator {
    pub(crate) config: Config,
    /// The newest time seen; while a timer fires, the time it was due.
    pub(crate) now: Timestamp,
    pub(crate) anchor: ClockAnchor,
    /// Traces that begin up to here may miss records that were lost.
    pub(crate) lost_until: Option<Timestamp>,
    pub(crate) serial: u64,
    pub(crate) networks: Vec<NetworkList>,
    /// File names of executables.
    pub(crate) names: Names,
    pub(crate) processes: Processes,
    pub(crate) traces: Slots,
    pub(crate) by_id: BTreeSet<(TraceId, TraceKey)>,
    /// Sandboxes that are being created.
    pub(crate) creations: ByText<TraceKey>,
    /// Sandboxes whose network is waited for.
    pub(crate) waiting: ByText<TraceKey>,
    /// Complete traces that wait for their pods' labels.
    pub(crate) unlabelled: Unlabelled,
    pub(crate) watch: Watch,
    /// Open operations that the runtime asked for, by container id.
    pub(crate) attached: ByText<Vec<OperationRef>>,
    pub(crate) memory: Memory,
    pub(crate) windows: Windows,
    pub(crate) effects: Effects,
}

/// A loss is told when it is noticed; what it concerns may begin this much later.
const LOSS_REACH_NS: u64 = SECOND;
/// Probes whose records are of traffic.
const TRAFFIC_PROBES: [&str; 4] = ["dns", "connect", "conntrack", "drops"];

impl Correlator {
    /// A correlator that has seen nothing.
    #[must_use]
    pub fn new(config: Config) -> Correlator {
        Correlator {
            now: Timestamp(0),
            anchor: config.anchor,
            lost_until: None,
            serial: 0,
            networks: Vec::new(),
            names: Names::default(),
            processes: Processes::new(config.max_processes),
            traces: Slots::default(),
            by_id: BTreeSet::new(),
            creations: ByText::new(config.max_traces),
            waiting: ByText::new(config.max_traces),
            unlabelled: Unlabelled::new(),
            watch: Watch::new(&config),
            attached: ByText::new(config.max_traces),
            memory: Memory::new(config.max_remembered),
            windows: Windows::new(&config),
            effects: Effects::default(),
            config,
        }
    }

    /// Open traces, oldest first.
    pub fn open(&self) -> impl Iterator<Item = &Trace> {
        self.traces.iter().map(|open| &open.trace)
    }

    /// The open trace with this id; the oldest, should a runtime have given one id to several.
    #[must_use]
    pub fn open_trace(&self, id: TraceId) -> Option<&Trace> {
        self.find(id).map(|open| &open.trace)
    }

    /// When the next deadline fires, if nothing else happens: a tick is needed then. `None` when nothing is open.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.effects.timers.first()
    }

    /// What was counted so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.effects.counters
    }

    /// How full the tables are.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        Sizes {
            traces: self.traces.len(),
            processes: self.processes.len(),
            sandboxes: self.memory.sandboxes.len(),
            pods: self.memory.pods.len(),
            lookups: self.watch.lookups.len(),
            connects: self.watch.connects.len(),
            flows: self.watch.flows.len(),
            owners: self.watch.owners.len(),
            journeys: self.watch.journeys.len(),
            unlabelled: self.unlabelled.len(),
            windows: self.windows.len(),
        }
    }

    /// Takes one event, and what becomes part of a span with it. Events come in time order but for late ones, whose
    /// time may lie before the newest seen.
    pub fn handle(&mut self, event: Event) {
        let at = event.at;
        self.pass_time(at);
        match event.body {
            Body::ProcessForked(fork) => self.forked(at, &fork),
            Body::ProcessExecuted(exec) => {
                let (mut image, env) = Image::split(exec);
                if self.config.windows {
                    image.windows = true;
                    self.windows_executed(at, image);
                } else {
                    self.executed(at, image, &env);
                }
            }
            // On Windows every process of the node is told of, not only those that are followed.
            Body::ProcessExited(exit) if self.config.windows && self.processes.role(exit.process).is_none() => {
                self.hns_ended(at, exit.process.pid);
            }
            Body::ProcessExited(exit) => self.exited(at, &exit),
            Body::PluginSpoke(io) => self.spoke(&io),
            Body::SandboxDescribed(described) => self.sandbox_described(at, &described),
            Body::NetnsObserved(netns) => self.netns_observed(&netns),
            Body::TrafficWatched { node_netns } => self.traffic_watched(node_netns),
            Body::DnsSeen(message) => self.dns_seen(at, *message),
            Body::ConnectSeen(step) => {
                self.compartment_of(at, &step);
                self.connect_seen(at, *step);
            }
            Body::FlowSeen(flow) => self.flow_seen(at, *flow),
            Body::ConntrackCounted(counts) => self.conntrack_counted(at, *counts),
            Body::PacketDropped(packet) => self.packet_dropped(at, *packet),
            Body::NetworksConfigured { networks } => self.networks = networks,
            Body::ClockAnchored { unix_ns } => self.anchor = ClockAnchor { boot_ns: at.0, unix_ns },
            Body::Lost { probe, count } => self.lost(at, &probe, count),
            Body::ActivitySeen(step) => self.activity_seen(at, *step),
            Body::RuntimeSaid(said) => self.runtime_said(at, *said),
            Body::SiloSeen(step) => self.silo_seen(at, &step),
            Body::InterfaceSeen(step) => self.interface_seen(at, step),
            Body::LookupSeen(step) => self.windows_lookup_seen(at, *step),
            Body::Tick => {}
        }
    }

    /// Outputs since the last call, in order.
    pub fn drain(&mut self) -> Vec<Output> {
        let mut outputs = Vec::new();
        self.drain_into(&mut outputs);
        outputs
    }

    /// The same as [`drain`](Correlator::drain), appended to `outputs`: who drains after every event keeps its room.
    pub fn drain_into(&mut self, outputs: &mut Vec<Output>) {
        outputs.append(&mut self.effects.outputs);
    }

    /// An open trace changed since [`take_changed`](Correlator::take_changed) was last called.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        !self.effects.changed.is_empty()
    }

    /// The open traces that changed since the last call: take a fresh copy of each with [`Correlator::open`].
    pub fn take_changed(&mut self) -> BTreeSet<TraceId> {
        let mut changed = BTreeSet::new();
        for key in self.effects.changed.drain(..) {
            if let Some(open) = self.traces.get_mut(key) {
                open.clean();
                changed.insert(open.trace.id);
            }
        }
        changed
    }

    /// Ends what is open, at the newest time seen: for the end of a recording and a clean stop. What still ran is
    /// marked incomplete; what only waited for a next step is not.
    pub fn finish(&mut self) {
        self.finish_traffic();
        self.finish_windows();
        self.release_unlabelled(Timestamp(u64::MAX));
        while let Some(key) = self.traces.oldest() {
            self.close(key, Cut::Abandoned);
        }
        self.close_journeys();
    }

    /// Fires the timers that are due at `at`, each at its own time.
    fn pass_time(&mut self, at: Timestamp) {
        while let Some((due, timer)) = self.effects.timers.pop(at) {
            self.now = self.now.max(due);
            match timer {
                Timer::Plugin(process) => self.plugin_overdue(due, process),
                Timer::Settle(trace, operation) => self.close_operation(OperationRef { trace, operation }),
                Timer::Trace(trace) => self.review(trace),
                Timer::Ready(trace) => self.review_network(trace),
                Timer::Labels => self.release_unlabelled(due),
                Timer::Lookup(lookup) => self.lookup_over(lookup),
                Timer::Connect(connect) => self.connect_over(connect),
                Timer::Journey(lookup) => self.review_journey(lookup),
            }
        }
        self.now = self.now.max(at);
        self.processes.expire(self.now);
    }

    fn lost(&mut self, at: Timestamp, probe: &str, count: u64) {
        let until = at.plus(LOSS_REACH_NS);
        let of_traffic = TRAFFIC_PROBES.contains(&probe);
        if of_traffic {
            self.watch.lose(until);
        } else {
            self.lost_until = self.lost_until.max(Some(until));
        }
        let attributes = [
            (registry::LOST_PROBE, probe.to_owned()),
            (registry::LOST_COUNT, count.to_string()),
        ];
        let all: Vec<TraceKey> = self.traces.keys().collect();
        for key in all {
            if let Some(open) = self.traces.get_mut(key).filter(|open| open.loses(of_traffic)) {
                open.trace.incomplete = true;
                open.mark(0, at, registry::EVENT_LOST, &attributes);
                open.touch(&mut self.effects);
            }
        }
    }
}
