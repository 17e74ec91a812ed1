//! The correlator's router: passes events to the rooms, and what one room reports to the rooms that need it.
//!
//! Used by the pipeline, `sandglass replay`, the benchmarks and the fuzz targets. A reader finds here in which order
//! rooms get an event (`handle` and what it calls) and a fact (`route`). That is the only coupling between rooms, so
//! this file also holds the few sequences in which two rooms take turns: an exec (`on_exec`), the begin of an operation
//! (`on_operation_begin`), and closing a trace (`close`).
//!
//! Order within one event: timers that are due fire first, then the rooms handle the event, then facts are routed until
//! none is left. A handler that needs the effect of a fact before it goes on calls `route` in between.
//! `correlator/losses.rs` marks what misses records, `correlator/outlets.rs` is what a caller reads.
//! Does not: decide anything about processes, sandboxes or traffic; its own are the loss markers and the bound on open
//! traces.

mod losses;
mod outlets;

use sandglass_model::cri::{SandboxOutcome, SandboxResponse};
use sandglass_model::event::Exec;
use sandglass_model::{Body, ClockAnchor, CniCommand, Event, TextPairs, Timestamp};

use crate::config::CorrelatorConfig;
use crate::context::Context;
use crate::daemons::Daemons;
use crate::facts::{CreationRequest, Fact};
use crate::finding::Scope;
use crate::invocation::{Image, Invocation};
use crate::keys::{SpanRef, TraceKey};
use crate::open_trace::ending::Cut;
use crate::plugins::Plugins;
use crate::plugins::exec::ExecOutcome;
use crate::sandboxes::Sandboxes;
use crate::sandboxes::closing::CloseOutcome;
use crate::sandboxes::opening::Removal;
use crate::timers::Timer;
use crate::traffic::Traffic;
use crate::waits::Waits;
use crate::windows::Windows;
use crate::windows::calls::Inferred;

/// The correlator.
///
/// Give it every event with [`handle`](Correlator::handle), then take the outputs with [`drain`](Correlator::drain). At
/// the end of the input, call [`finish`](Correlator::finish) and drain once more. All memory is bounded by the
/// configuration; what a bound evicts is in [`counters`](Correlator::counters).
#[derive(Debug)]
pub struct Correlator {
    /// What the rooms share; passed to each of them.
    ctx: Context,
    /// The rooms. None of them knows another: only this type calls them.
    plugins: Plugins,
    sandboxes: Sandboxes,
    traffic: Traffic,
    /// Empty where no source records waits.
    waits: Waits,
    /// Empty where no source follows requests to daemons.
    daemons: Daemons,
    /// Empty on Linux.
    windows: Windows,
}

// === what goes in ===

impl Correlator {
    /// A correlator that has seen nothing.
    #[must_use]
    pub fn new(config: CorrelatorConfig) -> Correlator {
        Correlator {
            plugins: Plugins::new(&config),
            sandboxes: Sandboxes::new(&config),
            traffic: Traffic::new(&config),
            waits: Waits::default(),
            daemons: Daemons::default(),
            windows: Windows::new(&config),
            ctx: Context::new(config),
        }
    }

    /// Handles one event. Events come in time order from the reorder stage, except late ones, whose time may lie before
    /// the newest seen; an event never moves the correlator's time back.
    pub fn handle(&mut self, event: Event) {
        // What was due before this event happened before it.
        let at = event.at;
        self.pass_time(at);
        let ctx = &mut self.ctx;
        match event.body {
            Body::ProcessForked(fork) => {
                self.waits.on_fork(at, &fork);
                if self.plugins.is_tracked(fork.parent) || !self.daemons.on_fork(at, &fork) {
                    self.plugins.on_fork(ctx, at, &fork);
                }
            }
            Body::ProcessExecuted(exec) if ctx.config.windows => self.on_windows_exec(at, exec),
            Body::ProcessExecuted(exec) => {
                let below_daemon = self.daemons.has_started(exec.process);
                self.waits.on_exec(at, &exec, below_daemon);
                let (image, env) = Image::split(exec);
                match below_daemon {
                    true => self.on_exec_below_daemon(at, image, &env),
                    false => self.on_exec(at, image, &env),
                }
            }
            // Windows reports every process of the node, not only those that are tracked.
            Body::ProcessExited(exit) if ctx.config.windows && !self.plugins.is_tracked(exit.process) => {
                self.windows.on_process_exit(ctx, at, exit.process.pid);
            }
            Body::ProcessExited(exit) => {
                // Requests end with their client, and before its span.
                if !self.daemons.on_exit(ctx, at, exit.process) {
                    self.plugins.on_exit(ctx, at, &exit);
                }
                self.route();
                // Its time was requested by then.
                self.waits.on_exit(exit.process, at);
            }
            Body::WaitsRecorded { on } => self.waits.on_recorded(at, on),
            Body::ThreadWoken(wake) => self.waits.on_wake(at, &wake),
            Body::ThreadRan(run) => self.waits.on_run(at, &run),
            Body::ThreadEnded(times) => self.waits.on_thread_end(at, &times),
            Body::LockBlocked(blocked) => self.waits.on_lock_blocked(at, &blocked),
            Body::ThreadsSeen(seen) => {
                for (process, waiting) in self.waits.on_seen(&seen) {
                    self.plugins.on_waiting(ctx, process, waiting);
                }
            }
            Body::TentativeSeen(seen) => self.waits.on_tentative(at, &seen),
            Body::ApiServerKnown { address } => self.waits.on_api_server(address),
            Body::FileLockTried(tried) => self.waits.on_file_lock(at, &tried),
            Body::KernelLockWaited(wait) => self.waits.on_kernel_lock(at, &wait),
            Body::RequestsFollowed { on } => self.daemons.on_followed(at, on),
            Body::RequestSeen(step) => {
                let owner = self.plugins.span_around(step.client);
                let since = self.daemons.missed(&step);
                let slept_from = since.and_then(|since| self.waits.slept_from(step.client, since));
                self.daemons.on_step(ctx, at, &step, owner, slept_from);
            }
            Body::SandboxRequested(request) => self.sandboxes.on_requested(ctx, at, *request),
            Body::SandboxResponded(response) => self.on_responded(at, &response),
            Body::RuntimeMeasured(times) => self.waits.on_runtime_measured(at, &times),
            Body::NetlinkRemarked(remark) => self.plugins.on_netlink_remark(ctx, &remark),
            Body::PluginIoRead(io) => self.plugins.on_plugin_io(ctx, &io),
            Body::SandboxDescribed(described) => {
                let known = self.plugins.on_described(ctx, &described);
                self.sandboxes.on_described(ctx, at, &described, known);
                // A runtime that starts no process for a sandbox ends its creation by this.
                if let Some(trace) = self.sandboxes.creation_of(&self.ctx, &described.sandbox.0) {
                    self.review(trace);
                }
            }
            Body::NetnsObserved(netns) => {
                self.daemons.on_netns(&netns);
                self.traffic.on_netns(ctx, netns.inode, &netns.sandbox.0, netns.created);
                self.sandboxes.on_netns(ctx, &netns);
            }
            Body::NetnsNamed { name, removed: false } => self.sandboxes.on_netns_named(ctx, at, &name),
            Body::NetnsNamed { name, removed: true } => self.sandboxes.on_netns_unnamed(at, &name),
            // Sent once, by a source that observes traffic; without it no sandbox waits for its network.
            Body::TrafficWatched { node_netns } => {
                self.traffic.on_traffic_watched(node_netns);
                self.sandboxes.on_traffic_watched();
            }
            Body::DnsSeen(mut message) => {
                self.traffic.on_dns(ctx, at, &mut message);
                ctx.effects.keep_spent(message);
            }
            Body::DnsUnreported(unreported) => self.traffic.on_dns_unreported(ctx, at, &unreported),
            Body::ConnectSeen(step) => {
                if ctx.config.windows {
                    self.windows.on_connect(ctx, at, &step);
                    self.route();
                }
                self.waits.on_connect(at, &step);
                self.traffic.on_connect(&mut self.ctx, at, *step);
            }
            Body::FlowSeen(flow) => self.traffic.on_flow(ctx, at, *flow),
            Body::ConntrackCounted(counts) => self.traffic.on_conntrack_counters(ctx, at, *counts),
            Body::PacketDropped(packet) => self.traffic.on_packet_drop(ctx, at, *packet),
            // The whole configuration each time: operations that are open are judged by it from now on.
            Body::NetworksConfigured { networks } => ctx.networks = networks,
            Body::CniConfigJudged { problems } => ctx.problems = problems,
            Body::ClockAnchored { unix_ns } => ctx.anchor = ClockAnchor { boot_ns: at.0, unix_ns },
            Body::Lost { probe, count } => self.on_loss(at, &probe, count),
            Body::Limited { probe, netns, source } => self.on_limited(at, &probe, netns, source),
            Body::ActivitySeen(step) => self.windows.on_activity(ctx, at, *step),
            Body::RuntimeReported(report) => self.windows.on_runtime_report(ctx, at, *report),
            Body::SiloSeen(step) => self.windows.on_silo(ctx, at, &step),
            Body::InterfaceSeen(step) => self.windows.on_interface(ctx, at, step),
            // The owner is the room of Windows' knowledge, the home that of traffic: both are looked up before the step.
            Body::LookupSeen(step) => {
                let owner = self.windows.owner_of_silo(&step.silo);
                let home = self.traffic.home_of(ctx, &owner);
                self.windows.on_lookup(ctx, at, &step, owner, home);
            }
            // Its time alone matters, which has passed above.
            Body::Tick => {}
        }
        self.route();
    }

    /// Ends what is open, at the newest time seen: for the end of a recording and a clean stop. What still runs is
    /// incomplete; what only waits for a next step is not.
    /// Rooms are finished from the outside in: exchanges first, since they are spans of traces that are closed next;
    /// journeys last, since the end of a trace can release exchanges.
    pub fn finish(&mut self) {
        self.daemons.finish(&mut self.ctx);
        // What has no end yet ends as open; what was only waiting for late records ends as it is.
        self.traffic.finish(&mut self.ctx);
        self.route();
        self.windows.finish(&mut self.ctx);
        self.route();
        self.sandboxes.on_labels_due(&mut self.ctx, Timestamp(u64::MAX));
        self.close_unserved(None);
        while let Some(trace) = self.ctx.traces.oldest() {
            self.close(trace, Cut::Abandoned);
            self.route();
        }
        self.traffic.finish_journeys(&mut self.ctx);
        self.route();
    }

    /// Fires the timers that are due at `at`, each at its own time and in time order, so that a long silence gives the
    /// same result as many ticks. Facts are routed after each, because a timer may set or cancel others.
    fn pass_time(&mut self, at: Timestamp) {
        while let Some((due, timer)) = self.ctx.effects.timers.pop(at) {
            self.ctx.now = self.ctx.now.max(due);
            let ctx = &mut self.ctx;
            match timer {
                Timer::Plugin(process) => self.plugins.on_plugin_due(ctx, due, process),
                Timer::Settle(operation) => self.plugins.close_operation(ctx, operation),
                // Both are only the time of another look: whether the trace is complete is decided by its state.
                Timer::Trace(trace) | Timer::Ready(trace) => self.review(trace),
                Timer::Labels => self.sandboxes.on_labels_due(ctx, due),
                Timer::Unserved => self.close_unserved(Some(due)),
                Timer::Lookup(lookup) => self.traffic.on_lookup_due(ctx, lookup),
                Timer::ServiceLookup(lookup) => self.windows.on_lookup_due(ctx, lookup),
                Timer::Connect(connect) => self.traffic.on_connect_due(ctx, connect),
                Timer::Journey(lookup) => self.traffic.on_journey_due(ctx, lookup),
                Timer::Request(connection) => self.daemons.on_request_due(ctx, connection),
            }
            self.route();
        }
        self.ctx.now = self.ctx.now.max(at);
        // Processes have no timers: there are too many, and a second more or less does not matter.
        self.plugins.expire(self.ctx.now);
    }
}

// === routes ===

impl Correlator {
    /// An exec whose environment is known: read from the kernel on Linux, inferred on Windows. The room of plugins says
    /// what it is; a new operation or a runtime step concerns the room of sandboxes too, which chooses the trace.
    fn on_exec(&mut self, at: Timestamp, image: Image, env: &TextPairs) {
        match self.plugins.on_exec(&mut self.ctx, at, image, env) {
            ExecOutcome::Done => {}
            ExecOutcome::Operation(image, call) => self.on_operation_begin(at, image, &call),
            // The span first: closing the idle operations may complete the creation, which the step keeps open.
            ExecOutcome::Step(image, step, id) => {
                let process = image.process;
                let trace = self.sandboxes.creation_of(&self.ctx, &id);
                let span = trace.and_then(|trace| {
                    let span = self.sandboxes.on_step_begin(&mut self.ctx, at, image, step, trace);
                    // The runtime goes on to its next step, so no operation of this sandbox gets another plugin.
                    self.plugins.close_idle(&mut self.ctx, &id, Some(trace));
                    self.route();
                    self.review(trace);
                    span
                });
                self.plugins.add_step(&mut self.ctx, at, process, span);
            }
        }
        self.route();
    }

    /// The runtime responded to a request to make a sandbox: none of its operations gets another plugin, and the creation may be
    /// complete.
    fn on_responded(&mut self, at: Timestamp, response: &SandboxResponse) {
        let Some(trace) = self.sandboxes.on_responded(&mut self.ctx, at, response) else {
            return;
        };
        if response.outcome != SandboxOutcome::Withdrawn {
            let container = self.ctx.traces.sandbox_of(trace).to_owned();
            self.plugins.close_idle(&mut self.ctx, &container, Some(trace));
            self.route();
        }
        self.review(trace);
    }

    /// An exec below a daemon: the room of daemons chooses the request that it is for, below whose span it lies. One that is for
    /// none is the daemon's own business.
    fn on_exec_below_daemon(&mut self, at: Timestamp, image: Image, env: &TextPairs) {
        let process = image.process;
        let waits = &self.waits;
        let path = |daemon, received, forked| waits.path_between(daemon, received, forked);
        if let Some((span, attribution)) = self.daemons.attribute(&mut self.ctx, &image, env, path) {
            self.plugins.on_exec_below(&mut self.ctx, at, image, env, span);
            if let Some(span) = self.plugins.span_of(process) {
                self.daemons.annotate(&mut self.ctx, span, attribution);
            }
        }
        self.route();
    }

    /// The runtime executes the first plugin of an operation. Earlier operations that it replaces close first; a DEL
    /// also ends the creation of its sandbox, or makes it due. Only then is the trace chosen, and the bound on traces
    /// is kept before the operation enters it.
    fn on_operation_begin(&mut self, at: Timestamp, image: Image, call: &Invocation<'_>) {
        // Facts are routed in between: an operation that closed may have been the last of its trace.
        self.plugins.supersede(&mut self.ctx, call);
        self.route();
        if call.command == CniCommand::Del {
            match self.sandboxes.on_removal(&self.ctx, call.container) {
                Removal::Nothing => {}
                Removal::Review(trace) => self.review(trace),
                Removal::Close(trace) => {
                    self.traffic.end_decided(&mut self.ctx, trace);
                    self.route();
                    self.close(trace, Cut::Outlived);
                }
            }
            self.route();
        }
        self.sandboxes.on_netns_used(&mut self.ctx, call);
        // Choosing may open a trace, so that the bound is kept before the plugin enters it.
        let placement = self.sandboxes.on_operation_begin(&mut self.ctx, at, &image, call);
        self.bound_traces();
        self.plugins.begin_operation(&mut self.ctx, at, image, call, placement);
    }

    /// Closes the traces of sandboxes for whose network namespaces no plugin ran until `due`; without it, at the end of
    /// the input.
    fn close_unserved(&mut self, due: Option<Timestamp>) {
        while let Some(trace) = self.sandboxes.next_unserved(&mut self.ctx, due) {
            self.bound_traces();
            self.review(trace);
        }
    }

    /// An exec on a node whose environments are not visible: `windows` infers whether the runtime or a plugin executed
    /// it and with which parameters, or counts an orphan.
    fn on_windows_exec(&mut self, at: Timestamp, exec: Box<Exec>) {
        // ETW shows no environment, so there is none to keep.
        let (mut image, _) = Image::split(exec);
        image.windows = true;
        let process = image.process;
        let standing = self.plugins.standing(process, image.parent);
        let inferred = self.windows.on_exec(&mut self.ctx, image, standing);
        self.route();
        // `Exec` is a process of the runtime, `Plugin` one of a sandbox that was inferred, `Command` one below a plugin.
        match inferred {
            Inferred::Nothing => {}
            Inferred::Exec(image, env) => self.on_exec(at, image, &env),
            Inferred::Plugin(image, env, annotation) => {
                self.on_exec(at, image, &env);
                if let Some(span) = self.plugins.span_of(process) {
                    self.windows.annotate(&mut self.ctx, span, &annotation);
                }
            }
            Inferred::Command(image, span, ambiguous) => {
                self.plugins
                    .on_exec_below(&mut self.ctx, at, image, &TextPairs::default(), span);
                if let Some(SpanRef { trace, span }) = self.plugins.span_of(process)
                    && let Some(open) = self.ctx.traces.get_mut(trace)
                    && let Some(process) = open.trace.spans[span].process_mut()
                {
                    process.ambiguous = ambiguous;
                }
            }
        }
    }

    /// Routes every fact to the rooms that need it, in order, those that come up meanwhile included. Ends, because each
    /// fact is about something that began, ended or became known, which happens once.
    fn route(&mut self) {
        while let Some(fact) = self.ctx.facts.pop() {
            let ctx = &mut self.ctx;
            match fact {
                Fact::OperationOpened(operation) => {
                    if ctx.config.windows {
                        self.windows.on_operation_opened(ctx, operation);
                    }
                }
                Fact::ProcessEnded(process, span) => {
                    if let Some((from, to)) = ctx.traces.interval(span)
                        && let Some(time) = self.waits.spent(process, from, to)
                    {
                        self.plugins.on_last_wait(ctx, span, time.last);
                        self.plugins.on_time_spent(ctx, span, time.spent);
                        self.plugins.on_waits_shown(ctx, span, time.shown);
                    }
                }
                Fact::OperationRetried(operation) => self.sandboxes.on_operation_retried(operation),
                Fact::OperationClosed(operation) => {
                    if self.sandboxes.on_operation_closed(ctx, operation) {
                        self.traffic.on_detached(ctx.traces.sandbox_of(operation.trace));
                    }
                    if ctx.config.windows {
                        self.windows.on_operation_closed(ctx, operation);
                    }
                    self.review(operation.trace);
                }
                Fact::AddressesReported(operation) => {
                    if let Some(open) = ctx.traces.get(operation.trace)
                        && let Some(detail) = open.operation(operation.span)
                        && let container = self.plugins.container_of(open, operation)
                        && self.traffic.on_addresses(ctx, container, detail)
                        && container == open.sandbox()
                    {
                        self.sandboxes.on_network_known(operation.trace);
                    }
                }
                Fact::StepEnded { process, at, span, how } => {
                    self.sandboxes.on_step_end(ctx, at, span, how);
                    if let Some(process) = process
                        && let Some((from, to)) = ctx.traces.interval(span)
                        && let Some(time) = self.waits.spent(process, from, to)
                    {
                        self.sandboxes.on_step_time(ctx, span, time.spent);
                        self.plugins.on_waits_shown(ctx, span, time.shown);
                    }
                    self.review(span.trace);
                }
                Fact::ExchangeBegan { home, id, at, detail } => {
                    self.sandboxes.on_exchange_began(ctx, home, id, at, detail);
                }
                Fact::ExchangeChanged {
                    home,
                    id,
                    detail,
                    events,
                } => self.sandboxes.on_exchange_changed(ctx, home, id, detail, events),
                Fact::ExchangeEnded { home, ended } => {
                    self.sandboxes.on_exchange_ended(ctx, home, ended);
                    self.review(home);
                }
                Fact::ExchangeLost { home, id } => {
                    self.sandboxes.on_exchange_lost(ctx, home, id);
                    self.review(home);
                }
                Fact::ExchangeDetached(id) => self.traffic.on_exchange_detached(id),
                Fact::ExchangeReleased(ended) => self.traffic.on_exchange_released(ctx, &ended),
                Fact::AddressesResolved(resolved) => self.traffic.on_addresses_reported(ctx, *resolved),
                Fact::JourneyClosed(trace) => self.sandboxes.on_journey_closed(ctx, *trace),
                Fact::CreationRequested(request) => self.on_creation_requested(*request),
                Fact::CreationReported(trace, end) => {
                    self.plugins.close_idle(ctx, &end.container, None);
                    self.route();
                    if let Some(trace) = trace {
                        self.sandboxes.on_creation_reported(&mut self.ctx, trace, *end);
                        self.review(trace);
                    }
                }
                Fact::SandboxRenamed(name) => {
                    self.plugins.on_renamed(&name.before, &name.id);
                    self.sandboxes.on_renamed(ctx, &name);
                    if let Some(compartment) = name.compartment {
                        self.traffic.on_compartment(ctx, compartment, &name.id);
                    }
                }
                Fact::CompartmentKnown(compartment, sandbox) => self.traffic.on_compartment(ctx, compartment, &sandbox),
                Fact::NetworkKnown(trace) => self.sandboxes.on_network_known(trace),
                Fact::DaemonBusy(daemon) => self.waits.on_daemon_busy(&daemon),
                Fact::DaemonIdle(daemon) => self.waits.on_daemon_idle(daemon),
                Fact::RequestAnswered(request) => {
                    if let Some(path) = self.waits.daemon_path(&request) {
                        self.daemons.on_path(ctx, &request, &path);
                    }
                }
            }
        }
    }

    /// A runtime reported that it begins to create a sandbox (Windows; `RunPodSandbox` in containerd's log). The trace
    /// opens now: on Linux it opens with the first plugin and its begin is set back.
    fn on_creation_requested(&mut self, request: CreationRequest) {
        let CreationRequest { number, at, env } = request;
        let Some(call) = Invocation::of(&env) else {
            return;
        };
        let trace = self
            .sandboxes
            .open_creation(&mut self.ctx, at, "containerd", &call, true);
        self.bound_traces();
        self.review(trace);
        self.windows.on_creation_opened(&mut self.ctx, number, trace);
    }

    /// Closes a trace, or the creation in it, that is complete. Called after everything that can complete one; the room
    /// of sandboxes sets the timer for the next look when it is not.
    fn review(&mut self, trace: TraceKey) {
        if let Some(cut) = self.sandboxes.review(&mut self.ctx, trace) {
            self.close(trace, cut);
        }
    }

    /// Closes a trace, or the creation in it. The rooms of Windows and of plugins first put into the trace what they
    /// hold of it; the room of sandboxes closes last and emits it.
    fn close(&mut self, trace: TraceKey, cut: Cut) {
        self.daemons.on_closing(&mut self.ctx, trace);
        if self.ctx.config.windows {
            self.windows.on_closing(&mut self.ctx, trace);
        }
        // Once the creation is over its operations and processes are closed already.
        if self.ctx.traces.get(trace).is_some_and(|open| !open.is_created()) {
            self.plugins.on_closing(&mut self.ctx, trace, cut);
            for work in self.sandboxes.show_runtime_work(&mut self.ctx, trace) {
                if let Some(runtime) = self.sandboxes.runtime_of(trace)
                    && let Some((from, to)) = self.ctx.traces.interval(work)
                {
                    let time = self.waits.of_runtime(runtime, from, to);
                    self.sandboxes.on_runtime_work_time(&mut self.ctx, work, time);
                }
            }
            if let Some(parts) = self.sandboxes.creation_parts(&self.ctx, trace) {
                let runtime = parts
                    .gaps()
                    .map(|(from, to)| self.waits.of_runtime(parts.runtime, from, to));
                self.sandboxes
                    .on_creation_time(&mut self.ctx, trace, parts.time(runtime));
            }
        }
        match self.sandboxes.close(&mut self.ctx, trace, cut) {
            CloseOutcome::Closed => {}
            // The creation is over and the trace stays open; the network may have been proven usable before.
            CloseOutcome::AwaitsNetwork => self.review(trace),
        }
    }

    /// Evicts traces when more than `max_traces` are open: the oldest of the Kubernetes namespace that has the most. They are
    /// emitted as incomplete, never dropped.
    fn bound_traces(&mut self) {
        let max = self.ctx.config.max_traces.clamp(1, TraceKey::MAX_OPEN);
        while self.ctx.traces.len() > max
            && let Some((victim, is_noisy)) = self.ctx.traces.next_victim()
        {
            let scope = match self.ctx.traces.sandbox_of(victim) {
                "" => Scope::Node,
                _ => Scope::Sandbox,
            };
            self.ctx.effects.counters.evicted_traces.count(scope, is_noisy);
            if let Some(victim) = self.ctx.traces.get_mut(victim) {
                victim.trace.incomplete = true;
            }
            self.close(victim, Cut::Abandoned);
        }
    }
}
