//! Threads and their waits, bounded.
//!
//! Used by the room of waits: one table for what is below plugins and steps, one for each daemon that has a request.
//! Does not: know why a thread slept.

use std::collections::BTreeMap;

use sandglass_model::waits::ThreadTimes;
use sandglass_model::{ProcessKey, Timestamp};

use crate::waits::path::{CountedAt, Thread, ThreadId, Wait};

/// Threads by id.
#[derive(Debug)]
pub(crate) struct Threads {
    by_id: BTreeMap<ThreadId, Thread>,
    /// How many waits they have.
    waits: usize,
    threads_max: usize,
    waits_max: usize,
    /// The first thread of a process stands for the one that created another, which the kernel does not report.
    first_creates: bool,
}

/// Threads below plugins and steps: a Go program has about ten.
const THREADS_MAX: usize = 8_192;
/// Their waits: 96 bytes each. An operation of a second has some hundreds that last longer than 0.2 ms.
const WAITS_MAX: usize = 32_768;
/// Threads of one daemon: as many as the kernel side follows.
const DAEMON_THREADS_MAX: usize = 512;
/// Their waits while a request is in flight: 0.8 MB.
const DAEMON_WAITS_MAX: usize = 8_192;

impl Default for Threads {
    fn default() -> Threads {
        Threads {
            by_id: BTreeMap::new(),
            waits: 0,
            threads_max: THREADS_MAX,
            waits_max: WAITS_MAX,
            first_creates: true,
        }
    }
}

impl Threads {
    /// Those of a daemon. Any thread of a daemon may have created another one, and for any request.
    pub(crate) fn of_daemon() -> Threads {
        Threads {
            threads_max: DAEMON_THREADS_MAX,
            waits_max: DAEMON_WAITS_MAX,
            first_creates: false,
            ..Threads::default()
        }
    }

    pub(crate) fn by_id(&self) -> &BTreeMap<ThreadId, Thread> {
        &self.by_id
    }

    pub(crate) fn get_mut(&mut self, id: ThreadId) -> Option<&mut Thread> {
        self.by_id.get_mut(&id)
    }

    /// There is no room for another thread.
    pub(crate) fn is_crowded(&self) -> bool {
        self.by_id.len() >= self.threads_max
    }

    /// There is room for a wait, and for a thread that may come with it.
    pub(crate) fn has_room(&self) -> bool {
        self.waits < self.waits_max && !self.is_crowded()
    }

    /// Enters a thread in place of another one of its id.
    pub(crate) fn insert(&mut self, id: ThreadId, thread: Thread) {
        self.waits += thread.waits.len();
        if let Some(before) = self.by_id.insert(id, thread) {
            self.waits -= before.waits.len();
        }
    }

    /// The thread, entered if it is new. `None` when the table is full.
    pub(crate) fn thread(&mut self, process: ProcessKey, id: ThreadId, begin: Timestamp) -> Option<&mut Thread> {
        let known = self.by_id.get(&id);
        let is_same =
            known.is_some_and(|thread| thread.process == process && (id == process.pid || thread.begin == begin));
        if !is_same {
            if known.is_none() && self.is_crowded() {
                return None;
            }
            let first = Some(process.pid).filter(|first| self.first_creates && *first != id);
            let thread = Thread {
                process,
                begin,
                first_count: CountedAt::creation(begin),
                parent: first,
                waits: Vec::new(),
                ended: None,
            };
            self.insert(id, thread);
        }
        self.by_id.get_mut(&id)
    }

    /// Adds a wait to its thread, between the ones before and behind it. Mostly it is the last one; but the processor of who wakes writes
    /// its record while another one already runs the thread and writes that, and where the node is too busy for the reorder stage
    /// (`Ordered::late`) both come as they were written.
    pub(crate) fn add_wait(&mut self, times: &ThreadTimes, mut wait: Wait) {
        let Some(thread) = self.thread(times.process, times.thread, times.begin) else {
            return;
        };
        // What a process did between its fork and its exec is in the counts at its exec.
        if !thread.first_count.is_running {
            thread.first_count.at = times.begin;
        }
        let index = thread.waits.partition_point(|known| known.out < wait.ran);
        let before = index.checked_sub(1).and_then(|index| thread.waits.get(index));
        let after = before.map_or(Timestamp(0), |before| before.ran);
        let behind = thread.waits.get(index).map_or(Timestamp(u64::MAX), |behind| behind.out);
        wait.out = wait.out.max(after).min(behind);
        wait.woken = wait.woken.max(wait.out).min(behind);
        wait.ran = wait.ran.max(wait.woken).min(behind);
        thread.waits.insert(index, wait);
        self.waits += 1;
    }

    /// Replaces the waits of a thread from an index on.
    pub(crate) fn replace_from(&mut self, id: ThreadId, index: usize, waits: Vec<Wait>) {
        if let Some(thread) = self.by_id.get_mut(&id) {
            let before = thread.waits.len();
            thread.waits.truncate(index);
            thread.waits.extend(waits);
            self.waits = self.waits - before + thread.waits.len();
        }
    }

    /// Keeps the threads of these processes.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&ProcessKey) -> bool) {
        self.by_id.retain(|_, thread| is_kept(&thread.process));
        self.waits = self.by_id.values().map(|thread| thread.waits.len()).sum();
    }
}
