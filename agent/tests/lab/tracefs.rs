//! The kernel's own events about threads, locks and its own work, through tracefs: an oracle for what the agent's programs report.
//!
//! Used by tests of the process probe and of connections, and by those in a cluster. An instance of its own, on the boot clock;
//! where nothing has mounted tracefs, at a folder of its own. Does not: touch the tracing of anybody else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sandglass_model::Timestamp;

/// A line of the trace.
#[derive(Clone, Debug)]
pub struct Line {
    pub tid: u32,
    pub at: Timestamp,
    /// Name of the event.
    pub event: String,
    /// What stands behind it.
    pub rest: String,
}

impl Line {
    /// The value of a field `name=value`.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut words = self.rest.split([' ', '(', ')']);
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }
}

/// Buffer of one processor, where threads are followed: half a million events.
const BUFFER_KB: &str = "49152";

/// The instance; removed when this is dropped.
pub struct Tracefs {
    instance: PathBuf,
    // Dropped after the instance is removed.
    _mount: Option<Mount>,
}

/// A folder at which tracefs is mounted until this is dropped. Removed by itself, never with what is in it: that is the kernel's.
struct Mount(PathBuf);

impl Mount {
    fn new(test: &str) -> Option<Mount> {
        let folder = std::env::temp_dir().join(format!("sandglass-tracefs-{}-{test}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        let mount = Mount(folder);
        runs("mount", &["-t", "tracefs", "tracefs"], &mount.0).then_some(mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        runs("umount", &[], &self.0);
        let _ = fs::remove_dir(&self.0);
    }
}

fn runs(program: &str, arguments: &[&str], folder: &Path) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).arg(folder).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Tracefs {
    /// Begins to record these events of this process and what it forks. `None`, with the line `NOT RUN`, where tracefs cannot be
    /// mounted or has no such events.
    pub fn start(test: &str, events: &[&str]) -> Option<Tracefs> {
        Tracefs::begin(test, events, |instance| instance.follow(std::process::id()))
    }

    /// The same of all processes, and of the kernel's own.
    pub fn of_all(test: &str, events: &[&str]) -> Option<Tracefs> {
        Tracefs::begin(test, events, |_| Some(()))
    }

    /// Begins to record when threads of these names (`comm`) became runnable, ran, left the processor and ended, and which
    /// threads they made.
    pub fn of_threads_named(test: &str, names: &[&str]) -> Option<Tracefs> {
        let is_one = |field: &str| -> String {
            let terms: Vec<String> = names.iter().map(|name| format!("{field} == \"{name}\"")).collect();
            terms.join(" || ")
        };
        let switch = format!("{} || {}", is_one("prev_comm"), is_one("next_comm"));
        let filters = [
            ("sched/sched_switch", switch),
            ("sched/sched_wakeup", is_one("comm")),
            ("sched/sched_wakeup_new", is_one("comm")),
            ("sched/sched_process_fork", is_one("parent_comm")),
            ("sched/sched_process_exit", is_one("comm")),
        ];
        Tracefs::begin(test, &filters.each_ref().map(|(event, _)| *event), |instance| {
            instance.write("buffer_size_kb", BUFFER_KB)?;
            let set = |(event, filter): &(&str, String)| instance.write(&format!("events/{event}/filter"), filter);
            filters.iter().try_for_each(set)
        })
    }

    /// Begins to record an event in the time of process 1, where its fields are so (Documentation/trace/events.rst, section 5).
    /// Where process 1 belongs to whoever runs the virtual machine, the kernel may run no BPF program of others in its time, nor in
    /// interrupts of it: seen on one such kernel, of every event.
    pub fn of_init(test: &str, event: &str, filter: &str) -> Option<Tracefs> {
        Tracefs::begin(test, &[event], |instance| {
            instance.follow(1)?;
            instance.write(&format!("events/{event}/filter"), filter)
        })
    }

    /// The same for the ends of connects, successful or not.
    pub fn connects_of_init(test: &str) -> Option<Tracefs> {
        let ended = format!("oldstate == {TCP_SYN_SENT}");
        Tracefs::of_init(test, "sock/inet_sock_set_state", &ended)
    }

    /// How many connects to `port` ended in the time of process 1.
    pub fn connects_to(&self, port: u16) -> usize {
        let to_port = |line: &Line| line.field("dport") == Some(&*port.to_string());
        self.lines().into_iter().filter(to_port).count()
    }

    fn begin(test: &str, events: &[&str], prepare: impl Fn(&Tracefs) -> Option<()>) -> Option<Tracefs> {
        let mounts = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
        let mut mounts = mounts.map(Path::new).into_iter();
        let mounted = mounts.find(|root| root.join("instances").exists());
        let mount = mounted.is_none().then(|| Mount::new(test)).flatten();
        let root = mounted.or(mount.as_ref().map(|mount| mount.0.as_path()));
        let instance = root.map(|root| root.join(format!("instances/sandglass-{}-{test}", std::process::id())));
        let started = instance.and_then(|instance| {
            fs::create_dir(&instance).ok()?;
            let instance = Tracefs {
                instance,
                _mount: mount,
            };
            instance.write("trace_clock", "boot")?;
            prepare(&instance)?;
            for event in events {
                instance.write(&format!("events/{event}/enable"), "1")?;
            }
            Some(instance)
        });
        if started.is_none() {
            eprintln!("NOT RUN {test}::tracefs: it cannot be mounted, or lacks one of {events:?}");
        }
        started
    }

    /// Of a process and what it forks.
    fn follow(&self, process: u32) -> Option<()> {
        self.write("options/event-fork", "1")?;
        self.write("set_event_pid", &process.to_string())?;
        for task in fs::read_dir(format!("/proc/{process}/task")).ok()?.flatten() {
            let tid = task.file_name().into_string().ok()?;
            fs::OpenOptions::new()
                .append(true)
                .open(self.instance.join("set_event_pid"))
                .and_then(|mut file| std::io::Write::write_all(&mut file, tid.as_bytes()))
                .ok()?;
        }
        Some(())
    }

    fn write(&self, file: &str, value: &str) -> Option<()> {
        fs::write(self.instance.join(file), value).ok()
    }

    /// How many events were lost, of all processors: its buffers were full.
    pub fn lost(&self) -> u64 {
        let processors = fs::read_dir(self.instance.join("per_cpu")).unwrap().flatten();
        let stats = processors.map(|processor| fs::read_to_string(processor.path().join("stats")).unwrap());
        let lost = |stats: String| -> u64 {
            let lines = stats.lines().filter_map(|line| line.split_once(": "));
            let lost = lines.filter(|(name, _)| ["overrun", "commit overrun", "dropped events"].contains(name));
            lost.map(|(_, count)| count.parse::<u64>().unwrap()).sum()
        };
        stats.map(lost).sum()
    }

    /// Everything recorded so far, in order.
    pub fn lines(&self) -> Vec<Line> {
        let trace = fs::read_to_string(self.instance.join("trace")).unwrap();
        trace.lines().filter_map(parse).collect()
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        let _ = self.write("events/enable", "0");
        let _ = fs::remove_dir(&self.instance);
    }
}

/// include/net/tcp_states.h.
const TCP_SYN_SENT: u32 = 2;

/// `   ip-4711    [001] .....   559.826863: contention_end: 00000000fc0093d8 (ret=0)`
fn parse(line: &str) -> Option<Line> {
    let (task, rest) = line.trim_start().split_once(" [")?;
    let tid = task.trim_end().rsplit('-').next()?.parse().ok()?;
    let mut parts = rest.splitn(3, ": ");
    let time = parts.next()?.rsplit(' ').next()?;
    let (seconds, fraction) = time.split_once('.')?;
    let scale = 10_u64.pow(9_u32.checked_sub(fraction.len() as u32)?);
    Some(Line {
        tid,
        at: Timestamp(seconds.parse::<u64>().ok()? * 1_000_000_000 + fraction.parse::<u64>().ok()? * scale),
        event: parts.next()?.to_owned(),
        rest: parts.next().unwrap_or_default().to_owned(),
    })
}
