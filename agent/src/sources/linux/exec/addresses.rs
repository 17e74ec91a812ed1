//! Which IPv6 addresses are tentative in the namespace that a slow plugin works in: duplicate address detection (RFC 4862, section 5.4).
//!
//! Used by `exec::waits`. A plugin that waits for it only sleeps, again and again, so that no function of the kernel shows for what. From the
//! first sleep on that a poll could be, the namespace's `/proc/net/if_inet6` is read while the plugin is slow, through a thread that is in
//! another namespace than its process was executed in (CAP_SYS_PTRACE to compare them, none to read). The file stays open, since it belongs to
//! the namespace: it costs one read(2) each time, and can be read once more when the process has ended.
//! Costs nothing while no plugin is slow, and nothing for those that never sleep.
//! Does not: enter a namespace, or say who waits for an address; the correlator does.

use std::collections::HashMap;
use std::fs::{self, File};
use std::net::Ipv6Addr;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use sandglass_model::event::Exec;
use sandglass_model::waits::{TentativeAddress, TentativeSeen};
use sandglass_model::{Body, Event, ProcessKey, SmolStr, Timestamp};

/// Processes, and the namespaces that they work in.
#[derive(Debug, Default)]
pub struct Addresses {
    /// Inode of the network namespace that each process was executed in.
    homes: HashMap<ProcessKey, u64>,
    entered: HashMap<ProcessKey, Entered>,
}

/// A namespace that a process works in.
#[derive(Debug)]
struct Entered {
    /// Its `if_inet6`. Open, it keeps the namespace alive.
    file: File,
    netns: u64,
    /// When it was read last.
    read: Timestamp,
    /// What was reported last.
    tentative: Vec<TentativeAddress>,
}

impl Addresses {
    /// A plugin, or what it started, was executed.
    pub fn on_exec(&mut self, exec: &Exec) {
        if exec.netns != 0 && self.homes.len() < PROCESSES_MAX {
            self.homes.entry(exec.process).or_insert(exec.netns);
        }
    }

    /// A thread of a process slept for so long. Looks which namespace the process works in, if that is not known.
    pub fn on_sleep(&mut self, process: ProcessKey, ns: u64) {
        if !(POLL_MIN_NS..=POLL_MAX_NS).contains(&ns)
            || self.entered.contains_key(&process)
            || self.entered.len() >= ENTERED_MAX
        {
            return;
        }
        let home = self.homes.get(&process);
        if let Some(entered) = home.and_then(|home| enter(process.pid, *home)) {
            self.entered.insert(process, entered);
        }
    }

    /// Adds an event for each process in whose namespace other addresses are tentative than before.
    pub fn look(&mut self, now: Timestamp, events: &mut Vec<Event>) {
        for (process, entered) in &mut self.entered {
            if now.since(entered.read) >= INTERVAL_NS {
                events.extend(entered.event(*process, now));
            }
        }
    }

    /// A process has ended: the event of a last reading.
    pub fn on_exit(&mut self, process: ProcessKey, at: Timestamp) -> Option<Event> {
        self.homes.remove(&process);
        self.entered.remove(&process)?.event(process, at)
    }

    /// No plugin is slow any more.
    pub fn leave(&mut self) {
        self.entered.clear();
    }
}

impl Entered {
    /// Reads the addresses. `None` where they are as before, or cannot be read.
    fn event(&mut self, process: ProcessKey, at: Timestamp) -> Option<Event> {
        self.read = at;
        let mut bytes = [0; FILE_MAX];
        let length = self.file.read_at(&mut bytes, 0).ok()?;
        let addresses = tentative(&String::from_utf8_lossy(&bytes[..length]));
        if addresses == self.tentative {
            return None;
        }
        self.tentative.clone_from(&addresses);
        Some(Event {
            at,
            body: Body::TentativeSeen(Box::new(TentativeSeen {
                process,
                netns: self.netns,
                addresses,
            })),
        })
    }
}

/// The namespace of a thread of this process that is not in `home`.
fn enter(pid: u32, home: u64) -> Option<Entered> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    threads.take(THREADS_MAX).find_map(|thread| {
        let path = thread.path();
        let inode = || Some(fs::metadata(path.join("ns/net")).ok()?.ino());
        let netns = inode().filter(|netns| *netns != home)?;
        let file = File::open(path.join("net/if_inet6")).ok()?;
        // The thread may have left it in between.
        (inode() == Some(netns)).then_some(Entered {
            file,
            netns,
            read: Timestamp(0),
            tentative: Vec::new(),
        })
    })
}

/// The tentative addresses of an `if_inet6` (net/ipv6/addrconf.c, `if6_seq_show`). A line: the address, the interface's index, the length of
/// its prefix, its scope, its flags, all in hexadecimal, and the interface's name. In the order of addresses, which the kernel's is not.
fn tentative(lines: &str) -> Vec<TentativeAddress> {
    let mut found: Vec<TentativeAddress> = lines.lines().filter_map(tentative_of_line).collect();
    found.sort_by(|one, other| (one.address, &one.interface).cmp(&(other.address, &other.interface)));
    found.truncate(TentativeSeen::ADDRESSES_MAX);
    found
}

fn tentative_of_line(line: &str) -> Option<TentativeAddress> {
    let mut fields = line.split_ascii_whitespace();
    let address = u128::from_str_radix(fields.next()?, 16).ok()?;
    let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
    let interface = fields.next()?;
    (flags & IFA_F_TENTATIVE != 0).then(|| TentativeAddress {
        address: Ipv6Addr::from(address),
        interface: SmolStr::new(interface),
        duplicate: flags & IFA_F_DADFAILED != 0,
    })
}

// include/uapi/linux/if_addr.h
const IFA_F_TENTATIVE: u32 = 0x40;
const IFA_F_DADFAILED: u32 = 0x08;
/// A sleep of a poll is as long: longer than the timers of Go's own threads (10 ms), and not longer than the correlator takes for one.
const POLL_MIN_NS: u64 = 20_000_000;
/// See [`POLL_MIN_NS`].
const POLL_MAX_NS: u64 = 500_000_000;
/// Time between two readings: each sleep of 50 ms has one.
const INTERVAL_NS: u64 = 40_000_000;
/// Bytes that are read: a line has 53, and a page is what one read(2) of the kernel's `seq_file` gives.
const FILE_MAX: usize = 4096;
/// Plugins and what they started.
const PROCESSES_MAX: usize = 4096;
/// Namespaces that are read at the same time.
const ENTERED_MAX: usize = 64;
/// Threads of one process that are looked at; a plugin in Go has about ten.
const THREADS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 6.18 gave them while `ptp` waited, with one address that another machine had.
    #[test]
    fn flags_say_which_addresses_are_tentative() {
        let lines = "fe800000000000008c292bfffe512bda 02 40 20 c0     eth0\n\
                     fd000010009800000000000000000002 02 40 00 c0     eth0\n\
                     fd000010009800000000000000000003 02 40 00 c8     eth0\n\
                     fd000000000000000000000000000002 04 40 00 82     eth1\n\
                     00000000000000000000000000000001 01 80 10 80       lo\n\
                     broken\nfd00 02 40 00\n";
        let found = tentative(lines);
        let texts: Vec<_> = found
            .iter()
            .map(|one| (one.address.to_string(), one.interface.as_str(), one.duplicate))
            .collect();
        let wanted = [
            ("fd00:10:98::2".to_owned(), "eth0", false),
            ("fd00:10:98::3".to_owned(), "eth0", true),
            ("fe80::8c29:2bff:fe51:2bda".to_owned(), "eth0", false),
        ];
        assert_eq!(texts, wanted);
    }

    /// A process all of whose threads are where it was executed works in no other namespace.
    #[test]
    fn only_another_namespace_is_read() {
        let pid = std::process::id();
        let home = fs::metadata("/proc/self/ns/net").unwrap().ino();
        assert!(enter(pid, home).is_none());
        if fs::exists("/proc/net/if_inet6").unwrap() {
            assert_eq!(enter(pid, 1).map(|entered| entered.netns), Some(home));
        }
        assert!(enter(u32::MAX, home).is_none());
    }

    /// What did not change is no event, and what has ended is forgotten.
    #[test]
    fn only_changes_are_events() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("if_inet6");
        fs::write(&path, "fd000000000000000000000000000005 02 40 00 c0     eth0\n").unwrap();
        let process = ProcessKey { pid: 7, start_ticks: 1 };
        let mut addresses = Addresses::default();
        addresses.entered.insert(
            process,
            Entered {
                file: File::open(&path).unwrap(),
                netns: 9,
                read: Timestamp(0),
                tentative: Vec::new(),
            },
        );
        let mut events = Vec::new();
        for at in [100, 120, 150] {
            addresses.look(Timestamp(at * 1_000_000), &mut events);
        }
        assert_eq!(events.len(), 1, "{events:?}");
        fs::write(&path, "fd000000000000000000000000000005 02 40 00 80     eth0\n").unwrap();
        let last = addresses.on_exit(process, Timestamp(170_000_000)).unwrap();
        assert!(matches!(&last.body, Body::TentativeSeen(seen) if seen.addresses.is_empty() && seen.netns == 9));
        assert_eq!(addresses.on_exit(process, Timestamp(180_000_000)), None);
    }
}
