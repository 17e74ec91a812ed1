//! Daemons that have a request in flight, and their threads.
//!
//! Used by the room of waits. Bounded: [`BUSY_MAX`] daemons, and the threads of each (`threads.rs`). Does not: know requests.

use std::collections::BTreeMap;

use sandglass_model::{ProcessKey, SmolStr, Timestamp};

use crate::daemon_path::ThreadAt;
use crate::waits::known::Known;
use crate::waits::threads::Threads;

/// Daemons that have a request in flight.
#[derive(Debug, Default)]
pub(crate) struct BusyDaemons {
    by_process: BTreeMap<ProcessKey, BusyDaemon>,
    /// For which times there are records of their threads' waits.
    pub(crate) known: Known,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct BusyDaemon {
    pub(crate) name: SmolStr,
    pub(crate) threads: Threads,
    /// By process that one of its threads has woken, which one did last, and when: who waited for an answer was woken by its sending.
    woken: BTreeMap<ProcessKey, ThreadAt>,
    /// Since when there is no room for more of its waits.
    pub(crate) full_from: Option<Timestamp>,
}

/// Processes that wait for a daemon at one time.
const WOKEN_MAX: usize = 256;
/// A node has a few daemons for its network.
const BUSY_MAX: usize = 16;

impl BusyDaemons {
    /// It has a request from now on. What its threads did before is not known.
    pub(crate) fn add(&mut self, process: ProcessKey, name: &SmolStr) {
        if self.by_process.len() < BUSY_MAX {
            self.by_process.entry(process).or_insert_with(|| BusyDaemon {
                name: name.clone(),
                threads: Threads::of_daemon(),
                woken: BTreeMap::new(),
                full_from: None,
            });
        }
    }

    pub(crate) fn remove(&mut self, process: ProcessKey) {
        self.by_process.remove(&process);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_process.is_empty()
    }

    pub(crate) fn has(&self, process: ProcessKey) -> bool {
        self.by_process.contains_key(&process)
    }

    pub(crate) fn get(&self, process: ProcessKey) -> Option<&BusyDaemon> {
        self.by_process.get(&process)
    }

    pub(crate) fn get_mut(&mut self, process: ProcessKey) -> Option<&mut BusyDaemon> {
        self.by_process.get_mut(&process)
    }
}

impl BusyDaemon {
    /// One of its threads has woken another process.
    pub(crate) fn wakes(&mut self, process: ProcessKey, by: ThreadAt) {
        if self.woken.len() < WOKEN_MAX || self.woken.contains_key(&process) {
            self.woken.insert(process, by);
        }
    }

    /// The thread that has woken this process last, if it did so within this time.
    pub(crate) fn woke(&self, process: ProcessKey, from: Timestamp, to: Timestamp) -> Option<ThreadAt> {
        let woken = self.woken.get(&process).copied();
        woken.filter(|woken| woken.at > from && woken.at <= to)
    }

    /// There is room for another wait; otherwise what comes from now on is not known.
    pub(crate) fn has_room(&mut self, at: Timestamp) -> bool {
        if self.threads.has_room() {
            return true;
        }
        self.full_from.get_or_insert(at);
        false
    }
}
