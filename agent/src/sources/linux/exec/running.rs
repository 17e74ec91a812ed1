//! Finds the trusted CNI plugins that run already when the agent starts, and their descendants.
//!
//! Used by the feed of the process probe once, when the hooks are attached and before the first record is read, so that these
//! events come before all others. Reads `/proc` (proc(5)) and skips processes that end meanwhile.
//! Does not: report processes of runtimes, or guess what a process did before.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;

use sandglass_model::event::Exec;
use sandglass_model::{Body, Event, ProcessKey, SmolStr, TextList, Timestamp};

use super::decode::kept_environment;
use super::trust::Trust;
use crate::sources::linux::loader::roles::Roles;
use crate::sources::linux::record::{strings, text};
use crate::sources::linux::{cgroups, process_root};

/// What ran already.
#[derive(Debug, Default)]
pub struct Found {
    /// One event for each process, parents before children.
    pub events: Vec<Event>,
    /// Trusted processes whose environment could not be read to its end: each may have been a plugin.
    pub unread: u64,
}

/// Tracks what runs already. Reads `/proc` once for each pass, which takes some milliseconds on a node with a thousand
/// processes.
pub fn track(roles: &mut Roles, trust: &Trust) -> Found {
    let mut found = Vec::new();
    // `known` are the processes of earlier passes, `refused` and `unread` those that were counted as such.
    let (mut known, mut refused, mut unread) = (HashSet::new(), HashSet::new(), HashSet::new());
    let mut is_root = |pid: u32| match claim(pid) {
        Claim::Plugin => trust.judge_running(pid, || image(pid), &mut refused),
        Claim::None => false,
        Claim::Unread => {
            // A pod that hides its environment provokes no loss: it could not be a plugin.
            if trust.is_trusted(pid) {
                unread.insert(pid);
            }
            false
        }
    };
    // Repeats while it finds something new: a plugin may have forked before it was tracked.
    for _ in 0..PASSES_MAX {
        let before = known.len();
        for process in plugin_processes(&known, &mut is_root) {
            known.insert(process.pid);
            found.extend(track_one(roles, &process));
        }
        if known.len() == before {
            break;
        }
    }
    Found {
        events: found,
        unread: unread.len() as u64,
    }
}

/// Tracks one process. `None` when its records report it already, or when it has ended.
fn track_one(roles: &mut Roles, process: &Process) -> Option<Event> {
    if !roles.track(process.pid) {
        return None;
    }
    let event = describe(process);
    // A process that ended before it was tracked would stay in the table for ever.
    let same = read_process(process.pid).is_some_and(|now| now.start_ticks == process.start_ticks && !now.ended);
    if !same && roles.untrack(process.pid) {
        return None;
    }
    event
}

/// A line of the process table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    /// Process id, of the pid namespace that `/proc` is mounted for.
    pid: u32,
    /// Process id of the parent; 0 for the first process of a namespace.
    parent: u32,
    /// Start after boot, in ticks of 10 ms. With the pid it identifies a process: the kernel reuses the pid alone.
    start_ticks: u64,
    /// Name, at most 15 bytes.
    comm: SmolStr,
    /// It has exited and its parent has not waited for it yet.
    ended: bool,
    /// Bytes of its environment; 0 when not known.
    environment: u64,
    /// Start and name of the parent, if it still runs.
    parent_entry: Option<(u64, SmolStr)>,
}

/// Trusted processes with `CNI_COMMAND` in their environment and all their descendants, parents before children. A
/// descendant is followed whatever it holds, so it is not judged.
fn plugin_processes(known: &HashSet<u32>, is_root: &mut dyn FnMut(u32) -> bool) -> Vec<Process> {
    let table: HashMap<u32, Process> = pids()
        .filter_map(read_process)
        .map(|process| (process.pid, process))
        .collect();
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for process in table.values() {
        children.entry(process.parent).or_default().push(process.pid);
    }
    // Oldest first, so that a plugin is found before its descendants: their environment, mostly a copy of the plugin's, is then
    // not read, and a delegate that dropped its privileges is not judged.
    let mut oldest_first: Vec<u32> = table.keys().copied().collect();
    oldest_first.sort_by_key(|pid| (table.get(pid).map(|process| process.start_ticks), depth(&table, *pid)));
    let mut chosen = HashSet::new();
    for root in oldest_first {
        if chosen.contains(&root) || !known.contains(&root) && !is_root(root) {
            continue;
        }
        let mut pending = vec![root];
        while let Some(pid) = pending.pop() {
            if chosen.insert(pid) {
                pending.extend(children.get(&pid).into_iter().flatten());
            }
        }
    }
    let mut found: Vec<Process> = chosen
        .iter()
        .filter(|pid| !known.contains(pid))
        .filter_map(|pid| table.get(pid))
        .filter(|process| !process.ended)
        .cloned()
        .collect();
    for process in &mut found {
        process.parent_entry = table
            .get(&process.parent)
            .map(|parent| (parent.start_ticks, parent.comm.clone()));
    }
    // A parent starts before its child or in the same tick; in one tick the distance from the root decides.
    found.sort_by_key(|process| (process.start_ticks, depth(&table, process.pid)));
    found
}

/// Distance from the first process. Bounded: the table is no snapshot, so a reused pid may close a circle in it.
fn depth(table: &HashMap<u32, Process>, pid: u32) -> usize {
    let parent = |pid: &u32| table.get(pid).map(|process| process.parent);
    std::iter::successors(Some(pid), parent).take(DEPTH_MAX).count()
}

/// The processes of `/proc`, without their threads: entries that are numbers.
fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// One process; `None` when it has ended.
fn read_process(pid: u32) -> Option<Process> {
    parse_stat(&bounded(&format!("/proc/{pid}/stat"), 4096)?)
}

/// The parent of a process; `None` when it has ended.
pub fn parent_of(pid: u32) -> Option<u32> {
    Some(read_process(pid)?.parent)
}

/// When a process began, in ticks of 10 ms after boot, and whether its first thread has ended. `None` where `/proc` does not show it.
pub fn first_thread_of(pid: u32) -> Option<(u64, bool)> {
    let process = read_process(pid)?;
    Some((process.start_ticks, process.ended))
}

/// Key and name of a process; `None` when it has ended.
pub fn key_of(pid: u32) -> Option<(ProcessKey, SmolStr)> {
    let process = read_process(pid)?;
    let start_ticks = process.start_ticks;
    Some((ProcessKey { pid, start_ticks }, process.comm))
}

/// `PID (COMM) STATE PPID .. STARTTIME .. ENV_START ENV_END`, fields 1, 2, 3, 4, 22, 50 and 51 of proc_pid_stat(5). COMM may hold
/// anything, parentheses and line ends included, and no later field holds a parenthesis: so it ends at the last one.
fn parse_stat(stat: &[u8]) -> Option<Process> {
    let open = stat.iter().position(|byte| *byte == b'(')?;
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let pid = std::str::from_utf8(stat.get(..open)?).ok()?.trim().parse().ok()?;
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let (parent, start_ticks) = (fields.next()?.parse().ok()?, fields.nth(17)?.parse().ok()?);
    let mut place = |skipped: usize| fields.nth(skipped).and_then(|place| place.parse::<u64>().ok());
    let (begin, end) = (place(27).unwrap_or(0), place(0).unwrap_or(0));
    Some(Process {
        pid,
        parent,
        start_ticks,
        environment: end.saturating_sub(begin),
        comm: text(stat.get(open + 1..close)?).into(),
        ended: matches!(state, "Z" | "X" | "x"),
        parent_entry: None,
    })
}

/// Whether a process has `CNI_COMMAND` in its environment, which every runtime sets (CNI specification 1.1.0, section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    Plugin,
    None,
    /// The process may not read a part of it itself.
    Unread,
}

/// The environment is that of the exec: a program may have overwritten it (proc(5), `/proc/pid/environ`). Where a page cannot be
/// read, the kernel ends the file there (fs/proc/base.c, `environ_read`).
fn claim(pid: u32) -> Claim {
    let length = |pid| read_process(pid).map_or(0, |process| process.environment);
    let before = length(pid);
    let environ = bounded(&format!("/proc/{pid}/environ"), ENVIRON_MAX).unwrap_or_default();
    if strings(&environ).any(|variable| variable.starts_with(b"CNI_COMMAND=")) {
        return Claim::Plugin;
    }
    // A process that has executed another image meanwhile, or ended, is reported by its records.
    let is_cut = (environ.len() as u64) < before.min(ENVIRON_MAX as u64) && length(pid) == before;
    if is_cut { Claim::Unread } else { Claim::None }
}

/// The event of a process, with the time of its start; `None` when it has ended meanwhile. It holds what an exec's record
/// would, as far as `/proc` still shows it: the arguments may have been overwritten, and the executed path is that of the
/// image.
fn describe(process: &Process) -> Option<Event> {
    let pid = process.pid;
    let cmdline = bounded(&format!("/proc/{pid}/cmdline"), ARGS_MAX + 1)?;
    let args_truncated = cmdline.len() > ARGS_MAX;
    let args = &cmdline[..cmdline.len().min(ARGS_MAX)];
    let environ = bounded(&format!("/proc/{pid}/environ"), ENVIRON_MAX).unwrap_or_default();
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let (parent_start, parent_comm) = process.parent_entry.clone().unwrap_or_default();
    let key = |pid, start_ticks| ProcessKey { pid, start_ticks };
    let exec = Exec {
        process: key(pid, process.start_ticks),
        parent: key(process.parent, parent_start),
        parent_comm,
        path: executed_path(pid, args).into(),
        args: TextList::from_terminated(text(args)),
        args_truncated,
        env: kept_environment(&environ),
        cgroup: cgroups::own_path(&cgroup).unwrap_or_default(),
        netns: fs::metadata(format!("/proc/{pid}/ns/net")).map_or(0, |netns| netns.ino()),
        counted: None,
        running: true,
    };
    Some(Event {
        at: Timestamp(process.start_ticks.saturating_mul(NS_PER_TICK)),
        body: Body::ProcessExecuted(Box::new(exec)),
    })
}

/// The script that an interpreter runs, else the image. The kernel puts the script's path behind the interpreter and its one
/// option (fs/binfmt_script.c, load_script).
fn executed_path(pid: u32, args: &[u8]) -> String {
    let is_script = |argument: &&[u8]| {
        argument.starts_with(b"/")
            && bounded(&process_root::path_in_root(pid, text(argument).as_ref()), 2).is_some_and(|start| start == b"#!")
    };
    if let Some(script) = strings(args).skip(1).take(2).find(is_script) {
        return text(script).into_owned();
    }
    image(pid)
}

/// The path of a process's executable file; empty when it cannot be read. The kernel appends ` (deleted)` to the path of a file
/// that was removed or replaced (proc(5), `/proc/pid/exe`), as an upgrade of the plugins does.
fn image(pid: u32) -> String {
    let image = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let image = image.to_string_lossy();
    image.strip_suffix(" (deleted)").unwrap_or(&image).to_owned()
}

/// The first `max` bytes of a file at most; `None` when it cannot be read.
fn bounded(path: &str, max: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).ok()?;
    file.take(max as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Passes over `/proc` at most: each further one finds only what was forked during the one before.
const PASSES_MAX: usize = 4;
/// Ancestors that are counted at most.
const DEPTH_MAX: usize = 64;
/// Bytes of an environment that are searched. One string of it may be as long (include/uapi/linux/binfmts.h, MAX_ARG_STRLEN).
const ENVIRON_MAX: usize = 128 << 10;
/// Bytes of arguments that are kept: as many as the kernel side keeps.
const ARGS_MAX: usize = sandglass_probes::wire::ARGS_MAX as usize;
// USER_HZ is 100 on every supported architecture (include/asm-generic/param.h): the unit of field 22.
const NS_PER_TICK: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// A name is set by the process itself (prctl(2), PR_SET_NAME), and may pose as the rest of the line.
    #[test]
    fn stat_survives_a_hostile_name() {
        let stat = b"12 (a) R 1) (b\xff) S 7 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 2 rest";
        let process = parse_stat(stat).unwrap();
        assert_eq!((process.pid, process.parent, process.start_ticks), (12, 7, 98_765));
        assert_eq!(process.comm, "a) R 1) (b\\xff");
        assert!(!process.ended);
        assert_eq!(process.environment, 0);
        let fields: Vec<String> = (3..=52).map(|field| format!("{}", field * 10)).collect();
        let process = parse_stat(format!("12 (a) {}", fields.join(" ")).as_bytes()).unwrap();
        assert_eq!(
            (process.parent, process.start_ticks, process.environment),
            (40, 220, 10)
        );
        assert!(
            parse_stat(b"12 (z) Z 1 12 12 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 5 1")
                .unwrap()
                .ended
        );
        for bad in [&b""[..], b"12", b"12 (x", b")12(", b"x (y) S 1", b"1 (y) S"] {
            assert_eq!(parse_stat(bad), None);
        }
    }

    /// Ticks and the boot clock have one origin: an event of a running process would else lie in the future.
    #[test]
    fn this_process_has_a_start_before_now() {
        let own = read_process(std::process::id()).unwrap();
        let now = crate::sources::clock::now();
        assert!(own.start_ticks * NS_PER_TICK <= now.0);
        assert!(now.0 - own.start_ticks * NS_PER_TICK < 600_000_000_000);
    }

    /// Of a user that is not trusted, since agents of other tests would count it.
    #[test]
    fn an_environment_with_a_hole_is_unread() {
        const HIDE: &str = "\
import ctypes, time
stat = open('/proc/self/stat').read().rsplit(')', 1)[1].split()
start, end = -(-int(stat[47]) // 4096) * 4096, int(stat[48]) // 4096 * 4096
assert end > start and ctypes.CDLL(None).mprotect(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 0) == 0
print('ready', flush=True)
time.sleep(1000)
";
        let child = Command::new("/usr/bin/python3")
            .args(["-c", HIDE])
            .env_clear()
            .env("FILLER", "x".repeat(50_000))
            .uid(65_534)
            .stdout(Stdio::piped())
            .spawn();
        // Needs root, and Python.
        let Ok(mut child) = child else { return };
        let mut line = String::new();
        let ready = BufReader::new(child.stdout.take().unwrap()).read_line(&mut line);
        let claimed = claim(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ready.is_ok() && line == "ready\n", "{line}");
        assert_eq!(claimed, Claim::Unread);
        assert_eq!(claim(std::process::id()), Claim::None);
        assert_eq!(claim(u32::MAX), Claim::None);
    }
}
