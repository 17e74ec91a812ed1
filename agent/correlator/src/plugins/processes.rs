//! The process table: what is known of each process, by pid and start.
//!
//! Used by the state machine to find the span that an event belongs to. A process that ended stays for a moment, so
//! that a record that comes twice, or comes late, is recognised. Bounded: when full, the oldest process without an open
//! span goes first. Does not: make spans, or remove the entries of a trace that closes (they are then detached).

use std::collections::VecDeque;

use sandglass_model::time::SECOND;
use sandglass_model::{ProcessKey, Timestamp};

use crate::open::SpanRef;

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Forked below a plugin, runs no image of its own yet; the span is its nearest ancestor's.
    Forked(SpanRef),
    /// A plugin or a command, with its span. Detached once the span has ended.
    Spanned(SpanRef),
    /// A process of the runtime; with a span when it is a step of a sandbox that is being created.
    Runtime(Option<SpanRef>),
    /// Was below a plugin that has ended: a daemon. Known, so that its events are no orphans; makes no spans.
    Detached,
    /// Has ended.
    Gone {
        /// It was a plugin or below one: what it left behind is detached.
        below_plugin: bool,
    },
}

/// What a look-up found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The process.
    Known(Role),
    /// Not it, but another one with its pid.
    Namesake(ProcessKey, Role),
    /// Neither.
    Never,
}

#[derive(Debug)]
struct Entry {
    process: ProcessKey,
    role: Role,
    order: u64,
    /// The next one of its place, or of those that are free.
    next: u32,
}

/// Entries by the last digits of the pid. Pids are given out one after the other, so that processes which begin together
/// stand side by side here, and an entry that became free is the next to be used: found several times per event, a node's
/// processes stay in the processor's cache.
#[derive(Debug)]
struct Entries {
    /// A power of two of them: the first entry of each place.
    places: Vec<u32>,
    entries: Vec<Entry>,
    free: u32,
    count: usize,
}

/// No entry.
const NONE: u32 = u32::MAX;

impl Entries {
    fn new(max: usize) -> Entries {
        Entries {
            places: vec![NONE; max.clamp(1, 1 << 16).next_power_of_two()],
            entries: Vec::new(),
            free: NONE,
            count: 0,
        }
    }

    fn place(&self, pid: u32) -> usize {
        pid as usize & (self.places.len() - 1)
    }

    /// Those of a pid's place, with where they lie.
    fn at(&self, pid: u32) -> impl Iterator<Item = (u32, &Entry)> {
        let entry = |index: u32| Some((index, self.entries.get(index as usize)?));
        std::iter::successors(entry(self.places[self.place(pid)]), move |(_, before)| {
            entry(before.next)
        })
    }

    fn get(&self, process: ProcessKey) -> Option<&Entry> {
        let (_, entry) = self.at(process.pid).find(|(_, entry)| entry.process == process)?;
        Some(entry)
    }

    fn get_mut(&mut self, process: ProcessKey) -> Option<&mut Entry> {
        let (index, _) = self.at(process.pid).find(|(_, entry)| entry.process == process)?;
        self.entries.get_mut(index as usize)
    }

    /// Enters a process that is not in it.
    fn insert(&mut self, process: ProcessKey, role: Role, order: u64) {
        let place = self.place(process.pid);
        let entry = Entry {
            process,
            role,
            order,
            next: self.places[place],
        };
        let index = match self.entries.get_mut(self.free as usize) {
            Some(free) => {
                let index = self.free;
                self.free = std::mem::replace(free, entry).next;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.places[place] = index;
        self.count += 1;
    }

    fn remove(&mut self, process: ProcessKey) -> Option<Role> {
        let (index, entry) = self.at(process.pid).find(|(_, entry)| entry.process == process)?;
        let (role, next) = (entry.role, entry.next);
        let before = self.at(process.pid).find(|(_, entry)| entry.next == index);
        match before.map(|(before, _)| before) {
            Some(before) => self.entries[before as usize].next = next,
            None => {
                let place = self.place(process.pid);
                self.places[place] = next;
            }
        }
        self.entries[index as usize].next = std::mem::replace(&mut self.free, index);
        self.count -= 1;
        Some(role)
    }
}

/// The process table.
#[derive(Debug)]
pub(crate) struct Processes {
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

impl Processes {
    pub(crate) fn new(max: usize) -> Processes {
        Processes {
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
    pub(crate) fn look_up(&self, process: ProcessKey) -> Seen {
        if let Some(entry) = self.entries.get(process) {
            return Seen::Known(entry.role);
        }
        let namesakes = self.entries.at(process.pid).map(|(_, entry)| entry);
        namesakes
            .filter(|entry| entry.process.pid == process.pid)
            .max_by_key(|entry| entry.process.start_ticks)
            .map_or(Seen::Never, |entry| Seen::Namesake(entry.process, entry.role))
    }

    /// Enters a process or changes its role. The table may then be over its bound: see [`Processes::evict`].
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_place_come_and_go_in_any_order() {
        for gone in 0..3 {
            let mut entries = Entries::new(4);
            let process = |number: u32| ProcessKey::new(3 + 4 * number, 0);
            for number in 0..3 {
                entries.insert(process(number), Role::Detached, u64::from(number));
            }
            assert_eq!(entries.remove(process(gone)), Some(Role::Detached));
            assert_eq!(entries.remove(process(gone)), None);
            for number in 0..3 {
                let order = entries.get(process(number)).map(|entry| entry.order);
                assert_eq!(order, (number != gone).then_some(u64::from(number)));
            }
            // What became free is used again.
            entries.insert(process(gone), Role::Detached, 7);
            assert_eq!((entries.entries.len(), entries.count), (3, 3));
            assert_eq!(entries.get_mut(process(gone)).map(|entry| entry.order), Some(7));
            assert_eq!(entries.at(3).count(), 3);
        }
    }
}
