//! What a runtime itself reports of a sandbox: its id, and how its creation ended (Windows).

use crate::context::Context;
use crate::facts::{CreationEnd, NewName};
use crate::keys::TraceKey;
use crate::open_trace::CREATE;
use crate::output::Output;
use crate::sandboxes::Sandboxes;
use crate::sandboxes::memory::pod_key;

impl Sandboxes {
    /// The runtime has created the sandbox, or given up.
    pub(crate) fn on_creation_reported(&mut self, ctx: &mut Context, trace: TraceKey, end: CreationEnd) {
        let (Some(open), Some(creation)) = (ctx.traces.get_mut(trace), self.creations.get_mut(trace)) else {
            return;
        };
        if open.is_created() {
            return;
        }
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

    /// The runtime has reported the sandbox's id: everything remembered under the earlier one moves.
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
        if let Some(remembered) = self.memory.sandboxes.get(before).cloned() {
            let pod = pod_key(&remembered.identity);
            let attempt = pod.and_then(|pod| self.memory.pods.get_mut(&pod));
            if let Some(attempt) = attempt.filter(|attempt| attempt.sandbox == *before) {
                id.clone_into(&mut attempt.sandbox);
            }
            self.remember(ctx, id, remembered);
        }
    }

    /// The sandbox's traffic can be attributed now.
    pub(crate) fn on_network_known(&mut self, trace: TraceKey) {
        if let Some(creation) = self.creations.get_mut(trace) {
            creation.network_known = true;
        }
    }
}
