//! The process table: the role of each process, by pid and start time.
//!
//! Used by the room of plugins to find the span that an event belongs to. A process that ended is kept for a moment, so that
//! a record that comes twice, or late, is recognised. Bounded: the oldest process without an open span is evicted first.
//! Does not: make spans, or remove the processes of a trace that closes.

use std::collections::VecDeque;

use sandglass_model::time::SECOND;
use sandglass_model::{ProcessKey, Timestamp};

use crate::keys::SpanRef;
use crate::plugins::process_index::Entries;
use crate::plugins::role::{PidMatch, Role};

/// The process table.
#[derive(Debug)]
pub(crate) struct TrackedProcesses {
    max: usize,
    entries: Entries,
    arrivals: VecDeque<(ProcessKey, u64)>,
    arrived: u64,
    gone: VecDeque<(Timestamp, ProcessKey)>,
}

/// How long a process that ended is remembered.
const GONE_FOR_NS: u64 = SECOND;
/// How many of the oldest processes are looked at for one that can go without ending a span.
const EVICTION_REACH: usize = 64;

impl TrackedProcesses {
    pub(crate) fn new(max: usize) -> TrackedProcesses {
        TrackedProcesses {
            max: max.max(1),
            entries: Entries::new(max),
            arrivals: VecDeque::new(),
            arrived: 0,
            gone: VecDeque::new(),
        }
    }

    pub(crate) fn role(&self, process: ProcessKey) -> Option<Role> {
        self.entries.get(process).map(|entry| entry.role)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.count
    }

    /// Looks a process up together with whoever had its pid before or has it now.
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
            return;
        }
        self.arrived += 1;
        self.entries.insert(process, role, self.arrived);
        self.arrivals.push_back((process, self.arrived));
        self.pass_stale_arrivals();
        if self.arrivals.len() > 64 + 2 * self.entries.count {
            let entries = &self.entries;
            self.arrivals
                .retain(|(process, order)| entries.get(*process).is_some_and(|entry| entry.order == *order));
        }
    }

    pub(crate) fn remove(&mut self, process: ProcessKey) {
        self.entries.remove(process);
    }

    /// The process ended: keeps it as gone for a moment and returns what it was.
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

    /// Forgets what ended a while ago.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        while let Some(&(since, process)) = self.gone.front()
            && since.plus(GONE_FOR_NS) < now
        {
            self.gone.pop_front();
            self.forget_gone(process);
        }
    }

    /// Takes one process out when the table is over its bound, one without an open span if there is one among the
    /// oldest. Those that have ended go first, and quietly.
    pub(crate) fn evict(&mut self, is_open: impl Fn(SpanRef) -> bool) -> Option<(ProcessKey, Role)> {
        while self.entries.count > self.max
            && let Some((_, process)) = self.gone.pop_front()
        {
            self.forget_gone(process);
        }
        if self.entries.count <= self.max {
            return None;
        }
        let live = |(process, order): &&(ProcessKey, u64)| {
            self.entries.get(*process).is_some_and(|entry| entry.order == *order)
        };
        let idle = |(process, _): &&(ProcessKey, u64)| match self.role(*process) {
            Some(Role::Spanned(span) | Role::Runtime(Some(span))) => !is_open(span),
            Some(Role::Forked(_) | Role::Runtime(None) | Role::Detached | Role::Gone { .. }) | None => true,
        };
        // Not the one that has just come in.
        let newest = self.arrived;
        let candidates = || {
            let settled = self.arrivals.iter().filter(move |(_, order)| *order != newest);
            settled.filter(live).take(EVICTION_REACH)
        };
        let process = candidates().find(idle).or_else(|| candidates().next())?.0;
        self.pass_stale_arrivals();
        Some((process, self.entries.remove(process)?))
    }

    /// Most processes go in the order they came: what stands before the first that is still there is stale.
    fn pass_stale_arrivals(&mut self) {
        while let Some((front, order)) = self.arrivals.front()
            && self.entries.get(*front).is_none_or(|entry| entry.order != *order)
        {
            self.arrivals.pop_front();
        }
    }

    fn forget_gone(&mut self, process: ProcessKey) {
        if let Some(Role::Gone { .. }) = self.role(process) {
            self.entries.remove(process);
        }
    }
}
