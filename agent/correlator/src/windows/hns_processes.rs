//! Which processes log as HNS, by the process that events of its provider name in their headers.
//!
//! A leaf of the room of Windows: `restarts.rs` acts on what it reports. HNS is one service of one process, so a new
//! process is a restart; but a process that logs again later had not ended, and a change from one to the other means
//! nothing then. Does not: know activities.

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
pub(super) enum Logged {
    /// HNS runs as before.
    AsBefore,
    /// HNS was started again, in place of this process if its end was not seen.
    Restarted(Option<u32>),
}

impl HnsProcesses {
    /// A process logged as HNS.
    pub(super) fn logs(&mut self, pid: u32) -> Logged {
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
    pub(super) fn ends(&mut self, pid: u32) -> bool {
        let before = self.known.len();
        self.known.retain(|known| *known != pid);
        self.current = self.current.filter(|current| *current != pid);
        self.known.len() < before
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
