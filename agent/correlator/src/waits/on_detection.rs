//! Events about duplicate address detection in the room of waits, and the sleeps that were waits for it.
//!
//! Called by `correlator.rs`, and by the room for each path. Does not: judge how sure it is (`detection.rs` does).

use sandglass_model::waits::{TentativeSeen, TimeReason};
use sandglass_model::{ProcessKey, Timestamp};

use crate::waits::Waits;
use crate::waits::path::{Segment, State};

impl Waits {
    /// Which addresses are tentative in the namespace that a process works in.
    pub(crate) fn on_tentative(&mut self, at: Timestamp, seen: &TentativeSeen) {
        if let Some(root) = self.processes.get(&seen.process).map(|process| process.root) {
            self.detections.on_seen(at, root, seen);
        }
    }

    /// Sleeps on the path of a process that were waits for a detection get it as their reason.
    pub(super) fn find_detections(&mut self, process: ProcessKey, path: &mut [Segment]) {
        let Some(root) = self.processes.get(&process).map(|process| process.root) else {
            return;
        };
        let timers: Vec<usize> = (0..path.len()).filter(|at| self.is_timer(&path[*at])).collect();
        for (evidence, sleeps) in self.detections.find(root, path, &timers) {
            let index = self.evidence_index(evidence);
            for at in sleeps {
                path[at].state = State::Asleep(index);
            }
        }
    }

    /// A sleep that a timer ended: the thread's own, or one with a timeout in which it waited for the others of its program.
    fn is_timer(&self, segment: &Segment) -> bool {
        let State::Asleep(evidence) = segment.state else {
            return false;
        };
        let known = self.evidence.get(evidence);
        known.is_some_and(|known| {
            known.reason == TimeReason::Timer || (known.reason == TimeReason::Thread && known.by.is_empty())
        })
    }
}
