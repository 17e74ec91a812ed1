//! Handles what the runtime reports: sandboxes that it creates and removes, and the ids of their objects.
//!
//! Used by `windows.rs`. From the ETW providers ContainerD, whose events are lines of containerd's log ("RunPodSandbox
//! for ...", "returns sandbox id", "StopPodSandbox"), and Microsoft.Virtualization.RunHCS, that of the shim (hcsshim,
//! cmd/containerd-shim-runhcs-v1). Reports come through ETW in log order, but not in order with other providers: execs
//! of plugins may be released before them. Does not: parse text; the source does.
//!
//! A sandbox passes the stages of `stage.rs`: `RunBegan` inserts it as Creating under a stand-in, `RunReturned` gives it the
//! id and makes it Created, `RunFailed` ends it, `StopBegan` makes it Stopping, `StopReturned` ends it. Each report may be the
//! first that is seen, since the agent may have been started in between: the sandbox is then inserted in the stage that the
//! report shows, without a trace.

use sandglass_model::windows::{ObjectKey, RuntimeReport};
use sandglass_model::{CniCommand, PodIdentity, TextPairs, Timestamp};

use crate::context::Context;
use crate::facts::{CreationEnd, CreationRequest, Fact, NewName};
use crate::keys::TraceKey;
use crate::stand_in::{is_stand_in, stand_in};
use crate::windows::Windows;
use crate::windows::stage::Stage;

/// The environment of a plugin whose real one is not visible. The interface is the default of containerd (`eth0`), the
/// arguments are those that containerd passes.
pub(crate) fn parameters(command: CniCommand, container: &str, identity: &PodIdentity, directory: &str) -> TextPairs {
    let mut env = TextPairs::default();
    env.push("CNI_COMMAND", command.as_str());
    env.push("CNI_CONTAINERID", container);
    env.push("CNI_IFNAME", "eth0");
    // The kubelet's names of the arguments: `toCNILabels` of containerd's internal/cri/server/sandbox_run.go.
    let PodIdentity {
        namespace, name, uid, ..
    } = identity;
    env.push(
        "CNI_ARGS",
        &format!("K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID={uid}"),
    );
    env.push("CNI_PATH", directory);
    env
}

impl Windows {
    /// A report of the runtime or of its shim. An end without a begin that was seen is an orphan.
    pub(crate) fn on_runtime_report(&mut self, ctx: &mut Context, at: Timestamp, report: RuntimeReport) {
        match report {
            RuntimeReport::RunBegan { identity, attempt } => self.on_run_begin(ctx, at, identity, attempt),
            RuntimeReport::RunReturned { identity, sandbox } => match self.objects.sandboxes.in_creation(&identity) {
                // The id comes with the end of the creation at the latest; the shim may have named it before.
                Some(number) => {
                    self.rename(ctx, number, &sandbox.0);
                    self.on_creation_end(ctx, at, number, None);
                }
                // It was being created when the agent started.
                None => {
                    self.find_or_insert(ctx, at, &sandbox.0, identity, Stage::Created);
                }
            },
            RuntimeReport::RunFailed { identity, message } => match self.objects.sandboxes.in_creation(&identity) {
                Some(number) => self.on_creation_end(ctx, at, number, Some(message)),
                None => ctx.effects.counters.orphan += 1,
            },
            RuntimeReport::StopBegan { sandbox } => {
                let number = self.find_or_insert(ctx, at, &sandbox.0, PodIdentity::default(), Stage::Stopping);
                self.objects.sandboxes.set_stage(number, Stage::Stopping, at);
                // From here on an exec of a plugin is a DEL, and none was seen yet.
                if let Some(sandbox) = self.objects.sandboxes.get_mut(number) {
                    sandbox.called = false;
                }
                self.objects.learn(ctx, at, number, ObjectKey::Container(sandbox.0));
            }
            RuntimeReport::StopReturned { sandbox, .. } => match self.objects.sandboxes.number_of(&sandbox.0) {
                // HNS gives ports and namespaces of a removed sandbox to others: its keys must not attribute those.
                Some(number) => {
                    self.objects.sandboxes.set_stage(number, Stage::Over, at);
                    self.objects.keys.forget(number);
                    self.objects.report_endpoints(ctx);
                }
                None => ctx.effects.counters.orphan += 1,
            },
            RuntimeReport::ContainerOf { sandbox, container } => {
                let number = self.find_or_insert(ctx, at, &sandbox.0, PodIdentity::default(), Stage::Created);
                self.objects.learn(ctx, at, number, ObjectKey::Container(container));
            }
            RuntimeReport::NamespaceOf { sandbox, namespace } => {
                // The shim names the sandbox, whose id may not be known yet.
                self.on_shim(ctx, &sandbox.0, false);
                let keys = [ObjectKey::Container(sandbox.0), ObjectKey::Namespace(namespace)];
                self.objects.join_keys(ctx, at, &keys);
            }
            // Logged by the shim without the sandbox: the namespace leads to it.
            RuntimeReport::EndpointOf { namespace, endpoint } => {
                let keys = [ObjectKey::Namespace(namespace), ObjectKey::Endpoint(endpoint)];
                self.objects.join_keys(ctx, at, &keys);
            }
            RuntimeReport::ShimLaunched { sandbox, .. } => self.on_shim(ctx, &sandbox.0, true),
            RuntimeReport::Span(span) => self.runtime_span(ctx, at, *span),
        }
    }

    /// The number of the sandbox with this id. One whose begin was not seen is inserted in this stage.
    fn find_or_insert(
        &mut self,
        ctx: &mut Context,
        at: Timestamp,
        id: &str,
        identity: PodIdentity,
        stage: Stage,
    ) -> u64 {
        if let Some(number) = self.objects.sandboxes.number_of(id) {
            return number;
        }
        let number = self.insert(ctx, id, identity, stage, at);
        self.objects.learn(ctx, at, number, ObjectKey::Container(id.to_owned()));
        number
    }

    /// Inserts a sandbox; evicted ones are counted, and their keys are free for others.
    fn insert(&mut self, ctx: &mut Context, id: &str, identity: PodIdentity, stage: Stage, at: Timestamp) -> u64 {
        let (number, evicted) = self.objects.sandboxes.insert(id, identity, stage, at);
        for evicted in evicted {
            self.objects.keys.forget(evicted);
            ctx.effects.counters.evicted_windows += 1;
        }
        number
    }

    /// The runtime begins to create a sandbox: it has no id yet and gets a stand-in, made of pod, attempt and time.
    fn on_run_begin(&mut self, ctx: &mut Context, at: Timestamp, identity: PodIdentity, attempt: u32) {
        let PodIdentity {
            namespace, name, uid, ..
        } = &identity;
        let stand_in = stand_in(&format!("{namespace}/{name}/{uid}/{attempt}/{}", at.0));
        // The same report came twice. Trace ids are made of the stand-in, so a second trace would have the same id.
        if self.objects.sandboxes.had_stand_in(&stand_in) {
            return;
        }
        // The trace opens now, without an exec: its parameters are those that the plugins of this creation will get.
        let env = parameters(CniCommand::Add, &stand_in, &identity, "");
        let number = self.insert(ctx, &stand_in, identity, Stage::Creating, at);
        let request = CreationRequest { number, at, env };
        ctx.facts.push(Fact::CreationRequested(Box::new(request)));
    }

    /// The room of sandboxes opened this trace for a requested creation. The number is that of the request.
    pub(crate) fn on_creation_opened(&mut self, ctx: &mut Context, number: u64, trace: TraceKey) {
        if let Some(sandbox) = self.objects.sandboxes.get_mut(number) {
            sandbox.trace = Some(trace);
        }
        self.objects.report_endpoints(ctx);
    }

    /// The runtime's shim works for the sandbox with this id. Where no sandbox has the id, it is that of the only one
    /// that has been set up and has none.
    pub(super) fn on_shim(&mut self, ctx: &mut Context, id: &str, launched: bool) {
        let number = self.objects.sandboxes.number_of(id).or_else(|| {
            let creating = self.objects.sandboxes.in_stage(Stage::Creating);
            let mut fits = creating.filter(|(_, sandbox)| {
                is_stand_in(&sandbox.container) && sandbox.called && !self.objects.is_busy(ctx, &sandbox.container)
            });
            let (number, _) = fits.next().filter(|_| fits.next().is_none())?;
            Some(number)
        });
        // Of several without an id none is chosen: a wrong name would stay with the trace.
        let Some(number) = number else {
            return;
        };
        self.rename(ctx, number, id);
        if let Some(sandbox) = self.objects.sandboxes.get_mut(number) {
            sandbox.shimmed |= launched;
        }
    }

    /// The runtime named the id of a sandbox: everything under the stand-in moves to the id. Nothing happens where the
    /// sandbox has that id already.
    fn rename(&mut self, ctx: &mut Context, number: u64, id: &str) {
        let Some(before) = self.objects.sandboxes.rename(number, id) else {
            return;
        };
        self.objects.keys.unlearn(&ObjectKey::Container(before.clone()));
        // Everything that is found by the id moves: keys, operations, the trace, and with the fact the other rooms.
        if let Some(operations) = self.objects.operations.remove(&before) {
            self.objects.operations.insert(id.to_owned(), operations);
        }
        let sandbox = self.objects.sandboxes.get(number);
        let trace = sandbox.and_then(|sandbox| sandbox.trace);
        if let Some(trace) = trace {
            ctx.traces.rename_sandbox(trace, id);
        }
        // Every room that knows the stand-in gets the fact: plugins by container id, sandboxes by memory, traffic by owner.
        let name = NewName {
            before,
            id: id.to_owned(),
            trace,
            compartment: sandbox.and_then(|sandbox| sandbox.compartment),
        };
        ctx.facts.push(Fact::SandboxRenamed(Box::new(name)));
        self.objects
            .learn(ctx, ctx.now, number, ObjectKey::Container(id.to_owned()));
    }

    /// The runtime has created the sandbox, or failed to. `failure` is the message of the runtime's log line.
    fn on_creation_end(&mut self, ctx: &mut Context, at: Timestamp, number: u64, failure: Option<String>) {
        // A creation that failed is over for the runtime: its next attempt is a new sandbox.
        let failed = failure.is_some();
        let stage = if failed { Stage::Over } else { Stage::Created };
        self.objects.sandboxes.set_stage(number, stage, at);
        let Some(sandbox) = self.objects.sandboxes.get_mut(number) else {
            return;
        };
        // The next stage begins without a plugin.
        sandbox.called = false;
        let end = CreationEnd {
            at,
            container: sandbox.container.clone(),
            failure,
        };
        let trace = sandbox.trace;
        ctx.facts.push(Fact::CreationReported(trace, Box::new(end)));
        if failed {
            // The next attempt may get the same objects.
            self.objects.keys.forget(number);
        }
        self.objects.report_endpoints(ctx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invocation::Invocation;

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
