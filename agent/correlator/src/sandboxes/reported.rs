//! Handles what a runtime itself reports of a sandbox: its id, and how its creation ended (Windows).
//!
//! Used by `correlator.rs` with facts of the room of Windows, which reads them from containerd's ETW provider. On Linux
//! both follow from the processes that the runtime executes. Does not: decide when the trace closes.

use crate::context::Context;
use crate::facts::{CreationEnd, NewName};
use crate::keys::TraceKey;
use crate::open_trace::CREATE;
use crate::output::Output;
use crate::sandboxes::Sandboxes;
use crate::sandboxes::memory::pod_key;

impl Sandboxes {
    /// The runtime has created the sandbox, or failed to.
    pub(crate) fn on_creation_reported(&mut self, ctx: &mut Context, trace: TraceKey, end: CreationEnd) {
        let (Some(open), Some(creation)) = (ctx.traces.get_mut(trace), self.creations.get_mut(trace)) else {
            return;
        };
        // The report came twice, or the creation ended by something else, such as the timeout of its trace.
        if open.is_created() {
            return;
        }
        // The creation ends with the runtime's report and not with its last span: what lies between is the runtime's time.
        if open.is_open(CREATE) {
            open.states[CREATE].latest = open.states[CREATE].latest.max(end.at);
        }
        creation.started = end.failure.is_none();
        creation.failed_step = end.failure.map(|message| match message.as_str() {
            "" => "the runtime could not make the sandbox".to_owned(),
            _ => message,
        });
        open.touch(&mut ctx.effects);
    }

    /// The runtime reported the id of a sandbox that had a stand-in: everything remembered under the stand-in moves to
    /// the id, and labels are requested now if the creation ended before.
    pub(crate) fn on_renamed(&mut self, ctx: &mut Context, name: &NewName) {
        let NewName { before, id, trace, .. } = name;
        if let Some(open) = trace.and_then(|trace| ctx.traces.get_mut(trace)) {
            open.touch(&mut ctx.effects);
            if open.is_created() {
                ctx.effects
                    .outputs
                    .extend(open.trace.sandbox.clone().map(Output::LabelsNeeded));
            }
        }
        // Attempts are counted by pod and linked by sandbox id: both must find the sandbox under its new id.
        if let Some(remembered) = self.memory.sandboxes.get(before).cloned() {
            let pod = pod_key(&remembered.pod.identity());
            let id = self.remember(ctx, id, remembered);
            let attempt = pod.and_then(|pod| self.memory.pods.get_mut(&pod));
            if let Some(attempt) = attempt.filter(|attempt| *attempt.sandbox == **before) {
                attempt.sandbox = id;
            }
        }
    }

    /// The sandbox's traffic can be attributed from now on, so its readiness can be decided.
    pub(crate) fn on_network_known(&mut self, trace: TraceKey) {
        if let Some(creation) = self.creations.get_mut(trace) {
            creation.network_known = true;
        }
    }
}
