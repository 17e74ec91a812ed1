//! Waits of threads of tracked processes, and of daemons that have requests: when their programs are attached, and events of their records.
//!
//! Used by the feed of the process probe. The programs (`probes/bpf/waits.h`) are attached only while a plugin runs that began
//! longer than `waits.after` ago (or always, where that is 0), so that a fast operation pays nothing for the reasons of slow ones. A sleep that lasts at that
//! moment is recovered by the kernel side. Those that see who holds a lock of the kernel come after twice that time: to attach and detach them
//! interrupts every processor more often than all others do together, since the kernel changes its code at each place that waits for a lock.
//! While an operation is slow, `looks` shows what its threads do now.
//! Does not: interpret a stack; the correlator does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandglass_model::daemons::Goroutine;
use sandglass_model::event::Exec;
use sandglass_model::waits::{ThreadRun, ThreadTimes, ThreadWake, Waker};
use sandglass_model::{Body, Event, ProcessKey, SmolStr, TextList, Timestamp};
use sandglass_probes::wire::locks::{ContentionRecord, FileLockRecord};
use sandglass_probes::wire::waits::{
    RunRecord, ThreadTimes as WireTimes, WAIT_ENDED, WAIT_PREEMPTED, WAIT_RECOVERED, WAIT_THROTTLED, WakeRecord,
};
use sandglass_probes::wire::{COMM_LEN, RecordHeader};

use super::addresses::Addresses;
use super::file_locks::FileLocks;
use super::locks::Locks;
use super::looks::Looks;
use crate::sources::clock;
use crate::sources::linux::cgroups::Cgroups;
use crate::sources::linux::loader::family::{Family, Part};
use crate::sources::linux::loader::maps::WaitMaps;
use crate::sources::linux::record::text;
use crate::sources::linux::symbols::Symbols;

/// The programs, and the plugins for which they are attached.
pub struct Waits {
    family: Arc<Mutex<Family>>,
    maps: WaitMaps,
    symbols: Symbols,
    /// How long a plugin runs before its waits are recorded. A step of the runtime runs three times as long.
    after_ns: u64,
    /// What runs and was executed by a runtime, plugins and steps, with the time from which it is slow, and with `None` what
    /// plugins started.
    running: HashMap<ProcessKey, Option<Timestamp>>,
    /// The programs that are to be attached.
    wanted: Wanted,
    /// Some are attached that are not to be, or the other way round.
    changing: bool,
    /// All but those of the kernel's locks are attached.
    attached: bool,
    /// Until when the programs stay attached without a slow plugin.
    until: Timestamp,
    /// Waits for locks on files as `/proc/locks` has them.
    file_locks: FileLocks,
    /// The programs report such waits from their attachment on.
    sees_file_locks: bool,
    /// `/proc/locks` was read since the attachment.
    has_looked: bool,
    /// Locks that the programs reported.
    locks: Locks,
    /// `None` where the kernel has no iterator over tasks.
    looks: Option<Looks>,
    /// What slow plugins wait for that they do not show.
    addresses: Addresses,
}

/// Which programs are to be attached. Each has those of the one before too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wanted {
    Nothing,
    Waits,
    KernelLocks,
}

impl Waits {
    /// Waits of the programs that `family` has prepared, whether those see locks on files, and whether the kernel has
    /// the iterator over tasks.
    pub fn new(
        family: Arc<Mutex<Family>>,
        (maps, symbols): (WaitMaps, Symbols),
        after: Duration,
        (sees_file_locks, looks): (bool, bool),
    ) -> Waits {
        Waits {
            family,
            maps,
            symbols,
            after_ns: u64::try_from(after.as_nanos()).unwrap_or(u64::MAX),
            running: HashMap::new(),
            wanted: Wanted::Nothing,
            changing: false,
            attached: false,
            until: Timestamp(0),
            file_locks: FileLocks::default(),
            sees_file_locks,
            has_looked: false,
            locks: Locks::default(),
            looks: looks.then(Looks::default),
            addresses: Addresses::default(),
        }
    }

    /// The first event: waits can be recorded on this node, and are not yet.
    pub fn announcement() -> Event {
        recorded(false)
    }

    /// A plugin forked, or what it started.
    pub fn on_fork(&mut self, process: ProcessKey) {
        // A daemon that a plugin leaves behind must not keep the programs attached.
        self.add(process, None);
    }

    /// A plugin or what it started was executed. A daemon of one plugin can be the runtime of another: what it executes as a plugin
    /// counts as the runtime's.
    pub fn on_exec(&mut self, exec: &Exec, at: Timestamp) {
        self.addresses.on_exec(exec);
        let is_below = self.running.contains_key(&exec.parent);
        let slow_from = (!is_below && exec.env("CNI_COMMAND").is_some()).then(|| at.plus(self.after_ns));
        match self.running.get_mut(&exec.process) {
            Some(known @ None) => *known = slow_from,
            Some(Some(_)) => {}
            None => self.add(exec.process, slow_from),
        }
    }

    /// A step of the runtime was executed. It lasts longer than a plugin on an idle node too.
    pub fn on_step(&mut self, process: ProcessKey, at: Timestamp) {
        self.add(process, Some(at.plus(STEP_FACTOR * self.after_ns)));
    }

    fn add(&mut self, process: ProcessKey, slow_from: Option<Timestamp>) {
        if self.running.len() < RUNNING_MAX {
            self.running.entry(process).or_insert(slow_from);
        }
    }

    /// A process ended. Returns whether a runtime had executed it. Adds what is known of it only then.
    pub fn on_exit(&mut self, process: ProcessKey, at: Timestamp, events: &mut Vec<Event>) -> bool {
        events.extend(self.addresses.on_exit(process, at));
        let Some(Some(slow_from)) = self.running.remove(&process) else {
            return false;
        };
        if at >= slow_from {
            self.until = self.until.max(at.plus(LINGER_NS));
        }
        true
    }

    /// Attaches or detaches the programs, as the oldest plugin that runs demands, and looks who waits for locks on files. Adds the
    /// events of both.
    ///
    /// # Errors
    /// A message when the kernel rejects the programs.
    pub fn check(&mut self, events: &mut Vec<Event>) -> Result<(), String> {
        let now = clock::now();
        let slow_for = |slow_from: &Timestamp| (now >= *slow_from).then(|| now.since(*slow_from));
        let longest = self.running.values().flatten().filter_map(slow_for);
        let longest = longest.filter(|ns| *ns < SLOW_MAX_NS).max();
        let slow = longest.is_some();
        let is_on = self.wanted > Wanted::Nothing;
        let on = self.after_ns == 0 || slow || (is_on && now < self.until);
        if on != is_on && !self.changing {
            self.begin_change(on, events)?;
        }
        let very_slow = self.after_ns == 0 || longest.is_some_and(|ns| ns >= self.after_ns);
        if !self.changing && self.wanted == Wanted::Waits && very_slow {
            (self.wanted, self.changing) = (Wanted::KernelLocks, true);
        }
        if self.changing {
            self.change(events)?;
        }
        if self.attached && !self.running.is_empty() && !(self.sees_file_locks && self.has_looked) {
            let plugins = |pid| self.running.keys().any(|process| process.pid == pid);
            self.file_locks.look(plugins, events);
            self.has_looked = true;
        }
        match slow && self.attached {
            true => self.addresses.look(now, events),
            false => self.addresses.leave(),
        }
        self.look(now, slow, events);
        Ok(())
    }

    /// Once a second while an operation is slow: what its threads do now. After the locks, which name what they wait for.
    fn look(&mut self, now: Timestamp, slow: bool, events: &mut Vec<Event>) {
        let Some(looks) = &mut self.looks else {
            return;
        };
        if !slow || !self.attached {
            events.extend(looks.end(now));
            return;
        }
        if !looks.is_due(now) {
            return;
        }
        let mut family = self.family.lock().unwrap_or_else(PoisonError::into_inner);
        match family.iterate(LOOK, LOOK_BYTES_MAX) {
            Ok(bytes) => events.extend(looks.event(&bytes, now, &mut self.symbols)),
            Err(error) => {
                drop(family);
                tracing::warn!(%error, "what an operation that runs waits for is not looked at any more");
                events.extend(looks.end(now));
                self.looks = None;
            }
        }
    }

    fn begin_change(&mut self, on: bool, events: &mut Vec<Event>) -> Result<(), String> {
        if !on {
            // The time before the programs are detached, and in `change` the one after they are attached.
            events.push(recorded(false));
            self.attached = false;
        } else if !self.maps.reset() {
            return Err(NOT_WRITTEN.to_owned());
        } else {
            self.locks.reset();
            self.has_looked = false;
        }
        self.wanted = if on { Wanted::Waits } else { Wanted::Nothing };
        self.changing = true;
        Ok(())
    }

    /// Attaches or detaches the next program. The feed reads its records before the one after it: the kernel changes its own code for each, and
    /// may wait for a grace period of RCU (kernel/tracepoint.c), which takes a millisecond on an idle node and, six of them, more than
    /// the reorder window on a slow one. What happened meanwhile would come late.
    fn change(&mut self, events: &mut Vec<Event>) -> Result<(), String> {
        let mut family = self.family.lock().unwrap_or_else(PoisonError::into_inner);
        let mut step = |part, hooked| family.step_part(part, hooked).map_err(|error| error.to_string());
        // The reverse order, as within a part.
        if self.wanted == Wanted::Nothing {
            self.changing = !(step(Part::KernelLocks, false)? && step(Part::Waits, false)?);
            if !self.changing && !self.maps.clear_attachment() {
                return Err(NOT_WRITTEN.to_owned());
            }
            return Ok(());
        }
        let attached = step(Part::Waits, true)?;
        if attached && !self.attached {
            self.attached = true;
            events.push(recorded(true));
        }
        self.changing = !(attached && step(Part::KernelLocks, self.wanted == Wanted::KernelLocks)?);
        Ok(())
    }

    /// The next program is to be attached or detached at once.
    pub fn is_changing(&self) -> bool {
        self.changing
    }

    /// Waits are recorded now: a plugin is slow.
    pub fn are_attached(&self) -> bool {
        self.attached
    }

    /// How many waits the kernel side has left out since the last call, and the event of that.
    pub fn limited(&mut self) -> Option<(u64, Event)> {
        left_out(self.maps.limited(), PROBE)
    }

    /// The same, of threads of daemons.
    pub fn limited_daemons(&mut self) -> Option<(u64, Event)> {
        left_out(self.maps.limited_daemons(), DAEMON_THREADS)
    }

    /// The event of a wake-up of a thread that slept in a system call of this goroutine.
    pub fn woken(&mut self, record: &WakeRecord, goroutine: Option<Goroutine>, cgroups: &mut Cgroups) -> Event {
        let comm_len = record.waker_comm.iter().position(|byte| *byte == 0);
        let stack = |addresses: &[u64], len: u32| {
            let len = (len as usize).min(addresses.len());
            addresses[..len].to_vec()
        };
        let slept_in = stack(&record.stack, record.stack_len);
        let woke = stack(&record.waker_stack, record.waker_stack_len);
        let times = times(&record.header, &record.times);
        let slept = record.header.at_ns.saturating_sub(record.out_ns);
        self.addresses.on_sleep(times.process, slept);
        Event {
            at: Timestamp(record.header.at_ns),
            body: Body::ThreadWoken(Box::new(ThreadWake {
                times,
                slept_from: Timestamp(record.out_ns),
                recovered: record.flags & WAIT_RECOVERED != 0,
                stack: self.names(&slept_in),
                waker: Waker {
                    process: ProcessKey::new(record.waker_pid, record.waker_start_ns),
                    thread: record.waker_tid,
                    begin: Timestamp(record.waker_begin_ns),
                    name: SmolStr::new(text(&record.waker_comm[..comm_len.unwrap_or(COMM_LEN)])),
                    cgroup: cgroups.path(record.waker_cgroup_id, record.waker_pid),
                    stack: self.names(&woke),
                },
                goroutine,
            })),
        }
    }

    /// The event of a try to lock a file.
    pub fn file_lock(&mut self, record: &FileLockRecord) -> Option<Event> {
        self.locks.file_lock(record)
    }

    /// The event of a wait for a lock of the kernel.
    pub fn kernel_lock(&mut self, record: &ContentionRecord) -> Event {
        self.locks.kernel_lock(record, &mut self.symbols)
    }

    fn names(&mut self, stack: &[u64]) -> TextList {
        self.symbols.functions(stack).iter().collect()
    }
}

/// The event of a thread that begins to run, or that ends.
pub fn ran(record: &RunRecord) -> Event {
    let at = Timestamp(record.header.at_ns);
    if record.flags & WAIT_ENDED != 0 {
        let body = Body::ThreadEnded(Box::new(times(&record.header, &record.times)));
        return Event { at, body };
    }
    let runnable_from = Timestamp(record.runnable_ns);
    let throttled = record.flags & WAIT_THROTTLED != 0;
    Event {
        at,
        body: Body::ThreadRan(Box::new(ThreadRun {
            times: times(&record.header, &record.times),
            runnable_from,
            preempted: record.flags & WAIT_PREEMPTED != 0,
            throttled_ns: match throttled {
                true => at.since(runnable_from),
                false => record.throttled_ns.min(at.since(runnable_from)),
            },
        })),
    }
}

/// The event of waits that were left out, with their number; `None` of none.
fn left_out(count: u64, probe: &str) -> Option<(u64, Event)> {
    let event = || Event {
        at: clock::now(),
        body: Body::Limited {
            probe: probe.to_owned(),
            netns: 0,
            source: None,
        },
    };
    (count > 0).then(|| (count, event()))
}

/// Waits are recorded from now on, or not any more.
fn recorded(on: bool) -> Event {
    Event {
        at: clock::now(),
        body: Body::WaitsRecorded { on },
    }
}

fn times(header: &RecordHeader, times: &WireTimes) -> ThreadTimes {
    ThreadTimes {
        process: ProcessKey::new(header.pid, header.start_ns),
        thread: times.tid,
        begin: Timestamp(times.begin_ns),
        processor_ns: times.processor_ns,
        run_delay_ns: times.run_delay_ns,
    }
}

/// Name of the probe, in metrics and on the health page.
pub const PROBE: &str = "waits";
/// Its name for what was left out of the threads of daemons.
pub const DAEMON_THREADS: &str = "daemon_threads";
/// The error of a map that the kernel refuses to change.
const NOT_WRITTEN: &str = "a map of the programs cannot be written";
/// The iterator's program.
pub const LOOK: &str = "look";
/// What one look may write: more than three thousand threads.
const LOOK_BYTES_MAX: u64 = 1 << 20;
/// Plugins and processes below them; of more, the waits are recorded by the age of these.
const RUNNING_MAX: usize = 4096;
/// How much older than a plugin a step of the runtime is when it counts as slow: `runc create` takes 50 to 80 ms on an idle node.
const STEP_FACTOR: u64 = 3;
/// A plugin that is slow for longer (ten minutes, twice the default of `correlation.deadline`) keeps nothing attached.
const SLOW_MAX_NS: u64 = 600_000_000_000;
/// How long the programs stay attached after a slow plugin: the runtime executes the next one of its chain within
/// milliseconds, and to attach takes one. Not longer, since the next sandbox of a busy node, whose operations are not slow, would pay for them.
const LINGER_NS: u64 = 30_000_000;
