//! The labels of a sandbox's pod: only the runtime can tell them, and only once it has made the sandbox.
//!
//! It is asked when the creation is over. A trace that is complete before the answer is there is held back a moment for
//! it; without one it goes out without labels. Does not: wait where nobody can answer (no pod, a creation that failed).

use std::collections::VecDeque;
use std::sync::Arc;

use sandglass_model::event::SandboxDescription;
use sandglass_model::{Timestamp, Trace};

use crate::correlator::{Correlator, Output};
use crate::open::OpenTrace;
use crate::timers::Timer;
use crate::windows::is_unnamed;

/// Complete traces that wait for their labels, and until when: all wait equally long, so the oldest is due first.
pub(crate) type Unlabelled = VecDeque<(Timestamp, Arc<Trace>)>;

/// Most traces that wait; the oldest goes out without labels.
const MAX_UNLABELLED: usize = 1_024;

impl OpenTrace {
    /// It is a pod's sandbox that the runtime has made, and has not told of.
    pub(crate) fn wants_labels(&self) -> bool {
        let creation = self.creation.as_ref();
        let named = self.trace.sandbox.as_ref().is_some_and(|id| !is_unnamed(&id.0));
        named
            && creation.is_some_and(|creation| !creation.described && !creation.removed)
            && !self.trace.identity.name.is_empty()
            && !self.trace.spans[0].status.is_error()
    }
}

impl Correlator {
    /// The creation of a sandbox is over.
    pub(crate) fn tell_created(&mut self, trace: Arc<Trace>, unlabelled: bool) {
        let asked = trace.sandbox.clone().filter(|_| unlabelled);
        self.effects.outputs.push(Output::Created(trace));
        self.effects.outputs.extend(asked.map(Output::Asked));
    }

    /// Keeps a complete trace until its labels are told, or were waited for long enough.
    pub(crate) fn hold_back(&mut self, trace: Arc<Trace>) {
        let until = self.now.plus(self.config.labels_wait_ns);
        if until <= self.now {
            return self.effects.outputs.push(Output::Closed(trace));
        }
        if self.unlabelled.len() >= MAX_UNLABELLED {
            let oldest = self.unlabelled.pop_front();
            self.effects
                .outputs
                .extend(oldest.map(|(_, oldest)| Output::Closed(oldest)));
        }
        self.unlabelled.push_back((until, trace));
        self.await_labels();
    }

    /// The runtime has told of a sandbox.
    pub(crate) fn labels_told(&mut self, described: &SandboxDescription) {
        let mut waiting = self.unlabelled.iter();
        let Some(index) = waiting.position(|(_, trace)| trace.sandbox.as_ref() == Some(&described.sandbox)) else {
            return;
        };
        if let Some((_, mut trace)) = self.unlabelled.remove(index) {
            Arc::make_mut(&mut trace).identity.merge(&described.identity);
            self.effects.outputs.push(Output::Closed(trace));
        }
        self.await_labels();
    }

    /// Gives out the traces that have waited long enough at `now`.
    pub(crate) fn release_unlabelled(&mut self, now: Timestamp) {
        while let Some((until, _)) = self.unlabelled.front()
            && *until <= now
            && let Some((_, trace)) = self.unlabelled.pop_front()
        {
            self.effects.outputs.push(Output::Closed(trace));
        }
        self.await_labels();
    }

    fn await_labels(&mut self) {
        match self.unlabelled.front() {
            Some((until, _)) => self.effects.timers.set(Timer::Labels, *until),
            None => self.effects.timers.clear(Timer::Labels),
        }
    }
}
