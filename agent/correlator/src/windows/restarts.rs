//! Notices restarts of HNS, by the process that its events name in their headers.
//!
//! Used by `windows.rs` and `activities.rs`. A process that ends takes along the activities that it had begun. So does
//! one in whose place another begins to log, for sessions in which ends of processes are not reported. A process that
//! logs again later had not ended: then several processes log as HNS, and a change from one to the other means nothing.

use sandglass_model::Timestamp;

use crate::context::Context;
use crate::finding::Finding;
use crate::output::Output;
use crate::windows::Windows;
use crate::windows::nest::Nest;

/// Processes that log as HNS.
#[derive(Debug, Default)]
pub(crate) struct HnsProcesses {
    /// The process that logged last, unless it has ended.
    current: Option<u32>,
    /// All processes that logged and have not ended.
    known: Vec<u32>,
    /// A process logged before: the next new one is a restart.
    seen: bool,
}

/// Bound on processes; HNS is one service, so several are rare.
const MAX_KNOWN: usize = 8;

/// What an event of this process means.
#[derive(Debug, PartialEq, Eq)]
enum Logged {
    /// HNS runs as before.
    AsBefore,
    /// HNS was started again, in place of this process if its end was not seen.
    Restarted(Option<u32>),
}

impl HnsProcesses {
    /// A process logged as HNS.
    fn logs(&mut self, pid: u32) -> Logged {
        // Facts without a process are none of HNS's own.
        if pid == 0 || self.current == Some(pid) {
            return Logged::AsBefore;
        }
        // A change of process is no restart if the process is known: then several log.
        let before = self.current.replace(pid);
        if self.known.contains(&pid) {
            return Logged::AsBefore;
        }
        if self.known.len() >= MAX_KNOWN {
            self.known.remove(0);
        }
        self.known.push(pid);
        match std::mem::replace(&mut self.seen, true) {
            true => Logged::Restarted(before),
            false => Logged::AsBefore,
        }
    }

    /// A process ended. Returns whether it was one of them.
    fn ends(&mut self, pid: u32) -> bool {
        let before = self.known.len();
        self.known.retain(|known| *known != pid);
        self.current = self.current.filter(|current| *current != pid);
        self.known.len() < before
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_is_a_restart_once() {
        let mut hns = HnsProcesses::default();
        assert_eq!(
            (hns.logs(0), hns.logs(900), hns.logs(900)),
            (Logged::AsBefore, Logged::AsBefore, Logged::AsBefore)
        );
        assert_eq!(hns.logs(901), Logged::Restarted(Some(900)));
        // The first is alive: both log as HNS.
        assert_eq!((hns.logs(900), hns.logs(901)), (Logged::AsBefore, Logged::AsBefore));
        // A process that ended is replaced by none, and its pid can be reused.
        assert!(hns.ends(901) && !hns.ends(901) && !hns.ends(5));
        assert_eq!(hns.logs(901), Logged::Restarted(None));
        for pid in 1..100 {
            hns.logs(pid);
        }
        assert_eq!(hns.known.len(), MAX_KNOWN);
    }
}
