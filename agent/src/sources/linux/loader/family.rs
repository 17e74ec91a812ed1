//! Loads the objects of the families of probes (processes, connections, conntrack, ..), and gives typed access to their maps.
//!
//! Used by the families' own modules when they start. Each object has at least the maps of `probes/bpf/stream.h`.
//! Does not: choose a rung; a family tries its objects in order.

use std::fs::File;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use aya::maps::{Map, MapError};
use aya::programs::{Program, ProgramError, SocketFilter};
use aya::{Btf, Ebpf, EbpfLoader};
use sandglass_probes::wire::dns::DNS_PORTS_MAX;

use super::hook::{Hook, Place};
use super::{LoadError, LostCounter, ProgramTime, Reader, Ring, undisturbed};

/// What is to be loaded.
#[derive(Clone, Copy)]
pub struct Object {
    /// Name of the probe.
    pub probe: &'static str,
    /// Its rung, as in `sandglass_probe_info{hook}`.
    pub hook: &'static str,
    /// The object file.
    pub bytes: &'static [u8],
}

/// Loads objects by what the kernel says of its types.
pub struct Loader<'k> {
    types: &'k Btf,
    objects: EbpfLoader<'k>,
}

/// Reads the kernel's own description of its types, and loads with it objects that look at these ports. It is large, takes
/// some hundredths of a second to read, and is gone when this returns.
pub fn with_kernel_types<T>(ports: &[u16], load: impl FnOnce(&mut Loader<'_>) -> T) -> Result<T, LoadError> {
    // A new loader of aya's reads the description too, asked or not: one for all objects, and at the same time.
    let (types, mut objects) = thread::scope(|scope| {
        let other = thread::Builder::new().spawn_scoped(scope, EbpfLoader::new);
        let types = Btf::from_sys_fs().map_err(LoadError::Btf);
        let objects = other.ok().and_then(|other| other.join().ok());
        (types, objects.unwrap_or_default())
    });
    let (types, ports) = (types?, padded(ports));
    // An object that does not look at ports has no such variable.
    objects
        .btf(Some(&types))
        .override_global("dns_ports", &ports[..], false);
    Ok(load(&mut Loader { types: &types, objects }))
}

/// A loaded object. What it attached is detached when it is dropped.
#[derive(Debug)]
pub struct Family {
    hooks: Vec<Hook>,
    ebpf: Ebpf,
    probe: &'static str,
    hook: &'static str,
}

/// A family's way from the kernel.
pub struct Stream {
    /// The records.
    pub ring: Ring,
    /// What found the ring full.
    pub lost: LostCounter,
    /// Whether the reader is to be woken.
    pub reader: Reader,
}

impl Family {
    /// Loads the object.
    pub fn load(object: Object, ring_bytes: u32, loader: &mut Loader<'_>) -> Result<Family, LoadError> {
        let Object { probe, hook, bytes } = object;
        loader.objects.map_max_entries("records", ring_bytes);
        let load = AssertUnwindSafe(|| loader.objects.load(bytes));
        // aya-obj panics on a few malformed objects.
        let outcome = undisturbed(|| catch_unwind(load)).map_err(|_| LoadError::Unexpected {
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
            ebpf,
            probe,
            hook,
        })
    }

    /// Attaches the program `name` to a tracepoint.
    pub fn attach(
        &mut self,
        name: &'static str,
        tracepoint: &'static str,
        loader: &Loader<'_>,
    ) -> Result<(), LoadError> {
        self.hook(name, Place::Tracepoint(tracepoint), loader)
    }

    /// Attaches the program `name` to the packets of all sockets of a cgroup and those below it.
    pub fn attach_to_cgroup(
        &mut self,
        name: &'static str,
        way: &'static str,
        cgroup: &File,
        loader: &Loader<'_>,
    ) -> Result<(), LoadError> {
        let cgroup = cgroup.try_clone().map_err(LoadError::Cgroup)?;
        self.hook(name, Place::Packets { cgroup, way }, loader)
    }

    fn hook(&mut self, name: &'static str, place: Place, loader: &Loader<'_>) -> Result<(), LoadError> {
        let mut hook = Hook::new(name, place);
        let missing = self.unexpected(name);
        let program = self.ebpf.program_mut(name).ok_or(missing)?;
        let outcome = undisturbed(|| hook.load(program, loader.types)).and_then(|()| hook.put_on(program));
        outcome.map_err(|source| self.refused(&hook, source))?;
        self.hooks.push(hook);
        Ok(())
    }

    /// Takes all programs off their hooks, or puts them on again; loaded they stay. A socket's filter stays where it is.
    pub fn set_hooked(&mut self, hooked: bool) -> Result<(), LoadError> {
        if !hooked {
            // The other way round than they were put on: what began is then also seen to end.
            self.hooks.iter_mut().rev().for_each(Hook::take_off);
            return Ok(());
        }
        for at in 0..self.hooks.len() {
            let hook = &mut self.hooks[at];
            let program = self.ebpf.program_mut(hook.program());
            let outcome = program.map_or(Ok(()), |program| hook.put_on(program));
            outcome.map_err(|source| self.refused(&self.hooks[at], source))?;
        }
        Ok(())
    }

    /// Makes the program `name` the filter of a socket, until that is closed.
    pub fn filter(&mut self, name: &str, socket: impl AsFd) -> Result<(), LoadError> {
        let (probe, hook) = (self.probe, self.hook);
        let missing = self.unexpected(name);
        let program = self.ebpf.program_mut(name).ok_or(missing)?;
        let filter: Result<&mut SocketFilter, _> = program.try_into();
        let outcome = filter.and_then(|filter| {
            undisturbed(|| filter.load())?;
            filter.attach(socket)
        });
        outcome.map_err(|source| LoadError::Program {
            probe,
            hook,
            place: "socket",
            source: Box::new(source),
        })
    }

    /// Takes the maps that all objects have; once.
    pub fn stream(&mut self) -> Result<Stream, LoadError> {
        Ok(Stream {
            ring: Ring(self.take_map("records")?),
            lost: LostCounter {
                counters: self.take_map("lost")?,
                seen: 0,
            },
            reader: Reader(self.take_map("reader")?),
        })
    }

    /// Takes the map `name`; once.
    pub fn take_map<T: TryFrom<Map, Error = MapError>>(&mut self, name: &str) -> Result<T, LoadError> {
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

    fn refused(&self, hook: &Hook, source: ProgramError) -> LoadError {
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

/// The kernel side compares with all places: unused ones repeat the first.
fn padded(ports: &[u16]) -> [u16; DNS_PORTS_MAX] {
    let first = ports.first().copied().unwrap_or_default();
    std::array::from_fn(|place| ports.get(place).copied().unwrap_or(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loader passes over a variable that an object does not have: a renamed one would not be noticed.
    #[test]
    fn objects_that_look_at_ports_have_the_variable() {
        use sandglass_probes::{CONNECT_TP_BTF, DNS_CGROUP_SKB, DNS_OLD_TASK, DROP_NO_REASON, DROP_TP_BTF};
        let has = |object: &[u8]| object.windows(11).any(|bytes| bytes == b"\0dns_ports\0");
        for object in [DNS_CGROUP_SKB, DNS_OLD_TASK, DROP_TP_BTF, DROP_NO_REASON] {
            assert!(has(object));
        }
        assert!(!has(CONNECT_TP_BTF));
    }

    #[test]
    fn unused_places_repeat_the_first_port() {
        assert_eq!(padded(&[53, 1053]), [53, 1053, 53, 53, 53, 53, 53, 53]);
        assert_eq!(padded(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
