//! Measures runtimes' daemons: how long all threads of one ran, and how long they waited for a processor.
//!
//! Used by the feed of the process probe and by the watch of namespace names, which request a measurement where the runtime
//! begins or ends something for a sandbox; the correlator divides the time in between by them. A thread of its own, since a
//! daemon has tens of threads with a file each, about 0.3 ms in all: at most one measurement in [`EVERY`], whatever is requested.
//! The kernel keeps these sums itself (kernel/sched/stats.h, sched_info_arrive), so nothing is attached for them.
//! Does not: follow threads, or look at any process but the callers of trusted plugins.

use std::fs;
use std::io::Read as _;
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
pub struct MeterRequests(SyncSender<Request>);

#[derive(Clone, Copy, Debug)]
enum Request {
    /// This daemon executed a plugin: it is measured from now on.
    Of(ProcessKey),
    /// Those that were in use lately are measured again.
    Again,
    Stop,
}

/// A daemon that executed a plugin.
#[derive(Clone, Copy, Debug)]
struct Daemon {
    process: ProcessKey,
    /// When it did so last.
    used: Timestamp,
}

impl RuntimeMeter {
    /// Starts the thread, which sends what it measures to `sender`.
    ///
    /// # Errors
    /// When the node is out of threads.
    pub fn start(sender: EventSender) -> std::io::Result<RuntimeMeter> {
        let (requests, queue) = sync_channel(QUEUE_MAX);
        let thread = Builder::new()
            .name("runtime-times".to_owned())
            .spawn(move || serve(&queue, &sender))?;
        Ok(RuntimeMeter {
            requests: MeterRequests(requests),
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
        let _ = self.requests.0.send(Request::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl MeterRequests {
    /// A runtime executed a plugin. Callers that are no daemons (cnitool, podman) are not measured.
    pub fn on_plugin(&self, exec: &Exec) {
        if DAEMONS.contains(&&*exec.parent_comm) {
            let _ = self.0.try_send(Request::Of(exec.parent));
        }
    }

    /// A runtime begins or ends something else for a sandbox.
    pub fn again(&self) {
        let _ = self.0.try_send(Request::Again);
    }
}

/// The thread: one measurement after another until it is stopped. It gives way to the processes that are observed.
fn serve(queue: &Receiver<Request>, sender: &EventSender) {
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
        daemons.retain(|daemon| {
            let Some(event) = measure(daemon.process) else {
                return false;
            };
            is_stopped |= sender.send(event).is_err();
            true
        });
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
            daemons.retain(|daemon| daemon.process != process && now.since(daemon.used) < IDLE_NS);
            if daemons.len() >= DAEMONS_MAX {
                daemons.remove(0);
            }
            daemons.push(Daemon { process, used: now });
        }
        Request::Again => {}
    }
    true
}

/// The sums of a daemon's threads; `None` when it has ended, or the kernel does not count (CONFIG_SCHED_INFO).
fn measure(process: ProcessKey) -> Option<Event> {
    let begun = clock::now();
    let stat = read(&format!("/proc/{}/stat", process.pid))?;
    // Field 22 of proc_pid_stat(5); the name before it may hold anything.
    let start_ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    if start_ticks != process.start_ticks {
        return None;
    }
    let mut times = RuntimeTimes {
        process,
        processor_ns: 0,
        run_delay_ns: 0,
    };
    for thread in fs::read_dir(format!("/proc/{}/task", process.pid))
        .ok()?
        .take(THREADS_MAX)
    {
        let name = thread.ok()?.file_name();
        // A thread may have ended since it was listed.
        let Some(counts) = read(&format!("/proc/{}/task/{}/schedstat", process.pid, name.to_str()?)) else {
            continue;
        };
        let mut counts = counts.split_whitespace().map_while(|count| count.parse::<u64>().ok());
        times.processor_ns += counts.next()?;
        times.run_delay_ns += counts.next()?;
    }
    // The thread may have waited for a processor itself in between.
    let at = begun.plus(clock::now().since(begun) / 2);
    Some(Event {
        at,
        body: Body::RuntimeMeasured(times),
    })
}

/// The beginning of a small file of /proc.
fn read(path: &str) -> Option<String> {
    let mut room = [0; 512];
    let len = fs::File::open(path).ok()?.read(&mut room).ok()?;
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

#[cfg(test)]
mod tests {
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
        let Some(first) = measure(own()) else {
            eprintln!("SKIPPED a_process_is_measured_and_its_namesake_is_not: the kernel counts nothing");
            return;
        };
        let work = (0..10_000_000_u64).fold(0_u64, |sum, next| sum.wrapping_mul(31).wrapping_add(next));
        assert_ne!(work, 1);
        let second = measure(own()).unwrap();
        let (Body::RuntimeMeasured(before), Body::RuntimeMeasured(after)) = (first.body, second.body) else {
            panic!("no measurement");
        };
        assert!(first.at < second.at && before.processor_ns < after.processor_ns);
        let namesake = ProcessKey {
            start_ticks: own().start_ticks + 1,
            ..own()
        };
        assert!(measure(namesake).is_none());
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
