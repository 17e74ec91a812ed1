//! Handles execs on Windows: infers for which sandbox and with which CNI command the runtime executes a program.
//!
//! Used by `correlator.rs` before the room of plugins gets the exec. A child of the runtime that is no helper of its
//! own is a plugin. Its command is what the runtime is doing: ADD while it creates a sandbox, DEL while it removes one
//! or after a failed ADD, else CHECK. A child of a CNI agent's service is a command for the plugin that waits for that
//! service.
//! Does not: know what a plugin reads or writes, which ETW does not show.
//!
//! What a child of the runtime is executed for, by the stage of the sandboxes that fit:
//! - creating, no shim started, no plugin running: ADD; after an ADD that failed: DEL.
//! - stopping, no plugin running: DEL.
//! - none of these: CHECK of the newest sandbox, since nothing else executes plugins then.

use sandglass_model::{CniCommand, TextPairs, Timestamp};

use crate::context::Context;
use crate::invocation::{Image, RuntimeExec, without_exe};
use crate::keys::SpanRef;
use crate::open_trace::OpenTrace;
use crate::standing::Standing;
use crate::windows::Windows;
use crate::windows::runtime::parameters;
use crate::windows::sandbox_table::RuntimeSandbox;
use crate::windows::stage::Stage;

/// An exec as the room of plugins understands it.
#[derive(Debug)]
pub(crate) enum Inferred {
    /// It has nothing to do with a sandbox.
    Nothing,
    /// An exec with this environment.
    Exec(Image, TextPairs),
    /// A plugin that the runtime executes: [`Windows::annotate`] follows.
    Plugin(Image, TextPairs, Annotation),
    /// A command for the plugin at this span; `ambiguous` when others fit.
    Command(Image, SpanRef, bool),
}

/// What is known of an inferred call besides its parameters.
#[derive(Debug)]
pub(crate) struct Annotation {
    /// The sandbox's HCN namespace; empty when not known.
    namespace: String,
    /// Several sandboxes fit.
    ambiguous: bool,
}

/// The sandbox and the command that a plugin is executed for.
struct InferredCall {
    /// The sandbox's number in `SandboxTable`.
    number: u64,
    /// The CNI command, inferred from the sandbox's stage.
    command: CniCommand,
    /// Another sandbox fits too.
    ambiguous: bool,
}

/// Services that run commands for the plugin that waits for them, by file name.
const AGENTS: [&str; 12] = [
    "antrea-agent",
    "azure-cns",
    "azure-vnet",
    "azure-vnet-telemetry",
    "calico-felix",
    "calico-node",
    "flanneld",
    "hybrid-overlay-node",
    "hybrid-overlay-node-windows",
    "kubelet",
    "ovnkube",
    "rke2",
];
/// Programs that the runtime executes besides plugins and shims.
const HELPERS: [&str; 8] = [
    "ctr", "crictl", "hcsdiag", "igzip", "tar", "unpigz", "werfault", "wclayer",
];
/// Shorter names of pods occur in unrelated command lines.
const MIN_NAME: usize = 6;

impl Windows {
    /// A process was created. ETW reports all of the node; most have nothing to do with a sandbox.
    pub(crate) fn on_exec(&mut self, ctx: &mut Context, image: Image, standing: Standing) -> Inferred {
        // Windows starts conhost.exe for every console program.
        if image.file_name().eq_ignore_ascii_case("conhost") {
            return Inferred::Nothing;
        }
        match standing {
            Standing::Known => Inferred::Nothing,
            Standing::Below(span) => {
                let env = parameters_below(ctx, &image, span).unwrap_or_default();
                Inferred::Exec(image, env)
            }
            Standing::Detached => Inferred::Exec(image, TextPairs::default()),
            Standing::Free => {
                // The parent is not below a plugin, so only its name shows what it is.
                let parent = without_exe(&image.parent_comm).to_ascii_lowercase();
                if parent == "containerd" || parent == "rke2" {
                    self.on_runtime_exec(ctx, image)
                } else if AGENTS.contains(&parent.as_str()) {
                    agent_command(ctx, image)
                } else {
                    Inferred::Nothing
                }
            }
        }
    }

    /// A child of the runtime: a shim, a helper or a plugin. A plugin that fits no sandbox is an orphan.
    fn on_runtime_exec(&mut self, ctx: &mut Context, image: Image) -> Inferred {
        let name = image.file_name().to_ascii_lowercase();
        if name.starts_with("containerd-shim") {
            // The shim's command line names the sandbox, which may be the first report of its id.
            if let Some(RuntimeExec::Step(_, id)) = RuntimeExec::of(&image) {
                let id = id.to_owned();
                self.on_shim(ctx, &id, false);
            }
            return Inferred::Exec(image, TextPairs::default());
        }
        if name.starts_with("containerd") || name.starts_with("docker-credential") || HELPERS.contains(&name.as_str()) {
            return Inferred::Nothing;
        }
        let Some(call) = self.call_of(ctx, image.file_name()) else {
            ctx.effects.counters.orphan += 1;
            return Inferred::Nothing;
        };
        let Some(sandbox) = self.objects.sandboxes.get_mut(call.number) else {
            return Inferred::Nothing;
        };
        // From the first plugin on an interface may belong to the sandbox (`vnic.rs`).
        sandbox.called = true;
        let directory = image.directory().unwrap_or_default();
        let env = parameters(call.command, &sandbox.container, &sandbox.identity, directory);
        let annotation = Annotation {
            namespace: sandbox.namespace.clone(),
            ambiguous: call.ambiguous,
        };
        Inferred::Plugin(image, env, annotation)
    }

    /// Adds the annotation of an inferred call to the plugin's span and to its operation.
    pub(crate) fn annotate(&self, ctx: &mut Context, span: SpanRef, annotation: &Annotation) {
        let Some(open) = ctx.traces.get_mut(span.trace) else {
            return;
        };
        if let Some(process) = open.trace.spans[span.span].process_mut() {
            process.ambiguous = annotation.ambiguous;
        }
        let operation = open.nearest_operation(span.span);
        if let Some(detail) = operation.and_then(|operation| open.operation_mut(operation)) {
            annotation.namespace.clone_into(&mut detail.netns);
        }
    }

    /// The sandbox that the runtime executes a plugin for now. Candidates are sandboxes that it creates and has no shim
    /// for yet (containerd sets up the network first), and those that it removes, as long as no plugin of theirs runs.
    fn call_of(&self, ctx: &Context, plugin: &str) -> Option<InferredCall> {
        let waits = |(_, sandbox): &(u64, &RuntimeSandbox)| !self.objects.is_busy(ctx, &sandbox.container);
        let requested = self
            .objects
            .sandboxes
            .in_stage(Stage::Creating)
            .filter(|(_, sandbox)| !sandbox.shimmed);
        let stopping = self.objects.sandboxes.in_stage(Stage::Stopping);
        let mut fits: Vec<(u64, &RuntimeSandbox)> = requested.chain(stopping).filter(waits).collect();
        if fits.is_empty() {
            return self.check_of();
        }
        // With several sandboxes the choice below is a guess, and the spans say so.
        let ambiguous = fits.len() > 1;
        // First who waits longest for its first plugin, then who can go on with its chain.
        fits.sort_by_key(|(number, sandbox)| {
            let goes_on = sandbox.called && self.objects.goes_on(ctx, &sandbox.container, plugin);
            (sandbox.called && !goes_on, sandbox.called, sandbox.since, *number)
        });
        let (number, sandbox) = *fits.first()?;
        let command = match sandbox.stage {
            Stage::Creating if self.has_failed_add(ctx, sandbox) => CniCommand::Del,
            Stage::Creating => CniCommand::Add,
            Stage::Created | Stage::Stopping | Stage::Over => CniCommand::Del,
        };
        Some(InferredCall {
            number,
            command,
            ambiguous,
        })
    }

    /// Without a sandbox in creation or removal the call is a CHECK of the newest sandbox.
    fn check_of(&self) -> Option<InferredCall> {
        let requested = self.objects.sandboxes.in_stage(Stage::Creating).rev();
        let requested = requested.filter(|(_, sandbox)| sandbox.shimmed).take(2);
        let created = self.objects.sandboxes.in_stage(Stage::Created).rev().take(2);
        let fits: Vec<u64> = requested.chain(created).map(|(number, _)| number).collect();
        Some(InferredCall {
            number: *fits.iter().max()?,
            command: CniCommand::Check,
            ambiguous: fits.len() > 1,
        })
    }

    /// An ADD for it failed, so the runtime cleans up with DEL.
    fn has_failed_add(&self, ctx: &Context, sandbox: &RuntimeSandbox) -> bool {
        let Some(key) = sandbox.trace else {
            return false;
        };
        // A trace that has closed while the runtime still works on its sandbox has failed.
        ctx.traces.get(key).is_none_or(|open| {
            let mut operations = (0..open.trace.spans.len()).filter_map(|span| Some((span, open.operation(span)?)));
            operations.any(|(span, detail)| detail.command == CniCommand::Add && open.has_failed(span))
        })
    }
}

/// The parameters of a program below a plugin. It is another plugin if it lies in the same directory, and then has the
/// same parameters.
fn parameters_below(ctx: &Context, image: &Image, span: SpanRef) -> Option<TextPairs> {
    let open = ctx.traces.get(span.trace)?;
    let caller = open.nearest_plugin(span.span)?;
    let path = &open.trace.spans[caller].process()?.path;
    let (directory, _) = path.rsplit_once('/')?;
    let (beside, _) = image.path.rsplit_once('/')?;
    if !directory.eq_ignore_ascii_case(beside) {
        return None;
    }
    let operation = open.operation(open.nearest_operation(caller)?)?;
    let (identity, found_in) = (&open.trace.identity, image.directory()?);
    Some(parameters(operation.command, open.sandbox(), identity, found_in))
}

/// A service of a CNI agent executed a command: likely for the plugin that waits for that service. Traces that the
/// command line names are preferred; of several plugins the one that began last.
fn agent_command(ctx: &Context, image: Image) -> Inferred {
    let mut running: Vec<(Timestamp, SpanRef, bool)> = ctx
        .traces
        .iter()
        .flat_map(|open| {
            let named = is_named(open, &image);
            waiting_plugins(open).map(move |(start, span)| (start, span, named))
        })
        .collect();
    // A trace that the command line names is certain to be meant.
    if running.iter().any(|(.., named)| *named) {
        running.retain(|(.., named)| *named);
    }
    let mut traces: Vec<_> = running.iter().map(|(_, span, _)| span.trace).collect();
    // Several plugins of one trace leave no doubt about the trace.
    traces.dedup();
    let newest = running.iter().max_by_key(|(start, span, _)| (*start, span.trace));
    match newest {
        Some((_, span, _)) => Inferred::Command(image, *span, traces.len() > 1),
        None => Inferred::Nothing,
    }
}

/// Plugins of a trace that the runtime executed and that run.
fn waiting_plugins(open: &OpenTrace) -> impl Iterator<Item = (Timestamp, SpanRef)> {
    (0..open.trace.spans.len())
        .filter(|&span| is_member(open, span) && open.is_open(span))
        .map(|span| {
            let reference = SpanRef { trace: open.key, span };
            (open.trace.spans[span].start, reference)
        })
}

/// The command line contains the trace's sandbox id, pod name or pod uid.
fn is_named(open: &OpenTrace, image: &Image) -> bool {
    let identity = &open.trace.identity;
    let names = [open.sandbox(), &identity.name, &identity.uid];
    let mut names = names.into_iter().filter(|name| name.len() >= MIN_NAME);
    names.any(|name| image.args.iter().any(|arg| arg.contains(name)))
}

/// The plugin at `span` is a member of a chain: its parent is the operation itself.
pub(crate) fn is_member(open: &OpenTrace, span: usize) -> bool {
    let parent = open.trace.spans[span].parent;
    open.trace.spans[span].detail.as_plugin().is_some() && parent.is_some_and(|parent| open.operation(parent).is_some())
}
