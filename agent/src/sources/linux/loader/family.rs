//! Loads one small object of a family of probes (connections, conntrack), and gives typed access to its ring buffer.
//!
//! Used by the families' own modules when they start. Each object has the maps of `probes/bpf/stream.h`.
//! Does not: choose a rung; a family tries its objects in order.

use std::fs::File;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use aya::maps::{Array, PerCpuArray, RingBuf};
use aya::programs::{CgroupAttachMode, CgroupSkb, ProgramError, SocketFilter};
use aya::{Btf, Ebpf, EbpfLoader};
use sandglass_probes::wire::dns::DNS_PORTS_MAX;

use super::{LoadError, LostCounter, ProgramTime, Reader, Ring, attach_program, run_time, undisturbed};

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

/// A loaded object. What it attached to tracepoints is detached when it is dropped.
#[derive(Debug)]
pub struct Family {
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
    pub fn load(object: Object, ring_bytes: u32, btf: &Btf) -> Result<Family, LoadError> {
        Family::load_for_ports(object, ring_bytes, btf, &[])
    }

    /// Loads an object that looks at these ports; one that does not know ports takes none.
    pub fn load_for_ports(object: Object, ring_bytes: u32, btf: &Btf, ports: &[u16]) -> Result<Family, LoadError> {
        let Object { probe, hook, bytes } = object;
        let places = padded(ports);
        let load = AssertUnwindSafe(|| {
            let mut loader = EbpfLoader::new();
            loader.btf(Some(btf)).map_max_entries("records", ring_bytes);
            if !ports.is_empty() {
                loader.override_global("dns_ports", &places[..], true);
            }
            loader.load(bytes)
        });
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
        Ok(Family { ebpf, probe, hook })
    }

    /// Attaches the program `name` to a tracepoint.
    pub fn attach(&mut self, name: &str, tracepoint: &'static str, btf: &Btf) -> Result<(), LoadError> {
        let place = (self.probe, self.hook);
        let missing = self.unexpected(name);
        let program = self.ebpf.program_mut(name).ok_or(missing)?;
        undisturbed(|| attach_program(program, place, tracepoint, btf))
    }

    /// Attaches the program `name` to the packets of all sockets of a cgroup and those below it.
    pub fn attach_to_cgroup(&mut self, name: &str, way: &'static str, cgroup: &File) -> Result<(), LoadError> {
        let (probe, hook) = (self.probe, self.hook);
        let missing = self.unexpected(name);
        let program = self.ebpf.program_mut(name).ok_or(missing)?;
        let program: Result<&mut CgroupSkb, _> = program.try_into();
        let outcome = program.and_then(|program| {
            undisturbed(|| program.load())?;
            let way = *program.expected_attach_type();
            let way = way.ok_or(ProgramError::UnexpectedProgramType)?;
            // As a link it leaves others' programs alone whatever this says (kernel/bpf/cgroup.c, cgroup_bpf_link_attach).
            program.attach(cgroup, way, CgroupAttachMode::Single).map(|_| ())
        });
        outcome.map_err(|source| LoadError::Program {
            probe,
            hook,
            tracepoint: way,
            source: Box::new(source),
        })
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
            tracepoint: "socket",
            source: Box::new(source),
        })
    }

    /// Takes the maps; once.
    pub fn stream(&mut self) -> Result<Stream, LoadError> {
        let (probe, hook) = (self.probe, self.hook);
        let unexpected = |what: String| LoadError::Unexpected { probe, hook, what };
        let mut take = |name: &str| self.ebpf.take_map(name).ok_or_else(|| unexpected(name.to_owned()));
        let wrong = |error: aya::maps::MapError| unexpected(error.to_string());
        Ok(Stream {
            ring: Ring(RingBuf::try_from(take("records")?).map_err(wrong)?),
            lost: LostCounter {
                counters: PerCpuArray::try_from(take("lost")?).map_err(wrong)?,
                seen: 0,
            },
            reader: Reader(Array::try_from(take("reader")?).map_err(wrong)?),
        })
    }

    /// Kernel time of each program so far.
    #[must_use]
    pub fn run_time(&self) -> Vec<ProgramTime> {
        run_time(&self.ebpf)
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

    #[test]
    fn unused_places_repeat_the_first_port() {
        assert_eq!(padded(&[53, 1053]), [53, 1053, 53, 53, 53, 53, 53, 53]);
        assert_eq!(padded(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
