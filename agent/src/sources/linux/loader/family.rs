//! Loads the objects of the families of probes (processes, connections, conntrack, DNS, drops).
//!
//! Used by the probes when they start. Each object has at least the maps of `probes/bpf/ring.h`.
//! Does not: choose a rung; each probe tries its objects in order.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Instant;

use aya::maps::{Map, MapError};
use aya::programs::{Program, ProgramError, SocketFilter};
use aya::{Btf, Ebpf, EbpfLoader};
use sandglass_probes::wire::dns::DNS_PORTS_MAX;

use super::error::LoadError;
use super::hook::{self, AttachPoint, Hook};
use super::iterator;
use super::maps::{CriMaps, LostCounter, Pages, Reader, RequestMaps, Ring, TrustMaps, WaitMaps};
use super::roles::Roles;
use super::run_time::ProgramTime;
use super::types::KernelTypes;
use crate::sources::linux::symbols::{self, Namer, Symbols};

/// One rung of a ladder of tracepoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// BTF-typed tracepoints (`BPF_TRACE_RAW_TP`, since Linux 5.5).
    TpBtf,
    /// Raw tracepoints (`BPF_PROG_TYPE_RAW_TRACEPOINT`, since Linux 4.17).
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
}

/// An object file to load.
#[derive(Clone, Copy)]
pub struct Object {
    /// Name of the probe.
    pub probe: &'static str,
    /// Its rung, as in `sandglass_probe_info{hook}`.
    pub hook: &'static str,
    /// The object file.
    pub bytes: &'static [u8],
}

/// Loads objects with the kernel's type information.
pub struct ProbeLoader<'k> {
    /// For programs that are attached by type.
    types: &'k Btf,
    /// For CO-RE relocations, with the ports set.
    objects: EbpfLoader<'k>,
    /// See [`Family::attach_twice`].
    preemptible: bool,
}

impl ProbeLoader<'_> {
    /// Names of the kernel's functions, by the kernel where it can, else from `/proc/kallsyms`.
    pub fn symbols(&mut self) -> Symbols {
        self.named_symbols().unwrap_or_default()
    }

    /// Names of the kernel's functions, by the kernel.
    ///
    /// # Errors
    /// When the kernel does not name them to a BPF program.
    pub fn named_symbols(&mut self) -> Result<Symbols, LoadError> {
        let load = AssertUnwindSafe(|| self.objects.load(sandglass_probes::SYMBOLS));
        let (probe, hook) = (symbols::PROBE, symbols::HOOK);
        // aya-obj panics on a few malformed objects.
        let outcome = without_signals(|| catch_unwind(load)).map_err(|_| LoadError::Unexpected {
            probe,
            hook,
            what: "the loader panicked".to_owned(),
        })?;
        let object = outcome.map_err(|source| LoadError::Object {
            probe,
            hook,
            source: Box::new(source),
        })?;
        without_signals(|| Namer::new(object, self.types)).map(Symbols::named_by)
    }
}

/// Reads the kernel's type information and calls `load` with a loader of objects that watch `ports` for DNS. The
/// information takes megabytes and some hundredths of a second to read; it is freed when this returns.
///
/// # Errors
/// When the kernel has no type information.
pub fn with_kernel_types<T>(ports: &[u16], load: impl FnOnce(&mut ProbeLoader<'_>) -> T) -> Result<T, LoadError> {
    // EbpfLoader::new() reads the information too and cannot be kept from it: so there is one loader, made meanwhile.
    let (types, mut objects) = thread::scope(|scope| {
        let other = thread::Builder::new().spawn_scoped(scope, EbpfLoader::new);
        let types = KernelTypes::read().map_err(LoadError::Btf);
        let objects = other.ok().and_then(|other| other.join().ok());
        (types, objects.unwrap_or_default())
    });
    let (types, ports) = (types?, padded(ports));
    let preemptible = u8::from(preempts_programs(&rustix::system::uname().release().to_string_lossy()));
    // Not required: objects that do not look at ports have no such variable, and only that of the process probe has memory of a run.
    objects
        .btf(Some(&types.referenced))
        .override_global("dns_ports", &ports[..], false)
        .override_global("preemptible", &preemptible, false)
        .map_max_entries("scratches", 1 + u32::from(preemptible));
    let types = &types.all;
    let preemptible = preemptible != 0;
    Ok(load(&mut ProbeLoader {
        types,
        objects,
        preemptible,
    }))
}

/// Whether this release of the kernel calls programs of tracepoints with preemption on: since Linux 7.0 (a46023d5616e,
/// include/linux/tracepoint.h).
fn preempts_programs(release: &str) -> bool {
    let major = release.split('.').next().and_then(|major| major.parse().ok());
    major.is_some_and(|major: u32| major >= 7)
}

/// Programs of an object that are attached at times, together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Those that follow waits.
    Waits,
    /// Those that see who holds a lock of the kernel.
    KernelLocks,
    /// Those that follow requests to daemons.
    Requests,
}

/// A loaded object. What it attached is detached when it is dropped.
#[derive(Debug)]
pub struct Family {
    // Dropped first: a program is detached before its object goes.
    hooks: Vec<Hook>,
    /// Programs that are attached at times.
    prepared: Vec<(Part, Hook)>,
    /// The programs, and the maps that were not taken.
    ebpf: Ebpf,
    /// Name of the probe, for errors.
    probe: &'static str,
    /// Its rung, for errors.
    hook: &'static str,
}

/// The maps that every object has.
pub struct RecordStream {
    /// The records.
    pub ring: Ring,
    /// The counters of records that found the ring full.
    pub lost: LostCounter,
    /// The request to be woken.
    pub reader: Reader,
}

impl Family {
    /// Loads the object's maps, with a ring buffer of `ring_bytes`; its programs are loaded when they are attached.
    ///
    /// # Errors
    /// When the kernel or aya rejects the object.
    pub fn load(object: Object, ring_bytes: u32, loader: &mut ProbeLoader<'_>) -> Result<Family, LoadError> {
        let Object { probe, hook, bytes } = object;
        loader.objects.map_max_entries("records", ring_bytes);
        let load = AssertUnwindSafe(|| loader.objects.load(bytes));
        // aya-obj panics on a few malformed objects.
        let outcome = without_signals(|| catch_unwind(load)).map_err(|_| LoadError::Unexpected {
            probe,
            hook,
            what: "the loader panicked".to_owned(),
        })?;
        let ebpf = outcome.map_err(|source| LoadError::Object {
            probe,
            hook,
            source: Box::new(source),
        })?;
        Ok(Family {
            hooks: Vec::new(),
            prepared: Vec::new(),
            ebpf,
            probe,
            hook,
        })
    }

    /// Attaches the program `name` to a tracepoint.
    ///
    /// # Errors
    /// When the object has no such program, or the kernel rejects it.
    pub fn attach(
        &mut self,
        name: &'static str,
        tracepoint: &'static str,
        loader: &ProbeLoader<'_>,
    ) -> Result<(), LoadError> {
        self.hook(name, AttachPoint::Tracepoint(tracepoint), loader)
    }

    /// Attaches the program `name` to a tracepoint, and where the kernel can preempt it `within` behind it, which sees what happens meanwhile
    /// on the same processor (`probes/bpf/process.h`).
    ///
    /// # Errors
    /// As for [`Family::attach`]. Neither is attached then.
    pub fn attach_twice(
        &mut self,
        (name, within): (&'static str, &'static str),
        tracepoint: &'static str,
        loader: &ProbeLoader<'_>,
    ) -> Result<(), LoadError> {
        self.attach(name, tracepoint, loader)?;
        if !loader.preemptible {
            return Ok(());
        }
        self.attach(within, tracepoint, loader)
            .inspect_err(|_| self.unload_newest(name))
    }

    /// Attaches the program `name` to the packets of all sockets of a cgroup and of those below it.
    ///
    /// # Errors
    /// As for [`Family::attach`].
    pub fn attach_to_cgroup(
        &mut self,
        name: &'static str,
        way: &'static str,
        cgroup: &File,
        loader: &ProbeLoader<'_>,
    ) -> Result<(), LoadError> {
        let cgroup = cgroup.try_clone().map_err(LoadError::Cgroup)?;
        self.hook(name, AttachPoint::Packets { cgroup, way }, loader)
    }

    /// Loads the program and attaches it; from then on it is detached and attached with all others.
    fn hook(&mut self, name: &'static str, place: AttachPoint, loader: &ProbeLoader<'_>) -> Result<(), LoadError> {
        let mut hook = Hook::new(name, place);
        let missing = self.unexpected(name);
        let program = self.ebpf.program_mut(name).ok_or(missing)?;
        let outcome = without_signals(|| hook.load(program, loader.types)).and_then(|()| hook.attach(program));
        outcome.map_err(|source| self.rejected(&hook, source))?;
        self.hooks.push(hook);
        Ok(())
    }

    /// Calls `work` while the program `name` is attached to a tracepoint. It is not in the kernel any more afterwards. Works once.
    ///
    /// # Errors
    /// As for [`Family::attach`].
    pub fn with_attached<T>(
        &mut self,
        name: &'static str,
        tracepoint: &'static str,
        loader: &ProbeLoader<'_>,
        work: impl FnOnce() -> T,
    ) -> Result<T, LoadError> {
        self.attach(name, tracepoint, loader)?;
        let result = work();
        self.unload_newest(name);
        Ok(result)
    }

    /// Removes the program that was attached last from the kernel.
    fn unload_newest(&mut self, name: &str) {
        if let (Some(mut hook), Some(program)) = (self.hooks.pop(), self.ebpf.program_mut(name)) {
            hook.unload(program);
        }
    }

    /// Loads the program `name` for a tracepoint without attaching it: see [`Family::set_part_hooked`].
    ///
    /// # Errors
    /// As for [`Family::attach`].
    pub fn prepare(
        &mut self,
        part: Part,
        name: &'static str,
        tracepoint: &'static str,
        loader: &ProbeLoader<'_>,
    ) -> Result<(), LoadError> {
        let hook = Hook::new(name, AttachPoint::Tracepoint(tracepoint));
        let missing = self.unexpected(name);
        let program = self.ebpf.program_mut(name).ok_or(missing)?;
        let outcome = without_signals(|| hook.load(program, loader.types));
        outcome.map_err(|source| self.rejected(&hook, source))?;
        self.prepared.push((part, hook));
        Ok(())
    }

    /// Loads the program `name`, an iterator over the node's tasks (`iter/task`): see [`Family::iterate`].
    ///
    /// # Errors
    /// As for [`Family::attach`]; before Linux 5.8 always.
    pub fn prepare_iterator(&mut self, name: &'static str, loader: &ProbeLoader<'_>) -> Result<(), LoadError> {
        let (probe, hook) = (self.probe, self.hook);
        let missing = self.unexpected(name);
        let program = self.ebpf.program_mut(name).ok_or(missing)?;
        let outcome = without_signals(|| iterator::load(program, "task", loader.types));
        outcome.map_err(|source| LoadError::Program {
            probe,
            hook,
            place: "iter/task",
            source: Box::new(source),
        })
    }

    /// Runs a prepared iterator once and returns what it wrote, up to `max` bytes.
    ///
    /// # Errors
    /// When the kernel refuses to run it.
    pub fn iterate(&mut self, name: &str, max: u64) -> Result<Vec<u8>, io::Error> {
        let program = self.ebpf.program_mut(name).ok_or(io::ErrorKind::NotFound)?;
        iterator::read(program, max)
    }

    /// Attaches the prepared programs of a part in their order, or detaches them, the last one first.
    ///
    /// # Errors
    /// When the kernel rejects a program; none of the part is attached then.
    pub fn set_part_hooked(&mut self, part: Part, hooked: bool) -> Result<(), LoadError> {
        while !self.step_part(part, hooked)? {}
        Ok(())
    }

    /// As [`Family::set_part_hooked`], the next program only. Returns whether it was the last one.
    ///
    /// # Errors
    /// As there.
    pub fn step_part(&mut self, part: Part, hooked: bool) -> Result<bool, LoadError> {
        let is_due = |(of, hook): &(Part, Hook)| *of == part && hook.is_attached() != hooked;
        let due = match hooked {
            true => self.prepared.iter().position(is_due),
            false => self.prepared.iter().rposition(is_due),
        };
        let Some(at) = due else { return Ok(true) };
        let missing = self.unexpected(self.prepared[at].1.program());
        let hook = &mut self.prepared[at].1;
        if !hooked {
            hook.detach();
        } else {
            let program = self.ebpf.program_mut(hook.program()).ok_or(missing)?;
            if let Err(source) = hook.attach(program) {
                let error = self.rejected(&self.prepared[at].1, source);
                self.detach_part(part);
                return Err(error);
            }
        }
        Ok(!self.prepared.iter().any(is_due))
    }

    fn detach_part(&mut self, part: Part) {
        let hooks = self.prepared.iter_mut().rev().filter(|(of, _)| *of == part);
        hooks.for_each(|(_, hook)| hook.detach());
    }

    /// Detaches all programs, or attaches them again; they stay loaded. The filter of a socket stays attached.
    ///
    /// # Errors
    /// When the kernel rejects a program.
    pub fn set_hooked(&mut self, hooked: bool) -> Result<(), LoadError> {
        if !hooked {
            // In reverse order: whatever a program has seen begin, the one that sees its end is still attached.
            self.hooks.iter_mut().rev().for_each(Hook::detach);
            return Ok(());
        }
        for at in 0..self.hooks.len() {
            let hook = &mut self.hooks[at];
            let program = self.ebpf.program_mut(hook.program());
            let outcome = program.map_or(Ok(()), |program| hook.attach(program));
            outcome.map_err(|source| self.rejected(&self.hooks[at], source))?;
        }
        Ok(())
    }

    /// Makes the program `name` the filter of a socket, until the socket is closed.
    ///
    /// # Errors
    /// As for [`Family::attach`].
    pub fn filter(&mut self, name: &str, socket: impl AsFd) -> Result<(), LoadError> {
        let (probe, hook) = (self.probe, self.hook);
        let missing = self.unexpected(name);
        let program = self.ebpf.program_mut(name).ok_or(missing)?;
        let begin = Instant::now();
        let filter: Result<&mut SocketFilter, _> = program.try_into();
        let outcome = filter.and_then(|filter| without_signals(|| filter.load()));
        let outcome = outcome.and_then(|()| {
            hook::log_load(name, begin, program);
            let filter: &mut SocketFilter = program.try_into()?;
            filter.attach(socket)
        });
        outcome.map_err(|source| LoadError::Program {
            probe,
            hook,
            place: "socket",
            source: Box::new(source),
        })
    }

    /// Takes the maps that all objects have. Works once.
    ///
    /// # Errors
    /// When a map is missing or not of its kind.
    pub fn stream(&mut self) -> Result<RecordStream, LoadError> {
        Ok(RecordStream {
            ring: Ring(self.take_map("records")?),
            lost: LostCounter {
                counters: self.take_map("lost")?,
                seen: 0,
            },
            reader: Reader(self.take_map("reader")?),
        })
    }

    /// The table of roles of the process probe. The map stays in the object: programs that are loaded later refer to it.
    ///
    /// # Errors
    /// When the map is missing or not of its kind, or the kernel refuses to map it into memory.
    pub fn roles(&self) -> Result<Roles, LoadError> {
        let Some(Map::Array(table)) = self.ebpf.map("roles") else {
            return Err(self.unexpected("roles"));
        };
        Roles::new(table.fd()).map_err(|error| self.unexpected(&format!("roles: {error}")))
    }

    /// Takes the calibration of the process probe. Works once.
    ///
    /// # Errors
    /// As for [`Family::stream`].
    pub fn pages(&mut self) -> Result<Pages, LoadError> {
        Ok(Pages(self.take_map("calibration")?))
    }

    /// Takes the maps of the programs that follow waits. Works once.
    ///
    /// # Errors
    /// As for [`Family::stream`].
    pub fn wait_maps(&mut self) -> Result<WaitMaps, LoadError> {
        Ok(WaitMaps {
            sleeps: self.take_map("sleeps")?,
            contentions: self.take_map("contentions")?,
            attachments: self.take_map("attachments")?,
            limited: self.limited()?,
            limited_daemons: LostCounter {
                counters: self.take_map("limited_daemons")?,
                seen: 0,
            },
        })
    }

    /// Takes the maps of the programs that follow requests. Works once.
    ///
    /// # Errors
    /// As for [`Family::stream`].
    pub fn request_maps(&mut self) -> Result<RequestMaps, LoadError> {
        Ok(RequestMaps {
            daemons: self.take_map("daemons")?,
            tcp_clients: self.take_map("tcp_clients")?,
            client_ports: self.take_map("client_ports")?,
            shims: self.take_map("shims")?,
        })
    }

    /// Takes the map of the programs that read the runtime's CRI socket. Works once.
    ///
    /// # Errors
    /// As for [`Family::stream`].
    pub fn cri_maps(&mut self) -> Result<CriMaps, LoadError> {
        Ok(CriMaps(self.take_map("cri_sockets")?))
    }

    /// Takes the counter of records that were left out on purpose, of the drop probe or the wait programs. Works once.
    ///
    /// # Errors
    /// As for [`Family::stream`].
    pub fn limited(&mut self) -> Result<LostCounter, LoadError> {
        Ok(LostCounter {
            counters: self.take_map("limited")?,
            seen: 0,
        })
    }

    /// Takes the maps about trust of the process probe. Works once.
    ///
    /// # Errors
    /// As for [`Family::stream`].
    pub fn trust(&mut self) -> Result<TrustMaps, LoadError> {
        Ok(TrustMaps {
            owners: self.take_map("trusted_owners")?,
            refused: self.take_map("refused")?,
            processes: self.take_map("refused_processes")?,
        })
    }

    /// Takes a map by the name that the object gives it, as the type that it has to be of.
    fn take_map<T: TryFrom<Map, Error = MapError>>(&mut self, name: &str) -> Result<T, LoadError> {
        let map = self.ebpf.take_map(name).ok_or_else(|| self.unexpected(name))?;
        T::try_from(map).map_err(|error| self.unexpected(&error.to_string()))
    }

    /// Kernel time of each program so far.
    #[must_use]
    pub fn run_time(&self) -> Vec<ProgramTime> {
        let time = |(name, program): (&str, &Program)| {
            let facts = program.info().ok()?;
            Some(ProgramTime {
                program: name.to_owned(),
                run_time_ns: u64::try_from(facts.run_time().as_nanos()).unwrap_or(u64::MAX),
                run_count: facts.run_count(),
                verified_instructions: facts.verified_instruction_count().unwrap_or(0),
            })
        };
        self.ebpf.programs().filter_map(time).collect()
    }

    fn rejected(&self, hook: &Hook, source: ProgramError) -> LoadError {
        LoadError::Program {
            probe: self.probe,
            hook: self.hook,
            place: hook.place(),
            source: Box::new(source),
        }
    }

    fn unexpected(&self, what: &str) -> LoadError {
        LoadError::Unexpected {
            probe: self.probe,
            hook: self.hook,
            what: what.to_owned(),
        }
    }
}

/// Runs `load` with all signals blocked in this thread: the verifier gives up with EAGAIN while one is pending
/// (kernel/bpf/verifier.c, do_check), a child's end for example, and on a busy node every retry may meet another one.
fn without_signals<T>(load: impl FnOnce() -> T) -> T {
    // SAFETY: sigset_t is plain data, which sigfillset and pthread_sigmask fill in.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live sigset_t.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: both pointers are to live sigset_t's; only this thread's mask changes.
    let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before) } == 0;
    let outcome = load();
    if blocked {
        // SAFETY: `before` was filled in above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    }
    outcome
}

/// The kernel side compares with all places: unused ones repeat the first.
fn padded(ports: &[u16]) -> [u16; DNS_PORTS_MAX] {
    let first = ports.first().copied().unwrap_or_default();
    std::array::from_fn(|place| ports.get(place).copied().unwrap_or(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loader ignores a variable that an object does not have: a renamed one would not be noticed.
    #[test]
    fn objects_that_look_at_ports_have_the_variable() {
        use sandglass_probes::{CONNECT_TP_BTF, DNS_CGROUP_SKB, DNS_OLD_TASK, DROP_NO_REASON, DROP_TP_BTF};
        let has = |object: &[u8]| object.windows(11).any(|bytes| bytes == b"\0dns_ports\0");
        for object in [DNS_CGROUP_SKB, DNS_OLD_TASK, DROP_TP_BTF, DROP_NO_REASON] {
            assert!(has(object));
        }
        assert!(!has(CONNECT_TP_BTF));
    }

    /// The same of the one that says that runs can be preempted.
    #[test]
    fn programs_are_preempted_since_7_0() {
        use sandglass_probes::{EXEC_RAW_TP, EXEC_TP_BTF};
        let has = |object: &[u8]| object.windows(13).any(|bytes| bytes == b"\0preemptible\0");
        assert!(has(EXEC_TP_BTF) && has(EXEC_RAW_TP));
        let releases = [
            "5.10.0-32-cloud-amd64",
            "6.18.44",
            "7.0.0-rc1",
            "7.2.13+deb14-cloud-amd64",
            "10.1",
            "",
            "x",
        ];
        assert_eq!(
            releases.map(preempts_programs),
            [false, false, true, true, true, false, false]
        );
    }

    #[test]
    fn unused_places_repeat_the_first_port() {
        assert_eq!(padded(&[53, 1053]), [53, 1053, 53, 53, 53, 53, 53, 53]);
        assert_eq!(padded(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
