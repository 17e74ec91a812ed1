//! Measures runtimes' daemons: how long all threads of one ran, and how long they waited for a processor.
//!
//! Used by the feed of the process probe and by the watch of namespace names, where the runtime begins or ends something for a
//! sandbox; the correlator divides the time in between by the measurements. Whichever of the two is awake makes them, since to wake a third thread
//! would disturb the plugins: at most one in [`EVERY`], whatever is requested. A daemon has tens of threads with a file each, which stay
//! open, since opening them takes several times as long as reading them.
//! The kernel keeps these sums itself (kernel/sched/stats.h, sched_info_arrive), so nothing is attached for them.
//! Does not: follow threads, or look at any process but the callers of trusted plugins.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Dir, Mode, OFlags, fstat, openat};
use sandglass_model::event::Exec;
use sandglass_model::waits::RuntimeTimes;
use sandglass_model::{Body, Event, ProcessKey, Timestamp};

use super::exec::running::key_of;
use crate::sources::clock;

/// The daemons that are measured. Cheap to clone: all clones are one.
#[derive(Clone, Debug, Default)]
pub struct RuntimeMeter {
    /// A measurement is wanted since the last one.
    requested: Arc<AtomicBool>,
    daemons: Arc<Mutex<RuntimeDaemons>>,
}

#[derive(Debug, Default)]
struct RuntimeDaemons {
    /// At most [`DAEMONS_MAX`], the one that was used last at the end.
    list: Vec<Daemon>,
    /// When they were measured last.
    measured: Option<Instant>,
}

/// A daemon that executed a plugin.
#[derive(Debug)]
struct Daemon {
    process: ProcessKey,
    /// When it did so last.
    used: Timestamp,
    /// Its `/proc/PID/task`. Opened, it stays this process's and is empty when the process has ended, whoever gets its pid.
    directory: OwnedFd,
    /// The counts of its threads, at most [`OPEN_MAX`].
    threads: Vec<Thread>,
    /// The ids of the others, whose counts are opened each time.
    others: Vec<u32>,
    /// How many threads it had when they were listed; 0 when they are to be listed again.
    count: usize,
}

#[derive(Debug)]
struct Thread {
    id: u32,
    /// Its `schedstat`.
    counts: File,
}

impl RuntimeMeter {
    /// A runtime executed a plugin: it is measured from now on. Callers that are no daemons (cnitool, podman) are not measured.
    pub fn on_plugin(&self, exec: &Exec) {
        if DAEMONS.contains(&&*exec.parent_comm) {
            self.with_daemons(|daemons| daemons.enter(exec.parent, clock::now()));
            self.request();
        }
    }

    /// A runtime begins or ends something else for a sandbox.
    pub fn request(&self) {
        self.requested.store(true, Ordering::Relaxed);
    }

    /// Measures if that was requested and is due, and adds the events. What was requested too early is left for a later call.
    pub fn measure(&self, events: &mut Vec<Event>) {
        if self.requested.swap(false, Ordering::Relaxed) && !self.with_daemons(|daemons| daemons.measure(events)) {
            self.request();
        }
    }

    /// A panic while they were locked has left them whole.
    fn with_daemons<T>(&self, what: impl FnOnce(&mut RuntimeDaemons) -> T) -> T {
        what(&mut self.daemons.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl RuntimeDaemons {
    /// Enters the daemon that executed a plugin at `now`; not one that has ended since.
    fn enter(&mut self, process: ProcessKey, now: Timestamp) {
        self.list
            .retain(|daemon| daemon.process == process || now.since(daemon.used) < IDLE_NS);
        let known = self.list.iter().position(|daemon| daemon.process == process);
        let daemon = known.map(|at| self.list.remove(at)).or_else(|| Daemon::new(process));
        if let Some(mut daemon) = daemon {
            daemon.used = now;
            if self.list.len() >= DAEMONS_MAX {
                self.list.remove(0);
            }
            self.list.push(daemon);
        }
    }

    /// Whether it was due. Without a daemon nothing is measured, and the first one is due at once.
    fn measure(&mut self, events: &mut Vec<Event>) -> bool {
        if self.measured.is_some_and(|at| at.elapsed() < EVERY) {
            return false;
        }
        self.measured = (!self.list.is_empty()).then(Instant::now);
        self.list.retain_mut(|daemon| {
            let event = daemon.measure();
            let is_there = event.is_some();
            events.extend(event);
            is_there
        });
        true
    }
}

impl Daemon {
    /// `None` when it has ended.
    fn new(process: ProcessKey) -> Option<Daemon> {
        let directory = File::open(format!("/proc/{}/task", process.pid)).ok()?;
        // Looked at after it was opened: the directory is then this process's.
        let (key, _) = key_of(process.pid)?;
        (key == process).then(|| Daemon {
            process,
            used: Timestamp(0),
            directory: directory.into(),
            threads: Vec::new(),
            others: Vec::new(),
            count: 0,
        })
    }

    /// The sums of its threads; `None` when it has ended, or the kernel does not count (CONFIG_SCHED_INFO).
    fn measure(&mut self) -> Option<Event> {
        let begun = clock::now();
        // Two links and one for each thread (fs/proc/base.c, proc_task_getattr).
        let links = usize::try_from(fstat(&self.directory).ok()?.st_nlink).ok()?;
        let count = links.checked_sub(2)?;
        // Where as many have begun as have ended, the files of the latter show it below, and the next measurement lists them.
        if self.count != count {
            self.list()?;
            self.count = count;
        }
        let mut times = RuntimeTimes {
            process: self.process,
            processor_ns: 0,
            run_delay_ns: 0,
        };
        let mut add = |counts: Option<(u64, u64)>| {
            let (processor, run_delay) = counts.unwrap_or_default();
            times.processor_ns += processor;
            times.run_delay_ns += run_delay;
            counts.is_some()
        };
        // A thread that has ended cannot be read any more (ESRCH).
        let before = self.threads.len() + self.others.len();
        self.threads.retain(|thread| add(counts(&thread.counts)));
        let directory = &self.directory;
        let opened = |id: &u32| counts(&open_counts(directory, *id)?);
        self.others.retain(|id| add(opened(id)));
        if self.threads.len() + self.others.len() < before {
            self.count = 0;
        }
        // The thread may have waited for a processor itself in between.
        let at = begun.plus(clock::now().since(begun) / 2);
        (!self.threads.is_empty()).then_some(Event {
            at,
            body: Body::RuntimeMeasured(times),
        })
    }

    /// Lists its threads and opens the counts of those that are new.
    fn list(&mut self) -> Option<()> {
        let entries = Dir::read_from(&self.directory).ok()?.flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok());
        let mut ids: Vec<u32> = ids.take(THREADS_MAX).collect();
        ids.sort_unstable();
        self.threads.retain(|thread| ids.binary_search(&thread.id).is_ok());
        ids.retain(|id| self.threads.iter().all(|thread| thread.id != *id));
        let more = OPEN_MAX - self.threads.len();
        self.others = ids.split_off(more.min(ids.len()));
        // A thread may have ended since it was listed.
        let opened = |id| {
            Some(Thread {
                id,
                counts: open_counts(&self.directory, id)?,
            })
        };
        self.threads.extend(ids.into_iter().filter_map(opened));
        Some(())
    }
}

/// The counts of a thread below `/proc/PID/task`.
fn open_counts(directory: &OwnedFd, id: u32) -> Option<File> {
    let path = format!("{id}/schedstat");
    openat(directory, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .ok()
        .map(File::from)
}

/// How long a thread ran, and how long it waited for a processor, nanoseconds: the first two of three numbers.
fn counts(thread: &File) -> Option<(u64, u64)> {
    let mut room = [0; 64];
    let len = thread.read_at(&mut room, 0).ok()?;
    let text = std::str::from_utf8(&room[..len]).ok()?;
    let mut counts = text.split_ascii_whitespace().map_while(|count| count.parse().ok());
    Some((counts.next()?, counts.next()?))
}

/// Daemons whose steps the correlator knows, by the name of their main thread.
const DAEMONS: [&str; 2] = ["containerd", "crio"];
/// The shortest time between two measurements.
const EVERY: Duration = Duration::from_millis(50);
/// A node has one daemon, at most a few.
const DAEMONS_MAX: usize = 4;
/// A daemon that has executed no plugin for this long goes when another one does: ten minutes.
const IDLE_NS: u64 = 600_000_000_000;
/// More threads than a daemon has; of more the first are measured.
const THREADS_MAX: usize = 1_024;
/// Files of one daemon that stay open; a containerd has some thirty threads. A process may have 1,024 files by default.
const OPEN_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn key(pid: u32) -> ProcessKey {
        key_of(pid).unwrap().0
    }

    fn own() -> ProcessKey {
        key(std::process::id())
    }

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// This process, unless the kernel counts nothing: `test` is then reported as skipped.
    fn measurable(test: &str) -> Option<Daemon> {
        let mut daemon = Daemon::new(own()).unwrap();
        let is_measurable = daemon.measure().is_some();
        if !is_measurable {
            eprintln!("SKIPPED {test}: the kernel counts nothing");
        }
        is_measurable.then_some(daemon)
    }

    fn is_measured(daemon: &Daemon, thread: u32) -> bool {
        daemon.threads.iter().any(|other| other.id == thread) || daemon.others.contains(&thread)
    }

    /// The process is one of its own: a thread of this one that ends in between would take its sums with it.
    #[test]
    fn a_process_is_measured_and_its_namesake_is_not() {
        if measurable("a_process_is_measured_and_its_namesake_is_not").is_none() {
            return;
        }
        let mut shell = Command::new("sh");
        shell.args([
            "-c",
            "read go; i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; echo done; read end",
        ]);
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut daemon = Daemon::new(key(child.id())).unwrap();
        let first = daemon.measure().unwrap();
        child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
        let second = daemon.measure().unwrap();
        end(child);
        let (Body::RuntimeMeasured(before), Body::RuntimeMeasured(after)) = (first.body, second.body) else {
            panic!("no measurement");
        };
        assert!(
            first.at < second.at && before.processor_ns < after.processor_ns,
            "{before:?}, then {after:?}"
        );
        let namesake = ProcessKey {
            start_ticks: own().start_ticks + 1,
            ..own()
        };
        assert!(Daemon::new(namesake).is_none());
    }

    #[test]
    fn a_process_that_has_ended_is_not_measured_any_more() {
        if measurable("a_process_that_has_ended_is_not_measured_any_more").is_none() {
            return;
        }
        let child = sleeper();
        let mut daemons = RuntimeDaemons::default();
        daemons.enter(key(child.id()), clock::now());
        let mut events = Vec::new();
        assert!(daemons.measure(&mut events));
        assert_eq!((events.len(), daemons.list.len()), (1, 1));
        end(child);
        std::thread::sleep(EVERY);
        assert!(daemons.measure(&mut events));
        assert_eq!((events.len(), daemons.list.len()), (1, 0));
    }

    /// A thread that begins later is measured, and one that has ended is not: with the second measurement at the latest.
    #[test]
    fn threads_that_come_and_go_are_followed() {
        let Some(mut daemon) = measurable("threads_that_come_and_go_are_followed") else {
            return;
        };
        let (begin, begun) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: gettid(2) cannot fail.
            begin.send(unsafe { libc::gettid() }).unwrap();
            let _ = ended.recv();
        });
        let id = u32::try_from(begun.recv().unwrap()).unwrap();
        let follows = |daemon: &mut Daemon| {
            daemon.measure().unwrap();
            daemon.measure().unwrap();
            is_measured(daemon, id)
        };
        assert!(follows(&mut daemon));
        drop(end);
        thread.join().unwrap();
        // The kernel lets go of a thread a moment after it can be joined.
        while fs::exists(format!("/proc/self/task/{id}")).unwrap() {
            std::thread::yield_now();
        }
        assert!(!follows(&mut daemon));
    }

    /// Beyond the files that stay open, the others are read all the same.
    #[test]
    fn more_threads_than_files_are_measured() {
        let Some(mut daemon) = measurable("more_threads_than_files_are_measured") else {
            return;
        };
        let end = std::sync::Barrier::new(OPEN_MAX + 33);
        std::thread::scope(|scope| {
            for _ in 0..OPEN_MAX + 32 {
                scope.spawn(|| end.wait());
            }
            daemon.count = 0;
            daemon.measure().unwrap();
            let (open, others) = (daemon.threads.len(), daemon.others.len());
            end.wait();
            assert!(open <= OPEN_MAX && others >= 32, "{open} and {others}");
        });
    }

    #[test]
    fn measurements_are_made_when_requested_and_seldom() {
        if measurable("measurements_are_made_when_requested_and_seldom").is_none() {
            return;
        }
        let meter = RuntimeMeter::default();
        let mut events = Vec::new();
        meter.request();
        meter.measure(&mut events);
        meter.with_daemons(|daemons| daemons.enter(own(), clock::now()));
        // Nothing was requested since.
        meter.measure(&mut events);
        assert!(events.is_empty());
        meter.request();
        meter.measure(&mut events);
        assert_eq!(events.len(), 1);
        meter.request();
        let begun = Instant::now();
        while events.len() < 2 {
            meter.measure(&mut events);
        }
        assert!(begun.elapsed() > EVERY / 2);
        meter.with_daemons(|daemons| daemons.measured = None);
        meter.measure(&mut events);
        assert_eq!(events.len(), 2);
    }

    #[test]
    fn daemons_are_bounded() {
        let children: Vec<Child> = (0..DAEMONS_MAX + 2).map(|_| sleeper()).collect();
        let pids: Vec<u32> = children.iter().map(Child::id).collect();
        let mut daemons = RuntimeDaemons::default();
        for pid in &pids {
            daemons.enter(key(*pid), clock::now());
        }
        children.into_iter().for_each(end);
        let measured: Vec<u32> = daemons.list.iter().map(|daemon| daemon.process.pid).collect();
        assert_eq!(measured, pids[2..]);
    }
}
