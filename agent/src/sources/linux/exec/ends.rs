//! Ends of processes that no record reports: a process that is gone from `/proc`, although its exit was not seen.
//!
//! Used by the feed of the process probe, once a second. An exit's record is lost where the ring is full, and where the kernel skips both
//! programs (`probes/bpf/process.h`); the operation would run for ever in its trace. The kernel writes the record before `/proc` shows
//! the end (kernel/exit.c, do_exit), so it is lost when the ring was read to its end after that.
//! Costs nothing for processes that end within [`LOOK_AFTER_NS`], then a kill(2) without a signal and a read(2) a second for each, for [`FORGET_AFTER_NS`].
//! Does not: find processes whose begin was not seen, or say how a process ended. Looks at none where the agent is in another pid namespace.

use std::collections::HashMap;
use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use sandglass_model::{ProcessKey, Timestamp};

use super::running;

/// Processes whose end is still to be reported.
#[derive(Debug)]
pub struct Ends {
    /// The ids are those of the agent's own pid namespace.
    can_look: bool,
    running: HashMap<ProcessKey, Timestamp>,
    /// Found to be gone since the ring was read to its end.
    gone: Vec<ProcessKey>,
}

impl Ends {
    /// Of no process yet.
    pub fn new(can_look: bool) -> Ends {
        Ends {
            can_look,
            running: HashMap::new(),
            gone: Vec::new(),
        }
    }

    /// A process was forked or executed.
    pub fn on_begin(&mut self, process: ProcessKey, begin: Timestamp) {
        if self.can_look && self.running.len() < PROCESSES_MAX {
            self.running.entry(process).or_insert(begin);
        }
    }

    /// The end of a process is reported.
    pub fn on_exit(&mut self, process: ProcessKey) {
        self.running.remove(&process);
    }

    /// Looks which processes are gone.
    pub fn look(&mut self, now: Timestamp) {
        self.running.retain(|_, begin| now.since(*begin) < FORGET_AFTER_NS);
        let is_due = |begin: &Timestamp| now.since(*begin) >= LOOK_AFTER_NS;
        let due = self.running.iter().filter(|(_, begin)| is_due(begin));
        self.gone = due.map(|(process, _)| *process).filter(is_gone).collect();
        // Parents mostly begin before their children, and end after them.
        self.gone
            .sort_by_key(|process| std::cmp::Reverse((process.start_ticks, process.pid)));
    }

    /// The ring was read to its end: the processes whose end no record reports, children before parents.
    pub fn take_lost(&mut self) -> Vec<ProcessKey> {
        let mut lost = std::mem::take(&mut self.gone);
        lost.retain(|process| self.running.remove(process).is_some());
        lost
    }
}

/// Whether the process has ended: no process has its id, or another one, or it waits for its parent. Where `/proc` does not show it (`hidepid`
/// of proc(5), a security module), only the first is known. A process whose first thread has ended before the others runs on.
fn is_gone(process: &ProcessKey) -> bool {
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    if pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH)) {
        return true;
    }
    let has_other_threads = || {
        let threads = fs::read_dir(format!("/proc/{}/task", process.pid));
        threads.is_ok_and(|threads| threads.flatten().nth(1).is_some())
    };
    match running::first_thread_of(process.pid) {
        None => false,
        Some((start_ticks, _)) if start_ticks != process.start_ticks => true,
        Some((_, has_ended)) => has_ended && !has_other_threads(),
    }
}

/// How long a process runs before it is looked at: most plugins take less.
const LOOK_AFTER_NS: u64 = 1_000_000_000;
/// A process that runs for longer is a daemon that a plugin left behind, or an operation that the correlator has ended.
const FORGET_AFTER_NS: u64 = 600_000_000_000;
/// Plugins, what they started, and steps of the runtime.
const PROCESSES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    const BEGIN: Timestamp = Timestamp(1_000_000_000);

    fn at(seconds: u64) -> Timestamp {
        BEGIN.plus(seconds * 1_000_000_000)
    }

    /// A process that waits for its input, and its key.
    fn cat() -> (Child, ProcessKey) {
        let mut command = Command::new("cat");
        command.stdin(std::process::Stdio::piped());
        let child = command.spawn().unwrap();
        let (key, _) = running::key_of(child.id()).unwrap();
        (child, key)
    }

    /// A process that runs is not gone. One that has ended is, whether or not its parent has waited for it; its end is reported once.
    #[test]
    fn a_process_that_is_gone_without_a_record_has_ended() {
        let mut ends = Ends::new(true);
        let (mut child, process) = cat();
        ends.on_begin(process, BEGIN);
        ends.look(at(2));
        assert_eq!(ends.take_lost(), []);
        drop(child.stdin.take());
        // Until the process is a zombie, which only waiting for it would end.
        while running::first_thread_of(process.pid).is_some_and(|(_, has_ended)| !has_ended) {
            std::thread::yield_now();
        }
        ends.look(at(3));
        assert_eq!(ends.take_lost(), [process]);
        ends.on_begin(process, BEGIN);
        child.wait().unwrap();
        ends.look(at(4));
        assert_eq!((ends.take_lost(), ends.take_lost()), (vec![process], vec![]));
        ends.look(at(5));
        assert_eq!(ends.take_lost(), []);
    }

    /// Neither is one whose record is read after it was found to be gone, a process that began a moment ago, one that began long ago, or one
    /// in another pid namespace.
    #[test]
    fn what_is_reported_or_cannot_be_known_is_not_lost() {
        let (mut child, process) = cat();
        child.kill().unwrap();
        child.wait().unwrap();
        let mut ends = Ends::new(true);
        ends.on_begin(process, BEGIN);
        ends.look(at(0));
        assert_eq!(ends.take_lost(), []);
        ends.look(at(2));
        ends.on_exit(process);
        assert_eq!(ends.take_lost(), []);
        ends.on_begin(process, BEGIN);
        ends.look(at(600));
        assert_eq!(ends.take_lost(), []);

        let mut blind = Ends::new(false);
        blind.on_begin(process, BEGIN);
        blind.look(at(2));
        assert_eq!(blind.take_lost(), []);
    }

    /// This process is there; one that began at another time and had the same id is not.
    #[test]
    fn another_process_with_the_same_id_is_none() {
        let (process, _) = running::key_of(std::process::id()).unwrap();
        assert!(!is_gone(&process));
        let other = ProcessKey {
            start_ticks: process.start_ticks + 1,
            ..process
        };
        assert!(is_gone(&other));
    }
}
