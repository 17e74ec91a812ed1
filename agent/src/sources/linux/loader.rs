//! Loads and attaches the kernel side: the ladder of hooks, and typed access to what was loaded.
//!
//! The only module that imports aya. Used by the Linux source when it starts, then by its ring thread.
//! Does not: decode records, or keep the kernel's type information (BTF).

pub mod family;
mod hook;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aya::maps::{Array, HashMap, MapData, PerCpuArray, RingBuf};
use aya::programs::ProgramError;
use sandglass_probes::Record as _;
use sandglass_probes::wire::{
    CALIBRATION_PENDING, Calibration, LOST_SLOTS, MARKS, MARKS_OF_USER, ROLE_CALIBRATING, ROLE_TRACKED,
};

use self::family::{Family, Loader, Object, Stream};

/// One rung of the ladder of the process probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// BTF-typed tracepoints.
    TpBtf,
    /// Raw tracepoints.
    RawTp,
}

impl Rung {
    /// Best first.
    pub const ALL: [Rung; 2] = [Rung::TpBtf, Rung::RawTp];

    /// As in `sandglass_probe_info{hook}`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Rung::TpBtf => "tp_btf",
            Rung::RawTp => "raw_tp",
        }
    }

    fn object(self) -> &'static [u8] {
        match self {
            Rung::TpBtf => sandglass_probes::EXEC_TP_BTF,
            Rung::RawTp => sandglass_probes::EXEC_RAW_TP,
        }
    }
}

/// Why a rung could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The kernel does not describe its types.
    #[error("cannot read the kernel's type information from /sys/kernel/btf/vmlinux")]
    Btf(#[source] aya::BtfError),
    /// The object was rejected.
    #[error("cannot load the object of probe '{probe}' ({hook})")]
    Object {
        /// Which probe.
        probe: &'static str,
        /// Which rung.
        hook: &'static str,
        /// What the loader says.
        #[source]
        source: Box<aya::EbpfError>,
    },
    /// One program was rejected.
    #[error("cannot attach probe '{probe}' to {hook} {place}")]
    Program {
        /// Which probe.
        probe: &'static str,
        /// Which rung.
        hook: &'static str,
        /// Which tracepoint, direction of packets or the like.
        place: &'static str,
        /// What the kernel says.
        #[source]
        source: Box<ProgramError>,
    },
    /// There is no cgroup tree to attach to.
    #[error("cannot open the root of the cgroup v2 tree")]
    Cgroup(#[source] io::Error),
    /// The thread that reads its records could not be started.
    #[error("cannot start the thread that reads its ring buffer")]
    Thread(#[source] io::Error),
    /// The configuration does without it.
    #[error("switched off by probes.stdio")]
    NotWanted,
    /// A map or program is not there or not of its kind, or the loader panicked.
    #[error("the object of probe '{probe}' ({hook}) is not as expected: {what}")]
    Unexpected {
        /// Which probe.
        probe: &'static str,
        /// Which rung.
        hook: &'static str,
        /// What is wrong.
        what: String,
    },
}

impl LoadError {
    /// The operating system's error at the bottom of the chain.
    #[must_use]
    pub fn os_error(&self) -> Option<i32> {
        let mut error: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(current) = error {
            if let Some(code) = current.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
                return Some(code);
            }
            error = current.source();
        }
        None
    }
}

/// The loaded and attached process probe. Detached when dropped.
#[derive(Debug)]
pub struct Attached {
    family: Family,
    rung: Rung,
    /// Why the exit program that also reads pipes is not the one in use.
    no_stdio: Option<LoadError>,
}

/// The parts of it that the ring thread uses.
pub struct Channels {
    /// The records.
    pub ring: Ring,
    /// The processes followed.
    pub processes: Processes,
    /// The counters of loss.
    pub lost: LostCounter,
    /// Where pages lie.
    pub pages: Pages,
    /// Whether the reader is to be woken.
    pub reader: Reader,
}

/// Kernel time spent in one program, counted while run-time statistics are on (see [`enable_run_time`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramTime {
    /// Name of the program.
    pub program: String,
    /// Nanoseconds spent.
    pub run_time_ns: u64,
    /// Runs.
    pub run_count: u64,
    /// Instructions the verifier looked at when it was loaded.
    pub verified_instructions: u32,
}

/// Makes the kernel count the time of every BPF program on the node until the descriptor is closed.
pub fn enable_run_time() -> io::Result<OwnedFd> {
    aya::sys::enable_stats(aya::sys::Stats::RunTime).map_err(|error| error.io_error)
}

/// Loads and attaches the best of `rungs` that this kernel takes. The second value says why better ones were not taken.
pub fn attach(
    rungs: &[Rung],
    ring_bytes: u32,
    stdio: bool,
    loader: &mut Loader<'_>,
) -> Result<(Attached, Vec<LoadError>), Vec<LoadError>> {
    let mut refused = Vec::new();
    for rung in rungs {
        match attach_rung(*rung, loader, ring_bytes, stdio) {
            Ok(attached) => return Ok((attached, refused)),
            Err(error) => refused.push(error),
        }
    }
    Err(refused)
}

fn attach_rung(rung: Rung, loader: &mut Loader<'_>, ring_bytes: u32, stdio: bool) -> Result<Attached, LoadError> {
    let object = Object {
        probe: PROBE,
        hook: rung.name(),
        bytes: rung.object(),
    };
    let mut family = Family::load(object, ring_bytes, loader)?;
    // The exit first and the fork last: a process seen to begin is then also seen to end.
    let no_stdio = match stdio {
        true => family.attach("on_exit_stdio", "sched_process_exit", loader).err(),
        false => Some(LoadError::NotWanted),
    };
    if no_stdio.is_some() {
        family.attach("on_exit", "sched_process_exit", loader)?;
    }
    family.attach("on_exec", "sched_process_exec", loader)?;
    family.attach("on_fork", "sched_process_fork", loader)?;
    Ok(Attached { family, rung, no_stdio })
}

/// Runs `load` with all signals held back from this thread: the verifier gives up with EAGAIN while one is pending (a
/// child that ended, say; kernel/bpf/verifier.c, do_check), and on a busy node the next try meets the next one.
fn undisturbed<T>(load: impl FnOnce() -> T) -> T {
    // SAFETY: sigset_t is plain data, which sigfillset and pthread_sigmask fill in.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live sigset_t.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: both pointers are to live sigset_t's; only this thread's mask changes.
    let held = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before) } == 0;
    let outcome = load();
    if held {
        // SAFETY: `before` was filled in above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    }
    outcome
}

impl Attached {
    /// The rung in use.
    #[must_use]
    pub fn rung(&self) -> Rung {
        self.rung
    }

    /// Why the exit program that also reads pipes could not be attached.
    #[must_use]
    pub fn no_stdio(&self) -> Option<&LoadError> {
        self.no_stdio.as_ref()
    }

    /// Takes the maps; once.
    pub fn channels(&mut self) -> Result<Channels, LoadError> {
        let Stream { ring, lost, reader } = self.family.stream()?;
        Ok(Channels {
            ring,
            processes: Processes {
                roles: self.family.take_map("processes")?,
                marks: self.family.take_map("marks")?,
                marked: [0; MARKS as usize],
            },
            lost,
            pages: Pages(self.family.take_map("calibration")?),
            reader,
        })
    }

    /// Takes the programs off their hooks, or puts them on again; loaded they stay.
    pub fn set_hooked(&mut self, hooked: bool) -> Result<(), LoadError> {
        self.family.set_hooked(hooked)
    }

    /// Kernel time of each program so far.
    #[must_use]
    pub fn run_time(&self) -> Vec<ProgramTime> {
        self.family.run_time()
    }
}

/// The ring buffer.
pub struct Ring(RingBuf<MapData>);

impl Ring {
    /// Hands the next record to `take`; `None` when the ring is empty.
    pub fn next<T>(&mut self, take: impl FnOnce(&[u8]) -> T) -> Option<T> {
        self.0.next().map(|record| take(&record))
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The word by which the kernel side knows whether its next record must wake the reader.
pub struct Reader(Array<MapData, u32>);

impl Reader {
    /// The next record wakes whoever waits for the ring, and takes the word back.
    pub fn sleeps(&mut self) -> bool {
        self.0.set(0, 1, 0).is_ok()
    }
}

/// The processes the kernel side follows.
pub struct Processes {
    roles: HashMap<MapData, u32, u32>,
    marks: Array<MapData, Marks>,
    /// What user space has in `marks`.
    marked: Marks,
}

/// How many followed processes have a pid of these low bits: the kernel side looks for the others in no other table.
type Marks = [u32; MARKS as usize];

impl Processes {
    /// Follows a process and what it starts. False when it is followed already, or the table is full.
    pub fn follow(&mut self, pid: u32) -> bool {
        self.insert(pid, ROLE_TRACKED)
    }

    /// Marks this very process, so that the exits of its threads run the calibration.
    pub fn begin_calibration(&mut self) -> bool {
        self.insert(std::process::id(), ROLE_CALIBRATING)
    }

    /// Follows a process no longer. False when it was not followed: its exit has been reported.
    pub fn forget(&mut self, pid: u32) -> bool {
        self.roles.remove(&pid).is_ok() && self.mark(pid, u32::wrapping_sub)
    }

    /// The mark comes first: an entry without one would not be found.
    fn insert(&mut self, pid: u32, role: u32) -> bool {
        if !self.mark(pid, u32::wrapping_add) {
            return false;
        }
        let inserted = self.roles.insert(pid, role, BPF_NOEXIST).is_ok();
        if !inserted {
            self.mark(pid, u32::wrapping_sub);
        }
        inserted
    }

    fn mark(&mut self, pid: u32, change: fn(u32, u32) -> u32) -> bool {
        let count = &mut self.marked[(pid % MARKS) as usize];
        *count = change(*count, 1);
        self.marks.set(MARKS_OF_USER, self.marked, 0).is_ok()
    }
}

/// The kernel side's counters of loss.
pub struct LostCounter {
    counters: PerCpuArray<MapData, u64>,
    seen: u64,
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
pub struct Pages(Array<MapData, [u8; size_of::<Calibration>()]>);

impl Pages {
    /// Asks for one round of the calibration.
    pub fn set(&mut self, calibration: &Calibration) -> bool {
        let Ok(bytes) = <[u8; size_of::<Calibration>()]>::try_from(calibration.bytes()) else {
            return false;
        };
        self.0.set(0, bytes, 0).is_ok()
    }

    /// What came of it: one of the `CALIBRATION_` outcomes.
    #[must_use]
    pub fn outcome(&self) -> u32 {
        let bytes = self.0.get(&0, 0).ok();
        let calibration = bytes.as_ref().and_then(|bytes| Calibration::read(bytes));
        calibration.map_or(CALIBRATION_PENDING, |(calibration, _)| calibration.outcome)
    }
}

/// Name of the process probe.
pub const PROBE: &str = "exec";
const BPF_NOEXIST: u64 = 1;
