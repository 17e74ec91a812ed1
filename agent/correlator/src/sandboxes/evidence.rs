//! What others say of a sandbox: the steps of its runtime, its network namespace, the CRI.
//!
//! Each only adds to traces that the plugins have opened; nothing here opens one.

use sandglass_model::event::{ExitStatus, Netns, SandboxDescription};
use sandglass_model::time::SECOND;
use sandglass_model::trace::{Detail, RuntimeStep, RuntimeStepDetail, Status};
use sandglass_model::{Timestamp, registry};

use crate::correlator::{Correlator, Output};
use crate::open::{Cut, SpanRef, TraceKey};
use crate::plugins::invocation::{Image, failure_of};
use crate::plugins::operations::OperationRef;
use crate::sandboxes::CREATE;
use crate::sandboxes::memory;

/// A namespace older than this was not made for this sandbox now.
const NETNS_REACH_NS: u64 = 60 * SECOND;

impl Correlator {
    /// A step of the runtime began. `None` when it is not for a sandbox that is being created.
    pub(crate) fn step_began(&mut self, at: Timestamp, image: Image, step: RuntimeStep, id: &str) -> Option<SpanRef> {
        let key = *self.creations.get(id)?;
        let (process, running) = (image.process, image.running);
        // The runtime goes on: its operations are over.
        let idle: Vec<OperationRef> = self
            .attached
            .get(id)
            .into_iter()
            .flatten()
            .filter(|reference| {
                reference.trace == key
                    && self
                        .traces
                        .get(key)
                        .is_some_and(|open| open.operations[reference.operation].is_idle())
            })
            .copied()
            .collect();
        let open = self.traces.get_mut(key)?;
        let detail = Detail::RuntimeStep(Box::new(RuntimeStepDetail {
            step,
            process: image.into_detail(&mut self.names),
        }));
        let Some(span) = open.begin(Some(CREATE), at, detail) else {
            open.trace.incomplete = true;
            self.effects.counters.evicted_spans += 1;
            return None;
        };
        open.states[span].process = Some(process);
        open.trace.incomplete |= running;
        if let Some(creation) = &mut open.creation {
            creation.running_steps.push((span, at));
            creation.awaits_runtime = true;
        }
        open.touch(&mut self.effects);
        for reference in idle {
            self.close_operation(reference);
        }
        self.review(key);
        Some(SpanRef { trace: key, span })
    }

    /// A step of the runtime ended.
    pub(crate) fn step_ended(&mut self, at: Timestamp, reference: SpanRef, how: ExitStatus) {
        let SpanRef { trace: key, span } = reference;
        let Some(open) = self.traces.get_mut(key).filter(|open| open.is_open(span)) else {
            return;
        };
        let Detail::RuntimeStep(step) = &mut open.trace.spans[span].detail else {
            return;
        };
        step.process.exit = Some(how);
        let starts = step.step == RuntimeStep::Start && how.is_success();
        let failure = failure_of(&open.trace.spans[span], how);
        open.trace.incomplete |= how == ExitStatus::Unknown;
        if let Some((class, message)) = &failure {
            open.trace.spans[span].status = Status::Error {
                class: (*class).to_owned(),
                message: message.clone(),
            };
        }
        open.end(span, at, Cut::Outlived, &mut self.effects);
        if let Some(creation) = &mut open.creation {
            creation.running_steps.retain(|(running, _)| *running != span);
            creation.started |= starts;
            creation.failed_step = creation.failed_step.take().or(failure.map(|(_, message)| message));
        }
        self.review(key);
    }

    pub(crate) fn netns_observed(&mut self, netns: &Netns) {
        let (inode, sandbox) = (netns.inode, &netns.sandbox.0);
        let new = self.watch.owners.own_since(inode, sandbox, netns.created, self.now);
        self.begin_with(netns);
        if new {
            self.find_owners(inode);
        }
    }

    /// A sandbox that is being created begins with its namespace.
    fn begin_with(&mut self, netns: &Netns) {
        let Some(key) = self.creations.get(&netns.sandbox.0) else {
            // Operations on a sandbox that exists have a namespace too, but no use for its begin.
            if self.memory.sandboxes.get(&netns.sandbox.0).is_none() {
                self.effects.counters.orphan += 1;
            }
            return;
        };
        let Some(open) = self.traces.get_mut(*key) else {
            return;
        };
        if let Some(creation) = &mut open.creation {
            creation.readiness.known |= netns.inode != 0;
        }
        let Some(created) = netns.created else {
            return;
        };
        let first = open.trace.start();
        if let Some(Detail::SandboxCreate(create)) = open.trace.spans.get_mut(CREATE).map(|span| &mut span.detail)
            && !create.netns_seen
            && created < first
            && first.since(created) <= NETNS_REACH_NS
        {
            create.netns_seen = true;
            open.begin_earlier(created);
            if let Some(there) = netns.there {
                open.mark(CREATE, there, registry::EVENT_NETNS, &[]);
            }
            open.touch(&mut self.effects);
        }
    }

    pub(crate) fn sandbox_described(&mut self, at: Timestamp, described: &SandboxDescription) {
        let id = &described.sandbox.0;
        let mut known = false;
        let creations = self.creations.get(id).into_iter().chain(self.waiting.get(id));
        let open = creations.chain(
            self.attached
                .get(id)
                .into_iter()
                .flatten()
                .map(|reference| &reference.trace),
        );
        for key in open {
            if let Some(open) = self.traces.get_mut(*key) {
                known = true;
                open.trace.identity.merge(&described.identity);
                if let Some(creation) = &mut open.creation {
                    creation.described = true;
                }
                open.touch(&mut self.effects);
            }
        }
        self.labels_told(described);
        if let Some(sandbox) = self.memory.sandboxes.get_mut(id) {
            known = true;
            sandbox.identity.merge(&described.identity);
        }
        if known || !described.preexisting || id.is_empty() {
            return;
        }
        let sandbox = memory::Sandbox {
            identity: described.identity.clone(),
            created: true,
            ..memory::Sandbox::default()
        };
        self.remember(id, sandbox);
        let created = match described.created_unix_ns {
            0 => at,
            unix_ns => self.anchor.boot(unix_ns),
        };
        self.effects.outputs.push(Output::Known {
            sandbox: described.sandbox.clone(),
            identity: described.identity.clone(),
            created,
        });
    }

    /// The runtime removes a sandbox whose creation was not seen to end.
    pub(crate) fn remove_sandbox(&mut self, key: TraceKey) {
        if let Some(creation) = self.traces.get_mut(key).and_then(|open| open.creation.as_mut()) {
            creation.removed = true;
        }
        self.review(key);
    }
}
