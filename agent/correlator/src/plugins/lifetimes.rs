//! The life of a process: forked, executed, exited, and what it said in between.
//!
//! Finds the span that each event is about and ends it; `plugins.rs` begins spans. What is not known is an orphan.

use sandglass_model::event::{Exit, ExitStatus, Fork, PluginIo};
use sandglass_model::trace::{Detail, Status};
use sandglass_model::{ProcessKey, TextPairs, Timestamp};

use crate::correlator::Correlator;
use crate::open::{Cut, SpanRef};
use crate::plugins::invocation::{Image, failure_of};
use crate::plugins::operations::OperationRef;
use crate::plugins::processes::{Role, Seen};

// === events ===

impl Correlator {
    pub(crate) fn forked(&mut self, at: Timestamp, fork: &Fork) {
        let seen = self.processes.look_up(fork.process);
        if matches!(seen, Seen::Known(_)) || !self.take_pid(at, fork.process, seen) {
            return;
        }
        let role = match self.processes.role(fork.parent) {
            Some(Role::Forked(span)) => Role::Forked(span),
            Some(Role::Spanned(span)) if self.is_open(span) => Role::Forked(span),
            Some(Role::Spanned(_) | Role::Detached | Role::Gone { below_plugin: true }) => Role::Detached,
            Some(Role::Runtime(_) | Role::Gone { below_plugin: false }) => Role::Runtime(None),
            None => {
                self.effects.counters.orphan += 1;
                return;
            }
        };
        self.enter_process(at, fork.process, role);
    }

    pub(crate) fn executed(&mut self, at: Timestamp, image: Image, env: &TextPairs) {
        let seen = self.processes.look_up(image.process);
        match seen {
            Seen::Known(Role::Spanned(span)) => self.executed_again(at, image, env, span),
            Seen::Known(Role::Forked(span)) => self.executed_below(at, image, env, span),
            Seen::Known(Role::Runtime(None)) => self.executed_by_runtime(at, image, env),
            // The second image of a runtime's step is the same step. What has ended comes twice.
            Seen::Known(Role::Runtime(Some(_)) | Role::Detached | Role::Gone { .. }) => {}
            Seen::Namesake(..) | Seen::Never => {
                if !self.take_pid(at, image.process, seen) {
                    return;
                }
                match self.processes.role(image.parent) {
                    Some(Role::Spanned(span) | Role::Forked(span)) => self.executed_below(at, image, env, span),
                    Some(Role::Detached | Role::Gone { below_plugin: true }) => {
                        self.enter_process(at, image.process, Role::Detached);
                    }
                    Some(Role::Runtime(_) | Role::Gone { below_plugin: false }) | None => {
                        self.executed_by_runtime(at, image, env);
                    }
                }
            }
        }
    }

    pub(crate) fn exited(&mut self, at: Timestamp, exit: &Exit) {
        match self.processes.exit(exit.process, self.now) {
            Some(Role::Spanned(span)) => self.process_ended(at, span, exit.how),
            Some(Role::Runtime(Some(span))) => self.step_ended(at, span, exit.how),
            Some(Role::Forked(_) | Role::Runtime(None) | Role::Detached | Role::Gone { .. }) => {}
            None => self.effects.counters.orphan += 1,
        }
        self.bound_processes(at);
    }

    /// What a plugin read or wrote.
    pub(crate) fn spoke(&mut self, io: &PluginIo) {
        let span = match self.processes.role(io.process) {
            Some(Role::Spanned(span)) => span,
            Some(Role::Forked(_) | Role::Runtime(_) | Role::Detached | Role::Gone { .. }) => return,
            None => {
                self.effects.counters.orphan += 1;
                return;
            }
        };
        let Some(open) = self.traces.get_mut(span.trace).filter(|open| open.is_open(span.span)) else {
            return;
        };
        let Detail::Plugin(plugin) = &mut open.trace.spans[span.span].detail else {
            return;
        };
        if let Some(netconf) = &io.netconf {
            plugin.spec_version.clone_from(&netconf.version);
        }
        if io.error.is_some() {
            plugin.error.clone_from(&io.error);
        }
        let state = &open.states[span.span];
        if let Some(operation) = state.operation.filter(|_| state.in_chain) {
            let network = io.netconf.as_ref().map_or("", |netconf| netconf.network.as_str());
            open.operations[operation].network_told |= !network.is_empty();
            if let Some(detail) = open.operation_detail_mut(operation) {
                if !network.is_empty() {
                    network.clone_into(&mut detail.network);
                }
                if !io.addresses.is_empty() {
                    detail.addresses.clone_from(&io.addresses);
                    let operation = &open.operations[operation];
                    let told = self.watch.owners.learn(operation, &io.addresses, self.now);
                    if let Some(creation) = open.creation.as_mut().filter(|_| told) {
                        creation.readiness.known = true;
                    }
                }
            }
        }
        open.touch(&mut self.effects);
    }
}

// === end ===

impl Correlator {
    /// The process of a plugin or a command ended.
    pub(crate) fn process_ended(&mut self, at: Timestamp, reference: SpanRef, how: ExitStatus) {
        let Some(open) = self
            .traces
            .get_mut(reference.trace)
            .filter(|open| open.is_open(reference.span))
        else {
            return;
        };
        let span = &mut open.trace.spans[reference.span];
        let said = match &span.detail {
            Detail::Plugin(plugin) => plugin.error.as_ref().filter(|_| matches!(how, ExitStatus::Code(_))),
            Detail::Command(_)
            | Detail::Sandbox(_)
            | Detail::SandboxCreate(_)
            | Detail::Operation(_)
            | Detail::RuntimeStep(_)
            | Detail::Journey(_)
            | Detail::Lookup(_)
            | Detail::Connect(_)
            | Detail::Activity(_)
            | Detail::VnicWait(_) => None,
        };
        let failure = failure_of(span, how).map(|(class, message)| match said {
            Some(error) => (error.class().to_owned(), error.msg.clone()),
            None => (class.to_owned(), message),
        });
        if let Some(process) = span.process_mut() {
            process.exit = Some(how);
        }
        if let Some((class, message)) = failure.clone() {
            span.status = Status::Error { class, message };
        }
        open.trace.incomplete |= how == ExitStatus::Unknown;
        self.end_process(at, reference, Cut::Outlived, failure);
    }

    /// A plugin ran too long: it ends, and with it what runs below it.
    pub(crate) fn plugin_overdue(&mut self, at: Timestamp, process: ProcessKey) {
        let Some(Role::Spanned(reference)) = self.processes.role(process) else {
            return;
        };
        let deadline_ns = self.config.deadline_ns;
        let cut = Cut::Deadline { deadline_ns };
        let Some(open) = self
            .traces
            .get_mut(reference.trace)
            .filter(|open| open.is_open(reference.span))
        else {
            return;
        };
        let failure = cut.failure();
        if let Some((class, message)) = failure.clone() {
            open.trace.spans[reference.span].status = Status::Error { class, message };
        }
        self.end_process(at, reference, cut, failure);
    }

    fn end_process(&mut self, at: Timestamp, reference: SpanRef, below: Cut, failure: Option<(String, String)>) {
        let Some(open) = self.traces.get_mut(reference.trace) else {
            return;
        };
        open.end(reference.span, at, below, &mut self.effects);
        let state = &open.states[reference.span];
        if let Some(operation) = state.operation.filter(|_| state.in_chain) {
            let reference = OperationRef {
                trace: reference.trace,
                operation,
            };
            self.plugin_left(reference, at, failure);
        }
    }
}

// === the process table ===

impl Correlator {
    fn is_open(&self, span: SpanRef) -> bool {
        self.traces.get(span.trace).is_some_and(|open| open.is_open(span.span))
    }

    /// A new process has this pid: whoever had it before is gone. `false` when the record is older than the process
    /// that has the pid now.
    fn take_pid(&mut self, at: Timestamp, process: ProcessKey, seen: Seen) -> bool {
        let Seen::Namesake(before, role) = seen else {
            return true;
        };
        if before.start_ticks > process.start_ticks {
            self.effects.counters.orphan += 1;
            return false;
        }
        self.processes.remove(before);
        self.lose_process(at, role);
        true
    }

    pub(crate) fn enter_process(&mut self, at: Timestamp, process: ProcessKey, role: Role) {
        self.processes.set(process, role);
        self.bound_processes(at);
    }

    fn bound_processes(&mut self, at: Timestamp) {
        let traces = &self.traces;
        let is_open = |span: SpanRef| traces.get(span.trace).is_some_and(|open| open.is_open(span.span));
        if let Some((_, role)) = self.processes.evict(is_open) {
            self.effects.counters.evicted_processes += 1;
            self.lose_process(at, role);
        }
    }

    /// The process was taken out of the process table.
    fn lose_process(&mut self, at: Timestamp, role: Role) {
        match role {
            Role::Spanned(span) => self.process_ended(at, span, ExitStatus::Unknown),
            Role::Runtime(Some(span)) => self.step_ended(at, span, ExitStatus::Unknown),
            Role::Forked(_) | Role::Runtime(None) | Role::Detached | Role::Gone { .. } => {}
        }
    }
}
