//! The kernel function that an address lies in: named by the kernel itself, or else from `/proc/kallsyms`.
//!
//! Used by `drops` and by `exec::waits`. The kernel names addresses to a BPF program (`probes/bpf/symbols.bpf.c`, since Linux
//! 5.9), which takes no privilege that the agent does not have anyway. Where it does not, the file is searched in
//! one pass for all addresses that are not known yet; that takes CAP_SYSLOG, and without it every name is empty. Each address is
//! looked up once and cached: few places of the kernel drop packets or sleep.
//! Does not: hold the file in memory, or name functions of user space.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};

use aya::maps::{Array, MapData};
use aya::{Btf, Ebpf};
use sandglass_model::SmolStr;
use sandglass_probes::wire::waits::SYMBOLS_MAX;

use super::loader::error::LoadError;
use super::loader::iterator;

/// The cache.
#[derive(Default)]
pub struct Symbols {
    namer: Option<Namer>,
    known: HashMap<u64, SmolStr>,
}

impl Symbols {
    /// Symbols that the kernel names.
    pub fn named_by(namer: Namer) -> Symbols {
        Symbols {
            namer: Some(namer),
            known: HashMap::new(),
        }
    }

    /// The function; empty when it is not known.
    pub fn function(&mut self, address: u64) -> SmolStr {
        self.resolve(&[address]);
        self.known.get(&address).cloned().unwrap_or_default()
    }

    /// The functions of a stack, in its order; none when not one of them is known.
    pub fn functions(&mut self, stack: &[u64]) -> Vec<SmolStr> {
        self.resolve(stack);
        let names = stack
            .iter()
            .map(|address| self.known.get(address).cloned().unwrap_or_default());
        let names: Vec<SmolStr> = names.collect();
        if names.iter().all(SmolStr::is_empty) {
            Vec::new()
        } else {
            names
        }
    }

    fn resolve(&mut self, addresses: &[u64]) {
        let known = &mut self.known;
        let unknown = addresses
            .iter()
            .copied()
            .filter(|address| *address != 0 && !known.contains_key(address));
        let mut unknown: Vec<u64> = unknown.collect();
        // A kernel has far fewer places that drop packets or sleep: what is above the bound gets no name.
        unknown.truncate(KNOWN_MAX.saturating_sub(known.len()));
        if unknown.is_empty() {
            return;
        }
        if let Some(namer) = &mut self.namer {
            for unknown in unknown.chunks(SYMBOLS_MAX as usize) {
                known.extend(unknown.iter().copied().zip(namer.names(unknown)));
            }
            return;
        }
        let file = File::open("/proc/kallsyms").ok();
        let names = file.and_then(|file| nearest(BufReader::with_capacity(1 << 16, file), &unknown));
        let names = names.unwrap_or_else(|| vec![SmolStr::default(); unknown.len()]);
        known.extend(unknown.into_iter().zip(names));
    }
}

/// The program that names addresses.
pub struct Namer {
    object: Ebpf,
    addresses: Array<MapData, Addresses>,
}

/// The value of the program's map: the addresses, and 0 behind them.
type Addresses = [u64; SYMBOLS_MAX as usize];

impl Namer {
    /// Takes the object whose maps are loaded, and loads its program.
    ///
    /// # Errors
    /// When a part of it is missing or the kernel rejects it.
    pub fn new(mut object: Ebpf, types: &Btf) -> Result<Namer, LoadError> {
        let unexpected = |what: &str| LoadError::Unexpected {
            probe: PROBE,
            hook: HOOK,
            what: what.to_owned(),
        };
        let addresses = object.take_map("addresses").ok_or_else(|| unexpected("addresses"))?;
        let addresses = Array::try_from(addresses).map_err(|_| unexpected("addresses"))?;
        let program = object.program_mut(PROGRAM).ok_or_else(|| unexpected(PROGRAM))?;
        iterator::load(program, "bpf_map", types).map_err(|source| LoadError::Program {
            probe: PROBE,
            hook: HOOK,
            place: "iter/bpf_map",
            source: Box::new(source),
        })?;
        Ok(Namer { object, addresses })
    }

    /// A name for each address; empty when it lies in no function, or the kernel does not say.
    fn names(&mut self, addresses: &[u64]) -> Vec<SmolStr> {
        let mut wanted: Addresses = [0; SYMBOLS_MAX as usize];
        for (wanted, address) in wanted.iter_mut().zip(addresses) {
            *wanted = *address;
        }
        let mut written = Vec::new();
        if self.addresses.set(0, wanted, 0).is_ok()
            && let Some(program) = self.object.program_mut(PROGRAM)
        {
            written = iterator::read(program, WRITTEN_MAX).unwrap_or_default();
        }
        let written = String::from_utf8_lossy(&written);
        let mut names: Vec<SmolStr> = written.lines().map(named).collect();
        names.resize(addresses.len(), SmolStr::default());
        names
    }
}

/// The function of a line `function+0x1c/0x80 [module]`; empty for an address that lies in none, which comes as a number.
fn named(line: &str) -> SmolStr {
    let name = line.split('+').next().unwrap_or_default();
    if name.starts_with("0x") {
        SmolStr::default()
    } else {
        SmolStr::new(name)
    }
}

/// The last function at or before each address. Lines: `ffffffff81000000 T _stext`, perhaps with `[module]` behind.
fn nearest(mut lines: impl BufRead, addresses: &[u64]) -> Option<Vec<SmolStr>> {
    let mut best: Vec<(u64, SmolStr)> = vec![(0, SmolStr::default()); addresses.len()];
    let mut line = String::new();
    loop {
        line.clear();
        if lines.read_line(&mut line).ok()? == 0 {
            break;
        }
        let mut fields = line.split_ascii_whitespace();
        let (Some(start), Some(kind), Some(name)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let Ok(start) = u64::from_str_radix(start, 16) else {
            continue;
        };
        if start == 0 || !matches!(kind, "t" | "T" | "w" | "W") {
            continue;
        }
        for (address, best) in addresses.iter().zip(&mut best) {
            if start <= *address && best.0 < start {
                *best = (start, SmolStr::new(name));
            }
        }
    }
    let near = |(address, (start, name)): (&u64, (u64, SmolStr))| {
        // The compiler's parts of a function (`.part.0`, `.cold`) are that function to a reader.
        let name = name.split('.').next().unwrap_or_default();
        if start != 0 && address - start < FUNCTION_MAX {
            SmolStr::new(name)
        } else {
            SmolStr::default()
        }
    };
    Some(addresses.iter().zip(best).map(near).collect())
}

/// What errors call the program, and how it is run.
pub const PROBE: &str = "symbols";
/// See [`PROBE`].
pub const HOOK: &str = "iter/bpf_map";
/// The program's name.
const PROGRAM: &str = "name_all";
/// What the program may write: the kernel's own buffer.
const WRITTEN_MAX: u64 = 32 << 10;
/// Addresses with a name. About 600 places of a kernel are in the stacks of a day's waits.
const KNOWN_MAX: usize = 4096;
/// No function is so long: an address this far behind one lies in none.
const FUNCTION_MAX: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "ffffffff81000000 T _stext\nffffffff81000100 t nf_hook_slow.part.0\nffffffff81000180 d some_data\n\
                         ffffffffa0000000 t drop_it\t[module]\nbroken\n0000000000000000 T hidden\n";

    #[test]
    fn the_function_before_an_address_is_found() {
        let (addresses, names): (Vec<u64>, Vec<&str>) = [
            (0xffff_ffff_8100_0000, "_stext"),
            (0xffff_ffff_8100_0190, "nf_hook_slow"),
            (0xffff_ffff_a000_0010, "drop_it"),
            (0xffff_ffff_8000_0000, ""),
            (0xffff_ffff_b000_0000, ""),
        ]
        .into_iter()
        .unzip();
        assert_eq!(nearest(LINES.as_bytes(), &addresses).unwrap(), names);
    }

    /// Lines as sprint_backtrace of kernel/kallsyms.c writes them.
    #[test]
    fn a_line_of_the_kernel_has_the_function_in_front() {
        for (line, name) in [
            ("do_nanosleep+0x1/0x150", "do_nanosleep"),
            ("nft_do_chain+0x2a/0x5f0 [nf_tables]", "nft_do_chain"),
            (
                "__mutex_unlock_slowpath.isra.0+0x1/0xb0",
                "__mutex_unlock_slowpath.isra.0",
            ),
            ("0xdead000000000101", ""),
            ("", ""),
        ] {
            assert_eq!(named(line), name);
        }
    }

    #[test]
    fn hidden_addresses_give_no_name() {
        let address = 0xffff_ffff_8100_0000;
        assert_eq!(nearest("0000000000000000 T a\n".as_bytes(), &[address]).unwrap(), [""]);
        assert_eq!(Symbols::default().function(0), "");
        assert!(Symbols::default().functions(&[0, 0]).is_empty());
    }
}
