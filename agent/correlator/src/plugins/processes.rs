//! The process table: the role of each process, by pid and start time.
//!
//! Used by the room of plugins to find the span that an event belongs to. Pid and start time together identify a
//! process until reboot: the kernel reuses pids, and field 22 of /proc/PID/stat (`starttime`, fs/proc/array.c, in clock
//! ticks) distinguishes the uses. A process that ended is kept for a second, so that a record that comes twice, or
//! late, is recognised. Bounded by `max_processes`: those that ended go first, then the
//! oldest of the trace with the most, those without an open span before others.
//! Does not: make spans, or remove the processes of a trace that closes (their exits are still to come).
//!
//! Life of an entry: inserted by a fork or an exec, its role changed by later execs, marked `Gone` by its exit, and
//! removed a second later. Without an exit (a lost record) it stays until its pid is reused or it is evicted.

use std::collections::VecDeque;

use sandglass_model::time::SECOND;
use sandglass_model::{ProcessKey, Timestamp};

use crate::collections::shares::Shares;
use crate::keys::SpanRef;
use crate::plugins::process_index::{Entries, ProcessEntry};
use crate::plugins::role::{PidMatch, Role};

/// The process table.
/// Removal from the two queues is lazy: an entry of `arrivals` is stale when the index holds another serial number for
/// its process.
#[derive(Debug)]
pub(crate) struct TrackedProcesses {
    /// Bound on entries.
    max: usize,
    entries: Entries,
    /// Processes in order of insertion, with the serial number of that.
    arrivals: VecDeque<(ProcessKey, u64)>,
    /// The last serial number.
    arrived: u64,
    /// Processes that ended and when that was handled, oldest first.
    gone: VecDeque<(Timestamp, ProcessKey)>,
    /// By index of the entry; since the table was full, until it is half empty.
    shares: Option<Box<Shares>>,
}

/// How long a process that ended is remembered. Above the reorder window, within which records of several processors
/// can change places.
const GONE_FOR_NS: u64 = SECOND;
/// How many of the oldest processes are considered for one that can go without ending a span. Bounds the cost of an
/// eviction; a flood of daemons evicts itself.
const EVICTION_REACH: usize = 64;

impl TrackedProcesses {
    pub(crate) fn new(max: usize) -> TrackedProcesses {
        TrackedProcesses {
            max: max.max(1),
            entries: Entries::new(max),
            arrivals: VecDeque::new(),
            arrived: 0,
            gone: VecDeque::new(),
            shares: None,
        }
    }

    /// The role of this very process; `None` if it is not in the table.
    pub(crate) fn role(&self, process: ProcessKey) -> Option<Role> {
        self.entries.get(process).map(|entry| entry.role)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.count
    }

    /// Looks a process up. Where it is not in the table, returns the newest process with the same pid, if any.
    pub(crate) fn look_up(&self, process: ProcessKey) -> PidMatch {
        if let Some(entry) = self.entries.get(process) {
            return PidMatch::Known(entry.role);
        }
        let namesakes = self.entries.at(process.pid).map(|(_, entry)| entry);
        namesakes
            .filter(|entry| entry.process.pid == process.pid)
            .max_by_key(|entry| entry.process.start_ticks)
            .map_or(PidMatch::Never, |entry| PidMatch::Namesake(entry.process, entry.role))
    }

    /// Enters a process or changes its role. The table may then be over its bound: see [`TrackedProcesses::evict`].
    pub(crate) fn set(&mut self, process: ProcessKey, role: Role) {
        if let Some(entry) = self.entries.get_mut(process) {
            entry.role = role;
            self.share(process, role);
            return;
        }
        self.arrived += 1;
        let index = self.entries.insert(process, role, self.arrived);
        if let Some(shares) = &mut self.shares {
            shares.add(index, owner_of(role));
        }
        self.arrivals.push_back((process, self.arrived));
        self.pass_stale_arrivals();
        // Without this the queue would grow without bound while one old process stays at its front. Amortised over the
        // insertions since the last time.
        if self.arrivals.len() > 64 + 2 * self.entries.count {
            let entries = &self.entries;
            self.arrivals
                .retain(|(process, order)| entries.get(*process).is_some_and(|entry| entry.order == *order));
        }
    }

    /// Removes a process; its entry in `arrivals` becomes stale.
    pub(crate) fn remove(&mut self, process: ProcessKey) -> Option<Role> {
        let (index, role) = self.entries.remove(process)?;
        if let Some(shares) = &mut self.shares {
            shares.remove(index);
        }
        if self.entries.count <= self.max / 2 {
            self.shares = None;
        }
        Some(role)
    }

    /// The process has another role now, perhaps in another trace.
    fn share(&mut self, process: ProcessKey, role: Role) {
        if let Some(shares) = &mut self.shares
            && let Some(index) = self.entries.index(process)
            && shares.owner(index) != Some(owner_of(role))
        {
            shares.remove(index);
            shares.add(index, owner_of(role));
        }
    }

    /// The process ended: marks it as gone and returns the role that it had. A process that was not in the table is
    /// entered as gone, so that a second exit record is no second orphan.
    pub(crate) fn exit(&mut self, process: ProcessKey, now: Timestamp) -> Option<Role> {
        let gone = |below_plugin| Role::Gone { below_plugin };
        let before = match self.entries.get_mut(process) {
            Some(entry) => {
                let role = entry.role;
                entry.role = match role {
                    Role::Gone { .. } => return Some(role),
                    Role::Forked(_) | Role::Spanned(_) | Role::Detached => gone(true),
                    Role::Runtime(_) => gone(false),
                };
                Some(role)
            }
            None => {
                self.set(process, gone(false));
                None
            }
        };
        self.gone.push_back((now, process));
        before
    }

    /// Removes processes that ended more than `GONE_FOR_NS` before `now`.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        while let Some(&(since, process)) = self.gone.front()
            && since.plus(GONE_FOR_NS) < now
        {
            self.gone.pop_front();
            self.forget_gone(process);
        }
    }

    /// Removes one process when the table is over its bound; `None` when that was not needed or only ended processes went. It
    /// is one of the trace with the most processes: one without an open span among the oldest, or else the oldest, never the
    /// one that was inserted last.
    pub(crate) fn evict(&mut self, is_open: impl Fn(SpanRef) -> bool) -> Option<(ProcessKey, Role)> {
        while self.entries.count > self.max
            && let Some((_, process)) = self.gone.pop_front()
        {
            self.forget_gone(process);
        }
        if self.entries.count <= self.max {
            return None;
        }
        let shares = self.shares.take().unwrap_or_else(|| Box::new(self.count_shares()));
        let newest = self.arrived;
        let candidates = || {
            let entries = shares.of_next_victim().filter_map(|index| self.entries.by_index(index));
            // Not the one that has just come in.
            entries.filter(|entry| entry.order != newest).take(EVICTION_REACH)
        };
        let is_idle = |entry: &&ProcessEntry| match entry.role {
            Role::Spanned(span) | Role::Runtime(Some(span)) => !is_open(span),
            Role::Forked(_) | Role::Runtime(None) | Role::Detached | Role::Gone { .. } => true,
        };
        let victim = candidates().find(is_idle).or_else(|| candidates().next());
        // Where every trace has one process, the newest may be the one that its trace has: then the oldest of all goes.
        let process = victim.map(|entry| entry.process).or_else(|| self.oldest());
        self.shares = Some(shares);
        let process = process?;
        let role = self.remove(process)?;
        self.pass_stale_arrivals();
        Some((process, role))
    }

    /// The process that was inserted first.
    fn oldest(&self) -> Option<ProcessKey> {
        let mut live = self
            .arrivals
            .iter()
            .filter(|(process, order)| self.is_live(*process, *order));
        live.next().map(|(process, _)| *process)
    }

    fn is_live(&self, process: ProcessKey, order: u64) -> bool {
        self.entries.get(process).is_some_and(|entry| entry.order == order)
    }

    fn count_shares(&self) -> Shares {
        let live = self
            .arrivals
            .iter()
            .filter(|(process, order)| self.is_live(*process, *order));
        Shares::new(live.filter_map(|(process, _)| {
            let index = self.entries.index(*process)?;
            Some((index, owner_of(self.entries.by_index(index)?.role)))
        }))
    }

    /// Removes stale entries from the front. Most processes end in the order in which they began, so this keeps the
    /// queue short at nearly no cost.
    fn pass_stale_arrivals(&mut self) {
        while let Some((front, order)) = self.arrivals.front()
            && self.entries.get(*front).is_none_or(|entry| entry.order != *order)
        {
            self.arrivals.pop_front();
        }
    }

    /// Removes a process that ended, unless its entry was reused for a new role.
    fn forget_gone(&mut self, process: ProcessKey) {
        if let Some(Role::Gone { .. }) = self.role(process) {
            self.remove(process);
        }
    }
}

/// The owner that a process counts for while the table is full: its trace. Processes in no trace have one owner together.
fn owner_of(role: Role) -> u64 {
    match role {
        Role::Spanned(span) | Role::Forked(span) | Role::Runtime(Some(span)) => span.trace.serial(),
        Role::Runtime(None) | Role::Detached | Role::Gone { .. } => 0,
    }
}
