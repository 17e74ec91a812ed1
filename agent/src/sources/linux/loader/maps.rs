//! Typed access to the maps of the objects.
//!
//! Used by the threads of the feeds; a [`Family`] gives each map once. Does not: decode records.
//!
//! [`Family`]: super::family::Family

use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{Array, HashMap, MapData, PerCpuArray, RingBuf};
use sandglass_probes::Record as _;
use sandglass_probes::wire::cri::CriSockets;
use sandglass_probes::wire::daemons::PORT_WORDS;
use sandglass_probes::wire::trust::{RefusedRecord, TrustedOwners};
use sandglass_probes::wire::{CALIBRATION_PENDING, COMM_LEN, Calibration, LOST_SLOTS};

/// The ring buffer of an object.
pub struct Ring(pub(super) RingBuf<MapData>);

impl Ring {
    /// Calls `read` with the next record and frees its room; `None` when the ring is empty.
    pub fn next<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        self.0.next().map(|record| read(&record))
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The word that makes the kernel side wake the reader with its next record (`reader` in `probes/bpf/ring.h`).
pub struct Reader(pub(super) Array<MapData, u32>);

impl Reader {
    /// Sets the word; the kernel side clears it when it wakes the reader. False when the map cannot be written: the thread then
    /// polls on.
    pub fn request_wake(&mut self) -> bool {
        self.0.set(0, 1, 0).is_ok()
    }
}

/// The kernel side's counters of loss, or of what it left out. One for each processor, so that counting needs no atomic
/// operation; their sum is what counts.
pub struct LostCounter {
    pub(super) counters: PerCpuArray<MapData, u64>,
    /// The sum at the last call of [`LostCounter::take`].
    pub(super) seen: u64,
}

impl LostCounter {
    /// How many records were lost since the last call.
    pub fn take(&mut self) -> u64 {
        let total: u64 = (0..LOST_SLOTS)
            .filter_map(|slot| self.counters.get(&slot, 0).ok())
            .map(|cpus| cpus.iter().sum::<u64>())
            .sum();
        let new = total.saturating_sub(self.seen);
        self.seen = self.seen.max(total);
        new
    }
}

/// Where the kernel side finds the pages of pipes.
pub struct Pages(pub(super) Array<MapData, [u8; size_of::<Calibration>()]>);

impl Pages {
    /// Requests one round of the calibration. False when the map cannot be written.
    pub fn set(&mut self, calibration: &Calibration) -> bool {
        let Ok(bytes) = <[u8; size_of::<Calibration>()]>::try_from(calibration.bytes()) else {
            return false;
        };
        self.0.set(0, bytes, 0).is_ok()
    }

    /// The result of the round: one of the `CALIBRATION_` outcomes.
    #[must_use]
    pub fn outcome(&self) -> u32 {
        let bytes = self.0.get(&0, 0).ok();
        let calibration = bytes.as_ref().and_then(|bytes| Calibration::read(bytes));
        calibration.map_or(CALIBRATION_PENDING, |(calibration, _)| calibration.outcome)
    }
}

/// What the programs that follow waits remember (`probes/bpf/waits.h`).
pub struct WaitMaps {
    /// By thread id, since when it sleeps.
    pub(super) sleeps: HashMap<MapData, u32, [u8; 88]>,
    /// By thread id, the lock of the kernel that it waits for (`probes/bpf/locks.h`).
    pub(super) contentions: HashMap<MapData, u32, [u8; 64]>,
    /// One entry: the boot clock minus the run queues' clock, and since when switches are seen.
    pub(super) attachments: Array<MapData, [u64; 2]>,
    /// Records that were left out.
    pub(super) limited: LostCounter,
    /// The same, of threads of daemons.
    pub(super) limited_daemons: LostCounter,
}

impl WaitMaps {
    /// How many records were left out since the last call.
    pub fn limited(&mut self) -> u64 {
        self.limited.take()
    }

    /// How many records of threads of daemons were left out since the last call.
    pub fn limited_daemons(&mut self) -> u64 {
        self.limited_daemons.take()
    }

    /// Forgets what was remembered when the programs were attached last. False when a map cannot be written.
    pub fn reset(&mut self) -> bool {
        let threads: Vec<u32> = self.sleeps.keys().filter_map(Result::ok).collect();
        for thread in threads {
            // A thread that is gone meanwhile is no failure: nothing else removes entries while the programs are detached.
            let _ = self.sleeps.remove(&thread);
        }
        let threads: Vec<u32> = self.contentions.keys().filter_map(Result::ok).collect();
        for thread in threads {
            let _ = self.contentions.remove(&thread);
        }
        self.clear_attachment()
    }

    /// Tells the kernel side that the programs are not attached: threads that end are not reported then. False when a map cannot be
    /// written.
    pub fn clear_attachment(&mut self) -> bool {
        self.attachments.set(0, [0; 2], 0).is_ok()
    }
}

/// The kernel side's table of clients' ports.
pub type ClientPorts = [u32; PORT_WORDS as usize];

/// What the programs that follow requests remember (`probes/bpf/daemons.h`).
pub struct RequestMaps {
    /// By process id, when a daemon received from a plugin last, since when it is followed, and how many of its threads are remembered.
    pub(super) daemons: HashMap<MapData, u32, [u64; 3]>,
    /// By connection, the tracked process at one end of a TCP connection within the node.
    pub(super) tcp_clients: HashMap<MapData, u64, u32>,
    /// A bit for each port of these processes.
    pub(super) client_ports: Array<MapData, ClientPorts>,
    /// Names of plugins whose begin wakes the reader.
    pub(super) shims: HashMap<MapData, [u8; COMM_LEN], u32>,
}

impl RequestMaps {
    /// The daemon received something since `at_ns`.
    pub fn has_received(&self, pid: u32, at_ns: u64) -> bool {
        self.daemons.get(&pid, 0).is_ok_and(|[newest, ..]| newest > at_ns)
    }

    /// Removes the entry of a daemon.
    pub fn forget_daemon(&mut self, pid: u32) {
        // An entry that is gone already is no failure: nothing else removes it.
        let _ = self.daemons.remove(&pid);
    }

    /// Enters the TCP connections of tracked processes in place of those before. Only while the programs are not attached: the kernel
    /// side writes both tables. False when a map cannot be written.
    pub fn set_clients(&mut self, clients: impl Iterator<Item = (u64, u32)>) -> bool {
        let mut ports = [0; PORT_WORDS as usize];
        for (connection, pid) in clients {
            // The client's port stands above the other one.
            let port = (connection >> 16) as u16;
            ports[usize::from(port / 32)] |= 1 << (port % 32);
            if self.tcp_clients.insert(connection, pid, 0).is_err() {
                return false;
            }
        }
        self.client_ports.set(0, ports, 0).is_ok()
    }

    /// Makes the begin of plugins of this name wake the reader. False when the map is full.
    pub fn add_shim(&mut self, name: &str) -> bool {
        // As comm has it: 15 bytes and a zero.
        let mut comm = [0; COMM_LEN];
        for (to, from) in comm.iter_mut().take(COMM_LEN - 1).zip(name.bytes()) {
            *to = from;
        }
        self.shims.insert(comm, 1, 0).is_ok()
    }
}

/// Which sockets are the CRI's (`probes/bpf/cri.h`).
pub struct CriMaps(pub(super) Array<MapData, [u8; size_of::<CriSockets>()]>);

impl CriMaps {
    /// Writes the sockets. False when the map cannot be written.
    pub fn set(&mut self, sockets: &CriSockets) -> bool {
        <[u8; size_of::<CriSockets>()]>::try_from(sockets.bytes()).is_ok_and(|bytes| self.0.set(0, bytes, 0).is_ok())
    }
}

/// Who is trusted, and who was refused (`probes/bpf/trust.h`).
pub struct TrustMaps {
    /// One entry: the configured exceptions.
    pub(super) owners: Array<MapData, [u8; size_of::<TrustedOwners>()]>,
    /// Counters by claim and reason.
    pub(super) refused: PerCpuArray<MapData, u64>,
    /// The newest refused process of each slot.
    pub(super) processes: Array<MapData, [u8; size_of::<RefusedRecord>()]>,
}

impl TrustMaps {
    /// Writes the configured exceptions. False when the map cannot be written.
    pub fn set_owners(&mut self, owners: &TrustedOwners) -> bool {
        <[u8; size_of::<TrustedOwners>()]>::try_from(owners.bytes())
            .is_ok_and(|bytes| self.owners.set(0, bytes, 0).is_ok())
    }

    /// How many processes were refused so far, by claim and reason.
    pub fn refused(&self, counter: u32) -> u64 {
        self.refused.get(&counter, 0).map_or(0, |cpus| cpus.iter().sum())
    }

    /// The newest refused process of a slot.
    pub fn refused_process(&self, slot: u32) -> Option<RefusedRecord> {
        let bytes = self.processes.get(&slot, 0).ok()?;
        RefusedRecord::read(&bytes).map(|(record, _)| record)
    }
}
