//! Looks at the threads of tracked processes while an operation is slow: what each of them does now, as one event.
//!
//! Used by `exec::waits`. A sleep that lasts has no wake-up record, so the kernel is asked about once a second, through a task
//! iterator (`probes/bpf/asleep.h`). A look that finds what the one before found makes no event.
//! Does not: interpret a stack; the correlator does.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sandglass_model::waits::{SocketSeen, ThreadSeen, ThreadState, ThreadsSeen};
use sandglass_model::{Body, Event, ProcessKey, SmolStr, Timestamp};
use sandglass_probes::Record as _;
use sandglass_probes::wire::asleep::{AsleepRecord, LOOK_RUNNABLE, LOOK_RUNS, SocketRecord};
use sandglass_probes::wire::{KIND_ASLEEP, KIND_SOCKET, RecordHeader};

use crate::sources::linux::record::text;
use crate::sources::linux::symbols::Symbols;

/// What the newest look found.
#[derive(Debug, Default)]
pub struct Looks {
    /// When the next look is due.
    due: Timestamp,
    threads: BTreeMap<u32, Known>,
    sockets: Vec<SocketSeen>,
}

/// What was reported of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    process: ProcessKey,
    state: ThreadState,
    /// As the kernel had it; 0 where it is not known.
    kernel_since_ns: u64,
    /// The innermost function, which distinguishes sleeps whose begin is not known.
    place: u64,
}

impl Looks {
    /// Whether it is time for a look. The first is due an interval after the first call since the end of others: what is over by
    /// then pays for none.
    pub fn is_due(&mut self, now: Timestamp) -> bool {
        let is_first = self.due == Timestamp(0);
        let is_due = !is_first && now >= self.due;
        if is_first || is_due {
            self.due = now.plus(INTERVAL_NS);
        }
        is_due
    }

    /// The event of what a look found, in the iterator's bytes. `None` where it equals the one before.
    pub fn event(&mut self, bytes: &[u8], at: Timestamp, symbols: &mut Symbols) -> Option<Event> {
        let mut seen = ThreadsSeen::default();
        let mut threads = BTreeMap::new();
        let mut sockets = Vec::new();
        let mut rest = bytes;
        while let Some((header, _)) = RecordHeader::read(rest) {
            match header.kind {
                KIND_ASLEEP => {
                    let Some((record, behind)) = AsleepRecord::read(rest) else {
                        break;
                    };
                    rest = behind;
                    if threads.len() < THREADS_MAX {
                        self.add_thread(&record, at, &mut threads, &mut seen, symbols);
                    }
                }
                KIND_SOCKET => {
                    let Some((record, behind)) = SocketRecord::read(rest) else {
                        break;
                    };
                    rest = behind;
                    if sockets.len() < SOCKETS_MAX {
                        sockets.push(self.socket(&record));
                    }
                }
                _ => return None,
            }
        }
        let is_new = !seen.threads.is_empty() || threads.len() != self.threads.len() || sockets != self.sockets;
        self.threads = threads;
        self.sockets.clone_from(&sockets);
        seen.sockets = sockets;
        is_new.then(|| Event {
            at,
            body: Body::ThreadsSeen(Box::new(seen)),
        })
    }

    /// The event of the last look, when no more follow: nothing is known of any thread from now on.
    pub fn end(&mut self, at: Timestamp) -> Option<Event> {
        self.due = Timestamp(0);
        if self.threads.is_empty() && self.sockets.is_empty() {
            return None;
        }
        (self.threads, self.sockets) = (BTreeMap::new(), Vec::new());
        Some(Event {
            at,
            body: Body::ThreadsSeen(Box::default()),
        })
    }

    fn add_thread(
        &self,
        record: &AsleepRecord,
        at: Timestamp,
        threads: &mut BTreeMap<u32, Known>,
        seen: &mut ThreadsSeen,
        symbols: &mut Symbols,
    ) {
        let state = match record.flags {
            flags if flags & LOOK_RUNS != 0 => ThreadState::Running,
            flags if flags & LOOK_RUNNABLE != 0 => ThreadState::Runnable,
            _ => ThreadState::Asleep,
        };
        let stack = &record.stack[..(record.stack_len as usize).min(record.stack.len())];
        let thread = record.times.tid;
        let known = Known {
            process: ProcessKey::new(record.header.pid, record.header.start_ns),
            state,
            kernel_since_ns: record.since_ns,
            place: stack.first().copied().unwrap_or_default(),
        };
        if let Some(before) = self.threads.get(&thread).filter(|before| before.is_same(&known)) {
            threads.insert(thread, *before);
            seen.unchanged.push(thread);
            return;
        }
        threads.insert(thread, known);
        let since = match record.since_ns {
            0 => at,
            since => Timestamp(since).min(at),
        };
        seen.threads.push(ThreadSeen {
            process: known.process,
            thread,
            begin: Timestamp(record.times.begin_ns),
            state,
            since,
            stack: symbols.functions(stack).iter().collect(),
        });
    }

    fn socket(&self, record: &SocketRecord) -> SocketSeen {
        let [a, b, c, d, ..] = record.remote;
        let ip = match record.family {
            AF_INET => Some(IpAddr::V4(Ipv4Addr::new(a, b, c, d))),
            AF_INET6 => Some(Ipv6Addr::from(record.remote).to_canonical()),
            _ => None,
        };
        let path = &record.path[..usize::from(record.path_len).min(record.path.len())];
        // A path ends with its terminator, an abstract name begins with a zero byte (unix(7)).
        let path = match path.split_first() {
            Some((0, name)) => format!("@{}", text(name)),
            _ => text(path.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned(),
        };
        let mut socket = SocketSeen {
            process: ProcessKey::new(record.header.pid, record.header.start_ns),
            remote: ip.map(|ip| SocketAddr::new(ip, record.port)),
            udp: record.protocol == IPPROTO_UDP,
            path,
            listener: record.peer_pid,
            listener_name: SmolStr::default(),
        };
        // The name of one that was seen before is not read again.
        let before = self.sockets.iter().find(|before| {
            (before.process, before.listener, &before.path) == (socket.process, socket.listener, &socket.path)
        });
        socket.listener_name = match before {
            Some(before) => before.listener_name.clone(),
            None if socket.listener != 0 => name_of(socket.listener),
            None => SmolStr::default(),
        };
        socket
    }
}

impl Known {
    /// The same sleep. Of one that began before the programs were attached the begin is computed from a clock that interrupts
    /// move on.
    fn is_same(&self, new: &Known) -> bool {
        let begin = self.kernel_since_ns.abs_diff(new.kernel_since_ns);
        (self.process, self.state, self.place) == (new.process, new.state, new.place) && begin < SAME_NS
    }
}

fn name_of(pid: u32) -> SmolStr {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    SmolStr::new(name.trim_end())
}

// include/linux/socket.h, include/uapi/linux/in.h
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const IPPROTO_UDP: u16 = 17;
/// Time between two looks: what a person who watches a stuck operation does not notice, and a little less than that between two
/// polls of an idle probe.
const INTERVAL_NS: u64 = 900_000_000;
/// Threads of one event: of fifty slow plugins at once.
const THREADS_MAX: usize = 512;
/// Sockets of one event.
const SOCKETS_MAX: usize = 256;
/// Begins that differ by less are of one sleep.
const SAME_NS: u64 = 20_000_000;

#[cfg(test)]
mod tests {
    use sandglass_probes::wire::waits::ThreadTimes;

    use super::*;

    fn header(kind: u32) -> RecordHeader {
        RecordHeader {
            kind,
            pid: 7,
            at_ns: 0,
            start_ns: 10_000_000,
            ring_bytes: 0,
        }
    }

    fn asleep(tid: u32, since_ns: u64, flags: u32) -> AsleepRecord {
        AsleepRecord {
            header: header(KIND_ASLEEP),
            times: ThreadTimes {
                processor_ns: 1,
                run_delay_ns: 0,
                begin_ns: 10_000_000,
                tid,
                unused: 0,
            },
            since_ns,
            flags,
            stack_len: 0,
            stack: [0; 24],
        }
    }

    fn socket(family: u16, path: &[u8]) -> SocketRecord {
        let mut record = SocketRecord {
            header: header(KIND_SOCKET),
            peer_pid: 0,
            family,
            port: 443,
            remote: [10, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            protocol: 6,
            path_len: u16::try_from(path.len()).unwrap(),
            path: [0; 108],
        };
        record.path[..path.len()].copy_from_slice(path);
        record
    }

    fn seen(looks: &mut Looks, bytes: &[u8], at: u64) -> Option<ThreadsSeen> {
        let event = looks.event(bytes, Timestamp(at), &mut Symbols::default())?;
        match event.body {
            Body::ThreadsSeen(seen) => Some(*seen),
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn a_look_says_only_what_changed() {
        let mut looks = Looks::default();
        let second = 1_000_000_000;
        let bytes = [asleep(7, second, 0).bytes(), asleep(8, 0, LOOK_RUNS).bytes()].concat();
        let first = seen(&mut looks, &bytes, 5 * second).unwrap();
        let states: Vec<_> = first
            .threads
            .iter()
            .map(|thread| (thread.thread, thread.state, thread.since))
            .collect();
        let wanted = [
            (7, ThreadState::Asleep, Timestamp(second)),
            (8, ThreadState::Running, Timestamp(5 * second)),
        ];
        assert_eq!(states, wanted);
        assert_eq!(seen(&mut looks, &bytes, 6 * second), None, "nothing changed");
        // The begin of a recovered sleep moves a little.
        let moved = [
            asleep(7, second + 5_000_000, 0).bytes(),
            asleep(8, 6 * second, 0).bytes(),
        ]
        .concat();
        let next = seen(&mut looks, &moved, 7 * second).unwrap();
        assert_eq!((next.unchanged, next.threads.len()), (vec![7], 1));
        let gone = seen(&mut looks, asleep(7, second, 0).bytes(), 8 * second).unwrap();
        assert_eq!((gone.unchanged, gone.threads.len()), (vec![7], 0));
        assert!(looks.end(Timestamp(9 * second)).is_some());
        assert!(looks.end(Timestamp(9 * second)).is_none());
    }

    /// What ends within a second pays for no look.
    #[test]
    fn the_first_look_comes_after_an_interval() {
        let mut looks = Looks::default();
        let due: Vec<u64> = (1..40)
            .filter(|tenth| looks.is_due(Timestamp(tenth * 100_000_000)))
            .collect();
        assert_eq!(due, [10, 19, 28, 37]);
        looks.end(Timestamp(4_000_000_000));
        assert!(
            !looks.is_due(Timestamp(9_000_000_000)),
            "the first of another operation"
        );
    }

    #[test]
    fn sockets_have_addresses_and_paths() {
        let mut looks = Looks::default();
        let records = [
            socket(AF_INET, b""),
            socket(AF_INET6, b""),
            socket(1, b"/run/daemon.sock\0"),
            socket(1, b"\0abstract"),
        ];
        let bytes: Vec<u8> = records.iter().flat_map(|record| record.bytes().to_vec()).collect();
        let sockets = seen(&mut looks, &bytes, 1).unwrap().sockets;
        let texts: Vec<String> = sockets
            .iter()
            .map(|socket| {
                socket
                    .remote
                    .map_or_else(|| socket.path.clone(), |remote| remote.to_string())
            })
            .collect();
        assert_eq!(
            texts,
            ["10.96.0.1:443", "[a60:1::]:443", "/run/daemon.sock", "@abstract"]
        );
        assert_eq!(seen(&mut looks, &bytes, 2), None);
    }

    /// What the kernel wrote is cut at a record's end; anything else is no look.
    #[test]
    fn other_bytes_are_no_look() {
        let mut looks = Looks::default();
        assert_eq!(seen(&mut looks, &[1; 300], 1), None);
        assert_eq!(seen(&mut looks, &asleep(7, 1, 0).bytes()[..100], 1), None);
    }

    #[test]
    fn threads_are_bounded() {
        let mut looks = Looks::default();
        let bytes: Vec<u8> = (1..2_000).flat_map(|tid| asleep(tid, 5, 0).bytes().to_vec()).collect();
        assert_eq!(seen(&mut looks, &bytes, 1).unwrap().threads.len(), THREADS_MAX);
    }
}
