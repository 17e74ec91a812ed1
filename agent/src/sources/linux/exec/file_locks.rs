//! Who waits for a lock on a file, and who holds it: from `/proc/locks`, while a plugin is slow.
//!
//! Used by `exec::waits` when the programs that follow waits are attached, for waits that began before; and at every poll of the process
//! probe from then on where the kernel does not report such waits itself (`exec::locks`). `/proc/locks`
//! (proc_locks(5)) has a line for each lock and below it one with `->` for each process that waits; the file's path is
//! that of a descriptor of the process that waits. Works on every kernel, also for locks that are older than the agent.
//! Does not: see a wait that begins and ends between two polls, or a process that only tries again and again.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use sandglass_model::waits::LockBlocked;
use sandglass_model::{Body, Event, SmolStr};

use super::running;
use crate::sources::clock;

/// What the last look found, so that a wait is reported once.
#[derive(Debug, Default)]
pub struct FileLocks {
    reported: Vec<Reported>,
}

/// A wait that was reported.
#[derive(Clone, Copy, Debug)]
struct Reported {
    line: BlockedLine,
    /// With the path of the file.
    named: bool,
}

/// A process that waits, as `/proc/locks` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockedLine {
    pid: u32,
    holder: u32,
    inode: u64,
}

impl FileLocks {
    /// Adds an event for each process below a plugin that waits since the last look.
    pub fn look(&mut self, is_plugin: impl Fn(u32) -> bool, events: &mut Vec<Event>) {
        let at = clock::now();
        let lines = fs::read_to_string("/proc/locks").unwrap_or_default();
        let mut found: Vec<BlockedLine> = blocked(&lines).collect();
        let is_known = |line: &BlockedLine| self.reported.iter().any(|before| before.line == *line);
        found.retain(|line| is_known(line) || is_below(line.pid, &is_plugin));
        found.truncate(REPORTED_MAX);
        let mut reported = Vec::with_capacity(found.len());
        for line in found {
            let before = self.reported.iter().find(|before| before.line == line);
            if let Some(named) = before.filter(|before| before.named) {
                reported.push(*named);
                continue;
            }
            // On a busy node the first look may find no path; one that finds it later reports the wait again.
            let path = path_of(line.pid, line.inode).unwrap_or_default();
            let named = !path.is_empty();
            if before.is_none() || named {
                events.push(Event {
                    at,
                    body: Body::LockBlocked(Box::new(LockBlocked {
                        pid: line.pid,
                        path,
                        holder: line.holder,
                        holder_name: name_of(line.holder),
                    })),
                });
            }
            reported.push(Reported { line, named });
        }
        self.reported = reported;
    }
}

/// The processes that wait. A line: `1: -> FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF`, below that of the holder without
/// the arrow and with the same number.
fn blocked(lines: &str) -> impl Iterator<Item = BlockedLine> {
    let mut held = (String::new(), 0);
    lines.lines().filter_map(move |line| {
        let mut fields = line.split_ascii_whitespace();
        let number = fields.next()?;
        let mut kind = fields.next()?;
        let waits = kind == "->";
        if waits {
            kind = fields.next()?;
        }
        if !matches!(kind, "FLOCK" | "POSIX" | "OFDLCK") {
            return None;
        }
        let (_, _) = (fields.next()?, fields.next()?);
        // OFDLCK has -1: it belongs to no process.
        let pid: u32 = fields.next()?.parse().unwrap_or(0);
        let inode = fields.next()?.rsplit(':').next()?.parse().ok()?;
        if !waits {
            held = (number.to_owned(), pid);
            return None;
        }
        let holder = if held.0 == number { held.1 } else { 0 };
        (pid != 0).then_some(BlockedLine { pid, holder, inode })
    })
}

/// The process or one of its ancestors is a plugin.
fn is_below(pid: u32, is_plugin: &impl Fn(u32) -> bool) -> bool {
    let ancestors = std::iter::successors(Some(pid), |pid| running::parent_of(*pid));
    ancestors.take(DEPTH_MAX).any(is_plugin)
}

/// The path of the file that a process has open.
pub fn path_of(pid: u32, inode: u64) -> Option<String> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))
        .ok()?
        .flatten()
        .take(DESCRIPTORS_MAX);
    let mut paths = descriptors.map(|entry| entry.path());
    let link = paths.find(|link| is_file(link, inode))?;
    let path = fs::read_link(link).ok()?;
    Some(path.to_string_lossy().into_owned())
}

fn is_file(link: &Path, inode: u64) -> bool {
    fs::metadata(link).is_ok_and(|file| file.is_file() && file.ino() == inode)
}

/// The name of a process; empty when it has ended.
pub fn name_of(pid: u32) -> SmolStr {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    SmolStr::new(name.trim_end())
}

/// Waits of one look.
const REPORTED_MAX: usize = 64;
/// A command is a few processes below its plugin. The table is no snapshot, so a reused pid may close a circle in it.
const DEPTH_MAX: usize = 16;
/// Descriptors of one process that are looked at: those that wait for locks have few.
const DESCRIPTORS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_an_arrow_waits_for_the_one_above() {
        let lines = "1: POSIX  ADVISORY  WRITE 12 08:01:99 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 4000 00:19:1234 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF\n\
                     3: OFDLCK ADVISORY  READ -1 00:19:7 0 EOF\n\
                     3: -> OFDLCK ADVISORY  WRITE -1 00:19:7 0 EOF\n\
                     4: LEASE  ACTIVE    READ 9 00:19:8 0 EOF\nbroken\n5: -> FLOCK\n";
        let expected = BlockedLine {
            pid: 4711,
            holder: 4000,
            inode: 1234,
        };
        assert_eq!(blocked(lines).collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn ancestors_end() {
        let own = std::process::id();
        assert!(is_below(own, &|pid| pid == own));
        assert!(is_below(own, &|pid| pid != own), "the parent");
        assert!(!is_below(own, &|_| false));
    }
}
