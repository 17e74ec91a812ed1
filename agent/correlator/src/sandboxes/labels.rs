//! Holds complete traces back for the labels of their pod, which only the runtime can report, and only once it has made
//! the sandbox.
//!
//! Used by `closing.rs` and `evidence.rs`. Labels are requested when the creation is over; a runtime responds to
//! `PodSandboxStatus` (CRI) only for a sandbox that exists. A trace that is complete before the response waits for it
//! for `labels_wait_ns` and then goes out without labels.
//! Does not: hold back a trace for which no response can come (no pod, or a creation that failed).

use std::collections::VecDeque;
use std::sync::Arc;

use sandglass_model::event::SandboxDescription;
use sandglass_model::{Timestamp, Trace};

use crate::config::CorrelatorConfig;
use crate::effects::Effects;
use crate::output::Output;
use crate::timers::Timer;

/// Complete traces, each with the time at which it goes out without labels. All wait equally long, so the front is due
/// first.
#[derive(Debug, Default)]
pub(crate) struct HeldBack(VecDeque<(Timestamp, Arc<Trace>)>);

/// Bound on traces held back. Beyond it the oldest is emitted without labels.
const MAX_HELD_BACK: usize = 1_024;

/// Emits the creation of a sandbox, and requests its labels if they are unknown.
pub(crate) fn give_out_created(trace: Arc<Trace>, unlabelled: bool, effects: &mut Effects) {
    let request = trace.sandbox.clone().filter(|_| unlabelled);
    effects.outputs.push(Output::Created(trace));
    effects.outputs.extend(request.map(Output::LabelsNeeded));
}

impl HeldBack {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Holds a complete trace back, or emits it at once where the configured wait is 0.
    pub(crate) fn push(&mut self, trace: Arc<Trace>, now: Timestamp, config: &CorrelatorConfig, effects: &mut Effects) {
        let until = now.plus(config.labels_wait_ns);
        if until <= now {
            return effects.outputs.push(Output::Closed(trace));
        }
        if self.0.len() >= MAX_HELD_BACK {
            let oldest = self.0.pop_front();
            effects.outputs.extend(oldest.map(|(_, oldest)| Output::Closed(oldest)));
        }
        self.0.push_back((until, trace));
        self.set_timer(effects);
    }

    /// The runtime reported a sandbox: its trace is emitted with these labels.
    pub(crate) fn on_described(&mut self, described: &SandboxDescription, effects: &mut Effects) {
        let mut traces = self.0.iter();
        let Some(index) = traces.position(|(_, trace)| trace.sandbox.as_ref() == Some(&described.sandbox)) else {
            return;
        };
        if let Some((_, mut trace)) = self.0.remove(index) {
            Arc::make_mut(&mut trace).identity.merge(&described.identity);
            effects.outputs.push(Output::Closed(trace));
        }
        self.set_timer(effects);
    }

    /// Emits the traces whose wait is over at `now`.
    pub(crate) fn release(&mut self, now: Timestamp, effects: &mut Effects) {
        while let Some((until, _)) = self.0.front()
            && *until <= now
            && let Some((_, trace)) = self.0.pop_front()
        {
            effects.outputs.push(Output::Closed(trace));
        }
        self.set_timer(effects);
    }

    /// One timer for all: it is always set to the front's time.
    fn set_timer(&self, effects: &mut Effects) {
        match self.0.front() {
            Some((until, _)) => effects.timers.set(Timer::Labels, *until),
            None => effects.timers.clear(Timer::Labels),
        }
    }
}
