//! Programs that the runtime runs, as calls of plugins; and commands that a CNI agent's service runs for them.
//!
//! A child of the runtime that is no helper of its own is a plugin. What it is called for is what the runtime is doing:
//! making a sandbox means ADD, removing one DEL, and neither CHECK. After a failed ADD the runtime cleans up: DEL.
//! Does not: tell what a plugin read or wrote.

use sandglass_model::{CniCommand, TextPairs, Timestamp};

use super::{Sandbox, Stage, parameters};
use crate::correlator::Correlator;
use crate::open::{OpenTrace, SpanRef};
use crate::plugins::invocation::{Image, RuntimeExec, without_exe};
use crate::plugins::processes::{Role, Seen};

/// What a program of the runtime's is called for.
struct Call {
    number: u64,
    command: CniCommand,
    ambiguous: bool,
}

/// Services whose commands belong to the plugin that waits for them.
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
/// Programs that the runtime runs besides plugins and shims.
const HELPERS: [&str; 8] = [
    "ctr", "crictl", "hcsdiag", "igzip", "tar", "unpigz", "werfault", "wclayer",
];
/// Shorter texts in a command line say nothing.
const MIN_NAME: usize = 6;

impl Correlator {
    /// A process started. Of most nothing is kept.
    pub(crate) fn windows_executed(&mut self, at: Timestamp, image: Image) {
        let seen = self.processes.look_up(image.process);
        // Every console program has one, to no effect.
        if matches!(seen, Seen::Known(_)) || image.file_name().eq_ignore_ascii_case("conhost") {
            return;
        }
        match self.processes.role(image.parent) {
            Some(Role::Spanned(span) | Role::Forked(span)) => {
                let env = self.parameters_below(&image, span);
                self.executed(at, image, &env);
            }
            Some(Role::Detached | Role::Gone { below_plugin: true }) => {
                self.executed(at, image, &TextPairs::default());
            }
            Some(Role::Runtime(_) | Role::Gone { below_plugin: false }) | None => {
                let parent = without_exe(&image.parent_comm).to_ascii_lowercase();
                if parent == "containerd" || parent == "rke2" {
                    self.runtime_executed(at, image);
                } else if AGENTS.contains(&parent.as_str()) {
                    self.agent_executed(at, image);
                }
            }
        }
    }

    /// A program below a plugin: another plugin when it lies beside it, and then called with the same parameters.
    fn parameters_below(&self, image: &Image, span: SpanRef) -> TextPairs {
        let call = || {
            let open = self.traces.get(span.trace)?;
            let caller = open.nearest_plugin(span.span)?;
            let path = &open.trace.spans[caller].process()?.path;
            let (directory, _) = path.rsplit_once('/')?;
            let (beside, _) = image.path.rsplit_once('/')?;
            if !directory.eq_ignore_ascii_case(beside) {
                return None;
            }
            let operation = &open.operations[open.states[caller].operation?];
            let found_in = image.directory()?;
            Some(parameters(
                operation.command,
                &operation.container,
                &open.trace.identity,
                found_in,
            ))
        };
        call().unwrap_or_default()
    }

    fn runtime_executed(&mut self, at: Timestamp, image: Image) {
        let name = image.file_name().to_ascii_lowercase();
        if name.starts_with("containerd-shim") {
            if let Some(RuntimeExec::Step(_, id)) = RuntimeExec::of(&image) {
                let id = id.to_owned();
                self.shim_of(&id, false);
            }
            return self.executed(at, image, &TextPairs::default());
        }
        if name.starts_with("containerd") || name.starts_with("docker-credential") || HELPERS.contains(&name.as_str()) {
            return;
        }
        let Some(call) = self.call_of(image.file_name()) else {
            self.effects.counters.orphan += 1;
            return;
        };
        let Some(sandbox) = self.windows.sandboxes.get_mut(&call.number) else {
            return;
        };
        sandbox.called = true;
        let directory = image.directory().unwrap_or_default();
        let env = parameters(call.command, &sandbox.container, &sandbox.identity, directory);
        let namespace = sandbox.namespace.clone();
        let process = image.process;
        self.executed(at, image, &env);
        if let Some(Role::Spanned(span)) = self.processes.role(process) {
            self.called(span, &namespace, call.ambiguous);
        }
    }

    /// Adds what is known of a call that was inferred.
    fn called(&mut self, span: SpanRef, namespace: &str, ambiguous: bool) {
        let Some(open) = self.traces.get_mut(span.trace) else {
            return;
        };
        if let Some(process) = open.trace.spans[span.span].process_mut() {
            process.ambiguous = ambiguous;
        }
        let operation = open.states[span.span].operation;
        if let Some(detail) = operation.and_then(|operation| open.operation_detail_mut(operation)) {
            namespace.clone_into(&mut detail.netns);
        }
    }

    /// What the runtime runs a plugin for now.
    fn call_of(&self, plugin: &str) -> Option<Call> {
        let waits = |(_, sandbox): &(u64, &Sandbox)| !self.is_busy(&sandbox.container);
        let asked = self
            .windows
            .in_stage(Stage::Asked)
            .filter(|(_, sandbox)| !sandbox.shimmed);
        let stopping = self.windows.in_stage(Stage::Stopping);
        let mut fits: Vec<(u64, &Sandbox)> = asked.chain(stopping).filter(waits).collect();
        if fits.is_empty() {
            return self.check_of();
        }
        let ambiguous = fits.len() > 1;
        // Who has waited longest for its first plugin comes first, then who can go on with its chain.
        fits.sort_by_key(|(number, sandbox)| {
            let goes_on = sandbox.called && self.goes_on(&sandbox.container, plugin);
            (sandbox.called && !goes_on, sandbox.called, sandbox.since, *number)
        });
        let (number, sandbox) = *fits.first()?;
        let command = match sandbox.stage {
            Stage::Asked if self.has_failed_add(sandbox) => CniCommand::Del,
            Stage::Asked => CniCommand::Add,
            Stage::Created | Stage::Stopping | Stage::Over => CniCommand::Del,
        };
        Some(Call {
            number,
            command,
            ambiguous,
        })
    }

    /// The newest sandbox there is: who else would be checked while nothing else goes on.
    fn check_of(&self) -> Option<Call> {
        let asked = self.windows.in_stage(Stage::Asked).rev();
        let asked = asked.filter(|(_, sandbox)| sandbox.shimmed).take(2);
        let created = self.windows.in_stage(Stage::Created).rev().take(2);
        let fits: Vec<u64> = asked.chain(created).map(|(number, _)| number).collect();
        Some(Call {
            number: *fits.iter().max()?,
            command: CniCommand::Check,
            ambiguous: fits.len() > 1,
        })
    }

    fn goes_on(&self, container: &str, plugin: &str) -> bool {
        self.attached.get(container).into_iter().flatten().any(|reference| {
            let open = self.traces.get(reference.trace);
            open.is_some_and(|open| open.can_join(reference.operation, plugin, &self.networks))
        })
    }

    fn has_failed_add(&self, sandbox: &Sandbox) -> bool {
        let Some(key) = sandbox.trace else {
            return false;
        };
        // A trace that is over while the runtime still works on its sandbox has failed.
        self.traces.get(key).is_none_or(|open| {
            let mut operations = open.operations.iter();
            operations.any(|operation| operation.command == CniCommand::Add && operation.failed)
        })
    }

    /// A service of the network's ran a command: the plugin that waits for it is likely why.
    fn agent_executed(&mut self, at: Timestamp, image: Image) {
        let mut running: Vec<(Timestamp, SpanRef, bool)> = self
            .traces
            .iter()
            .flat_map(|open| {
                let named = is_named(open, &image);
                waiting_plugins(open).map(move |(start, span)| (start, span, named))
            })
            .collect();
        if running.iter().any(|(.., named)| *named) {
            running.retain(|(.., named)| *named);
        }
        let mut sandboxes: Vec<_> = running.iter().map(|(_, span, _)| span.trace).collect();
        sandboxes.dedup();
        let Some((_, span, _)) = running
            .iter()
            .max_by_key(|(start, span, _)| (*start, span.trace))
            .copied()
        else {
            return;
        };
        let process = image.process;
        self.executed_below(at, image, &TextPairs::default(), span);
        if let Some(Role::Spanned(span)) = self.processes.role(process)
            && let Some(open) = self.traces.get_mut(span.trace)
            && let Some(process) = open.trace.spans[span.span].process_mut()
        {
            process.ambiguous = sandboxes.len() > 1;
        }
    }
}

/// The plugins of a trace that run now, asked for by the runtime.
fn waiting_plugins(open: &OpenTrace) -> impl Iterator<Item = (Timestamp, SpanRef)> {
    (0..open.trace.spans.len())
        .filter(|&span| open.states[span].in_chain && open.is_open(span))
        .map(|span| {
            let reference = SpanRef { trace: open.key, span };
            (open.trace.spans[span].start, reference)
        })
}

/// The command line names the trace's sandbox or pod.
fn is_named(open: &OpenTrace, image: &Image) -> bool {
    let identity = &open.trace.identity;
    let names = [open.sandbox(), &identity.name, &identity.uid];
    let mut names = names.into_iter().filter(|name| name.len() >= MIN_NAME);
    names.any(|name| image.args.iter().any(|arg| arg.contains(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::invocation::Invocation;
    use sandglass_model::PodIdentity;

    #[test]
    fn inferred_parameters_are_those_of_a_call() {
        let identity = PodIdentity {
            namespace: "shop".into(),
            name: "web-0".into(),
            ..PodIdentity::default()
        };
        let env = parameters(CniCommand::Del, "abc", &identity, "/opt/cni/bin");
        let call = Invocation::of(&env).unwrap();
        assert_eq!(
            (call.command, call.container, call.ifname),
            (CniCommand::Del, "abc", "eth0")
        );
        assert_eq!(PodIdentity::from_cni_args(call.args), identity);
    }
}
