//! Locks that tracked threads wait for: events of the records of `probes/bpf/file_locks.h` and `probes/bpf/locks.h`.
//!
//! Used by `exec::waits`, which attaches the programs of both. Completes what the kernel side cannot know: the path
//! of a locked file (`lock_paths.rs`), and the name of a holder that took its lock before anybody looked.
//! Does not: say which lock of the kernel it is, beyond its symbol where there is one; the correlator does. Addresses of locks
//! never leave this file: they would show where the kernel lies.

use std::collections::HashMap;

use sandglass_model::locks::{FileLockTry, KernelLockKind, KernelLockWait, LockHolder, LockOutcome};
use sandglass_model::{Body, Event, ProcessKey, SmolStr, Timestamp};
use sandglass_probes::wire::COMM_LEN;
use sandglass_probes::wire::locks::{
    ContentionRecord, FILE_LOCK_BLOCKED, FILE_LOCK_BUSY, FILE_LOCK_TAKEN, FileLockRecord, LCB_F_MUTEX, LCB_F_PERCPU,
    LCB_F_READ, LCB_F_RT,
};

use super::file_locks::{name_of, path_of};
use super::lock_paths;
use crate::health::ProbeStatus;
use crate::sources::linux::loader::error::LoadError;
use crate::sources::linux::loader::family::{Family, Part, ProbeLoader};
use crate::sources::linux::record::text;
use crate::sources::linux::status::{attached, unavailable};
use crate::sources::linux::symbols::Symbols;

/// Loads the programs, to be attached with those of waits and after them. Returns the status, and whether waits for locks on files are seen.
pub fn prepare(family: &mut Family, loader: &ProbeLoader<'_>) -> (ProbeStatus, bool) {
    let files = family
        .prepare(Part::Waits, "on_flock", "flock_lock_inode", loader)
        .and_then(|()| family.prepare(Part::Waits, "on_posix_lock", "posix_lock_inode", loader));
    // The end first: a wait without an end would keep its entry.
    let kernel = family
        .prepare(Part::KernelLocks, "on_contention_end", "contention_end", loader)
        .and_then(|()| family.prepare(Part::KernelLocks, "on_contention_begin", "contention_begin", loader));
    let status = match (&files, &kernel) {
        (Ok(()), Ok(())) => attached(PROBE, "tp_btf filelock, contention, while a plugin is slow"),
        (Ok(()), Err(error)) => lacking("tp_btf filelock, while a plugin is slow", NO_KERNEL, error),
        (Err(error), Ok(())) => lacking("tp_btf contention, while a plugin is slow", NO_FILES, error),
        (Err(error), Err(_)) => unavailable(PROBE, NO_FILES, HINT, error),
    };
    (status, files.is_ok())
}

/// A status of a part of the programs.
fn lacking(hook: &str, consequence: &str, error: &LoadError) -> ProbeStatus {
    let missing = unavailable(PROBE, consequence, HINT, error);
    ProbeStatus {
        consequence: missing.consequence,
        hint: missing.hint,
        ..attached(PROBE, hook)
    }
}

/// What was found out about locks while the programs are attached.
#[derive(Debug, Default)]
pub struct Locks {
    /// Paths of files that were wanted, by device and inode. Forgotten with each attachment: inodes are reused.
    paths: HashMap<(u32, u64), String>,
    /// Numbers and symbols of locks of the kernel, by address.
    numbers: HashMap<u64, (u32, SmolStr)>,
}

impl Locks {
    /// The programs are attached again.
    pub fn reset(&mut self) {
        self.paths.clear();
    }

    /// The event of a try to lock a file; `None` for an outcome that this agent does not know.
    pub fn file_lock(&mut self, record: &FileLockRecord) -> Option<Event> {
        let outcome = match record.outcome {
            FILE_LOCK_BLOCKED => LockOutcome::Blocked,
            FILE_LOCK_BUSY => LockOutcome::Busy,
            FILE_LOCK_TAKEN => LockOutcome::Taken,
            _ => return None,
        };
        let process = ProcessKey::new(record.header.pid, record.header.start_ns);
        let holder_name = match comm(&record.holder_comm) {
            name if name.is_empty() && record.holder_pid != 0 => name_of(record.holder_pid),
            name => name,
        };
        Some(Event {
            at: Timestamp(record.header.at_ns),
            body: Body::FileLockTried(Box::new(FileLockTry {
                process,
                thread: record.tid,
                outcome,
                device: record.device,
                inode: record.inode,
                path: self.path(record, [process.pid, record.holder_pid]),
                holder: record.holder_pid,
                holder_name,
            })),
        })
    }

    /// The path of a file: by its names, or else by a descriptor of one of these processes.
    fn path(&mut self, record: &FileLockRecord, processes: [u32; 2]) -> String {
        let file = (record.device, record.inode);
        if let Some(path) = self.paths.get(&file) {
            return path.clone();
        }
        let (names, is_whole) = lock_paths::within_file_system(&record.names);
        let by_names = || lock_paths::mounted(record.device).map(|mount| lock_paths::join(&mount, &names));
        let open = processes.into_iter().filter(|pid| *pid != 0);
        let by_descriptor = || open.filter_map(|pid| path_of(pid, file.1)).next();
        let found = is_whole.then(by_names).flatten().or_else(by_descriptor);
        // As the file system has it, which may be mounted elsewhere.
        let found = found.unwrap_or(names);
        if !found.is_empty() && self.paths.len() < PATHS_MAX {
            self.paths.insert(file, found.clone());
        }
        found
    }

    /// The event of a wait for a lock of the kernel.
    pub fn kernel_lock(&mut self, record: &ContentionRecord, symbols: &mut Symbols) -> Event {
        let (lock, symbol) = self.number(record.lock, symbols);
        let len = (record.stack_len as usize).min(record.stack.len());
        let stack = symbols.functions(&record.stack[..len]);
        let holder = (record.holder_pid != 0).then(|| LockHolder {
            process: ProcessKey::new(record.holder_pid, record.holder_start_ns),
            thread: record.holder_tid,
            name: comm(&record.holder_comm),
        });
        Event {
            at: Timestamp(record.header.at_ns),
            body: Body::KernelLockWaited(Box::new(KernelLockWait {
                process: ProcessKey::new(record.header.pid, record.header.start_ns),
                thread: record.tid,
                begin: Timestamp(record.thread_begin_ns),
                from: Timestamp(record.begin_ns),
                kind: kind(record.flags),
                lock,
                symbol,
                stack: stack.iter().collect(),
                holder,
            })),
        }
    }

    /// Number and symbol of a lock. Locks of one inode or socket are many: above the bound they have neither.
    fn number(&mut self, address: u64, symbols: &mut Symbols) -> (u32, SmolStr) {
        if let Some(known) = self.numbers.get(&address) {
            return known.clone();
        }
        if self.numbers.len() >= LOCKS_MAX {
            return (0, SmolStr::default());
        }
        let number = u32::try_from(self.numbers.len() + 1).unwrap_or(0);
        let known = (number, symbols.function(address));
        self.numbers.insert(address, known.clone());
        known
    }
}

fn kind(flags: u32) -> KernelLockKind {
    if flags & (LCB_F_MUTEX | LCB_F_RT) != 0 {
        KernelLockKind::Mutex
    } else if flags & LCB_F_PERCPU != 0 {
        KernelLockKind::PerCpu
    } else if flags & LCB_F_READ != 0 {
        KernelLockKind::Read
    } else {
        KernelLockKind::Write
    }
}

/// The name of a thread, as the kernel has it.
fn comm(bytes: &[u8; COMM_LEN]) -> SmolStr {
    let len = bytes.iter().position(|byte| *byte == 0);
    SmolStr::new(text(&bytes[..len.unwrap_or(COMM_LEN)]))
}

/// Name of the probe on the health page and in `sandglass doctor`. What it leaves out counts as that of `waits`.
pub const PROBE: &str = "locks";
/// What is missing without the programs on locks of the kernel.
const NO_KERNEL: &str =
    "waits for locks of the kernel are recognised by who woke the thread, spinning counts as a processor's time";
/// What is missing without those on locks of files.
const NO_FILES: &str = "waits for locks on files are read from /proc/locks at each poll, programs that try again and again wait for a timer";
const HINT: &str = "a kernel of 5.19 or newer has all of them";
/// Files that are wanted while one plugin is slow.
const PATHS_MAX: usize = 256;
/// Locks with a number: those of the network are a handful, and one for each network namespace.
const LOCKS_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt as _;

    use sandglass_probes::wire::RecordHeader;
    use sandglass_probes::wire::locks::{KIND_CONTENTION, KIND_FILE_LOCK};

    use super::*;

    fn header(kind: u32) -> RecordHeader {
        RecordHeader {
            kind,
            pid: std::process::id(),
            at_ns: 5_000_000_000,
            start_ns: 1_000_000_000,
            ring_bytes: 0,
        }
    }

    /// The path is that of an open file, and known from then on; the holder's name comes from `/proc` where the kernel had none.
    #[test]
    fn a_file_has_the_path_of_an_open_descriptor() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let file = File::create(&path).unwrap();
        let mut record = FileLockRecord {
            header: header(KIND_FILE_LOCK),
            inode: file.metadata().unwrap().ino(),
            tid: 7,
            outcome: FILE_LOCK_BUSY,
            holder_pid: std::process::id(),
            device: 1,
            holder_comm: [0; COMM_LEN],
            names: [0; 320],
        };
        let mut locks = Locks::default();
        let tried = |event: Option<Event>| match event.map(|event| event.body) {
            Some(Body::FileLockTried(tried)) => *tried,
            other => panic!("{other:?}"),
        };
        let first = tried(locks.file_lock(&record));
        assert_eq!(first.path, path.to_string_lossy());
        assert_eq!(first.outcome, LockOutcome::Busy);
        assert_eq!(first.holder_name, name_of(std::process::id()));
        drop(file);
        record.holder_comm = *b"kube-proxy\0\0\0\0\0\0";
        let second = tried(locks.file_lock(&record));
        assert_eq!((second.path, second.holder_name.as_str()), (first.path, "kube-proxy"));
        locks.reset();
        assert_eq!(tried(locks.file_lock(&record)).path, "");
        record.outcome = 9;
        assert_eq!(locks.file_lock(&record), None);
    }

    /// The same lock has the same number; its address is in no event.
    #[test]
    fn locks_of_the_kernel_are_numbered() {
        let mut record = ContentionRecord {
            header: header(KIND_CONTENTION),
            begin_ns: 4_000_000_000,
            thread_begin_ns: 1_000_000_000,
            lock: 0xffff_8880_1234_5678,
            holder_start_ns: 0,
            holder_begin_ns: 0,
            tid: 7,
            flags: LCB_F_MUTEX,
            holder_pid: 0,
            holder_tid: 0,
            stack_len: 0,
            unused: 0,
            holder_comm: [0; COMM_LEN],
            stack: [0; 24],
        };
        let (mut locks, mut symbols) = (Locks::default(), Symbols::default());
        let mut number = |record: &ContentionRecord| match locks.kernel_lock(record, &mut symbols).body {
            Body::KernelLockWaited(wait) => (wait.lock, wait.kind, wait.holder),
            other => panic!("{other:?}"),
        };
        assert_eq!(number(&record), (1, KernelLockKind::Mutex, None));
        record.flags = LCB_F_READ;
        assert_eq!(number(&record), (1, KernelLockKind::Read, None));
        record.lock += 8;
        record.flags = LCB_F_READ | LCB_F_PERCPU;
        assert_eq!(number(&record), (2, KernelLockKind::PerCpu, None));
        let others = (0..LOCKS_MAX as u64).map(|address| (address, (9, SmolStr::default())));
        locks.numbers.extend(others);
        record.lock += 8;
        let Body::KernelLockWaited(wait) = locks.kernel_lock(&record, &mut symbols).body else {
            panic!("no KernelLockWaited");
        };
        assert_eq!(wait.lock, 0);
    }
}
