//! Loads one small object of a family of probes (connections, conntrack), and gives typed access to its ring buffer.
//!
//! Used by the families' own modules when they start. Each object has the maps of `probes/bpf/stream.h`.
//! Does not: choose a rung; a family tries its objects in order.

use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use aya::maps::{Array, PerCpuArray, RingBuf};
use aya::programs::SocketFilter;
use aya::{Btf, Ebpf, EbpfLoader};

use super::{LoadError, LostCounter, ProgramTime, Reader, Ring, attach_program, program_times, undisturbed};

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
        let Object { probe, hook, bytes } = object;
        let load = AssertUnwindSafe(|| {
            EbpfLoader::new()
                .btf(Some(btf))
                .map_max_entries("records", ring_bytes)
                .load(bytes)
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
        program_times(&self.ebpf)
    }

    fn unexpected(&self, what: &str) -> LoadError {
        LoadError::Unexpected {
            probe: self.probe,
            hook: self.hook,
            what: what.to_owned(),
        }
    }
}
