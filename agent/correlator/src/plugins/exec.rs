//! Handles an exec: decides whether it is a plugin invocation, a delegate, a command, a runtime step, or another image
//! of a process that has a span.
//!
//! Used by `correlator.rs`; the other rooms see only the `ExecOutcome`. A child inherits its parent's environment
//! (execve(2)), so `sleep` below a script plugin carries `CNI_COMMAND` too. Below a plugin a process is therefore a
//! plugin only if it lies in a directory of `CNI_PATH`, where the CNI specification has delegates looked for (CNI spec
//! 1.1.0, section 4), or if its CNI parameters differ from its caller's.
//! The order of evidence for one exec: the role that the process has already, the role of its parent, its environment, its
//! name and arguments. A role decides first because environments are inherited and names can be anything.
//! Does not: make spans for forks (a fork without an exec shows nothing that its parent does not), or choose the trace
//! of an operation.

use std::sync::Arc;

use sandglass_model::event::Fork;
use sandglass_model::trace::{CommandDetail, Detail, PluginDetail, RuntimeStep};
use sandglass_model::{ProcessKey, TextPairs, Timestamp, registry};

use crate::context::Context;
use crate::invocation::{Image, Invocation, RuntimeExec};
use crate::keys::SpanRef;
use crate::open_trace::OpenTrace;
use crate::plugins::Plugins;
use crate::plugins::role::{PidMatch, Role};
use crate::plugins::state::TraceState;
use crate::standing::Standing;

/// The outcome of an exec that another room has to act on before this one can go on.
pub(crate) enum ExecOutcome<'e> {
    /// Nothing is left to do: the exec is handled, or it is an orphan and counted.
    Done,
    /// The runtime runs the first plugin of an operation: [`Plugins::begin_operation`] follows.
    Operation(Image, Invocation<'e>),
    /// The runtime runs a step for the container with this id: [`Plugins::add_step`] follows.
    Step(Image, RuntimeStep, String),
}

impl Plugins {
    /// A tracked process forked. The child inherits the place of its parent until it executes an image: it is below the
    /// same span. A parent whose span ended makes the child a daemon.
    pub(crate) fn on_fork(&mut self, ctx: &mut Context, at: Timestamp, fork: &Fork) {
        let seen = self.processes.look_up(fork.process);
        // The search through /proc at the start may have found the child before the record of its fork came.
        if matches!(seen, PidMatch::Known(_)) || !self.take_pid(ctx, at, fork.process, seen) {
            return;
        }
        let role = match self.processes.role(fork.parent) {
            Some(Role::Forked(span)) => Role::Forked(span),
            Some(Role::Spanned(span)) if ctx.traces.is_open(span) => Role::Forked(span),
            Some(Role::Spanned(_) | Role::Detached | Role::Gone { below_plugin: true }) => Role::Detached,
            Some(Role::Runtime(_) | Role::Gone { below_plugin: false }) => Role::Runtime(None),
            None => {
                ctx.effects.counters.orphan += 1;
                return;
            }
        };
        self.add_process(ctx, at, fork.process, role);
    }

    /// Handles an exec and says what the router has to do next. The process's own role goes before its parent's: a
    /// record may come for a process whose fork was seen, not seen, or seen for an older process with the same pid.
    pub(crate) fn on_exec<'e>(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        image: Image,
        env: &'e TextPairs,
    ) -> ExecOutcome<'e> {
        let seen = self.processes.look_up(image.process);
        match seen {
            PidMatch::Known(Role::Spanned(span)) => self.on_next_image(ctx, at, image, env, span),
            PidMatch::Known(Role::Forked(span)) => self.on_exec_below(ctx, at, image, env, span),
            // A child of a runtime's own process, such as a shim, executes its image.
            PidMatch::Known(Role::Runtime(None)) => return self.on_runtime_exec(ctx, at, image, env),
            // The second image of a runtime step is the same step. The record of a process that ended came twice.
            PidMatch::Known(Role::Runtime(Some(_)) | Role::Detached | Role::Gone { .. }) => {}
            PidMatch::Namesake(..) | PidMatch::Never => {
                if !self.take_pid(ctx, at, image.process, seen) {
                    return ExecOutcome::Done;
                }
                // No fork was seen: the probe reports forks of tracked processes and of a runtime's steps, and the first exec
                // below a runtime is tracked from here on.
                match self.processes.role(image.parent) {
                    Some(Role::Spanned(span) | Role::Forked(span)) => self.on_exec_below(ctx, at, image, env, span),
                    Some(Role::Detached | Role::Gone { below_plugin: true }) => {
                        self.add_process(ctx, at, image.process, Role::Detached);
                    }
                    Some(Role::Runtime(_) | Role::Gone { below_plugin: false }) | None => {
                        return self.on_runtime_exec(ctx, at, image, env);
                    }
                }
            }
        }
        ExecOutcome::Done
    }

    /// An exec by a process that is not below a plugin: the next plugin of an open chain, the first plugin of a new
    /// operation, a step of a known runtime, or nothing that concerns a sandbox (an orphan).
    fn on_runtime_exec<'e>(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        image: Image,
        env: &'e TextPairs,
    ) -> ExecOutcome<'e> {
        if let Some(call) = Invocation::of(env) {
            return match self.joinable(ctx, &call, image.parent, image.file_name()) {
                Some(operation) => {
                    self.join_operation(ctx, at, image, &call, operation);
                    ExecOutcome::Done
                }
                None => ExecOutcome::Operation(image, call),
            };
        }
        match RuntimeExec::of(&image) {
            Some(RuntimeExec::Step(step, id)) => {
                let id = id.to_owned();
                ExecOutcome::Step(image, step, id)
            }
            Some(RuntimeExec::Other) => {
                self.add_process(ctx, at, image.process, Role::Runtime(None));
                ExecOutcome::Done
            }
            None => {
                // What a runtime forked executes the container's program: it concerns no sandbox's life any more.
                match self.processes.role(image.process) {
                    Some(Role::Runtime(_)) => {
                        self.processes.exit(image.process, ctx.now);
                    }
                    _ => ctx.effects.counters.orphan += 1,
                }
                ExecOutcome::Done
            }
        }
    }

    /// A process of the runtime; `span` where it is a step of a sandbox that is being created.
    /// `None` means that the runtime's process is known but belongs to no open creation; its exit is then no orphan.
    pub(crate) fn add_step(&mut self, ctx: &mut Context, at: Timestamp, process: ProcessKey, span: Option<SpanRef>) {
        self.add_process(ctx, at, process, Role::Runtime(span));
    }

    /// An exec below a plugin: a delegate or a command. `span` is that of its nearest ancestor.
    pub(crate) fn on_exec_below(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        image: Image,
        env: &TextPairs,
        span: SpanRef,
    ) {
        let process = image.process;
        let role = self.begin_below(ctx, at, image, env, span).unwrap_or(Role::Detached);
        self.add_process(ctx, at, process, role);
    }

    /// Begins the span of an exec below the span `span`. Returns the role that the process gets; `None` when the span,
    /// its trace or the plugin around it is gone, and the process is then a daemon.
    fn begin_below(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        image: Image,
        env: &TextPairs,
        span: SpanRef,
    ) -> Option<Role> {
        let key = span.trace;
        let open = ctx.traces.get(key)?;
        let parent = open.reference(open.nearest_open(span.span)?);
        let caller = open.nearest_plugin(parent.span)?;
        // The search of /proc at the agent's start finds forked copies too. A process with its parent's own path and
        // arguments has not executed anything.
        let is_copy = image.running
            && open.trace.spans[parent.span]
                .process()
                .is_some_and(|process| *process.path == *image.path && process.args == image.args);
        if is_copy {
            return Some(Role::Forked(parent));
        }
        let begun = match called_as_plugin(self.traces.get(key)?, caller, &image, env) {
            Some(call) => self.begin_delegate(ctx, at, image, &call, parent, caller),
            None => {
                let plugin = open.trace.spans[caller].detail.as_plugin();
                let detail = Detail::Command(Box::new(CommandDetail {
                    plugin: plugin.map_or_else(Arc::default, |plugin| Arc::clone(&plugin.plugin)),
                    name: ctx.names.get(image.file_name()),
                    process: image.into_detail(&mut ctx.names),
                }));
                self.begin_process(ctx, at, parent, detail)
            }
        };
        // In a full trace the process has no span; what runs below it is still the plugin's.
        Some(begun.map_or(Role::Forked(parent), Role::Spanned))
    }

    /// Another image in a process that already has a span, as with `exec` in a shell: the span goes on and gets the
    /// event `exec`. A command that becomes a plugin changes its kind (`ip netns exec NS bridge`). `image.running`, a
    /// repeated record and a closed span change nothing.
    fn on_next_image(&mut self, ctx: &mut Context, at: Timestamp, mut image: Image, env: &TextPairs, span: SpanRef) {
        let index = span.span;
        let (Some(open), Some(state)) = (ctx.traces.get_mut(span.trace), self.traces.get_mut(span.trace)) else {
            return;
        };
        let Some(executed) = state.process(index).map(|process| process.executed) else {
            return;
        };
        // The search through /proc and the kernel's record may both report one exec.
        let seen_running = open.trace.spans[index]
            .process()
            .is_some_and(|process| process.found_running && *process.path == *image.path);
        let repeated = seen_running && executed == open.trace.spans[index].start;
        if !open.is_open(index) || image.running || at == executed || repeated {
            return;
        }
        if let Some(process) = state.process_mut(index) {
            process.executed = at;
        }
        let caller = open.trace.spans[index]
            .parent
            .and_then(|parent| open.nearest_plugin(parent));
        // Above the span itself: its own environment would be compared with itself.
        let call = caller.and_then(|caller| called_as_plugin(state, caller, &image, env));
        // A plugin that executes another image keeps its name: its operation shows which plugin the runtime executed.
        let earlier = open.trace.spans[index].detail.as_command_mut().map(|command| {
            command.name = ctx.names.get(image.file_name());
            command.process.args = image.take_args();
            std::mem::replace(&mut command.process.path, ctx.names.get(&image.path))
        });
        let path = earlier.as_deref().unwrap_or(&image.path).to_owned();
        open.mark(index, at, registry::EVENT_EXEC, &[(registry::PROCESS_PATH, path)]);
        if let (Some(call), Some(caller), Some(_)) = (call, caller, earlier) {
            become_delegate(open, state, index, caller, &call);
        }
        open.touch(&mut ctx.effects);
    }

    /// What is known of a process that executes an image, and of its parent.
    pub(crate) fn standing(&self, process: ProcessKey, parent: ProcessKey) -> Standing {
        if let PidMatch::Known(_) = self.processes.look_up(process) {
            return Standing::Known;
        }
        match self.processes.role(parent) {
            Some(Role::Spanned(span) | Role::Forked(span)) => Standing::Below(span),
            Some(Role::Detached | Role::Gone { below_plugin: true }) => Standing::Detached,
            Some(Role::Runtime(_) | Role::Gone { below_plugin: false }) | None => Standing::Free,
        }
    }

    /// The process is in the table, running or ended less than a second ago. On Windows this separates the exits that
    /// concern plugins from those of all other processes of the node.
    pub(crate) fn is_tracked(&self, process: ProcessKey) -> bool {
        self.processes.role(process).is_some()
    }

    /// The span of a plugin or a command, or the one around a process that has none; `None` for what lies below no plugin.
    pub(crate) fn span_around(&self, process: ProcessKey) -> Option<SpanRef> {
        match self.processes.role(process)? {
            Role::Spanned(span) | Role::Forked(span) => Some(span),
            Role::Runtime(_) | Role::Detached | Role::Gone { .. } => None,
        }
    }

    /// The span of a plugin or a command.
    pub(crate) fn span_of(&self, process: ProcessKey) -> Option<SpanRef> {
        match self.processes.role(process)? {
            Role::Spanned(span) => Some(span),
            Role::Forked(_) | Role::Runtime(_) | Role::Detached | Role::Gone { .. } => None,
        }
    }
}

/// The exec below the plugin at `caller` as a call of another plugin: it lies where plugins lie, or has CNI parameters of
/// its own.
/// The fingerprint covers the `CNI_*` variables only, so that a caller that changes its `PATH` for a child does not
/// make it a plugin.
fn called_as_plugin<'e>(
    state: &TraceState,
    caller: usize,
    image: &Image,
    env: &'e TextPairs,
) -> Option<Invocation<'e>> {
    let call = Invocation::of(env)?;
    let inherited = state.process(caller).map(|caller| caller.environment);
    (call.is_in_plugin_path(image) || Some(call.fingerprint) != inherited).then_some(call)
}

/// A wrapper such as `env` or `ip netns exec` was replaced by the plugin that it was to call.
fn become_delegate(open: &mut OpenTrace, state: &mut TraceState, span: usize, caller: usize, call: &Invocation<'_>) {
    let operation = state.process(caller).and_then(|caller| caller.operation);
    if let Some(process) = state.process_mut(span) {
        process.operation = operation;
        process.environment = call.fingerprint;
    }
    if let Some(command) = open.trace.spans[span].detail.as_command_mut() {
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
