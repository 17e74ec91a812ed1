//! What comes out of the correlator: outputs, open traces, deadlines, counters.
//!
//! Used by the pipeline, `snapshots.rs`, replays and benchmarks. Reading changes nothing but what is drained: outputs, and the
//! list of open traces that changed. What was handled can be given back for its memory.

use std::collections::BTreeSet;

use sandglass_model::network::DnsMessage;
use sandglass_model::{Timestamp, Trace, TraceId};

use crate::correlator::Correlator;
use crate::counters::{Counters, Sizes};
use crate::finding::Finding;
use crate::output::Output;

impl Correlator {
    /// Outputs since the last call, in the order in which they came about.
    pub fn drain(&mut self) -> Vec<Output> {
        let mut outputs = Vec::new();
        self.drain_into(&mut outputs);
        outputs
    }

    /// The same as [`drain`](Correlator::drain), appended to `outputs`, whose capacity a caller can keep.
    pub fn drain_into(&mut self, outputs: &mut Vec<Output>) {
        outputs.append(&mut self.ctx.effects.outputs);
    }

    /// Takes an output back that was handled, for its memory.
    pub fn reuse(&mut self, output: Output) {
        if let Output::Finding(Finding::Lookup(ended)) = output {
            self.ctx.effects.keep_ended(ended);
        }
    }

    /// DNS messages that were handled, for a source to fill again. A caller without a use for them can leave them: they are
    /// bounded.
    #[allow(clippy::vec_box, reason = "the box is what is used again")]
    pub fn spent_messages(&mut self) -> &mut Vec<Box<DnsMessage>> {
        &mut self.ctx.effects.spent
    }

    /// Open traces, oldest first.
    pub fn open(&self) -> impl Iterator<Item = &Trace> {
        self.ctx.traces.iter().map(|open| &open.trace)
    }

    /// Copies of the open traces of a Windows node whose sandboxes have HNS or HCS activities running, with those
    /// activities as spans without an end. For all other traces use [`open`](Correlator::open). Empty on Linux.
    #[must_use]
    pub fn with_running(&self) -> Vec<Trace> {
        self.windows.with_running(&self.ctx)
    }

    /// The open trace with this id; the oldest if several share it, which happens when a runtime passes one
    /// `TRACEPARENT` to several operations.
    #[must_use]
    pub fn open_trace(&self, id: TraceId) -> Option<&Trace> {
        self.ctx.traces.find(id).map(|open| &open.trace)
    }

    /// When the next timer fires if nothing else happens: the source of ticks must send one then. `None` when no timer
    /// is set.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.ctx.effects.timers.first()
    }

    /// Losses since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            evicted_owners: self.traffic.evicted_owners(),
            ..self.ctx.effects.counters
        }
    }

    /// How full the tables are.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        let mut sizes = Sizes {
            traces: self.ctx.traces.len(),
            ..Sizes::default()
        };
        self.plugins.fill_sizes(&mut sizes);
        self.sandboxes.fill_sizes(&mut sizes);
        self.traffic.fill_sizes(&mut sizes);
        self.windows.fill_sizes(&mut sizes);
        sizes
    }

    /// An open trace changed since [`take_changed`](Correlator::take_changed) was last called.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        !self.ctx.effects.changed.is_empty()
    }

    /// The open traces that changed since the last call: take a fresh copy of each with [`Correlator::open`].
    pub fn take_changed(&mut self) -> BTreeSet<TraceId> {
        let mut changed = BTreeSet::new();
        for key in self.ctx.effects.changed.drain(..) {
            if let Some(open) = self.ctx.traces.get_mut(key) {
                open.clean();
                changed.insert(open.trace.id);
            }
        }
        changed
    }
}
