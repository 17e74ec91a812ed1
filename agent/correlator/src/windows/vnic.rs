//! From the end of ADD to the sandbox's interface: on Windows the plugin returns before the interface is there.
//!
//! An interface that comes up in the sandbox's compartment says that it is there; where none is seen, the end of the
//! endpoint's attachment does. A CHECK that runs meanwhile shows the same wait.

use sandglass_model::trace::{Detail, VnicWaitDetail};
use sandglass_model::windows::{InterfaceStep, ObjectKey};
use sandglass_model::{CniCommand, Timestamp};

use super::{Sandbox, Stage};
use crate::correlator::Correlator;
use crate::open::{Cut, OpenTrace, TraceKey};
use crate::sandboxes::CREATE;

impl Correlator {
    pub(crate) fn interface_seen(&mut self, at: Timestamp, step: InterfaceStep) {
        // The node's own.
        if !step.added || step.compartment == 1 {
            return;
        }
        let key = ObjectKey::Compartment(step.compartment);
        let number = self.windows.keys.owner(&key).or_else(|| {
            let waits = |sandbox: &Sandbox| sandbox.called && !sandbox.vnic && sandbox.compartment.is_none();
            let asked = self
                .windows
                .in_stage(Stage::Asked)
                .filter(|(_, sandbox)| waits(sandbox));
            let created = self.windows.in_stage(Stage::Created).filter(|(_, sandbox)| {
                !sandbox.vnic && sandbox.trace.is_some_and(|key| self.traces.get(key).is_some())
            });
            let mut waiting = asked.chain(created).map(|(number, _)| number);
            waiting.next().filter(|_| waiting.next().is_none())
        });
        let Some(number) = number else {
            return;
        };
        self.learn(at, number, key);
        self.vnic_seen(at, number, "interface added");
    }

    /// The sandbox's interface is there.
    fn vnic_seen(&mut self, at: Timestamp, number: u64, evidence: &str) {
        let Some(sandbox) = self.windows.sandboxes.get_mut(&number) else {
            return;
        };
        if std::mem::replace(&mut sandbox.vnic, true) {
            return;
        }
        let detail = || {
            Detail::VnicWait(Box::new(VnicWaitDetail {
                endpoint: sandbox.endpoint.clone(),
                evidence: evidence.to_owned(),
            }))
        };
        let checks = self.attached.get(&sandbox.container).into_iter().flatten();
        let checks = checks
            .map(|reference| reference.trace)
            .filter(|key| Some(*key) != sandbox.trace);
        let mut waits: Vec<(TraceKey, usize, Timestamp)> = checks
            .filter_map(|key| {
                let open = self.traces.get(key)?;
                let span =
                    (0..open.trace.spans.len()).find(|&span| open.states[span].in_chain && open.is_open(span))?;
                Some((key, span, open.trace.spans[span].start))
            })
            .collect();
        if let Some(open) = sandbox.trace.and_then(|key| self.traces.get(key))
            && let Some(added) = added_at(open).filter(|added| *added < at)
        {
            let holds = |span: usize| open.trace.spans[span].end.is_none_or(|end| at <= end);
            if let Some(span) = [CREATE, 0].into_iter().find(|&span| holds(span)) {
                waits.push((open.key, span, added));
            }
        }
        let detail = detail();
        for (key, parent, from) in waits {
            let Some(open) = self.traces.get_mut(key) else {
                continue;
            };
            match open.begin(Some(parent), from, detail.clone()) {
                Some(span) => open.end(span, at, Cut::Outlived, &mut self.effects),
                None => self.effects.counters.evicted_spans += 1,
            }
        }
    }

    /// The trace is about to be over: what is known of the endpoint has to do.
    pub(crate) fn settle_vnic(&mut self, key: TraceKey) {
        let container = self.traces.get(key).map_or("", |open| open.sandbox());
        let Some(number) = self.windows.number_of(container) else {
            return;
        };
        let made = |sandbox: &&Sandbox| sandbox.trace == Some(key) && !sandbox.vnic;
        let Some(sandbox) = self.windows.sandboxes.get(&number).filter(made) else {
            return;
        };
        let added = self.traces.get(key).and_then(added_at);
        if let (Some(attached), Some(added)) = (sandbox.attached, added)
            && added < attached
        {
            self.vnic_seen(attached, number, "endpoint attached");
        }
    }
}

/// When the last ADD of the trace had ended well.
fn added_at(open: &OpenTrace) -> Option<Timestamp> {
    let mut adds = open
        .operations
        .iter()
        .filter(|operation| operation.command == CniCommand::Add);
    if adds.clone().any(|operation| operation.running > 0) {
        return None;
    }
    let last = adds.rfind(|operation| !operation.failed)?;
    Some(open.states[last.span].latest)
}
