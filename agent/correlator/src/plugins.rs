//! Processes into spans: which exec is a plugin invocation, a delegate, a command, or a second image of one of them.
//!
//! Children inherit their parent's environment, so `sleep` below a script plugin has `CNI_COMMAND` too: below a plugin
//! only a process that was called as a plugin is one. Forks are transparent.

pub(crate) mod invocation;
pub(crate) mod lifetimes;
pub(crate) mod names;
pub(crate) mod operations;
pub(crate) mod processes;

use std::sync::Arc;

use sandglass_model::trace::{CommandDetail, Detail, Link, PluginDetail, Relation};
use sandglass_model::{ProcessKey, TextPairs, Timestamp, registry};

use crate::correlator::Correlator;
use crate::open::{OpenTrace, SpanRef, TraceKey};
use crate::plugins::invocation::{Image, Invocation, RuntimeExec, has_attachment};
use crate::plugins::operations::{Caller, Operation, OperationRef, operation_detail};
use crate::plugins::processes::Role;
use crate::timers::Timer;

/// How a plugin invocation stands to its operation.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// The runtime asked for it: a member of the chain.
    Asked,
    /// Another plugin asked for it as a member of a nested operation's chain.
    CalledInChain,
    /// Another plugin of the same operation called it.
    Called,
}

impl Correlator {
    /// An exec by a process that is not below a plugin.
    pub(crate) fn executed_by_runtime(&mut self, at: Timestamp, image: Image, env: &TextPairs) {
        let process = image.process;
        if let Some(call) = Invocation::of(env) {
            return self.called_by_runtime(at, image, &call);
        }
        let step = match RuntimeExec::of(&image) {
            Some(RuntimeExec::Step(step, id)) => Some((step, id.to_owned())),
            Some(RuntimeExec::Other) => None,
            None => {
                self.effects.counters.orphan += 1;
                return;
            }
        };
        let span = step.and_then(|(step, id)| self.step_began(at, image, step, &id));
        self.enter_process(at, process, Role::Runtime(span));
    }

    /// The runtime runs a plugin.
    pub(crate) fn called_by_runtime(&mut self, at: Timestamp, image: Image, call: &Invocation<'_>) {
        let process = image.process;
        let reference = match self.joinable(call, image.parent, image.file_name()) {
            Some(reference) => {
                let timer = Timer::Settle(reference.trace, reference.operation);
                self.effects.timers.clear(timer);
                Some(reference)
            }
            None => self.open_operation(at, &image, call),
        };
        let span = reference.and_then(|reference| {
            let parent = self.traces.get(reference.trace)?.operations[reference.operation].span;
            self.begin_plugin(at, image, call, reference, parent, Place::Asked)
        });
        self.enter_process(at, process, span.map_or(Role::Detached, Role::Spanned));
        if span.is_some() {
            let deadline = at.plus(self.config.deadline_ns);
            self.effects.timers.set(Timer::Plugin(process), deadline);
        } else if let Some(reference) = reference {
            // The trace is full: the operation must not wait for a plugin that is not followed.
            self.close_operation(reference);
        }
    }

    /// An exec by a process below a plugin: a delegate or a command. `span` is its nearest ancestor's.
    pub(crate) fn executed_below(&mut self, at: Timestamp, image: Image, env: &TextPairs, span: SpanRef) {
        let process = image.process;
        let role = self.begin_below(at, image, env, span).unwrap_or(Role::Detached);
        self.enter_process(at, process, role);
    }

    fn begin_below(&mut self, at: Timestamp, image: Image, env: &TextPairs, span: SpanRef) -> Option<Role> {
        let (key, process) = (span.trace, image.process);
        let open = self.traces.get_mut(key)?;
        let parent = open.nearest_open(span.span)?;
        let caller = open.nearest_plugin(parent)?;
        // Found running with its parent's own image and arguments: forked, not executed.
        let is_copy = image.running
            && open.trace.spans[parent]
                .process()
                .is_some_and(|process| *process.path == *image.path && process.args == image.args);
        if is_copy {
            return Some(Role::Forked(SpanRef {
                trace: key,
                span: parent,
            }));
        }
        let begun = match called_as_plugin(open, caller, &image, env) {
            Some(call) => self.begin_delegate(
                at,
                image,
                &call,
                SpanRef {
                    trace: key,
                    span: parent,
                },
                caller,
            ),
            None => {
                let plugin = match &open.trace.spans[caller].detail {
                    Detail::Plugin(plugin) => Arc::clone(&plugin.plugin),
                    Detail::Sandbox(_)
                    | Detail::SandboxCreate(_)
                    | Detail::Operation(_)
                    | Detail::Command(_)
                    | Detail::RuntimeStep(_)
                    | Detail::Journey(_)
                    | Detail::Lookup(_)
                    | Detail::Connect(_)
                    | Detail::Activity(_)
                    | Detail::VnicWait(_) => Arc::default(),
                };
                let detail = Detail::Command(Box::new(CommandDetail {
                    name: self.names.get(image.file_name()),
                    plugin,
                    process: image.into_detail(&mut self.names),
                }));
                self.begin_process(at, key, parent, process, detail)
            }
        };
        // A full trace: what runs below is still known to be the plugin's.
        Some(begun.map_or(
            Role::Forked(SpanRef {
                trace: key,
                span: parent,
            }),
            Role::Spanned,
        ))
    }

    /// A plugin called by the plugin at `caller`: for the same interface a delegate, for another one a nested operation.
    fn begin_delegate(
        &mut self,
        at: Timestamp,
        image: Image,
        call: &Invocation<'_>,
        parent: SpanRef,
        caller: usize,
    ) -> Option<SpanRef> {
        let key = parent.trace;
        let open = self.traces.get_mut(key)?;
        let around = open.states[caller].operation?;
        let same = {
            let around = &open.operations[around];
            around.ifname == call.ifname && around.container == call.container
        };
        if same || !has_attachment(call.command) {
            let reference = OperationRef {
                trace: key,
                operation: around,
            };
            return self.begin_plugin(at, image, call, reference, parent.span, Place::Called);
        }
        let asked = Caller::Plugin(caller);
        let going_on = (0..open.operations.len()).rev().find(|&operation| {
            open.operations[operation].is_for(call, asked)
                && open.can_join(operation, image.file_name(), &self.networks)
        });
        let operation = match going_on {
            Some(operation) => {
                self.effects.timers.clear(Timer::Settle(key, operation));
                operation
            }
            None => self.open_nested(at, call, parent, asked)?,
        };
        let reference = OperationRef { trace: key, operation };
        let span = self.traces.get(key)?.operations[operation].span;
        self.begin_plugin(at, image, call, reference, span, Place::CalledInChain)
    }

    fn open_nested(&mut self, at: Timestamp, call: &Invocation<'_>, parent: SpanRef, asked: Caller) -> Option<usize> {
        let key = parent.trace;
        let open = self.traces.get(key)?;
        let same = |operation: &Operation| operation.is_for(call, asked);
        let attempt = 1 + open
            .operations
            .iter()
            .filter(|operation| same(operation) && operation.failed)
            .count();
        let over: Vec<usize> = (0..open.operations.len())
            .filter(|&operation| same(&open.operations[operation]) && open.operations[operation].is_idle())
            .collect();
        for operation in over {
            self.close_operation(OperationRef { trace: key, operation });
        }
        let detail = operation_detail(call, u32::try_from(attempt).unwrap_or(u32::MAX));
        let open = self.traces.get_mut(key)?;
        let Some(span) = open.begin(Some(parent.span), at, Detail::Operation(Box::new(detail))) else {
            open.trace.incomplete = true;
            self.effects.counters.evicted_spans += 1;
            return None;
        };
        open.operations.push(Operation::new(span, call, asked));
        Some(open.operations.len() - 1)
    }

    fn begin_plugin(
        &mut self,
        at: Timestamp,
        image: Image,
        call: &Invocation<'_>,
        reference: OperationRef,
        parent: usize,
        place: Place,
    ) -> Option<SpanRef> {
        let process = image.process;
        let plugin = self.names.get(image.file_name());
        let (delegate, in_chain) = match place {
            Place::Asked => (false, true),
            Place::CalledInChain => (true, true),
            Place::Called => (true, false),
        };
        let detail = Detail::Plugin(Box::new(PluginDetail {
            plugin: Arc::clone(&plugin),
            command: call.command,
            delegate,
            spec_version: String::new(),
            error: None,
            process: image.into_detail(&mut self.names),
        }));
        let span = self.begin_process(at, reference.trace, parent, process, detail)?;
        let open = self.traces.get_mut(reference.trace)?;
        let state = &mut open.states[span.span];
        state.operation = Some(reference.operation);
        state.in_chain = in_chain;
        state.environment = call.fingerprint;
        if in_chain {
            open.chain(reference.operation, plugin, &self.networks);
        }
        if let Some((trace, caller)) = call.caller.filter(|(trace, _)| *trace != open.trace.id) {
            open.trace.spans[span.span].links.push(Link {
                trace,
                span: caller,
                relation: Relation::Caller,
            });
        }
        Some(span)
    }

    fn begin_process(
        &mut self,
        at: Timestamp,
        key: TraceKey,
        parent: usize,
        process: ProcessKey,
        detail: Detail,
    ) -> Option<SpanRef> {
        let open = self.traces.get_mut(key)?;
        open.touch(&mut self.effects);
        let Some(span) = open.begin(Some(parent), at, detail) else {
            open.trace.incomplete = true;
            self.effects.counters.evicted_spans += 1;
            return None;
        };
        open.states[span].process = Some(process);
        open.trace.incomplete |= open.trace.spans[span]
            .process()
            .is_some_and(|process| process.found_running);
        Some(SpanRef { trace: key, span })
    }

    /// Another image in a process that has a span.
    pub(crate) fn executed_again(&mut self, at: Timestamp, mut image: Image, env: &TextPairs, span: SpanRef) {
        let Some(open) = self.traces.get_mut(span.trace).filter(|open| open.is_open(span.span)) else {
            return;
        };
        let index = span.span;
        let state = &open.states[index];
        // The search through /proc and the kernel's record may both tell of one exec.
        let seen_running = open.trace.spans[index]
            .process()
            .is_some_and(|process| process.found_running && *process.path == *image.path);
        if image.running || at == state.executed || (seen_running && state.executed == open.trace.spans[index].start) {
            return;
        }
        open.states[index].executed = at;
        let caller = open.trace.spans[index]
            .parent
            .and_then(|parent| open.nearest_plugin(parent));
        let call = caller.and_then(|caller| called_as_plugin(open, caller, &image, env));
        let earlier = match &mut open.trace.spans[index].detail {
            Detail::Command(command) => {
                let earlier = std::mem::replace(&mut command.process.path, self.names.get(&image.path));
                command.name = self.names.get(image.file_name());
                command.process.args = image.take_args();
                Some(earlier)
            }
            Detail::Plugin(_)
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
        let path = earlier.as_deref().unwrap_or(&image.path).to_owned();
        open.mark(index, at, registry::EVENT_EXEC, &[(registry::PROCESS_PATH, path)]);
        if let (Some(call), Some(caller), Some(_)) = (call, caller, earlier) {
            become_delegate(open, index, caller, &call);
        }
        open.touch(&mut self.effects);
    }
}

/// The exec below the plugin at `caller` as a call of another plugin: it lies where plugins lie, or was given CNI
/// parameters of its own.
fn called_as_plugin<'a>(open: &OpenTrace, caller: usize, image: &Image, env: &'a TextPairs) -> Option<Invocation<'a>> {
    let call = Invocation::of(env)?;
    (call.is_in_plugin_path(image) || call.fingerprint != open.states[caller].environment).then_some(call)
}

/// A wrapper such as `env` or `ip netns exec` was replaced by the plugin it was to call.
fn become_delegate(open: &mut OpenTrace, span: usize, caller: usize, call: &Invocation<'_>) {
    open.states[span].operation = open.states[caller].operation;
    open.states[span].environment = call.fingerprint;
    if let Detail::Command(command) = &mut open.trace.spans[span].detail {
        open.trace.spans[span].detail = Detail::Plugin(Box::new(PluginDetail {
            plugin: std::mem::take(&mut command.name),
            command: call.command,
            delegate: true,
            spec_version: String::new(),
            error: None,
            process: std::mem::take(&mut command.process),
        }));
    }
}
