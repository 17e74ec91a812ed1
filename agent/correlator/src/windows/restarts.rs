//! Restarts of HNS: a process that is gone takes along the activities that it had begun.
//!
//! Used by `correlator.rs` and `activities.rs`. The end of the process shows a restart, and so does another process that
//! begins to log in its place, for sessions in which ends of processes are not reported (`hns_processes.rs` tells them
//! apart). Does not: guess what the activities would have come to; they end as interrupted.

use sandglass_model::Timestamp;

use crate::context::Context;
use crate::finding::Finding;
use crate::output::Output;
use crate::windows::Windows;
use crate::windows::hns_processes::Logged;
use crate::windows::nest::Nest;

impl Windows {
    /// A process logged as HNS. A restart is a finding.
    pub(crate) fn hns_logged(&mut self, ctx: &mut Context, at: Timestamp, pid: u32) {
        if let Logged::Restarted(before) = self.hns.logs(pid) {
            ctx.effects.outputs.push(Output::Finding(Finding::HnsRestarted));
            if let Some(before) = before {
                self.hns_interrupted(ctx, at, before);
            }
        }
    }

    /// A process of the node ended; rarely it is HNS's.
    pub(crate) fn on_process_exit(&mut self, ctx: &mut Context, at: Timestamp, pid: u32) {
        if self.hns.ends(pid) {
            self.hns_interrupted(ctx, at, pid);
        }
    }

    /// Ends and attributes the activities of a process of HNS that is gone.
    fn hns_interrupted(&mut self, ctx: &mut Context, at: Timestamp, pid: u32) {
        let mut numbers = Vec::new();
        for (number, ended) in self.activities.interrupt(at, pid) {
            numbers.push(number);
            let ended = Finding::Activity(Box::new(ended));
            ctx.effects.outputs.push(Output::Finding(ended));
        }
        for number in numbers {
            if let Some(activities) = self.activities.take_whole(number) {
                self.objects.nest_ended(ctx, at, Nest::new(activities));
            }
        }
    }
}
