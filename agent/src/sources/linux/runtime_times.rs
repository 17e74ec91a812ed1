//! Measures runtimes' daemons: how long all threads of one ran, and how long they waited for a processor.
//!
//! Used by the feed of the process probe and by the watch of namespace names, which request a measurement where the runtime
//! begins or ends something for a sandbox; the correlator divides the time in between by them. A thread of its own, since a
//! daemon has tens of threads with a file each: at most one measurement in [`EVERY`], whatever is requested. The files stay open, since
//! opening them takes several times as long as reading them. Without a daemon to measure the thread is not woken: it would disturb
//! the plugins.
//! The kernel keeps these sums itself (kernel/sched/stats.h, sched_info_arrive), so nothing is attached for them.
//! Does not: follow threads, or look at any process but the callers of trusted plugins.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use sandglass_model::event::Exec;
use sandglass_model::waits::RuntimeTimes;
use sandglass_model::{Body, Event, ProcessKey, Timestamp};

use crate::scheduling;
use crate::sources::clock;
use crate::sources::queue::EventSender;

/// The thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct RuntimeMeter {
    requests: MeterRequests,
    thread: Option<JoinHandle<()>>,
}

/// Requests measurements. None of its functions blocks; a request that finds the queue full is dropped.
#[derive(Clone, Debug)]
pub struct MeterRequests {
    queue: SyncSender<Request>,
    /// The thread has a daemon to measure.
    has_daemons: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug)]
enum Request {
    /// This daemon executed a plugin: it is measured from now on.
    Of(ProcessKey),
    /// Those that were in use lately are measured again.
    Again,
    Stop,
}

/// A daemon that executed a plugin.
#[derive(Debug)]
struct Daemon {
    process: ProcessKey,
    /// When it did so last.
    used: Timestamp,
    /// The counts of its threads, at most [`OPEN_MAX`].
    threads: Vec<File>,
    /// Those of the others, opened each time.
    others: Vec<PathBuf>,
    /// How many threads it had when they were listed; 0 when they are to be listed again.
    count: usize,
}

impl RuntimeMeter {
    /// Starts the thread, which sends what it measures to `sender`.
    ///
    /// # Errors
    /// When the node is out of threads.
    pub fn start(sender: EventSender) -> std::io::Result<RuntimeMeter> {
        let (requests, queue) = sync_channel(QUEUE_MAX);
        let has_daemons = Arc::new(AtomicBool::new(false));
        let requests = MeterRequests {
            queue: requests,
            has_daemons: Arc::clone(&has_daemons),
        };
        let thread = Builder::new()
            .name("runtime-times".to_owned())
            .spawn(move || serve(&queue, &has_daemons, &sender))?;
        Ok(RuntimeMeter {
            requests,
            thread: Some(thread),
        })
    }

    /// A sender of requests.
    pub fn requests(&self) -> MeterRequests {
        self.requests.clone()
    }
}

impl Drop for RuntimeMeter {
    fn drop(&mut self) {
        let _ = self.requests.queue.send(Request::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl MeterRequests {
    /// A runtime executed a plugin. Callers that are no daemons (cnitool, podman) are not measured.
    pub fn on_plugin(&self, exec: &Exec) {
        if DAEMONS.contains(&&*exec.parent_comm) {
            let _ = self.queue.try_send(Request::Of(exec.parent));
        }
    }

    /// A runtime begins or ends something else for a sandbox.
    pub fn again(&self) {
        // A daemon that is entered at this moment is measured because of that.
        if self.has_daemons.load(Ordering::Relaxed) {
            let _ = self.queue.try_send(Request::Again);
        }
    }
}

/// The thread: one measurement after another until it is stopped. It gives way to the processes that are observed.
fn serve(queue: &Receiver<Request>, has_daemons: &AtomicBool, sender: &EventSender) {
    scheduling::give_way();
    let mut daemons = Vec::new();
    let mut last: Option<Instant> = None;
    while let Ok(request) = queue.recv() {
        if !note(request, &mut daemons) {
            return;
        }
        // Requests come in bursts: the measurement after the pause serves all of it.
        if let Some(last) = last {
            std::thread::sleep(EVERY.saturating_sub(last.elapsed()));
        }
        for request in queue.try_iter() {
            if !note(request, &mut daemons) {
                return;
            }
        }
        last = Some(Instant::now());
        let mut is_stopped = false;
        daemons.retain_mut(|daemon| {
            let Some(event) = daemon.measure() else {
                return false;
            };
            is_stopped |= sender.send(event).is_err();
            true
        });
        has_daemons.store(!daemons.is_empty(), Ordering::Relaxed);
        if is_stopped {
            return;
        }
    }
}

/// Enters the daemon of a request. Returns whether to go on.
fn note(request: Request, daemons: &mut Vec<Daemon>) -> bool {
    let now = clock::now();
    match request {
        Request::Stop => return false,
        Request::Of(process) => {
            daemons.retain(|daemon| daemon.process == process || now.since(daemon.used) < IDLE_NS);
            let known = daemons.iter().position(|daemon| daemon.process == process);
            let mut daemon = known.map_or_else(|| Daemon::new(process), |at| daemons.remove(at));
            daemon.used = now;
            if daemons.len() >= DAEMONS_MAX {
                daemons.remove(0);
            }
            daemons.push(daemon);
        }
        Request::Again => {}
    }
    true
}

impl Daemon {
    fn new(process: ProcessKey) -> Daemon {
        Daemon {
            process,
            used: Timestamp(0),
            threads: Vec::new(),
            others: Vec::new(),
            count: 0,
        }
    }

    /// The sums of its threads; `None` when it has ended, or the kernel does not count (CONFIG_SCHED_INFO).
    fn measure(&mut self) -> Option<Event> {
        let process = self.process;
        let begun = clock::now();
        let stat = read(&File::open(format!("/proc/{}/stat", process.pid)).ok()?)?;
        // Fields 20 and 22 of proc_pid_stat(5); the name before them may hold anything.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let count = fields.nth(17)?.parse().ok()?;
        let start_ticks: u64 = fields.nth(1)?.parse().ok()?;
        if start_ticks != process.start_ticks {
            return None;
        }
        // Where as many have begun as have ended, the files of the latter show it below, and the next measurement lists them.
        if self.count != count {
            self.list()?;
            self.count = count;
        }
        let mut times = RuntimeTimes {
            process,
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
        self.threads.retain(|thread| add(counts(thread)));
        let opened = |path: &PathBuf| counts(&File::open(path).ok()?);
        self.others.retain(|path| add(opened(path)));
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

    /// Lists its threads and opens their counts.
    fn list(&mut self) -> Option<()> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.process.pid)).ok()?;
        let listed = threads.flatten().take(THREADS_MAX);
        let mut paths = listed.map(|thread| thread.path().join("schedstat"));
        // A thread may have ended since it was listed.
        let files = paths.by_ref().take(OPEN_MAX);
        self.threads = files.filter_map(|path| File::open(path).ok()).collect();
        self.others = paths.collect();
        Some(())
    }
}

/// How long a thread ran, and how long it waited for a processor, nanoseconds.
fn counts(thread: &File) -> Option<(u64, u64)> {
    let text = read(thread)?;
    let mut counts = text.split_whitespace().map_while(|count| count.parse().ok());
    Some((counts.next()?, counts.next()?))
}

/// The beginning of a small file of /proc.
fn read(file: &File) -> Option<String> {
    let mut room = [0; 512];
    let len = file.read_at(&mut room, 0).ok()?;
    Some(String::from_utf8_lossy(&room[..len]).into_owned())
}

/// Daemons whose steps the correlator knows, by the name of their main thread.
const DAEMONS: [&str; 2] = ["containerd", "crio"];
/// A burst is served by one measurement.
const QUEUE_MAX: usize = 64;
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
    use std::os::fd::AsRawFd as _;

    use super::*;

    fn own() -> ProcessKey {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let ticks = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap();
        ProcessKey {
            pid: std::process::id(),
            start_ticks: ticks.parse().unwrap(),
        }
    }

    #[test]
    fn a_process_is_measured_and_its_namesake_is_not() {
        let mut daemon = Daemon::new(own());
        let Some(first) = daemon.measure() else {
            eprintln!("SKIPPED a_process_is_measured_and_its_namesake_is_not: the kernel counts nothing");
            return;
        };
        let work = (0..10_000_000_u64).fold(0_u64, |sum, next| sum.wrapping_mul(31).wrapping_add(next));
        assert_ne!(work, 1);
        let second = daemon.measure().unwrap();
        let (Body::RuntimeMeasured(before), Body::RuntimeMeasured(after)) = (first.body, second.body) else {
            panic!("no measurement");
        };
        assert!(first.at < second.at && before.processor_ns < after.processor_ns);
        let namesake = ProcessKey {
            start_ticks: own().start_ticks + 1,
            ..own()
        };
        assert!(Daemon::new(namesake).measure().is_none());
    }

    /// A thread that begins later is measured, and one that has ended is not: with the second measurement at the latest.
    #[test]
    fn threads_that_come_and_go_are_followed() {
        let mut daemon = Daemon::new(own());
        if daemon.measure().is_none() {
            eprintln!("SKIPPED threads_that_come_and_go_are_followed: the kernel counts nothing");
            return;
        }
        let (begin, begun) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: gettid(2) cannot fail.
            begin.send(unsafe { libc::gettid() }).unwrap();
            let _ = ended.recv();
        });
        let id = begun.recv().unwrap();
        let follows = |daemon: &mut Daemon| {
            daemon.measure().unwrap();
            daemon.measure().unwrap();
            let link = |file: &File| fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
            let name = format!("/task/{id}/schedstat");
            let mut open = daemon.threads.iter().map(link);
            open.any(|path| path.to_string_lossy().ends_with(&name))
                || daemon.others.iter().any(|path| path.to_string_lossy().ends_with(&name))
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
        let mut daemon = Daemon::new(own());
        if daemon.measure().is_none() {
            eprintln!("SKIPPED more_threads_than_files_are_measured: the kernel counts nothing");
            return;
        }
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
    fn daemons_are_bounded() {
        let mut daemons = Vec::new();
        for pid in 0..20 {
            assert!(note(Request::Of(ProcessKey { pid, start_ticks: 1 }), &mut daemons));
        }
        assert_eq!(daemons.len(), DAEMONS_MAX);
        assert_eq!(daemons.last().map(|daemon| daemon.process.pid), Some(19));
        assert!(note(Request::Again, &mut daemons) && !note(Request::Stop, &mut daemons));
    }
}
