//! Loads the objects of the packet probes (DNS, drops): their hooks, their ports, and typed access to their maps.
//!
//! Used by `dns` and `drops` when they start, then by their threads. Does not: decode records, or keep the kernel's type
//! information, which is read once for all of them and dropped.

use std::fs::File;

use aya::maps::{Array, PerCpuArray, RingBuf};
use aya::programs::{CgroupAttachMode, Program, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader};
use sandglass_probes::wire::dns::{DNS_PORTS_MAX, TRAFFIC_LOST_RING, TRAFFIC_UNREADABLE};

use super::{LoadError, ProgramTime, Reader, Ring, guarded, program_times};

/// One way to observe one signal.
#[derive(Clone, Copy)]
pub struct Object {
    /// Name of the probe.
    pub probe: &'static str,
    /// Name of the rung.
    pub hook: &'static str,
    /// The compiled object.
    pub bytes: &'static [u8],
}

/// A loaded object. What it attached is detached when it is dropped.
#[derive(Debug)]
pub struct Loaded {
    ebpf: Ebpf,
    probe: &'static str,
    hook: &'static str,
}

/// Where a program of an object goes.
pub enum Hook<'h> {
    /// A BTF-typed tracepoint.
    Tracepoint(&'static str, &'h Btf),
    /// The packets of all sockets of a cgroup and those below it; the name says which way.
    Cgroup(&'static str, &'h File),
}

impl Loaded {
    /// Loads an object for these ports.
    pub fn load(object: Object, types: &Btf, ring_bytes: u32, ports: &[u16]) -> Result<Loaded, LoadError> {
        let Object { probe, hook, bytes } = object;
        let ports = padded(ports);
        let load = || {
            EbpfLoader::new()
                .btf(Some(types))
                .map_max_entries("records", ring_bytes)
                .override_global("dns_ports", &ports[..], true)
                .load(bytes)
                .map_err(|source| LoadError::Object {
                    probe,
                    hook,
                    source: Box::new(source),
                })
        };
        let ebpf = guarded(probe, hook, load)?;
        Ok(Loaded { ebpf, probe, hook })
    }

    /// Attaches one program.
    pub fn attach(&mut self, name: &str, to: &Hook<'_>) -> Result<(), LoadError> {
        let (probe, hook) = (self.probe, self.hook);
        let missing = self.unexpected(name);
        let program = self.ebpf.program_mut(name).ok_or(missing)?;
        guarded(probe, hook, || {
            attach(program, to).map_err(|source| LoadError::Program {
                probe,
                hook,
                tracepoint: to.name(),
                source: Box::new(source),
            })
        })
    }

    /// Takes the maps; once.
    pub fn channels(&mut self) -> Result<TrafficChannels, LoadError> {
        let (probe, hook) = (self.probe, self.hook);
        let unexpected = |what: String| LoadError::Unexpected { probe, hook, what };
        let mut take = |name: &str| self.ebpf.take_map(name).ok_or_else(|| unexpected(name.to_owned()));
        let wrong = |error: aya::maps::MapError| unexpected(error.to_string());
        Ok(TrafficChannels {
            ring: Ring(RingBuf::try_from(take("records")?).map_err(wrong)?),
            counts: TrafficCounter {
                counters: PerCpuArray::try_from(take("lost")?).map_err(wrong)?,
                seen: Counts::default(),
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

impl Hook<'_> {
    fn name(&self) -> &'static str {
        match self {
            Hook::Tracepoint(name, _) | Hook::Cgroup(name, _) => name,
        }
    }
}

fn attach(program: &mut Program, to: &Hook<'_>) -> Result<(), ProgramError> {
    match (program, to) {
        (Program::BtfTracePoint(program), Hook::Tracepoint(name, types)) => {
            program.load(name, types)?;
            program.attach().map(|_| ())
        }
        (Program::CgroupSkb(program), Hook::Cgroup(_, cgroup)) => {
            program.load()?;
            let Some(way) = *program.expected_attach_type() else {
                return Err(ProgramError::UnexpectedProgramType);
            };
            // As a link it lets others' programs be whatever this says (kernel/bpf/cgroup.c, cgroup_bpf_link_attach).
            program.attach(cgroup, way, CgroupAttachMode::Single).map(|_| ())
        }
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

/// The kernel side compares with all places: unused ones repeat the first.
fn padded(ports: &[u16]) -> [u16; DNS_PORTS_MAX] {
    let first = ports.first().copied().unwrap_or(DEFAULT_PORT);
    std::array::from_fn(|place| ports.get(place).copied().unwrap_or(first))
}

/// The parts that a reading thread uses.
pub struct TrafficChannels {
    /// The records.
    pub ring: Ring,
    /// The counters of what did not become one.
    pub counts: TrafficCounter,
    /// Whether the reader is to be woken.
    pub reader: Reader,
}

/// What did not become a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Found the ring buffer full.
    pub lost: u64,
    /// Had headers that lead nowhere.
    pub unreadable: u64,
}

/// The kernel side's counters.
pub struct TrafficCounter {
    counters: PerCpuArray<aya::maps::MapData, u64>,
    seen: Counts,
}

impl TrafficCounter {
    /// What came to them since the last call.
    pub fn take(&mut self) -> Counts {
        let total = Counts {
            lost: self.slot(TRAFFIC_LOST_RING),
            unreadable: self.slot(TRAFFIC_UNREADABLE),
        };
        let new = Counts {
            lost: total.lost.saturating_sub(self.seen.lost),
            unreadable: total.unreadable.saturating_sub(self.seen.unreadable),
        };
        self.seen = total;
        new
    }

    fn slot(&self, slot: u32) -> u64 {
        self.counters.get(&slot, 0).map_or(0, |cpus| cpus.iter().sum())
    }
}

const DEFAULT_PORT: u16 = 53;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_places_repeat_the_first_port() {
        assert_eq!(padded(&[53, 1053]), [53, 1053, 53, 53, 53, 53, 53, 53]);
        assert_eq!(padded(&[]), [53; 8]);
        assert_eq!(padded(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
